package agent

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/unspool/unspool/agent/export"
)

// A Queue holds what one target has still to take. Its memory is bounded: where there is no room, the oldest requests go, and are counted. Put
// never waits for the target.
type Queue struct {
	mu     sync.Mutex
	target *Target
	limit  int64
	items  []*export.Request
	bytes  int64
	flying *export.Request // it is being sent, and has perhaps had to make room: what has become of it is not known yet
	stats  QueueStats
	tell   func(error)
	more   chan struct{} // there are items; of one element
	closed bool

	pause  time.Duration   // after the last failure; 0: there was none
	waited time.Duration   // before the last attempt
	gap    time.Duration   // the longest between two requests that have waited for the target to come back
	until  time.Time       // there are such gaps
	faulty *export.Request // the one that may be sent some times only
	faults int             // how often it was
}

// QueueStats says what has become of the requests of a queue.
type QueueStats struct {
	Sent, SentBytes uint64
	Refused         uint64 // by the target: it will not take them, however often they are sent, or has not, as often as they may be
	Dropped         uint64 // for want of room, or at the end
	Retries         uint64 // attempts that the target asked to repeat
	Waiting         int    // requests
	Bytes           int64  // of these
	Last            time.Time
	Err             error // of the last attempt; nil: it was taken
}

// plus returns the sums with what has become of the requests of a later queue.
func (s QueueStats) plus(o *QueueStats) QueueStats {
	s.Sent, s.SentBytes = s.Sent+o.Sent, s.SentBytes+o.SentBytes
	s.Refused, s.Dropped, s.Retries = s.Refused+o.Refused, s.Dropped+o.Dropped, s.Retries+o.Retries
	s.Waiting, s.Bytes, s.Err = s.Waiting+o.Waiting, s.Bytes+o.Bytes, o.Err
	if o.Last.After(s.Last) {
		s.Last = o.Last
	}
	return s
}

const (
	// DefaultQueue is the memory of a queue: for an engine that is away, some hours of one machine's profiles.
	DefaultQueue = 16 << 20

	leastPause = time.Second     // after the first failure; doubled with each
	mostPause  = 2 * time.Minute // then
	mostGap    = 5 * time.Second // between two requests that have waited
)

// Target is where the requests go.
func (q *Queue) Target() *Target {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.target
}

// change gives the queue another target, which takes requests as the first one made them, and another room.
func (q *Queue) change(t *Target, limit int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.target, q.limit = t, limit
	for q.bytes > q.limit {
		q.drop()
	}
}

// NewQueue returns a queue for a target with room for so many bytes.
func NewQueue(t *Target, limit int64) *Queue {
	return &Queue{target: t, limit: limit, more: make(chan struct{}, 1)}
}

// Put adds a request. One that is larger than all of the room is dropped.
func (q *Queue) Put(r *export.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	size := int64(len(r.Body))
	if q.closed || size > q.limit {
		q.stats.Dropped++
		return
	}
	for q.bytes+size > q.limit {
		q.drop()
	}
	q.items = append(q.items, r)
	q.bytes += size
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// drop makes room. A request that is being sent is counted when it is known whether the target has taken it.
func (q *Queue) drop() {
	if q.items[0] != q.flying {
		q.stats.Dropped++
	}
	q.remove()
}

// remove removes the oldest request.
func (q *Queue) remove() {
	q.bytes -= int64(len(q.items[0].Body))
	q.items[0] = nil
	q.items = q.items[1:]
}

// Stats returns what has become of the requests so far.
func (q *Queue) Stats() QueueStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.stats
	s.Waiting, s.Bytes = len(q.items), q.bytes
	return s
}

// Run sends requests, the oldest first, until ctx ends. What is being sent then is not broken off, so that it does not arrive twice. Then Run tries
// each of those left once. All that may take as long as grace; what is left after it is dropped. Run calls tell when a target does not take what
// it took before, or says another reason; with nil, when it takes it again.
func (q *Queue) Run(ctx context.Context, grace time.Duration, tell func(error)) {
	q.tell = tell
	sending, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(grace):
			cancel()
		case <-sending.Done():
		}
	})()
	for ctx.Err() == nil {
		r := q.head()
		if r == nil {
			select {
			case <-q.more:
			case <-ctx.Done():
			}
			continue
		}
		wait := q.send(sending, r)
		if wait < 0 {
			if q.gap > 0 && time.Now().Before(q.until) {
				sleep(ctx, rand.N(q.gap))
			}
			continue
		}
		q.pause = min(max(2*q.pause, leastPause), mostPause)
		// From half of the pause to all of it: machines that lost the engine together do not come back together, nor at the moment that it has named to all.
		q.waited = max(wait+rand.N(min(wait/2, mostPause)+1), q.pause/2+rand.N(q.pause/2+1))
		sleep(ctx, q.waited)
	}
	for r := q.head(); r != nil && sending.Err() == nil; r = q.head() {
		if q.send(sending, r) >= 0 {
			break // who does not take one now does not take the others
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for len(q.items) > 0 {
		q.drop()
	}
}

// sleep waits, at most until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func (q *Queue) head() *export.Request {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return nil
	}
	return q.items[0]
}

// lastWait is for a target to return when it is too late to send.
const lastWait = 200 * time.Millisecond

// sendTo sends a request. A target that does not return when ctx has ended is left alone: a pipe that nobody reads, or a disk that never answers.
func sendTo(ctx context.Context, t *Target, r *export.Request) (export.Receipt, error) {
	type answer struct {
		receipt export.Receipt
		err     error
	}
	answers := make(chan answer, 1)
	go func() {
		receipt, err := t.Send(ctx, r)
		answers <- answer{receipt, err}
	}()
	select {
	case a := <-answers:
		return a.receipt, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-answers:
		return a.receipt, a.err
	case <-time.After(lastWait):
		return export.Receipt{}, &export.Later{Err: errors.New("it did not take a profile in time")}
	}
}

// again says whether a request may be sent once more after such an answer.
func (q *Queue) again(r *export.Request, l *export.Later) bool {
	if l.Times == 0 {
		return true
	}
	if q.faulty != r {
		q.faulty, q.faults = r, 0
	}
	q.faults++
	return q.faults < l.Times
}

// send tries to send the oldest request once. It returns for how long the target asks to wait before it is tried again; less than 0 if it has
// not to be.
func (q *Queue) send(ctx context.Context, r *export.Request) time.Duration {
	q.mu.Lock()
	q.flying = r
	target := q.target
	q.mu.Unlock()
	receipt, err := sendTo(ctx, target, r)
	q.mu.Lock()
	q.flying = nil
	here := len(q.items) > 0 && q.items[0] == r // it may have had to make room meanwhile
	was := q.stats.Err
	q.stats.Err = err
	defer func() {
		q.mu.Unlock()
		if (was == nil) != (err == nil) || err != nil && was.Error() != err.Error() {
			q.tell(err)
		}
	}()
	var later *export.Later
	switch {
	case err == nil:
		q.stats.Sent++
		q.stats.SentBytes += uint64(receipt.Bytes)
		q.stats.Last = time.Now()
	case errors.As(err, &later) && q.again(r, later):
		if here {
			q.stats.Retries++
		} else {
			q.stats.Dropped++
		}
		return later.After
	default:
		q.stats.Refused++
	}
	if later == nil { // else the next one may find the same
		if q.pause > 0 {
			// Many machines come back in the first second. What else they have is sent within about the time for which this one has just waited.
			q.until = time.Now().Add(q.waited)
			q.gap = min(q.waited/time.Duration(max(len(q.items), 1)), mostGap)
		}
		q.pause = 0
	}
	if here {
		q.remove()
	}
	return -1
}
