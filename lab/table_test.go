package lab

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// table formats rows of cells, the first being the heads, for a terminal.
func table(rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	w.Flush()
	return b.String()
}

// markdown formats them for a document. A column whose first text starts with a digit is set flush right.
func markdown(rows [][]string) string {
	var b strings.Builder
	line := func(r []string) { b.WriteString("| " + strings.Join(r, " | ") + " |\n") }
	line(rows[0])
	rule := make([]string, len(rows[0]))
	for i := range rule {
		rule[i] = "---"
		for _, r := range rows[1:] {
			if r[i] != "" {
				if r[i][0] >= '0' && r[i][0] <= '9' {
					rule[i] = "---:"
				}
				break
			}
		}
	}
	line(rule)
	for _, r := range rows[1:] {
		line(r)
	}
	return b.String()
}
