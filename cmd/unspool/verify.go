package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/shadow"
	"github.com/unspool/unspool/tui"
)

func verifyCmd() *cobra.Command {
	emit, run, differences := "table", execution{format: "text"}, 10
	c := &cobra.Command{
		Use:   "verify [flags] {FILE... | --run -- COMMAND [ARG...]}",
		Short: "Check compiled tables against the originals, or the originals against a running program",
		Long: `Compile each file, and each executable, library and object file in directories and archives, and compare the result
with the reference interpreter. Both ends of every row must select the row's rule. Every distinct rule must equal the
reference on adversarial states of registers and memory. Machine code (--emit native) is run in the layouts page and
tree, with each way of reading memory.

The exit status is 1 if any file differs. verify counts damaged entries (no table has them), and lists functions in
.eh_frame but not in .eh_frame_hdr: unspool's tables contain these functions, but libgcc finds no information for them.

Where a file has several sources of unwind information, verify also compares them with each other, at each address that
two of them describe. It lists where they contradict each other; the exit status is then 1. Differences in the padding
after a return are counted separately. Sources that are right only at call sites are compared only there. Where two
rules count from different registers, only running the program shows whether they agree; verify counts these addresses.

With --run, verify executes a command step by step. At each instruction, it compares the return address, CFA and
callee-saved registers recovered by the tables with the truth: a shadow stack of calls, returns, signals and longjmp.
Each wrong row is reported once, with the instructions around it and the right values. Threads, forked children and
programs they execute are followed. A million instructions take half a minute. The exit status is 1 if docs/FINDINGS.md
does not list a wrong row, 2 if the filters leave nothing to compare, 130 after an interrupt.`,
		Example: "  unspool verify /bin/bash /usr/lib\n  unspool verify --run -- ls -l\n  unspool verify --run --module libcrypto --steps 5000000 -- openssl speed -seconds 1 sha256",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if run.on {
				return run.verify(c.Context(), args)
			}
			if err := cli.Refuse(c, executionFlags, "needs --run"); err != nil {
				return err
			}
			files, err := elfFiles(args, true)
			if err != nil {
				return err
			}
			var proofs compile.Proofs
			prove := func(path string) (compile.Proof, error) { return compile.Prove(path, emit == "native") }
			err = eachFile(c.Context(), files, "verified", prove, proofs.Add)
			proofs.WriteText(stdout, differences)
			if proofs.Differ() && err == nil {
				err = &cli.Exit{Status: 1}
			}
			return err
		},
	}
	cli.OneOf(c, &emit, "emit", "what to prove: table or native", "table", "native")
	c.Flags().IntVar(&differences, "differences", differences, "print at most `N` differences between two sources of a file")
	run.flags(c)
	return c
}

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
		if out, commit, err = (&output{report.Output{Path: x.path}}).create(ctx); err != nil {
			return err
		}
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	p := tui.NewProgress()
	o.Progress = func(steps, compared uint64) {
		p.Printf("%s instructions, %s compared", profile.Comma(steps), profile.Comma(compared))
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
