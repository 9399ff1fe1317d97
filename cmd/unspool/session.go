package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/source/perfdata"
	"github.com/unspool/unspool/tui"
)

// A session is a record.Session with the messages to its user.
type session struct {
	*record.Session
	flt    *filter
	howFar func() string // nil: nobody is to know
}

// stepperFlag adds the flag for the way to apply unwind rules. Call the function it returns after the flags are parsed.
func stepperFlag(c *cobra.Command) func() (*modules.Set, error) {
	name := c.Flags().String("stepper", "compact", "how to apply unwind rules: compact tables, native machine code, or rows, the slow reference")
	return func() (*modules.Set, error) {
		mods, err := modules.ByName(*name)
		if err != nil {
			return nil, usage("--stepper: %v", err)
		}
		return mods, nil
	}
}

// lookingFlag is stepperFlag for commands that read recordings, whose files may lie elsewhere.
func lookingFlag(c *cobra.Command) func() (*modules.Set, error) {
	stepper, search := stepperFlag(c), searchFlags(c)
	return func() (*modules.Set, error) {
		mods, err := stepper()
		if err == nil {
			mods.Files = search()
		}
		return mods, err
	}
}

// options are those of a session whose stacks are walked with mods and named by n.
func (f *filter) options(mods *modules.Set, n *names.Namer) record.Options {
	o := record.Options{Mods: mods, Names: n}
	if f.Active() {
		o.Want = f.Want
	}
	return o
}

// openFile returns a session over a perf.data file.
func openFile(mods *modules.Set, f *perfdata.File, flt *filter) *session {
	n := newNamer(record.FileNames(mods, f))
	if info := f.Info(); info.Ours {
		if err := n.Import(info.Names); err != nil {
			fmt.Fprintf(stderr, "unspool: the names in the recording: %v\n", err)
		}
	}
	return &session{record.FromFile(f, flt.options(mods, n)), flt, func() string {
		done, total := f.Progress()
		if total == 0 {
			return fmt.Sprintf("read %d MiB", done>>20)
		}
		return fmt.Sprintf("read %d of %d MiB", done>>20, total>>20)
	}}
}

// shown says on a terminal how far the session is, until the function that it returns is called.
func (s *session) shown() func() {
	p := tui.NewProgress()
	if s.howFar != nil {
		s.Progress = func(n uint64) { p.Say("%s, %s samples", s.howFar(), profile.Comma(n)) }
	}
	return p.Done
}

// profile aggregates the samples; see record.Session.Profile.
func (s *session) profile(ctx context.Context, o *output, added func(x *profile.Sample, stack int)) (*profile.Profile, error) {
	defer s.shown()()
	s.Names.Lines = !o.plain
	p, err := s.Profile(ctx, added)
	s.weigh(o)
	return p, err
}

// stream writes each sample as it comes.
func (s *session) stream(ctx context.Context, w io.Writer, o *output) error {
	s.Events()
	s.weigh(o)
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

// weigh lets time that threads were blocked for weigh in a report of it, not how often.
func (s *session) weigh(o *output) {
	if s.Info.Waits() {
		o.opts.By = report.Periods
	}
}

// hints says on standard error which modules' code took time and has no names, how much, and what can be done.
func (s *session) hints(p *profile.Profile) { say(s.Names.Hints(p, s.Info.Waits())) }

// hintsOf is hints of what was streamed.
func (s *session) hintsOf(st *report.Stream) {
	var mods []profile.Module
	var nameless []uint64
	at := map[profile.Module]int{}
	st.Nameless(func(m *profile.Module, weight uint64) {
		i, ok := at[*m]
		if !ok {
			i = len(mods)
			at[*m], mods, nameless = i, append(mods, *m), append(nameless, 0)
		}
		nameless[i] += weight
	})
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
