package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/modules"
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

// openFile opens a file of samples, standard input, or an agent's directory. single says that a pprof profile, which has no single samples, is
// an error. added is told of each profile of a directory, see record.FileOptions; it may be nil.
func openFile(ctx context.Context, path string, flt *filter, mods *modules.Set, single bool, added func(*profile.Profile, []int32)) (*record.File, *session, error) {
	p := tui.NewProgress()
	defer p.Done()
	f, err := record.Open(path, record.FileOptions{
		Mods: mods, Namer: newNamer, Filter: flt.Filter, Single: single, Added: added,
		Reading: func(done, total int, samples uint64) error {
			p.Say("read %d of %d profiles, %s", done, total, profile.Quantity(samples, "samples"))
			return ctx.Err()
		},
	})
	switch {
	case errors.Is(err, record.ErrTimeless):
		err = fmt.Errorf("%s: --time: %w", path, record.ErrTimeless)
	case errors.Is(err, record.ErrNotRing):
		err = fmt.Errorf("%w; --time takes seconds of a recording's clock, and --service is for directories", err)
	case errors.Is(err, record.ErrWallClock):
		err = fmt.Errorf("--time: %w", err)
	}
	if err != nil {
		return nil, nil, err
	}
	if r := f.Ring; r != nil {
		for _, err := range r.Unread {
			fmt.Fprintf(stderr, "unspool: left out: %v\n", err)
		}
		if more := r.Failed - len(r.Unread); more > 0 {
			fmt.Fprintf(stderr, "unspool: left out: %d more\n", more)
		}
		if r.Hidden > 0 {
			fmt.Fprintf(stderr, "unspool: the last hour; of the time before it, there are %s: --time FROM,TO\n", profile.Count(uint64(r.Hidden), "profile", "profiles"))
		}
	}
	return f, &session{f.Session, f.HowFar}, nil
}

// shown says on a terminal how far the session is, until the function that it returns is called.
func (s *session) shown() func() {
	p := tui.NewProgress()
	if s.howFar != nil {
		s.Progress = func(n uint64) { p.Say("%s, %s", s.howFar(), profile.Quantity(n, "samples")) }
	}
	return p.Done
}

// profile aggregates the samples; see record.Session.Profile.
func (s *session) profile(ctx context.Context, o *output, added func(x *profile.Sample, stack int)) (*profile.Profile, error) {
	defer s.shown()()
	s.Names.Lines = !o.plain
	p, err := s.Profile(ctx, added)
	o.weigh(&s.Info)
	return p, err
}

// some is the profile of samples that there must be: there is none without any. With an error can come one of what there was before it.
func (s *session) some(ctx context.Context, o *output) (*profile.Profile, error) {
	p, err := s.profile(ctx, o, nil)
	if p != nil && p.Totals.Samples > 0 {
		return p, err
	}
	return nil, cmp.Or(err, s.NoSamples())
}

// stream writes each sample as it comes.
func (s *session) stream(ctx context.Context, w io.Writer, o *output) error {
	s.Events()
	o.weigh(&s.Info)
	s.Names.Lines = !o.plain
	st := o.form().Stream(w, s.Names, s.Info, o.opts)
	defer s.shown()()
	err := s.Run(ctx, st.Sample)
	if cerr := st.Close(s.Info.Loss); err == nil {
		err = cerr
	}
	s.hintsOf(st)
	return err
}

// weigh lets time that threads were blocked for weigh in a report of it, not how often; and bytes of memory, not how many objects.
func (o *output) weigh(info *profile.Info) {
	if info.Waits() || info.Heap() {
		o.opts.By = report.Periods
	}
}

// hints says on standard error which modules' code took time and has no names, how much, and what can be done.
func (s *session) hints(p *profile.Profile) { say(s.Names.Hints(p, s.Info.Waits())) }

// hintsOf is hints of what was streamed.
func (s *session) hintsOf(st *report.Stream) {
	mods, nameless := st.Nameless()
	say(s.Names.HintsOf(mods, nameless, st.Totals().Period))
}

// warn says on standard error what the reader of a report should know.
func (s *session) warn() { sayNotes(s.Notes()) }

// wrote says on standard error what went into a file.
func (s *session) wrote(path string) {
	if path == "" || path == "-" {
		return
	}
	fmt.Fprintf(stderr, "unspool: %s: %s\n", path, s.Summary())
}

// sayNotes prints notes on a recording, with the flags that help.
func sayNotes(notes []record.Note) {
	for _, n := range notes {
		say([]string{n.Text + advice(n)})
	}
}

func advice(n record.Note) string {
	switch n.Advice {
	case record.LargerCopies:
		return ": record with a larger --stack-size"
	case record.LowerFrequency:
		return ": record with a lower frequency (-F)"
	case record.LongerPeriod:
		return fmt.Sprintf(": record with a -c over %d", n.Period)
	case record.OneOfMany:
		return fmt.Sprintf(": record only one of every N %s (-c N)", n.Event)
	case record.FewerTasks:
		return ": record fewer tasks (-p, --cgroup, --comm)"
	case record.MoreMemory:
		return ": give more --memory"
	case record.WholeCopies:
		return ": --stack-size keeps them, and takes more memory"
	}
	return ""
}
