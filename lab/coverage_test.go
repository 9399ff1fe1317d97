package lab

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// eachFile calls f with the files, on all processors, and reports what goes wrong.
func eachFile(t testing.TB, paths []string, f func(path string) error) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(paths); i = int(next.Add(1)) - 1 {
				if err := f(paths[i]); err != nil {
					t.Errorf("%s: %v", paths[i], err)
				}
			}
		})
	}
	wg.Wait()
}

// kept are the registers that the report keeps: rip, rsp, rbp, rbx.
func kept(r arch.Reg) bool { return r == 16 || r == 7 || r == 6 || r == 3 }

// Columns of table 6.
const (
	colUndefined = iota
	colSameValue
	colOffset
	colValOffset
	colRegister
	colExpression
	colValExpression
	numCols
)

var colNames = [numCols]string{"Undefined", "Same_value", "Offset", "Val_offset", "Register", "Expression", "Val_expression"}

// colOf says what instruction a rule came from: rows keeps the plainest expressions as rules of their own.
var colOf = [rows.NumKinds]int{
	rows.Undefined: colUndefined, rows.SameValue: colSameValue, rows.Offset: colOffset, rows.ValOffset: colValOffset, rows.Register: colRegister,
	rows.RegDeref: colExpression, rows.Expr: colExpression, rows.RegOffset: colValExpression, rows.ValExpr: colValExpression,
}

// A scope counts the rules of some registers, once for each row of each FDE.
type scope struct {
	cols [numCols]int
	cfa  int // rules of the CFA
	cfax int // of these, expressions
}

func (s *scope) columns() (n int) {
	for _, c := range s.cols {
		n += c
	}
	return n
}

func (s *scope) rules() int       { return s.columns() + s.cfa }
func (s *scope) expressions() int { return s.cols[colExpression] + s.cols[colValExpression] + s.cfax }

func (s *scope) add(o *scope) {
	for i := range s.cols {
		s.cols[i] += o.cols[i]
	}
	s.cfa += o.cfa
	s.cfax += o.cfax
}

// A refusal says that an emission did not take a file.
type refusal struct{ emission, path string }

// A coverage is what is in the .eh_frame sections of files.
type coverage struct {
	files, withExpr int
	fdes, damaged   int
	four, all       scope
	failed          map[string][2]scope // rules of the files that an emission refused: of four registers, and of all
	opcodes         map[string]int
	shapes          map[string]int // expressions, once for each row
	rowsPerFDE      map[int]int    // FDEs by their number of rows
	others          map[string]int // files of other machines
}

func newCoverage() *coverage {
	return &coverage{failed: map[string][2]scope{}, opcodes: map[string]int{}, shapes: map[string]int{}, rowsPerFDE: map[int]int{}, others: map[string]int{}}
}

func (c *coverage) add(o *coverage) {
	c.files += o.files
	c.withExpr += o.withExpr
	c.fdes += o.fdes
	c.damaged += o.damaged
	c.four.add(&o.four)
	c.all.add(&o.all)
	sum := func(to, from map[string]int) {
		for k, v := range from {
			to[k] += v
		}
	}
	for k, v := range o.failed {
		f := c.failed[k]
		f[0].add(&v[0])
		f[1].add(&v[1])
		c.failed[k] = f
	}
	sum(c.opcodes, o.opcodes)
	sum(c.shapes, o.shapes)
	sum(c.others, o.others)
	for k, v := range o.rowsPerFDE {
		c.rowsPerFDE[k] += v
	}
}

// coverageOf reads one file, which some emissions have refused.
func coverageOf(path string, refused map[refusal]bool) (*coverage, error) {
	img, err := module.Open(path)
	if err != nil {
		return nil, err
	}
	defer img.Close()
	f, err := dwarf.Open(img)
	if err != nil {
		return nil, err
	}
	c := newCoverage()
	t, damage := f.Build(dwarf.EHFrame)
	if len(t.Rows) == 0 && len(damage) == 0 {
		return c, nil
	}
	if img.Machine() != arch.AMD64 {
		c.others[img.Machine().Name]++
		return c, nil
	}
	c.files, c.damaged = 1, len(damage)
	uses := make([]int, len(t.Sets)) // rows of FDEs
	names := map[byte]string{}
	f.Entries(dwarf.EHFrame, func(e dwarf.Entry) bool {
		e.Instructions(func(i *dwarf.Instruction) bool {
			if names[i.Op] == "" {
				names[i.Op] = i.Name(t.Machine)
			}
			c.opcodes[names[i.Op]]++
			return true
		})
		if !e.IsFDE || e.FDE.Dead || e.FDE.Lo >= e.FDE.Hi {
			return true
		}
		c.fdes++
		n := 0
		for i := max(t.Find(e.FDE.Lo), 0); i < len(t.Rows) && t.Rows[i].Lo < e.FDE.Hi; i++ {
			uses[t.Rows[i].Set]++
			n++
		}
		c.rowsPerFDE[n]++
		return true
	})
	for id, n := range uses {
		if n > 0 && rows.SetID(id) != rows.GapID {
			c.count(t.Machine, &t.Sets[id], n)
		}
	}
	if len(c.shapes) > 0 {
		c.withExpr = 1
	}
	for _, e := range emissions {
		if refused[refusal{e.name, path}] {
			c.failed[e.name] = [2]scope{c.four, c.all}
		}
	}
	return c, nil
}

// count counts the rules of s for n rows.
func (c *coverage) count(m *arch.Machine, s *rows.Set, n int) {
	if s.CFA.Kind != rows.CFANone {
		c.four.cfa += n
		c.all.cfa += n
	}
	if s.CFA.Kind > rows.CFAReg {
		c.four.cfax += n
		c.all.cfax += n
		c.shapes["CFA: "+shape(s.CFACell(m))] += n
	}
	for i := range s.Rules {
		r := &s.Rules[i]
		col := colOf[r.Kind]
		c.all.cols[col] += n
		if kept(r.Of) {
			c.four.cols[col] += n
		}
		if col >= colExpression {
			c.shapes[colNames[col]+": "+shape(strings.Trim(r.Cell(m), "[]"))] += n
		}
	}
}

// shape is the text of an expression with its numbers left out.
func shape(text string) string {
	var out []string
	for _, op := range strings.Split(text, ", ") {
		name, arg, _ := strings.Cut(strings.TrimPrefix(op, "DW_OP_"), " ")
		switch {
		case strings.HasPrefix(name, "breg"):
			reg := strings.TrimRight(arg, "0123456789")
			name = "breg(" + strings.TrimRight(reg, "+-") + ")+N"
		case strings.HasPrefix(name, "lit"), strings.HasPrefix(name, "const"):
			name = "N"
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}

func measureCoverage(t testing.TB, paths []string, refused map[refusal]bool) *coverage {
	sum := newCoverage()
	var mu sync.Mutex
	eachFile(t, paths, func(path string) error {
		c, err := coverageOf(path, refused)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		sum.add(c)
		return nil
	})
	return sum
}

// The report's tables 5 and 6.
var reported = struct {
	unsupported, rules, badExpr, exprs [2]int // four registers, all columns
	cols                               [2][numCols]int
}{
	[2]int{1603, 1607}, [2]int{42959683, 67587841}, [2]int{1114, 1154}, [2]int{5977, 13869},
	[2][numCols]int{
		{colUndefined: 1698, colOffset: 30038255, colRegister: 14, colExpression: 4475},
		{colUndefined: 1698, colOffset: 54666405, colRegister: 22, colExpression: 12367},
	},
}

// exactly formats shares near 0 and 1 so that they do not look like them.
func exactly(n, of int) string {
	if of == 0 {
		return "–"
	}
	p := 100 * float64(n) / float64(of)
	digits := 1
	if d := min(p, 100-p); d > 0 && d < 0.1 {
		for digits = 4; d < 0.5*math.Pow10(-digits); digits++ {
		}
	}
	return fmt.Sprintf("%.*f %%", digits, p)
}

func (c *coverage) table5() [][]string {
	out := [][]string{{"registers", "whose", "rules seen", "unsupported", "supported", "expressions seen", "unsupported", "supported"}}
	line := func(scope, whose string, rules, bad, exprs, badx int) {
		out = append(out, []string{scope, whose, fmt.Sprint(rules), fmt.Sprint(bad), exactly(rules-bad, rules), fmt.Sprint(exprs), fmt.Sprint(badx), exactly(exprs-badx, exprs)})
	}
	for i, s := range []*scope{&c.four, &c.all} {
		name := []string{"CFA, rip, rsp, rbp, rbx", "all"}[i]
		line(name, "report", reported.rules[i], reported.unsupported[i], reported.exprs[i], reported.badExpr[i])
		for _, e := range emissions {
			bad := c.failed[e.name][i]
			line(name, e.name, s.rules(), bad.rules(), s.expressions(), bad.expressions())
		}
	}
	return out
}

func (c *coverage) table6() [][]string {
	out := [][]string{append(append([]string{"registers", "whose"}, colNames[:]...), "total")}
	line := func(scope, whose string, cols [numCols]int) {
		total := 0
		for _, n := range cols {
			total += n
		}
		cells := []string{scope, whose}
		for _, n := range cols {
			switch {
			case n == 0:
				cells = append(cells, "0")
			default:
				cells = append(cells, fmt.Sprintf("%d (%s)", n, exactly(n, total)))
			}
		}
		out = append(out, append(cells, fmt.Sprint(total)))
	}
	for i, s := range []*scope{&c.four, &c.all} {
		name := []string{"rip, rsp, rbp, rbx", "all"}[i]
		line(name, "report", reported.cols[i])
		line(name, "here", s.cols)
	}
	return out
}

// ranked are the counts, largest first, with their share and the shares so far.
func ranked(head string, counts map[string]int, most int) [][]string {
	out := [][]string{{"count", "share", "sum", head}}
	total, sum := 0, 0
	for _, n := range counts {
		total += n
	}
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	for i, k := range keys {
		if i == most {
			out = append(out, []string{fmt.Sprint(total - sum), exactly(total-sum, total), exactly(total, total), fmt.Sprintf("%d others", len(keys)-most)})
			break
		}
		sum += counts[k]
		out = append(out, []string{fmt.Sprint(counts[k]), exactly(counts[k], total), exactly(sum, total), "`" + k + "`"})
	}
	return out
}

// figure2 is the histogram of FDEs by rows, in bins that grow, and what it says.
func (c *coverage) figure2() (h histogram, says string) {
	sizes := slices.Sorted(maps.Keys(c.rowsPerFDE))
	rows, at, half := 0, 0, 0
	for _, n := range sizes {
		rows += n * c.rowsPerFDE[n]
		if at += c.rowsPerFDE[n]; half == 0 && 2*at >= c.fdes {
			half = n
		}
	}
	beyond := func(n int) (k int) {
		for _, s := range sizes {
			if s > n {
				k += c.rowsPerFDE[s]
			}
		}
		return k
	}
	for lo := 1; len(sizes) > 0 && lo <= sizes[len(sizes)-1]; {
		hi := lo + 1 + (lo-1)/8 // bins of one up to 8, then of an eighth
		b := bin{lo: lo, hi: hi - 1}
		for n := lo; n < hi; n++ {
			b.n += c.rowsPerFDE[n]
		}
		b.density = float64(b.n) / float64(hi-lo) / float64(max(c.fdes, 1))
		h = append(h, b)
		lo = hi
	}
	most := 0
	if len(sizes) > 0 {
		most = sizes[len(sizes)-1]
	}
	return h, fmt.Sprintf("%d FDEs, %d rows: %.2f rows each, median %d, most %d. More than 10 rows: %s, more than 100: %s. The report, of about 2,000 files: 9.7 rows each, median 8.",
		c.fdes, rows, float64(rows)/float64(max(c.fdes, 1)), half, most, exactly(beyond(10), c.fdes), exactly(beyond(100), c.fdes))
}

// says is the coverage as a part of a document whose figures are in dir.
func (c *coverage) says(t testing.TB, dir string) string {
	h, text := c.figure2()
	h.write(t, filepath.Join(dir, "figure2.svg"))
	var others []string
	for _, k := range slices.Sorted(maps.Keys(c.others)) {
		others = append(others, fmt.Sprintf("%d of %s", c.others[k], k))
	}
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	say("The report sampled 4,000 ELF files of ArchLinux, for figure 2 about 2,000. Here it is all %d x86-64 executables and shared objects of the machine that have `.eh_frame`", c.files)
	if len(others) > 0 {
		say(" (and not counted below: %s)", strings.Join(others, ", "))
	}
	say(". Damaged entries: %d. As in the report, a rule counts once for each row of each FDE; of equal rows in succession only the first is a row.\n\n", c.damaged)
	say("### Table 5: rules and expressions covered\n\n%s\n", markdown(c.table5()))
	say("`.eh_frame` of %d files (%s) has expressions; the report's compiler met what it did not know in 24 of 4,000.\n\n", c.withExpr, exactly(c.withExpr, c.files))
	say("### Table 6: kinds of rules\n\n%s\n", markdown(c.table6()))
	say("Rules of the CFA: %d, of which expressions: %d.\n\n", c.all.cfa, c.all.cfax)
	say("### Expressions, by shape\n\n%s\n", markdown(ranked("expression", c.shapes, 15)))
	say("### Instructions\n\n%s\n", markdown(ranked("instruction", c.opcodes, 40)))
	if n := c.opcodes["DW_CFA_restore"]; n > 0 {
		say("The report leaves `DW_CFA_restore` out of its semantics, because its analysis of 4,000 files \"found no such instruction\" (its section 2.1). Here there are %d.\n\n", n)
	}
	say("### Figure 2: rows of an FDE\n\n![Histogram of the number of rows of an FDE](figure2.svg)\n\n%s\n", text)
	return b.String()
}
