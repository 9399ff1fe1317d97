package main

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/rows"
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
			var done, proven, without, nrows, nsets, damaged atomic.Int64
			p := newProgress()
			err = eachFile(c.Context(), files, func(path string) error {
				defer func() { p.say("verified %d of %d files", done.Add(1), len(files)) }()
				t, err := verifyFile(path, emit)
				if errors.Is(err, errNoRows) {
					without.Add(1)
					return nil
				}
				if err != nil {
					return err
				}
				proven.Add(1)
				nrows.Add(int64(t.rows))
				nsets.Add(int64(t.rules))
				damaged.Add(int64(t.damaged))
				return nil
			})
			p.done()
			n := func(v int64, one, many string) string { return profile.Count(uint64(v), one, many) }
			if right := proven.Load() + without.Load(); right > 0 {
				fmt.Fprintf(stdout, "%s: %s and %s equal the reference; %s; %s without unwind information\n",
					n(right, "file", "files"), n(nrows.Load(), "row", "rows"), n(nsets.Load(), "rule", "rules"),
					n(damaged.Load(), "damaged entry", "damaged entries"), n(without.Load(), "file", "files"))
			}
			return err
		},
	}
	c.Flags().StringVar(&emit, "emit", emit, "what to prove: table or native")
	run.flags(c)
	return c
}

var errNoRows = errors.New("no call frame information")

// A proof is what was proven of a file.
type proof struct{ rows, rules, damaged int }

// verifyFile proves what is made of one file.
func verifyFile(path, emit string) (proof, error) {
	img, f, err := openFrames(path)
	if err != nil {
		return proof{}, err
	}
	defer img.Close()
	ref, damage := f.Rows()
	if len(ref.Rows) == 0 {
		return proof{}, errNoRows
	}
	b, err := compact.Emit(ref)
	if err != nil {
		return proof{}, fmt.Errorf("%s: %w", path, err)
	}
	t, err := compact.Load(b)
	if err == nil {
		err = compact.Verify(t, ref, 1)
	}
	if err == nil && emit == "native" {
		err = verifyNative(ref)
	}
	if err != nil {
		return proof{}, fmt.Errorf("%s: %w", path, err)
	}
	s := t.Stats()
	return proof{s.Rows, s.Rules, len(damage)}, nil
}

func verifyNative(ref *rows.Table) error {
	for _, l := range []native.Layout{native.Page, native.Tree} {
		for _, d := range []native.Deref{native.Self, native.Callback, native.Slice} {
			b, err := native.Emit(ref, native.Options{Layout: l, Deref: d})
			if err != nil {
				return err
			}
			c, err := native.Load(b)
			if err != nil {
				return err
			}
			err = native.Verify(c, ref, 1)
			c.Close()
			if err != nil {
				return fmt.Errorf("%v, %v: %w", l, d, err)
			}
		}
	}
	return nil
}
