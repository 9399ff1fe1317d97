package main

import (
	"context"
	"errors"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/tui"
)

// newNamer returns a Namer that shows its downloads. The interrupt that ends a recording does not stop the downloads for it; the next
// interrupt does. plain leaves out lines and inlined calls.
func newNamer(o names.Options, plain bool) *names.Namer {
	o.Progress = tui.Fetching()
	o.Download = func() (context.Context, func()) {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
		return ctx, stop
	}
	n := names.New(o)
	n.Lines = !plain
	return n
}

// sourceFlag adds the flag that turns names.Namer.Lines off.
func sourceFlag(c *cobra.Command, plain *bool) {
	c.Flags().BoolVar(plain, "no-inline", false, "leave out lines and inlined calls (faster)")
}

// searchFlags adds the flags for the places of the files of a recording or a core. Call the function it returns after the flags are parsed.
func searchFlags(c *cobra.Command) func() (*module.Locator, error) {
	f := c.Flags()
	sysroot := f.String("sysroot", "", "look for the programs of a recording or a core dump below this root directory first")
	dirs := f.StringArray("debug-dir", nil, "directory with .build-id/, for programs and debug files (may be repeated; /usr/lib/debug and perf's ~/.debug are always searched)")
	c.MarkFlagDirname("sysroot")
	c.MarkFlagDirname("debug-dir")
	return func() (*module.Locator, error) {
		if err := errors.Join(cli.Directories("--sysroot", *sysroot), cli.Directories("--debug-dir", *dirs...)); err != nil {
			return nil, err
		}
		return names.Files(*sysroot, *dirs), nil
	}
}
