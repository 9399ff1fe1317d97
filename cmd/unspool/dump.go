package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/rows"
)

func dumpCmd() *cobra.Command {
	format, section := "text", ""
	c := &cobra.Command{
		Use:   "dump FILE",
		Short: "Print the unwind rules of a binary, row by row",
		Long: `Print the unwind rules of a binary: for each range of addresses, how to find the caller.

Text has one line for each row, and a line before the first row of each source. It can be read back. JSON has one
object for each row. Rules are spelled as in readelf -wF, expressions as in llvm-dwarfdump. Unreadable entries are
listed on standard error, and the exit status is then 1; all other rows are printed.`,
		Example: "  unspool dump /bin/ls | head\n  unspool dump --format json /bin/ls | jq -r 'select(.signal) | .lo'",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			write := map[string]func(*rows.Table, io.Writer) error{"text": (*rows.Table).WriteText, "json": (*rows.Table).WriteJSON}[format]
			if write == nil {
				return usage("--format is text or json, not %q", format)
			}
			var only []string
			switch section {
			case "":
			case ".eh_frame", ".debug_frame":
				only = []string{section}
			default:
				return usage("--section is .eh_frame or .debug_frame, not %q", section)
			}
			t, damage, err := compile.Rows(args[0], only...)
			if err != nil {
				return err
			}
			if err := write(t, os.Stdout); err != nil {
				return err
			}
			for _, d := range damage {
				fmt.Fprintf(stderr, "unspool: %s: %v\n", args[0], d)
			}
			if len(damage) > 0 {
				return &cli.Exit{Status: 1}
			}
			return nil
		},
	}
	c.Flags().StringVar(&format, "format", format, "text or json")
	c.Flags().StringVar(&section, "section", section, "only .eh_frame or only .debug_frame (default: both, .eh_frame first, and Go's pclntab where there is no .debug_frame)")
	return c
}
