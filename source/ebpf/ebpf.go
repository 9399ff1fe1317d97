package ebpf

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/outfile"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// Stats has a Program's counts.
type Stats struct {
	Samples    uint64 // walked in the kernel and read
	Waits      uint64 // of these, waits
	Copied     uint64 // left to a copy of the stack by the same event: a mapping or a table had not come
	CutOff     uint64 // the same, without copies, or with too many: the stack ends there
	RingFull   uint64 // lost: the ring buffer had no room
	Nested     uint64 // lost: the event interrupted the program. Where it interrupts another BPF program, nobody counts
	Forgotten  uint64 // lost: a blocked thread, a child or one that ended that there was no room to remember; with AtEnd a thread that went on unseen; a stack that never came
	Outside    uint64 // not taken: samples at events, of processes outside this PID namespace, where all are asked for
	Processes  int    // that are known to the kernel now
	Tables     int    // in the kernel now
	TableBytes uint64 // their payload
	MapBytes   uint64 // what the kernel says that their maps take
	Evicted    int    // tables in use that were taken out for want of memory
	Runs       uint64 // of the program, and their time, where the kernel counts (kernel.bpf_stats_enabled)
	RunTime    time.Duration
	AtBegin    bool  // Options.AtEnd was asked for, and this kernel cannot
	Blind      bool  // to threads that blocked before the recording: their stacks must not be copied, or this kernel cannot (Linux 5.18 can)
	Failed     int   // address spaces and tables that could not be brought into the kernel
	Err        error // the first reason
}

// Lost returns the number of lost samples.
func (s *Stats) Lost() uint64 { return s.RingFull + s.Nested + s.Forgotten }

// A Program walks stacks in the kernel. It implements perfevent.Program.
type Program struct {
	spec    *ebpf.CollectionSpec
	coll    *ebpf.Collection
	more    *ebpf.Collection // the program that is not for counters and clocks
	maps    *ebpf.Collection // the one that notes mappings
	prog    string           // the one that takes samples; on_event can have on_switch beside it
	waits   bool             // on_switch does
	atEnd   bool             // Options.AtEnd; in its place is on_sleep, with on_resumed
	atBegin bool             // Stats.AtBegin
	links   []link.Link
	ring    *ring
	blind   bool // Stats.Blind
	whole   bool // nothing is copied: Options.NoCopies
	stacks  stacks
	ended   bool
	samples atomic.Uint64
	oneOf   atomic.Uint32 // SetOneOf's
	blocked atomic.Uint64 // of samples, those of waits
	names   func(string) bool
	wakers  bool
	heap    *Heap
	track   tracker

	heapStats HeapStats // but for its counts
	probes    int       // how many of the map of that name are in use
}

// Options are for Load.
type Options struct {
	// Mods gives the modules of address spaces, as source.NewWorld has it. Only compact tables can be used.
	Mods func(path, buildID string) *unwind.Module

	// Identify, if not nil, returns what stands for the build ID of a file without one: see source.Options.
	Identify func(path string, maj, min uint32, inode, gen uint64) string

	// Memory limits the tables' bytes of kernel memory; 0 is DefaultMemory. Where there are more, those are there that most walks
	// look for.
	Memory uint64

	// Command is the command to be started: the tables of its program and libraries are brought into the kernel first.
	Command []string

	// Comm, if not nil, says which commands are of interest. The kernel refuses all other samples, and has no tables for them alone.
	Comm func(comm string) bool

	// Cgroup is the directory of a cgroup (version 2): samples of tasks outside of it are refused. Empty: none are.
	Cgroup string

	// Wakers asks for the thread that ended each wait: samples of source.OnBlocking have one of source.Waker before them.
	Wakers bool

	// Threshold, if not 0, makes waits shorter than that some of many: a wait is recorded with a probability of its length to the threshold,
	// and counts for the threshold. Sums keep their expected values. It is at most MaxThreshold. SetThreshold changes it.
	Threshold time.Duration

	// Heap is what source.OnAllocations takes.
	Heap *Heap

	// AtEnd walks the stacks of waits when these end, and only of waits that are recorded: with a Threshold, the others cost next to nothing.
	// Waits that began before the recording, and those that have not ended with it, are not in it. Where the kernel lets nobody trace its
	// function finish_task_switch, or with Wakers, stacks are walked when waits begin.
	AtEnd bool

	// NoCopies says that no memory of a stack leaves the kernel. What the kernel cannot walk yet ends with unwind.Truncated: Stats.CutOff.
	NoCopies bool

	// Pass lets events write the kernel's own samples, too, with a copy of the stack, where the walk does not want for one: to compare.
	Pass bool
}

// DefaultMemory is 1 GiB: the tables of 10 GiB of code. A sixteenth of procfs.MemoryLimit is the default where that is less: so a 64th of the machine's
// memory, or a sixteenth of what a control group lets this program take, the kernel's memory for it included.
const DefaultMemory = 1 << 30

// Load loads the program into the kernel. Close it after the recording.
func Load(o Options) (_ *Program, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("loading the kernel's program: %w", err)
		}
	}()
	p := &Program{prog: "on_event", names: o.Comm, wakers: o.Wakers, atEnd: o.AtEnd && !o.Wakers, heap: o.Heap, whole: o.NoCopies}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.spec, err = ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object)); err != nil {
		return nil, fmt.Errorf("BUG: %w", err)
	}
	if err := unlockMemory(); err != nil {
		return nil, err
	}
	if err := adapt(p.spec); err != nil {
		return nil, fmt.Errorf("BUG: %w", err)
	}
	if err := fit(p.spec); err != nil {
		return nil, err
	}
	if o.NoCopies {
		if err := p.spec.Variables["no_copies"].Set(uint32(1)); err != nil {
			return nil, fmt.Errorf("BUG: %w", err)
		}
	}
	if p.coll, err = p.load("on_event", "on_exec", "on_fork"); err != nil {
		return nil, err
	}
	if err := p.set("seed", rand.Uint64()); err != nil {
		return nil, err
	}
	if o.Pass {
		err = p.set("pass", uint32(1))
	}
	if o.Threshold != 0 {
		err = errors.Join(err, p.SetThreshold(o.Threshold))
	}
	if o.Comm != nil {
		err = errors.Join(err, p.set("by_name", uint32(1)))
	}
	if o.Cgroup != "" {
		err = errors.Join(err, p.cgroup(o.Cgroup))
	}
	if err != nil {
		return nil, err
	}
	if err := p.number(); err != nil {
		return nil, err
	}
	samples := p.coll.Maps["samples"]
	if p.ring, err = openRing(samples.FD(), uint64(samples.MaxEntries())); err != nil {
		return nil, err
	}
	if err := p.trace(p.coll, "on_exec"); err != nil {
		return nil, err
	}
	if err := p.traceMappings(); err != nil {
		return nil, err
	}
	if o.Memory == 0 {
		o.Memory = DefaultMemory
		if limit, ok := procfs.MemoryLimit(); ok {
			o.Memory = min(o.Memory, limit/tablesShare)
		}
	}
	comm := o.Comm
	if o.Wakers || o.Heap != nil {
		comm = nil // others are walked, too
	}
	p.track.start(p.coll, &o, comm)
	return p, nil
}

// load loads some of the programs, over the maps that there are.
func (p *Program) load(names ...string) (*ebpf.Collection, error) {
	spec := p.spec.Copy()
	for name := range spec.Programs {
		if !slices.Contains(names, name) {
			delete(spec.Programs, name)
		}
	}
	var o ebpf.CollectionOptions
	if p.coll != nil {
		o.MapReplacements = maps.Clone(p.coll.Maps)
	}
	switch {
	case p.more != nil:
		o.MapReplacements["blocked"] = p.more.Maps["blocked"]
	case !slices.Contains(names, "on_switch") && !slices.Contains(names, "on_sleep"):
		delete(spec.Maps, "blocked")
	}
	if !slices.Contains(names, "on_switch") {
		delete(spec.Maps, "wakers")
	}
	if !slices.Contains(names, "on_alloc") {
		for _, name := range []string{"allocating", "objects", "draws", "quotas", "probes"} {
			delete(spec.Maps, name)
		}
	}
	if !slices.Contains(names, "on_still") {
		delete(spec.Maps, "still")
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, o)
	return coll, explain(err)
}

// A VerifierError says that the kernel's verifier refuses a program.
type VerifierError struct {
	Kernel  string // its release
	Program string
	Reason  string // the line of the log that says it
}

// VerifierLog is the variable of the environment with the name of a file, into which Load writes the log of a verifier that refuses. Only its
// owner may read the file: the log can have addresses of the kernel. A file that was there becomes FILE.old.
const VerifierLog = "UNSPOOL_VERIFIER_LOG"

func (e *VerifierError) Error() string {
	s := fmt.Sprintf("the verifier of Linux %s refuses %s: %s", e.Kernel, e.Program, e.Reason)
	if os.Getenv(VerifierLog) == "" {
		s += " (" + VerifierLog + "=FILE writes its log)"
	}
	return s
}

// explain says what a kernel lacks that does not load the program. The verifier may refuse with EACCES, which more rights do not change.
func explain(err error) error {
	var refused *ebpf.VerifierError
	switch {
	case errors.As(err, &refused) && len(refused.Log) > 1:
		return verifierError(err.Error(), refused)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w (it takes root, or CAP_BPF and CAP_PERFMON)", os.ErrPermission)
	case errors.Is(err, btf.ErrNotFound):
		return fmt.Errorf("%w (it takes a kernel with CONFIG_DEBUG_INFO_BTF)", err)
	}
	return err
}

// verifierError takes what text, the message of a collection, says of the program, and the log of the reason: its last line, but for counts.
// The log goes to a file where its user asks for it.
func verifierError(text string, refused *ebpf.VerifierError) error {
	e := &VerifierError{Kernel: "this machine", Program: "a program", Reason: refused.Cause.Error()}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		e.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	if rest, ok := strings.CutPrefix(text, "program "); ok {
		e.Program, _, _ = strings.Cut(rest, ":")
	}
	for _, line := range slices.Backward(refused.Log) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "processed ") {
			e.Reason = line
			break
		}
	}
	path := os.Getenv(VerifierLog)
	if path == "" {
		return e
	}
	b := fmt.Appendf(nil, "Linux %s, %s: %v\n%s\n", e.Kernel, e.Program, refused.Cause, strings.Join(refused.Log, "\n"))
	if err := outfile.WriteFile(path, b, outfile.Options{Private: true, Keep: true}); err != nil {
		return fmt.Errorf("%w; its log: %v", e, err)
	}
	return e
}

// set sets a variable of the program.
func (p *Program) set(name string, v any) error {
	if err := p.coll.Variables[name].Set(v); err != nil {
		return fmt.Errorf("BUG: %w", err)
	}
	return nil
}

// number makes the program number processes as this one's PID namespace does. It knows them by other numbers in the first.
func (p *Program) number() error {
	var st unix.Stat_t
	if procfs.FirstPIDs() || unix.Stat("/proc/self/ns/pid", &st) != nil {
		return nil
	}
	return p.set("ns_ino", st.Ino)
}

// cgroup makes the program refuse tasks that are not in a cgroup.
func (p *Program) cgroup(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := p.coll.Maps["cgroups"].Put(uint32(0), uint32(dir.Fd())); err != nil {
		return fmt.Errorf("%s: %w (it takes a directory of cgroup version 2)", path, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	return errors.Join(p.set("cgroup", st.Ino), p.set("by_cgroup", uint32(1)))
}

// trace attaches a program to its tracepoint.
func (p *Program) trace(coll *ebpf.Collection, name string) error {
	l, err := link.AttachTracing(link.TracingOptions{Program: coll.Programs[name]})
	if err != nil {
		return fmt.Errorf("attaching %s: %w", name, err)
	}
	p.links = append(p.links, l)
	return nil
}

// mappingPrograms note that a process has other mappings: the first that can be attached does.
var mappingPrograms = []string{"on_map", "on_mapped"}

// traceMappings attaches what notes that a process has other mappings: to the function in which the kernel says so, or, where
// functions cannot be traced, to the ends of system calls.
func (p *Program) traceMappings() error {
	var errs error
	for _, name := range mappingPrograms {
		coll, err := p.load(name)
		if err == nil {
			p.maps = coll
			if err = p.trace(coll, name); err == nil {
				return nil
			}
			coll.Close()
			p.maps = nil
		}
		if errs == nil {
			errs = err
		} else {
			errs = fmt.Errorf("%w; %w", errs, err)
		}
	}
	return errs
}

// Close unloads the program.
func (p *Program) Close() error {
	p.track.stop()
	return p.close()
}

func (p *Program) close() (err error) {
	for _, l := range p.links {
		err = errors.Join(err, l.Close())
	}
	if p.ring != nil {
		err = errors.Join(err, p.ring.close())
	}
	if p.more != nil {
		p.more.Close()
	}
	if p.maps != nil {
		p.maps.Close()
	}
	if p.coll != nil {
		p.coll.Close()
	}
	return err
}

// Start implements perfevent.Program.
func (p *Program) Start(dec *source.Decoder, use source.Trigger) (err error) {
	p.stacks.start(dec)
	p.track.dec, p.track.members = dec, use.Tree.Members()
	if use.Children {
		if err := p.trace(p.coll, "on_fork"); err != nil {
			return fmt.Errorf("loading the kernel's program: %w", err)
		}
	}
	switch use.Kind {
	case source.OnTracepoints, source.OnProbes:
		p.prog = "on_tracepoint"
		if use.Kind == source.OnProbes {
			p.prog = "on_probe"
		}
		err = p.set("every", uint32(min(use.Period, 1<<32-1)))
	case source.OnBlocking:
		p.prog = "on_switch"
	case source.OnAllocations:
		p.prog = "on_alloc"
		p.stacks.frees = true
		err = cookies()
	}
	p.waits = p.prog == "on_switch" || use.Waits
	if err == nil && !use.All && (p.prog != "on_event" || p.waits || use.Tree != nil) {
		// What this process starts is known from its first moment; it itself is not of interest.
		p.track.scoped = true
		err = errors.Join(p.set("scoped", uint32(1)), p.set("self", uint32(os.Getpid())))
		known := []int32{int32(os.Getpid())}
		if use.Tree != nil && len(use.Tree.Processes()) > 0 {
			known = use.Tree.Processes()
		}
		for _, pid := range known {
			err = errors.Join(err, p.coll.Maps["processes"].Put(uint32(pid), processOf(pid, 0, 0)))
		}
	}
	if p.prog == "on_event" && !p.waits || err != nil {
		p.spec = nil // three megabytes that nobody needs any more
		return err
	}
	if p.waits && p.atEnd {
		if p.traceEnds() == nil {
			p.spec, p.blind = nil, true
			return nil
		}
		p.atBegin = true
	}
	p.atEnd = false
	progs := []string{p.prog}
	if p.waits {
		progs[0] = "on_switch"
	}
	if p.waits && p.wakers {
		p.stacks.interrupts, _ = openInterrupts()
		progs = append(progs, "on_waking")
		err = p.set("wakes", uint32(1))
	}
	if p.prog == "on_alloc" {
		progs = append(progs, "on_alloc_return", "on_free", "on_published", "on_published_free")
	}
	if err == nil {
		p.more, err = p.load(progs...)
	}
	if err != nil {
		return fmt.Errorf("loading the kernel's program: %w", err)
	}
	if p.prog == "on_alloc" {
		return p.attachAllocators()
	}
	if p.waits {
		if p.wakers {
			if err := p.trace(p.more, "on_waking"); err != nil {
				return err
			}
		}
		if err = p.trace(p.more, "on_switch"); err == nil {
			if p.blind = p.whole || !canCopyOthers(); !p.blind {
				p.track.atFirst(p.still)
			}
		}
	}
	return err
}

// traceEnds attaches what records waits when they end. Where it cannot, nothing is left attached.
func (p *Program) traceEnds() error {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return err
	}
	defer f.Close()
	name := switched(f)
	if name == "" {
		return errors.New("the kernel has no function finish_task_switch")
	}
	coll, err := p.load("on_sleep", "on_resumed")
	if err != nil {
		return err
	}
	p.more = coll
	l, err := link.Kprobe(name, coll.Programs["on_resumed"], nil)
	if err == nil {
		if err = p.trace(coll, "on_sleep"); err == nil {
			p.links = append(p.links, l)
			return nil
		}
		l.Close()
	}
	p.more = nil
	coll.Close()
	return err
}

// switched returns what the kernel's symbols call finish_task_switch, of which compilers make a part with a suffix; "" where it is not there.
func switched(symbols io.Reader) string {
	for lines := bufio.NewScanner(symbols); lines.Scan(); {
		f := bytes.Fields(lines.Bytes())
		if len(f) < 3 || f[1][0] != 't' && f[1][0] != 'T' {
			continue
		}
		if base, _, _ := bytes.Cut(f[2], []byte(".")); string(base) == "finish_task_switch" && !bytes.Contains(f[2], []byte(".cold")) {
			return string(f[2])
		}
	}
	return ""
}

// still has the kernel look for threads that are blocked already.
func (p *Program) still() error {
	coll, err := p.load("on_still")
	if err != nil {
		return err
	}
	defer coll.Close()
	it, err := link.AttachIter(link.IterOptions{Program: coll.Programs["on_still"]})
	if err != nil {
		return err
	}
	defer it.Close()
	r, err := it.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}

// FD implements perfevent.Program.
func (p *Program) FD() int {
	return p.program(p.prog).FD()
}

// program returns one of those that are loaded.
func (p *Program) program(name string) *ebpf.Program {
	if prog := p.coll.Programs[name]; prog != nil || p.more == nil {
		return prog
	}
	return p.more.Programs[name]
}

// MaxThreshold bounds Options.Threshold.
const MaxThreshold = 4 * time.Second

// SetThreshold changes Options.Threshold while waits are recorded.
func (p *Program) SetThreshold(d time.Duration) error {
	return p.set("threshold", uint32(min(max(d, 0), MaxThreshold)))
}

// SetOneOf has one of n events take a sample, which counts for all of them. 0 and 1: each event does. It is for events of counters and clocks.
func (p *Program) SetOneOf(n uint32) error {
	err := p.set("one_of", n)
	if err == nil {
		p.oneOf.Store(n)
	}
	return err
}

// weigh makes a copy that the kernel has written of a sample count for as many events as others do.
func (p *Program) weigh(raw []byte) {
	le := binary.LittleEndian
	n := uint64(p.oneOf.Load())
	if n <= 1 || p.prog != "on_event" || le.Uint32(raw) != source.RecordSample || len(raw) < atPeriod+8 {
		return
	}
	if id := le.Uint64(raw[atID:]); !source.Walks(id) && id != source.WaitCopyID {
		le.PutUint64(raw[atPeriod:], le.Uint64(raw[atPeriod:])*n)
	}
}

// Ready implements perfevent.Program.
func (p *Program) Ready() int { return p.coll.Maps["samples"].FD() }

// Begin implements perfevent.Program.
func (p *Program) Begin(records []byte) <-chan struct{} {
	if p.names != nil {
		for b := records; len(b) >= 8; {
			n := int(binary.LittleEndian.Uint16(b[6:]))
			if n < 8 || n > len(b) {
				break
			}
			p.name(b[:n])
			b = b[n:]
		}
	}
	return p.track.begin(records)
}

// Began implements perfevent.Program. Only the programs at allocators read it.
func (p *Program) Began(time uint64) {
	if err := p.set("began", time); err != nil {
		p.track.failed(err)
	}
}

// Observe implements perfevent.Program.
func (p *Program) Observe(raw []byte) {
	if p.names != nil {
		p.name(raw)
	}
	p.weigh(raw)
	p.track.observe(raw)
}

// name tells the kernel whether samples of a name that a COMM record gives are of interest. There, names that are not known
// are; whoever reads the samples has to refuse them.
func (p *Program) name(raw []byte) {
	if binary.LittleEndian.Uint32(raw) != source.RecordComm || len(raw) < 24 {
		return
	}
	var name [16]byte
	s, _, _ := strings.Cut(string(raw[16:]), "\x00")
	copy(name[:15], s)
	yes := uint8(0)
	if p.names(s) {
		yes = 1
	}
	if p.coll.Maps["names"].Put(name, yes) != nil { // it is one that is not known
		p.track.full.Store(true)
	}
}

// Samples implements perfevent.Program.
func (p *Program) Samples(began uint64, space func(n int) []byte) (again bool) {
	p.drain(space)
	p.stacks.tidy(p)
	return p.track.round(began)
}

func (p *Program) drain(space func(n int) []byte) {
	if err := p.ring.read(func(b []byte) { p.sample(b, space) }); err != nil {
		p.track.failed(err)
	}
}

// End implements perfevent.Program: threads that are still blocked have been so until now.
func (p *Program) End(space func(n int) []byte) {
	if !p.waits || p.atEnd || p.ended {
		return
	}
	p.ended = true
	for _, l := range p.links {
		l.Close()
	}
	p.links = nil
	p.drain(space) // stacks that blocked only now
	now := monotonic()
	var tid int32
	var b blocked
	for it := p.more.Maps["blocked"].Iterate(); it.Next(&tid, &b); {
		if b.Since == 0 {
			continue // it has ended
		}
		cut := uint16(source.MiscCutEnd)
		if b.Cut&cutBegin != 0 {
			cut |= source.MiscCutBegin
		}
		if s := p.stacks.again(&sample{time: now, period: now - min(now, b.Since), id: b.ID, pid: b.PID, tid: b.TID, cut: cut, wait: true}); s != nil {
			p.count(true)
			copy(space(len(s)), s)
		}
	}
}

// Indices of the map counters.
const (
	ringFull = iota
	nested
	forgotten
	copied
	tooMany
	outside
	numCounters
)

// A blocked is struct blocked of c/unspool.bpf.c.
type blocked struct {
	Since, ID uint64
	PID, TID  int32
	Cut, _    uint32
	_         uint64 // ran
}

func (p *Program) sample(raw []byte, space func(n int) []byte) {
	s, ok := parse(raw)
	if !ok {
		return
	}
	if b := p.stacks.record(&s); b != nil {
		if !s.waker {
			p.count(s.wait)
		}
		copy(space(len(b)), b)
	}
}

func (p *Program) count(wait bool) {
	p.samples.Add(1)
	if wait {
		p.blocked.Add(1)
	}
}

// Stats returns the counts so far.
func (p *Program) Stats() Stats {
	s := Stats{Samples: p.samples.Load(), Waits: p.blocked.Load(), Blind: p.blind, AtBegin: p.atBegin}
	p.track.stats(&s)
	progs := []string{p.prog}
	if p.waits && p.prog != "on_switch" {
		progs = append(progs, "on_switch")
	}
	if p.atEnd {
		progs[len(progs)-1] = "on_sleep"
		progs = append(progs, "on_resumed")
	}
	for _, name := range progs {
		if prog := p.program(name); prog != nil {
			if st, err := prog.Stats(); err == nil {
				s.Runs, s.RunTime, s.Nested = s.Runs+st.RunCount, s.RunTime+st.Runtime, s.Nested+st.RecursionMisses
			}
		}
	}
	var per []uint64
	for i, to := range [numCounters]*uint64{ringFull: &s.RingFull, nested: &s.Nested, forgotten: &s.Forgotten, copied: &s.Copied, tooMany: &s.CutOff, outside: &s.Outside} {
		if p.coll.Maps["counters"].Lookup(uint32(i), &per) == nil {
			for _, n := range per {
				*to += n
			}
		}
	}
	if p.whole {
		s.Copied, s.CutOff = 0, s.Copied+s.CutOff
	}
	s.Forgotten += p.stacks.unknown.Load() + p.track.forgotten.Load()
	return s
}
