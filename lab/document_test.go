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

// mayBeZero are the columns of documents in which 0 is an answer. In all others, it says that something was not measured.
var mayBeZero = map[string][]string{
	"README.md":    {"damaged entries", "share"},
	"kernel.md":    {"left to a copy, %", "processes started meanwhile", "lost"},
	"execution.md": {"without row", "truth unknown", "known wrong rows"},
	"dropin.md":    nil,
	"stack.md":     nil,
	"evaluation.md": {"stacks not whole", "of these it reports", "`.eh_frame_hdr`", "unsupported", "dictionaries, all files",
		"Undefined", "Same_value", "Offset", "Val_offset", "Register", "Expression", "Val_expression"},
}

var (
	noNumber = regexp.MustCompile(`\b(NaN|Inf)\b|%!\w?\(|–( ×)?\)`)    // of a division by zero, of a format that does not fit its values
	noCell   = regexp.MustCompile(`^(-\d|–$|(> )?0(\.0*)?([^.\d]|$))`) // less than zero, of nothing, zero
	noProse  = regexp.MustCompile(`(^|[ (])(-\d[\d.]*|0\.0+)( |$|[,;)])`)
)

// doubtful returns the figures of a document that cannot be right, and what its tables lack.
func doubtful(name, text string) (out []string) {
	mayBe, known := mayBeZero[name]
	if !known {
		return []string{"no document of this name is known"}
	}
	met := map[string]bool{}
	var head []string // of the table in which a line is
	rows := 0
	code := false
	for n, line := range strings.Split(text+"\n", "\n") {
		complain := func(format string, args ...any) {
			out = append(out, fmt.Sprintf("%s:%d: ", name, n+1)+fmt.Sprintf(format, args...))
		}
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		if m := noNumber.FindString(line); m != "" {
			complain("%q is no figure", m)
		}
		cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(strings.ReplaceAll(line, `\|`, "/"), "|"), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch table := strings.HasPrefix(line, "|"); {
		case !table && head != nil:
			if rows == 0 {
				complain("the table above has no lines")
			}
			head = nil
		case !table:
			if m := noProse.FindString(line); m != "" && !code {
				complain("%q cannot be right", strings.TrimSpace(m))
			}
		case head == nil:
			head, rows = cells, -1 // the rule below the head comes
		case len(cells) != len(head):
			complain("%d cells below %d heads", len(cells), len(head))
		default:
			if rows++; rows == 0 {
				continue
			}
			for i, c := range cells {
				if slices.Contains(mayBe, head[i]) {
					met[head[i]] = true
				} else if noCell.MatchString(c) {
					complain("%s cannot be %q", head[i], c)
				}
			}
		}
	}
	for _, h := range mayBe {
		if !met[h] {
			out = append(out, fmt.Sprintf("%s: no column is %q, which may be zero", name, h))
		}
	}
	return out
}

// measures skips a test that writes a document, unless it is asked to measure. What the machine lacks is then a failure: a document must not be
// without a part, a recording or a peer, unnoticed.
func measures(t *testing.T) {
	if !*update {
		t.Skip("this test lacks -update: it measures for minutes (make results)")
	}
	t.Setenv("UNSPOOL_REQUIRE_JUDGES", "1")
	found := recordings(t)
	for _, name := range []string{"gxx", "hackbench", "inlined", "messaging", "openssl", "python", "sigaltstack", "signals"} {
		if !slices.ContainsFunc(found, func(path string) bool { return filepath.Base(path) == name+".data" }) {
			t.Errorf("there is no recording of %s (lab/record.sh full)", name)
		}
	}
}

// publish writes a document of docs/results, but none whose measurement has failed, or that has a figure that cannot be right.
func publish(t testing.TB, name, text string) {
	t.Helper()
	for _, d := range doubtful(name, text) {
		t.Errorf("doubtful(%s): %s", name, d)
	}
	if t.Failed() {
		return
	}
	if err := os.WriteFile(filepath.Join("../docs/results", name), []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

// TestDocuments: figures that cannot be right are found, wherever they are; there are none in the documents that were written.
func TestDocuments(t *testing.T) {
	const doc = "Text, 3 of 10.0 %, 0.07 too, 0 differences.\n\n| what | ns | lost | left to a copy, % | processes started meanwhile |\n| --- | ---: | ---: | ---: | ---: |\n| a | 1.5 | 0 | 0.00 | 0 |\n| 10.0 | 0.5 | 0 | 0.00 | 0 |\n"
	for _, x := range []struct{ old, new, want string }{
		{"", "", ""},
		{"1.5", "0", `kernel.md:5: ns cannot be "0"`},
		{"1.5", "0.000", `kernel.md:5: ns cannot be "0.000"`},
		{"1.5", "0.0 (0.00 ×)", `kernel.md:5: ns cannot be "0.0 (0.00 ×)"`},
		{"1.5", "-1.5", `kernel.md:5: ns cannot be "-1.5"`},
		{"1.5", "–", `kernel.md:5: ns cannot be "–"`},
		{"1.5", "3.5 (– ×)", `kernel.md:5: "– ×)" is no figure`},
		{"1.5", "NaN", `kernel.md:5: "NaN" is no figure`},
		{"1.5", "+Inf", `kernel.md:5: "Inf" is no figure`},
		{"1.5", "%!d(string=1)", `kernel.md:5: "%!d(" is no figure`},
		{"1.5 |", "", `kernel.md:5: 4 cells below 5 heads`},
		{"0.07", "0.00", `kernel.md:1: "0.00" cannot be right`},
		{"0.07", "0.0 %;", `kernel.md:1: "0.0" cannot be right`},
		{"0.07", "-3", `kernel.md:1: "-3" cannot be right`},
		{"| a | 1.5 | 0 | 0.00 | 0 |\n| 10.0 | 0.5 | 0 | 0.00 | 0 |\n", "", "kernel.md:5: the table above has no lines"},
		{"lost", "gone", `kernel.md:5: gone cannot be "0"`},
	} {
		got := strings.Join(doubtful("kernel.md", strings.Replace(doc, x.old, x.new, 1)), "\n")
		if x.want == "" && got != "" || !strings.HasPrefix(got, x.want) {
			t.Errorf("%q instead of %q:\n got %s\nwant %s", x.new, x.old, got, x.want)
		}
	}
	found, err := filepath.Glob("../docs/results/*.md")
	if err != nil || len(found) != len(mayBeZero) {
		t.Errorf("there are %q, %v", found, err)
	}
	for _, path := range found {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range doubtful(filepath.Base(path), string(b)) {
			t.Errorf("doubtful(%s): %s", path, d)
		}
	}
}
