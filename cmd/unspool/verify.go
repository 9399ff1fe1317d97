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
		Short: "Check that compiled tables match the originals, or that these are right where a program runs",
		Long: `Compile each file, and each ELF file in a directory, and compare the result with the reference
interpreter: both ends of every row must select that row's rule, and every distinct rule must do the
same as the reference on adversarial states of registers and memory. Machine code (--emit native) is run, in both
of its layouts and with each way of reading memory.

Exit status 1 if any differs. Damaged entries are counted; they are in no table.

With --run, execute a command step by step, and compare at each instruction what the tables recover (return address, CFA,
callee-saved registers) with the truth: a shadow stack of calls, returns, signals and longjmp. Each wrong row is reported once, with
the instructions around it and what it should be. Forked children, and what they execute, are followed, and so are threads. A
million instructions take half a minute. Exit status 1 if a row is wrong that is not listed in docs/FINDINGS.md, 2 if the
filters leave nothing to compare, 130 if it was interrupted; how the command ended is reported.`,
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
