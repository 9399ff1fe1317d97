package perfevent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
)

// Options describe the recording.
type Options struct {
	// Event is the event to record, in perf's spelling: see parseEvent. Empty is the processor's cycles, or the CPU clock on a machine
	// without hardware counters.
	Event string

	// Frequency is the number of samples a second on each processor, Period the number of events for each sample. Without either it is
	// DefaultFrequency, or for tracepoints and breakpoints every event.
	Frequency, Period uint64

	// StackSize is the number of bytes of the user stack to copy with each sample: a multiple of 8 up to MaxStackSize. 0 is 32 KiB (with a
	// Program 60, and less is kept while many copies wait), or 16 or 8 where the ring buffers that the kernel allows are small.
	StackSize uint32

	// NoCopies, with a Program, has no event ask for a copy of a stack.
	NoCopies bool

	// CallGraph is what leads through user stacks. With a Program it is CFI.
	CallGraph CallGraph

	// Waits, with a Program, records the time for which threads are blocked, too: as a second event, OffCPU.
	Waits bool

	// User and Kernel say where events count: both in user space and in the kernel if neither or both are
	// set. If neither is, and this user may not record the kernel, it is left out.
	User, Kernel bool

	PIDs    []int    // processes: their threads, and all that these start later
	TIDs    []int    // threads, and nothing that they start
	All     bool     // all processors
	Command []string // a program to start, with what it starts. With other targets it only ends the recording

	// Files are the command's standard input, output and error; nil: this program's.
	Files *[3]*os.File

	// Duration ends the recording after a while, as Stop does. 0: it does not.
	Duration time.Duration

	// Patience is how long Next goes on to return records after Open's context has ended. Samples that are left then are lost, and counted. 0: Next
	// returns all of them.
	Patience time.Duration

	// Program, if not nil, handles events in the kernel, and makes samples of the events it chooses: see Program.
	Program Program

	// Tests':
	narrow bool   // events of the command's own, even where those of the processors may be opened
	round  func() // is called before each round
	read   func() // is called when processes have been read, before samples count; may be nil
}

// A CallGraph is what leads through user stacks.
type CallGraph uint8

const (
	CFI               CallGraph = iota // call frame information: samples have registers and a copy of the stack, or a Program walks
	FramePointer                       // the kernel follows frame pointers, at most kernel.perf_event_max_stack frames (127); nothing is copied
	FramePointerOrCFI                  // both are recorded: see source.Options.FramePointers
)

// A Program is a BPF program that handles events in the kernel, with the reader of its results.
type Program interface {
	// Start is called once, before any event is open. dec decodes all records. The error ends Open.
	Start(dec *source.Decoder, t source.Trigger) error

	// FD is the program: of type perf_event, or tracepoint. Where it returns 0, the kernel writes no sample of its own.
	FD() int

	// Ready is a descriptor that epoll finds readable when Samples should be called soon.
	Ready() int

	// Begin is called once, after Start, with records of the processes and mappings from before the recording. What it returns is closed when
	// the kernel can walk the stacks of all of them.
	Begin(records []byte) (known <-chan struct{})

	// Began says when samples begin to count: at a time of CLOCK_MONOTONIC that is still to come. It may be called again before that, with a later
	// time. 1: all count.
	Began(time uint64)

	// Observe is called with each record of the kernel's, in the order of the rings. It must not keep raw. Calls can come before
	// Begin's.
	Observe(raw []byte)

	// Samples is called after each round over the rings, which began at a time of CLOCK_MONOTONIC: what is older has been
	// seen. It writes records of samples, with the ID source.WalkedID and as the event's Attr.Walked has them, into memory that
	// space gives: all that was there before the call. It says whether it wants another round soon.
	Samples(began uint64, space func(n int) []byte) (again bool)

	// End is called once, before the last call of Samples, when the events have been disabled: it may write samples of what
	// lasts until now.
	End(space func(n int) []byte)
}

// OffCPU is an Options.Event that only a Program can count: the time for which threads are blocked, with the stack that
// blocked. The period of its samples is that time in ns.
const OffCPU = "off-cpu"

// Allocations is another: bytes that processes allocate, with source.OnAllocations.
const Allocations = "alloc"

const (
	DefaultFrequency = 999   // Hz: out of step with what runs a thousand times a second
	MaxStackSize     = 65528 // what the kernel takes
)

// Stats has a Recorder's counts.
type Stats struct {
	Records, Bytes    uint64 // that went through the rings
	Lost, LostSamples uint64 // records that found no room, as LOST and LOST_SAMPLES say
	Wakeups           uint64 // rounds over the rings
	Threads           int    // existing threads that were attached to
	Events            int    // events opened for them, one for each processor
	RingSize          int    // bytes of each ring
	StackSize         uint32 // bytes copied of each stack
	Shortened         uint64 // copies with fewer, because many waited
	Unplugged         int    // processors that have come online, and were not recorded when that was last looked at
}

// A Recorder is a recording that runs. Next is for one goroutine at a time; other methods may be called from any.
type Recorder struct {
	dec     *source.Decoder
	machine *arch.Machine
	event   string
	notes   []string
	ids     buildIDs

	// The drainer's alone, and Open's before it runs.
	rings     []*ring
	cpus      []int
	out       writer
	targets   []*target
	code      []int  // events that tell of code which the kernel makes, one for each ring; -1: its processor is offline
	trailer   uint64 // of all rings
	plug      plug
	kallsyms  *os.File           // for codeAgain, opened while this process may see addresses; nil: there is no code
	direct    map[int32]attached // threads that may turn out to have inherited events as well
	inherited map[int32]bool     // threads that did
	live      int                // targets that have not gone
	ends      bool               // when live is 0, and no process is leaving
	epoll     int                // ready's descriptor
	ready     *os.File           // it is, when one of the descriptors in it is
	readyConn syscall.RawConn
	wake      int  // eventfd
	unsettled bool // the last round had records
	repair    repair
	before    func()          // Options.round; may be nil
	all       bool            // the whole machine is recorded
	chosen    bool            // Options.StackSize is: copies keep it
	scope     *source.Tree    // what is recorded, if not all
	kin       *source.Members // the processes that are recorded, as records have told in the order of the rings; nil: all
	family    bool            // what they start is recorded, too
	root      int             // the command that is recorded; 0: none
	rec       source.Record   // scratch
	missed    uint64          // records that found no room, as the events that are closed have counted them
	unheard   uint64          // those that LOST records from before the recording have told of
	fault     error

	tree    *source.Tree // not nil: only the command's samples count of those of all processors
	program Program
	trigger source.Trigger
	tracing int // the event that has the program on a tracepoint

	memory  memory
	queue   *backlog
	stop    atomic.Bool
	ending  chan struct{} // closed when stop is set, and over
	over    bool          // the duration set stop
	late    atomic.Bool   // Options.Patience is over
	drained chan struct{} // closed when the drainer has ended
	records atomic.Uint64
	bytes   atomic.Uint64
	lost    atomic.Uint64
	lostSmp atomic.Uint64
	rounds  atomic.Uint64
	shorter atomic.Uint64

	unplugged atomic.Int64
	shape     Stats // what does not change

	cmd      *exec.Cmd
	exited   chan struct{} // closed when the command has gone
	exitErr  error
	endTimer *time.Timer
	unwatch  func() bool // of Open's context
	closing  sync.Once
	closeErr error

	synth   []byte        // what was there before
	reading atomic.Bool   // that is being read: the samples in the rings are not of the recording
	began   atomic.Uint64 // when all that had been read: older samples are not of the recording; 0: nothing was there
	timeAt  int           // where a sample's time is
	cur     batch
}

// Open starts a recording. It ends when the command exits, when all requested processes and threads and all they started are gone, when the
// duration is over, when Stop is called, or when ctx is done.
func Open(ctx context.Context, o Options) (_ *Recorder, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	limit, ok := procfs.MemoryLimit()
	if !ok {
		limit = 1 << 62
	}
	mem := memoryOf(limit)
	r := &Recorder{
		dec: source.NewDecoder(), machine: arch.Host(), memory: mem, queue: newBacklog(mem.backlog), drained: make(chan struct{}), ending: make(chan struct{}),
		program: o.Program, exited: make(chan struct{}), direct: map[int32]attached{}, inherited: map[int32]bool{}, epoll: -1, wake: -1, tracing: -1,
		ends: len(o.PIDs)+len(o.TIDs) > 0, all: o.All, chosen: o.StackSize != 0, before: o.round,
	}
	if r.machine == nil {
		return nil, fmt.Errorf("recording: %w on this machine", source.ErrUnsupported)
	}
	r.out.to, r.out.chunk = r.queue, mem.chunk
	r.queue.lost = func(n uint64) { r.lostSmp.Add(n) }
	defer func() {
		if err != nil {
			r.release()
		}
	}()
	p, err := r.plan(&o)
	if err != nil {
		return nil, err
	}
	if err := r.openPoll(); err != nil {
		return nil, err
	}
	decoded := p.attr
	decoded.Flags |= source.FlagBuildID // which the kernel is not asked for: see buildIDs
	decoded.ReadFormat = 0              // which is for target.missed
	r.timeAt = recordHeader + 2*8       // behind address and thread
	if decoded.SampleType&source.SampleIdentifier != 0 {
		r.timeAt += 8
	}
	if r.openCode(&p.attr); len(r.code) > 0 {
		decoded.Flags |= source.FlagKsymbol // which another event asks for
	}
	r.dec.AddAttr(&decoded, nil, r.event)
	if r.program != nil {
		r.dec.AddWalked()
		if r.trigger.Waits {
			r.dec.AddWaits(OffCPU)
		}
		if err := r.program.Start(r.dec, r.trigger); err != nil {
			return nil, err
		}
	}
	r.shape.StackSize = p.attr.SampleStackUser
	if !o.All {
		r.family = len(o.TIDs) == 0
		r.scope = source.NewTree(leaders(append(o.PIDs[:len(o.PIDs):len(o.PIDs)], o.TIDs...)))
		r.kin = r.scope.Members()
	}

	r.reading.Store(o.All || len(o.PIDs)+len(o.TIDs) > 0)
	for _, g := range r.rings {
		g.early = &r.reading
	}
	start, err := r.attach(&o, p)
	if err != nil {
		return nil, err
	}
	r.inherited = nil
	if r.ends {
		r.repair.since = bootTicks(monotonic())
		for _, pid := range r.scope.Processes() {
			if is, ok := originOf(int(pid)); ok {
				r.repair.start(pid, is.start)
			}
		}
	}
	own := !o.All && len(o.PIDs)+len(o.TIDs) == 0 // the command is what is recorded
	if start != nil && own {
		if err := start(); err != nil {
			return nil, err
		}
	}
	go r.drainAll()
	r.synthesise(ctx, &o)
	if start != nil && !own {
		if err := start(); err != nil {
			r.end(false)
			<-r.drained
			return nil, err
		}
	}
	if o.Duration > 0 {
		r.endTimer = time.AfterFunc(o.Duration, func() { r.finish(true) })
	}
	r.unwatch = context.AfterFunc(ctx, func() {
		if r.Stop(); o.Patience > 0 {
			time.AfterFunc(o.Patience, r.abandon)
		}
	})
	return r, nil
}

func (o *Options) check() error {
	switch {
	case o.Frequency > 0 && o.Period > 0:
		return errors.New("a frequency and a period exclude each other")
	case o.CallGraph != CFI && o.Program != nil:
		return fmt.Errorf("frame pointers: %w by a program in the kernel", source.ErrUnsupported)
	case o.StackSize%8 != 0 || o.StackSize > MaxStackSize:
		return fmt.Errorf("stack size %d: want a multiple of 8 up to %d", o.StackSize, MaxStackSize)
	case o.All && len(o.PIDs)+len(o.TIDs) > 0:
		return errors.New("all processors exclude single processes and threads")
	case (o.Event == OffCPU || o.Waits) && o.Program == nil:
		return fmt.Errorf("%s: %w by copies of stacks: it takes a program in the kernel", OffCPU, source.ErrUnsupported)
	case o.Event == Allocations && (o.Program == nil || len(o.PIDs) == 0):
		return fmt.Errorf("%s: %w: it takes a program in the kernel, and processes", Allocations, source.ErrUnsupported)
	case !o.All && len(o.PIDs)+len(o.TIDs)+len(o.Command) == 0:
		return errors.New("nothing to record: no command, process or thread")
	}
	for _, id := range append(o.PIDs[:len(o.PIDs):len(o.PIDs)], o.TIDs...) {
		if id <= 0 {
			return fmt.Errorf("process %d: no such process", id)
		}
	}
	return nil
}

// Decoder knows the recording's event.
func (r *Recorder) Decoder() *source.Decoder { return r.dec }

// Tree returns the recorded command's processes; nil if all that it has is of interest. See source.RecordStream.
func (r *Recorder) Tree() *source.Tree { return r.tree }

// Owner returns the user that a process runs as; an impossible one if it has gone.
func (r *Recorder) Owner(pid int32) uint32 { return procfs.Owner(pid) }

// Gone returns those of some processes that there are no more, and when, by CLOCK_MONOTONIC.
func (r *Recorder) Gone(pids []int32) (gone []int32, now uint64) {
	return procfs.Gone(pids), monotonic()
}

// Machine returns this process's machine.
func (r *Recorder) Machine() *arch.Machine { return r.machine }

// Event returns the recorded event's name, in perf's spelling, or the names of both.
func (r *Recorder) Event() string {
	if r.trigger.Waits {
		return r.event + " and " + OffCPU
	}
	return r.event
}

// EventNote says how the recording differs from the request; "" if it does not.
func (r *Recorder) EventNote() string { return strings.Join(r.notes, "; ") }

// Stats returns the counts so far.
func (r *Recorder) Stats() Stats {
	s := r.shape
	s.Records, s.Bytes, s.Lost, s.LostSamples = r.records.Load(), r.bytes.Load(), r.lost.Load(), r.lostSmp.Load()
	s.Wakeups, s.Shortened, s.Unplugged = r.rounds.Load(), r.shorter.Load(), int(r.unplugged.Load())
	return s
}

// Next returns the next record: see source.RecordStream. It waits for one.
func (r *Recorder) Next() (raw []byte, buf *source.Buffer, err error) {
	if r.late.Load() {
		r.queue.lose(r.cur)
		r.synth, r.cur = nil, batch{}
		return nil, nil, io.EOF
	}
	if len(r.synth) > 0 {
		if raw, r.synth = cutRecord(r.synth); len(r.synth) == 0 {
			r.synth = nil // it would keep all of them
		}
		return raw, nil, nil
	}
	for {
		if len(r.cur.b) == 0 {
			r.cur.buf.Release()
			r.cur = batch{}
			b, err := r.queue.take()
			if err != nil {
				return nil, nil, err
			}
			r.cur = b
		}
		raw, r.cur.b = cutRecord(r.cur.b)
		if r.early(raw) {
			continue
		}
		if r.trigger.Kind == source.OnBlocking || r.trigger.Waits {
			r.cutWait(raw)
		}
		return raw, r.cur.buf, nil
	}
}

// begin says that all has been read that was there before. Samples from then on count: reading ends first, so that none of them is dropped.
func (r *Recorder) begin() {
	switch running := r.reading.Swap(false); {
	case !running && r.program != nil:
		r.program.Began(1)
	case running && r.program == nil:
		r.began.Store(monotonic())
	case running:
		at, now := uint64(0), uint64(0)
		for at <= now { // until the program knows it in time
			at = monotonic() + uint64(time.Millisecond)
			r.program.Began(at)
			now = monotonic()
		}
		r.began.Store(at)
		time.Sleep(time.Duration(at - now)) // whatever happens after Open counts
	}
}

// early says whether raw is a sample from before the recording.
func (r *Recorder) early(raw []byte) bool {
	return binary.LittleEndian.Uint32(raw) == source.RecordSample && len(raw) >= r.timeAt+8 && binary.LittleEndian.Uint64(raw[r.timeAt:]) < r.began.Load()
}

// lostEarly says whether a LOST record was written before the recording began. It has lost nothing of the recording: what was mapped unheard is read
// again, and no sample counts as lost. It is asked once of each: a moment later, began may say otherwise.
func (r *Recorder) lostEarly(raw []byte) bool {
	if r.reading.Load() {
		return true
	}
	var rec source.Record
	began := r.began.Load()
	return began != 0 && r.dec.Decode(raw, &rec) == nil && rec.Time != 0 && rec.Time < began
}

// cutWait has a wait begin with the recording that had begun before. Of those that had begun when the program was attached, the program says so.
// A wait that counts for others stays: its length is not known here.
func (r *Recorder) cutWait(raw []byte) {
	le := binary.LittleEndian
	began := r.began.Load()
	if began == 0 || le.Uint32(raw) != source.RecordSample || len(raw) < pastPeriod {
		return
	}
	if le.Uint16(raw[4:])&source.MiscWeighted != 0 {
		return
	}
	if id := le.Uint64(raw[recordHeader:]); r.trigger.Waits && id != source.WaitID && id != source.WaitCopyID {
		return
	}
	period := raw[pastPeriod-8:]
	if most := le.Uint64(raw[r.timeAt:]) - began; le.Uint64(period) > most { // it has not ended before: see early
		le.PutUint64(period, most)
		le.PutUint16(raw[4:], le.Uint16(raw[4:])|source.MiscCutBegin)
	}
}

// Stop ends the recording: Next returns the records left, then io.EOF. A command that is still there gets SIGTERM. Stop may be called again;
// it does not wait.
func (r *Recorder) Stop() { r.finish(false) }

// finish is Stop. over says that it is time.
func (r *Recorder) finish(over bool) {
	r.end(over)
	select {
	case <-r.exited:
	default:
		if r.cmd != nil {
			r.cmd.Process.Signal(syscall.SIGTERM) // it may have gone by now
		}
	}
}

// end makes the drainer end. over says that the duration is over.
func (r *Recorder) end(over bool) {
	if r.stop.Swap(true) {
		return
	}
	r.over = over
	close(r.ending)
	r.queue.wake()
	unix.Write(r.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // fails only if the counter is full: then it is awake
}

// abandon ends Next, and loses what it has not returned.
func (r *Recorder) abandon() {
	r.late.Store(true)
	r.queue.abandon()
}

// TimedOut says of a recording that has ended whether it did because the duration was over, and nothing else had ended it before.
func (r *Recorder) TimedOut() bool {
	if !r.stop.Load() {
		return false
	}
	<-r.ending
	return r.over
}

// Wait waits for the command and returns how it ended; nil if there is none. The error, if not nil, says that
// waiting was not possible; a command's own failure is in its state only.
func (r *Recorder) Wait() (*os.ProcessState, error) {
	if r.cmd == nil {
		return nil, nil
	}
	<-r.exited
	return r.cmd.ProcessState, r.exitErr
}

// Close stops the recording, if it runs, and frees everything. It does not wait for the command. Records that Next
// has returned stay valid.
func (r *Recorder) Close() error {
	r.closing.Do(func() {
		r.Stop()
		r.unwatch()
		if r.endTimer != nil {
			r.endTimer.Stop()
		}
		<-r.drained
		r.closeErr = r.release()
	})
	return r.closeErr
}

// release closes all descriptors.
func (r *Recorder) release() error {
	var errs []error
	for _, t := range r.targets {
		t.close()
	}
	for _, g := range r.rings {
		errs = append(errs, g.close())
	}
	r.targets, r.rings = nil, nil
	if r.ready != nil {
		errs = append(errs, r.ready.Close())
		r.epoll = -1
	}
	if r.kallsyms != nil {
		errs = append(errs, r.kallsyms.Close())
	}
	for _, fd := range append(r.code, r.tracing, r.epoll, r.wake) {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

// BuildID returns the kernel's build ID in hex, for its mapping: see source.RecordStream. Those of files are in their records, if they have any: what is
// at a file's path now may be another one.
func (r *Recorder) BuildID(path string) string {
	if path != "[kernel.kallsyms]" {
		return ""
	}
	return fmt.Sprintf("%x", procfs.KernelBuildID())
}
