package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/report/annotate"
	"github.com/unspool/unspool/serve"
)

func serveCmd() *cobra.Command {
	var listen, root, baseline, export string
	var open, plain bool
	var flt filter
	var stepper func() (*modules.Set, error)
	c := &cobra.Command{
		Use:   "serve [FILE]",
		Short: "Explore a recording in the browser",
		Long: `Show a recording on a local web page: flame graph, table of functions, callers and callees, samples by thread and
time, source and disassembly. Every view can be filtered by process, thread, time and function.

FILE is a perf.data file, a pprof profile or the directory of an agent, as for unspool report. The default is
` + defaultRecording + `. With --baseline, the page compares FILE with an earlier recording, as unspool diff BEFORE FILE
does.

Only this machine can reach the page, unless --listen names another address. The printed address has a token; the page
opens only with this token. The page loads nothing from elsewhere. It shows a source file if the program's owner may
read the file.

With --export, the page becomes one file that a browser shows without a server: flame graph, functions, callers and
callees, filters and searches. The file has no source, no time line and no pages of pprof.`,
		Example: `  unspool serve perf.data
  unspool serve --open unspool.data
  unspool serve after.data --baseline before.data
  unspool serve /var/lib/unspool --time -15m,
  unspool serve perf.data --export page.html`,
		Args: cobra.MaximumNArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			args, err := recordings(args, defaultRecording)
			if err != nil {
				return err
			}
			if err := cli.Directories("--source-root", root); err != nil {
				return err
			}
			if err := flt.compile(); err != nil {
				return err
			}
			mods, err := stepper()
			if err != nil {
				return err
			}
			defer mods.Close()
			switch {
			case len(args) == 2 && baseline != "":
				return usage("the baseline is given twice: %s and %s", args[1], baseline)
			case len(args) == 2: // as it was before the flag
				fmt.Fprintf(stderr, "unspool: comparing %s with %s; write --baseline %[2]s instead\n", args[0], args[1])
			case baseline != "":
				args = append(args, baseline)
			}
			if export != "" {
				return runExport(c.Context(), args, export, &flt, mods, plain)
			}
			a := pageAnnotator{names: newNamer(names.Options{Mods: mods})}
			defer a.names.Close()
			a.sources.Root = root
			return runServe(c.Context(), args, listen, open, &flt, mods, plain, &a)
		},
	}
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "address and port to listen on; port 0: any free port")
	c.Flags().BoolVar(&open, "open", false, "open the page in a browser")
	c.Flags().StringVar(&baseline, "baseline", "", "compare FILE with this earlier recording")
	c.MarkFlagFilename("baseline")
	c.Flags().StringVar(&export, "export", "", "write the page to this file, to pass it on without the recording, and end")
	c.MarkFlagFilename("export", "html")
	c.Flags().StringVar(&root, "source-root", "", "look for source files below this directory first")
	c.MarkFlagDirname("source-root")
	sourceFlag(c, &plain)
	flt.ring(c)
	stepper = lookingFlag(c)
	return c
}

func runServe(ctx context.Context, paths []string, listen string, open bool, flt *filter, mods *modules.Set, plain bool, a serve.Annotator) error {
	if err := checkListen(listen); err != nil {
		return err
	}
	o := serve.Options{Annotator: a, Token: serve.NewToken()}
	for _, p := range paths {
		if err := record.CheckInput(p); err != nil { // before there is an address
			return err
		}
		o.Inputs = append(o.Inputs, serveInput(p, flt, mods, plain))
	}
	l, err := net.Listen("tcp", listen)
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err // without the address once more
	}
	if err != nil {
		return fmt.Errorf("--listen %s: %w", listen, err)
	}
	url := serve.URL(l.Addr(), o.Token)
	if _, err := fmt.Fprintln(stdout, url); err != nil {
		l.Close()
		return err
	}
	if open {
		closed, err := serve.OpenBrowser(url)
		if err != nil {
			fmt.Fprintf(stderr, "unspool: the browser: %v\n", err)
		} else {
			defer closed()
		}
	}
	return serve.New(o).Run(ctx, l)
}

// runExport writes the page as one file.
func runExport(ctx context.Context, paths []string, to string, flt *filter, mods *modules.Set, plain bool) error {
	var o serve.Options
	out := output{path: to}
	for _, p := range paths {
		if p != "-" {
			st, err := os.Stat(p)
			if err != nil {
				return err
			}
			out.inputs = append(out.inputs, st)
		}
		o.Inputs = append(o.Inputs, serveInput(p, flt, mods, plain))
	}
	s := serve.New(o)
	if err := s.Load(ctx); err != nil {
		return err
	}
	w, commit, err := out.create(ctx)
	if err != nil {
		return err
	}
	return commit(s.Export(ctx, w))
}

// A pageAnnotator annotates functions for the page.
type pageAnnotator struct {
	names   *names.Namer
	sources annotate.Sources
}

// Annotate implements serve.Annotator.
func (a *pageAnnotator) Annotate(p *profile.Profile, fn int32, by profile.Weight) (any, error) {
	o := codeOf(a.names, a.sources)
	o.By = by
	return annotate.Function(p, fn, o)
}

// serveInput returns how a file is read for the page; plain leaves out lines and inlined calls.
func serveInput(path string, flt *filter, mods *modules.Set, plain bool) serve.Input {
	return serve.Input{Name: path, Read: func(ctx context.Context, progress func(serve.Progress)) (*serve.Recording, error) {
		var intervals serve.Times
		length := time.Duration(0)
		f, s, err := openFile(ctx, path, flt, mods, false, func(p *profile.Profile, stacks []int32) {
			length = max(length, p.Duration)
			intervals.Spread(p, stacks)
		})
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if f.Pprof != nil {
			rec := &serve.Recording{Profile: f.Pprof, Periods: f.Pprof.Waits() || f.Pprof.Heap()}
			if f.Ring != nil {
				rec.Services, rec.Times, rec.Interval = f.Ring.Tags, &intervals, length
			}
			return rec, nil
		}
		o := output{plain: plain}
		times := &serve.Times{}
		n := uint64(0)
		p, err := s.profile(ctx, &o, func(x *profile.Sample, stack int) {
			if n++; n&1023 == 0 {
				done, total := f.Read()
				progress(serve.Progress{Done: done, Total: total, Samples: n})
			}
			if n == 1 {
				s.Events()
				times.Waits = s.Info.Waits()
			}
			times.Add(x.Time, stack, x.Period)
		})
		s.warn()
		s.hints(p)
		if err != nil {
			err = fmt.Errorf("%s: %w", path, err)
			if n == 0 {
				return nil, err
			}
			fmt.Fprintf(stderr, "unspool: %v\n", err)
		}
		return &serve.Recording{Profile: p, Times: times, Local: true, Periods: o.opts.By == report.Periods}, nil
	}}
}
