package record

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/internal/ring"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
)

// LastHour is how much of an agent's directory is read if no time is asked for: up to the last profile.
const LastHour = time.Hour

// A Ring is what a File says of an agent's directory.
type Ring struct {
	Places []profile.Place // by stack of the profile; nil where only one of several events is shown
	Files  int             // that were read
	Unread []error         // of files that could not be; the first 10
	Failed int             // how many these are
	Hidden int             // profiles before the last hour, where no time was asked for

	Shown  string          // the event of the profile, where the directory has others
	Others []profile.Event // these
}

// Notes says what of the directory is not in the profile.
func (r *Ring) Notes() (out []string) {
	for _, err := range r.Unread {
		out = append(out, fmt.Sprintf("left out: %v", err))
	}
	if more := r.Failed - len(r.Unread); more > 0 {
		out = append(out, fmt.Sprintf("left out: %d more", more))
	}
	if r.Hidden > 0 {
		out = append(out, "the last hour; of the time before it, there are "+profile.Count(uint64(r.Hidden), "profile", "profiles")+": --time FROM,TO")
	}
	if len(r.Others) > 0 {
		var others []string
		for _, e := range r.Others {
			others = append(others, e.Base())
		}
		out = append(out, fmt.Sprintf("only %s; --event shows %s", r.Shown, printable.Either(others)))
	}
	return out
}

// oneEvent leaves the profile one event, which is not waits, if there is one: samples and waits do not add up.
func (f *File) oneEvent() {
	all := f.Pprof.Events
	at := slices.IndexFunc(all, func(e profile.Event) bool { return e.Name != profile.OffCPU })
	if at < 0 || len(all) == 1 {
		return
	}
	f.Ring.Shown, f.Ring.Others = all[at].Base(), slices.Delete(slices.Clone(all), at, at+1)
	f.Pprof, f.Ring.Places = f.Pprof.Only(all[at].Name), nil
}

// openRing reads the profiles that an agent keeps in a directory, and merges those of the time and the services that the filter wants.
func (f *File) openRing(dir string, o *FileOptions) error {
	always := o.Filter.Timed && o.Filter.From == 0 && o.Filter.To == math.MaxUint64
	switch {
	case o.Single:
		return fmt.Errorf("%s is a directory of profiles, which have no single samples", dir)
	case o.Filter.Timed && !always:
		return fmt.Errorf("--time: %s: profiles in a directory have times of day, such as 14:30, and times before now, such as -15m, but no clock of a recording", dir)
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	type entry struct {
		name, service string
		began         time.Time
	}
	var all []entry
	for _, e := range list { // sorted, and so by time
		if began, service, ok := ring.Parse(e.Name()); ok {
			all = append(all, entry{e.Name(), service, began})
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("%s has no profiles of unspool agent", dir)
	}
	newest, now := all[len(all)-1].began, time.Now()
	for _, e := range all {
		if !e.began.After(now) { // else a clock was ahead, perhaps that of all
			newest = e.began
		}
	}
	f.Ring = &Ring{}
	since, until := o.Filter.Since, o.Filter.Until
	byHour := since.IsZero() && until.IsZero() && !always
	if byHour {
		since = newest.Add(-LastHour)
	}
	var want []entry
	for _, e := range all {
		switch {
		case byHour && e.began.Before(since):
			f.Ring.Hidden++
		case e.began.Add(ring.MostInterval).Before(since) || !until.IsZero() && e.began.After(until) || o.Filter.Service != nil && !o.Filter.Service.MatchString(e.service):
		default:
			want = append(want, e)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	var m profile.Merger
	samples := uint64(0)
	var others []string // events that are not the one that is wanted
	for i, e := range want {
		if o.Reading != nil {
			if err := o.Reading(i, len(want), samples); err != nil {
				return err
			}
		}
		p, err := readOne(root, e.name, &o.Filter)
		switch {
		case errors.Is(err, fs.ErrNotExist): // the agent has removed it meanwhile
			continue
		case err != nil:
			if f.Ring.Failed++; len(f.Ring.Unread) < 10 {
				f.Ring.Unread = append(f.Ring.Unread, fmt.Errorf("%s: %w", filepath.Join(dir, e.name), err))
			}
			continue
		case p.Totals.Samples == 0 || p.Start.Add(p.Duration).Before(since):
			continue
		}
		if name := o.Filter.Event; name != "" {
			at := slices.IndexFunc(p.Events, func(e profile.Event) bool { return e.Base() == name })
			if at < 0 {
				for _, e := range p.Events {
					if e := e.Base(); !slices.Contains(others, e) {
						others = append(others, e)
					}
				}
				continue
			}
			p = p.Only(p.Events[at].Name)
		}
		f.Ring.Files++
		samples += p.Totals.Samples
		to := m.Add(p, profile.NewPlace(e.service, p.Label("namespace"), p.Label("pod")))
		if o.Added != nil {
			o.Added(p, to)
		}
	}
	if samples == 0 {
		if len(f.Ring.Unread) > 0 {
			return f.Ring.Unread[0]
		}
		if len(others) > 0 {
			return fmt.Errorf("%s: no samples of %s, but of %s", dir, printable.String(o.Filter.Event), strings.Join(others, " and "))
		}
		return fmt.Errorf("%s: no samples of that time, service, process or command; its profiles are from %s to %s", dir, all[0].began.Local().Format(time.DateTime), newest.Local().Format(time.DateTime))
	}
	f.Pprof, f.Ring.Places = m.Profile()
	if o.Added == nil && o.Filter.Event == "" { // else the events are told apart there
		f.oneEvent()
	}
	return nil
}

// readOne reads what a filter leaves of one profile.
func readOne(root *os.Root, name string, filter *Filter) (*profile.Profile, error) {
	in, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe in its place must not be waited for
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if st, err := in.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("not a regular file"))
	}
	p, err := pprof.Read(in)
	if err != nil || !filter.active() {
		return p, err
	}
	return p.Filter(filter.stack), nil
}

// ErrNotRing is the error of a filter that only an agent's directory can answer.
var ErrNotRing = errors.New("only the directory of an agent has times of day, services and events; --time takes seconds of a recording's clock, and --service and --event are for directories")

// parseWall reads a time of day, a date, both, or a time before now: 14:30, 14:30:05, 2026-11-26, 2026-11-26T14:30, RFC 3339, -15m. A time of day
// is the first that is not before from, or, if there is none, the last before now.
func parseWall(text string, now, from time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil && d <= 0 {
		return now.Add(d), nil
	}
	for _, layout := range []string{"15:04", "15:04:05"} {
		t, err := time.ParseInLocation(layout, text, now.Location())
		if err != nil {
			continue
		}
		day := now
		if !from.IsZero() {
			day = from
		}
		t = time.Date(day.Year(), day.Month(), day.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())
		switch {
		case from.IsZero() && t.After(now):
			t = t.AddDate(0, 0, -1)
		case !from.IsZero() && t.Before(from):
			t = t.AddDate(0, 0, 1)
		}
		return t, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("takes numbers of seconds, or times such as 14:30, 2026-11-26T14:30 or -15m, not %q", printable.String(text))
}
