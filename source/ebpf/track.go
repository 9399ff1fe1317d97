package ebpf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// A tracker keeps the kernel's address spaces up to date with the records of mappings and processes, and has the tables that
// they need brought there. One goroutine does that; modules are compiled and tables written by others.
type tracker struct {
	mu      sync.Mutex
	changed sync.Cond
	pending []byte // whole records
	news    bool   // there are some of the round at hand
	until   uint64 // what is older is all here
	begun   bool
	known   chan struct{} // closed when what begin brought is in the kernel
	closed  bool
	freed   bool // no walk has what free waits for
	done    chan struct{}
	count   Stats // Processes and below
	bounds  bounds
	again   atomic.Int64 // when to reap again: CLOCK_MONOTONIC; 0: never

	first func() error // to be called when the processes are known that there were; nil: nothing, or it has been

	dec *source.Decoder

	// The goroutine's.
	world     *source.World
	members   *source.Members   // who is of interest; nil: everybody
	comm      func(string) bool // which commands are; nil: all
	full      atomic.Bool       // the kernel has no room for more names, and takes them for wanted
	named     map[int32]bool    // whether a thread of a process has had such a name, since it executes its program; none: not known
	coll      *ebpf.Collection
	tables    tables
	spaces    map[*unwind.Space]*shared
	procs     map[int32]*shared
	ended     map[int32]ending // processes that ended and that the kernel's program still knows: see end
	look      uint64           // when to look at them next
	crowded   uint64           // when to look at all of them next, where there is no room for more
	forgotten atomic.Uint64    // processes that ended and for which there was no room
	scoped    bool             // samples of unknown processes are not wanted
	backoff   time.Duration    // until ended processes are looked for again
	last      uint32           // number that a space was given
	numbers   map[uint32]bool  // those of spaces and dead
	dead      []*shared        // spaces that no process has any more, and that a walk that runs can still read
	burying   int              // so many of them wait for that
}

// A shared is an address space in the kernel, and how many processes have it.
type shared struct {
	space  *unwind.Space
	id     uint32
	n      uint32 // ranges
	bits   uint32 // of addresses, where return addresses are signed
	procs  int
	user   *user // who pays; nil: nobody
	blocks int
	mods   []*table // of all its modules
	tables []*table // that its ranges name
	waits  []*table // that were not compiled
}

func (t *tracker) start(coll *ebpf.Collection, o *Options, comm func(string) bool) {
	t.changed.L = &t.mu
	t.comm, t.named = comm, map[int32]bool{}
	t.done, t.known = make(chan struct{}), make(chan struct{})
	t.coll, t.world = coll, source.NewWorld(o.Mods)
	t.world.Identify(o.Identify)
	t.world.Owners(procfs.Owner)
	t.tables.start(t, coll.Maps["tables"], coll.Maps["uses"], o.Memory)
	t.bounds.start(int(coll.Maps["spaces"].MaxEntries()))
	t.spaces, t.procs, t.numbers = map[*unwind.Space]*shared{}, map[int32]*shared{}, map[uint32]bool{}
	t.ended = map[int32]ending{}
	if o.Mods != nil {
		t.ahead(filesOf(o.Command), o.Mods)
	}
	go t.run()
}

// atFirst has f called when the kernel's program knows the processes that there were before the recording.
func (t *tracker) atFirst(f func() error) {
	t.mu.Lock()
	t.first = f
	t.mu.Unlock()
}

func (t *tracker) stop() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.changed.Broadcast()
	<-t.done
	t.tables.close()
}

// begin brings the processes that there are. What it returns is closed when the kernel has their spaces and tables.
func (t *tracker) begin(records []byte) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun = true
	t.again.Store(int64(monotonic() + uint64(time.Second))) // what has ended before its events were open has said so to nobody
	t.pending = append(append([]byte{}, records...), t.pending...)
	t.changed.Broadcast()
	return t.known
}

// round says that what is older than a time has been seen. It returns whether there was anything.
func (t *tracker) round(began uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	news := t.news
	t.until, t.news = began, false
	t.changed.Broadcast()
	return news
}

// observe notes a record that changes address spaces.
func (t *tracker) observe(raw []byte) {
	switch binary.LittleEndian.Uint32(raw) {
	case source.RecordMmap, source.RecordMmap2, source.RecordComm, source.RecordFork, source.RecordExit, source.RecordLost:
	default:
		return
	}
	t.mu.Lock()
	if t.bounds.admits(raw, monotonic()) {
		t.pending = append(t.pending, raw...)
	}
	t.news = true
	t.mu.Unlock()
}

func (t *tracker) stats(s *Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Processes, s.Tables, s.TableBytes, s.MapBytes, s.Evicted = t.count.Processes, t.count.Tables, t.count.TableBytes, t.count.MapBytes, t.count.Evicted
	s.Failed, s.Err = t.count.Failed, t.count.Err
}

func (t *tracker) failed(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count.Failed++; t.count.Err == nil {
		t.count.Err = err
	}
}

// run applies records in the order of their times: those of one process can be in the rings of several processors.
func (t *tracker) run() {
	defer close(t.done)
	type timed struct {
		time uint64
		raw  []byte
	}
	var held []timed
	var r source.Record
	last := uint64(0) // until when records have been applied
	touched := map[int32]bool{}
	announced := false // known is closed
	for {
		t.mu.Lock()
		t.count.Processes = len(t.procs)
		for !t.closed && !t.tables.news && !t.tables.due() && !t.due() && (!t.begun || len(t.pending) == 0 && t.until == last) {
			t.changed.Wait()
		}
		b, until := t.pending, t.until
		var flooded map[int32]bool
		if !t.begun {
			b = nil
		} else {
			t.pending, flooded = nil, t.bounds.taken()
		}
		ready, first := t.tables.news, t.first
		if !t.begun || until == last {
			first = nil
		} else {
			t.first = nil
		}
		t.tables.news = false
		begun, closed := t.begun && until > 0, t.closed
		t.mu.Unlock()
		if closed {
			return
		}
		for len(b) >= 8 {
			n := int(binary.LittleEndian.Uint16(b[6:]))
			if n < 8 || n > len(b) {
				break
			}
			if t.dec.Decode(b[:n], &r) == nil {
				held = append(held, timed{r.Time, b[:n]})
			}
			b = b[n:]
		}
		slices.SortStableFunc(held, func(x, y timed) int { return cmp.Compare(x.time, y.time) })
		clear(touched)
		n := 0
		for ; n < len(held) && held[n].time < until; n++ {
			if t.dec.Decode(held[n].raw, &r) != nil || t.members.Has(r.PID) && t.world.Redundant(&r) || !t.members.Apply(&r) {
				continue
			}
			t.bounds.follow(&r)
			t.name(&r)
			switch t.world.Apply(&r); {
			case r.Type == source.RecordLost:
				t.reap(touched)
				t.backoff = 0
				t.again.Store(int64(monotonic() + uint64(time.Second))) // some have ended and are waited for
			case r.Type != source.RecordFork || r.PID != r.PPID:
				touched[r.PID] = true
			}
		}
		held = slices.Delete(held, 0, n)
		for pid := range flooded {
			t.bounds.partial[pid], touched[pid] = true, true
		}
		now := monotonic()
		for pid := range t.bounds.late {
			touched[pid] = touched[pid] || now-t.bounds.shared[pid] >= uint64(heavyEvery)
		}
		for pid, is := range touched {
			if is {
				t.update(pid)
			}
		}
		if until != last {
			// All that happened before is where the kernel's program finds it: see applied in c/unspool.bpf.c.
			if err := t.coll.Maps["applied"].Put(uint32(0), until); err != nil {
				t.failed(fmt.Errorf("the time: %w", err))
			}
			last = until
			t.gone()
		}
		if first != nil {
			if err := first(); err != nil {
				t.failed(fmt.Errorf("threads that are blocked: %w", err))
			}
		}
		if t.due() {
			// A thread's end may be lost, and the process end later. The last loss of a processor is said when it has another record.
			t.backoff = min(max(2*t.backoff, 2*time.Second), time.Minute)
			t.again.Store(int64(monotonic() + uint64(t.backoff)))
			t.reap(touched)
		}
		if ready {
			t.tables.settle()
			t.refresh()
			t.free()
		}
		t.tables.fit()
		if begun && !announced && t.settled() {
			announced = true
			close(t.known)
		}
	}
}

// settled says whether the kernel has the tables of all spaces.
func (t *tracker) settled() bool {
	for _, s := range t.spaces {
		if len(s.waits) > 0 || slices.ContainsFunc(s.tables, func(l *table) bool { return l.busy }) {
			return false
		}
	}
	return true
}

func (t *tracker) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

// due says whether it is time to reap again.
func (t *tracker) due() bool {
	at := t.again.Load()
	return at != 0 && monotonic() >= uint64(at)
}

// reap finds the processes that have ended without a record: it was lost, or there were no events yet.
func (t *tracker) reap(touched map[int32]bool) {
	var pid int32
	var pids []int32
	var v [processSize]byte
	for it := t.coll.Maps["processes"].Iterate(); it.Next(&pid, &v); {
		pids = append(pids, pid)
	}
	for _, pid := range append(procfs.Gone(pids), t.world.Reap(procfs.Gone)...) {
		t.bounds.forget(pid)
		delete(t.named, pid)
		t.set(pid, nil)
		delete(t.ended, pid)
		delete(touched, pid)
	}
}

// name takes note of whether a process is of interest by its threads' names. A child has its parent's, until it executes another program. When names are
// lost, those of all processes come again.
func (t *tracker) name(r *source.Record) {
	switch {
	case t.comm == nil:
	case r.Type == source.RecordComm:
		t.named[r.PID] = t.named[r.PID] && !r.Exec() || t.comm(string(r.Comm))
	case r.Type == source.RecordFork && r.PID != r.PPID:
		delete(t.named, r.PID)
		if yes, ok := t.named[r.PPID]; ok {
			t.named[r.PID] = yes
		}
	}
}

// update brings what is known of a process into the kernel.
func (t *tracker) update(pid int32) {
	space, alive := t.world.Process(pid)
	if !alive {
		t.bounds.forget(pid)
		delete(t.named, pid)
		t.end(pid)
		return
	}
	delete(t.ended, pid)
	if yes, ok := t.named[pid]; ok && !yes && !t.full.Load() {
		delete(t.bounds.late, pid)
		space = unwind.NewSpace() // the kernel refuses its samples
	} else if t.bounds.partial[pid] || t.bounds.waits(pid, len(space.Mappings()), monotonic()) {
		space = unwind.NewSpace() // not known: its stacks are copied
	}
	t.set(pid, space)
}

// An ending is when to look whether a process that ended has gone, and how long to wait if it has not. Times are in ns.
type ending struct{ at, wait uint64 }

const (
	firstLook = uint64(time.Second)
	lastLook  = uint64(time.Minute)
	askEvery  = uint64(100 * time.Millisecond)
	endShare  = 4 // at most a quarter of the processes in the kernel's map have ended
)

// end notes the EXIT record of a process. Kernels since June 2025, stable ones too, write it before they free the process's memory. Where samples
// of unknown processes are not wanted, the process is known until it has gone.
func (t *tracker) end(pid int32) {
	m := t.coll.Maps["processes"]
	most, now := int(m.MaxEntries())/endShare, monotonic()
	if len(t.ended) >= most && now >= t.crowded {
		t.crowded = now + askEvery
		t.ask(now, true)
	}
	t.unassign(pid)
	if !t.scoped || len(t.ended) >= most {
		if m.Delete(uint32(pid)) == nil && t.scoped {
			t.forgotten.Add(1) // samples of its memory's end may be lost
		}
	} else if m.Update(uint32(pid), processOf(pid, 0, 0), ebpf.UpdateExist) == nil { // else the program does not know it
		t.ended[pid] = ending{now + firstLook, firstLook}
	}
}

// gone takes the processes out of the kernel that have ended and gone, as far as it is time to ask.
func (t *tracker) gone() {
	if now := monotonic(); now >= t.look {
		t.look = now + askEvery
		t.ask(now, false)
	}
}

// ask takes those out that have gone: of all that have ended, or of those whose turn it is.
func (t *tracker) ask(now uint64, all bool) {
	var pids []int32
	for pid, e := range t.ended {
		if all || e.at <= now {
			pids = append(pids, pid)
			e.wait = min(2*e.wait, lastLook)
			t.ended[pid] = ending{now + e.wait, e.wait}
		}
	}
	for _, pid := range procfs.Gone(pids) {
		delete(t.ended, pid)
		t.set(pid, nil)
	}
}

// set makes space that of a process; nil: it has gone.
func (t *tracker) set(pid int32, space *unwind.Space) {
	if space != nil && len(space.Mappings()) > 0 {
		s := t.spaces[space]
		if s == nil {
			s = t.share(space, t.bounds.of(pid))
		}
		t.assign(pid, s)
		return
	}
	if space == nil {
		t.coll.Maps["processes"].Delete(uint32(pid)) // even where only the kernel's program knows it, as a child
	} else if err := t.coll.Maps["processes"].Put(uint32(pid), processOf(pid, 0, 0)); err != nil { // between two programs
		t.failed(fmt.Errorf("a process: %w", err))
	}
	t.unassign(pid)
}

// unassign takes its space from a process.
func (t *tracker) unassign(pid int32) {
	if s := t.procs[pid]; s != nil {
		delete(t.procs, pid)
		t.leave(s)
	}
}

// assign makes s the space of a process.
func (t *tracker) assign(pid int32, s *shared) {
	old := t.procs[pid]
	s.procs++
	t.procs[pid] = s
	if old != s {
		if err := t.coll.Maps["processes"].Put(uint32(pid), processOf(pid, s.id, s.n|s.bits<<numRangesBits)); err != nil {
			t.failed(fmt.Errorf("a process: %w", err))
		}
	}
	if old != nil {
		t.leave(old)
	}
}

// processOf returns a struct process.
func processOf(pid int32, space, ranges uint32) (v [processSize]byte) {
	binary.LittleEndian.PutUint32(v[:], uint32(pid))
	binary.LittleEndian.PutUint32(v[8:], space)
	binary.LittleEndian.PutUint32(v[12:], ranges)
	return v
}

// leave says that a process has another space, or has gone.
func (t *tracker) leave(s *shared) {
	if s.procs--; s.procs > 0 {
		return
	}
	t.dead = append(t.dead, s)
	t.free()
	if t.spaces[s.space] == s {
		delete(t.spaces, s.space)
	}
}

// share brings an address space into the kernel. Where that fails, it is one without ranges.
func (t *tracker) share(space *unwind.Space, u *user) *shared {
	s := &shared{space: space, user: u, bits: uint32(space.AddressBits(Machine))}
	var of map[*unwind.Module]walkable
	of, s.mods, s.tables, s.waits = t.tables.of(space, u)
	ranges := rangesOf(space, func(m *unwind.Module) (uint32, *unwind.Code) { return of[m].slot, of[m].code })
	s.id = t.number()
	if s.blocks = (len(ranges) + blockRanges - 1) / blockRanges; !u.fits(s.blocks) {
		s.blocks, ranges = 0, nil
		t.failed(errors.New("an address space: this user's address spaces are too large"))
	}
	s.n = uint32(len(ranges))
	for k := 0; k*blockRanges < len(ranges); k++ {
		if err := t.coll.Maps["spaces"].Put(uint64(s.id)<<32|uint64(k), blockOf(ranges[k*blockRanges:])); err != nil {
			t.failed(fmt.Errorf("an address space: %w", err))
			t.unshare(s)
			s.n, s.blocks, s.mods, s.tables, s.waits = 0, 0, nil, nil, nil
			break
		}
	}
	t.spaces[space] = s
	return s
}

// number returns a number for a space: one that no processor remembers. When all have been given, 2³² spaces later, processors forget what they know.
func (t *tracker) number() uint32 {
	for {
		if t.last++; t.last == 0 { // which is no space
			t.forget()
		} else if !t.numbers[t.last] {
			t.numbers[t.last] = true
			return t.last
		}
	}
}

// forget empties the caches of all processors.
func (t *tracker) forget() {
	m := t.coll.Maps["caches"]
	none := make([]byte, m.ValueSize())
	for cpu := range m.MaxEntries() {
		if err := m.Put(cpu, none); err != nil {
			t.failed(fmt.Errorf("emptying a cache: %w", err))
		}
	}
}

// free takes spaces out of the kernel when all walks have ended that could have begun with them: their memory, and the slots of
// their tables, become others' at once.
func (t *tracker) free() {
	t.mu.Lock()
	freed := t.freed
	t.freed = false
	t.mu.Unlock()
	if freed {
		for _, s := range t.dead[:t.burying] {
			t.unshare(s)
			delete(t.numbers, s.id)
		}
		t.dead = slices.Delete(t.dead, 0, t.burying)
		t.burying = 0
	}
	if t.burying > 0 || len(t.dead) == 0 {
		return
	}
	t.burying = len(t.dead)
	t.tables.jobs.Go(func() {
		// MEMBARRIER_CMD_GLOBAL waits as the kernel does before it frees what programs read.
		if _, _, e := unix.Syscall(unix.SYS_MEMBARRIER, 1, 0, 0); e != 0 {
			time.Sleep(time.Second)
		}
		t.mu.Lock()
		t.freed, t.tables.news = true, true
		t.mu.Unlock()
		t.changed.Broadcast()
	})
}

// unshare takes an address space out of the kernel.
func (t *tracker) unshare(s *shared) {
	for k := uint32(0); k*blockRanges < s.n; k++ {
		t.coll.Maps["spaces"].Delete(uint64(s.id)<<32 | uint64(k))
	}
	if s.user != nil {
		s.user.blocks -= s.blocks
	}
	t.tables.release(s.tables)
	t.tables.leave(s.mods)
}

// refresh shares spaces again whose modules have been compiled since.
func (t *tracker) refresh() {
	fresh := map[*shared]*shared{}
	for _, s := range t.spaces {
		if slices.ContainsFunc(s.waits, (*table).compiled) {
			fresh[s] = nil
		}
	}
	for pid, s := range t.procs {
		next, ok := fresh[s]
		if !ok {
			continue
		}
		if next == nil {
			next = t.share(s.space, s.user)
			fresh[s] = next
		}
		t.assign(pid, next)
	}
}

// processSize is the size of struct process of c/unspool.bpf.c; numRangesBits and blockRanges are NUM_RANGES_BITS and RANGES of c/walk.h, and
// rangeSize the size of a struct range.
const (
	processSize   = 16
	numRangesBits = 24
	blockRanges   = 32
	rangeSize     = 32
)

// blockOf returns a struct range_block with the first of the ranges.
func blockOf(ranges []Range) []byte {
	b := make([]byte, 0, blockRanges*rangeSize)
	for _, r := range ranges[:min(len(ranges), blockRanges)] {
		b = binary.LittleEndian.AppendUint64(b, r.Lo)
		b = binary.LittleEndian.AppendUint64(b, r.Hi)
		b = binary.LittleEndian.AppendUint64(b, r.Bias)
		b = binary.LittleEndian.AppendUint32(b, r.Table)
		b = binary.LittleEndian.AppendUint32(b, uint32(r.Kind))
	}
	for len(b) < cap(b) {
		b = append(b, 0xff)
	}
	return b
}
