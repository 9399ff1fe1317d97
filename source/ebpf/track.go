package ebpf

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// The sizes of what is in maps: see c/unspool.bpf.c and c/walk.h.
const (
	valueBytes     = 4096
	valueSize      = valueBytes + 8
	rangesPerValue = 32
	rangeSize      = 32
)

// A tracker keeps the kernel's tables and address spaces up to date with the records of mappings and processes. Its work is
// done by one goroutine, because a table may have to be made first.
type tracker struct {
	mu      sync.Mutex
	changed sync.Cond
	pending []byte // whole records
	news    bool   // there are some of the round at hand
	until   uint64 // what is older is all here
	begun   bool
	closed  bool
	held    bool // the goroutine waits for a round to be over
	done    chan struct{}
	count   Stats // Processes and below

	// The goroutine's.
	dec       *source.Decoder
	world     *source.World
	coll      *ebpf.Collection
	tables    map[*unwind.Module]*loaded
	spaces    map[*unwind.Space]*shared
	procs     map[int32]*shared
	fresh     []*loaded // that are not in the kernel yet
	puts      sync.WaitGroup
	lastSpace uint32
	lastTable uint32
}

// A loaded is a table in the kernel.
type loaded struct {
	id    uint32 // 0: there is none
	bytes []byte
	m     *ebpf.Map
}

// A shared is an address space in the kernel, and how many processes have it.
type shared struct {
	space *unwind.Space
	id    uint32
	n     uint32 // ranges
	procs int
}

func (t *tracker) start(coll *ebpf.Collection, mods func(path, buildID string) *unwind.Module) {
	t.changed.L = &t.mu
	t.done = make(chan struct{})
	t.coll, t.world = coll, source.NewWorld(mods)
	t.tables, t.spaces, t.procs = map[*unwind.Module]*loaded{}, map[*unwind.Space]*shared{}, map[int32]*shared{}
	go t.run()
}

func (t *tracker) stop() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.changed.Broadcast()
	<-t.done
	t.puts.Wait()
	for _, l := range t.tables {
		if l.m != nil {
			l.m.Close()
		}
	}
}

func (t *tracker) begin(records []byte, dec *source.Decoder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.dec, t.begun = dec, true
	t.pending = append(append([]byte{}, records...), t.pending...)
	t.changed.Broadcast()
}

// round says that what is older than a time has been seen. It returns whether there was anything.
func (t *tracker) round(began uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	news := t.news
	t.until, t.news = began, false
	if len(t.pending) > 0 || t.held {
		t.changed.Broadcast()
	}
	return news
}

// saw notes a record that changes address spaces.
func (t *tracker) saw(raw []byte) {
	switch binary.LittleEndian.Uint32(raw) {
	case source.RecordMmap, source.RecordMmap2, source.RecordComm, source.RecordFork, source.RecordExit:
	default:
		return
	}
	t.mu.Lock()
	t.pending = append(t.pending, raw...)
	t.news = true
	t.mu.Unlock()
}

func (t *tracker) stats(s *Stats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.Processes, s.Tables, s.TableBytes, s.MapBytes = t.count.Processes, t.count.Tables, t.count.TableBytes, t.count.MapBytes
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
	for {
		t.mu.Lock()
		t.count.Processes = len(t.procs)
		t.held = len(held) > 0
		for !t.closed && (!t.begun || len(t.pending) == 0 && (t.until == last || len(held) == 0)) {
			t.changed.Wait()
		}
		b, until := t.pending, t.until
		t.pending = nil
		closed := t.closed
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
			if t.dec.Decode(held[n].raw, &r) == nil {
				t.apply(&r, touched)
			}
		}
		held = slices.Delete(held, 0, n)
		last = until
		for pid := range touched {
			if t.isClosed() {
				return
			}
			space, alive := t.world.Process(pid)
			if !alive {
				space = nil
			}
			t.set(pid, space)
		}
	}
}

// apply applies a record, and notes whose address space may have changed.
func (t *tracker) apply(r *source.Record, touched map[int32]bool) {
	t.world.Apply(r)
	if r.Type != source.RecordFork || r.PID != r.PPID {
		touched[r.PID] = true
	}
}

func (t *tracker) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

// set makes space that of a process; nil: it has gone.
func (t *tracker) set(pid int32, space *unwind.Space) {
	old := t.procs[pid]
	if old != nil && old.space == space {
		return
	}
	processes := t.coll.Maps["processes"]
	if space == nil || len(space.Mappings()) == 0 {
		processes.Delete(uint32(pid))
		delete(t.procs, pid)
	} else {
		s := t.spaces[space]
		if s == nil {
			var err error
			if s, err = t.share(space); err != nil {
				t.failed(err)
				t.set(pid, nil) // no space is better than an old one
				return
			}
		}
		var v [8]byte
		binary.LittleEndian.PutUint32(v[:], s.id)
		binary.LittleEndian.PutUint32(v[4:], s.n)
		s.procs++
		t.procs[pid] = s
		if err := processes.Put(uint32(pid), v[:]); err != nil {
			t.failed(fmt.Errorf("a process: %w", err))
		}
	}
	if old != nil {
		if old.procs--; old.procs == 0 {
			t.unshare(old)
			delete(t.spaces, old.space)
		}
	}
}

// share brings an address space into the kernel, and the tables that it needs.
func (t *tracker) share(space *unwind.Space) (*shared, error) {
	ranges := Ranges(space, t.table)
	t.load()
	s := &shared{space: space, n: uint32(len(ranges))}
	t.lastSpace++
	s.id = t.lastSpace // never used before: a walk may still look at another
	for k := 0; k*rangesPerValue < len(ranges); k++ {
		var v rangeValue
		for i, r := range ranges[k*rangesPerValue : min(len(ranges), (k+1)*rangesPerValue)] {
			x := v[i*rangeSize:]
			binary.LittleEndian.PutUint64(x, r.Lo)
			binary.LittleEndian.PutUint64(x[8:], r.Hi)
			binary.LittleEndian.PutUint64(x[16:], r.Bias)
			binary.LittleEndian.PutUint32(x[24:], r.Table)
			binary.LittleEndian.PutUint32(x[28:], uint32(r.Kind))
		}
		if err := t.coll.Maps["spaces"].Put(uint64(s.id)<<32|uint64(k), v[:]); err != nil {
			t.unshare(s)
			return nil, fmt.Errorf("an address space: %w", err)
		}
	}
	t.spaces[space] = s
	return s, nil
}

// unshare takes an address space out of the kernel.
func (t *tracker) unshare(s *shared) {
	for k := uint32(0); k*rangesPerValue < s.n; k++ {
		t.coll.Maps["spaces"].Delete(uint64(s.id)<<32 | uint64(k))
	}
}

// table returns the number of a module's table, which it leaves to load to bring into the kernel; 0 where there is none.
func (t *tracker) table(mod *unwind.Module) uint32 {
	l := t.tables[mod]
	if l == nil {
		l = &loaded{}
		t.tables[mod] = l
		if c := mod.Code(); c != nil && c.Machine == arch.AMD64 {
			table, ok := c.Stepper.(interface{ Bytes() []byte })
			if ok && bytes.HasPrefix(table.Bytes(), []byte("uTbl")) {
				t.lastTable++
				l.id, l.bytes = t.lastTable, table.Bytes()
				t.fresh = append(t.fresh, l)
			}
		}
	}
	return l.id
}

// load brings tables into the kernel.
func (t *tracker) load() {
	var wg sync.WaitGroup
	some := make(chan bool, 16)
	for _, l := range t.fresh {
		some <- true
		wg.Go(func() {
			defer func() { <-some }()
			if err := t.put(l); err != nil {
				t.failed(fmt.Errorf("a table: %w", err))
			}
		})
	}
	wg.Wait()
	t.fresh = t.fresh[:0]
}

func (t *tracker) put(l *loaded) (err error) {
	values := make([]tableValue, (len(l.bytes)+valueBytes-1)/valueBytes)
	for i := range values {
		copy(values[i][:], l.bytes[i*valueBytes:])
	}
	keys := make([]uint32, len(values))
	for i := range keys {
		keys[i] = uint32(i)
	}
	l.m, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "table", Type: ebpf.Array, KeySize: 4, ValueSize: valueSize, MaxEntries: uint32(len(values)), Flags: innerMap,
	})
	if err != nil {
		return err
	}
	if _, err := l.m.BatchUpdate(keys, values, nil); err != nil {
		return err
	}
	if err := t.publish(l); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count.Tables++
	t.count.TableBytes += uint64(len(l.bytes))
	if info, err := l.m.Info(); err == nil {
		if mem, ok := info.Memlock(); ok {
			t.count.MapBytes += mem
		}
	}
	return nil
}

// publish makes a table known to the program. The kernel changes the map at once, and then waits for all programs that might
// still see the old one, ten milliseconds and more. Here there was none, so nobody need wait for that.
func (t *tracker) publish(l *loaded) error {
	tables, done := t.coll.Maps["tables"], make(chan error, 1)
	t.puts.Go(func() { done <- tables.Put(l.id, l.m) })
	for {
		var id uint32
		if tables.Lookup(l.id, &id) == nil {
			return nil
		}
		select {
		case err := <-done:
			return err
		case <-time.After(50 * time.Microsecond):
		}
	}
}

type (
	tableValue [valueSize]byte
	rangeValue [rangesPerValue * rangeSize]byte
)

// innerMap is BPF_F_INNER_MAP: arrays of different lengths in one map.
const innerMap = 1 << 12
