package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// ask sends a request with headers, "Host" among them, and returns the answer with its body.
func ask(t testing.TB, h *httptest.Server, method, path string, headers map[string]string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, h.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range headers {
		if req.Header.Set(k, v); k == "Host" {
			req.Host = v
		}
	}
	r, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r, string(b)
}

// TestGuard refuses what a page from elsewhere could ask for, and everything but GET.
func TestGuard(t *testing.T) {
	rec, _ := record(10, 1)
	h := start(t, nil, rec)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(h.URL, "http://"))
	for _, c := range []struct {
		method, path string
		headers      map[string]string
		want         int
	}{
		{"GET", "/", nil, 200},
		{"GET", "/", map[string]string{"Host": "localhost:" + port}, 200},
		{"GET", "/", map[string]string{"Host": "[::1]:" + port}, 200},
		{"GET", "/api/info", map[string]string{"Host": "127.0.0.1:" + port}, 200},
		{"GET", "/", map[string]string{"Host": "127.0.0.1"}, 403},
		{"GET", "/", map[string]string{"Host": "127.0.0.1:1"}, 403},
		{"GET", "/", map[string]string{"Host": "127.0.0.2:" + port}, 403},
		{"GET", "/api/info", map[string]string{"Host": "evil.example:" + port}, 403},
		{"GET", "/pprof/top", map[string]string{"Host": "evil.example:" + port}, 403},
		{"GET", "/api/info", map[string]string{"Host": "localhost." + port}, 403},
		{"GET", "/api/info", map[string]string{"Origin": h.URL}, 200},
		{"GET", "/api/info", map[string]string{"Origin": "http://evil.example"}, 403},
		{"GET", "/api/info", map[string]string{"Origin": "null"}, 403},
		{"GET", "/api/info", map[string]string{"Origin": "https://127.0.0.1:" + port}, 403},
		{"GET", "/api/info", map[string]string{"Sec-Fetch-Site": "same-origin"}, 200},
		{"GET", "/api/info", map[string]string{"Sec-Fetch-Site": "none"}, 200},
		{"GET", "/api/info", map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}, 403},
		{"GET", "/api/info", map[string]string{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403},
		{"GET", "/", map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200},
		{"GET", "/", map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403},
		{"POST", "/", nil, 405},
		{"HEAD", "/", nil, 405},
		{"PUT", "/api/info", nil, 405},
		{"DELETE", "/pprof/", nil, 405},
		{"OPTIONS", "/api/info", nil, 405},
		{"GET", "/nothing", nil, 404},
		{"GET", "/api/", nil, 404},
		{"GET", "/index.html", nil, 404},
		{"GET", "/../server.go", nil, 307}, // to /server.go,
		{"GET", "/%2e%2e/server.go", nil, 404},
		{"GET", "/..%2f..%2fetc/passwd", nil, 404},
		{"GET", "/pprof/source?f=main", nil, 404},
		{"GET", "/pprof/disasm?f=main", nil, 404},
		{"GET", "/pprof/graph", nil, 404},
		{"GET", "/pprof/saveconfig?config=x", nil, 404},
		{"GET", "/pprof/deleteconfig?config=x", nil, 404},
		{"GET", "/pprof/top", nil, 200},
		{"GET", "/pprof/flamegraph", nil, 200},
		{"GET", "/pprof/peek?f=.", nil, 200},
		{"GET", "/api/graph", nil, 400},
		{"GET", "/api/graph?view=callers", nil, 400},
		{"GET", "/api/graph?view=callers&fn=99999", nil, 400},
		{"GET", "/api/graph?view=callers&fn=-1", nil, 400},
		{"GET", "/api/graph?view=calls&path=..", nil, 400},
		{"GET", "/api/graph?view=calls&path=1.-2", nil, 400},
		{"GET", "/api/graph?view=calls&width=x", nil, 400},
		{"GET", "/api/graph?view=calls&width=2000000000&side=7", nil, 200},
		{"GET", "/api/graph?view=calls&search=(", nil, 400},
		{"GET", "/api/graph?view=calls&group=x", nil, 400},
		{"GET", "/api/top?with=(", nil, 400},
		{"GET", "/api/top?match=(", nil, 400},
		{"GET", "/api/top?with=" + strings.Repeat("a", maxRegexp+1), nil, 400},
		{"GET", "/api/top?with=" + strings.Repeat("%5C.", maxText), nil, 200},
		{"GET", "/api/top?with=" + url.QueryEscape("(((a{100}){100}){100})"), nil, 400},
		{"GET", "/api/top?offset=2000000000&limit=2000000000", nil, 200},
		{"GET", "/api/top?pid=x", nil, 400},
		{"GET", "/api/top?lo=18446744073709551615&hi=18446744073709551615", nil, 200},
		{"GET", "/api/timeline?from=18446744073709551615&to=0&bins=2000000000", nil, 200},
		{"GET", "/api/timeline?from=x", nil, 400},
		{"GET", "/api/source?fn=0", nil, 400},
	} {
		r, body := ask(t, h, c.method, c.path, c.headers)
		if r.StatusCode != c.want {
			t.Errorf("%s %s %v: %s, want %d\n%.200s", c.method, c.path, c.headers, r.Status, c.want, body)
		}
		csp := r.Header.Get("Content-Security-Policy")
		want := policy
		if strings.HasPrefix(c.path, "/pprof/") && c.want == 200 {
			want = pprofPolicy
		}
		if csp != want || r.Header.Get("X-Content-Type-Options") != "nosniff" || r.Header.Get("Referrer-Policy") != "no-referrer" || r.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s: headers %v", c.method, c.path, r.Header)
		}
	}
	if _, body := ask(t, h, "GET", "/", nil); strings.Contains(body, "<script>") || strings.Contains(body, "style=") {
		t.Errorf("the page has a script (%v) or a style (%v) of its own, which its policy forbids; want false, false\n%.2000s",
			strings.Contains(body, "<script>"), strings.Contains(body, "style="), body)
	}
}

// hostile is a profile whose every name wants to be markup.
func hostile() *Recording {
	evil := "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>\u202e\x00"
	p := &profile.Profile{
		Info:    profile.Info{Command: evil, Host: evil, Events: []profile.Event{{Name: evil, Unit: evil}}},
		Modules: []profile.Module{{Path: "/etc/" + evil}},
		Funcs:   []profile.Func{{Name: evil, Named: true}, {Name: "__proto__"}, {Name: ""}},
		Files:   []string{"", "/etc/shadow"},
		Locs:    []profile.Loc{{Func: 0, Mapping: -1, How: profile.HowUnknown, File: 1, Line: 1}, {Func: 1, Mapping: -1}, {Func: 2, Mapping: -1}},
		Stacks: []profile.Stack{
			{Frames: []uint32{0, 1, 2}, Comm: evil, PID: 1, TID: 1, Count: 3, Period: 3},
			{Frames: []uint32{1}, Comm: "constructor", PID: 1, TID: 2, Stop: unwind.BadCFA, Count: 1, Period: 1 << 63},
			{Comm: "", Stop: unwind.Truncated, Count: 1, Period: 1},
		},
	}
	p = p.Filter(func(*profile.Stack) bool { return true })
	times := &Times{}
	for i, s := range p.Stacks {
		for range s.Count {
			times.Add(uint64(i)*^uint64(0)/3, i, 1)
		}
	}
	return &Recording{Profile: p, Times: times, Local: true}
}

// TestHostile keeps names out of markup: JSON escapes what HTML would read, and no answer is HTML.
func TestHostile(t *testing.T) {
	h := start(t, nil, hostile(), hostile())
	for _, q := range []string{"info", "graph?view=calls", "graph?view=inverted&search=.", "graph?view=callers&fn=1", "top", "timeline?bins=3&limit=5"} {
		r, body := ask(t, h, "GET", "/api/"+q, nil)
		if r.StatusCode != 200 || r.Header.Get("Content-Type") != "application/json" || strings.ContainsAny(body, "<>") || !json.Valid([]byte(body)) {
			t.Errorf("%s: %s, %s\n%.300s", q, r.Status, r.Header.Get("Content-Type"), body)
		}
	}
	if r, body := ask(t, h, "GET", "/pprof/flamegraph", nil); r.StatusCode != 200 || strings.Contains(body, "<img src=x") || strings.Contains(body, "</script><script>document") {
		t.Errorf("pprof: %s", r.Status)
	}
}

// TestLoading answers while the profile is being read.
func TestLoading(t *testing.T) {
	reading, read := make(chan struct{}), make(chan struct{})
	s := New(Options{Inputs: []Input{{Name: "slow.data", Read: func(_ context.Context, progress func(Progress)) (*Recording, error) {
		progress(Progress{Done: 5, Total: 10, Samples: 3})
		close(reading)
		<-read
		rec, _ := record(10, 1)
		return rec, nil
	}}}})
	h := httptest.NewServer(s)
	defer h.Close()
	loaded := make(chan error)
	go func() { loaded <- s.Load(context.Background()) }()
	<-reading
	if r, body := ask(t, h, "GET", "/", nil); r.StatusCode != 200 || !strings.Contains(body, "app.js") {
		t.Errorf("the page: %s", r.Status)
	}
	var st status
	get(t, h, "/api/status", &st)
	if st.State != "reading" || st.Progress.Done != 5 || st.Name != "slow.data" {
		t.Errorf("status %+v", st)
	}
	for _, path := range []string{"/api/info", "/api/top", "/pprof/top"} {
		if r, _ := ask(t, h, "GET", path, nil); r.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: %s", path, r.Status)
		}
	}
	close(read)
	if err := <-loaded; err != nil {
		t.Fatal(err)
	}
	if get(t, h, "/api/status", &st); st.State != "ready" {
		t.Errorf("status %+v", st)
	}

	s = New(Options{Inputs: []Input{{Name: "bad.data", Read: func(context.Context, func(Progress)) (*Recording, error) {
		return nil, errors.New("bad.data: damaged")
	}}}})
	if err := s.Load(t.Context()); err == nil || err.Error() != "bad.data: damaged" || s.status.State != "failed" {
		t.Errorf("error %v, status %+v", err, s.status)
	}
}

// TestCancel ends computations that nobody waits for, and bounds how many there are.
func TestCancel(t *testing.T) {
	rec, _ := record(2000, 1)
	s := New(Options{Inputs: []Input{{"a", func(context.Context, func(Progress)) (*Recording, error) { return rec, nil }}}})
	if err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	defer h.Close()
	for range cap(s.busy) {
		s.busy <- struct{}{} // all are taken
	}
	ctx, cancel := context.WithCancel(t.Context())
	req, _ := http.NewRequestWithContext(ctx, "GET", h.URL+"/api/top", nil)
	done := make(chan error)
	go func() {
		_, err := http.DefaultClient.Do(req)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a request that was taken back: %v", err)
	}
	for range cap(s.busy) {
		<-s.busy
	}
	over, stop := context.WithCancel(t.Context())
	stop()
	w, err := s.weights(t.Context(), s.data, filter{group: "comm", pid: -1, tid: -1, event: -1})
	if err != nil {
		t.Fatal(err)
	}
	if g := newGraph(over, w, &graphQuery{view: "calls", width: 1000}); g != nil {
		t.Errorf("a graph that nobody waits for is made: %d nodes", len(g.Nodes)/nodeSize)
	}
	if x := s.data.weigh(over, w.t, &filter{group: "comm"}); x != nil {
		t.Errorf("sums that nobody waits for are made: of %d stacks", len(x.stacks))
	}
	if x, err := newTop(over, s.data, w, &topQuery{}); x != nil || err == nil {
		t.Errorf("a table that nobody waits for is made: %v, error %v; want false, and an error", x != nil, err)
	}
	if x := newTree(over, s.data, nil, func(float64) {}); x != nil {
		t.Errorf("a tree that nobody waits for is made: %d nodes of %d stacks", len(x.label), len(x.leaf))
	}
}

// TestConcurrent asks for many views at once, as an impatient person does.
func TestConcurrent(t *testing.T) {
	rec, _ := record(2000, 1)
	h := start(t, nil, rec)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			q := []string{"graph?view=calls&width=900&pid=%d", "top?tid=%d&group=none", "timeline?limit=9&pid=%d", "graph?view=inverted&group=thread&without=f%d"}[i%4]
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, "GET", h.URL+"/api/"+fmt.Sprintf(q, 100+i%3), nil)
			if i%5 == 0 {
				cancel()
			}
			r, err := http.DefaultClient.Do(req)
			if err != nil {
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				return
			}
			defer r.Body.Close()
			if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != 200 {
				t.Errorf("%s: %s %v", req.URL, r.Status, err)
			}
		})
	}
	wg.Wait()
}

// TestTimesLarge keeps periods that need more than 32 bits, and chunks apart.
func TestTimesLarge(t *testing.T) {
	var ts Times
	for i := range 3*chunkSize + 5 {
		ts.Add(uint64(i)*10, i%7, uint64(i)*(1<<20))
	}
	n := 0
	ts.each(100, 2*chunkSize*10, func() bool { return false }, func(c *chunk, first int, all bool) {
		for i := range c.n {
			if !all && (c.time[i] < 100 || c.time[i] >= 2*chunkSize*10) {
				continue
			}
			n++
			if got, want := ts.periodAt(c, first, i), uint64(first+i)*(1<<20); got != want {
				t.Fatalf("sample %d: period %d, want %d", first+i, got, want)
			}
		}
	})
	if n != 2*chunkSize-10 {
		t.Errorf("%d samples in range, want %d", n, 2*chunkSize-10)
	}
}

// FuzzQuery asks anything of every address: it is answered or refused.
func FuzzQuery(f *testing.F) {
	small, _ := record(50, 1)
	var servers []*Server
	for _, recs := range [][]*Recording{{small}, {hostile(), small}} {
		var o Options
		for _, r := range recs {
			o.Inputs = append(o.Inputs, Input{"x", func(context.Context, func(Progress)) (*Recording, error) { return r, nil }})
		}
		s := New(o)
		if err := s.Load(context.Background()); err != nil {
			f.Fatal(err)
		}
		servers = append(servers, s)
	}
	for _, q := range []string{
		"graph?view=calls&width=100&path=1.2", "graph?view=callers&fn=1&search=a", "graph?view=callees&fn=2&order=heavy&side=1", "graph?view=inverted&group=thread",
		"top?sort=delta&dir=up&limit=5&offset=3&match=f", "timeline?from=5&to=18446744073709551615&bins=9&limit=3", "top?lo=1&hi=9&by=periods&pid=1&tid=2&event=0&comm=a&with=b&without=c",
	} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, q string) {
		u, err := url.Parse("http://127.0.0.1:80/api/" + q)
		if err != nil || u.Host != "127.0.0.1:80" {
			return
		}
		for _, s := range servers {
			r := httptest.NewRequest("GET", "/", nil)
			r.URL, r.Host = u, u.Host
			r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}))
			w := httptest.NewRecorder()
			if s.ServeHTTP(w, r); w.Code >= 500 {
				t.Errorf("%s: %d %s", q, w.Code, w.Body)
			}
		}
	})
}

// TestToken answers those who know the token, by the address that has it or the cookie that it leaves, and nobody else.
func TestToken(t *testing.T) {
	rec, _ := record(10, 1)
	s := New(Options{Token: NewToken(), Inputs: []Input{{"a", func(context.Context, func(Progress)) (*Recording, error) { return rec, nil }}}})
	if err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	defer h.Close()
	token, key := s.opts.Token, pprofKey(s.opts.Token)
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(h.URL, "http://"))
	if len(token) < 26 || token == NewToken() || strings.Contains(key, token) {
		t.Fatalf("token %q, key %q", token, key)
	}
	cookie := "unspool-" + port + "=" + token
	for _, c := range []struct {
		path, cookie string
		want         int
	}{
		{"/?token=" + token, "", 200},
		{"/?token=" + token[1:], "", 403},
		{"/?token=" + token + "A", "", 403},
		{"/?token=", "", 403},
		{"/", "", 403},
		{"/", cookie, 200},
		{"/?token=wrong", cookie, 200},
		{"/", "unspool-" + port + "=; " + cookie, 200},
		{"/", "unspool-" + port + "=" + key, 403},
		{"/", "unspool-1=" + token, 403},
		{"/app.js", "", 403},
		{"/app.js", cookie, 200},
		{"/names.js", "", 403},
		{"/nothing", "", 403},
		{"/api/info?token=" + token, "", 403},
		{"/api/status", "", 403},
		{"/api/info", "", 403},
		{"/api/info", cookie, 200},
		{"/api/source?fn=0", "", 403},
		{"/pprof/", "", 403},
		{"/pprof/top", "", 403},
		{"/pprof/top?f=x", cookie, 303},
		{"/pprof/" + key + "/top", "", 200},
		{"/pprof/" + key + "/top", cookie, 200},
		{"/pprof/" + key, "", 403},
		{"/pprof/" + key + "/source?f=.", "", 404},
		{"/pprof/" + key + "/../../api/info", "", 307}, // to /api/info
		{"/pprof/" + token + "/top", "", 403},
		{"/pprof//top", "", 403},
	} {
		headers := map[string]string{}
		if c.cookie != "" {
			headers["Cookie"] = c.cookie
		}
		r, body := ask(t, h, "GET", c.path, headers)
		if r.StatusCode != c.want || c.want == 403 && body != unknown+"\n" {
			t.Errorf("%s with cookie %q: %s, want %d\n%.200s", c.path, c.cookie, r.Status, c.want, body)
		}
		set := r.Cookies()
		if byToken := c.path == "/?token="+token; byToken != (len(set) == 1) ||
			byToken && (set[0].Value != token || !set[0].HttpOnly || set[0].SameSite != http.SameSiteStrictMode) {
			t.Errorf("%s: cookies %v", c.path, set)
		}
		if to := r.Header.Get("Location"); c.want == 303 && to != "/pprof/"+key+"/top?f=x" {
			t.Errorf("%s leads to %q", c.path, to)
		}
	}
}

// TestURL: the address that is printed is one that a browser on this machine reaches.
func TestURL(t *testing.T) {
	for _, c := range []struct {
		addr *net.TCPAddr
		want string
	}{
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}, "http://127.0.0.1:80/?token=t"},
		{&net.TCPAddr{IP: net.IPv6loopback, Port: 81}, "http://[::1]:81/?token=t"},
		{&net.TCPAddr{IP: net.IPv4zero, Port: 82}, "http://localhost:82/?token=t"},
		{&net.TCPAddr{IP: net.IPv6unspecified, Port: 83}, "http://localhost:83/?token=t"},
	} {
		if got := URL(c.addr, "t"); got != c.want {
			t.Errorf("%v: %s, want %s", c.addr, got, c.want)
		}
	}
}
