package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/module"
)

func dumpCmd() *cobra.Command {
	format, name, d := "text", "", compile.Dump{}
	c := &cobra.Command{
		Use:   "dump FILE",
		Short: "Print the unwind rules of a binary, row by row",
		Long: `Print the unwind rules of a binary: for each range of addresses, how to find the caller.

Text has one line for each row, and a line before the first row of each source. It can be read back. JSON has one
object for each row. In object files and kernel modules, an address is a section and an offset there. Rules are spelled
as in readelf -wF, expressions as in llvm-dwarfdump. Unreadable entries are listed on standard error, and the exit
status is then 1; all other rows are printed.

Of an archive, a universal file or a directory, dump prints each file that has unwind information. The file's name comes
before its rows: in a comment, or in JSON in an object.

With --exceptions, dump prints the exception tables of functions (.gcc_except_table) instead. Each call site is a range
of calls; an exception from one of them goes on at the landing pad, which cleans up, catches types or filters them. An
exception from a call outside of all call sites ends the program.

On Windows, a function may have an exception handler: dump prints the handler's name or address. For the handlers of C,
C++ and GCC, dump also prints the handler's data: the ranges of __try with their filters, the states with their cleanups
and catches, or the call sites. For other handlers, dump prints where their data is.`,
		Example: "  unspool dump /bin/ls | head\n  unspool dump --format json /bin/ls | jq -r 'select(.signal) | .lo'\n  unspool dump 'libc.a(printf.o)'\n  unspool dump 'program(arm64)'\n  unspool dump --exceptions /usr/bin/gdb",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if d.Exceptions && name != "" {
				return usage("--exceptions prints no unwind information: it does not go with --unwind")
			}
			if name != "" {
				d.Unwind = []string{name}
			}
			d.JSON = format == "json"
			damaged := false
			d.Failed = func(err error) {
				damaged = true
				reportError(err)
			}
			var err error
			if st, serr := os.Stat(args[0]); (serr != nil || !st.IsDir()) && !module.IsArchive(args[0]) {
				err = d.File(os.Stdout, args[0])
			} else if files, ferr := elfFiles(args, true); ferr != nil {
				err = ferr
			} else {
				err = d.Files(c.Context(), os.Stdout, files)
			}
			if err == nil && damaged {
				err = &cli.Exit{Status: 1}
			}
			return err
		},
	}
	c.Flags().BoolVar(&d.Exceptions, "exceptions", false, "print the exception tables instead: where an exception from a call goes on, and what it meets there")
	cli.OneOf(c, &format, "format", "text or json", "text", "json")
	c.Flags().StringVar(&name, "unwind", name, "print only the unwind information called `NAME`, such as .eh_frame (default: all, in order of precedence)")
	return c
}
