package top

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"charm.land/lipgloss/v2"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/tui"
	"github.com/unspool/unspool/tui/tuitest"
)

// intervalOf returns what a tally that gets the lines has after a second.
func intervalOf(t *testing.T, c *tuitest.Scene, lines ...string) record.Interval {
	t.Helper()
	t0 := time.Unix(100, 0)
	tally := record.NewTally(t0)
	c.Samples(t, lines, tally.Add)
	return tally.Cut(t0.Add(time.Second), 3, c, profile.Info{})
}

func name(r *ranking, id int32) string { return r.funcs[id].name }

// TestWindow: intervals add up, the oldest goes, and nothing is counted twice.
func TestWindow(t *testing.T) {
	c, w := tuitest.NewScene(), window{size: 2}
	w.push(intervalOf(t, c, "90x 10/10 old outermost: gone main"))
	w.push(intervalOf(t, c, "4x 10/10 cc1 outermost: fib fib fib main", "1x 11/11 sh truncated: k_read read main", "5x 0/0 swapper no-user-stack: k_idle"))
	w.push(intervalOf(t, c, "4x 10/12 thread outermost: fib fib fib main", "1x 12/12 kworker no-user-stack: k_work"))
	r := w.rank()
	if r.dur != 2*time.Second || r.totals.Samples != 10 || r.weight != 10 || r.idle != 5 || r.lost != 6 || len(w.parts) != 2 {
		t.Errorf("%v %+v, weight %d, %d idle, %d lost, %d parts", r.dur, r.totals, r.weight, r.idle, r.lost, len(w.parts))
	}
	var got []string
	for _, f := range r.byFunc {
		got = append(got, fmt.Sprintf("%s %d %d", name(r, f), r.sums.Self[f], r.sums.Total[f]))
	}
	for _, s := range r.byStack {
		line := fmt.Sprint(r.stacks[s].n, " ", r.stacks[s].stop)
		for _, f := range r.stacks[s].frames {
			line += " " + name(r, f)
		}
		got = append(got, line)
	}
	for _, p := range r.byProc {
		q := &r.procs[p]
		got = append(got, fmt.Sprintf("%d %s %d %d", q.pid, q.comm, q.n, q.whole))
	}
	want := []string{
		"fib 8 8", "k_read 1 1", "k_work 1 1", "main 0 9", "read 0 1",
		"8 outermost fib fib fib main", "1 truncated k_read read main", "1 no-user-stack k_work",
		"10 cc1 8 8", "11 sh 1 0", "12 kworker 1 0",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, c := range []struct {
		list []weighted
		want string
	}{
		{r.callers(r.byFunc[0]), "main 8"},
		{r.callers(r.byFunc[3]), ""},
		{r.inside(r.byProc[1]), "k_read 1"},
	} {
		var got []string
		for _, x := range c.list {
			got = append(got, fmt.Sprint(name(r, x.fn), " ", x.n))
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%q, want %q", s, c.want)
		}
	}
	w.by = profile.Periods
	if r := w.rank(); r.weight != 20e6 || r.sums.Self[r.byFunc[0]] != 16e6 {
		t.Errorf("periods: %d, %+v", r.weight, r.sums)
	}
	w.reset()
	if n := w.rank().totals.Samples; n != 0 {
		t.Errorf("%d samples after a reset, want 0", n)
	}
}

// looks checks what a view looks like. A line that ends in a backslash has had blanks at its end.
func looks(t *testing.T, v *view, width, height int, want string) {
	t.Helper()
	got := v.text(width, height)
	if n := strings.Count(got, "\n") + 1; n != height {
		t.Errorf("%d lines, want %d", n, height)
	}
	if want = strings.Trim(want, "\n"); regexp.MustCompile(` +(\n|$)`).ReplaceAllString(got, "$1") != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestView(t *testing.T) {
	c, w := tuitest.NewScene(), window{size: 10}
	w.push(intervalOf(t, c, "6x 10/10 cc1 outermost: fib fib fib main", "3x 11/11 sh\x1b[2J truncated: k_read std::vector<int>::at main",
		"1x 12/12 kworker no-user-stack: k_work", "10x 0/0 swapper no-user-stack: k_idle"))
	v := newView()
	v.what, v.size, v.walks = "whole machine", 10*time.Second, "walking copies of stacks"
	looks(t, v, 70, 8, `
unspool top · whole machine · last 0 s
 1 functions  2 stacks  3 processes
   self   total samples/s  module                function
  nothing yet

0 samples/s · 0 lost · walking copies of stacks
no stacks
tab table · ↑↓ select · enter unfold · / filter · p pause · r reset ·…`)
	v.show(w.rank())
	looks(t, v, 90, 12, `
unspool top · whole machine · last 1 s
 1 functions  2 stacks  3 processes
   self   total samples/s  module                function
 60.0 %  60.0 %       6.0  a.out                 fib
 30.0 %  30.0 %       3.0  [kernel]              k_read
 10.0 %  10.0 %       1.0  [kernel]              k_work
  0.0 %  90.0 %         0  a.out                 main
  0.0 %  30.0 %         0  a.out                 std::vector<int>::at

20 samples/s · 50.0 % idle · 3 lost · walking copies of stacks
60.0 % of stacks whole · 10.0 % without user stack · 30.0 % cut off
tab table · ↑↓ select · enter unfold · / filter · p pause · r reset · ? help · q quit`)
	v.table = stacks
	v.move(1)
	v.open[stacks] = true
	looks(t, v, 60, 13, `
unspool top · whole machine · last 1 s
 1 functions  2 stacks  3 processes
  share samples/s  stack, innermost function first
 60.0 %       6.0  fib ×3 ← main
 30.0 %       3.0  k_read ← std::vector<int>::at ← main ← […
           0  [kernel]              k_read
           1  a.out                 std::vector<int>::at
           2  a.out                 main
              not whole: cut off
 10.0 %       1.0  k_work
20 samples/s · 50.0 % idle · 3 lost · walking copies of sta…
60.0 % of stacks whole · 10.0 % without user stack · 30.0 %…
tab table · ↑↓ select · enter unfold · / filter · p pause ·…`)
	// The selected stack stays selected where it comes to stand elsewhere; where it is no more, its place is.
	w.push(intervalOf(t, c, "9x 11/11 sh truncated: k_read std::vector<int>::at main"))
	v.show(w.rank())
	if v.sel[stacks] != 0 || !v.open[stacks] {
		t.Errorf("selected: %d, open: %v", v.sel[stacks], v.open[stacks])
	}
	w.reset()
	w.push(intervalOf(t, c, "9x 11/11 sh\x1b[2J outermost: main", "3x 12/12 b no-info: b main"))
	v.show(w.rank())
	if v.sel[stacks] != 0 || !v.open[stacks] {
		t.Errorf("selected: %d, open: %v", v.sel[stacks], v.open[stacks])
	}
	// Much recursion is one line, and of many lines the middle is left out.
	w.reset()
	w.push(intervalOf(t, c, "9x 11/11 sh outermost: a a a a b c d e f g h i j k l m n main"))
	v.show(w.rank())
	v.open[stacks] = true
	looks(t, v, 60, 18, `
unspool top · whole machine · last 1 s
 1 functions  2 stacks  3 processes
  share samples/s  stack, innermost function first
100.0 %       9.0  a ×4 ← b ← c ← d ← e ← f ← g ← h ← i ← j…
           0  a.out                 a ×4
           4  a.out                 b
           5  a.out                 c
           6  a.out                 d
          … 9 more lines
          16  a.out                 n
          17  a.out                 main
              whole



9.0 samples/s · 3 lost · walking copies of stacks
100.0 % of stacks whole
tab table · ↑↓ select · enter unfold · / filter · p pause ·…`)
	w.reset()
	w.push(intervalOf(t, c, "9x 11/11 sh\x1b[2J outermost: main", "3x 12/12 b no-info: b main"))
	v.show(w.rank())
	// Other people's bytes do not reach the terminal.
	v.table = processes
	v.open[processes] = true
	looks(t, v, 60, 10, `
unspool top · whole machine · last 1 s
 1 functions  2 stacks  3 processes
    pid   share samples/s   whole  command
     11  75.0 %       9.0 100.0 %  sh?[2J
        in 100.0 %       9.0  main
     12  25.0 %       3.0   0.0 %  b

12 samples/s · 3 lost · walking copies of stacks
75.0 % of stacks whole · 25.0 % code without unwind informa…
tab table · ↑↓ select · enter unfold · / filter · p pause ·…`)
	v.setFilter(regexp.MustCompile("^b$"))
	v.open[processes] = false
	v.paused = true
	if s := v.plainText(0, 20); s != `unspool top · whole machine · last 1 s · paused · /^b$/
12 samples/s · 3 lost · walking copies of stacks
75.0 % of stacks whole · 25.0 % code without unwind information

    pid   share samples/s   whole  command
     12  25.0 %       3.0   0.0 %  b
` {
		t.Errorf("got\n%s", s)
	}
	// There may be more processes than functions.
	w.reset()
	w.push(intervalOf(t, c, "3x 11/11 a outermost: main", "2x 12/12 b outermost: main", "1x 13/13 c outermost: main"))
	v.setFilter(nil)
	v.show(w.rank())
	v.sel[processes], v.open[processes] = 2, true
	if got := strings.Join(v.unfolded(processes, v.rows[processes][2], 60), "\n"); got != "        in 100.0 %       1.0  main" {
		t.Errorf("inside the third process: %q", got)
	}
	v.help = true
	if s := v.text(100, 24); !strings.Contains(s, "regular expression; escape: all") {
		t.Errorf("help:\n%s", s)
	}
}

// TestViewScrolls: at every size, wherever one is, the selected row is there once and nothing is too wide or too high.
func TestViewScrolls(t *testing.T) {
	c, w := tuitest.NewScene(), window{size: 10}
	var lines []string
	for i := range 40 {
		lines = append(lines, fmt.Sprintf("%dx %d/%d p%d outermost: f%d 木木木木木 %s main", 100-i, i+1, i+1, i, i, strings.Repeat("deep<a,b> ", i)))
	}
	w.push(intervalOf(t, c, lines...))
	v := newView()
	v.paint = func(st tui.Style, s string) string {
		if st == tui.Chosen && !strings.HasPrefix(s, " 1 ") && !strings.HasPrefix(s, " 2 ") && !strings.HasPrefix(s, " 3 ") {
			return "▶" + s
		}
		return s
	}
	v.show(w.rank())
	for table := range numTables {
		v.table = table
		for _, height := range []int{1, 6, 7, 8, 13, 30, 100} {
			for _, width := range []int{1, 2, 17, 60, 300} {
				for step, by := range []int{0, 1, 7, -3, 100, -1, -50, -1000, 20} {
					v.move(by)
					v.open[table] = step%2 == 1
					s := v.text(width, height)
					rows := strings.Split(s, "\n")
					if n := strings.Count(s, "▶"); len(rows) != height || n != 1 && height > 6 {
						t.Fatalf("table %d, %dx%d: %d lines, %d selected\n%s", table, width, height, len(rows), n, s)
					}
					for _, l := range rows {
						if n := lipgloss.Width(strings.TrimPrefix(l, "▶")); n > width {
							t.Fatalf("table %d, %dx%d: %d columns: %q", table, width, height, n, l)
						}
					}
				}
			}
		}
	}
}

func TestBrief(t *testing.T) {
	for _, c := range [][2]string{
		{"main", "main"},
		{"std::vector<int>::at(unsigned long)", "std::vector<int>::at(unsigned long)"},
		{"std::map<std::string, std::vector<std::pair<int, long>>>::operator[](std::string const&)", "std::map<…>::operator[](…)"},
		{"ns::operator<(std::basic_string_view const&, std::basic_string_view)", "ns::operator<(…)"},
		{"github.com/unspool/unspool/source/perfevent.(*Recorder).drainAll", "github.com/unspool/unspool/source/perfe…"},
	} {
		if got := brief(c[0]); got != c[1] {
			t.Errorf("%q: %q, want %q", c[0], got, c[1])
		}
	}
}
