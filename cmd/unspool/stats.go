package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/internal/cli"
)

func statsCmd() *cobra.Command {
	format := "text"
	c := &cobra.Command{
		Use:   "stats PATH...",
		Short: "Measure unwind information: rows, rules, sizes, opcodes, expressions",
		Long: `Measure the unwind information of files, and of all executables, libraries and object files in directories and
archives, and the compact tables made from it. Sizes are in bytes.

JSON has an object for each file. After several files, one more object has the sums, and the number of "files".`,
		Example: "  unspool stats /usr/lib/x86_64-linux-gnu/libc.so.6\n  unspool stats --format json /usr/bin | jq -c '[.file, .rows, .table]'",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			files, err := elfFiles(args, true)
			if err != nil {
				return err
			}
			var all []*compile.Stats
			err = eachFile(c.Context(), files, "read", compile.Measure, func(s *compile.Stats, err error) {
				if err == nil {
					all = append(all, s)
				}
			})
			if len(all) == 0 {
				return cmp.Or(err, fmt.Errorf("no call frame information in %s", strings.Join(args, ", ")))
			}
			return errors.Join(err, compile.WriteStats(stdout, all, format == "json"))
		},
	}
	cli.OneOf(c, &format, "format", "text or json", "text", "json")
	return c
}
