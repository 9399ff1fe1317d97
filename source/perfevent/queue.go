package perfevent

import (
	"cmp"
	"encoding/binary"
	"io"
	"sync"
	"sync/atomic"

	"github.com/unspool/unspool/source"
)

const (
	chunkSize  = 256 << 10 // holds four of the largest records
	smallChunk = 128 << 10 // holds two, where little may wait
)

// memory says how many bytes a recording takes for what waits.
type memory struct {
	backlog int   // of all that waits for the consumer, before rings are left to fill
	shrink  int64 // of samples with copies, until copies get half as large
	none    int64 // of samples with copies, from which on copies are emptyCopy bytes
	rings   int   // of the rings of all processors
	chunk   int   // of what is held as long as one of the records in it
}

// smallMemory is a limit below which a recording takes an eighth of what it would take of another limit: samples get lost before the program does.
const smallMemory = 256 << 20

// memoryOf returns the bounds of a program that lives by a limit of so many bytes: from 4 GiB on nothing is less.
func memoryOf(limit uint64) memory {
	parts := uint64(8)
	if limit < smallMemory {
		parts = 1
	}
	part := func(most, share uint64) uint64 { return max(min(most, limit/share*parts), 1<<17) }
	m := memory{backlog: int(part(64<<20, 64)), shrink: int64(part(shrinkCopies, 384)), rings: int(part(allRing, 64))}
	m.none = int64(m.backlog) / 4 * 3
	if m.chunk = chunkSize; m.backlog < 16*chunkSize {
		m.chunk = smallChunk
	}
	return m
}

// A batch is a run of whole records in one buffer, which it holds.
type batch struct {
	b   []byte
	buf *source.Buffer
}

// A backlog holds the batches that have left the rings and wait for the consumer.
type backlog struct {
	mu      sync.Mutex
	changed sync.Cond
	batches []batch
	bytes   int
	most    int // bytes, before rings are left to fill
	closed  bool
	err     error // what to say at the end, other than io.EOF
	over    bool  // nobody takes batches any more
	lost    func(samples uint64)
}

func newBacklog(most int) *backlog {
	q := &backlog{most: most}
	q.changed.L = &q.mu
	q.lost = func(uint64) {}
	return q
}

func (q *backlog) put(b batch) {
	q.mu.Lock()
	if q.over {
		q.mu.Unlock()
		q.lose(b)
		return
	}
	q.batches = append(q.batches, b)
	q.bytes += len(b.b)
	q.mu.Unlock()
	q.changed.Broadcast()
}

// abandon loses what waits, and all that is put from now on.
func (q *backlog) abandon() {
	q.mu.Lock()
	all := q.batches
	q.over, q.batches, q.bytes = true, nil, 0
	q.mu.Unlock()
	q.changed.Broadcast()
	for _, b := range all {
		q.lose(b)
	}
}

// lose counts the samples of a batch, and gives its memory back.
func (q *backlog) lose(b batch) {
	n := uint64(0)
	for rest := b.b; len(rest) > 0; {
		var raw []byte
		if raw, rest = cutRecord(rest); binary.LittleEndian.Uint32(raw) == source.RecordSample {
			n++
		}
	}
	b.buf.Release()
	q.lost(n)
}

// take waits for a batch. After the last, and when all are abandoned, it returns io.EOF, or the error the queue was closed with.
func (q *backlog) take() (batch, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.batches) == 0 {
		if q.over {
			return batch{}, io.EOF
		}
		if q.closed {
			if q.err != nil {
				return batch{}, q.err
			}
			return batch{}, io.EOF
		}
		q.changed.Wait()
	}
	b := q.batches[0]
	q.batches[0] = batch{}
	q.batches = q.batches[1:]
	q.bytes -= len(b.b)
	if q.bytes < q.most {
		q.changed.Broadcast()
	}
	return b, nil
}

// room waits until there is room, or until stop returns true after a wake.
func (q *backlog) room(stop func() bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.bytes >= q.most && !stop() {
		q.changed.Wait()
	}
}

// wake makes room ask stop again.
func (q *backlog) wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changed.Broadcast()
}

func (q *backlog) close(err error) {
	q.mu.Lock()
	q.closed, q.err = true, err
	q.mu.Unlock()
	q.changed.Broadcast()
}

// A writer fills chunks with records and puts them into a backlog. Chunks come back when all their records have
// been delivered.
type writer struct {
	to         *backlog
	chunk      int // bytes of a chunk; 0: chunkSize
	pool       sync.Pool
	copies     atomic.Int64 // bytes of samples with copies of stacks, in chunks that somebody holds
	cur        *chunk       // held
	start, end int          // of what has been written and not put
}

// A chunk is a buffer, and how much of it is samples with copies of stacks.
type chunk struct {
	*source.Buffer
	copies int64
}

// fits says whether the current chunk has room for a record.
func (w *writer) fits(n int) bool { return w.cur != nil && w.end+n <= len(w.cur.Bytes) }

// space returns room for one record.
func (w *writer) space(n int) []byte {
	if !w.fits(n) {
		w.close()
		if c, ok := w.pool.Get().(*chunk); ok {
			c.Hold()
			w.cur = c
		} else {
			c := &chunk{}
			c.Buffer = source.NewBuffer(cmp.Or(w.chunk, chunkSize), func(*source.Buffer) {
				w.copies.Add(-c.copies)
				c.copies = 0
				w.pool.Put(c)
			})
			w.cur = c
		}
		w.start, w.end = 0, 0
	}
	w.end += n
	return w.cur.Bytes[w.end-n : w.end : w.end]
}

// pending returns the records written since the last flush.
func (w *writer) pending() []byte {
	if w.cur == nil {
		return nil
	}
	return w.cur.Bytes[w.start:w.end]
}

// flush puts what has been written.
func (w *writer) flush() {
	if b := w.pending(); len(b) > 0 {
		w.cur.Hold()
		w.to.put(batch{b, w.cur.Buffer})
		w.start = w.end
	}
}

// copied says that so many bytes of the current chunk are a sample with a copy of a stack.
func (w *writer) copied(n int) {
	w.cur.copies += int64(n)
	w.copies.Add(int64(n))
}

// close drops the current chunk.
func (w *writer) close() {
	if w.cur != nil {
		w.flush()
		w.cur.Release()
		w.cur = nil
	}
}
