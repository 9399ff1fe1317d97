package serve

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/flate"

	"github.com/unspool/unspool/profile"
)

// A Live is the page of the last minutes of what goes on: profiles of intervals, as they come. A page that is open stays as it is; opening the
// address again shows what has come since. It is an http.Handler for the paths "/", "/live/" and "/pprof/".
type Live struct {
	name   string
	window time.Duration
	token  string

	mu       sync.Mutex
	past     []interval // the newest last
	now      newest
	shown    []shown // the newest last
	n        int
	interval time.Duration
}

// newest has the profiles of the newest interval.
type newest struct {
	merger   profile.Merger
	began    time.Time // zero: there is none
	duration time.Duration
}

// An interval that is over is packed: in ten times as much memory, nobody looks at it most of the time.
type interval struct {
	began  time.Time
	packed []byte // by pack
	err    error  // of pack
}

// packed is what pack writes: a profile, and the place of each stack.
type packed struct {
	Profile *profile.Profile
	Places  []profile.Place
}

// pack is the opposite of unpack.
func pack(m *profile.Merger) ([]byte, error) {
	var p packed
	p.Profile, p.Places = m.Profile()
	var b bytes.Buffer
	z, err := flate.NewWriter(&b, flate.BestSpeed)
	if err == nil {
		err = errors.Join(gob.NewEncoder(z).Encode(p), z.Close())
	}
	return bytes.Clone(b.Bytes()), err
}

func unpack(b []byte) (p packed, err error) {
	err = gob.NewDecoder(flate.NewReader(bytes.NewReader(b))).Decode(&p)
	return p, err
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

// NewLive returns a page that shows the intervals of a window of time. token is what a request needs to be answered; "": nothing.
func NewLive(name string, window time.Duration, token string) *Live {
	return &Live{name: name, window: window, token: token}
}

// Add adds the profile of an interval, all of one place.
func (l *Live) Add(p *profile.Profile, at profile.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := p.Start.Add(p.Duration)
	if !p.Start.Equal(l.now.began) || p.Duration != l.now.duration {
		if !l.now.began.IsZero() {
			over := interval{began: l.now.began}
			over.packed, over.err = pack(&l.now.merger)
			l.past = append(l.past, over)
		}
		l.now = newest{began: p.Start, duration: p.Duration}
		l.past = slices.DeleteFunc(l.past, func(i interval) bool {
			return end.Sub(i.began) > l.window || i.began.After(end) // the clock has gone back
		})
	}
	l.interval = max(l.interval, p.Duration)
	l.now.merger.Add(p, at)
	for len(l.shown) > 0 && end.Sub(l.shown[0].made) > forgotten {
		l.shown = l.shown[1:]
	}
}

// recording returns what there is, as it is now.
func (l *Live) recording() (*Recording, error) {
	l.mu.Lock()
	past, interval := slices.Clone(l.past), l.interval
	var now profile.Merger
	if !l.now.began.IsZero() {
		now.AddMerged(l.now.merger.Profile())
	}
	l.mu.Unlock()
	var m profile.Merger
	times := &Times{}
	add := func(p *profile.Profile, at []profile.Place) { times.Spread(p, m.AddMerged(p, at)) }
	for _, i := range past {
		if i.err != nil {
			return nil, i.err
		}
		p, err := unpack(i.packed)
		if err != nil {
			return nil, err
		}
		add(p.Profile, p.Places)
	}
	add(now.Profile())
	p, at := m.Profile()
	return &Recording{Profile: p, Times: times, Places: at, Interval: interval, Periods: p.Waits()}, nil
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
	s := New(Options{Token: l.token, Live: true, Inputs: []Input{{Name: l.name, Read: func(context.Context, func(Progress)) (*Recording, error) { return l.recording() }}}})
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
