package source

import (
	"slices"

	"github.com/unspool/unspool/internal/pages"
)

// An entry is a raw record that waits for its turn.
type entry struct {
	time     uint64
	raw      []byte
	buf      *Buffer
	pid, tid int32 // of a sample
}

// A queue puts records in time order. A recorder reads the buffers of all processors in turn and marks the end of
// each round: what it reads in one round is not older than what it read in the round before the last. So at the
// end of a round, all records up to the newest one of the round before are due. Memory stays bounded by two
// rounds, and where a file has no rounds, by maxEntries and maxHeld: then the older half is taken to be due.
// Records of equal time keep the order in which they were written.
type queue struct {
	pending []entry
	spare   []entry
	held    int    // bytes that pending keeps from being reused
	newest  uint64 // of all records so far
	due     uint64 // newest at the end of the last round
}

const (
	maxEntries = 1 << 20
	maxHeld    = 128 << 20
)

// add queues a record. full says that it is time to call half.
func (q *queue) add(e entry) (full bool) {
	if len(q.pending) == cap(q.pending) { // append makes long slices a quarter longer, and copies each entry four times
		q.pending = slices.Grow(q.pending, max(len(q.pending), 1<<9))
	}
	q.pending = append(q.pending, e)
	q.newest = max(q.newest, e.time)
	if e.buf != nil {
		q.held += len(e.raw)
	}
	return len(q.pending) >= maxEntries || q.held >= maxHeld
}

// round ends a round and returns the records that are due, in time order. They are valid until the next call to
// round, half or all.
func (q *queue) round() []entry {
	q.sort()
	n, _ := slices.BinarySearchFunc(q.pending, q.due, func(e entry, due uint64) int {
		if e.time <= due {
			return -1
		}
		return 1
	})
	q.due = q.newest
	return q.take(n)
}

// half returns the older half of the records, in time order.
func (q *queue) half() []entry {
	q.sort()
	return q.take((len(q.pending) + 1) / 2)
}

// all returns all records, in time order.
func (q *queue) all() []entry {
	q.sort()
	return q.take(len(q.pending))
}

// take removes the first n records. What stays is moved to the other slice.
func (q *queue) take(n int) []entry {
	out := q.pending[:n]
	clear(q.spare) // else what was sorted there keeps buffers from being freed
	q.spare = append(q.spare[:0], q.pending[n:]...)
	q.pending, q.spare = q.spare, q.pending
	clear(q.spare[n:]) // which pending has
	q.held = 0
	for i := range q.pending {
		if q.pending[i].buf != nil {
			q.held += len(q.pending[i].raw)
		}
	}
	return out
}

// sort is a stable natural merge sort: pending is a few ascending runs, one for each processor and round.
func (q *queue) sort() {
	var runs []int // where each run after the first starts
	p := q.pending
	for i := 1; i < len(p); i++ {
		if p[i].time < p[i-1].time {
			runs = append(runs, i)
		}
	}
	if len(runs) == 0 {
		return
	}
	if len(p) > cap(q.spare) {
		q.spare = pages.Populate(make([]entry, len(p)))
	}
	q.spare = q.spare[:len(p)]
	from, to := p, q.spare
	for len(runs) > 0 {
		next := runs[:0]
		lo := 0
		for i := 0; i <= len(runs); i += 2 {
			if i == len(runs) { // a last run without a partner
				copy(to[lo:], from[lo:])
				break
			}
			mid, hi := runs[i], len(p)
			if i+1 < len(runs) {
				hi = runs[i+1]
			}
			merge(to[lo:hi], from[lo:mid], from[mid:hi])
			if hi < len(p) {
				next = append(next, hi)
			}
			lo = hi
			if hi == len(p) {
				break
			}
		}
		runs = next
		from, to = to, from
	}
	q.pending, q.spare = from, to
}

func merge(to, a, b []entry) {
	for i := range to {
		if len(b) == 0 || len(a) > 0 && a[0].time <= b[0].time {
			to[i], a = a[0], a[1:]
		} else {
			to[i], b = b[0], b[1:]
		}
	}
}
