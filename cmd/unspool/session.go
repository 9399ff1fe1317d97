package main

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/tui"
)

// A session is a record.Session with the messages to its user.
type session struct {
	*record.Session
	howFar func() string // nil: nobody is to know
}

// stepperFlag adds the flag for the way to apply unwind rules. Call the function it returns after the flags are parsed.
func stepperFlag(c *cobra.Command) func() (*modules.Set, error) {
	name := modules.Steppers[0]
	cli.OneOf(c, &name, "stepper", "how to apply unwind rules: compact tables, native machine code, or rows, the slow reference", modules.Steppers...)
	return func() (*modules.Set, error) {
		return modules.ByName(name)
	}
}

// A reading holds the flags of verbs that read recordings.
type reading struct {
	filter
	plain bool // no lines and inlined calls
	look  func() (*modules.Set, error)
	mods  *modules.Set // after begin
}

// flags adds the flags for names, and for files of recordings, which may lie elsewhere.
func (r *reading) flags(c *cobra.Command) {
	r.filter.ring(c)
	sourceFlag(c, &r.plain)
	r.look = lookingFlag(c)
}

// begin reads the flags. end is called when nothing is read any more.
func (r *reading) begin() (end func() error, err error) {
	if r.mods, err = r.look(); err != nil {
		return nil, err
	}
	return r.mods.Close, nil
}

// lookingFlag is stepperFlag for commands that read recordings or core dumps, whose files may lie elsewhere.
func lookingFlag(c *cobra.Command) func() (*modules.Set, error) {
	stepper, search := stepperFlag(c), searchFlags(c)
	return func() (*modules.Set, error) {
		files, err := search()
		if err != nil {
			return nil, err
		}
		mods, err := stepper()
		if err == nil {
			mods.Files = files
		}
		return mods, err
	}
}

// open opens a file of samples, standard input, or an agent's directory, as o says besides.
func (r *reading) open(ctx context.Context, path string, o record.FileOptions) (*record.File, error) {
	p := tui.NewProgress()
	defer p.Done()
	o.Mods, o.Filter, o.Heap = r.mods, r.Filter, r.heapValue
	o.Namer = func(n names.Options) *names.Namer { return newNamer(n, r.plain) }
	o.Reading = func(done, total int, samples uint64) error {
		p.Say("read %d of %d profiles, %s", done, total, profile.Quantity(samples, "samples"))
		return ctx.Err()
	}
	f, err := record.Open(path, o)
	if err == nil && f.Ring != nil {
		say(f.Ring.Notes())
	}
	return f, err
}

// profile reads all of a file, and says on standard error what the reader should know.
func (r *reading) profile(ctx context.Context, path string, o *output) (*profile.Profile, error) {
	f, err := r.open(ctx, path, record.FileOptions{})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	o.inputs = append(o.inputs, f.Stat)
	if f.Pprof != nil {
		o.weigh(&f.Pprof.Info)
		return f.Pprof, nil
	}
	s := fileSession(f)
	p, err := s.some(ctx, o)
	s.warn()
	s.hints(p)
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	if err != nil && p != nil {
		sayError(err)
		err = nil
	}
	return p, err
}

func fileSession(f *record.File) *session { return &session{f.Session, f.HowFar} }

// shown says on a terminal how far the session is, until the function that it returns is called.
func (s *session) shown() func() {
	p := tui.NewProgress()
	if s.howFar != nil {
		s.Progress = func(n uint64) { p.Say("%s, %s", s.howFar(), profile.Quantity(n, "samples")) }
	}
	return p.Done
}

// profile aggregates the samples; see record.Session.Profile.
func (s *session) profile(ctx context.Context, o *output) (*profile.Profile, error) {
	defer s.shown()()
	p, err := s.Profile(ctx, nil)
	o.weigh(&s.Info)
	return p, err
}

// some is the profile of samples that there must be: there is none without any. With an error can come one of what there was before it.
func (s *session) some(ctx context.Context, o *output) (*profile.Profile, error) {
	p, err := s.profile(ctx, o)
	if p != nil && p.Totals.Samples > 0 {
		return p, err
	}
	return nil, cmp.Or(err, s.NoSamples())
}

// stream writes each sample as it comes.
func (s *session) stream(ctx context.Context, w io.Writer, o *output) error {
	s.Events()
	o.weigh(&s.Info)
	st := o.form().Stream(w, s.Names, s.Info, o.opts)
	defer s.shown()()
	err := s.Run(ctx, st.Sample)
	if cerr := st.Close(s.Info.Loss); err == nil {
		err = cerr
	}
	s.hintsOf(st)
	return err
}

// weigh lets reports count what their reader wants to know: see profile.Info.Weight.
func (o *output) weigh(info *profile.Info) {
	o.opts.By = max(o.opts.By, info.Weight())
}

// hints says on standard error which modules' code took time and has no names, how much, and what can be done.
func (s *session) hints(p *profile.Profile) { say(s.Names.Hints(p, s.Info.Waits())) }

// hintsOf is hints of what was streamed.
func (s *session) hintsOf(st *report.Stream) {
	mods, nameless := st.Nameless()
	say(s.Names.HintsOf(mods, nameless, st.Totals().Period))
}

// warn says on standard error what the reader of a report should know.
func (s *session) warn() { say(s.Notes()) }

// wrote says on standard error what went into a file.
func (s *session) wrote(path string) {
	if path == "" || path == "-" {
		return
	}
	fmt.Fprintf(stderr, "unspool: %s: %s\n", path, s.Summary())
}
