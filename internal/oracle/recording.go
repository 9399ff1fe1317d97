package oracle

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"syscall"
)

// A Recording is a plain little-endian x86-64 perf.data file, read by this package's own means: what it
// says about a process must not come from the code under test. It handles what perf record
// --call-graph dwarf writes, and refuses the rest.
type Recording struct {
	data       []byte // the whole file
	sampleType uint64
	regsMask   uint64   // sample_regs_user
	records    []record // in time order
}

type record struct {
	time uint64
	off  int64
}

// A RecordedSample is a sample with user registers. It is valid during the call that it was given to.
type RecordedSample struct {
	PID, TID int
	Time     uint64
	IP       uint64
	Kernel   int // addresses in the recorded callchain
	User     bool
	Snapshot // where User; its stack is a part of the file
	Space    *Space
}

// A Space is the executable mappings of a process image. Mappings are only ever added: where one is
// taken away or overlaid, another Space takes its place.
type Space struct {
	ID   uint32
	Maps []Map // in the order in which they came, disjoint
	refs int
}

// Find returns the mapping that contains a, or nil.
func (s *Space) Find(a uint64) *Map {
	for i := range s.Maps {
		if m := &s.Maps[i]; m.Lo <= a && a < m.Hi {
			return m
		}
	}
	return nil
}

// The bits of perf_event_attr.sample_type, and the records, of linux/perf_event.h.
const (
	bitIP = 1 << iota
	bitTID
	bitTime
	bitAddr
	bitRead
	bitCallchain
	bitID
	bitCPU
	bitPeriod
	bitStreamID
	bitRaw
	bitBranch
	bitRegs
	bitStack
	_
	_
	bitIdentifier

	recMmap   = 1
	recComm   = 3
	recFork   = 7
	recSample = 9
	recMmap2  = 10

	miscBit13 = 1 << 13 // of COMM: exec; of MMAP: not executable
)

// dwarfOrder is the position in perf's x86 user registers of each DWARF register.
var dwarfOrder = [17]int{0, 3, 2, 1, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23, 8}

// OpenRecording maps a file and puts its records in order.
func OpenRecording(path string) (*Recording, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ, syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r := &Recording{data: b}
	if err := r.index(); err != nil {
		r.Close()
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return r, nil
}

// Close unmaps the file: no stack that came from it may be used after.
func (r *Recording) Close() error { return syscall.Munmap(r.data) }

func (r *Recording) u16(off int64) uint16 { return binary.LittleEndian.Uint16(r.data[off:]) }
func (r *Recording) u32(off int64) uint32 { return binary.LittleEndian.Uint32(r.data[off:]) }
func (r *Recording) u64(off int64) uint64 { return binary.LittleEndian.Uint64(r.data[off:]) }

func (r *Recording) str(off, end int64) string {
	b := r.data[off:end]
	if i := slices.Index(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// index reads the header (magic; sizes of the header and of an attribute; sections of attributes and of
// data, each an offset and a size) and notes where each record is.
func (r *Recording) index() (err error) {
	defer func() { // a judge's input is trusted, but not to be whole
		if e := recover(); e != nil {
			err = fmt.Errorf("the file is cut short: %v", e)
		}
	}()
	if string(r.data[:8]) != "PERFILE2" {
		return fmt.Errorf("not a perf.data file")
	}
	attrSize, attrOff, attrLen := int64(r.u64(16)), int64(r.u64(24)), int64(r.u64(32))
	off, size := int64(r.u64(40)), int64(r.u64(48))
	if attrSize < 96 || attrLen < attrSize || size == 0 {
		return fmt.Errorf("no attributes or no data")
	}
	for a := attrOff; a < attrOff+attrLen; a += attrSize {
		st := r.u64(a + 24)
		mask := r.u64(a + 80)
		if r.sampleType != 0 && (st != r.sampleType || mask != r.regsMask) {
			return fmt.Errorf("events with different sample types")
		}
		r.sampleType, r.regsMask = st, mask
	}
	for _, pos := range dwarfOrder {
		if r.sampleType&bitRegs != 0 && r.regsMask>>pos&1 == 0 {
			return fmt.Errorf("user registers %#x lack some", r.regsMask)
		}
	}
	if r.sampleType&(bitTID|bitTime) != bitTID|bitTime || r.sampleType&(bitRead|bitRaw|bitBranch) != 0 {
		return fmt.Errorf("sample type %#x is not supported", r.sampleType)
	}
	for end := off + size; off < end; {
		n := int64(r.u16(off + 6))
		if n < 8 {
			return fmt.Errorf("+%#x: a record of %d bytes", off, n)
		}
		switch r.u32(off) {
		case recSample:
			r.records = append(r.records, record{r.u64(off + 8 + r.before(bitTime)), off})
		case recMmap, recMmap2, recComm, recFork:
			r.records = append(r.records, record{r.u64(off + n - r.after()), off})
		}
		off += n
	}
	sort.SliceStable(r.records, func(i, j int) bool { return r.records[i].time < r.records[j].time })
	return nil
}

// before returns the size of the fields of a sample in front of the one of bit: those up to the period,
// in the order of the record.
func (r *Recording) before(bit uint64) (n int64) {
	for _, b := range [...]uint64{bitIdentifier, bitIP, bitTID, bitTime, bitAddr, bitID, bitStreamID, bitCPU, bitPeriod} {
		if b == bit {
			break
		}
		if r.sampleType&b != 0 {
			n += 8
		}
	}
	return n
}

// after returns how far from the end of any other record its time is.
func (r *Recording) after() (n int64) {
	for _, b := range [...]uint64{bitTime, bitID, bitStreamID, bitCPU, bitIdentifier} {
		if r.sampleType&b != 0 {
			n += 8
		}
	}
	return n
}

// Samples calls yield for each sample, in time order, until it returns false.
func (r *Recording) Samples(yield func(*RecordedSample) bool) (err error) {
	yielding := false
	defer func() {
		if e := recover(); e != nil {
			if _, ok := e.(error); !ok || yielding {
				panic(e)
			}
			err = fmt.Errorf("a record is cut short: %v", e)
		}
	}()
	w := world{procs: map[int]*Space{}}
	var s RecordedSample
	for _, rec := range r.records {
		off := rec.off
		end := off + int64(r.u16(off+6))
		misc := r.u16(off + 4)
		switch r.u32(off) {
		case recSample:
			r.sample(&s, off, rec.time)
			s.Space = w.space(s.PID)
			s.Snapshot.Space = s.Space.ID
			yielding = true
			more := yield(&s)
			if yielding = false; !more {
				return nil
			}
		case recMmap:
			m := Map{Lo: r.u64(off + 16), Off: r.u64(off + 32), Path: r.str(off+40, end)}
			m.Hi = m.Lo + r.u64(off+24)
			w.mmap(int(int32(r.u32(off+8))), m, misc&miscBit13 == 0)
		case recMmap2:
			m := Map{Lo: r.u64(off + 16), Off: r.u64(off + 32), Path: r.str(off+72, end)}
			m.Hi = m.Lo + r.u64(off+24)
			w.mmap(int(int32(r.u32(off+8))), m, r.u32(off+64)&syscall.PROT_EXEC != 0)
		case recComm:
			if misc&miscBit13 != 0 {
				w.exec(int(int32(r.u32(off + 8))))
			}
		case recFork:
			w.fork(int(int32(r.u32(off+12))), int(int32(r.u32(off+8))))
		}
	}
	return nil
}

// sample reads the record at off.
func (r *Recording) sample(s *RecordedSample, off int64, time uint64) {
	p := off + 8
	*s = RecordedSample{Time: time}
	tid := p + r.before(bitTID)
	s.PID, s.TID = int(int32(r.u32(tid))), int(int32(r.u32(tid+4)))
	if r.sampleType&bitIP != 0 {
		s.IP = r.u64(p + r.before(bitIP))
	}
	p += r.before(0)
	if r.sampleType&bitCallchain != 0 {
		n := int64(r.u64(p))
		for i := range n {
			if a := r.u64(p + 8 + 8*i); a < 1<<64-4096 { // not a marker of context
				s.Kernel++
			}
		}
		p += 8 + 8*n
	}
	if r.sampleType&(bitRegs|bitStack) != bitRegs|bitStack {
		return
	}
	abi := r.u64(p)
	p += 8
	if abi == 0 {
		return
	}
	if abi != 2 {
		return // a 32-bit process
	}
	for i, pos := range dwarfOrder {
		s.Regs[i] = r.u64(p + 8*int64(bits.OnesCount64(r.regsMask&(1<<pos-1))))
	}
	p += 8 * int64(bits.OnesCount64(r.regsMask))
	size := int64(r.u64(p))
	p += 8
	s.User = true
	s.Base = s.Regs[7]
	if size > 0 {
		dyn := int64(r.u64(p + size))
		s.Stack = r.data[p : p+min(dyn, size)]
	}
}

// A world is the processes over time.
type world struct {
	procs map[int]*Space
	last  uint32
}

func (w *world) fresh(maps []Map) *Space {
	w.last++
	return &Space{ID: w.last, Maps: maps, refs: 1}
}

func (w *world) space(pid int) *Space {
	s := w.procs[pid]
	if s == nil {
		s = w.fresh(nil)
		w.procs[pid] = s
	}
	return s
}

func (w *world) exec(pid int) {
	if s := w.procs[pid]; s != nil {
		s.refs--
	}
	w.procs[pid] = w.fresh(nil)
}

func (w *world) fork(parent, child int) {
	if parent == child {
		return // a thread
	}
	if s := w.procs[child]; s != nil {
		s.refs--
	}
	s := w.space(parent)
	s.refs++
	w.procs[child] = s
}

// mmap lays m over what was there. A mapping that cannot be executed only takes away.
func (w *world) mmap(pid int, m Map, exec bool) {
	s := w.space(pid)
	var keep []Map
	cut := false
	for _, o := range s.Maps {
		if o.Hi <= m.Lo || m.Hi <= o.Lo {
			keep = append(keep, o)
			continue
		}
		if exec && o.Path == m.Path && o.Off-o.Lo == m.Off-m.Lo && o.Lo <= m.Lo && m.Hi <= o.Hi {
			return // nothing new
		}
		cut = true
		if o.Lo < m.Lo {
			keep = append(keep, Map{o.Lo, m.Lo, o.Off, o.Path})
		}
		if o.Hi > m.Hi {
			keep = append(keep, Map{m.Hi, o.Hi, o.Off + (m.Hi - o.Lo), o.Path})
		}
	}
	if !cut && !exec {
		return
	}
	if cut || s.refs > 1 {
		s.refs--
		s = w.fresh(keep)
		w.procs[pid] = s
	}
	if exec {
		s.Maps = append(s.Maps, m)
	}
}
