package main

import (
	"github.com/spf13/cobra"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/internal/cli"
)

func verifyCmd() *cobra.Command {
	emit, run, differences := "table", execution{format: "text"}, 10
	c := &cobra.Command{
		Use:   "verify [flags] {FILE... | --run -- COMMAND [ARG...]}",
		Short: "Check compiled tables against the originals, or the originals against a running program",
		Long: `Compile each file, and each executable, library and object file in directories and archives, and compare the result
with the reference interpreter. Both ends of every row must select the row's rule. Every distinct rule must equal the
reference on adversarial states of registers and memory. Machine code (--emit native) is run in both of its layouts,
with each way of reading memory.

The exit status is 1 if any file differs. Damaged entries are counted; no table has them. Functions that .eh_frame has and
.eh_frame_hdr does not lead to are listed: unspool's tables have them, and libgcc finds no unwind information there.

Where a file has several sources of unwind information, verify also compares them with each other, at each address that
two of them describe. It lists where they contradict each other; the exit status is then 1. What only aligns code behind
a return is counted apart. Sources that are right at call sites only are compared there. Where two rules count from different registers, nobody can tell without running the
program; verify counts these addresses.

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
