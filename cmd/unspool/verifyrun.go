package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/shadow"
	"github.com/unspool/unspool/tui"
)

// An execution is what verify --run is told.
type execution struct {
	on           bool
	format, path string
	opts         shadow.Options
}

var executionFlags = []string{"module", "function", "thread", "entry", "every", "steps", "format", "output"}

func (x *execution) flags(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&x.on, "run", false, "execute a command step by step, and compare at each instruction")
	cli.Var(c, &x.opts.Module, "module", "", "with --run: only in files whose path matches this regular expression", cli.Regexp)
	cli.Var(c, &x.opts.Function, "function", "", "with --run: only in functions whose name matches this regular expression", cli.Regexp)
	f.IntVar(&x.opts.Thread, "thread", 0, "with --run: only in this thread, counted from 1 in the order in which they start")
	f.BoolVar(&x.opts.Entry, "entry", false, "with --run: begin at the program's entry point, not in the dynamic linker")
	f.Uint64Var(&x.opts.Every, "every", 1, "with --run: compare at every n-th instruction only")
	f.Uint64Var(&x.opts.Steps, "steps", 0, "with --run: after so many instructions let the command run on by itself")
	cli.OneOf(c, &x.format, "format", "with --run: text or json", "text", "json")
	f.StringVarP(&x.path, "output", "o", "", "with --run: the report's file instead of standard error; \"-\" is standard output")
}

// verify executes a command and reports what its tables get wrong.
func (x *execution) verify(ctx context.Context, args []string) error {
	o := x.opts
	write := (*shadow.Result).WriteText
	if x.format == "json" {
		write = (*shadow.Result).WriteJSON
	}
	if o.Thread < 0 {
		return usage("--thread counts from 1")
	}
	var err error
	out, commit := io.Writer(os.Stderr), func(err error) error { return err }
	if x.path != "" {
		if out, commit, err = (&output{path: x.path}).create(ctx); err != nil {
			return err
		}
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	p := tui.NewProgress()
	o.Progress = func(steps, compared uint64) {
		p.Say("%s instructions, %s compared", profile.Comma(steps), profile.Comma(compared))
	}
	r, err := shadow.Run(ctx, cmd, o)
	p.Done()
	if r.Steps == 0 && err != nil {
		return commit(err)
	}
	if werr := commit(write(r, out)); werr != nil {
		return werr
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	if n := len(r.Wrong()); n > 0 {
		return fmt.Errorf("%d wrong rows that docs/FINDINGS.md does not list", n)
	}
	switch filtered := o.Module != nil || o.Function != nil || o.Thread != 0; {
	case r.Cut:
		return &cli.Exit{Status: 130}
	case filtered && r.Compared == 0:
		return usage("nothing was compared: --module, --function and --thread leave out all %s instructions", profile.Comma(r.Steps))
	}
	return nil
}
