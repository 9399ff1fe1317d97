package agent

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Outputs are an agent's targets. Each has a queue, and a sender that empties it. Outputs are safe for concurrent use.
type Outputs struct {
	grace time.Duration
	tell  func(t *Target, err error)

	mu      sync.Mutex
	all     []*output
	senders sync.WaitGroup
}

type output struct {
	queue *Queue
	end   context.CancelFunc // of its sender
}

// NewOutputs returns no outputs yet. grace is for what waits when an output ends: see Queue.Run. tell is called when a target does not take what
// it took before, or says another reason; with nil, when it takes it again.
func NewOutputs(grace time.Duration, tell func(*Target, error)) *Outputs {
	return &Outputs{grace: grace, tell: tell}
}

// Set makes these the targets, each with so many bytes of room. What waits for a target of the same name waits on, and is sent as the new one
// says. Targets that are no longer named end.
func (o *Outputs) Set(targets []*Target, room int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	was := o.all
	o.all = nil
	for _, t := range targets {
		if i := slices.IndexFunc(was, func(e *output) bool { return e.queue.Target().String() == t.String() }); i >= 0 {
			was[i].queue.change(t, room)
			o.all = append(o.all, was[i])
			was = slices.Delete(was, i, i+1)
			continue
		}
		ctx, end := context.WithCancel(context.Background())
		q := NewQueue(t, room)
		o.all = append(o.all, &output{q, end})
		o.senders.Go(func() { q.Run(ctx, o.grace, func(err error) { o.tell(q.Target(), err) }) })
	}
	for _, e := range was {
		e.end()
	}
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

// Close ends all senders, and waits for them.
func (o *Outputs) Close() {
	o.mu.Lock()
	for _, e := range o.all {
		e.end()
	}
	o.mu.Unlock()
	o.senders.Wait()
}
