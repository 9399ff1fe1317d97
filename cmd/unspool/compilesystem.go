package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/internal/cli"
)

// heapLimit is how much memory compile --system takes, in bytes, before the garbage collector works harder. A large library takes more.
const heapLimit = 200 << 20

// system compiles for all users of the machine, or for a package where there is an output directory.
func (o *compilation) system(c *cobra.Command, args []string) error {
	if err := cli.Refuse(c, []string{"emit", "layout", "deref", "functions", "registers", "embed", "pid"}, "does not go with --system"); err != nil {
		return err
	}
	if o.Dir != "" && len(args) == 0 {
		return usage("--system with --output: name the files and directories of the package")
	}
	cli.LimitMemory(heapLimit)
	began, ctx := time.Now(), c.Context()
	s, files, err := compile.OpenShared(ctx, o.Dir, args, sayError)
	if err != nil {
		return err
	}
	defer s.Close()
	err = eachFile(ctx, files, "looked at", func(path string) (compile.Result, error) { return s.File(ctx, path) }, o.done.Add)
	text, ferr := s.Finish(&o.done, time.Since(began))
	if !o.quiet {
		fmt.Fprint(stdout, text)
	}
	if ferr != nil {
		return ferr
	}
	return err
}
