package agent

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unspool/unspool/agent/export"
)

// metrics returns the lines of /metrics that have a text.
func metrics(o *Outputs, text string) (out []string) {
	w := httptest.NewRecorder()
	(&Outside{Agent: newAgent(Options{}, time.Now()), Outputs: o, Kernel: func() (Kernel, bool) { return Kernel{}, false }}).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.Contains(line, text) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// TestGone: what waits for an output that Set ends is counted as dropped, is said, and stays in /metrics, also when an output of its name begins again.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := &engine{takes: time.Second, answer: func(string) error { return &export.Later{Err: errors.New("away")} }}
		one, two := &Target{Exporter: away, Kind: "parca", URL: "http://p"}, &Target{Exporter: away, Kind: "parca", URL: "http://p?names=none"}
		o := NewOutputs(2*time.Second, func(*Target, error) {})
		defer o.Close()
		told := map[string]uint64{}
		o.Gone = func(target *Target, s QueueStats) { told[target.String()] += s.Dropped }
		const line = `unspool_dropped_total{target="parca=http://p"} `
		check := func(when, want string) {
			t.Helper()
			synctest.Wait()
			if got := strings.Join(metrics(o, line), "; "); got != line+want {
				t.Errorf("%s: /metrics has %q, want %q", when, got, line+want)
			}
		}
		o.Set([]*Target{one}, 1<<20)
		old := o.Queues()[0]
		for i := range 5 {
			o.put(old, request(i))
		}
		synctest.Wait()
		check("an engine is away", "0")
		o.Set([]*Target{two}, 1<<20)
		check("the output ends", "0")
		time.Sleep(3 * time.Second)
		check("it has ended", "5")
		o.put(old, request(5)) // an agent that was about to
		check("a profile comes late", "6")
		if told[one.String()] != 5 || len(told) != 1 {
			t.Errorf("told %v, want 5 of %s", told, one)
		}
		o.Set([]*Target{one}, 1<<20)
		check("it begins again", "6")
		o.put(o.Queues()[0], request(6))
		synctest.Wait()
		o.Set(nil, 1<<20)
		o.Set([]*Target{one}, 1<<20)
		check("it ends and begins at once", "6")
		time.Sleep(3 * time.Second)
		check("the one before has ended", "7")
		if told[one.String()] != 6 || told[two.String()] != 0 || len(told) != 2 {
			t.Errorf("told %v, want 6 of %s and none of %s", told, one, two)
		}
	})
}

// TestCloseSet: a Set that comes when Close has been called starts no sender, and Close returns.
func TestCloseSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := &engine{takes: time.Hour}
		one, two := &Target{Exporter: silent, Kind: "parca", URL: "http://p"}, &Target{Exporter: silent, Kind: "pyroscope", URL: "http://q"}
		o := NewOutputs(2*time.Second, func(*Target, error) {})
		o.Set([]*Target{one}, 1<<20)
		o.put(o.Queues()[0], request(0))
		synctest.Wait()
		closed := make(chan bool)
		go func() { o.Close(); close(closed) }()
		time.Sleep(time.Second)
		o.Set([]*Target{one, two}, 1<<20)
		if q := o.Queues(); len(q) != 1 || q[0].Target() != one {
			t.Errorf("a closed agent has %d outputs, want the one that it had", len(q))
		}
		select {
		case <-closed:
		case <-time.After(time.Minute):
			t.Fatal("Close waits for more than a minute, want two seconds")
		}
	})
}
