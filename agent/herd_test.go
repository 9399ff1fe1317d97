package agent

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/arch"
)

// A herd is agents that send to one engine, in virtual time. Its engine answers as a test says.
type herd struct {
	*engine
	agents []*Agent
	queues []*Queue
}

func (h *herd) Encode(b *export.Batch) (*export.Request, error) {
	return &export.Request{Body: []byte(b.Label("node"))}, nil
}

// newHerd starts n agents with intervals of that length at the same moment. Each interval has one sample. They end with ctx.
func newHerd(ctx context.Context, n int, every time.Duration, answer func(string) error) *herd {
	h := &herd{engine: &engine{answer: answer}}
	for range n {
		o := NewOutputs(time.Second, func(*Target, error) {})
		o.Set([]*Target{{Exporter: h, Kind: "test"}}, DefaultQueue)
		var a *Agent
		a = newAgent(Options{Settings: Settings{Interval: every}, Outputs: o, Lost: func() uint64 { // at the end of each interval
			a.Add(sample(1<<30, "short", arch.Addr(7)))
			return 0
		}}, time.Now())
		h.agents, h.queues = append(h.agents, a), append(h.queues, o.Queues()...)
		go func() {
			a.Run(ctx, context.Background())
			o.Close()
		}()
	}
	return h
}

// until sets a moment that the engine's answers depend on.
func (h *herd) until(moment *time.Time, length time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*moment = time.Now().Add(length)
}

// most returns how many tries there were from one moment to another, and in the second that had most of them.
func (h *herd) most(from, to time.Time) (all, most int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seconds := make([]int, to.Sub(from)/time.Second+1)
	for _, at := range h.tries {
		if !at.Before(from) && at.Before(to) {
			all++
			seconds[at.Sub(from)/time.Second]++
		}
	}
	return all, slices.Max(seconds)
}

// TestHerd: 500 agents that start together, that get another interval together, whose engine is away for 30 seconds, or asks all of them to come back at one
// moment, do not come together. No second has more than twice the mean of an interval, or three times where the mean is only 16. After the engine was
// away, each agent has four profiles to send, and no second has more than four times the mean.
func TestHerd(t *testing.T) {
	const agents, every = 500, 10 * time.Second
	var away, busy time.Time // until then
	check := func(t *testing.T, h *herd, what string, from time.Time, length time.Duration, mean, times int) {
		t.Helper()
		synctest.Wait()
		all, most := h.most(from, from.Add(length))
		t.Logf("%s: %d tries in %v, at most %d a second; an interval's mean is %d", what, all, length, most, mean)
		if all == 0 || most > times*mean {
			t.Errorf("%s: a second has %d tries; want at most %d", what, most, times*mean)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		away, busy = time.Time{}, time.Time{}
		ctx, cancel := context.WithCancel(t.Context())
		h := newHerd(ctx, agents, every, func(string) error {
			now := time.Now()
			switch {
			case now.Before(away):
				return &export.Later{Err: errors.New("connection refused")}
			case now.Before(busy):
				return &export.Later{After: busy.Sub(now), Err: errors.New("429 Too Many Requests")}
			}
			return nil
		})
		mean := agents / int(every/time.Second)
		now := time.Now()
		time.Sleep(2 * every)
		check(t, h, "a start together", now, 2*every, mean, 2)

		h.until(&away, 30*time.Second)
		time.Sleep(time.Until(away))
		time.Sleep(time.Minute)
		check(t, h, "after 30 s away", away, time.Minute, mean, 4)

		h.until(&busy, 30*time.Second)
		time.Sleep(time.Until(busy))
		time.Sleep(time.Minute)
		check(t, h, "after a moment that the engine has named", busy, time.Minute, mean, 4)

		for _, c := range []struct {
			interval time.Duration
			times    int
		}{{every / 5, 2}, {3 * every, 3}} {
			now = time.Now()
			for _, a := range h.agents {
				a.Change(Settings{Interval: c.interval})
			}
			time.Sleep(3 * c.interval)
			check(t, h, "an interval of "+c.interval.String(), now, 3*c.interval, agents/int(c.interval/time.Second), c.times)
		}
		cancel()
		synctest.Wait()
		time.Sleep(2 * time.Second)
		for _, q := range h.queues {
			if s := q.Stats(); s.Waiting > 0 || s.Dropped > 0 {
				t.Fatalf("%+v", s)
			}
		}
	})
}
