package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/unspool/unspool/agent/debuginfo"
	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/profile"
)

// Outputs are an agent's targets. Each has a queue, and a sender that empties it. A target that names code itself has a sender of files, too. Outputs
// are safe for concurrent use.
type Outputs struct {
	Gone func(*Target, QueueStats) // is told what has become of the profiles of an output that Set has ended; nil, or set before the first Set

	grace time.Duration
	tell  func(t *Target, err error)

	mu      sync.Mutex
	all     []*output
	ending  []*Queue              // Set has ended them, and they may still send what waits
	gone    map[string]QueueStats // of those that have ended, by their target's name
	closed  bool                  // there are no new outputs any more
	senders sync.WaitGroup
}

type output struct {
	queue *Queue
	files *debuginfo.Uploader // nil: no files are sent
	end   context.CancelFunc  // of its senders
}

// NewOutputs returns no outputs yet. grace is for what waits when an output ends: see Queue.Run. tell is called when a target does not take what
// it took before, or says another reason; with nil, when it takes it again.
func NewOutputs(grace time.Duration, tell func(*Target, error)) *Outputs {
	return &Outputs{grace: grace, tell: tell, gone: map[string]QueueStats{}}
}

// Set makes these the targets, each with so many bytes of room. What waits for a target of the same name waits on, and is sent as the new one
// says. Targets that are no longer named end: see Gone. After Close, Set does nothing.
func (o *Outputs) Set(targets []*Target, room int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed { // the agent ends while it reads its configuration again
		return
	}
	was := o.all
	o.all = nil
	for _, t := range targets {
		if i := slices.IndexFunc(was, func(e *output) bool { return e.queue.Target().String() == t.String() }); i >= 0 {
			was[i].queue.change(t, room)
			if was[i].files != nil {
				was[i].files.Change(t.symbolizer())
			}
			o.all = append(o.all, was[i])
			was = slices.Delete(was, i, i+1)
			continue
		}
		ctx, end := context.WithCancel(context.Background())
		q := NewQueue(t, room)
		out := &output{queue: q, end: end}
		o.all = append(o.all, out)
		tell := func(err error) { o.tell(q.Target(), err) }
		o.senders.Go(func() {
			q.Run(ctx, o.grace, tell)
			o.over(q)
		})
		if s := t.symbolizer(); s != nil {
			out.files = debuginfo.New(s)
			o.senders.Go(func() { out.files.Run(ctx, o.tellFiles(q)) })
		}
	}
	for _, e := range was {
		o.ending = append(o.ending, e.queue)
		e.end()
	}
}

// over keeps the counts of a queue that Set has ended.
func (o *Outputs) over(q *Queue) {
	o.mu.Lock()
	i := slices.Index(o.ending, q)
	if i < 0 {
		o.mu.Unlock()
		return
	}
	t, s := q.Target(), q.Stats()
	o.ending = slices.Delete(o.ending, i, i+1)
	counts := s
	counts.Last = time.Time{} // nobody waits for the next one
	o.gone[t.String()] = o.gone[t.String()].plus(&counts)
	o.mu.Unlock()
	if o.Gone != nil {
		o.Gone(t, s)
	}
}

// put puts a request into a queue. One that has ended meanwhile drops it.
func (o *Outputs) put(q *Queue, r *export.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if slices.Contains(o.ending, q) || slices.ContainsFunc(o.all, func(e *output) bool { return e.queue == q }) {
		q.Put(r)
		return
	}
	name := q.Target().String()
	o.gone[name] = o.gone[name].plus(&QueueStats{Dropped: 1})
}

// Queues returns those of the targets.
func (o *Outputs) Queues() (out []*Queue) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.all {
		out = append(out, e.queue)
	}
	return out
}

// Stats returns what has become of the requests of each target, by its name, also of those that are no longer named.
func (o *Outputs) Stats() map[string]QueueStats {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[string]QueueStats{}
	maps.Copy(out, o.gone)
	add := func(q *Queue) {
		name, s := q.Target().String(), q.Stats()
		out[name] = out[name].plus(&s)
	}
	for _, q := range o.ending {
		add(q)
	}
	for _, e := range o.all {
		add(e.queue)
	}
	return out
}

// tellFiles tells why a target does not take files. That it takes them again says nothing of its profiles.
func (o *Outputs) tellFiles(q *Queue) func(error) {
	return func(err error) {
		if err != nil {
			o.tell(q.Target(), fmt.Errorf("files with names: %w", err))
		}
	}
}

// named says whether a target takes the names that are found here.
func (o *Outputs) named() bool {
	return slices.ContainsFunc(o.Queues(), func(q *Queue) bool { return q.Target().Names == export.Here })
}

// offer tells those targets of a profile's files that are sent them.
func (o *Outputs) offer(p *profile.Profile) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.all {
		if e.files != nil {
			e.files.Offer(p)
		}
	}
}

// Files returns what has become of the files of each target that is sent some, by its name.
func (o *Outputs) Files() map[string]debuginfo.Stats {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[string]debuginfo.Stats{}
	for _, e := range o.all {
		if e.files != nil {
			out[e.queue.Target().String()] = e.files.Stats()
		}
	}
	return out
}

// Close ends all senders, and waits for them.
func (o *Outputs) Close() {
	o.mu.Lock()
	o.closed = true
	for _, e := range o.all {
		e.end()
	}
	o.mu.Unlock()
	o.senders.Wait()
}
