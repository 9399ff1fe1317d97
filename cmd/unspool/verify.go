package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/profile"
)

func verifyCmd() *cobra.Command {
	emit, run := "table", execution{}
	c := &cobra.Command{
		Use:   "verify [flags] {FILE... | --run -- COMMAND [ARG...]}",
		Short: "Check compiled tables against the originals, or the originals against a running program",
		Long: `Compile each file, and each ELF file in a directory, and compare the result with the reference interpreter. Both ends
of every row must select the row's rule. Every distinct rule must equal the reference on adversarial states of
registers and memory. Machine code (--emit native) is run in both of its layouts, with each way of reading memory.

The exit status is 1 if any file differs. Damaged entries are counted; no table has them.

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
			if err := run.unused(c); err != nil {
				return err
			}
			if emit != "table" && emit != "native" {
				return usage("--emit is table or native, not %q", emit)
			}
			files, err := elfFiles(args)
			if err != nil {
				return err
			}
			var proven, without, nrows, nrules, damaged int
			prove := func(path string) (compile.Proof, error) { return compile.Prove(path, emit == "native") }
			err = eachFile(c.Context(), files, "verified", prove, func(p compile.Proof, err error) {
				switch {
				case errors.Is(err, compile.ErrNoRows):
					without++
				case err == nil:
					proven++
					nrows += p.Rows
					nrules += p.Rules
					damaged += p.Damaged
				}
			})
			n := func(v int, one, many string) string { return profile.Count(uint64(v), one, many) }
			if right := proven + without; right > 0 {
				fmt.Fprintf(stdout, "%s: %s and %s equal the reference; %s; %s without unwind information\n",
					n(right, "file", "files"), n(nrows, "row", "rows"), n(nrules, "rule", "rules"),
					n(damaged, "damaged entry", "damaged entries"), n(without, "file", "files"))
			}
			return err
		},
	}
	c.Flags().StringVar(&emit, "emit", emit, "what to prove: table or native")
	run.flags(c)
	return c
}
