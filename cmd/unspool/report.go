package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfdata"
)

// endings say which format the name of an output file asks for.
var endings = []struct{ ending, format string }{
	{".svg", "flame"}, {".pb.gz", "pprof"}, {".pb", "pprof"}, {".pprof", "pprof"}, {".folded", "folded"},
	{".txt", "top"}, {".jsonl", "jsonl"}, {".json", "json"}, {".perf", "perf"}, {".data", "data"},
}

// An output is where a report goes and what it looks like; its flags are shared by report and record.
type output struct {
	path, format string
	opts         report.Options
}

func (o *output) flags(c *cobra.Command) {
	c.Flags().StringVarP(&o.path, "output", "o", o.path, "file to write; its ending picks the format")
	c.Flags().StringVar(&o.format, "format", o.format, "top, callers, folded, flame, pprof, perf, json or jsonl (default: by the ending of -o, else top)")
	c.Flags().BoolVar(&o.opts.Icicle, "icicle", false, "draw the flame graph upside down, the root on top")
	c.Flags().BoolVar(&o.opts.Summary, "summary", false, "json, jsonl: end with an object that has the counts of whole and other stacks")
	c.Flags().StringVar(&o.opts.Func, "function", "", "callers: functions whose name matches this regular expression")
	c.Flags().IntVar(&o.opts.Limit, "limit", 0, "top, callers: show this many functions")
	c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"top", "callers", "folded", "flame", "pprof", "perf", "json", "jsonl"}, cobra.ShellCompDirectiveNoFileComp))
}

// resolve picks the format.
func (o *output) resolve(fallback string) error {
	if o.format == "" {
		for _, e := range endings {
			if o.path != "" && strings.HasSuffix(o.path, e.ending) {
				o.format = e.format
				break
			}
		}
	}
	if o.format == "" && o.opts.Func != "" {
		o.format = "callers"
	}
	if o.format == "" && o.path != "" && o.path != "-" {
		return usage("the ending of %q says no format: .svg .pb.gz .folded .txt .json .jsonl .perf, or give --format", o.path)
	}
	if o.format == "" {
		o.format = fallback
	}
	if o.format != "data" && o.format != "jsonl" && report.Formats[o.format] == nil {
		return usage("there is no format %q", o.format)
	}
	if o.format == "pprof" && (o.path == "" || o.path == "-") && term.IsTerminal(int(os.Stdout.Fd())) {
		return usage("pprof is binary: give -o FILE.pb.gz, or pipe it")
	}
	return nil
}

// create opens the output. commit closes it, and returns its argument or what went wrong then; a file
// that could not be written in full is removed.
func (o *output) create() (w *os.File, commit func(error) error, err error) {
	if o.path == "" || o.path == "-" {
		o.opts = o.terminal()
		return os.Stdout, func(err error) error { return err }, nil
	}
	file, err := os.Create(o.path)
	if err != nil {
		return nil, nil, err
	}
	return file, func(err error) error {
		if err != nil {
			file.Truncate(0) // the directory may be another user's
		}
		if cerr := file.Close(); err == nil {
			err = cerr
		}
		if st, serr := os.Lstat(o.path); err != nil && serr == nil && st.Mode().IsRegular() {
			os.Remove(o.path)
		}
		return err
	}, nil
}

// terminal returns the options for standard output: as wide as the terminal, if it is one.
func (o *output) terminal() report.Options {
	opts := o.opts
	if cols, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		opts.Width = cols
	}
	return opts
}

// write calls f with the output.
func (o *output) write(f func(io.Writer) error) error {
	w, commit, err := o.create()
	if err != nil {
		return err
	}
	return commit(f(w))
}

func reportCmd() *cobra.Command {
	var o output
	var flt filter
	var stepper func() (*modules.Set, error)
	c := &cobra.Command{
		Use:   "report FILE",
		Short: "Show where a recording's time went",
		Long: `Turn a recording into a table, a flame graph, or another tool's format.

FILE is a perf.data file, as perf record or unspool record write it, or a pprof profile; "-" is standard
input. Stack copies (perf record --call-graph dwarf) are unwound here.

json and jsonl are one object a line for each sample, in the order of time; of a pprof profile, for each different stack.

Every report says how many stacks are whole. A stack is whole when it ends at a thread's first frame.`,
		Example: `  unspool report perf.data
  unspool report perf.data -o flame.svg
  unspool report perf.data --comm cc1plus --format callers --function malloc
  perf record --call-graph dwarf -o - ./program | unspool report - -o profile.pb.gz`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.resolve("top"); err != nil {
				return err
			}
			if o.format == "data" {
				return usage("to write perf.data, use unspool unwind")
			}
			mods, err := stepper()
			if err != nil {
				return err
			}
			if err := flt.compile(); err != nil {
				return err
			}
			return runReport(c.Context(), args[0], &o, &flt, mods)
		},
	}
	o.flags(c)
	flt.flags(c)
	stepper = stepperFlag(c)
	return c
}

func runReport(ctx context.Context, path string, o *output, flt *filter, mods *modules.Set) error {
	in, head, err := openInput(path)
	if err != nil {
		return err
	}
	defer in.Close()
	if len(head) >= 2 && head[0] == 0x1f && head[1] == 0x8b || o.pprofInput(head) {
		p, err := report.ReadPprof(in)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		p = p.Filter(flt.stack)
		if o.format == "jsonl" {
			o.format = "json" // it has no single samples
		}
		return o.write(func(w io.Writer) error { return report.Formats[o.format](w, p, o.opts) })
	}

	f, err := perfdata.New(in, path)
	if err != nil {
		return err
	}
	defer f.Close()
	s := openFile(mods, f, flt)
	if o.format == "json" || o.format == "jsonl" || o.format == "perf" {
		err = o.write(func(w io.Writer) error { return s.stream(ctx, w, o) })
	} else {
		var p *profile.Profile
		if p, err = s.profile(ctx, o); p != nil && p.Totals.Samples > 0 {
			if werr := o.write(func(w io.Writer) error { return report.Formats[o.format](w, p, o.opts) }); werr != nil {
				return werr
			}
		} else if err == nil {
			err = errors.New("no samples")
			if flt.active() && s.stats.Unwanted > 0 {
				err = fmt.Errorf("none of the %d samples matches", s.stats.Unwanted)
			}
		}
	}
	s.warn()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	s.wrote(o.path)
	return nil
}

// openInput opens a file or standard input, and looks at its first bytes.
func openInput(path string) (in *os.File, head []byte, err error) {
	if path == "-" {
		return os.Stdin, nil, nil
	}
	if in, err = os.Open(path); err != nil {
		return nil, nil, err
	}
	head = make([]byte, 8)
	n, err := io.ReadFull(in, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		in.Close()
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	_, err = in.Seek(0, io.SeekStart)
	return in, head[:n], err
}

// pprofInput says whether a file that starts with head may be an uncompressed pprof profile.
func (o *output) pprofInput(head []byte) bool {
	return len(head) > 0 && head[0] == 0x0a && !bytes.HasPrefix(head, []byte("PERFILE"))
}

var _ source.RecordStream = (*perfdata.File)(nil)
