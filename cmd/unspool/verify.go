package main

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/profile"
)

func verifyCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "verify FILE...",
		Short: "Prove that the compiled tables of files equal their unwind information",
		Long: `Compile each file, and each ELF file in a directory, and compare the result with the reference
interpreter: both ends of every row must select that row's rule, and every distinct rule must do the
same as the reference on adversarial states of registers and memory.

Exit status 1 if any differs. Damaged entries are counted; they are in no table.`,
		Example: "  unspool verify /bin/bash /usr/lib",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			files, err := elfFiles(args)
			if err != nil {
				return err
			}
			var done, without, nrows, nsets, damaged atomic.Int64
			p := newProgress()
			err = eachFile(c.Context(), files, func(path string) error {
				defer func() { p.say("verified %d of %d files", done.Add(1), len(files)) }()
				t, damage, err := verifyFile(path)
				if errors.Is(err, errNoRows) {
					without.Add(1)
					return nil
				}
				if err != nil {
					return err
				}
				nrows.Add(int64(t.Rows))
				nsets.Add(int64(t.Rules))
				damaged.Add(int64(damage))
				return nil
			})
			p.done()
			n := func(v int64) string { return profile.Comma(uint64(v)) }
			fmt.Printf("%s files: %s rows and %s rules equal the reference; %s damaged entries; %s files without unwind information\n",
				n(int64(len(files))), n(nrows.Load()), n(nsets.Load()), n(damaged.Load()), n(without.Load()))
			return err
		},
	}
	return c
}

var errNoRows = errors.New("no call frame information")

// verifyFile proves one file's table, and returns its figures and the number of damaged entries.
func verifyFile(path string) (compact.Stats, int, error) {
	img, err := module.Open(path)
	if err != nil {
		return compact.Stats{}, 0, err
	}
	defer img.Close()
	f, err := dwarf.Open(img)
	if err != nil {
		return compact.Stats{}, 0, err
	}
	ref, damage := f.Build(dwarf.Both)
	if len(ref.Rows) == 0 {
		return compact.Stats{}, len(damage), errNoRows
	}
	b, err := compact.Emit(ref)
	if err != nil {
		return compact.Stats{}, 0, fmt.Errorf("%s: %w", path, err)
	}
	t, err := compact.Load(b)
	if err == nil {
		err = compact.Verify(t, ref, 1)
	}
	if err != nil {
		return compact.Stats{}, 0, fmt.Errorf("%s: %w", path, err)
	}
	return t.Stats(), len(damage), nil
}
