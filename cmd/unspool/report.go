package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfdata"
	"github.com/unspool/unspool/tui/browse"
)

func reportCmd() *cobra.Command {
	var o output
	var flt filter
	var stepper func() (*modules.Set, error)
	var ann annotator
	// After the tables.
	o.formats = slices.Insert(slices.Clone(report.Formats), 4, ann.formats()...)
	c := &cobra.Command{
		Use:   "report [FILE]",
		Short: "Show where a recording's time went",
		Long: `Turn a recording into a table, a flame graph, or another tool's format.

FILE is a recording of perf record or unspool record (perf.data), or a pprof profile; "-" is standard input. The
default is ` + defaultRecording + `. Copies of stacks (perf record --call-graph dwarf) are unwound on the way.

json and jsonl write one object for each sample, each on its own line, in order of time. stacks writes one object for
each different stack. A pprof profile has no single samples: use stacks.

On a terminal, without -o or another flag for a report, you can browse the recording: a tree of calls, a table of
functions, their callers. In a pipe, or with --format top, report prints a table.

Every report says how many stacks are whole. A whole stack ends at its thread's first frame.`,
		Example: `  unspool report
  unspool report perf.data
  unspool report perf.data -o flame.svg
  unspool report perf.data --comm cc1plus --format callers --function malloc
  unspool report perf.data --format annotate --function '^main$'
  unspool report perf.data -o profile.firefox.json           for profiler.firefox.com, with times
  perf record --call-graph dwarf -o - ./program | unspool report - -o profile.pb.gz`,
		Args: noneOr(1),
		RunE: func(c *cobra.Command, args []string) error {
			args, err := recordings(args, defaultRecording)
			if err != nil {
				return err
			}
			if err := ann.check(); err != nil {
				return err
			}
			walk := args[0] != "-" && o.path == "" && o.format == "" && o.opts.Func == "" && !c.Flags().Changed("limit") && !c.Flags().Changed("sort") && onTerminal()
			if o.format == recordingFormat.Name || o.format == "" && strings.HasSuffix(o.path, recordingFormat.Endings[0]) {
				return usage("to write perf.data, use unspool unwind")
			}
			if err := o.resolve("top"); err != nil {
				return err
			}
			mods, err := stepper()
			if err != nil {
				return err
			}
			ann.mods = mods
			if err := flt.compile(); err != nil {
				return err
			}
			if walk {
				p, err := readProfile(c.Context(), args[0], &o, &flt, mods)
				if err != nil {
					return err
				}
				return browse.Show(c.Context(), p, args[0], o.opts.By)
			}
			return runReport(c.Context(), args[0], &o, &flt, &ann)
		},
	}
	o.flags(c)
	flt.flags(c)
	ann.flags(c)
	stepper = lookingFlag(c)
	return c
}

// onTerminal says whether a person can be shown pages and asked for keys.
func onTerminal() bool {
	return !dumb() && term.IsTerminal(int(os.Stdin.Fd())) && term.IsTerminal(int(os.Stdout.Fd()))
}

// dumb says whether the terminal cannot move its cursor; of one without a name that is not known.
func dumb() bool {
	t := os.Getenv("TERM")
	return t == "" || t == "dumb"
}

func runReport(ctx context.Context, path string, o *output, flt *filter, ann *annotator) error {
	r, err := openRecording(path, flt, ann.mods)
	if err != nil {
		return err
	}
	defer r.Close()
	o.inputs = append(o.inputs, r.stat)
	write := func(p *profile.Profile) error {
		if o.form().Whole == nil {
			return usage("a pprof profile has no single samples: --format stacks or -o FILE.stacks.json has its stacks")
		}
		return o.write(ctx, func(w io.Writer) error { return o.form().Whole(w, p, o.opts) })
	}
	if r.pprof != nil {
		p, _ := r.profile(ctx, o)
		return write(p)
	}
	s := r.session
	ann.names = s.Names
	if o.form().Stream != nil {
		var bad error // what was there before it is good
		err = o.write(ctx, func(w io.Writer) error {
			err := s.stream(ctx, w, o)
			if errors.Is(err, source.ErrTruncated) || errors.Is(err, source.ErrMalformed) {
				bad, err = err, nil
			}
			if err == nil && s.Stats.Samples == 0 {
				return cmp.Or(bad, s.none())
			}
			return err
		})
		err = cmp.Or(err, bad)
	} else {
		var p *profile.Profile
		if p, err = r.profile(ctx, o); p != nil {
			if werr := write(p); werr != nil {
				return werr
			}
			s.hints(p)
		}
	}
	s.warn()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	s.wrote(o.path)
	return nil
}

// A recordingFile is a file of samples: a session over one that is still to be walked, or a pprof profile.
type recordingFile struct {
	session *session
	file    *perfdata.File // of the session
	pprof   *profile.Profile
	close   []io.Closer
	stat    fs.FileInfo
}

// Close closes the file.
func (r *recordingFile) Close() {
	for _, c := range slices.Backward(r.close) {
		c.Close()
	}
}

// openRecording opens a file of samples, or standard input. Errors name the file.
func openRecording(path string, flt *filter, mods *modules.Set) (*recordingFile, error) {
	in, err := record.OpenInput(path)
	if err != nil {
		return nil, err
	}
	r := &recordingFile{close: []io.Closer{in}}
	if r.stat, err = in.Stat(); err != nil {
		r.Close()
		return nil, err
	}
	if in.Pprof {
		if r.pprof, err = readPprof(in, flt); err != nil {
			r.Close()
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return r, nil
	}
	f, err := perfdata.New(in.File, path)
	if err != nil {
		r.Close()
		return nil, err
	}
	r.close = append(r.close, f)
	r.session, r.file = openFile(mods, f, flt), f
	r.session.Identify = in.Identify(f)
	return r, nil
}

func readPprof(in io.Reader, flt *filter) (*profile.Profile, error) {
	if flt.Timed {
		return nil, errors.New("--time: a pprof profile does not say when samples were taken")
	}
	p, err := pprof.Read(in)
	if err != nil || !flt.Active() {
		return p, err
	}
	q := p.Filter(flt.Stack)
	if q.Totals.Samples == 0 {
		return nil, fmt.Errorf("none of the %d samples matches", p.Totals.Samples)
	}
	return q, nil
}

// profile aggregates the samples. There is no profile without any; with an error can come one of what there was before it.
func (r *recordingFile) profile(ctx context.Context, o *output) (*profile.Profile, error) {
	if r.pprof != nil {
		if r.pprof.Waits() {
			o.opts.By = report.Periods
		}
		return r.pprof, nil
	}
	s := r.session
	p, err := s.profile(ctx, o, nil)
	if p != nil && p.Totals.Samples > 0 {
		return p, err
	}
	return nil, cmp.Or(err, s.none())
}

// none says why there are no samples.
func (s *session) none() error {
	if s.flt.Active() && s.Stats.Unwanted > 0 {
		return fmt.Errorf("none of the %d samples matches", s.Stats.Unwanted)
	}
	return errors.New("no samples")
}

// readProfile reads all of a recording, and says on standard error what its reader should know.
func readProfile(ctx context.Context, path string, o *output, flt *filter, mods *modules.Set) (*profile.Profile, error) {
	r, err := openRecording(path, flt, mods)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	o.inputs = append(o.inputs, r.stat)
	p, err := r.profile(ctx, o)
	if r.session != nil {
		r.session.warn()
		r.session.hints(p)
	}
	switch {
	case err == nil:
	case p == nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	default:
		fmt.Fprintf(stderr, "unspool: %s: %v\n", path, err)
	}
	return p, nil
}

var _ source.RecordStream = (*perfdata.File)(nil)
