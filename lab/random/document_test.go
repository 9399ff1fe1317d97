package random

import (
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/unspool/unspool/profile"
)

var update = flag.Bool("update", false, "write the tables of docs/WALKING.md, and its picture")

const (
	document = "../../docs/WALKING.md"
	picture  = "../../docs/results/walking.svg"
)

// share is n of all, in percent: never rounded to all or to none.
func share(n, all uint64) string {
	switch p := 100 * float64(n) / float64(all); {
	case n == 0:
		return "none"
	case n == all:
		return "all"
	case p < 0.01:
		return "< 0.01 %"
	case p > 99.99:
		return "> 99.99 %"
	default:
		return fmt.Sprintf("%.2f %%", p)
	}
}

func total(n [verdicts]uint64) (all uint64) {
	for _, x := range n {
		all += x
	}
	return all
}

// verdictTable has a group's ways, by what became of callers up to main.
func verdictTable(g *group) string {
	var b strings.Builder
	programs := "a program"
	if n := len(g.Programs); n > 1 {
		programs = fmt.Sprint(n, " programs")
	}
	fmt.Fprintf(&b, "%s instructions of %s were executed, and %s stacks walked. They have %.1f callers in the mean, and %d at most; %s have more than 32.\n\n",
		profile.Comma(g.Instructions), programs, profile.Comma(g.Moments), float64(g.Frames)/float64(g.Moments), g.Deepest, share(g.Deep, g.Moments))
	b.WriteString("| way | right | wrong | lost | short | right to `_start`, too | ns a frame |\n|---|--:|--:|--:|--:|--:|--:|\n")
	for _, w := range g.Ways {
		n, ns := total(w.Main), "–"
		if w.NS > 0 {
			ns = fmt.Sprintf("%.0f", w.NS)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", w.Name, share(w.Main[right], n), share(w.Main[wrong], n), share(w.Main[lost], n), share(w.Main[short], n),
			share(w.Whole[right], n), ns)
	}
	return b.String()
}

// parts are what the document has between comments of their names.
var parts = map[string]func(*results) string{
	"shipped": func(r *results) string { return verdictTable(r.Groups[0]) },
	"go":      func(r *results) string { return verdictTable(r.Groups[1]) },
	"random":  func(r *results) string { return verdictTable(r.Groups[2]) },
	"compiled": func(r *results) string {
		var b strings.Builder
		b.WriteString("| right, of the programs by |")
		for _, g := range r.Groups[3:] {
			fmt.Fprintf(&b, " %s |", g.Name)
		}
		b.WriteString("\n|---|" + strings.Repeat("--:|", len(r.Groups)-3) + "\n")
		for i, w := range r.Groups[3].Ways {
			fmt.Fprintf(&b, "| %s |", w.Name)
			for _, g := range r.Groups[3:] {
				fmt.Fprintf(&b, " %s |", share(g.Ways[i].Main[right], total(g.Ways[i].Main)))
			}
			b.WriteString("\n")
		}
		for _, v := range []verdict{wrong, lost, short} {
			fmt.Fprintf(&b, "| frame pointers: %s |", v)
			for _, g := range r.Groups[3:] {
				fmt.Fprintf(&b, " %s |", share(g.Ways[0].Main[v], total(g.Ways[0].Main)))
			}
			b.WriteString("\n")
		}
		return b.String()
	},
	"bytes": func(r *results) string {
		var b strings.Builder
		fmt.Fprintf(&b, "| form, of %d files with %s bytes of code | bytes | of the code |\n|---|--:|--:|\n", r.Files, profile.Comma(uint64(r.Bytes["code"])))
		for _, form := range []string{".eh_frame and its index", "unspool's table", "SFrame V2", "SFrame V3", "ORC"} {
			fmt.Fprintf(&b, "| %s | %s | %.1f %% |\n", form, profile.Comma(uint64(r.Bytes[form])), 100*float64(r.Bytes[form])/float64(r.Bytes["code"]))
		}
		return b.String()
	},
	"cost": func(r *results) string {
		var b strings.Builder
		fmt.Fprintf(&b, "| program, compiler | `.text`, -O2 | with frame pointers | `.eh_frame` | with them | instructions with them | time with them, of %d pairs |\n|---|--:|--:|--:|--:|--:|--:|\n", r.Rounds)
		for i := 0; i+2 < len(r.Costs); i += len(costFlags) {
			plain, fp := r.Costs[i], r.Costs[i+1]
			more := func(a, b int) string { return fmt.Sprintf("%+.1f %%", 100*(float64(b)/float64(a)-1)) }
			fmt.Fprintf(&b, "| %s, %s | %s | %s | %s | %s | %s | %+.1f %% (%+.1f to %+.1f) |\n", plain.Program, plain.Compiler, profile.Comma(uint64(plain.Text)),
				more(plain.Text, fp.Text), profile.Comma(uint64(plain.Tables)), more(plain.Tables, fp.Tables), more(int(plain.Instructions), int(fp.Instructions)),
				100*(fp.Ratio[1]-1), 100*(fp.Ratio[0]-1), 100*(fp.Ratio[2]-1))
		}
		same := true
		for i := 0; i+2 < len(r.Costs); i += len(costFlags) {
			same = same && r.Costs[i].Tables == r.Costs[i+2].Tables && r.Costs[i].Text == r.Costs[i+2].Text
		}
		if same {
			b.WriteString("\nWith `-fno-asynchronous-unwind-tables -funwind-tables`, code and tables have the same size in every line: these compilers write no shorter tables.\n")
		}
		return b.String()
	},
	"machine": func(r *results) string {
		return fmt.Sprintf("`make walking` measured this on %s, on %s.\n", r.Measured, r.Machine)
	},
}

// TestWalkingDocument holds the tables of docs/WALKING.md, and its picture, against docs/results/walking.json.
func TestWalkingDocument(t *testing.T) {
	var r results
	b, err := os.ReadFile(resultsFile)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Groups) != 3+2*len(built) || len(r.Costs) != 2*len(costly)*len(costFlags) {
		t.Fatalf("%d groups, %d costs", len(r.Groups), len(r.Costs))
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	for name, make := range parts {
		re := regexp.MustCompile(`(?s)(<!-- ` + name + ` -->\n).*?(<!-- /` + name + ` -->)`)
		if len(re.FindAllString(got, -1)) != 1 {
			t.Fatalf("%s has no place for %q, or several", document, name)
		}
		got = re.ReplaceAllStringFunc(got, func(s string) string {
			m := re.FindStringSubmatch(s)
			return m[1] + make(&r) + m[2]
		})
	}
	for path, want := range map[string]string{document: got, picture: r.draw()} {
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o666); err != nil {
				t.Error(err)
			}
		} else if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%s is not what docs/results/walking.json says (%v): go test -run TestWalkingDocument ./lab/random -update", path, err)
		}
	}
}

const style = `<style>
text { font: 12px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600; font-size: 14px } .end { text-anchor: end } .mid { text-anchor: middle }
.right { fill: #2f6f9f } .short { fill: #b6bec7 } .lost { fill: #e3a34a } .wrong { fill: #b3362b }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .right { fill: #6cb0e0 } .short { fill: #57606a } .lost { fill: #e3a062 } .wrong { fill: #e5675c } }
</style>
`

// draw returns the picture: what became of the stacks, by way, for shipped programs, random ones, and some with frame pointers.
func (r *results) draw() string {
	const left, bar, gap, line, top = 390.0, 170.0, 14.0, 20.0, 74.0
	panels := []*group{r.Groups[0], r.Groups[2], r.Groups[3+1]}
	names := []string{"shipped", "random flags", r.Groups[3+1].Name}
	width := left + float64(len(panels))*(bar+gap)
	height := top + line*float64(len(ways)) + 10
	var b strings.Builder
	text := func(x, y float64, class, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" class="%s">%s</text>`+"\n", x, y, class, html.EscapeString(s))
	}
	const title = "Which way to walk? Stacks by what became of them"
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" role="img" aria-label="%s">`+"\n%s", width, height, width, height, title, style)
	text(width/2, 20, "title mid", title)
	x := left
	for _, v := range []verdict{right, short, lost, wrong} {
		fmt.Fprintf(&b, `<rect x="%.1f" y="32" width="12" height="12" class="%s"/>`+"\n", x, v)
		text(x+17, 43, "", v.String())
		x += 80
	}
	for k, g := range panels {
		from := left + float64(k)*(bar+gap)
		text(from+bar/2, top-8, "mid", names[k])
		for i, w := range g.Ways {
			y, at := top+line*float64(i), from
			if k == 0 {
				text(left-8, y+line/2+4, "end", w.Name)
			}
			for _, v := range []verdict{right, short, lost, wrong} {
				n := bar * float64(w.Main[v]) / float64(total(w.Main))
				if n > 0 {
					fmt.Fprintf(&b, `<rect x="%.2f" y="%.1f" width="%.2f" height="%.1f" class="%s"><title>%s</title></rect>`+"\n", at, y+3, n, line-6, v,
						html.EscapeString(fmt.Sprintf("%s, %s: %s %s", names[k], w.Name, share(w.Main[v], total(w.Main)), v)))
				}
				at += n
			}
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}
