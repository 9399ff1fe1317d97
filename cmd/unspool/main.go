// Command unspool turns unwind tables into stacks and stacks into pictures. Each verb has a file here with its flags and help; packages do the work.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/outfile"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/record/heap"
)

// stderr is where messages go, one a Write: the names of files and processes in them may not end the line or tell a terminal to do something.
var stderr = printable.Writer{W: cli.Stderr()}

// stdout is where results go that are not written by a package which returns what goes wrong.
var stdout = &cli.Writer{W: os.Stdout}

// usage marks err as wrong usage: exit status 2.
func usage(format string, args ...any) error { return cli.Usage(format, args...) }

// notify prints lines on standard error.
func notify(lines []string) {
	for _, l := range lines {
		fmt.Fprintf(stderr, "unspool: %s\n", l)
	}
}

// notifyLine prints a line on standard error.
func notifyLine(line string) { notify([]string{line}) }

// reportError prints an error that does not end the verb.
func reportError(err error) { fmt.Fprintf(stderr, "unspool: %v\n", err) }

// wrong marks an error, unless it is nil, as wrong usage.
func wrong(err error) error {
	if err == nil {
		return nil
	}
	return usage("%w", err)
}

func main() {
	os.Exit(cli.Run(cli.UntilSignal(func() { outfile.DiscardAll(); heap.DiscardAll() }), command(), os.Args[1:], stdout, stderr))
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
		Version: cli.Version(),
	}
	root.AddCommand(recordCmd(), topCmd(), agentCmd(), reportCmd(), diffCmd(), serveCmd(), unwindCmd(), stackCmd(), dumpCmd(), compileCmd(), verifyCmd(), statsCmd(), runCmd(), doctorCmd(), manCmd(), versionCmd())
	cobra.AddTemplateFunc("about", about)
	root.SetVersionTemplate("{{about}}")
	cli.Setup(root, groups, values)
	cli.EachVerb(root, func(c *cobra.Command) error {
		c.Example = cmp.Or(examples[c.CommandPath()], c.Example)
		return nil
	})
	for _, c := range root.Commands() {
		if keep, ok := parsers[c.Name()]; ok {
			run := c.RunE
			c.RunE = func(c *cobra.Command, args []string) error {
				if on, err := c.Flags().GetBool("run"); err != nil || !on {
					if err := caps.Drop(keep, caps.Outputs); err != nil && !errors.Is(err, errors.ErrUnsupported) {
						reportError(err)
					}
				}
				return run(c, args)
			}
		}
	}
	return root
}
