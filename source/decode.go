package source

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
)

// An Event is one event of a recording.
type Event struct {
	Attr Attr
	IDs  []uint64 // what PERF_SAMPLE_ID may say; one for each CPU and thread
	Name string   // as recorded, or as the Attr says
}

// A Decoder reads records. It knows the events of a recording and which of them a record belongs to. It is safe
// for concurrent use; events may be added while others decode.
type Decoder struct {
	mu     sync.Mutex // for writers
	events []Event
	table  atomic.Pointer[[]layout] // of events, and of walked samples; only appended to
	byID   sync.Map                 // uint64 to int, an index of table
	one    atomic.Bool              // the kernel has event 0 only: samples of unknown IDs are of that
}

// maxEvents bounds what a hostile stream can make a Decoder hold; all tracepoints of a kernel are 3,000.
const maxEvents = 1 << 16

// A layout is where an event's records hold what must be known before the rest is read: byte offsets from the
// start of a sample, or from the start of a trailer; -1 where there is none.
type layout struct {
	attr                                  Attr
	event                                 int
	id, tid, time                         int // in a sample
	trailer                               int // size of the trailer of other records
	tTID, tTime, tID, tStrm, tCPU, tIdent int
}

const headerSize = 8

func newLayout(a *Attr) layout {
	l := layout{attr: *a, id: -1, tid: -1, time: -1, tTID: -1, tTime: -1, tID: -1, tStrm: -1, tCPU: -1, tIdent: -1}
	off := headerSize
	for _, f := range [...]struct {
		bit uint64
		pos *int
	}{{SampleIdentifier, &l.id}, {SampleIP, nil}, {SampleTID, &l.tid}, {SampleTime, &l.time}, {SampleAddr, nil}, {SampleID, &l.id}} {
		if a.SampleType&f.bit == 0 {
			continue
		}
		if f.pos != nil && (f.pos != &l.id || l.id < 0) {
			*f.pos = off
		}
		off += 8
	}
	if !a.Has(FlagSampleIDAll) {
		return l
	}
	for _, f := range [...]struct {
		bit uint64
		pos *int
	}{{SampleTID, &l.tTID}, {SampleTime, &l.tTime}, {SampleID, &l.tID}, {SampleStreamID, &l.tStrm}, {SampleCPU, &l.tCPU}, {SampleIdentifier, &l.tIdent}} {
		if a.SampleType&f.bit != 0 {
			*f.pos = l.trailer
			l.trailer += 8
		}
	}
	return l
}

// NewDecoder returns a Decoder without events.
func NewDecoder() *Decoder {
	d := &Decoder{}
	d.table.Store(&[]layout{})
	return d
}

// AddAttr adds an event and returns its index. name may be empty: then the Attr gives one. It returns -1 if
// there are more events than any recording has.
func (d *Decoder) AddAttr(a *Attr, ids []uint64, name string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := len(d.events)
	if i >= maxEvents {
		return -1
	}
	if name == "" {
		name = a.Name()
	}
	d.events = append(d.events, Event{Attr: *a, Name: name})
	d.addLayout(a, i)
	d.addIDs(i, ids)
	return i
}

func (d *Decoder) addLayout(a *Attr, event int) {
	l := newLayout(a)
	l.event = event
	t := append(*d.table.Load(), l)
	d.table.Store(&t)
}

// WalkedID is the ID of samples that AppendSample wrote, in a stream where an event's other samples are the kernel's: see
// AddWalked.
const WalkedID = 1<<64 - 2

// WaitID and WaitCopyID are the IDs of such samples of a second event: see AddWaits.
const (
	WaitID     = 1<<64 - 3
	WaitCopyID = 1<<64 - 4
)

// AddWalked says that samples with the ID WalkedID are of event 0, the only one that the kernel has, and as its Attr.Walked has them. The others,
// whatever their ID, are as its Attr has them.
func (d *Decoder) AddWalked() {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.events[0].Attr.Walked()
	d.addLayout(&w, 0)
	d.byID.Store(uint64(WalkedID), len(*d.table.Load())-1)
	d.one.Store(true)
}

// AddWaits adds a second event, after AddWalked, of which a program in the kernel makes all samples: those with the ID WaitID are as event 0's
// Attr.Walked has them, those with WaitCopyID as its Attr has them.
func (d *Decoder) AddWaits(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := d.events[0].Attr
	a.Type, a.Config, a.SamplePeriod = TypeSoftware, 9, 1 // PERF_COUNT_SW_DUMMY
	a.Flags &^= FlagFreq
	a.SampleType |= SamplePeriod
	d.events = append(d.events, Event{Attr: a, Name: name})
	w := a.Walked()
	d.addLayout(&a, 1)
	d.byID.Store(uint64(WaitCopyID), len(*d.table.Load())-1)
	d.addLayout(&w, 1)
	d.byID.Store(uint64(WaitID), len(*d.table.Load())-1)
}

// Walks says whether a sample that AppendSample wrote has this ID, where others are the kernel's: WalkedID or WaitID.
func Walks(id uint64) bool { return id == WalkedID || id == WaitID }

// AddIDs adds ids to event i.
func (d *Decoder) AddIDs(i int, ids []uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i >= 0 && i < len(d.events) {
		d.addIDs(i, ids)
	}
}

func (d *Decoder) addIDs(i int, ids []uint64) {
	d.events[i].IDs = append(d.events[i].IDs, ids...)
	for _, id := range ids {
		d.byID.Store(id, i)
	}
}

// SetName names event i.
func (d *Decoder) SetName(i int, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if i >= 0 && i < len(d.events) {
		d.events[i].Name = name
	}
}

// Events returns a copy of all events.
func (d *Decoder) Events() []Event {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Event(nil), d.events...)
}

// EventByID returns the index of the event that id belongs to.
func (d *Decoder) EventByID(id uint64) (int, bool) {
	v, ok := d.byID.Load(id)
	if !ok {
		return -1, false
	}
	return (*d.table.Load())[v.(int)].event, true
}

// layout returns the layout of raw's event and the event's index. A single event has all records, and one without
// an ID, or with the ID 0 that perf gives what it synthesises, belongs to the first. nil: there is no such event.
func (d *Decoder) layout(raw []byte) (*layout, int) {
	t := *d.table.Load()
	if len(t) == 0 {
		return nil, -1
	}
	l := &t[0]
	if len(t) == 1 {
		return l, 0
	}
	var id uint64
	if binary.LittleEndian.Uint32(raw) == RecordSample {
		if l.id < 0 || l.id+8 > len(raw) {
			return l, 0
		}
		id = binary.LittleEndian.Uint64(raw[l.id:])
	} else {
		pos := max(l.tIdent, l.tID)
		raw := withoutRest(raw, l.trailer)
		if pos < 0 || headerSize+l.trailer > len(raw) {
			return l, 0
		}
		id = binary.LittleEndian.Uint64(raw[len(raw)-l.trailer+pos:])
	}
	if id == 0 {
		return l, 0
	}
	if v, ok := d.byID.Load(id); ok && v.(int) < len(t) {
		l = &t[v.(int)]
		return l, l.event
	}
	if d.one.Load() {
		return l, 0 // the kernel has one event, with two layouts
	}
	if binary.LittleEndian.Uint32(raw) != RecordSample {
		return l, -1 // what it says of the world is still true
	}
	return nil, -1
}

// when returns the time of raw, and where raw is a sample, its thread. ok is false if it has no time.
func (d *Decoder) when(raw []byte) (time uint64, pid, tid int32, ok bool) {
	l, _ := d.layout(raw)
	if l == nil {
		return
	}
	if binary.LittleEndian.Uint32(raw) != RecordSample {
		raw = withoutRest(raw, l.trailer)
		if at := len(raw) - l.trailer + l.tTime; l.tTime >= 0 && headerSize+l.trailer <= len(raw) {
			time = binary.LittleEndian.Uint64(raw[at:])
			ok = true
		}
		return
	}
	if l.tid >= 0 && l.tid+8 <= len(raw) {
		pid = int32(binary.LittleEndian.Uint32(raw[l.tid:]))
		tid = int32(binary.LittleEndian.Uint32(raw[l.tid+4:]))
	} else {
		pid, tid = -1, -1
	}
	if l.time >= 0 && l.time+8 <= len(raw) {
		time, ok = binary.LittleEndian.Uint64(raw[l.time:]), true
	}
	return
}

// withoutRest cuts off what the kernel can leave behind a KSYMBOL or BPF_EVENT record. Where several events on a processor ask for these, Linux adds
// the trailer's size to the record's before each, and takes it off behind none (perf_event_ksymbol_output and perf_event_bpf_output in
// kernel/events/core.c): from the second event on, the record ends with what the ring held before.
func withoutRest(raw []byte, trailer int) []byte {
	const fixed = headerSize + 16
	if len(raw) < fixed {
		return raw
	}
	end := fixed
	switch binary.LittleEndian.Uint32(raw) {
	case RecordKsymbol:
		name := bytes.IndexByte(raw[fixed:], 0)
		if name < 0 {
			return raw
		}
		end += name&^7 + 8
	case RecordBPFEvent:
	default:
		return raw
	}
	return raw[:min(len(raw), end+trailer)]
}

// A fields reads the fields of a record in turn. After the first that reaches beyond the record, all are 0.
type fields struct {
	b   []byte
	bad bool
}

func (f *fields) bytes(n uint64) []byte {
	if n > uint64(len(f.b)) {
		f.b, f.bad = nil, true
		return nil
	}
	v := f.b[:n:n]
	f.b = f.b[n:]
	return v
}

func (f *fields) u64() uint64 {
	if len(f.b) < 8 {
		f.b, f.bad = nil, true
		return 0
	}
	v := binary.LittleEndian.Uint64(f.b)
	f.b = f.b[8:]
	return v
}

func (f *fields) pair() (lo, hi uint32) {
	v := f.u64()
	return uint32(v), uint32(v >> 32)
}

// words reads n words of 8 bytes.
func (f *fields) words(n uint64) Words {
	if n > uint64(len(f.b))/8 {
		f.b, f.bad = nil, true
		return nil
	}
	return Words(f.bytes(8 * n))
}

// Decode reads raw, one whole record with its header, into r. r's slices lie in raw. It does not allocate. Of unknown types, it reads the
// header and the trailer, if there is one. An error wraps ErrMalformed or ErrUnsupported; r then holds what could be read.
func (d *Decoder) Decode(raw []byte, r *Record) error {
	*r = Record{Raw: raw, Event: -1}
	if len(raw) < headerSize {
		return errShort
	}
	r.Type = binary.LittleEndian.Uint32(raw)
	r.Misc = binary.LittleEndian.Uint16(raw[4:])
	if r.Type >= RecordUser {
		return nil
	}
	l, event := d.layout(raw)
	if l == nil {
		return errNoEvent
	}
	r.Event = event
	f := fields{b: raw[headerSize:]}
	if r.Type == RecordSample {
		decodeSample(l, &f, r)
	} else {
		f.b = withoutRest(raw, l.trailer)[headerSize:]
		if l.trailer > len(f.b) {
			return errShort
		}
		body := len(f.b) - l.trailer
		decodeTrailer(l, f.b[body:], r)
		f.b = f.b[:body:body]
		decodeOther(l, &f, r)
	}
	if f.bad {
		return errShort
	}
	if r.Type == RecordSample && l.attr.SampleType&^uint64(sampleKnown) != 0 {
		return errSampleType
	}
	return nil
}

var (
	errNoEvent    = fmt.Errorf("%w: no event has the record's ID", ErrMalformed)
	errSampleType = fmt.Errorf("%w: sample fields of a newer kernel", ErrUnsupported)
)

func decodeTrailer(l *layout, t []byte, r *Record) {
	r.Trailer = l.trailer
	if l.tTID >= 0 {
		r.PID = int32(binary.LittleEndian.Uint32(t[l.tTID:]))
		r.TID = int32(binary.LittleEndian.Uint32(t[l.tTID+4:]))
	}
	if l.tTime >= 0 {
		r.Time, r.HasTime = binary.LittleEndian.Uint64(t[l.tTime:]), true
	}
	if l.tID >= 0 {
		r.ID = binary.LittleEndian.Uint64(t[l.tID:])
	}
	if l.tStrm >= 0 {
		r.StreamID = binary.LittleEndian.Uint64(t[l.tStrm:])
	}
	if l.tCPU >= 0 {
		r.CPU = binary.LittleEndian.Uint32(t[l.tCPU:])
	}
	if l.tIdent >= 0 {
		r.ID = binary.LittleEndian.Uint64(t[l.tIdent:])
	}
}

// decodeSample reads a sample's fields in the order that perf_event_open(2) gives them.
func decodeSample(l *layout, f *fields, r *Record) {
	a := &l.attr
	t := a.SampleType
	if t&SampleIdentifier != 0 {
		r.ID = f.u64()
	}
	if t&SampleIP != 0 {
		r.IP = f.u64()
	}
	if t&SampleTID != 0 {
		lo, hi := f.pair()
		r.PID, r.TID = int32(lo), int32(hi)
	} else {
		r.PID, r.TID = -1, -1
	}
	if t&SampleTime != 0 {
		r.Time, r.HasTime = f.u64(), true
	}
	if t&SampleAddr != 0 {
		r.Addr = f.u64()
	}
	if t&SampleID != 0 {
		r.ID = f.u64()
	}
	if t&SampleStreamID != 0 {
		r.StreamID = f.u64()
	}
	if t&SampleCPU != 0 {
		r.CPU, _ = f.pair()
	}
	if t&SamplePeriod != 0 {
		r.Period = f.u64()
	} else if !a.Has(FlagFreq) {
		r.Period = a.SamplePeriod
	}
	if t&SampleRead != 0 {
		r.Read = f.read(a.ReadFormat)
	}
	if t&SampleCallchain != 0 {
		r.Callchain = f.words(f.u64())
	}
	if t&SampleRaw != 0 {
		r.Tracepoint = f.sized32()
	}
	if t&SampleBranchStack != 0 {
		n := f.u64()
		if a.BranchSampleType&BranchHWIndex != 0 {
			r.BranchHWIndex = f.u64()
		}
		if n > uint64(len(f.b)) {
			n, f.bad = 0, true
		}
		r.Branches = f.words(3 * n)
		if a.BranchSampleType&BranchCounters != 0 {
			r.BranchCounters = f.words(n)
		}
	}
	if t&SampleRegsUser != 0 {
		if r.UserABI = f.u64(); r.UserABI != ABINone {
			r.UserRegsMask = a.SampleRegsUser
			r.UserRegs = f.words(uint64(bits.OnesCount64(a.SampleRegsUser)))
		}
	}
	if t&SampleStackUser != 0 {
		if n := f.u64(); n != 0 {
			r.Stack = f.bytes(n)
			r.StackDyn = f.u64()
		}
	}
	if t&(SampleWeight|SampleWeightStruct) != 0 {
		r.Weight = f.u64()
	}
	if t&SampleDataSrc != 0 {
		r.DataSrc = f.u64()
	}
	if t&SampleTransaction != 0 {
		r.Transaction = f.u64()
	}
	if t&SampleRegsIntr != 0 {
		if r.IntrABI = f.u64(); r.IntrABI != ABINone {
			r.IntrRegs = f.words(uint64(bits.OnesCount64(a.SampleRegsIntr)))
		}
	}
	if t&SamplePhysAddr != 0 {
		r.PhysAddr = f.u64()
	}
	if t&SampleCgroup != 0 {
		r.Cgroup = f.u64()
	}
	if t&SampleDataPageSize != 0 {
		r.DataPageSize = f.u64()
	}
	if t&SampleCodePageSize != 0 {
		r.CodePageSize = f.u64()
	}
	if t&SampleAux != 0 {
		r.Aux = f.bytes(f.u64())
	}
}

// sized32 reads bytes after their 32-bit length.
func (f *fields) sized32() []byte {
	if len(f.b) < 4 {
		f.b, f.bad = nil, true
		return nil
	}
	n := binary.LittleEndian.Uint32(f.b)
	f.b = f.b[4:]
	return f.bytes(uint64(n))
}

// read reads a counter's value, or those of a group.
func (f *fields) read(format uint64) []byte {
	per := uint64(1) // words for one counter
	if format&FormatID != 0 {
		per++
	}
	if format&FormatLost != 0 {
		per++
	}
	var n uint64 // words after the first
	if format&FormatGroup != 0 {
		if len(f.b) < 8 {
			f.b, f.bad = nil, true
			return nil
		}
		nr := binary.LittleEndian.Uint64(f.b)
		if nr > uint64(len(f.b)) {
			f.b, f.bad = nil, true
			return nil
		}
		n = nr * per
	} else {
		n = per - 1
	}
	n += uint64(bits.OnesCount64(format & (FormatTotalTimeEnabled | FormatTotalTimeRunning)))
	return f.words(1 + n)
}

// decodeOther reads the body of a record that is no sample.
func decodeOther(l *layout, f *fields, r *Record) {
	thread := func() {
		lo, hi := f.pair()
		r.PID, r.TID = int32(lo), int32(hi)
	}
	switch r.Type {
	case RecordMmap, RecordMmap2:
		thread()
		r.Addr, r.Len, r.Pgoff = f.u64(), f.u64(), f.u64()
		if r.Type == RecordMmap2 {
			id := f.bytes(24)
			if id != nil {
				decodeFileID(l, id, r)
			}
			r.Prot, r.MapFlags = f.pair()
		}
		r.Filename = cString(f.b)
	case RecordComm:
		thread()
		r.Comm = cString(f.b)
	case RecordFork, RecordExit:
		pid, ppid := f.pair()
		tid, ptid := f.pair()
		r.PID, r.PPID, r.TID, r.PTID = int32(pid), int32(ppid), int32(tid), int32(ptid)
		if t := f.u64(); !r.HasTime {
			r.Time, r.HasTime = t, true
		}
	case RecordLost:
		r.ID, r.Lost = f.u64(), f.u64()
	case RecordLostSamples:
		r.Lost = f.u64()
	case RecordAux:
		f.u64()
		r.Lost = f.u64()
	case RecordItraceStart:
		thread()
	case RecordRead:
		thread()
		r.Read = f.b
	case RecordKsymbol:
		r.Addr = f.u64()
		size, kind := f.pair()
		r.Len, r.SymbolType, r.SymbolFlags = uint64(size), uint16(kind), uint16(kind>>16)
		r.Symbol = cString(f.b)
	case RecordCallchainDeferred:
		r.Cookie = f.u64()
		r.Callchain = f.words(f.u64())
	}
}

// decodeFileID reads the 24 bytes of an MMAP2 record that say which file it is. The mark that it is by build ID may be
// wrong: as long as one event asks for build IDs, Linux marks everybody's records. Where the event has not asked, only the sizes that
// build IDs usually have are believed, which are not the major number of any device with files.
func decodeFileID(l *layout, b []byte, r *Record) {
	if r.Misc&MiscMmapBuildID != 0 {
		n := binary.LittleEndian.Uint32(b)
		if n <= 20 && (l.attr.Has(FlagBuildID) || n == 20 || n == 16) {
			r.BuildID = b[4 : 4+n : 4+n]
			return
		}
		r.Misc &^= MiscMmapBuildID
	}
	r.Maj, r.Min = binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	r.Inode, r.InodeGen = binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
}

// cString returns b up to its first zero byte.
func cString(b []byte) []byte {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i:i]
	}
	return b
}
