package source

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/unwind"
)

// A RecordStream gives the records of a recording, in the order of writing.
//
// It may have these methods:
//   - Owner(pid int32) uint32: the user that a process runs as; see World.Owners.
//   - Gone(pids []int32) (gone []int32, now uint64): which of some processes there are no more, and when, in ns of the clock of its records. Records of
//     ends may be lost.
//   - Tree() *Tree: Run leaves out all that does not concern it.
//   - Stop(): Run calls it, from another goroutine, when it needs no more records; Next must then return io.EOF soon.
//   - Unmapped(pid int32): Run calls it, from the goroutine that called Run, when the stack of a process leads to an address in no known mapping.
//   - BuildID(path string) string: in hex, the build IDs of files whose MMAP records have none.
type RecordStream interface {
	// Decoder knows the events of the stream. More may be added to it while the stream is read.
	Decoder() *Decoder

	// Next returns the next record, header included, as the kernel wrote it; io.EOF after the last. Besides the kernel's types it may return
	// RecordFinishedRound; other types from RecordUser up are counted and skipped. buf is the memory the record lies in, which the stream
	// holds at least until the next call; nil says that raw stays valid as long as the stream. An error that is not io.EOF ends the stream:
	// Run delivers the samples before it, and returns it.
	Next() (raw []byte, buf *Buffer, err error)
}

// A Buffer is memory for records, with a count of its holders.
type Buffer struct {
	Bytes []byte

	refs atomic.Int32
	free func(*Buffer)
}

// NewBuffer returns a Buffer of n bytes, held once, by the caller. free, if not nil, is called from any goroutine
// when nobody needs the memory any more, and may put the Buffer up for reuse: Hold it again before its next use.
func NewBuffer(n int, free func(*Buffer)) *Buffer {
	b := &Buffer{Bytes: make([]byte, n), free: free}
	b.Hold()
	return b
}

// Hold says that somebody needs b. It is safe for concurrent use.
func (b *Buffer) Hold() {
	if b != nil {
		b.refs.Add(1)
	}
}

// Release gives up one holder's claim to b. It is safe for concurrent use.
func (b *Buffer) Release() {
	if b != nil && b.refs.Add(-1) == 0 && b.free != nil {
		b.free(b)
	}
}

// Options control Run.
type Options struct {
	// Mods gives the modules of address spaces: see NewWorld. Like Want, it is called from one goroutine, but
	// not from that of Sample and Record.
	Mods func(path, buildID string) *unwind.Module

	// Identify, if not nil, returns a substitute for the build ID of a file recorded without one, by the file's path, device, inode and generation. ""
	// accepts the file at the path. It is called as Mods is.
	Identify func(path string, maj, min uint32, inode, gen uint64) string

	// Made, if not nil, knows code that processes make while they run.
	Made Maker

	// Machine is the recording's machine; nil is AMD64.
	Machine *arch.Machine

	// Sample gets each sample, in time order. What it is given is valid until it returns. It is called from
	// the goroutine that called Run, and so is Record.
	Sample func(*Sample) error

	// Prepare, if not nil, is called with each sample before Sample is, from several goroutines at once and in
	// no order: for what can be worked out in parallel. It returns what Sample finds in Sample.Prepared.
	Prepare func(*Sample) uint64

	// Record, if not nil, gets each record of the kernel that is not a sample, in its place among the samples.
	Record func(*Record) error

	// Want, if not nil, says which samples are of interest. All other samples are counted, but neither walked nor delivered.
	Want func(pid, tid int32, comm string, time uint64) bool

	// Depth is the limit of user frames; 0 is unwind.DefaultDepth.
	Depth int

	// Workers is the number of goroutines that walk; 0 is GOMAXPROCS.
	Workers int

	// Ours says that the stream's callchains were written by this project: see Sample.AppendProvenance.
	Ours bool

	// FramePointers says that a recorded callchain which reaches an outermost frame counts, although the sample has a copy of its stack, too.
	// Otherwise the copy does.
	FramePointers bool

	// Prompt delivers all due samples at the end of each round, instead of waiting for a full batch: for live views.
	Prompt bool
}

// A Maker finds rules of code that processes make while they run. It is called as Options.Mods is.
type Maker interface {
	Mapped(pid int32, path string)                // a process has mapped a file as executable
	Module(pid int32, path string) *unwind.Module // makes the module of memory that is no file's
}

// Stats has Run's counts.
type Stats struct {
	Records     uint64 // all, samples included
	Samples     uint64 // delivered
	Unwanted    uint64 // samples that Options.Want refused
	Frames      uint64 // user frames delivered
	Lost        uint64 // records that the kernel could not write, as LOST says
	LostSamples uint64 // samples that were lost otherwise, as LOST_SAMPLES says
	Throttled   uint64 // times that the kernel throttled an event
	Unknown     uint64 // records of unknown type, skipped
	Bad         uint64 // records that could not be decoded, skipped
	BadErr      error  // the first such error
	Disordered  uint64 // records older than what had been delivered: they came too late
	NoTime      uint64 // samples without a time: delivered as they came
	Uncertain   uint64 // samples that a Tree left out after records were lost, of processes that may belong to it: Members.Uncertain
	Orphans     uint64 // samples of processes whose beginning the recording lacks
	Compat      uint64 // samples of 32-bit code, whose stacks are not walked
	Undeferred  uint64 // samples whose deferred callchain never came
	Dropped     uint64 // mappings and threads beyond what a World holds
	Repairs     Repairs
	Stops       [unwind.NumStops]uint64
	First, Last uint64 // least and greatest time of a delivered sample, ns
}

// A job is a run of records on its way: filled in order by the reader, walked by any worker, delivered in order.
type job struct {
	items  []item
	done   chan struct{}
	frames []unwind.Frame
	kernel []uint64
	stats  Stats
	err    error
}

type item struct {
	raw               []byte
	buf, lateBuf      *Buffer
	rec               Record
	sample            Sample
	comm              string
	space             *unwind.Space
	deferred          Words
	orphan, bad       bool
	kernel, kernelEnd int // in job.kernel
	user, userEnd     int // in job.frames
}

// jobSize is how many records a job takes. Walking one takes a millisecond or less, and what it holds fits the
// second-level cache.
const jobSize = 128

// jobDepth is for how many user frames of a sample a job has room from the start.
const jobDepth = 64

// Run reads in to its end: it puts records in time order, applies them to a World, walks the stacks of samples
// on several processors and delivers everything in time order. It returns the first error of the stream or of the
// functions in o, or ctx's, with the counts so far.
func Run(ctx context.Context, in RecordStream, o Options) (Stats, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if o.Workers <= 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	n := 2*o.Workers + 2 // jobs: some to walk, one to fill, one to deliver
	free, work, order := make(chan *job, n), make(chan *job, n), make(chan *job, n)
	for range n {
		// Room for stacks of usual length: growing costs more than walking them.
		frames, kernel := make([]unwind.Frame, 0, jobSize*jobDepth), make([]uint64, 0, jobSize*jobDepth/4)
		free <- &job{items: make([]item, 0, jobSize), frames: frames, kernel: kernel, done: make(chan struct{}, 1)}
	}
	var wg sync.WaitGroup
	for range o.Workers {
		wg.Go(func() {
			k := newStacker(in.Decoder(), &o)
			for j := range work {
				j.err = Guard(func() error { return k.walk(j, o.Prepare) })
				j.done <- struct{}{}
			}
		})
	}
	rd := newReader(in, &o, free, work, order)
	var readErr error
	wg.Go(func() {
		defer close(order)
		defer close(work)
		readErr = rd.run(ctx)
	})
	if s, ok := in.(interface{ Stop() }); ok {
		defer context.AfterFunc(ctx, s.Stop)()
	}

	var unmapped func(pid int32)
	if u, ok := in.(interface{ Unmapped(pid int32) }); ok {
		unmapped = u.Unmapped
	}

	var st Stats
	var err error
	for j := range order {
		<-j.done
		if err == nil && ctx.Err() == nil {
			if err = j.err; err == nil { // else some have no stack
				err = Guard(func() error { return j.deliver(&o, &st, unmapped) })
			}
		}
		if err != nil {
			cancel(err)
		}
		j.recycle()
		free <- j
	}
	wg.Wait()
	st.add(&rd.stats)
	st.Dropped = rd.world.Dropped()
	st.Repairs.add(&rd.world.repairs)
	if rd.lostSum > st.Lost {
		st.LostSamples += rd.lostSum - st.Lost
	}
	if err == nil {
		err = readErr
	}
	return st, err
}

// walk decodes and walks j's samples.
func (k *stacker) walk(j *job, prepare func(*Sample) uint64) error {
	k.rested()
	for i := range j.items {
		it := &j.items[i]
		if it.space == nil {
			continue // no sample: the reader has decoded it
		}
		if err := k.dec.Decode(it.raw, &it.rec); err != nil && !errors.Is(err, ErrUnsupported) {
			it.bad = true
			j.stats.bad(err)
			continue
		}
		k.fill(j, it)
	}
	for i := range j.items {
		it := &j.items[i]
		if it.space == nil || it.bad {
			continue
		}
		s := &it.sample
		s.Kernel, s.User = j.kernel[it.kernel:it.kernelEnd], j.frames[it.user:it.userEnd]
		if prepare != nil {
			s.Prepared = prepare(s)
		}
	}
	return nil
}

// deliver hands j's records to the consumer.
func (j *job) deliver(o *Options, st *Stats, unmapped func(pid int32)) error {
	for i := range j.items {
		it := &j.items[i]
		switch {
		case it.bad:
		case it.space == nil:
			if err := o.Record(&it.rec); err != nil {
				return err
			}
		default:
			s := &it.sample
			if s.Time != 0 {
				if st.First == 0 || s.Time < st.First {
					st.First = s.Time
				}
				st.Last = max(st.Last, s.Time)
			}
			if n := len(s.User); n > 0 && s.User[n-1].Mapping == nil && s.From == Walked && unmapped != nil {
				unmapped(s.PID)
			}
			if o.Sample != nil {
				if err := o.Sample(s); err != nil {
					return err
				}
			}
		}
	}
	st.add(&j.stats)
	return nil
}

// recycle empties j. What its items and frames lead to, buffers and processes that have ended, is not kept by their memory.
func (j *job) recycle() {
	for i := range j.items {
		j.items[i].buf.Release()
		j.items[i].lateBuf.Release()
	}
	clear(j.items)
	clear(j.frames)
	j.items, j.frames, j.kernel, j.stats, j.err = j.items[:0], j.frames[:0], j.kernel[:0], Stats{}, nil
}

func (s *Stats) bad(err error) {
	s.Bad++
	if s.BadErr == nil {
		s.BadErr = err
	}
}

// add adds the counts of t, First and Last apart.
func (s *Stats) add(t *Stats) {
	s.Records += t.Records
	s.Samples += t.Samples
	s.Unwanted += t.Unwanted
	s.Frames += t.Frames
	s.Lost += t.Lost
	s.LostSamples += t.LostSamples
	s.Throttled += t.Throttled
	s.Unknown += t.Unknown
	s.Bad += t.Bad
	if s.BadErr == nil {
		s.BadErr = t.BadErr
	}
	s.Disordered += t.Disordered
	s.NoTime += t.NoTime
	s.Uncertain += t.Uncertain
	s.Orphans += t.Orphans
	s.Compat += t.Compat
	s.Undeferred += t.Undeferred
	s.Repairs.add(&t.Repairs)
	for i := range s.Stops {
		s.Stops[i] += t.Stops[i]
	}
}

// A reader takes records from the stream, orders them and fills jobs.
type reader struct {
	in                RecordStream
	dec               *Decoder
	o                 *Options
	world             *World
	queue             queue
	free, work, order chan *job
	cur               *job
	stats             Stats
	last              uint64 // time of the last record passed on
	lostSum           uint64
	late              lateChains
	rec               Record
	members           *Members

	gone   func(pids []int32) (gone []int32, now uint64) // the stream's, or nil
	due    uint64                                        // when to look for processes whose end was lost; 0: not known yet
	looked uint64                                        // when that was done last
	ended  map[int32]*proc                               // what was found, until all records from before have been passed on
}

func newReader(in RecordStream, o *Options, free, work, order chan *job) *reader {
	mods := o.Mods
	if b, ok := in.(interface{ BuildID(string) string }); ok && mods != nil {
		mods = func(path, buildID string) *unwind.Module {
			if buildID == "" {
				buildID = b.BuildID(path)
			}
			return o.Mods(path, buildID)
		}
	}
	rd := &reader{in: in, dec: in.Decoder(), o: o, world: NewWorld(mods), free: free, work: work, order: order}
	rd.world.made = o.Made
	rd.world.Identify(o.Identify)
	if b, ok := in.(interface{ BuildID(string) string }); ok && o.Identify != nil {
		rd.world.Identify(func(path string, maj, min uint32, inode, gen uint64) string {
			if b.BuildID(path) != "" {
				return ""
			}
			return o.Identify(path, maj, min, inode, gen)
		})
	}
	if u, ok := in.(interface{ Owner(pid int32) uint32 }); ok {
		rd.world.Owners(u.Owner)
	}
	if g, ok := in.(interface {
		Gone(pids []int32) (gone []int32, now uint64)
	}); ok {
		rd.gone = g.Gone
	}
	if t, ok := in.(interface{ Tree() *Tree }); ok {
		rd.members = t.Tree().Members()
	}
	return rd
}

func (rd *reader) run(ctx context.Context) error {
	err := Guard(func() error { return rd.read(ctx) })
	if ctx.Err() == nil {
		rest := Guard(func() error { rd.pass(rd.queue.all()); return nil })
		if err == nil {
			err = rest
		}
	} else {
		err = context.Cause(ctx)
	}
	for _, e := range rd.queue.all() {
		e.buf.Release()
	}
	rd.late.clear()
	rd.dispatch()
	return err
}

func (rd *reader) read(ctx context.Context) error {
	for n := 0; ; n++ {
		if n&63 == 0 && ctx.Err() != nil {
			return nil
		}
		raw, buf, err := rd.in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if len(raw) < headerSize {
			return fmt.Errorf("%w: a record of %d bytes", ErrMalformed, len(raw))
		}
		switch typ := binary.LittleEndian.Uint32(raw); {
		case typ == RecordFinishedRound:
			rd.pass(rd.queue.round())
			rd.reap()
			if rd.o.Prompt {
				rd.dispatch()
			}
			continue
		case typ >= RecordUser:
			rd.stats.Unknown++
			continue
		case typ == RecordCallchainDeferred:
			rd.late.remember(rd.dec, raw, buf)
		}
		rd.stats.Records++
		e := entry{raw: raw, buf: buf}
		var timed bool
		e.time, e.pid, e.tid, timed = rd.dec.when(raw)
		buf.Hold()
		// What a recorder synthesises has the time 0 and describes what was there before it started.
		if !timed || e.time == 0 || e.time == ^uint64(0) {
			rd.one(&e)
		} else if rd.queue.add(e) {
			rd.pass(rd.queue.half())
		}
	}
}

// pass applies records and puts them into jobs, in their order.
func (rd *reader) pass(due []entry) {
	for i := range due {
		e := &due[i]
		if e.time < rd.last {
			rd.stats.Disordered++
		}
		rd.last = max(rd.last, e.time)
		rd.one(e)
		*e = entry{} // else its buffer cannot be freed
	}
}

// How often a live stream is looked through for processes whose end was lost, in ns; where records were lost lately, it is reapSoon. An end may
// also be told, and one of its threads' not, or be told when nobody listened yet.
const reapEvery, reapSoon = 60e9, 10e9

// reap ends processes whose EXIT was lost: those that are gone, as soon as all that they can have recorded has been passed on.
func (rd *reader) reap() {
	if rd.gone == nil {
		return
	}
	if rd.due == 0 {
		rd.due = rd.last + reapEvery
	}
	if rd.ended != nil && rd.last > rd.looked {
		gone, _ := rd.gone(slices.Collect(maps.Keys(rd.ended))) // still, and not another one with the number
		for _, pid := range gone {
			rd.world.lost(rd.ended[pid])
		}
		rd.ended = nil
	}
	if rd.ended != nil || rd.last < rd.due {
		return
	}
	var gone []int32
	gone, rd.looked = rd.gone(rd.world.running())
	rd.due = rd.looked + reapEvery
	for i, pid := range gone {
		if i == 0 {
			rd.ended = map[int32]*proc{}
		}
		rd.ended[pid] = rd.world.procs[pid]
	}
}

// one applies a record, or puts it into a job.
func (rd *reader) one(e *entry) {
	if binary.LittleEndian.Uint32(e.raw) == RecordSample {
		rd.sample(e)
		return
	}
	r := &rd.rec
	if err := rd.dec.Decode(e.raw, r); err != nil {
		rd.stats.bad(err)
		e.buf.Release()
		return
	}
	if rd.members.Has(r.PID) && rd.world.Redundant(r) || !rd.members.Apply(r) {
		e.buf.Release()
		return
	}
	switch r.Type {
	case RecordLost:
		rd.stats.Lost += r.Lost
		rd.due = min(rd.due, rd.looked+reapSoon)
	case RecordLostSamples:
		switch {
		case r.Misc&MiscLostBPF != 0: // a filter's refusals
		case r.Time == 0: // the recorder's sum, which counts again what LOST says
			rd.lostSum += r.Lost
		default:
			rd.stats.LostSamples += r.Lost
		}
	case RecordThrottle:
		rd.stats.Throttled++
	case RecordFork:
		if r.Misc&MiscAgain != 0 {
			rd.stats.Repairs.Processes++
		}
	}
	if r.Type == 0 || r.Type > RecordCallchainDeferred {
		rd.stats.Unknown++
	}
	rd.world.Apply(r)
	if rd.o.Record == nil {
		e.buf.Release()
		return
	}
	it := rd.item(e)
	it.rec = *r
}

func (rd *reader) sample(e *entry) {
	waker := rd.o.Ours && binary.LittleEndian.Uint16(e.raw[4:])&MiscWaker != 0 // whose wait that is counts
	if !waker && !rd.members.Has(e.pid) {
		if rd.members.Uncertain(e.pid) {
			rd.stats.Uncertain++
		}
		e.buf.Release()
		return
	}
	comm, space := rd.world.Thread(e.pid, e.tid)
	if !waker && rd.o.Want != nil && !rd.o.Want(e.pid, e.tid, comm, e.time) {
		rd.stats.Unwanted++
		e.buf.Release()
		return
	}
	it := rd.item(e)
	it.comm, it.space, it.orphan = comm, space, !waker && !rd.world.Known(e.pid)
	if rd.late.seen {
		it.deferred, it.lateBuf = rd.late.find(rd.dec, e.raw, &rd.rec)
	}
}

// item returns the next item of the current job. A full job goes to the workers first.
func (rd *reader) item(e *entry) *item {
	if rd.cur != nil && len(rd.cur.items) == jobSize {
		rd.dispatch()
	}
	if rd.cur == nil {
		rd.cur = <-rd.free
	}
	j := rd.cur
	j.items = j.items[:len(j.items)+1]
	it := &j.items[len(j.items)-1]
	it.raw, it.buf, it.lateBuf, it.space, it.deferred, it.bad = e.raw, e.buf, nil, nil, nil, false
	return it
}

// dispatch sends the current job on its way.
func (rd *reader) dispatch() {
	if rd.cur == nil {
		return
	}
	rd.work <- rd.cur
	rd.order <- rd.cur
	rd.cur = nil
}
