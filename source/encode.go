package source

import (
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/unspool/unspool/arch"
)

// Append appends r as a whole record to b, as the kernel would write it for the given event of d, trailer included: MMAP, MMAP2, COMM, FORK,
// EXIT, LOST, LOST_SAMPLES, KSYMBOL and FINISHED_ROUND. It is for recorders that report processes and mappings older than their start. A name that
// does not fit a record is cut.
func (d *Decoder) Append(b []byte, event int, r *Record) []byte {
	start := len(b)
	b = appendHeader(b, r.Type, r.Misc)
	b = appendBody(b, r)
	if t := *d.table.Load(); r.Type < RecordUser && event >= 0 && event < len(t) {
		b = appendTrailer(b, &t[event].attr, r)
	}
	return finishRecord(b, start)
}

// maxName bounds a file's name so that a record with it stays below 64 KiB; the kernel's bound is PATH_MAX.
const maxName = 4095

func appendHeader(b []byte, typ uint32, misc uint16) []byte {
	b = binary.LittleEndian.AppendUint32(b, typ)
	b = binary.LittleEndian.AppendUint16(b, misc)
	return append(b, 0, 0) // the size: finishRecord
}

// finishRecord writes the size of the record that starts at b[start].
func finishRecord(b []byte, start int) []byte {
	binary.LittleEndian.PutUint16(b[start+6:], uint16(len(b)-start))
	return b
}

func appendPair(b []byte, lo, hi int32) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(lo))
	return binary.LittleEndian.AppendUint32(b, uint32(hi))
}

// appendName appends a zero-terminated string, padded to 8 bytes.
func appendName(b, name []byte) []byte {
	name = name[:min(len(name), maxName)]
	b = append(b, name...)
	return append(b, make([]byte, 8-len(name)%8)...)
}

func appendBody(b []byte, r *Record) []byte {
	u64 := func(vs ...uint64) {
		for _, v := range vs {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	switch r.Type {
	case RecordMmap, RecordMmap2:
		b = appendPair(b, r.PID, r.TID)
		u64(r.Addr, r.Len, r.Pgoff)
		if r.Type == RecordMmap2 {
			if r.Misc&MiscMmapBuildID != 0 {
				var id [24]byte
				id[0] = byte(copy(id[4:], r.BuildID))
				b = append(b, id[:]...)
			} else {
				b = appendPair(b, int32(r.Maj), int32(r.Min))
				u64(r.Inode, r.InodeGen)
			}
			b = appendPair(b, int32(r.Prot), int32(r.MapFlags))
		}
		b = appendName(b, r.Filename)
	case RecordComm:
		b = appendPair(b, r.PID, r.TID)
		b = appendName(b, r.Comm)
	case RecordFork, RecordExit:
		b = appendPair(b, r.PID, r.PPID)
		b = appendPair(b, r.TID, r.PTID)
		u64(r.Time)
	case RecordLost:
		u64(r.ID, r.Lost)
	case RecordLostSamples:
		u64(r.Lost)
	case RecordKsymbol:
		u64(r.Addr)
		b = appendPair(b, int32(uint32(r.Len)), int32(uint32(r.SymbolType)|uint32(r.SymbolFlags)<<16))
		b = appendName(b, r.Symbol)
	}
	return b
}

// appendTrailer appends what a says that records other than samples end with.
func appendTrailer(b []byte, a *Attr, r *Record) []byte {
	if !a.Has(FlagSampleIDAll) {
		return b
	}
	u64 := func(bit, v uint64) {
		if a.SampleType&bit != 0 {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	u64(SampleTID, uint64(uint32(r.PID))|uint64(uint32(r.TID))<<32)
	u64(SampleTime, r.Time)
	u64(SampleID, r.ID)
	u64(SampleStreamID, r.StreamID)
	u64(SampleCPU, uint64(r.CPU))
	u64(SampleIdentifier, r.ID)
	return b
}

// Walked returns the attr of samples as AppendSample writes them: the same but for a callchain in place of registers
// and stack copies. A fixed period is in each sample, too.
func (a *Attr) Walked() Attr {
	w := *a
	w.SampleType = a.SampleType&^(SampleRegsUser|SampleStackUser|SampleAux) | SampleCallchain | SampleRaw
	if !a.Has(FlagFreq) && a.SamplePeriod > 0 {
		w.SampleType |= SamplePeriod
	}
	w.SampleRegsUser, w.SampleStackUser, w.AuxSampleSize = 0, 0, 0
	w.Flags &^= FlagExcludeCallchainUser | FlagDeferCallchain | FlagDeferOutput
	return w
}

// maxRecord is the size of the largest record.
const maxRecord = 1<<16 - 8

var errTooLarge = fmt.Errorf("%w: the sample's other fields leave no room for its callchain", ErrUnsupported)

// AppendSample appends s as a record of an event with the attr a, which Walked made: with all that was recorded but
// registers and stack, and with the stack as a plain callchain. User frames are written as Frame.Addr; how they were
// found follows: see Options.Ours. A stack that does not fit a record, which has room for some 6,000 frames, is cut,
// and its Stop becomes DepthLimit. It fails if nothing fits.
func AppendSample(b []byte, a *Attr, s *Sample) ([]byte, error) {
	start := len(b)
	r := s.Record
	t := a.SampleType
	u64 := func(bit, v uint64) {
		if t&bit != 0 {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	b = appendHeader(b, RecordSample, r.Misc)
	u64(SampleIdentifier, r.ID)
	u64(SampleIP, r.IP)
	u64(SampleTID, uint64(uint32(r.PID))|uint64(uint32(r.TID))<<32)
	u64(SampleTime, r.Time)
	u64(SampleAddr, r.Addr)
	u64(SampleID, r.ID)
	u64(SampleStreamID, r.StreamID)
	u64(SampleCPU, uint64(r.CPU))
	u64(SamplePeriod, r.Period)
	if t&SampleRead != 0 {
		b = append(b, r.Read...)
	}

	// A frame takes 8 bytes, and 2 more at most to say how it was found; what is left is for the rest of the
	// provenance and for the fields behind.
	const rest = 256
	room := maxRecord - (len(b) - start) - len(r.Tracepoint) - len(r.Branches) - len(r.BranchCounters) - len(r.IntrRegs) - rest
	if room < 0 {
		return b[:start], errTooLarge
	}
	chain := len(b)
	b = append(b, make([]byte, 8)...)
	b, user := s.appendChain(b, room/10)
	binary.LittleEndian.PutUint64(b[chain:], uint64(len(b)-chain-8)/8)

	raw := len(b)
	b = append(b, 0, 0, 0, 0)
	b = append(b, r.Tracepoint...)
	b = appendProvenance(b, raw, s, user)
	binary.LittleEndian.PutUint32(b[raw:], uint32(len(b)-raw-4))

	if t&SampleBranchStack != 0 {
		u64(SampleBranchStack, uint64(r.Branches.Len()/3))
		if a.BranchSampleType&BranchHWIndex != 0 {
			u64(SampleBranchStack, r.BranchHWIndex)
		}
		b = append(append(b, r.Branches...), r.BranchCounters...)
	}
	u64(SampleWeight|SampleWeightStruct, r.Weight)
	u64(SampleDataSrc, r.DataSrc)
	u64(SampleTransaction, r.Transaction)
	if t&SampleRegsIntr != 0 {
		u64(SampleRegsIntr, r.IntrABI)
		b = append(b, r.IntrRegs...)
	}
	u64(SamplePhysAddr, r.PhysAddr)
	u64(SampleCgroup, r.Cgroup)
	u64(SampleDataPageSize, r.DataPageSize)
	u64(SampleCodePageSize, r.CodePageSize)
	return finishRecord(b, start), nil
}

// A Piece is memory of a process.
type Piece struct {
	Addr  uint64
	Bytes []byte
}

// otherMark ends a copy of a stack that has a piece of another stack behind what was captured of the first: the piece, its address, its length,
// the mark. Readers that do not know of it leave out what lies behind what was captured.
const otherMark = 0x6b63_6174_732d_3232 // "22-stack"

// AppendOther appends a piece of another stack to a copy of a stack. Both are multiples of 8 bytes long.
func AppendOther(stack []byte, p Piece) []byte {
	stack = append(stack, p.Bytes...)
	for _, v := range []uint64{p.Addr, uint64(len(p.Bytes)), otherMark} {
		stack = binary.LittleEndian.AppendUint64(stack, v)
	}
	return stack
}

// other returns the piece of another stack that lies in what was not captured of a copy.
func other(b []byte) (p Piece, ok bool) {
	n := len(b) - 24
	if n < 0 || binary.LittleEndian.Uint64(b[n+16:]) != otherMark {
		return p, false
	}
	size := binary.LittleEndian.Uint64(b[n+8:])
	if size > uint64(n) {
		return p, false
	}
	return Piece{binary.LittleEndian.Uint64(b[n:]), b[n-int(size) : n]}, true
}

// Read8 implements rows.Reader.
func (p *Piece) Read8(addr uint64) (uint64, bool) {
	off, n := addr-p.Addr, uint64(len(p.Bytes))
	if off >= n || n-off < 8 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(p.Bytes[off:]), true
}

// AppendCopy appends r as a record of an event with the attr a, as the kernel would write it with the user registers, by DWARF
// number, and a copy of the stack, whose length is a multiple of 8, and of which r.StackDyn bytes were captured if that is not 0. Of other fields than those of a recorder's own events, a has
// none.
func AppendCopy(b []byte, a *Attr, r *Record, kernel []uint64, m *arch.Machine, regs []uint64, stack []byte) []byte {
	start := len(b)
	u64 := func(bit, v uint64) {
		if a.SampleType&bit != 0 {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	b = appendHeader(b, RecordSample, r.Misc)
	u64(SampleIdentifier, r.ID)
	u64(SampleIP, r.IP)
	u64(SampleTID, uint64(uint32(r.PID))|uint64(uint32(r.TID))<<32)
	u64(SampleTime, r.Time)
	u64(SampleCPU, uint64(r.CPU))
	u64(SamplePeriod, r.Period)
	if len(kernel) > 0 {
		u64(SampleCallchain, uint64(len(kernel)+1))
		u64(SampleCallchain, ContextKernel)
		for _, v := range kernel {
			u64(SampleCallchain, v)
		}
	} else {
		u64(SampleCallchain, 0)
	}
	u64(SampleRegsUser, abiOf(m))
	for bit, slot := range m.Perf {
		if a.SampleRegsUser>>bit&1 != 0 {
			u64(SampleRegsUser, regs[slot])
		}
	}
	u64(SampleStackUser, uint64(len(stack)))
	if len(stack) > 0 && a.SampleType&SampleStackUser != 0 {
		b = append(b, stack...)
		b = binary.LittleEndian.AppendUint64(b, cmp.Or(r.StackDyn, uint64(len(stack))))
	}
	return finishRecord(b, start)
}

// appendChain appends up to max words: markers, kernel addresses as recorded, user frames as Frame.Addr. It returns how
// many user frames it wrote.
func (s *Sample) appendChain(b []byte, max int) (_ []byte, user int) {
	end := len(b) + 8*max
	u64 := func(v uint64) bool {
		if v >= ContextMax || len(b) >= end {
			return false
		}
		b = binary.LittleEndian.AppendUint64(b, v)
		return true
	}
	if len(s.Kernel) > 0 {
		b = binary.LittleEndian.AppendUint64(b, ContextKernel)
		for _, v := range s.Kernel {
			u64(v)
		}
	}
	if len(s.User) > 0 {
		b = binary.LittleEndian.AppendUint64(b, ContextUser)
		for user < len(s.User) && u64(uint64(s.User[user].Addr())) {
			user++
		}
	}
	return b, user
}
