package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/tui"
)

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
		p.Printf("read %d of %d profiles, %s", done, total, profile.Quantity(samples, "samples"))
		return ctx.Err()
	}
	f, err := record.Open(path, o)
	if err == nil && f.Ring != nil {
		notify(f.Ring.Notes())
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
	o.Inputs = append(o.Inputs, f.Stat)
	if f.Pprof != nil {
		return f.Pprof, nil
	}
	p, err := some(ctx, f.Session)
	notify(f.Notes())
	notify(f.Hints(p))
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	if err != nil && p != nil {
		reportError(err)
		err = nil
	}
	return p, err
}

// shown says on a terminal how far a session is, until the function that it returns is called.
func shown(s *record.Session) func() {
	p := tui.NewProgress()
	if s.HowFar() != "" {
		s.Progress = func(n uint64) { p.Printf("%s, %s", s.HowFar(), profile.Quantity(n, "samples")) }
	}
	return p.Done
}

// some is the profile of samples that there must be: there is none without any. With an error can come one of what there was before it.
func some(ctx context.Context, s *record.Session) (*profile.Profile, error) {
	defer shown(s)()
	p, err := s.Profile(ctx, nil)
	if p != nil && p.Totals.Samples > 0 {
		return p, err
	}
	return nil, cmp.Or(err, s.NoSamples())
}

// stream writes each sample as it comes. A format that can be read while it grows is published before the first, where publish is given.
func stream(ctx context.Context, s *record.Session, w io.Writer, o *output, publish func() error) error {
	defer shown(s)()
	s.Events()
	st := o.Stream(w, s.Names, s.Info)
	err := s.Run(ctx, func(x *profile.Sample) error {
		if publish != nil && o.Form().Grows {
			if err := publish(); err != nil {
				return err
			}
			publish = nil
		}
		return st.Sample(x)
	})
	if cerr := st.Close(s.Info.Loss); err == nil {
		err = cerr
	}
	mods, nameless := st.Nameless()
	notify(s.Names.HintsOf(mods, nameless, st.Totals().Period))
	return err
}

// recording writes perf.data with callchains. room leaves room for names in it.
func recording(ctx context.Context, s *record.Session, out *os.File, room bool) (*record.Written, error) {
	defer shown(s)()
	w, err := s.Write(ctx, out, room)
	if w != nil && w.Dropped > 0 && err == nil {
		fmt.Fprintf(stderr, "unspool: %s too large for perf.data: missing\n", profile.Count(w.Dropped, "sample was", "samples were"))
	}
	return w, err
}

// wrote says on standard error what went into an output.
func wrote(o *output, what string) {
	if !o.Stdout() {
		fmt.Fprintf(stderr, "unspool: %s: %s\n", o.Path, what)
	}
}
