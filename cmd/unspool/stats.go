package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/compile"
)

func statsCmd() *cobra.Command {
	format := "text"
	c := &cobra.Command{
		Use:   "stats PATH...",
		Short: "Measure unwind information: rows, rules, sizes, opcodes, expressions",
		Long: `Measure the unwind information of files, and of all ELF files in directories, and the compact tables
made of it. Sizes are in bytes.

JSON is an object a file, and for several files one more with the sums, which has "files".`,
		Example: "  unspool stats /usr/lib/x86_64-linux-gnu/libc.so.6\n  unspool stats --format json /usr/bin | jq -c '[.file, .rows, .table]'",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if format != "text" && format != "json" {
				return usage("--format is text or json, not %q", format)
			}
			files, err := elfFiles(args)
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
				if err == nil {
					err = fmt.Errorf("no call frame information in %s", strings.Join(args, ", "))
				}
				return err
			}
			slices.SortFunc(all, func(a, b *compile.Stats) int { return strings.Compare(a.File, b.File) })
			sum := compile.Sum(all)
			if format == "json" {
				enc := json.NewEncoder(os.Stdout)
				for _, s := range all {
					if jerr := enc.Encode(s); jerr != nil {
						return jerr
					}
				}
				if len(all) > 1 {
					err = errors.Join(err, enc.Encode(sum))
				}
				return err
			}
			if len(all) == 1 {
				sum = all[0]
			}
			printStats(sum)
			return err
		},
	}
	c.Flags().StringVar(&format, "format", format, "text or json")
	return c
}

// printStats writes the figures for people.
func printStats(s *compile.Stats) {
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, v int64, note string) { fmt.Fprintf(w, "%s\t%d\t%s\t\n", name, v, note) }
	of := func(part int64) string {
		if s.EHFrame == 0 {
			return ""
		}
		return fmt.Sprintf("%.2f × .eh_frame", float64(part)/float64(s.EHFrame))
	}
	if s.Files > 0 {
		row("files", int64(s.Files), "")
	}
	row("file size", s.Size, "")
	row(".eh_frame", s.EHFrame, "")
	row(".eh_frame_hdr", s.EHFrameHdr, of(s.EHFrameHdr))
	row(".debug_frame", s.DebugFrame, "")
	note := of(s.Table)
	if s.Files > 0 {
		note = fmt.Sprintf("%.2f × .eh_frame; median of files %.2f", s.Ratio, s.MedianRatio)
	}
	row("compact table", s.Table, note)
	row("CIEs", int64(s.CIEs), "")
	row("FDEs", int64(s.FDEs), "")
	row("damaged entries", int64(s.Damaged), "")
	row("rows", int64(s.Rows), fmt.Sprintf("%.2f table bytes a row", float64(s.Table)/float64(s.Rows)))
	row("distinct rules", int64(s.Rules), "")
	w.Flush()
	for _, part := range []struct {
		title string
		m     map[string]int
		byKey bool
	}{{"instructions", s.Opcodes, false}, {"expressions", s.Expressions, false}, {"rules of the CFA, of all rows", s.CFAKinds, false}, {"rules of registers, of all rows", s.RuleKinds, false}, {"rows an FDE", s.RowsPerFDE, true}} {
		if len(part.m) == 0 {
			continue
		}
		fmt.Fprintf(stdout, "\n%s\n", part.title)
		keys := slices.SortedFunc(maps.Keys(part.m), func(a, b string) int {
			if !part.byKey && part.m[a] != part.m[b] {
				return part.m[b] - part.m[a]
			}
			return strings.Compare(a, b)
		})
		for _, k := range keys {
			fmt.Fprintf(stdout, "%10d  %s\n", part.m[k], k)
		}
	}
}
