package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// README's table lies between these.
const tableBegin, tableEnd = "<!-- make results writes this table -->\n", "<!-- the table ends -->\n"

// A document is one of docs/results, which README's table takes its figures from.
type document struct{ name, text string }

func readDocument(t *testing.T, name string) document {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../docs/results", name))
	if err != nil {
		t.Fatal(err)
	}
	return document{name, string(b)}
}

// cell returns a figure: below a head, in the line that begins with a cell, of the first table below a heading.
func (d document) cell(t *testing.T, heading, line, head string) string {
	t.Helper()
	_, rest, _ := strings.Cut(d.text, "\n"+heading+"\n")
	_, rest, _ = strings.Cut(rest, "\n|")
	var heads []string
	for l := range strings.Lines(rest) {
		cells := strings.Split(strings.Trim(l, "| \n"), " | ")
		if heads == nil {
			heads = cells
		}
		if at := slices.Index(heads, head); cells[0] == line && at >= 0 && at < len(cells) {
			return cells[at]
		}
		if l == "\n" {
			break
		}
	}
	t.Fatalf("%s, %s: no %q in line %q", d.name, heading, head, line)
	return ""
}

// find returns what the groups of an expression match.
func (d document) find(t *testing.T, expression string) []string {
	t.Helper()
	m := regexp.MustCompile(expression).FindStringSubmatch(d.text)
	if m == nil {
		t.Fatalf("%s: no %s", d.name, expression)
	}
	return m[1:]
}

// commas puts commas between the thousands of a number.
func commas(number string) string {
	for at := len(number) - 3; at > 0; at -= 3 {
		number = number[:at] + "," + number[at:]
	}
	return number
}

// readmeTable says what README has of results.
func readmeTable(t *testing.T) string {
	d := readDocument(t, "README.md")
	const folded, walk = "## From perf.data to folded stacks", "### gxx"
	of := func(walker string) string { return commas(d.cell(t, walk, walker, "ns/frame, first pass")) }
	equal := d.find(t, `\n(\d+) rows.*? of (\d+) files, .*; 0 differences\.\n`)
	names := d.find(t, `\n(\d+) addresses of .*; 0 differences\.\n`)
	return fmt.Sprintf("Measured by `make results` on %s, the peer in the same run:\n\n", d.find(t, "It was measured on (.*)\\.\n")[0]) +
		"| | unspool | peer |\n|---|---:|---:|\n" +
		fmt.Sprintf("| `perf.data` of a compiler, %s samples, to folded stacks | %s s, %s MB | `perf script` %s s |\n", commas(d.cell(t, folded, "gxx", "samples")),
			d.cell(t, folded, "gxx", "unspool, s"), d.cell(t, folded, "gxx", "unspool, anonymous MB"), d.cell(t, folded, "gxx", "perf script --no-inline, s")) +
		fmt.Sprintf("| one frame of these stacks, including the reading of modules | %s ns | libunwind %s ns, tuned %s ns; elfutils %s ns |\n",
			of("unspool"), of("libunwind"), of("libunwind tuned"), of("elfutils")) +
		fmt.Sprintf("| rows equal to `llvm-dwarfdump`'s: %s binaries, %s rows | all | |\n", commas(equal[1]), commas(equal[0])) +
		fmt.Sprintf("| names, lines and inlined calls equal to `llvm-symbolizer`'s: %s addresses, g++, clang, rustc, Go, as, glibc | all | |\n", commas(names[0]))
}

// TestReadme: README's table has the figures of docs/results. With -update, it gets them.
func TestReadme(t *testing.T) {
	b, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok1 := strings.Cut(string(b), tableBegin)
	got, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok1 || !ok2 {
		t.Fatalf("README.md has no table between %q and %q", tableBegin, tableEnd)
	}
	want := readmeTable(t)
	switch {
	case got == want:
	case *update:
		if err := os.WriteFile("../README.md", []byte(before+tableBegin+want+tableEnd+after), 0o666); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("README.md has\n%s\ndocs/results have (go test -run TestReadme ./lab -update)\n%s", got, want)
	}
}
