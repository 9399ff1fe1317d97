package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/tui"
	"github.com/unspool/unspool/tui/browse"
)

func reportCmd() *cobra.Command {
	var o output
	var in reading
	var to sending
	var ann annotator
	// After the tables.
	o.Formats = slices.Insert(slices.Clone(report.Formats), 4, ann.formats()...)
	c := &cobra.Command{
		Use:   "report [FILE]",
		Short: "Show where a recording's time went",
		Long: `Turn a recording into a table, a flame graph, or another tool's format.

FILE is a recording of perf record or unspool record (perf.data), or a pprof profile; "-" is standard input. The
default is ` + defaultRecording + `. Copies of stacks (perf record --call-graph dwarf) are unwound on the way. FILE can
also be the directory that unspool agent --output files=DIR fills: of all its services or of --service, the last hour
or the --time FROM,TO.

json and jsonl write one object for each sample, each on its own line, in order of time. stacks writes one object for
each different stack. A pprof profile has no single samples: use stacks.

On a terminal, without -o or another flag for a report, you can browse the recording: a tree of calls, a table of
functions, their callers. In a pipe, or with --format top, report prints a table.

--to sends the recording to an engine instead, with the names of functions and inlined calls:
parca=http://HOST:7070, pyroscope=http://HOST:4040, otlp=http://HOST:4318 or otlp=grpc://HOST:4317.

Every report says how many stacks are whole. A whole stack ends at its thread's first frame.`,
		Example: `  unspool report
  unspool report perf.data
  unspool report perf.data -o flame.svg
  unspool report perf.data --comm cc1plus --format callers --function malloc
  unspool report perf.data --format annotate --function '^main$'
  unspool report perf.data -o profile.firefox.json           for profiler.firefox.com, with times
  unspool report /var/lib/unspool --time 14:30,14:45 --service nginx
  unspool report perf.data --to parca=http://127.0.0.1:7070 --label service_name=shop
  perf record --call-graph dwarf -o - ./program | unspool report - -o profile.pb.gz`,
		Args: cli.NoneOr(1),
		RunE: func(c *cobra.Command, args []string) error {
			cli.CollectLate()
			args, err := recordings(args, defaultRecording)
			if err != nil {
				return err
			}
			if err := ann.check(); err != nil {
				return err
			}
			if err := to.check(); err != nil {
				return err
			}
			sends := len(to.Targets) > 0
			if sends && (o.Path != "" || o.Format != "" || o.Func != "") {
				return usage("--to sends the recording, and writes no report: it does not go with -o, --format or --function")
			}
			walk := !sends && args[0] != "-" && o.Path == "" && o.Format == "" && o.Func == "" && !c.Flags().Changed("limit") && !c.Flags().Changed("sort") && tui.Interactive()
			if o.Format == recordingFormat.Name || o.Format == "" && strings.HasSuffix(o.Path, recordingFormat.Endings[0]) {
				return usage("to write perf.data, use unspool unwind")
			}
			if err := o.resolve(); err != nil {
				return err
			}
			if err := o.unused(c); err != nil {
				return err
			}
			end, err := in.begin()
			if err != nil {
				return err
			}
			defer end()
			if sends || walk {
				p, err := in.profile(c.Context(), args[0], &o)
				switch {
				case err != nil:
					return err
				case sends:
					return to.Send(c.Context(), p, args[0], notifyLine)
				}
				return browse.Show(c.Context(), p, args[0], p.Weight())
			}
			ann.mods = in.mods
			return runReport(c.Context(), args[0], &o, &in, &ann)
		},
	}
	o.flags(c)
	in.filter.flags(c)
	in.flags(c)
	to.flags(c)
	ann.flags(c)
	return c
}

func runReport(ctx context.Context, path string, o *output, in *reading, ann *annotator) error {
	f, err := in.open(ctx, path, record.FileOptions{})
	if err != nil {
		return err
	}
	defer f.Close()
	o.Inputs = append(o.Inputs, f.Stat)
	write := func(p *profile.Profile) error {
		if o.Form().Whole == nil {
			return usage("a pprof profile has no single samples: --format stacks or -o FILE.stacks.json has its stacks")
		}
		return o.write(ctx, func(w io.Writer) error { return o.Write(w, p) })
	}
	if f.Pprof != nil {
		return write(f.Pprof)
	}
	ann.names = f.Names
	if o.Form().Stream != nil {
		var bad error // what was there before it is good
		err = o.write(ctx, func(w io.Writer) error {
			err := stream(ctx, f.Session, w, o, nil)
			if errors.Is(err, source.ErrTruncated) || errors.Is(err, source.ErrMalformed) {
				bad, err = err, nil
			}
			if err == nil && f.Stats.Samples == 0 {
				return cmp.Or(bad, f.NoSamples())
			}
			return err
		})
		err = cmp.Or(err, bad)
	} else {
		var p *profile.Profile
		if p, err = some(ctx, f.Session); p != nil {
			if werr := write(p); werr != nil {
				return werr
			}
			notify(f.Hints(p))
		}
	}
	notify(f.Notes())
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	wrote(o, f.Summary())
	return nil
}
