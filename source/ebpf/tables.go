package ebpf

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/unspool/unspool/internal/pages"
	"github.com/unspool/unspool/unwind"
)

// tables are the compact tables of modules, and which of them are in the kernel. All is the tracker's goroutine's, save what
// is said to be under its lock.
type tables struct {
	track  *tracker
	tables *ebpf.Map // by slot
	uses   *ebpf.Map // struct use, by slot
	memory uint64
	all    map[*unwind.Module]*table // those that a space names, or that the kernel has
	idle   int                       // those in the kernel that no space names by their slots
	free   []uint32                  // slots that nothing uses
	last   uint32                    // slot that has been used
	size   uint64                    // bytes of the kernel's memory
	coming uint64                    // bytes of it for tables that jobs write
	look   atomic.Int64              // when to see which tables are wanted most: CLOCK_MONOTONIC; 0: all are in the kernel
	looked uint64                    // when that was done last
	jobs   sync.WaitGroup

	turn      sync.Mutex
	waiting   []*table             // under turn: to be compiled
	crowd     int                  // how many may wait before those that no space has any more are left out
	compiling map[*table]time.Time // under turn: and is now, each by a goroutine, since then
	most      int                  // at once

	news   bool     // under the lock: something has been compiled or loaded
	loaded []loaded // under the lock: by jobs that have ended
	made   []*table // under the lock: that have been compiled
}

// A table is that of one module.
type table struct {
	mod   *unwind.Module
	made  chan struct{} // closed when the module has been compiled
	code  *unwind.Code  // then
	bytes []byte        // the table of code; nil: it has none
	slot  uint32        // 0: none
	named int           // spaces that have the module
	refs  int           // those of them that name it by its slot
	user  *user         // who pays for it while there are some
	busy  bool          // a job writes it
	in    bool          // it is in the kernel
	bad   bool          // it cannot be brought there
	size  uint64        // bytes of the kernel's memory
	since uint64        // when it came or went, or was named last: CLOCK_MONOTONIC
	want  float64       // how many walks looked for it: see weigh
	walks uint64        // of its slot, when last counted
}

// A loaded is what became of a job that wrote a table.
type loaded struct {
	*table
	size uint64
	err  error
}

// compiled says whether it is known what table the module has.
func (l *table) compiled() bool {
	select {
	case <-l.made:
		return true
	default:
		return false
	}
}

// Bounds. maxTables is MAX_TABLES of c/unspool.bpf.c.
const (
	smallTables = 16 << 20 // bytes of the kernel's memory for tables, below which one table is made at a time
	maxTables   = 1 << 14
	patience    = 2 * time.Millisecond // that a space waits for its modules
	leastCrowd  = 1 << 10              // modules that wait
	long        = 5 * time.Second      // for a module to be compiled
	maxLong     = 16                   // modules that take so long
)

func (t *tables) start(track *tracker, outer, uses *ebpf.Map, memory uint64) {
	t.track, t.tables, t.uses, t.memory = track, outer, uses, memory
	t.all, t.compiling, t.most = map[*unwind.Module]*table{}, map[*table]time.Time{}, max(2, min(4, runtime.GOMAXPROCS(0)))
	if memory < smallTables {
		t.most = 1 // who walks copies waits for few
	}
}

// close ends all jobs. What is in the kernel goes with the map of all tables.
func (t *tables) close() {
	t.jobs.Wait()
	t.settle()
}

// A walkable is what a space's ranges say of a module: the slot of its table, and its code, nil where that is not known.
type walkable struct {
	slot uint32
	code *unwind.Code
}

// of returns what the ranges of a space say of its modules, which it has compiled and loaded when they are not, at u's cost, and their tables, which
// it holds for the space: all, those of them that have a slot, and those that are not compiled yet.
func (t *tables) of(space *unwind.Space, u *user) (of map[*unwind.Module]walkable, all, held, wait []*table) {
	of = map[*unwind.Module]walkable{}
	var late <-chan time.Time
	for i := range space.Mappings() {
		mod := space.Mappings()[i].Module
		if _, ok := of[mod]; ok {
			continue
		}
		if mod.PID != 0 {
			of[mod] = walkable{} // memory has no table
			continue
		}
		of[mod] = walkable{slot: Pending}
		l := t.add(mod)
		l.named++
		all = append(all, l)
	}
	for _, l := range all {
		if late == nil && !l.compiled() {
			late = time.After(patience)
		}
		select {
		case <-l.made:
		case <-late:
			late = closed
		}
		if !l.compiled() {
			wait = append(wait, l)
			continue
		}
		if l.refs == 0 && !u.table() {
			continue // what it is of is copied
		}
		if of[l.mod] = (walkable{t.slot(l), l.code}); l.slot == 0 {
			u.release()
		} else {
			if l.refs++; l.refs == 1 {
				if l.user = u; l.in {
					t.idle--
				}
			}
			held = append(held, l)
		}
	}
	return of, all, held, wait
}

// add returns the table of a module, which it has compiled where it is not yet.
func (t *tables) add(mod *unwind.Module) *table {
	l := t.all[mod]
	if l == nil {
		l = &table{mod: mod, made: make(chan struct{})}
		t.all[mod] = l
		t.turn.Lock()
		if len(t.waiting) >= max(t.crowd, leastCrowd) {
			t.waiting = slices.DeleteFunc(slices.Clone(t.waiting), func(l *table) bool {
				if l.named == 0 {
					delete(t.all, l.mod)
				}
				return l.named == 0
			})
			t.crowd = 2 * len(t.waiting)
		}
		t.waiting = append(t.waiting, l)
		t.turn.Unlock()
		t.compileNext()
	}
	return l
}

// compileNext has the modules that wait compiled. Nobody waits for the goroutines in the end: a file may take for ever to be read. One that takes long
// keeps others waiting only until then, unless there are very many such files.
func (t *tables) compileNext() {
	t.turn.Lock()
	defer t.turn.Unlock()
	if l := t.next(); l != nil {
		go t.compileAll(l)
	}
}

// next returns the module that is to be compiled now; nil if none is. It is called under turn.
func (t *tables) next() *table {
	busy := 0
	for _, since := range t.compiling {
		if time.Since(since) < long {
			busy++
		}
	}
	if len(t.waiting) == 0 || busy >= t.most || len(t.compiling) >= t.most+maxLong {
		return nil
	}
	l := t.waiting[0]
	if t.waiting = t.waiting[1:]; len(t.waiting) == 0 {
		t.waiting = nil
	}
	t.compiling[l] = time.Now()
	return l
}

// compileAll compiles a module, and then what waits. A goroutine for each would take 2 KB at least: a process may map 65,000 files at once.
func (t *tables) compileAll(l *table) {
	for l != nil {
		t.compile(l)
		t.turn.Lock()
		delete(t.compiling, l)
		l = t.next()
		t.turn.Unlock()
	}
}

// closed is a time that has come.
var closed = func() <-chan time.Time { c := make(chan time.Time); close(c); return c }()

// compile finds out what table a module has.
func (t *tables) compile(l *table) {
	if t.track.isClosed() {
		// Nobody waits for it.
	} else if c := l.mod.Code(); c != nil && c.Machine == Machine {
		l.code = c
		if s, ok := c.Stepper.(interface{ Bytes() []byte }); ok && bytes.HasPrefix(s.Bytes(), []byte("uTbl")) {
			l.bytes = s.Bytes()
		}
	}
	close(l.made)
	t.track.mu.Lock()
	t.made = append(t.made, l)
	t.track.mu.Unlock()
	t.notify()
}

// notify wakes the tracker: a module has been compiled, or tables loaded.
func (t *tables) notify(done ...loaded) {
	t.track.mu.Lock()
	t.news = true
	t.loaded = append(t.loaded, done...)
	t.track.mu.Unlock()
	t.track.changed.Broadcast()
}

// slot returns the slot of a table, which it begins to load where it is not in the kernel; Pending where it cannot get there.
func (t *tables) slot(l *table) uint32 {
	if l.bytes == nil {
		return 0
	}
	if l.bad {
		return Pending
	}
	if l.slot == 0 {
		switch {
		case len(t.free) > 0:
			l.slot, t.free = t.free[len(t.free)-1], t.free[:len(t.free)-1]
		case t.last < maxTables-1:
			t.last++
			l.slot = t.last
		default:
			t.dropIdle(func() bool { return len(t.free) >= 64 })
			if len(t.free) == 0 {
				t.track.failed(fmt.Errorf("the table of %s: the kernel has %d tables already", l.mod.Path, maxTables))
				return Pending
			}
			return t.slot(l)
		}
		l.walks = t.looks(l)
	}
	if !l.in {
		t.load(l)
	}
	return l.slot
}

// load has a table written into the kernel.
func (t *tables) load(l *table) {
	if l.busy || !t.room(l) {
		return
	}
	l.busy = true
	t.coming += l.cost()
	t.jobs.Go(func() {
		size, err := t.put(l)
		t.notify(loaded{l, size, err})
	})
}

// settle takes note of jobs that have ended.
func (t *tables) settle() {
	t.track.mu.Lock()
	done, made := t.loaded, t.made
	t.loaded, t.made = nil, nil
	t.track.mu.Unlock()
	for _, l := range made {
		t.forget(l)
	}
	t.compileNext()
	for _, d := range done {
		l := d.table
		l.in, l.bad, l.busy, l.since = d.err == nil, d.err != nil, false, monotonic()
		t.coming -= l.cost()
		if l.bad {
			t.track.failed(fmt.Errorf("the table of %s: %w", l.mod.Path, d.err))
			if l.refs == 0 {
				t.vacate(l)
			}
			continue
		}
		l.size = d.size
		if t.account(l, 1); l.refs == 0 {
			t.idle++
		}
	}
}

func (t *tables) account(l *table, n int) {
	t.size += uint64(n) * l.size
	c := &t.track.count
	t.track.mu.Lock()
	c.Tables += n
	c.TableBytes += uint64(n) * uint64(len(l.bytes))
	c.MapBytes = t.size
	t.track.mu.Unlock()
}

// put writes a table into the kernel, and returns how much of its memory that takes. The map of all tables keeps it: a descriptor of each
// would soon be too many.
func (t *tables) put(l *table) (size uint64, err error) {
	n := (len(l.bytes) + valueBytes - 1) / valueBytes
	b := lots.Get().(*lot)
	defer lots.Put(b)
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "unspool_table", Type: ebpf.Array, KeySize: 4, ValueSize: valueSize, MaxEntries: uint32(n), Flags: innerMap,
	})
	if err != nil {
		return 0, err
	}
	for at := 0; at < n; at += atOnce {
		k := min(n-at, atOnce)
		for i := range k {
			b.keys[i], b.values[i] = uint32(at+i), tableValue{}
			copy(b.values[i][:], l.bytes[(at+i)*valueBytes:])
		}
		if _, err = m.BatchUpdate(b.keys[:k], b.values[:k], nil); err != nil {
			m.Close()
			return 0, err
		}
	}
	pages.Release(l.bytes) // the kernel walks with its copy
	size = uint64(len(l.bytes))
	if info, err := m.Info(); err == nil {
		if n, ok := info.Memlock(); ok {
			size = n
		}
	}
	return size, t.publish(l, m)
}

// publish makes a table known to the program, and closes m. The kernel changes the map at once, and then waits for all programs that might
// still see the old one, ten milliseconds and more. Here there was none, so nobody need wait for that.
func (t *tables) publish(l *table, m *ebpf.Map) error {
	done := make(chan error, 1)
	t.jobs.Go(func() {
		err := t.tables.Put(l.slot, m)
		m.Close()
		done <- err
	})
	for {
		var id uint32
		if t.tables.Lookup(l.slot, &id) == nil {
			return nil
		}
		select {
		case err := <-done:
			return err
		case <-time.After(50 * time.Microsecond):
		}
	}
}

// release says that a space that held tables is none any more.
func (t *tables) release(held []*table) {
	for _, l := range held {
		if l.refs--; l.refs > 0 {
			continue
		}
		l.user.release()
		l.user, l.since = nil, monotonic()
		if l.in {
			t.idle++
		} else if !l.busy {
			t.vacate(l)
		}
	}
}

// leave says that a space that had the modules of all these tables, and has released those that it held, is none any more.
func (t *tables) leave(all []*table) {
	for _, l := range all {
		l.named--
		t.forget(l)
	}
}

// vacate frees the slot of a table that is not in the kernel and that no space names.
func (t *tables) vacate(l *table) {
	t.free = append(t.free, l.slot)
	l.slot = 0
	t.forget(l)
}

// forget forgets a table that nothing needs: it is made again when it is wanted. One that waits to be compiled is needed: a process that maps
// thousands of files is shared anew each time, and would have them wait again.
func (t *tables) forget(l *table) {
	if l.named == 0 && l.slot == 0 && !l.busy && l.compiled() && t.all[l.mod] == l {
		delete(t.all, l.mod)
	}
}

// withdraw takes a table out of the kernel.
func (t *tables) withdraw(l *table) {
	t.tables.Delete(l.slot)
	t.account(l, -1)
	if l.in, l.since = false, monotonic(); l.refs == 0 {
		t.idle--
	}
}

// A lot is the part of a table that is copied into the kernel by one call.
type lot struct {
	keys   [atOnce]uint32
	values [atOnce]tableValue
}

// lots are used again: where few tables fit, five a second were half of all garbage.
var lots = sync.Pool{New: func() any { return new(lot) }}

// A tableValue is VALUE_SIZE bytes of a table: see c/walk.h.
type tableValue [valueSize]byte

const (
	valueBytes = 1024
	atOnce     = 64
	valueSize  = valueBytes + ruleSize - 8
	ruleSize   = 16
	innerMap   = 1 << 12 // BPF_F_INNER_MAP: arrays of different lengths in one map
)
