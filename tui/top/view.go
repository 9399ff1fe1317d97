package top

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/tui"
	"github.com/unspool/unspool/unwind"
)

// The tables of a view.
const (
	functions = iota
	stacks
	processes
	numTables
)

var tableNames = [numTables]string{"functions", "stacks", "processes"}

// A view is what a person looks at: a table of a ranking, where he is in it, and what is said around it. It knows nothing of
// terminals: lines makes text of it.
type view struct {
	what    string        // is recorded
	walks   string        // who walks stacks, and what that takes
	size    time.Duration // of the window that was asked for
	note    string        // what has happened, if anything
	periods bool          // weights are ns
	paint   func(tui.Style, string) string

	table        int
	sel, off     [numTables]int
	open         [numTables]bool
	filter       *regexp.Regexp // nil: everything is shown
	paused, help bool

	typing bool
	typed  string
	wrong  error

	r    *ranking
	rows [numTables][]int32 // what the filter leaves
}

func newView() *view {
	v := &view{paint: tui.Unpainted}
	v.show(&ranking{})
	return v
}

// show takes a new ranking. What was selected stays so, if it is still there and is not just the first.
func (v *view) show(r *ranking) {
	old := v.r
	var was [numTables]int32
	for t := range numTables {
		was[t] = -1
		if v.sel[t] < len(v.rows[t]) && (v.sel[t] > 0 || v.open[t]) {
			was[t] = v.rows[t][v.sel[t]]
		}
	}
	v.r = r
	v.choose()
	for t, id := range was {
		if id < 0 {
			continue
		}
		i := slices.IndexFunc(v.rows[t], func(now int32) bool { return v.same(t, old, id, now) })
		if i < 0 {
			i = min(v.sel[t], len(v.rows[t])-1)
		}
		v.sel[t] = max(i, 0)
	}
}

// same says whether a row of an old ranking and one of v's are about the same.
func (v *view) same(table int, old *ranking, a, b int32) bool {
	switch table {
	case functions:
		x, y := &old.funcs[a], &v.r.funcs[b]
		return x.name == y.name && x.module == y.module
	case processes:
		return old.procs[a].pid == v.r.procs[b].pid
	}
	x, y := &old.stacks[a], &v.r.stacks[b]
	return x.stop == y.stop && slices.EqualFunc(x.frames, y.frames, func(f, g int32) bool {
		return old.funcs[f].name == v.r.funcs[g].name && old.funcs[f].module == v.r.funcs[g].module
	})
}

// choose finds the rows that the filter leaves.
func (v *view) choose() {
	r := v.r
	v.rows = [numTables][]int32{r.byFunc, r.byStack, r.byProc}
	if v.filter == nil {
		return
	}
	match := make([]bool, len(r.funcs))
	for i := range r.funcs {
		match[i] = v.filter.MatchString(r.funcs[i].name) || v.filter.MatchString(r.funcs[i].module)
	}
	keep := func(ids []int32, yes func(int32) bool) []int32 {
		var out []int32
		for _, id := range ids {
			if yes(id) {
				out = append(out, id)
			}
		}
		return out
	}
	v.rows[functions] = keep(r.byFunc, func(id int32) bool { return match[id] })
	v.rows[stacks] = keep(r.byStack, func(id int32) bool {
		return slices.ContainsFunc(r.stacks[id].frames, func(f int32) bool { return match[f] })
	})
	v.rows[processes] = keep(r.byProc, func(id int32) bool { return v.filter.MatchString(r.procs[id].comm) })
	for t := range numTables {
		v.sel[t] = max(0, min(v.sel[t], len(v.rows[t])-1))
	}
}

// setFilter shows only what matches.
func (v *view) setFilter(re *regexp.Regexp) {
	v.filter = re
	v.show(v.r)
}

// move selects the row so many further.
func (v *view) move(by int) {
	v.sel[v.table] = max(0, min(v.sel[v.table]+by, len(v.rows[v.table])-1))
}

// text returns the view, so many columns wide and lines high.
func (v *view) text(width, height int) string {
	rows := max(0, height-6)
	out := []string{v.paint(tui.Strong, printable.Clip(v.title(), width)), v.tabs(width), v.paint(tui.Strong, printable.Clip(v.head(v.table), width))}
	if v.help {
		out = append(out, tui.Fill(tui.ClipAll(helpText, width), rows)...)
	} else {
		out = append(out, tui.Fill(v.body(width, rows), rows)...)
	}
	out = append(out, v.paint(tui.Faint, printable.Clip(v.counts(), width)), v.paint(tui.Faint, printable.Clip(v.quality(), width)), v.prompt(width))
	return strings.Join(out[:max(0, min(len(out), height))], "\n")
}

// plainText returns one table as text: so many rows, and lines that are not cut where width is 0.
func (v *view) plainText(width, rows int) string {
	out := []string{v.title(), v.counts(), v.quality(), "", v.head(v.table)}
	for _, id := range v.rows[v.table][:min(rows, len(v.rows[v.table]))] {
		out = append(out, v.row(v.table, id))
	}
	return strings.Join(tui.ClipAll(out, width), "\n") + "\n"
}

func (v *view) title() string {
	s := "unspool top · " + v.what
	last := v.r.dur
	if v.size > 0 && last > v.size {
		last = v.size
	}
	s += " · last " + strconv.FormatFloat(math.Round(last.Seconds()*10)/10, 'f', -1, 64) + " s"
	if v.paused {
		s += " · paused"
	}
	if v.filter != nil {
		s += " · /" + printable.Marked(v.filter.String()) + "/"
	}
	if v.note != "" {
		s += " · " + v.note
	}
	return s
}

func (v *view) tabs(width int) string { return tui.Tabs(tableNames[:], v.table, width, v.paint) }

// unit says what a second has so many of.
func (v *view) unit() string {
	if v.periods {
		return "ms/s"
	}
	return "samples/s"
}

// rate returns a weight for each second.
func (v *view) rate(n uint64) string {
	sec := v.r.dur.Seconds()
	if sec <= 0 {
		return "0"
	}
	f := float64(n) / sec
	if v.periods {
		f /= 1e6
	}
	if f > 0 && f < 9.95 {
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return profile.Comma(uint64(f + 0.5))
}

func (v *view) head(table int) string {
	switch table {
	case functions:
		return fmt.Sprintf("%7s %7s %9s  %-20s  %s", "self", "total", v.unit(), "module", "function")
	case stacks:
		return fmt.Sprintf("%7s %9s  %s", "share", v.unit(), "stack, innermost function first")
	}
	return fmt.Sprintf("%7s %7s %9s %7s  %s", "pid", "share", v.unit(), "whole", "command")
}

func (v *view) row(table int, id int32) string {
	r := v.r
	switch table {
	case functions:
		f := &r.funcs[id]
		return fmt.Sprintf("%7s %7s %9s  %s  %s", profile.Percent(r.sums.Self[id], r.weight), profile.Percent(r.sums.Total[id], r.weight), v.rate(r.sums.Self[id]),
			printable.Pad(printable.Clip(printable.Marked(f.module), 20), 20), printable.Marked(f.name))
	case stacks:
		s := &r.stacks[id]
		return fmt.Sprintf("%7s %9s  %s", profile.Percent(s.n, r.weight), v.rate(s.n), v.folded(s))
	}
	p := &r.procs[id]
	return fmt.Sprintf("%7d %7s %9s %7s  %s", p.pid, profile.Percent(p.n, r.weight), v.rate(p.n), profile.Percent(p.whole, p.samples), printable.Marked(p.comm))
}

// folded returns a stack on one line. Direct recursion is counted.
func (v *view) folded(s *rankedStack) string {
	var b strings.Builder
	for i := 0; i < len(s.frames); {
		n := s.again(i)
		if i > 0 {
			b.WriteString(" ← ")
		}
		b.WriteString(brief(printable.Marked(v.r.funcs[s.frames[i]].name)))
		if n > 1 {
			fmt.Fprintf(&b, " ×%d", n)
		}
		i += n
	}
	if m := mark(s.stop); m != "" {
		if len(s.frames) > 0 {
			b.WriteString(" ← ")
		}
		b.WriteString(m)
	}
	return b.String()
}

// again counts how often the i-th function called itself, and it.
func (s *rankedStack) again(i int) int {
	n := 1
	for i+n < len(s.frames) && s.frames[i+n] == s.frames[i] {
		n++
	}
	return n
}

// briefWidth is how many columns a function's name has where many stand on one line.
const briefWidth = 40

// brief shortens a name: long ones lose what is in angle brackets and parentheses, and then their end.
func brief(s string) string {
	if printable.Width(s) <= briefWidth {
		return s
	}
	for _, pair := range []string{"<>", "()"} {
		var b strings.Builder
		depth := 0
		for _, r := range s {
			if r == rune(pair[1]) && depth > 0 {
				depth--
			}
			if depth == 0 {
				b.WriteRune(r)
			}
			if r == rune(pair[0]) {
				if depth++; depth == 1 {
					b.WriteRune('…')
				}
			}
		}
		if depth == 0 { // else they are not brackets, as in operator<
			s = b.String()
		}
	}
	return printable.Clip(s, briefWidth)
}

// mark says why a stack is not whole; "" if it is, or has no user part.
func mark(s unwind.Stop) string {
	switch profile.Grade(s) {
	case "truncated", "broken":
		return "[" + s.String() + "]"
	}
	return ""
}

// body returns the rows that are to be seen.
func (v *view) body(width, height int) []string {
	t := v.table
	rows := v.rows[t]
	if len(rows) == 0 {
		text := "nothing yet"
		switch {
		case v.filter != nil && v.r.totals.Samples > 0:
			text = "nothing matches"
		case v.r.dur > 0:
			text = "no samples: nothing happened that is counted"
		}
		return []string{v.paint(tui.Faint, printable.Clip("  "+text, width))}
	}
	var below []string
	if v.open[t] {
		below = v.elide(v.unfolded(t, rows[v.sel[t]], width), max(height*2/3, min(height-1, 8)), width)
	}
	// The selected row and what is below it are to be seen.
	off := min(v.off[t], v.sel[t])
	if over := v.sel[t] + len(below) + 1 - off - height; over > 0 {
		off += over
	}
	off = max(0, min(off, len(rows)+len(below)-height))
	v.off[t] = off
	var out []string
	for i := off; i < len(rows) && len(out) < height; i++ {
		line := printable.Clip(v.row(t, rows[i]), width)
		if i == v.sel[t] {
			out = append(out, v.paint(tui.Chosen, printable.Pad(line, width)))
			out = append(out, below...)
			continue
		}
		out = append(out, line)
	}
	return out[:min(len(out), height)]
}

// elide leaves out what is in the middle of more than n lines.
func (v *view) elide(lines []string, n, width int) []string {
	if len(lines) <= n {
		return lines
	}
	const last = 3 // the outermost frames, and whether the stack is whole
	if n <= last+1 {
		return lines[:max(n, 0)]
	}
	first := n - last - 1
	note := v.paint(tui.Faint, printable.Clip(fmt.Sprintf("          … %s", profile.Quantity(uint64(len(lines)-first-last), "more lines")), width))
	return slices.Concat(lines[:first], []string{note}, lines[len(lines)-last:])
}

// maxBelow is how many lines of callers or functions are unfolded.
const maxBelow = 12

// unfolded returns what is shown below a row: a stack's frames, a function's callers, a process's functions.
func (v *view) unfolded(table int, id int32, width int) (out []string) {
	r := v.r
	add := func(format string, args ...any) {
		out = append(out, v.paint(tui.Faint, printable.Clip("        "+fmt.Sprintf(format, args...), width)))
	}
	if table == stacks {
		s := &r.stacks[id]
		for i := 0; i < len(s.frames); {
			f, n, times := s.frames[i], s.again(i), ""
			if n > 1 {
				times = fmt.Sprintf(" ×%d", n)
			}
			add("%4d  %s  %s%s", i, printable.Pad(printable.Clip(printable.Marked(r.funcs[f].module), 20), 20), printable.Marked(r.funcs[f].name), times)
			i += n
		}
		switch profile.Grade(s.stop) {
		case "whole":
			add("      whole")
		case "no user stack":
			add("      no user stack")
		default:
			add("      not whole: %s", profile.Reason(s.stop))
		}
		return out
	}
	var list []weighted
	var all uint64
	verb := "in"
	if table == processes {
		list, all = r.inside(id), r.procs[id].n
	} else {
		list, all, verb = r.callers(id), r.sums.Total[id], "called by"
	}
	for _, w := range list[:min(len(list), maxBelow)] {
		add("%s %7s %9s  %s", verb, profile.Percent(w.n, all), v.rate(w.n), printable.Marked(r.funcs[w.fn].name))
	}
	if n := len(list) - maxBelow; n > 0 {
		add("and %d more", n)
	}
	if len(list) == 0 {
		add("nothing")
	}
	return out
}

// counts says how much there was, what was lost, and who walked.
func (v *view) counts() string {
	r := v.r
	n := r.totals.Samples + r.idle
	samples := view{r: r}
	s := samples.rate(n) + " samples/s"
	if r.idle > 0 {
		s += " · " + profile.Percent(r.idle, n) + " idle"
	}
	s += " · " + profile.Comma(r.lost) + " lost"
	if v.walks != "" {
		s += " · " + v.walks
	}
	return s
}

// quality says how many stacks are whole and why the rest are not.
func (v *view) quality() string {
	t := &v.r.totals
	if t.Samples == 0 {
		return "no stacks"
	}
	s := profile.Percent(t.Whole(), t.Samples) + " of stacks whole"
	if n := t.NoUser(); n > 0 {
		s += " · " + profile.Percent(n, t.Samples) + " without user stack"
	}
	var why []unwind.Stop
	for i, n := range t.Stops {
		if s := unwind.Stop(i); n > 0 && profile.Reason(s) != "" {
			why = append(why, s)
		}
	}
	slices.SortStableFunc(why, func(a, b unwind.Stop) int { return cmp.Compare(t.Stops[b], t.Stops[a]) })
	for _, w := range why {
		s += " · " + profile.Percent(t.Stops[w], t.Samples) + " " + profile.Reason(w)
	}
	return s
}

func (v *view) prompt(width int) string {
	switch {
	case v.typing && v.wrong != nil:
		return printable.Clip("/"+printable.Marked(v.typed)+"  "+v.wrong.Error(), width)
	case v.typing:
		return printable.Clip("/"+printable.Marked(v.typed)+"▏", width)
	}
	return v.paint(tui.Faint, printable.Clip("tab table · ↑↓ select · enter unfold · / filter · p pause · r reset · ? help · q quit", width))
}

var helpText = strings.Split(`  tab, 1, 2, 3     functions, stacks, processes
  j k, arrows      select a row; page up, page down, home and end (g, G), too
  enter, space     unfold it: a function's callers, a stack's frames, a process's functions
  /                only rows that match a regular expression; escape: all
  p                pause: what comes meanwhile is counted, and shown when you go on
  r                reset: begin the window again
  q, ctrl-c        quit

  self: samples in the function itself. total: samples of stacks that it is in. Percentages are of all
  samples in the window, idle processors not counted. A stack is whole when it ends at a thread's
  first frame.`, "\n")
