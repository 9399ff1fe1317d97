package serve

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/unspool/unspool/profile"
)

// A Live is the page of the last minutes of what goes on: profiles of intervals, as they come. A page that is open stays as it is; opening the
// address again shows what has come since. It is an http.Handler for the paths "/", "/live/" and "/pprof/".
type Live struct {
	name   string
	window time.Duration
	token  string

	mu       sync.Mutex
	halves   [2]half // the older one, and the one that grows
	shown    []shown // the newest last
	n        int
	interval time.Duration
}

// A half has the profiles of at least half of the window.
type half struct {
	merger profile.Merger
	times  Times
	began  time.Time // zero: it has none
}

// shown is a page that was made: its address stays valid while it is one of the last.
type shown struct {
	n      int
	server *Server
	made   time.Time
}

const (
	maxShown  = 3               // pages whose numbers of functions are known
	leastNew  = 2 * time.Second // a page that is this old is made anew
	forgotten = 15 * time.Minute
)

// NewLive returns a page that shows between half of the window and all of it. token is what a request needs to be answered; "": nothing.
func NewLive(name string, window time.Duration, token string) *Live {
	return &Live{name: name, window: window, token: token}
}

// Add adds the profile of an interval, all of one service.
func (l *Live) Add(p *profile.Profile, service string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := p.Start.Add(p.Duration)
	now := &l.halves[1]
	switch {
	case now.began.IsZero():
		now.began = p.Start
	case end.Before(now.began), end.Sub(now.began) > l.window/2 && p.Start.After(now.began): // or the clock has gone back
		l.halves[0] = *now
		*now = half{began: p.Start}
	}
	l.interval = max(l.interval, p.Duration)
	now.times.Spread(p, now.merger.Add(p, service))
	for len(l.shown) > 0 && end.Sub(l.shown[0].made) > forgotten {
		l.shown = l.shown[1:]
	}
}

// recording returns what there is, as it is now.
func (l *Live) recording() *Recording {
	l.mu.Lock()
	defer l.mu.Unlock()
	var m profile.Merger
	times := &Times{}
	for i := range l.halves {
		p := &l.halves[i]
		if p.began.IsZero() {
			continue
		}
		to := m.AddMerger(&p.merger)
		p.times.each(0, 1<<63, func() bool { return false }, func(c *chunk, first int, _ bool) {
			for i := range c.n {
				times.Add(c.time[i], int(to[c.stack[i]]), p.times.periodAt(c, first, i))
			}
		})
	}
	p, services := m.Profile()
	return &Recording{Profile: p, Times: times, Services: services, Interval: l.interval, Periods: p.Waits()}
}

// ServeHTTP implements http.Handler.
func (l *Live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !guard(w, r, l.token) {
		return
	}
	rest, live := strings.CutPrefix(r.URL.Path, "/live/")
	number, path, whole := strings.Cut(rest, "/")
	switch {
	case live:
		s := l.find(number)
		if s == nil || !whole {
			if path == "" {
				http.Redirect(w, r, "/", http.StatusSeeOther)
				return
			}
			http.Error(w, "this page is too old: open it again", http.StatusGone)
			return
		}
		q := r.Clone(r.Context())
		q.URL.Path, q.URL.RawPath = "/"+path, ""
		s.ServeHTTP(w, q)
	case strings.HasPrefix(r.URL.Path, pprofPath):
		if s := l.find(""); s != nil {
			s.ServeHTTP(w, r)
			return
		}
		http.Redirect(w, r, "/", http.StatusSeeOther)
	default:
		n, err := l.show(r.Context(), time.Now())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		http.Redirect(w, r, fmt.Sprintf("/live/%d/", n), http.StatusSeeOther)
	}
}

// find returns the page of a number, or the newest; nil if there is none.
func (l *Live) find(number string) *Server {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.shown) - 1; i >= 0; i-- {
		if number == "" || strconv.Itoa(l.shown[i].n) == number {
			return l.shown[i].server
		}
	}
	return nil
}

// show makes a page of what there is, unless the newest is new enough, and returns its number.
func (l *Live) show(ctx context.Context, now time.Time) (int, error) {
	l.mu.Lock()
	last := len(l.shown) - 1
	if last >= 0 && now.Sub(l.shown[last].made) < leastNew {
		defer l.mu.Unlock()
		return l.shown[last].n, nil
	}
	l.mu.Unlock()
	s := New(Options{Token: l.token, Live: true, Inputs: []Input{{Name: l.name, Read: func(context.Context, func(Progress)) (*Recording, error) { return l.recording(), nil }}}})
	if err := s.Load(ctx); err != nil {
		return 0, fmt.Errorf("%w yet: the first profiles come with the end of the first interval", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n++
	l.shown = append(l.shown, shown{l.n, s, now})
	l.shown = l.shown[max(0, len(l.shown)-maxShown):]
	return l.n, nil
}
