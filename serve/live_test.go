package serve

import (
	"fmt"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/profile"
)

// intervalOf is the profile of ten seconds, with so many samples of a function.
func intervalOf(begin time.Time, function string, samples uint64) *profile.Profile {
	p := &profile.Profile{
		Info:    profile.Info{Events: []profile.Event{{Name: "cpu-clock", Unit: "nanoseconds"}}, Start: begin, Duration: 10 * time.Second},
		Modules: []profile.Module{{Path: "/bin/x"}}, Files: []string{""}, Funcs: []profile.Func{{Name: function, Named: true}}, Locs: []profile.Loc{{Mapping: -1}},
		Stacks: []profile.Stack{{Frames: []uint32{0}, Comm: "sh", PID: 1, TID: 1, Count: samples, Period: samples}},
	}
	return p.Filter(func(*profile.Stack) bool { return true })
}

// TestLiveWindow: at each time, the page has the last intervals, of half of the window at least, and of all of it at most.
func TestLiveWindow(t *testing.T) {
	begin := time.Unix(1_700_000_000, 0)
	l := NewLive("here", 5*time.Minute, "")
	for i := range 100 {
		l.Add(intervalOf(begin.Add(time.Duration(i)*10*time.Second), fmt.Sprint("f", i), 1), profile.Place{Service: "web"})
		l.Add(intervalOf(begin.Add(time.Duration(i)*10*time.Second), fmt.Sprint("f", i), 2), profile.Place{Service: "db"})
		rec, err := l.recording()
		if err != nil {
			t.Fatal(err)
		}
		have := len(rec.Profile.Stacks) / 2
		if have > 30 || have < min(i+1, 15) || rec.Profile.Funcs[len(rec.Profile.Funcs)-1].Name != fmt.Sprint("f", i) || rec.Times.n != 3*have || rec.Profile.Totals.Samples != uint64(3*have) {
			t.Fatalf("after %d intervals: %d, of %d samples at %d times", i+1, have, rec.Profile.Totals.Samples, rec.Times.n)
		}
		if first := begin.Add(time.Duration(i+1-have) * 10 * time.Second); !rec.Profile.Start.Equal(first) || rec.Profile.Duration != time.Duration(have)*10*time.Second || rec.Places[0].Service != "web" || rec.Places[1].Service != "db" {
			t.Fatalf("after %d intervals: from %v for %v, places %q", i+1, rec.Profile.Start, rec.Profile.Duration, rec.Places[:2])
		}
	}
}

// TestLiveClock: when the clock goes back or forth, the page has as many intervals as before.
func TestLiveClock(t *testing.T) {
	l := NewLive("here", 5*time.Minute, "")
	begin := time.Unix(1_700_000_000, 0)
	for i, hours := range []int{0, -1, 5, 4, 4} {
		for k := range 50 {
			l.Add(intervalOf(begin.Add(time.Duration(hours)*time.Hour+time.Duration(50*i+k)*10*time.Second), fmt.Sprint("f", i), 1), profile.Place{Service: "web"})
			if k%5 != 0 {
				continue
			}
			rec, err := l.recording()
			if err != nil {
				t.Fatal(err)
			}
			if have := int(rec.Profile.Totals.Samples); have > 30 || have < min(50*i+k+1, 15) && k > 15 {
				t.Fatalf("%d hours, after %d intervals: %d", hours, k, have)
			}
		}
	}
}

// TestLive: the address leads to a page that does not change; opened again later, it leads to a newer one. Both need the token.
func TestLive(t *testing.T) {
	l := NewLive("here", 5*time.Minute, "secret")
	h := httptest.NewServer(l)
	defer h.Close()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Jar: jar}
	get := func(path string, want int) (body, at string) {
		t.Helper()
		r, err := client.Get(h.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		var b strings.Builder
		if err := r.Write(&b); err != nil {
			t.Fatal(err)
		}
		if r.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, r.Status, want)
		}
		return b.String(), r.Request.URL.Path
	}
	for _, path := range []string{"/", "/?token=x", "/live/1/", "/live/1/api/info", "/pprof/"} {
		get(path, 403)
	}
	if len(l.shown) > 0 {
		t.Errorf("%d pages were made for somebody without the token; want none", len(l.shown))
	}
	if body, _ := get("/?token=secret", 503); !strings.Contains(body, "no samples yet") {
		t.Errorf("without profiles: %s", body)
	}
	l.Add(intervalOf(time.Unix(1_700_000_000, 0), "first", 3), profile.Place{Service: "web"})
	body, at := get("/", 200)
	if at != "/live/1/" || !strings.Contains(body, "<title>unspool</title>") {
		t.Errorf("at %s: %s", at, body)
	}
	age := func() { // as if time had passed
		l.mu.Lock()
		l.shown[len(l.shown)-1].made = time.Now().Add(-leastNew)
		l.mu.Unlock()
	}
	l.Add(intervalOf(time.Unix(1_700_000_010, 0), "second", 4), profile.Place{Service: "web"})
	if _, at := get("/", 200); at != "/live/1/" {
		t.Errorf("at once again: at %s", at)
	}
	age()
	if _, at := get("/", 200); at != "/live/2/" {
		t.Errorf("later: at %s", at)
	}
	for path, want := range map[string]string{"/live/1/api/graph?view=calls": `"all":[3,0]`, "/live/2/api/graph?view=calls": `"all":[7,0]`, "/live/2/api/info": `"live":true`, "/live/2/app.js": "unspool", "/pprof/top": "first"} {
		if body, _ := get(path, 200); !strings.Contains(body, want) {
			t.Errorf("%s has no %s: %s", path, want, body)
		}
	}
	for range maxShown {
		age()
		get("/", 200)
	}
	get("/live/1/api/info", 410)
	if _, at := get("/live/1/", 200); at != "/live/5/" {
		t.Errorf("an old page leads to %s", at)
	}
	l.Add(intervalOf(time.Now().Add(forgotten), "late", 1), profile.Place{Service: "web"})
	if len(l.shown) > 0 {
		t.Errorf("%d pages are kept", len(l.shown))
	}
}
