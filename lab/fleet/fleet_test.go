package fleet

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unspool/unspool/agent"
	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// A fleet is agents that send to one collector.
type fleet struct {
	cancel  context.CancelFunc
	members []*member
	running sync.WaitGroup

	mu    sync.Mutex
	tries []time.Time // when requests were sent, also those without success
	began time.Time
}

// A member is one agent of a fleet. It is its own exporter: it notes when requests are sent.
type member struct {
	export.Exporter
	fleet   *fleet
	host    string
	agent   *agent.Agent
	outputs *agent.Outputs
	queue   *agent.Queue

	mu   sync.Mutex
	made map[int64]int // profiles by their time
}

func (m *member) Send(ctx context.Context, r *export.Request) (export.Receipt, error) {
	m.fleet.mu.Lock()
	m.fleet.tries = append(m.fleet.tries, time.Now())
	m.fleet.mu.Unlock()
	return m.Exporter.Send(ctx, r)
}

// lastWords is the daemon's time for what is still to be sent at the end, and more, for all agents end at once.
const lastWords = 20 * time.Second

// A namer knows no names.
type namer struct{}

func (namer) User(*unwind.Module, []uint64, []profile.Name) {}
func (namer) Kernel([]uint64, []profile.Name)               {}

// sampleOf is a sample of a place that has no process any more.
func sampleOf(place int) *profile.Sample {
	pid := int32(1<<30 + place)
	return &profile.Sample{PID: pid, TID: pid, Comm: fmt.Sprint(place), Period: 1_000_000_000 / 19, HasUser: true, User: []unwind.Frame{{PC: arch.Addr(0x1000), Exact: true}}, Stop: unwind.Outermost}
}

// hostName is the name of a member's machine: all have the same length.
func hostName(i int) string { return fmt.Sprintf("fleet-node-%06d", i) }

// start starts so many agents at the same moment, with intervals of that length and queues of room bytes. wrap changes their exporter, and says how many
// profiles an interval has; it may be nil.
func start(t *testing.T, n int, to string, every time.Duration, room func(i int) int64, wrap func(i int, e export.Exporter) (export.Exporter, int)) *fleet {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &fleet{cancel: cancel}
	var run []func()
	for i := range n {
		target, err := agent.Open(to, export.Options{})
		if err != nil {
			t.Fatal(err)
		}
		m := &member{fleet: f, host: hostName(i), made: map[int64]int{}, Exporter: target.Exporter}
		places := 1
		if wrap != nil {
			m.Exporter, places = wrap(i, target.Exporter)
		}
		target.Exporter = m
		m.outputs = agent.NewOutputs(lastWords, func(*agent.Target, error) {})
		m.outputs.Set([]*agent.Target{target}, room(i))
		m.queue = m.outputs.Queues()[0]
		o := agent.Options{
			Settings: agent.Settings{Interval: every}, Outputs: m.outputs, Names: namer{},
			Info: profile.Info{Host: m.host, Events: []profile.Event{profile.NewEvent("cpu-clock")}},
			Lost: func() uint64 { // is asked when an interval ends: that is when its samples come
				for p := range places {
					m.agent.Add(sampleOf(p))
				}
				return 0
			},
			Log: func(err error) { t.Error(err) },
			Show: func(b *export.Batch) {
				m.mu.Lock()
				m.made[b.Profile.Start.UnixNano()]++
				m.mu.Unlock()
			},
		}
		f.members = append(f.members, m)
		run = append(run, func() {
			m.agent = agent.New(o, f.began)
			m.agent.Run(ctx, context.Background())
			m.outputs.Close()
		})
	}
	f.began = time.Now()
	for _, r := range run {
		f.running.Go(r)
	}
	return f
}

// stop ends the agents. What they cannot send any more counts as dropped.
func (f *fleet) stop() {
	f.cancel()
	f.running.Wait()
}

// sum adds up what has become of all requests, and how many there were.
func (f *fleet) sum() (made uint64, s agent.QueueStats) {
	for _, m := range f.members {
		m.mu.Lock()
		for _, n := range m.made {
			made += uint64(n)
		}
		m.mu.Unlock()
		q := m.queue.Stats()
		s.Sent, s.SentBytes, s.Refused, s.Dropped, s.Retries = s.Sent+q.Sent, s.SentBytes+q.SentBytes, s.Refused+q.Refused, s.Dropped+q.Dropped, s.Retries+q.Retries
		s.Waiting, s.Bytes = s.Waiting+q.Waiting, s.Bytes+q.Bytes
	}
	return made, s
}

// drained waits until nothing waits any more.
func (f *fleet) drained(t *testing.T, patience time.Duration) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		_, s := f.sum()
		if s.Waiting == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %v, there still wait %d requests", patience, s.Waiting)
		}
	}
}

// most returns how many requests were sent in a time, and in that part of it, as long as unit, that had most.
func (f *fleet) most(from, to time.Time, unit time.Duration) (all, most int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	parts := make([]int, to.Sub(from)/unit+1)
	for _, at := range f.tries {
		if !at.Before(from) && at.Before(to) {
			all++
			parts[at.Sub(from)/unit]++
		}
	}
	return all, slices.Max(parts)
}

// TestFleet: 100 agents send to a collector that goes away for two seconds, is full for two, and then takes all. All profiles arrive but those that full queues have dropped and
// counted. Queues are bounded, and agents that started together do not send together.
func TestFleet(t *testing.T) {
	oracle.Long(t)
	const agents, every, small = 100, 2 * time.Second, 600 // bytes: room for one request
	oracle.Engine(t, "collector")                          // builds it before the clock runs
	for _, scheme := range []string{"grpc", "http"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			c := newCollector(t, scheme, true)
			c.start(t, "")
			f := start(t, agents, "otlp="+scheme+"://"+c.at, every, func(i int) int64 {
				if i%2 == 1 {
					return small
				}
				return agent.DefaultQueue
			}, nil)
			defer f.stop()
			late := held(2 * every)
			all, most := f.most(f.began, f.began.Add(2*every), every/4)
			t.Logf("%d requests in two intervals, at most %d in a quarter of one; the machine held up the test for %v at most", all, most, late)
			if mean := agents / 4; late < every/20 && (all < agents || most > 2*mean) { // else the agents send when they may run, and TestHerd of the agent judges alone
				t.Errorf("%d requests in two intervals, want %d; at most %d in a quarter of one, want %d", all, 2*agents, most, 2*mean)
			}
			for s := (agent.QueueStats{}); s.Sent < agents; time.Sleep(20 * time.Millisecond) { // at last, go test ends it
				_, s = f.sum()
			}
			files := []string{c.stop(t)}
			bounded := func(length time.Duration) {
				for away := time.Now(); time.Since(away) < length; time.Sleep(50 * time.Millisecond) {
					for i, m := range f.members {
						if s := m.queue.Stats(); i%2 == 1 && s.Bytes > small {
							t.Fatalf("a queue of %d bytes holds %d", small, s.Bytes)
						}
					}
				}
			}
			bounded(2 * time.Second)
			c.start(t, full)
			bounded(2 * time.Second)
			_, before := f.sum()
			asked := 0
			for _, m := range f.members {
				if err := m.queue.Stats().Err; err != nil && strings.Contains(err.Error(), "memory") {
					asked++
				}
			}
			if asked < agents/10 {
				t.Errorf("a full collector has asked only %d agents to come again", asked)
			}
			files = append(files, c.stop(t)) // it has taken some before it looked at its memory
			c.start(t, "")
			time.Sleep(every)
			f.drained(t, time.Minute)
			f.stop()
			files = append(files, c.stop(t))
			arrived := map[string]map[int64]bool{}
			for _, path := range files {
				arrivals(t, path, arrived)
			}
			for i, m := range f.members {
				s := m.queue.Stats()
				missing := uint64(0)
				for at := range m.made {
					if !arrived[m.host][at] {
						missing++
					}
				}
				// The collector may have taken one, and gone before it could say so.
				if missing > s.Dropped || s.Refused > 0 || s.Waiting > 0 || i%2 == 0 && s.Dropped > 0 || len(m.made) < 3 {
					t.Errorf("%s: of %d profiles, %d have not arrived: %+v", m.host, len(m.made), missing, s)
				}
			}
			made, s := f.sum()
			t.Logf("%d profiles: %d sent, %d dropped, %d tried again; before the collector took all, %d dropped, and it had asked %d agents to come again", made, s.Sent, s.Dropped, s.Retries, before.Dropped, asked)
			if made != s.Sent+s.Dropped || before.Dropped == 0 || before.Waiting == 0 || s.Retries == 0 {
				t.Errorf("%d profiles, %+v; while the collector was away %+v", made, s, before)
			}
		})
	}
}

// held sleeps, and returns for how long the machine had something else to do at a time.
func held(length time.Duration) (most time.Duration) {
	const nap = 10 * time.Millisecond
	for end := time.Now().Add(length); time.Now().Before(end); {
		began := time.Now()
		time.Sleep(nap)
		most = max(most, time.Since(began)-nap)
	}
	return most
}

// arrivals reads which profiles a collector has written: of which machine, and from when.
func arrivals(t *testing.T, path string, to map[string]map[int64]bool) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for in := json.NewDecoder(bufio.NewReader(f)); ; {
		var r struct {
			ResourceProfiles []struct {
				Resource struct {
					Attributes []struct {
						Key         string
						KeyStrindex int
						Value       struct {
							StringValue         string
							StringValueStrindex int
						}
					}
				}
				ScopeProfiles []struct {
					Profiles []struct {
						TimeUnixNano json.Number
					}
				}
			}
			Dictionary struct{ StringTable []string }
		}
		if err := in.Decode(&r); err == io.EOF {
			return
		} else if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for _, resource := range r.ResourceProfiles {
			host := ""
			for _, a := range resource.Resource.Attributes {
				if a.KeyStrindex > 0 {
					a.Key = r.Dictionary.StringTable[a.KeyStrindex]
				}
				if a.Key != "host.name" {
					continue
				}
				host = a.Value.StringValue
				if a.Value.StringValueStrindex > 0 {
					host = r.Dictionary.StringTable[a.Value.StringValueStrindex]
				}
			}
			for _, scope := range resource.ScopeProfiles {
				for _, p := range scope.Profiles {
					at, err := p.TimeUnixNano.Int64()
					if err != nil || host == "" {
						t.Fatalf("%s: a profile of %q, from %q", path, host, p.TimeUnixNano)
					}
					if to[host] == nil {
						to[host] = map[int64]bool{}
					}
					to[host][at] = true
				}
			}
		}
	}
}
