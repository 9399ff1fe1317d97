package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unspool/unspool/agent/export"
)

// An engine is an exporter that answers as a test says.
type engine struct {
	mu     sync.Mutex
	answer func(body string) error
	takes  time.Duration // to answer
	took   []string
	told   []string // by the queue
	tries  []time.Time
}

func (e *engine) Encode(*export.Batch) (*export.Request, error) { return nil, errors.New("not here") }

func (e *engine) Send(ctx context.Context, r *export.Request) (export.Receipt, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tries = append(e.tries, time.Now())
	select {
	case <-time.After(e.takes):
	case <-ctx.Done():
		return export.Receipt{}, &export.Later{Err: ctx.Err()}
	}
	if err := e.answer(string(r.Body)); err != nil {
		return export.Receipt{}, err
	}
	e.took = append(e.took, string(r.Body))
	return export.Receipt{Bytes: len(r.Body)}, nil
}

func (e *engine) tell(err error) { e.told = append(e.told, fmt.Sprint(err)) }

func request(i int) *export.Request { return &export.Request{Body: fmt.Appendf(nil, "%04d", i)} }

func newEngine(answer func(body string) error, limit int64) (*engine, *Queue) {
	e := &engine{answer: answer}
	return e, NewQueue(&Target{Exporter: e, Kind: "test"}, limit)
}

// While an engine is away, a queue keeps the newest requests that it has room for, and sends them in order when the engine is back.
func TestQueueDropsOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := true
		e, q := newEngine(func(string) error {
			if away {
				return &export.Later{Err: errors.New("away")}
			}
			return nil
		}, 10*4)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { q.Run(ctx, time.Second, e.tell); close(done) }()
		for i := range 25 {
			q.Put(request(i))
			time.Sleep(10 * time.Second)
		}
		if s := q.Stats(); s.Waiting != 10 || s.Bytes != 40 || s.Dropped != 15 || s.Sent != 0 || s.Err == nil {
			t.Errorf("while away: %+v", s)
		}
		// The pauses grow to two minutes, with jitter.
		for i, at := range e.tries[1:] {
			pause := at.Sub(e.tries[i])
			if most := min(leastPause<<i, mostPause); pause < most/2 || pause > most {
				t.Errorf("try %d came after %v, want %v to %v", i+1, pause, most/2, most)
			}
		}
		e.mu.Lock()
		away = false
		e.mu.Unlock()
		time.Sleep(2 * mostPause)
		synctest.Wait()
		want := ""
		for i := 15; i < 25; i++ {
			want += fmt.Sprintf("%04d ", i)
		}
		got := ""
		for _, s := range e.took {
			got += s + " "
		}
		if s := q.Stats(); got != want || s.Waiting != 0 || s.Bytes != 0 || s.Sent != 10 || s.Err != nil {
			t.Errorf("took %s\nwant %s\n%+v", got, want, s)
		}
		cancel()
		<-done
		if fmt.Sprint(e.told) != "[away (try again) <nil>]" {
			t.Errorf("told %q", e.told)
		}
	})
}

// An engine's own wish to wait is heard. What it refuses is not sent again, and holds up nothing.
func TestQueueAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := false
		e, q := newEngine(func(body string) error {
			switch {
			case body == "0001":
				return &export.Refused{Status: "400 Bad Request"}
			case body == "0002" && !asked:
				asked = true
				return &export.Later{After: 7 * time.Minute, Err: errors.New("429 Too Many Requests")}
			}
			return nil
		}, 100)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { q.Run(ctx, time.Second, e.tell); close(done) }()
		for i := range 4 {
			q.Put(request(i))
		}
		time.Sleep(7*time.Minute - time.Second)
		if s := q.Stats(); s.Sent != 1 || s.Refused != 1 || s.Retries != 1 || s.Waiting != 2 {
			t.Errorf("before the time that the engine asked for: %+v", s)
		}
		time.Sleep(mostPause + 2*time.Second + mostGap) // it is not the only one that was asked
		synctest.Wait()
		if s := q.Stats(); s.Sent != 3 || s.Refused != 1 || s.Waiting != 0 {
			t.Errorf("after it: %+v, took %v", s, e.took)
		}
		q.Put(&export.Request{Body: make([]byte, 101)})
		if s := q.Stats(); s.Dropped != 1 || s.Bytes != 0 {
			t.Errorf("larger than the room: %+v", s)
		}
		cancel()
		<-done
	})
}

// A request that makes the engine fail is sent five times, and holds up the others for some seconds. An engine that fails all requests costs few.
func TestQueueFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault, tried := &export.Later{Times: 5, Err: errors.New("500 Internal Server Error")}, 0
		all := false
		e, q := newEngine(func(body string) error {
			switch {
			case body == "0001":
				if tried++; tried == 3 {
					return &export.Later{Err: errors.New("503 Service Unavailable")} // is none of the five
				}
				return fault
			case all:
				return fault
			}
			return nil
		}, 1000)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { q.Run(ctx, time.Second, e.tell); close(done) }()
		for i := range 4 {
			q.Put(request(i))
		}
		time.Sleep(leastPause * (1 + 2 + 4 + 8 + 16 + 16))
		synctest.Wait()
		if s := q.Stats(); s.Sent != 3 || s.Refused != 1 || s.Retries != 5 || tried != 6 || s.Waiting != 0 {
			t.Errorf("one that makes the engine fail, tried %d times: %+v", tried, s)
		}
		e.mu.Lock()
		all = true
		e.mu.Unlock()
		for i := range 60 {
			q.Put(request(100 + i))
			time.Sleep(10 * time.Second)
		}
		e.mu.Lock()
		all = false
		e.mu.Unlock()
		time.Sleep(2 * mostPause)
		synctest.Wait()
		// After the pauses of the first (7.5 s at least) and the second (116 s), each takes four of a minute at least.
		if s := q.Stats(); s.Refused < 3 || s.Refused > 4 || s.Sent != 3+60+1-s.Refused || s.Waiting != 0 {
			t.Errorf("an engine that fails for ten minutes: %+v", s)
		}
		cancel()
		<-done
	})
}

// At the end, what is left is sent, unless the engine does not take it; then it is counted.
func TestQueueEnds(t *testing.T) {
	for _, c := range []struct {
		answer        error
		sent, dropped uint64
	}{{nil, 3, 0}, {&export.Later{Err: errors.New("away")}, 0, 3}} {
		synctest.Test(t, func(t *testing.T) {
			e, q := newEngine(func(string) error { return c.answer }, 100)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			for i := range 3 {
				q.Put(request(i))
			}
			q.Run(ctx, time.Second, e.tell)
			q.Put(request(4))
			if s := q.Stats(); s.Sent != c.sent || s.Dropped != c.dropped+1 || s.Waiting != 0 {
				t.Errorf("answer %v: %+v", c.answer, s)
			}
		})
	}
}

// What is being sent at the end arrives once; it is broken off when the time of grace is over.
func TestQueueInFlight(t *testing.T) {
	for _, c := range []struct {
		takes         time.Duration
		sent, dropped uint64
		tries         int
	}{{time.Second, 2, 0, 2}, {time.Minute, 0, 2, 1}} {
		synctest.Test(t, func(t *testing.T) {
			e, q := newEngine(func(string) error { return nil }, 100)
			e.takes = c.takes
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(c.takes/2, cancel)
			q.Put(request(0))
			q.Put(request(1))
			q.Run(ctx, 5*time.Second, e.tell)
			if s := q.Stats(); s.Sent != c.sent || s.Dropped != c.dropped || len(e.tries) != c.tries {
				t.Errorf("an answer takes %v: %+v after %d tries", c.takes, s, len(e.tries))
			}
		})
	}
}

// A target that never returns, such as a pipe that nobody reads, does not hold up the end.
func TestQueueStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reads := make(chan struct{})
		defer close(reads)
		e, q := newEngine(func(string) error { <-reads; return nil }, 100)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		q.Put(request(0))
		q.Put(request(1))
		began := time.Now()
		q.Run(ctx, 2*time.Second, e.tell)
		if s, took := q.Stats(), time.Since(began); s.Dropped != 2 || s.Sent != 0 || took != time.Minute+2*time.Second+lastWait {
			t.Errorf("ended after %v: %+v", took, s)
		}
	})
}

// What has to make room while it is being sent is counted once: as sent, or as dropped.
func TestQueueRoomInFlight(t *testing.T) {
	for _, c := range []struct {
		answer        error
		sent, dropped uint64
	}{{nil, 2, 1}, {&export.Later{Err: errors.New("away")}, 0, 3}, {&export.Refused{Status: "400 Bad Request"}, 0, 1}} {
		synctest.Test(t, func(t *testing.T) {
			e, q := newEngine(func(string) error { return c.answer }, 4)
			e.takes = time.Minute
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(90*time.Second, cancel) // the last one is being sent, or waits
			for i := range 3 {
				time.AfterFunc(time.Duration(i)*time.Second, func() { q.Put(request(i)) })
			}
			q.Run(ctx, time.Hour, e.tell)
			if s := q.Stats(); s.Sent != c.sent || s.Dropped != c.dropped || s.Sent+s.Dropped+s.Refused != 3 {
				t.Errorf("answer %v: %+v", c.answer, s)
			}
		})
	}
}

// TestQueueCatchesUp: after an absence, a machine with many places sends all that waits, and then all as it comes.
func TestQueueCatchesUp(t *testing.T) {
	for _, gone := range []time.Duration{4 * time.Second, 7250 * time.Millisecond, 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			away := false
			e, q := newEngine(func(string) error {
				if away {
					return &export.Later{Err: errors.New("503")}
				}
				return nil
			}, 4*300) // three intervals of 100 places
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { q.Run(ctx, time.Second, e.tell); close(done) }()
			is := func(is bool) {
				e.mu.Lock()
				defer e.mu.Unlock()
				away = is
			}
			put := func(intervals int) {
				for range intervals {
					for i := range 100 {
						q.Put(request(i))
					}
					time.Sleep(10 * time.Second)
				}
			}
			put(2)
			is(true)
			go func() { time.Sleep(gone); is(false) }()
			put(int(gone/(10*time.Second)) + 30) // it comes back after two minutes at most, and then takes as long again
			before := q.Stats()
			put(60)
			synctest.Wait()
			if after := q.Stats(); after.Dropped > before.Dropped || after.Sent-before.Sent < 5900 || after.Waiting > 100 {
				t.Errorf("away for %v: later, in ten minutes of 6,000 requests: %+v; before %+v", gone, after, before)
			}
			cancel()
			<-done
		})
	}
}
