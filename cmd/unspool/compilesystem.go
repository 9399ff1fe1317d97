package main

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/store"
)

// heapLimit is how much memory is taken, in bytes, before the garbage collector works harder. A large library takes more.
const heapLimit = 200 << 20

// system compiles for all users of the machine, or for a package where there is an output directory.
func (o *compilation) system(c *cobra.Command, args []string) (err error) {
	for _, name := range []string{"emit", "layout", "deref", "functions", "registers", "embed", "pid"} {
		if c.Flags().Changed(name) {
			return usage("--%s does not go with --system", name)
		}
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(heapLimit)
	}
	began, ctx := time.Now(), c.Context()
	var s compile.Shared
	known := func(string) bool { return false }
	if o.Dir != "" {
		if len(args) == 0 {
			return usage("--system with --output: name the files and directories of the package")
		}
		if s.Store, err = store.OpenPackage(o.Dir); err != nil {
			return err
		}
	} else {
		if s.Machine, err = store.OpenMachine(ctx, ""); err != nil {
			return err
		}
		defer s.Machine.Close()
		s.Store = s.Machine.Store
		known = func(path string) bool { _, ok := s.Machine.Known(path); return ok }
	}
	files, err := compile.Installed(args, known, func(err error) { fmt.Fprintf(stderr, "unspool: %v\n", err) })
	if err != nil {
		return err
	}
	work := func(path string) (compile.Result, error) { return s.File(ctx, path) }
	err = eachFile(ctx, files, "looked at", work, o.done.Add)
	if s.Machine == nil {
		if !o.quiet {
			fmt.Fprintf(stdout, "%s, in %s: %s\n", o.done.Shared(), time.Since(began).Round(10*time.Millisecond), o.Dir)
		}
		return err
	}
	verr := s.VDSO()
	p, perr := s.Machine.Prune()
	if !o.quiet {
		fmt.Fprintf(stdout, "%s, in %s\n", o.done.Shared(), time.Since(began).Round(10*time.Millisecond))
		if p.Gone > 0 {
			fmt.Fprintf(stdout, "%s removed, whose files have changed or gone: %s\n", printable.Count(uint64(p.Gone), "table", "tables"), printable.Bytes(p.GoneBytes))
		}
		fmt.Fprintf(stdout, "%s has %s: %s\n", s.Store.Dir(), printable.Count(uint64(p.Left), "table", "tables"), printable.Bytes(p.LeftBytes))
	}
	if e := errors.Join(verr, perr); e != nil {
		return e
	}
	return err
}
