package ebpf

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// A sample is struct sample of c/walk.h, with the words behind it.
type sample struct {
	time, period, ip, id uint64
	pid, tid             int32
	cpu                  uint32
	what                 uint8
	stop                 unwind.Stop
	cut                  uint16 // of source.MiscCutBegin, MiscCutEnd, MiscNoWaker, MiscWeighted, MiscFreed and MiscSized
	wait                 bool   // of a thread that was blocked
	waker                bool   // of who woke a thread; as a sample, its name is in ip and period
	user, kernel         []byte // words of 8 bytes
}

// What a sample is.
const (
	sampleNew   = iota // with its stack
	sampleSeen         // its stack has come before
	sampleStack        // a stack without a sample
	sampleCopy         // the same, as registers and a copy
)

const sampleSize = 56

// What c/unspool.bpf.c says of a sample: CUT_BEGIN, OF_WAKER, NO_WAKER, OF_WAIT, WEIGHTED.
const (
	cutBegin = 1 << iota
	ofWaker
	noWaker
	ofWait
	weighted
	freed // c/heap.h: FREED, SIZED
	sized
)

// maxFrames and maxKernel are the most words that follow a sample.
const (
	maxUser   = numRegs + 1024
	maxKernel = 127
)

// How a frame was found is in the upper byte of its word: addresses of programs are below it, with five levels of page tables, too. Its
// uppermost bit says that the PC is exact although the frame was found by call frame information.
const (
	howShift = 56
	howExact = 1 << 63
)

// frameOf returns the frame that a word says.
func frameOf(w uint64) unwind.Frame {
	how := unwind.How(w &^ howExact >> howShift)
	return unwind.Frame{PC: arch.Addr(w & (1<<howShift - 1)), How: how, Exact: how == unwind.HowStart || how.Interrupted() || w&howExact != 0}
}

// parse reads what the program wrote.
func parse(b []byte) (s sample, ok bool) {
	if len(b) < sampleSize {
		return s, false
	}
	le := binary.LittleEndian
	s = sample{
		time: le.Uint64(b), period: le.Uint64(b[8:]), ip: le.Uint64(b[16:]), id: le.Uint64(b[24:]),
		pid: int32(le.Uint32(b[32:])), tid: int32(le.Uint32(b[36:])), cpu: le.Uint32(b[40:]), what: b[44], stop: unwind.Stop(b[45]),
	}
	if b[52]&cutBegin != 0 {
		s.cut = source.MiscCutBegin
	}
	if b[52]&noWaker != 0 {
		s.cut |= source.MiscNoWaker
	}
	if b[52]&freed != 0 {
		s.cut |= source.MiscFreed
	}
	if b[52]&sized != 0 {
		s.cut |= source.MiscSized
	}
	if b[52]&weighted != 0 {
		s.cut |= source.MiscWeighted
	}
	s.waker, s.wait = b[52]&ofWaker != 0, b[52]&ofWait != 0
	if s.what == sampleSeen {
		return s, true
	}
	kernel, user := int(le.Uint16(b[46:])), int(le.Uint32(b[48:]))
	if b = b[sampleSize:]; user > maxUser || kernel > maxKernel || len(b) < 8*(user+kernel) || s.stop >= unwind.NumStops {
		return s, false
	}
	s.user, s.kernel = b[:8*user], b[8*user:8*(user+kernel)]
	return s, true
}

// stacks makes records of samples. It keeps those of the stacks that the kernel has written, which it writes once.
type stacks struct {
	event      source.Attr       // of copies
	attr       source.Attr       // of walked samples
	both       bool              // waits are a second event
	waits      source.Attr       // of copies of those
	wait       source.Attr       // of walked ones
	now, old   map[uint64][]byte // records, by stack
	size       int               // bytes that have come to now since it began, less those that have gone
	kept       int               // stacks that now began with
	since      time.Time         // of now
	unknown    atomic.Uint64     // stacks that never came
	frees      bool              // what was allocated comes again when it is freed
	interrupts *interrupts       // nil: it is not known where they begin
	missed     struct {          // the wait whose waker's stack never came
		time uint64
		cpu  uint32
	}

	sample source.Sample
	frames []unwind.Frame
	kernel []uint64
	made   []byte // the last record: the one that is kept has no more room than it needs
}

// A stack's ID changes when the seed does, so that neither side has to keep for ever what has been seen: there are maxStacks
// in one generation, of maxBytes, or as many as come in maxAge. The generation before stays for what still refers to it: blocked threads, until
// the next one begins; samples that were on their way, for underway. Threads can switch at any rate, so waits have four times maxBytes: a stack
// that is written again takes five times the room of a sample in the ring.
const (
	maxStacks = 1 << 16
	maxBytes  = 4 << 20
	maxAge    = 10 * time.Minute
	maxKept   = 128 << 20 // bytes of what still refers to them: a copy of a stack has 11 KB, and an allocation can have one of its own
	underway  = 5 * time.Second
)

func (k *stacks) start(dec *source.Decoder) {
	k.event = dec.Events()[0].Attr
	if all := dec.Events(); len(all) > 1 {
		k.both, k.waits, k.wait = true, all[1].Attr, all[1].Attr.Walked()
	}
	k.attr, k.now, k.since = k.event.Walked(), map[uint64][]byte{}, time.Now()
}

// full says whether so many stacks, or bytes, have come since the generation began: those that it began with do not count, or the next one would
// follow at once.
func (k *stacks) full(stacks, bytes int) bool {
	return len(k.now)-k.kept >= stacks || k.size >= bytes
}

// A kept is what goes from one generation to the next, as far as maxKept bytes.
type kept struct {
	stacks map[uint64][]byte
	size   int
}

// keep adds a stack, if k has it.
func (k *stacks) keep(to *kept, id uint64) {
	if r := k.find(id); r != nil && to.stacks[id] == nil && to.size+len(r) <= maxKept {
		to.stacks[id] = r
		to.size += len(r)
	}
}

// tidy begins a new generation when it is time. What blocked threads and objects in use refer to stays: where not all of them could be looked at,
// another round tries again, until there are twice as many stacks as there should be.
func (k *stacks) tidy(p *Program) {
	most := maxBytes
	if p.prog != "on_event" || p.waits {
		most *= 4
	}
	if age := time.Since(k.since); !k.full(maxStacks, most) && (len(k.now) == 0 || age < maxAge) {
		if p.prog == "on_event" && (!p.waits || p.atEnd) && age > underway {
			k.old = nil
		}
		return
	}
	next := kept{stacks: map[uint64][]byte{}}
	var err error
	if p.waits && !p.atEnd {
		var tid int32
		var b blocked
		it := p.more.Maps["blocked"].Iterate()
		for it.Next(&tid, &b) {
			k.keep(&next, b.ID)
		}
		err = it.Err()
	}
	if p.prog == "on_alloc" {
		err = p.inUse(func(id uint64) { k.keep(&next, id) })
	}
	if err != nil && !k.full(2*maxStacks, 2*most) {
		return
	}
	if p.set("seed", rand.Uint64()) == nil {
		k.old, k.now, k.size, k.since, k.kept = k.now, next.stacks, 0, time.Now(), len(next.stacks)
	}
}

// drop forgets a stack, whose room others have then.
func (k *stacks) drop(id uint64) {
	if b, ok := k.now[id]; ok {
		k.size = max(k.size-len(b), 0) // it may have been kept
	}
	delete(k.now, id)
	delete(k.old, id)
}

func (k *stacks) find(id uint64) []byte {
	if b := k.now[id]; b != nil {
		return b
	}
	return k.old[id]
}

// record returns the record of a sample; nil where there is none. It is valid until the next call.
func (k *stacks) record(s *sample) []byte {
	if s.what == sampleSeen {
		if s.waker {
			return k.wakerAgain(s)
		}
		if s.time == k.missed.time && s.cpu == k.missed.cpu {
			s.cut |= source.MiscNoWaker
		}
		return k.again(s)
	}
	b := k.first(s)
	if b == nil {
		return nil
	}
	k.drop(s.id)
	k.now[s.id] = b
	k.size += len(b)
	if s.what != sampleNew {
		return nil
	}
	return b
}

// Where a record has what differs between samples of one stack.
const (
	atMisc   = 4
	atID     = 8
	atIP     = 16
	atPID    = 24
	atTID    = 28
	atTime   = 32
	atCPU    = 40
	atPeriod = 48
)

// again returns the record of a sample whose stack has come before.
func (k *stacks) again(s *sample) []byte {
	b := k.find(s.id)
	if b == nil {
		k.unknown.Add(1)
		return nil
	}
	le := binary.LittleEndian
	if !source.Walks(le.Uint64(b[atID:])) && (!k.frees || s.cut&source.MiscFreed != 0) { // a copy is of one sample, or of one object
		k.drop(s.id)
	}
	misc := le.Uint16(b[atMisc:]) & source.MiscCPUModeMask
	if s.cut&source.MiscSized != 0 { // ip is no place
		misc = 0
		le.PutUint64(b[atIP:], s.ip)
	} else if s.ip != 0 {
		misc = source.MiscUser
		if s.ip>>63 != 0 {
			misc = source.MiscKernel
		}
		le.PutUint64(b[atIP:], s.ip)
	}
	le.PutUint16(b[atMisc:], misc|s.cut)
	le.PutUint32(b[atPID:], uint32(s.pid))
	le.PutUint32(b[atTID:], uint32(s.tid))
	le.PutUint64(b[atTime:], s.time)
	le.PutUint32(b[atCPU:], s.cpu)
	le.PutUint64(b[atPeriod:], s.period)
	return b
}

// first makes the record of a sample with its stack.
func (k *stacks) first(s *sample) []byte {
	r := source.Record{
		Type: source.RecordSample, Misc: source.MiscUser | s.cut, ID: source.WalkedID, Time: s.time, Period: s.period, IP: s.ip,
		PID: s.pid, TID: s.tid, CPU: s.cpu,
	}
	event, attr, copied := &k.event, &k.attr, uint64(0)
	if k.both && (s.wait || s.waker) {
		event, attr, r.ID, copied = &k.waits, &k.wait, source.WaitID, source.WaitCopyID
	}
	if s.waker {
		k.waker(s, &r)
	}
	k.frames, k.kernel = k.frames[:0], k.kernel[:0]
	for b := s.kernel; len(b) > 0; b = b[8:] {
		k.kernel = append(k.kernel, binary.LittleEndian.Uint64(b))
	}
	if r.IP == 0 && len(k.kernel) > 0 {
		r.IP = k.kernel[0] // a tracepoint's
	}
	if r.IP>>63 != 0 {
		r.Misc = source.MiscKernel | s.cut
	}
	if s.what == sampleCopy {
		if len(s.user) < 8*numRegs {
			return nil
		}
		var regs [numRegs]uint64
		for i := range regs {
			regs[i] = binary.LittleEndian.Uint64(s.user[8*i:])
		}
		r.ID = copied
		k.made = source.AppendCopy(k.made[:0], event, &r, k.kernel, Machine, regs[:], s.user[8*numRegs:])
		return bytes.Clone(k.made)
	}
	for b := s.user; len(b) > 0; b = b[8:] {
		k.frames = append(k.frames, frameOf(binary.LittleEndian.Uint64(b)))
	}
	k.sample = source.Sample{Record: &r, Stop: s.stop, From: source.Walked, User: k.frames, Kernel: k.kernel}
	if s.stop == unwind.NoUserStack {
		k.sample.From = source.NoStack
	}
	var err error
	if k.made, err = source.AppendSample(k.made[:0], attr, &k.sample); err != nil {
		return nil
	}
	return bytes.Clone(k.made)
}
