package ebpf

import (
	"cmp"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Where there is no room for all tables, the kernel has those that most walks look for. The order of last searches would choose badly: programs that take
// turns want next the table that was searched longest ago, so nearly each search would load one. A walk that looks for a table, whether it is there or
// not, makes it wanted by one more. Wants fade: half are gone after wantHalf. A table comes in place of others if it is wanted clearly more than all of
// them together. What a processor remembers of a table's answers is no search: such a table is not needed.
const (
	lookEvery = time.Second
	wantHalf  = 30 * time.Second
	wantTimes = 1.5 // a table that comes is wanted as often as those that go, so many times,
	wantMore  = 1   // and by so much more
)

// maxIdle is how many tables that no space names stay in the kernel, for the next process of the same program.
var maxIdle = 1 << 10 // but for tests

// cost returns how many bytes of the kernel's memory the table takes: as many as it took, or at most.
func (l *table) cost() uint64 {
	if l.size > 0 {
		return l.size
	}
	n := (len(l.bytes) + valueBytes - 1) / valueBytes
	return (uint64(n*(valueSize+8)) + 1<<12 - 1) &^ (1<<12 - 1) // until Linux 6.3, the kernel counts keys, too, and pages
}

// room says whether there is room for a table. Tables that no space names make room. One for which there is none may come later: see fit.
func (t *tables) room(l *table) bool {
	fits := func() bool { return t.size+t.coming+l.cost() <= t.memory }
	if !fits() && t.idle > 0 && t.size-t.idleSize()+t.coming+l.cost() <= t.memory {
		t.dropIdle(fits)
	}
	if fits() {
		return true
	}
	t.look.CompareAndSwap(0, int64(monotonic()+uint64(lookEvery)))
	return false
}

// idleSize is how many bytes the tables take that no space names.
func (t *tables) idleSize() (size uint64) {
	for _, l := range t.all {
		if l.refs == 0 && l.in {
			size += l.size
		}
	}
	return size
}

// due says whether it is time to fit the tables again. Any goroutine may ask.
func (t *tables) due() bool {
	at := t.look.Load()
	return at != 0 && monotonic() >= uint64(at)
}

// fit keeps the tables within the memory that they may take, and brings those in that are wanted more than others.
func (t *tables) fit() {
	if t.idle > maxIdle+maxIdle/2 {
		t.dropIdle(func() bool { return t.idle <= maxIdle })
	}
	if t.size > t.memory { // they take more than cost says
		t.dropIdle(func() bool { return t.size <= t.memory })
		in, _ := t.claims()
		for i := 0; i < len(in) && t.size > t.memory; i++ {
			t.evict(in[i])
		}
	}
	if !t.due() {
		return
	}
	t.weigh(monotonic(), t.looks)
	in, out := t.claims()
	if len(out) == 0 {
		t.look.Store(0)
		return
	}
	t.look.Store(int64(t.looked + uint64(lookEvery)))
	come, leave := contend(in, out, int64(t.memory)-int64(t.size-t.idleSize()+t.coming))
	for _, l := range leave {
		t.evict(l)
	}
	for _, l := range come {
		t.load(l)
	}
}

// looks returns how many walks have looked for the table in a slot: this one, and those that had the slot before.
func (t *tables) looks(l *table) uint64 {
	var u [2]uint64 // struct use of c/unspool.bpf.c
	_ = t.uses.Lookup(l.slot, &u)
	return u[0]
}

// weigh adds the walks since it was called last to the wants of tables. It is called each second while a table is out. The first time after that, the
// walks count as if they had come at regular intervals.
func (t *tables) weigh(now uint64, looks func(*table) uint64) {
	halves := float64(now-t.looked) / float64(wantHalf)
	fade := math.Exp2(-halves)
	each := (1 - fade) / (halves * math.Ln2)
	for _, l := range t.all {
		l.want *= fade
		if l.slot != 0 && l.refs > 0 {
			n := looks(l)
			l.want += each * float64(n-l.walks)
			l.walks = n
		}
	}
	t.looked = now
}

// claims returns the tables that the kernel has, and those that it lacks, of those that spaces name: in ascending order of their wants.
func (t *tables) claims() (in, out []*table) {
	for _, l := range t.all {
		switch {
		case l.refs == 0 || l.slot == 0 || l.bad:
		case l.in:
			in = append(in, l)
		case !l.busy:
			out = append(out, l)
		}
	}
	for _, list := range [][]*table{in, out} {
		slices.SortFunc(list, func(a, b *table) int { return cmp.Compare(a.want, b.want) })
	}
	return in, out
}

// contend chooses which of the tables that are out come, and which of those that are in leave. Both are in ascending order of their wants. free is how
// many bytes are free; it is negative where there are too many. A table leaves only if there is no room without it.
func contend(in, out []*table, free int64) (come, leave []*table) {
	for _, l := range slices.Backward(out) {
		if l.want == 0 {
			break
		}
		n, room := 0, free-int64(l.cost())
		for ; room < 0 && n < len(in); n++ {
			room += int64(in[n].size)
		}
		if room < 0 {
			continue
		}
		var gone, stay []*table
		want := 0.0
		for _, i := range slices.Backward(in[:n]) {
			if size := int64(i.size); size <= room {
				room, stay = room-size, append(stay, i)
			} else {
				want, gone = want+i.want, append(gone, i)
			}
		}
		if !clearly(l.want, want) {
			continue
		}
		slices.Reverse(stay)
		come, leave = append(come, l), append(leave, gone...)
		in, free = append(stay, in[n:]...), room
	}
	return come, leave
}

// clearly says whether a want is clearly more than another.
func clearly(want, than float64) bool { return want > wantTimes*than+wantMore }

// dropIdle takes tables out of the kernel that no space names, those first that were named longest ago, until enough.
func (t *tables) dropIdle(enough func() bool) {
	if t.idle == 0 || enough() {
		return
	}
	var idle []*table
	for _, l := range t.all {
		if l.refs == 0 && l.in && !l.busy {
			idle = append(idle, l)
		}
	}
	slices.SortFunc(idle, func(a, b *table) int { return cmp.Compare(a.since, b.since) })
	for _, l := range idle {
		if enough() {
			break
		}
		t.withdraw(l)
		t.vacate(l)
	}
}

// evict takes a table out of the kernel that spaces name.
func (t *tables) evict(l *table) {
	t.withdraw(l)
	t.look.CompareAndSwap(0, int64(monotonic()+uint64(lookEvery)))
	t.track.mu.Lock()
	t.track.count.Evicted++
	t.track.mu.Unlock()
}

func monotonic() uint64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(ts.Nano())
}
