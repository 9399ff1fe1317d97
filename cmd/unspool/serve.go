package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/report/annotate"
	"github.com/unspool/unspool/serve"
	"github.com/unspool/unspool/serve/files"
)

func serveCmd() *cobra.Command {
	var listen, root, baseline, export string
	var open bool
	var in reading
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
			end, err := in.begin()
			if err != nil {
				return err
			}
			defer end()
			switch {
			case len(args) == 2 && baseline != "":
				return usage("the baseline is given twice: %s and %s", args[1], baseline)
			case len(args) == 2: // as it was before the flag
				fmt.Fprintf(stderr, "unspool: comparing %s with %s; write --baseline %[2]s instead\n", args[0], args[1])
			case baseline != "":
				args = append(args, baseline)
			}
			var inputs []serve.Input
			for _, path := range args {
				inputs = append(inputs, in.input(path))
			}
			if export != "" {
				return runExport(c.Context(), inputs, export)
			}
			for _, path := range args {
				if err := record.CheckInput(path); err != nil { // before there is an address
					return err
				}
			}
			n := newNamer(names.Options{Mods: in.mods}, true)
			defer n.Close()
			o := serve.Options{Inputs: inputs, Annotator: &annotate.Annotator{Code: n, Sources: annotate.Sources{Root: root}}}
			begun := func(url string) error {
				_, err := fmt.Fprintln(stdout, url)
				return err
			}
			return serve.Show(c.Context(), o, listen, begun, open, func(err error) { fmt.Fprintf(stderr, "unspool: the browser: %v\n", err) })
		},
	}
	cli.Var(c, &listen, "listen", "127.0.0.1:0", "address and port to listen on; port 0: any free port", cli.Address)
	c.Flags().BoolVar(&open, "open", false, "open the page in a browser")
	c.Flags().StringVar(&baseline, "baseline", "", "compare FILE with this earlier recording")
	c.MarkFlagFilename("baseline")
	c.Flags().StringVar(&export, "export", "", "write the page to this file, to pass it on without the recording, and end")
	c.MarkFlagFilename("export", "html")
	c.Flags().StringVar(&root, "source-root", "", "look for source files below this directory first")
	c.MarkFlagDirname("source-root")
	in.flags(c)
	return c
}

// runExport writes the page as one file.
func runExport(ctx context.Context, inputs []serve.Input, to string) error {
	out := output{report.Output{Path: to}}
	for _, in := range inputs {
		if in.Name != "-" {
			st, err := os.Stat(in.Name)
			if err != nil {
				return err
			}
			out.Inputs = append(out.Inputs, st)
		}
	}
	s := serve.New(serve.Options{Inputs: inputs})
	if err := s.Load(ctx); err != nil {
		return err
	}
	w, commit, err := out.create(ctx)
	if err != nil {
		return err
	}
	return commit(s.Export(ctx, w))
}

// input returns how a file is read for the page.
func (r *reading) input(path string) serve.Input {
	done := func() {}
	return files.Input(path, files.Options{
		Open: func(ctx context.Context, added func(*profile.Profile, []int32)) (*record.File, error) {
			f, err := r.open(ctx, path, record.FileOptions{Added: added})
			if err == nil && f.Session != nil {
				done = shown(f.Session)
			}
			return f, err
		},
		Read: func(f *record.File, p *profile.Profile) {
			done()
			notify(f.Notes())
			notify(f.Hints(p))
		},
		Damaged: reportError,
	})
}
