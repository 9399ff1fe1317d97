package agent

import (
	"context"
	"fmt"
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
	grace time.Duration
	tell  func(t *Target, err error)

	mu      sync.Mutex
	all     []*output
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
		o.senders.Go(func() { q.Run(ctx, o.grace, tell) })
		if s := t.symbolizer(); s != nil {
			out.files = debuginfo.New(s)
			o.senders.Go(func() { out.files.Run(ctx, o.tellFiles(q)) })
		}
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
	for _, e := range o.all {
		e.end()
	}
	o.mu.Unlock()
	o.senders.Wait()
}
