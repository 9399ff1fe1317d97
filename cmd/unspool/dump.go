package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

func dumpCmd() *cobra.Command {
	format, name, exceptions := "text", "", false
	c := &cobra.Command{
		Use:   "dump FILE",
		Short: "Print the unwind rules of a binary, row by row",
		Long: `Print the unwind rules of a binary: for each range of addresses, how to find the caller.

Text has one line for each row, and a line before the first row of each source. It can be read back. JSON has one
object for each row. In object files and kernel modules, an address is a section and an offset there. Rules are spelled
as in readelf -wF, expressions as in llvm-dwarfdump. Unreadable entries are listed on standard error, and the exit
status is then 1; all other rows are printed.

Of an archive, a universal file or a directory, dump prints each file that has unwind information, with its name in a comment, or in JSON in an object, before its rows.

With --exceptions, dump prints the exception tables of functions (.gcc_except_table) instead. Each call site is a range
of calls; an exception from one of them goes on at the landing pad, which cleans up, catches types or filters them. An
exception from a call outside of all call sites ends the program.`,
		Example: "  unspool dump /bin/ls | head\n  unspool dump --format json /bin/ls | jq -r 'select(.signal) | .lo'\n  unspool dump 'libc.a(printf.o)'\n  unspool dump 'program(arm64)'\n  unspool dump --exceptions /usr/bin/gdb",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			write := map[string]func(*rows.Table, io.Writer) error{"text": (*rows.Table).WriteText, "json": (*rows.Table).WriteJSON}[format]
			if write == nil {
				return usage("--format is text or json, not %q", format)
			}
			if exceptions && name != "" {
				return usage("--exceptions prints no unwind information: it does not go with --unwind")
			}
			var only []string
			if name != "" {
				only = []string{name}
			}
			one := func(w io.Writer, path string) (damage []error, err error) {
				if exceptions {
					return compile.WriteExceptions(w, path, format == "json")
				}
				t, damage, err := compile.Rows(path, only...)
				if err == nil {
					err = write(t, w)
				}
				return damage, err
			}
			if st, err := os.Stat(args[0]); (err != nil || !st.IsDir()) && !module.IsArchive(args[0]) {
				damage, err := one(os.Stdout, args[0])
				if err != nil {
					return err
				}
				return listDamage(args[0], damage)
			}
			files, err := elfFiles(args, true)
			if err != nil {
				return err
			}
			return dumpAll(c.Context(), files, format == "json", one)
		},
	}
	c.Flags().BoolVar(&exceptions, "exceptions", false, "print the exception tables instead: where an exception from a call goes on, and what it meets there")
	c.Flags().StringVar(&format, "format", format, "text or json")
	c.Flags().StringVar(&name, "unwind", name, "print only the unwind information called `NAME`, such as .eh_frame (default: all, in order of precedence)")
	return c
}

// listDamage prints what could not be read of a file.
func listDamage(path string, damage []error) error {
	for _, d := range damage {
		fmt.Fprintf(stderr, "unspool: %s: %v\n", path, d)
	}
	if len(damage) > 0 {
		return &cli.Exit{Status: 1}
	}
	return nil
}

// dumpAll prints several files, and a line before each: a comment in text, an object with its name in JSON. Files without anything to print are
// left out. An error in a file costs that file only.
func dumpAll(ctx context.Context, files []string, asJSON bool, one func(w io.Writer, path string) ([]error, error)) error {
	failed := false
	for _, path := range files {
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
		var out bytes.Buffer
		if asJSON {
			enc := json.NewEncoder(&out)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(map[string]string{"file": path}); err != nil {
				return err
			}
		} else {
			fmt.Fprintf(&out, "# %s\n", printable.Marked(path))
		}
		damage, err := one(&out, path)
		if errors.Is(err, compile.ErrNoRows) || errors.Is(err, compile.ErrNoExceptions) {
			continue
		}
		if err != nil {
			fmt.Fprintf(stderr, "unspool: %v\n", err)
			failed = true
			continue
		}
		if _, err := os.Stdout.Write(out.Bytes()); err != nil {
			return err
		}
		failed = listDamage(path, damage) != nil || failed
	}
	if failed {
		return &cli.Exit{Status: 1}
	}
	return nil
}
