package profile

import (
	"math/bits"
	"slices"
	"unsafe"

	"github.com/unspool/unspool/internal/pages"
	"github.com/unspool/unspool/unwind"
)

// A Builder aggregates samples. It is not safe for concurrent use.
type Builder struct {
	locs   *Locations
	stacks stackTable
	comms  map[string]uint32
	names  []string // of comms
	last   uint32   // the comm of the sample before

	samples []aggregate
	first   []uint32 // by stack: the first of samples with it
	others  int      // samples that are not the first of their stack
	slots   []uint32 // 1 + the index in samples of these, open addressing; 0: free
	totals  Totals
	ids     []uint32       // scratch
	recent  [16]recent     // by thread
	upside  map[uint32]int // by stack: how many of its first frames are a waker's
}

// A recent is the last stack of a thread. The next one mostly has the same outer frames, which then need not be looked
// up again.
type recent struct {
	user []unwind.Frame
	ids  []uint32 // of user
	sums []uint64 // hash of ids[i:]
}

// key is what makes samples equal.
type key struct {
	stack, comm uint32
	pid, tid    int32
	event       int32
	stop        unwind.Stop
}

type aggregate struct {
	key
	count, period uint64
}

// NewBuilder returns an empty Builder.
func NewBuilder() *Builder {
	b := &Builder{
		locs:  NewLocations(),
		comms: map[string]uint32{"": 0}, upside: map[uint32]int{},
		names: []string{""},
		slots: make([]uint32, firstSlots),
	}
	b.stacks.slots = make([]stackSlot, firstSlots)
	b.stacks.seed = b.locs.seed
	return b
}

// Add counts a sample, and returns the index that its Stack has in Profile. It allocates only for new stacks and locations. Of s, it keeps
// only Comm and the modules of the frames.
func (b *Builder) Add(s *Sample) int {
	h := b.intern(s)
	b.totals.Count(s)
	stack := b.stacks.intern(b.ids, h)
	if s.Waker != nil {
		b.upside[stack] = s.Waker.frames()
	}
	i := b.find(key{stack, b.comm(s.Comm), s.PID, s.TID, int32(s.Event), s.stop()})
	a := &b.samples[i]
	a.count += s.count()
	a.period += s.Period
	return i
}

// intern makes b.ids the locations of s, and returns their hash.
func (b *Builder) intern(s *Sample) uint64 {
	r := &b.recent[uint32(s.TID)%uint32(len(b.recent))]
	n := len(s.User)
	i, j := n, len(r.user)
	for i > 0 && j > 0 && s.User[i-1] == r.user[j-1] {
		i--
		j--
	}
	seed := b.stacks.seed
	b.ids = b.locs.internKernel(s, s.Kernel, b.locs.internWaker(s, b.ids[:0]))
	kernel := len(b.ids)
	b.ids = b.locs.internUser(s.User[:i], b.ids)
	b.ids = append(b.ids, r.ids[j:]...)

	// What the two stacks share moves to where it belongs in the new one.
	r.user, r.ids, r.sums = shift(r.user, j, i), shift(r.ids, j, i), shift(r.sums, j, i)
	copy(r.user, s.User[:i])
	copy(r.ids, b.ids[kernel:])
	h := seed[0]
	if i < n {
		h = r.sums[i]
	}
	for k := i - 1; k >= 0; k-- {
		h = mix(h^uint64(r.ids[k]), seed[1])
		r.sums[k] = h
	}
	for k := kernel - 1; k >= 0; k-- {
		h = mix(h^uint64(b.ids[k]), seed[1])
	}
	return h
}

// push appends x to s, which becomes four times as long where it is full, or twice if it is large: append makes long slices a quarter longer, and
// copies each element four times. What is left behind is not collected soon, and each of its pages was a page fault.
func push[T any](s []T, x T) []T {
	if len(s) == cap(s) {
		t := make([]T, len(s), larger(len(s), int(unsafe.Sizeof(x)))) // append would clear the rest, and so touch it
		pages.Populate(t[:len(s):len(s)])
		copy(t, s)
		s = t
	}
	return append(s, x)
}

// larger returns how many elements of so many bytes come to be where n are too few.
func larger(n, bytes int) int {
	if n*bytes > 1<<19 {
		return 2 * n
	}
	return max(4*n, 16)
}

// shift returns s[from:] with n elements before it, which are not set.
func shift[T any](s []T, from, n int) []T {
	tail := s[from:]
	size := n + len(tail)
	if size > cap(s) {
		out := make([]T, size, 2*size)
		copy(out[n:], tail)
		return out
	}
	out := s[:size]
	copy(out[n:], tail)
	return out
}

// Totals returns the counts so far.
func (b *Builder) Totals() Totals { return b.totals }

func (b *Builder) comm(s string) uint32 {
	if b.names[b.last] == s {
		return b.last
	}
	id, ok := b.comms[s]
	if !ok {
		id = uint32(len(b.names))
		b.comms[s] = id
		b.names = append(b.names, s)
	}
	b.last = id
	return id
}

func (b *Builder) hash(k *key) uint64 {
	h := mix(uint64(k.stack)|uint64(k.comm)<<32, b.locs.seed[0])
	h = mix(h^(uint64(uint32(k.pid))|uint64(uint32(k.tid))<<32), b.locs.seed[1])
	return mix(h^(uint64(uint32(k.event))<<8|uint64(k.stop)), b.locs.seed[0])
}

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15, b|1)
	return hi ^ lo
}

// find returns the index of k in samples, where it is entered if it is new. Most stacks come from one thread, or once: only the others' keys are
// hashed.
func (b *Builder) find(k key) int {
	if int(k.stack) == len(b.first) {
		b.first = push(b.first, uint32(len(b.samples)))
		return b.enter(k)
	}
	if n := b.first[k.stack]; b.samples[n].key == k {
		return int(n)
	}
	mask := uint64(len(b.slots) - 1)
	for i := b.hash(&k) & mask; ; i = (i + 1) & mask {
		n := b.slots[i]
		if n == 0 {
			at := b.enter(k)
			b.slots[i] = uint32(at + 1)
			if b.others++; b.others*2 > len(b.slots) {
				b.grow()
			}
			return at
		}
		if b.samples[n-1].key == k {
			return int(n - 1)
		}
	}
}

func (b *Builder) enter(k key) int {
	b.samples = push(b.samples, aggregate{key: k})
	return len(b.samples) - 1
}

func (b *Builder) grow() {
	old := b.slots
	b.slots = pages.Populate(make([]uint32, larger(len(old), 4)))
	mask := uint64(len(b.slots) - 1)
	for _, n := range old {
		if n == 0 {
			continue
		}
		i := b.hash(&b.samples[n-1].key) & mask
		for b.slots[i] != 0 {
			i = (i + 1) & mask
		}
		b.slots[i] = n
	}
}

// Profile returns the samples added so far, with names by n; a nil Namer leaves all functions unnamed.
func (b *Builder) Profile(n Namer, info Info) *Profile {
	l := b.locs
	mods, to := l.merged()
	p := &Profile{
		Info:     info,
		Modules:  mods,
		Mappings: slices.Clone(l.maps),
		Locs:     append(pages.Populate(make([]Loc, 0, len(l.locs)+len(l.locs)/4)), l.locs...), // room for inlined calls
		Stacks:   pages.Populate(make([]Stack, len(b.samples))),
		Totals:   b.totals,
	}
	for i := range p.Locs {
		p.Locs[i].Module = to[p.Locs[i].Module]
	}
	for i := range p.Mappings {
		p.Mappings[i].Module = to[p.Mappings[i].Module]
	}
	names := l.resolve(n)
	x := newExpander(p)
	for i := range names {
		x.loc(uint32(i), names[i])
	}
	stacks := x.stacks(b.stacks.stacks, b.upside)
	for i := range b.samples {
		a := &b.samples[i]
		p.Stacks[i] = Stack{
			Frames: stacks[a.stack], Comm: b.names[a.comm], PID: a.pid, TID: a.tid,
			Stop: a.stop, Event: a.event, Count: a.count, Period: a.period,
		}
	}
	return p
}

// A stackTable numbers lists of locations.
type stackTable struct {
	slots  []stackSlot // open addressing, a power of two
	block  int         // length of the last block of ids
	stacks [][]uint32
	free   []uint32 // the rest of the block that new stacks are cut from
	seed   [2]uint64
}

type stackSlot struct {
	hash uint32
	id   uint32 // 1 + the stack; 0: free
}

// intern returns the number of a list whose hash is h.
func (t *stackTable) intern(ids []uint32, h uint64) uint32 {
	mask := uint64(len(t.slots) - 1)
	for i := uint64(uint32(h)) & mask; ; i = (i + 1) & mask {
		s := &t.slots[i]
		if s.id == 0 {
			t.stacks = push(t.stacks, t.keep(ids))
			*s = stackSlot{uint32(h), uint32(len(t.stacks))}
			id := s.id - 1
			if len(t.stacks)*2 > len(t.slots) {
				t.grow()
			}
			return id
		}
		if s.hash == uint32(h) && slices.Equal(t.stacks[s.id-1], ids) {
			return s.id - 1
		}
	}
}

func (t *stackTable) grow() {
	old := t.slots
	t.slots = pages.Populate(make([]stackSlot, larger(len(old), 8)))
	mask := uint64(len(t.slots) - 1)
	for _, s := range old {
		if s.id == 0 {
			continue
		}
		i := uint64(s.hash) & mask
		for t.slots[i].id != 0 {
			i = (i + 1) & mask
		}
		t.slots[i] = s
	}
}

// keep copies ids into a block shared by many stacks.
func (t *stackTable) keep(ids []uint32) []uint32 {
	if len(ids) > len(t.free) {
		t.block = min(max(2*t.block, 1<<7), 1<<14)
		t.free = pages.Populate(make([]uint32, max(t.block, len(ids))))
	}
	s := t.free[:len(ids):len(ids)]
	t.free = t.free[len(ids):]
	copy(s, ids)
	return s
}
