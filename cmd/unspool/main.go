// Command unspool turns unwind tables into stacks and stacks into pictures. Each verb has a file here with
// its flags and its help; packages do the work.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/outfile"
)

// An exitError ends the program with a status and, where it has one, a message.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }

// usage marks err as wrong usage: exit status 2.
func usage(format string, args ...any) error {
	return &exitError{2, fmt.Errorf(format, args...)}
}

func main() {
	os.Exit(run(untilSignal(), os.Args[1:]))
}

// untilSignal returns a context that ends with the first signal that asks for the end: what there is is written then. A second Ctrl-C is for
// those who do not want to wait for that.
func untilSignal() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	c := make(chan os.Signal, 2)
	signal.Notify(c, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		signal.Notify(c, syscall.SIGHUP)
	}
	go func() {
		<-c
		cancel()
		for s := range c {
			if s == syscall.SIGHUP { // a terminal that goes away can send it twice
				continue
			}
			outfile.DiscardAll()
			signal.Reset(s)
			syscall.Kill(os.Getpid(), s.(syscall.Signal))
		}
	}()
	return ctx
}

// run is the program: it returns the exit status.
func run(ctx context.Context, args []string) int {
	root := command()
	root.SetArgs(args)
	root.SetErr(stderr)
	root.SetOut(stdout)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = stdout.err
	}
	if err == nil {
		return 0
	}
	var exit *exitError
	switch {
	case errors.As(err, &exit):
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		exit = &exitError{130, errors.New("interrupted")}
	default:
		exit = &exitError{1, err}
	}
	if exit.err != nil {
		fmt.Fprintf(stderr, "unspool: %s\n", message(exit.err))
	}
	if exit.status == 2 {
		fmt.Fprintf(stderr, "Run '%s --help' for usage.\n", cmd.CommandPath())
	}
	return exit.status
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:   "unspool",
		Short: "Profile programs as they were shipped, and check their unwind tables",
		Long: `unspool compiles the unwind tables in native binaries, and profiles C, C++, Rust and Go programs with them. The
programs need no frame pointers.`,
		Example: `  unspool record -o flame.svg -- ./program arg     record a program, draw a flame graph
  unspool report perf.data                         a table of where a recording's time went
  unspool dump /bin/ls                             the unwind rules of a binary`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version(),
	}
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(recordCmd(), topCmd(), reportCmd(), diffCmd(), serveCmd(), unwindCmd(), stackCmd(), dumpCmd(), compileCmd(), verifyCmd(), statsCmd(), runCmd(), doctorCmd(), manCmd(), versionCmd())
	generated(root)
	grouped(root)
	for _, c := range root.Commands() {
		if args := c.Args; args != nil {
			c.Args = func(c *cobra.Command, a []string) error {
				if args(c, a) != nil {
					return argsError(c, args, a)
				}
				return nil
			}
		}
	}
	for _, c := range root.Commands() {
		if keep, ok := parsers[c.Name()]; ok {
			run := c.RunE
			c.RunE = func(c *cobra.Command, args []string) error {
				if on, err := c.Flags().GetBool("run"); err != nil || !on {
					if err := caps.Drop(keep, caps.Outputs); err != nil && !errors.Is(err, errors.ErrUnsupported) {
						fmt.Fprintf(stderr, "unspool: %v\n", err)
					}
				}
				return run(c, args)
			}
		}
	}
	root.Args = func(_ *cobra.Command, a []string) error {
		if len(a) > 0 {
			return unknownCommand(root, a[0])
		}
		return nil
	}
	root.RunE = func(c *cobra.Command, _ []string) error {
		c.Help()
		return &exitError{status: 2}
	}
	return root
}
