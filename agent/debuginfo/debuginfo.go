// Package debuginfo gives engines the files with the names of code, by build ID, where an engine names code itself.
//
// An Uploader belongs to one engine. Offer takes the modules of a profile; Run finds the file of each, asks the engine whether it wants the file, and
// sends it: one at a time, no faster and no larger than its bounds, and no file that the profiled process could not read itself (see find). What
// the engine has answered is remembered. An engine that is away, slow, full or lies costs counters.
package debuginfo

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/profile"
)

const (
	// MaxSize is the size of the largest file that is sent, in bytes.
	MaxSize = 512 << 20

	maxRate    = 8 << 20       // bytes a second that are sent
	leastRate  = maxRate / 16  // that an engine has to take
	maxWaiting = 256           // files that are not asked about yet: others are offered again by the next profile
	maxKnown   = 1 << 14       // build IDs whose answer is remembered
	maxPIDs    = 4             // processes of a module that are looked at
	remembered = 6 * time.Hour // how long an answer holds
	goneAgain  = time.Minute   // when a file is looked for again that was not found
	askEvery   = 200 * time.Millisecond
	leastPause = time.Second      // after a failure; doubled with each
	maxTries   = 6                // to ask about a file
	maxCalls   = 4                // to file systems that do not answer: then no more files are looked at
	patience   = 10 * time.Second // for a file to be opened
)

// Stats say what has become of the files.
type Stats struct {
	Uploads, Bytes uint64 // that the engine has taken
	Unneeded       uint64 // that it had, or another client sends
	Refused        uint64 // by the engine
	Failed         uint64 // attempts that the engine did not answer, or that broke off
	Unreadable     uint64 // the profiled process may not read the file, or it is not there
	Nameless       uint64 // the file has no names
	TooLarge       uint64
	Dropped        uint64 // for want of room
	Waiting        int
	Err            error // of the last request to the engine
}

// An Uploader sends to one engine. It is safe for concurrent use.
type Uploader struct {
	mu      sync.Mutex
	engine  export.Symbolizer
	known   map[string]time.Time // by build ID: until when nothing is to be done
	waiting []wanted
	more    chan struct{} // of one element
	calls   chan struct{} // to file systems that go on
	stats   Stats
}

// A wanted is a module whose file is to be sent.
type wanted struct {
	path, buildID string
	pids          []int32
}

// New returns an Uploader to an engine.
func New(engine export.Symbolizer) *Uploader {
	return &Uploader{engine: engine, known: map[string]time.Time{}, more: make(chan struct{}, 1), calls: make(chan struct{}, maxCalls)}
}

// Change gives the Uploader the same engine as it is reached now.
func (u *Uploader) Change(engine export.Symbolizer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.engine = engine
}

// Stats returns what has become of the files so far.
func (u *Uploader) Stats() Stats {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := u.stats
	s.Waiting = len(u.waiting)
	return s
}

// Offer takes note of the modules of a profile. It does not look at files.
func (u *Uploader) Offer(p *profile.Profile) {
	if u.offer(p, time.Now()) {
		select {
		case u.more <- struct{}{}:
		default:
		}
	}
}

func (u *Uploader) offer(p *profile.Profile, now time.Time) (more bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	at := make([]int, len(p.Modules)) // in fresh, from 1
	var fresh []wanted
	for i := range p.Modules {
		m := &p.Modules[i]
		if export.HasDebugFile(m) && !now.Before(u.known[m.BuildID]) {
			fresh = append(fresh, wanted{path: m.Path, buildID: m.BuildID})
			at[i] = len(fresh)
		}
	}
	if len(fresh) == 0 {
		return false
	}
	for i := range p.Stacks {
		s := &p.Stacks[i]
		for _, f := range s.Frames {
			if k := at[p.Locs[f].Module]; k > 0 {
				w := &fresh[k-1]
				if n := len(w.pids); n < maxPIDs && (n == 0 || w.pids[n-1] != s.PID) {
					w.pids = append(w.pids, s.PID)
				}
			}
		}
	}
	for _, w := range fresh {
		switch {
		case len(w.pids) == 0: // no stack leads there
		case len(u.waiting) >= maxWaiting:
			u.stats.Dropped++
		default:
			u.remember(w.buildID, now.Add(remembered)) // until it is looked at
			u.waiting = append(u.waiting, w)
			more = true
		}
	}
	return more
}

// remember says until when nothing is to be done about a build ID. u is locked.
func (u *Uploader) remember(buildID string, until time.Time) {
	if _, ok := u.known[buildID]; !ok && len(u.known) >= maxKnown {
		for id := range u.known { // any: it is asked about again
			delete(u.known, id)
			break
		}
	}
	u.known[buildID] = until
}

// Run sends files until ctx ends, which breaks off what is being sent. It calls tell when the engine does not take what it took before, or
// says another reason; with nil, when it takes it again.
func (u *Uploader) Run(ctx context.Context, tell func(error)) {
	for ctx.Err() == nil {
		w, ok := u.next()
		if !ok {
			select {
			case <-u.more:
			case <-ctx.Done():
			}
			continue
		}
		u.handle(ctx, w, tell)
	}
}

// Send sends the files of a profile, each tried once, and returns the first error that is not about one file alone: a *export.Later. The errors of
// files are told as Run tells them.
func (u *Uploader) Send(ctx context.Context, p *profile.Profile, tell func(error)) error {
	for u.offer(p, time.Now()) {
		for {
			w, ok := u.next()
			if !ok {
				break
			}
			if err := u.once(ctx, w, tell); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// once deals with one file, and remembers it for as long as the Uploader lives.
func (u *Uploader) once(ctx context.Context, w wanted, tell func(error)) error {
	f, err := u.find(ctx, w)
	if err != nil {
		u.missing(err)
		return nil
	}
	defer f.Close()
	_, err = u.send(ctx, &f.DebugFile)
	u.setErr(err, tell)
	var refused *export.Refused
	if errors.As(err, &refused) {
		return nil
	}
	return err
}

// missing counts a file that cannot be sent, by the error of find.
func (u *Uploader) missing(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case errors.Is(err, errNameless):
		u.stats.Nameless++
	case errors.Is(err, errTooLarge):
		u.stats.TooLarge++
	default:
		u.stats.Unreadable++
	}
}

func (u *Uploader) next() (w wanted, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.waiting) == 0 {
		return w, false
	}
	w = u.waiting[0]
	u.waiting[0] = wanted{}
	u.waiting = u.waiting[1:]
	return w, true
}

// handle deals with one file.
func (u *Uploader) handle(ctx context.Context, w wanted, tell func(error)) {
	again := remembered/2 + rand.N(remembered/2) // agents that have begun together do not ask together
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.remember(w.buildID, time.Now().Add(again))
	}()
	f, err := u.find(ctx, w)
	if err != nil {
		u.missing(err)
		if errors.Is(err, errGone) {
			again = goneAgain
		}
		return
	}
	defer f.Close()
	pause := leastPause
	for try := 1; ; try++ {
		stale, err := u.send(ctx, &f.DebugFile)
		if ctx.Err() != nil {
			return
		}
		u.setErr(err, tell)
		if stale > 0 {
			again = stale
		}
		var later *export.Later
		wait := askEvery
		retry := errors.As(err, &later)
		if retry {
			wait = max(later.After, pause/2+rand.N(pause/2+1))
			pause *= 2
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		if !retry || stale > 0 {
			return
		}
		if try == maxTries {
			again = export.StaleUpload
			return
		}
	}
}

// find is the function find, for as long as a file may take to be opened.
func (u *Uploader) find(ctx context.Context, w wanted) (*file, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return limited(ctx, u.calls, func() (*file, error) { return find(w) })
}

// limited returns what f does, or errSilent when ctx ends first: a file system of a profiled process may never answer, and f is then left alone. calls
// bounds how many are, each with a thread.
func limited[T any](ctx context.Context, calls chan struct{}, f func() (T, error)) (out T, err error) {
	type result struct {
		out T
		err error
	}
	select {
	case calls <- struct{}{}:
	default:
		return out, errSilent
	}
	done := make(chan result, 1)
	go func() {
		var r result
		r.out, r.err = f()
		<-calls
		done <- r
	}()
	select {
	case r := <-done:
		return r.out, r.err
	case <-ctx.Done():
		return out, errSilent
	}
}

var errSilent = errors.New("the file's file system does not answer in time")

func (u *Uploader) count(f func(*Stats)) {
	u.mu.Lock()
	defer u.mu.Unlock()
	f(&u.stats)
}

func (u *Uploader) setErr(err error, tell func(error)) {
	u.mu.Lock()
	was := u.stats.Err
	u.stats.Err = err
	u.mu.Unlock()
	if (was == nil) != (err == nil) || err != nil && was.Error() != err.Error() {
		tell(err)
	}
}

// send asks the engine, and sends the file if the engine wants it. again is when to ask again, if that is soon.
func (u *Uploader) send(ctx context.Context, f *export.DebugFile) (again time.Duration, err error) {
	u.mu.Lock()
	engine := u.engine
	u.mu.Unlock()
	f.Rate = maxRate
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(f.Size/leastRate)*time.Second)
	defer cancel()
	wants, again, err := engine.Wants(ctx, f)
	if err == nil && wants {
		_, err = limited(ctx, u.calls, func() (struct{}, error) { return struct{}{}, engine.Upload(ctx, f) })
		if err != nil {
			again = export.StaleUpload // for so long the engine waits for what it has not got
		}
	}
	u.count(func(s *Stats) {
		var refused *export.Refused
		switch {
		case errors.As(err, &refused):
			s.Refused++
			again = 0
		case err != nil:
			s.Failed++
		case wants:
			s.Uploads++
			s.Bytes += uint64(f.Size)
		default:
			s.Unneeded++
		}
	})
	return again, err
}
