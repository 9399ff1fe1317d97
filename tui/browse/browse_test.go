package browse

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/tui/tuitest"
	"github.com/unspool/unspool/unwind"
)

// press gives a reader the keys, by their names.
func press(r *reader, keys ...string) {
	for _, k := range keys {
		msg := tea.KeyPressMsg{Text: k, Code: []rune(k)[0]}
		switch k {
		case "enter":
			msg = tea.KeyPressMsg{Code: tea.KeyEnter}
		case "esc":
			msg = tea.KeyPressMsg{Code: tea.KeyEscape}
		case "down":
			msg = tea.KeyPressMsg{Code: tea.KeyDown}
		case "left":
			msg = tea.KeyPressMsg{Code: tea.KeyLeft}
		case "right":
			msg = tea.KeyPressMsg{Code: tea.KeyRight}
		}
		r.Update(msg)
	}
}

// body is what a reader shows, without what is around it.
func body(r *reader) string {
	var out []string
	for _, l := range strings.Split(r.text(), "\n")[2:] {
		if l = strings.TrimRight(l, " "); l != "" {
			out = append(out, l)
		}
	}
	return strings.Join(out[:len(out)-2], "\n")
}

func testReader(t *testing.T) *reader {
	p := tuitest.NewScene().Profile(t,
		"4x 10/10 cc1 outermost: hash lookup parse main",
		"2x 10/10 cc1 outermost: parse main",
		"1x 10/10 cc1 outermost: fib fib fib main",
		"1x 10/11 cc1 truncated: hash",
		"1x 11/11 sh bad-cfa: k_read read",
		"1x 12/12 kworker no-user-stack: k_work",
	)
	r := newReader(p, "x.data", profile.Samples)
	r.Update(tea.WindowSizeMsg{Width: 80, Height: 30})
	return r
}

func TestBrowse(t *testing.T) {
	for _, c := range []struct {
		name, keys, want string
	}{
		{"threads", "", `
  total    self    function, and what it called
 80.0 %   0.0 %  ▸ cc1
 10.0 %   0.0 %  ▸ kworker
 10.0 %   0.0 %  ▸ sh`},
		{"opened", "enter", `
  total    self    function, and what it called
 80.0 %   0.0 %  ▾ cc1
 70.0 %   0.0 %    ▸ main
 10.0 %   0.0 %    ▸ [truncated]
 10.0 %   0.0 %  ▸ kworker
 10.0 %   0.0 %  ▸ sh`},
		{"a chain at once, and closed", "enter down enter down right down down left enter", `
  total    self    function, and what it called
 80.0 %   0.0 %  ▾ cc1
 70.0 %   0.0 %    ▾ main
 60.0 %  20.0 %      ▾ parse
 40.0 %   0.0 %        ▾ lookup
 40.0 %  40.0 %          hash
 10.0 %   0.0 %      ▸ fib
 10.0 %   0.0 %    ▸ [truncated]
 10.0 %   0.0 %  ▸ kworker
 10.0 %   0.0 %  ▸ sh`},
		{"search opens the tree", "/ h a s h enter", `
  total    self    function, and what it called
 80.0 %   0.0 %  ▾ cc1
 70.0 %   0.0 %    ▾ main
 60.0 %  20.0 %      ▾ parse
 40.0 %   0.0 %        ▾ lookup
 40.0 %  40.0 %          hash
 10.0 %   0.0 %      ▸ fib
 10.0 %   0.0 %    ▸ [truncated]
 10.0 %   0.0 %  ▸ kworker
 10.0 %   0.0 %  ▸ sh`},
		{"top", "t", `
   self   total  module                function
 50.0 %  50.0 %  a.out                 hash
 20.0 %  60.0 %  a.out                 parse
 10.0 %  10.0 %  a.out                 fib
 10.0 %  10.0 %  [kernel]              k_read
 10.0 %  10.0 %  [kernel]              k_work
  0.0 %  70.0 %  a.out                 main
  0.0 %  40.0 %  a.out                 lookup
  0.0 %  10.0 %  a.out                 read`},
		{"callers of it", "t enter", `
   self   total    function, and who called it
 50.0 %  50.0 %  ▾ hash
         40.0 %    ▾ lookup
         40.0 %    ▾ parse
         40.0 %      main
 20.0 %  60.0 %  ▸ parse
 10.0 %  10.0 %  ▸ fib
 10.0 %  10.0 %  ▸ k_read
 10.0 %  10.0 %  ▸ k_work
  0.0 %  70.0 %  ▸ main
  0.0 %  40.0 %  ▸ lookup
  0.0 %  10.0 %  ▸ read`},
		{"filter", "f f i b enter", `
  total    self    function, and what it called
 10.0 %   0.0 %  ▾ cc1
 10.0 %   0.0 %    ▾ main
 10.0 %   0.0 %    ▾ fib
 10.0 %   0.0 %    ▾ fib
 10.0 %  10.0 %      fib`},
		{"filter of a thread, and the order by total", "f ^ s h $ enter t s", `
   self   total  module                function
 10.0 %  10.0 %  [kernel]              k_read
  0.0 %  10.0 %  a.out                 read`},
		{"recursion counts once", "3 / f i b enter enter", `
   self   total    function, and who called it
 50.0 %  50.0 %  ▸ hash
 20.0 %  60.0 %  ▸ parse
 10.0 %  10.0 %  ▾ fib
         10.0 %      main
 10.0 %  10.0 %  ▸ k_read
 10.0 %  10.0 %  ▸ k_work
  0.0 %  70.0 %  ▸ main
  0.0 %  40.0 %  ▸ lookup
  0.0 %  10.0 %  ▸ read`},
	} {
		r := testReader(t)
		press(r, strings.Fields(c.keys)...)
		if got := body(r); got != strings.TrimPrefix(c.want, "\n") {
			t.Errorf("%s\n--- got\n%s\n--- want%s", c.name, got, c.want)
		}
	}
	r := testReader(t)
	press(r, "/", "(", "enter")
	if !strings.Contains(r.text(), "missing closing )") {
		t.Errorf("a wrong expression: %s", r.text())
	}
	press(r, "esc", "n")
	if !strings.Contains(r.text(), "nothing has been searched for") {
		t.Errorf("n without a search shows\n%s\nwant nothing has been searched for", r.text())
	}
	press(r, "/", "z", "z", "enter")
	if !strings.Contains(r.text(), "nothing matches zz") {
		t.Errorf("the search for zz shows\n%s\nwant nothing matches zz", r.text())
	}
	if _, cmd := r.Update(tea.KeyPressMsg{Text: "q", Code: 'q'}); cmd == nil {
		t.Errorf("q does not end it: no command, and the screen shows\n%s", r.text())
	}
}

// TestBrowseAnything: whatever is pressed on whatever profile at whatever size, lines fit, and numbers are those of the profile.
func TestBrowseAnything(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	keys := strings.Fields("down down right right enter left t s n N g G k ? esc / f enter a m \x1b[31m j esc")
	for range 40 {
		p := &profile.Profile{Modules: []profile.Module{{Path: "/bin/\x1b[2Jx"}, {Kernel: true, Path: "[kernel]"}}, Files: []string{""}}
		for i := range 30 {
			name := fmt.Sprint("fn\x1b[31m日本", i)
			p.Funcs = append(p.Funcs, profile.Func{Name: name, Module: int32(i % 2)})
			p.Locs = append(p.Locs, profile.Loc{Func: int32(i), Module: int32(i % 2), Mapping: -1, Inlined: i%3 == 0})
		}
		for range rnd.IntN(200) {
			s := profile.Stack{Comm: fmt.Sprint("c", rnd.IntN(3)), Stop: unwind.Stop(rnd.IntN(int(unwind.NumStops))), Count: uint64(rnd.IntN(4)), Period: 1}
			for range rnd.IntN(12) {
				s.Frames = append(s.Frames, uint32(rnd.IntN(30)))
			}
			p.Stacks = append(p.Stacks, s)
		}
		p = p.Filter(func(*profile.Stack) bool { return true })
		r := newReader(p, "\x1b[31m", profile.Samples)
		for range 150 {
			if rnd.IntN(10) == 0 {
				r.Update(tea.WindowSizeMsg{Width: rnd.IntN(120), Height: rnd.IntN(40)})
			}
			press(r, keys[rnd.IntN(len(keys))])
			text := r.text()
			if strings.Contains(text, "\x1b") || strings.Count(text, "\n") >= r.height {
				t.Fatalf("%d x %d:\n%q", r.width, r.height, text)
			}
			if r.view == treeView && r.filter == nil {
				checkTree(t, r.browser)
			}
		}
	}
}

// checkTree: what a branch weighs is what its callees and it itself do.
func checkTree(t *testing.T, b *browser) {
	t.Helper()
	sum := uint64(0)
	for _, r := range b.roots[treeView] {
		sum += r.total
	}
	if sum != b.all {
		t.Fatalf("threads weigh %d, the profile %d", sum, b.all)
	}
	for _, r := range b.rows[treeView] {
		if r.kids == nil {
			continue
		}
		sum := r.self
		for _, k := range r.kids {
			sum += k.total
		}
		if sum != r.total {
			t.Fatalf("%s: %d of its own and below, %d in total", b.name(r), sum, r.total)
		}
	}
}

// BenchmarkBrowse opens a profile of a million stacks, and its tree down to the heaviest function.
func BenchmarkBrowse(b *testing.B) {
	rnd := rand.New(rand.NewPCG(1, 1))
	p := &profile.Profile{Modules: []profile.Module{{Path: "/bin/x"}}}
	for i := range 5000 {
		p.Funcs = append(p.Funcs, profile.Func{Name: fmt.Sprint("f", i)})
		p.Locs = append(p.Locs, profile.Loc{Func: int32(i), Mapping: -1})
	}
	for range 1_000_000 {
		s := profile.Stack{Comm: "x", Stop: unwind.Outermost, Count: 1}
		for d := range 25 {
			s.Frames = append(s.Frames, uint32(rnd.IntN(max(5000>>d, 1))))
		}
		p.Stacks = append(p.Stacks, s)
	}
	p = p.Filter(func(*profile.Stack) bool { return true })
	b.ResetTimer()
	for b.Loop() {
		r := newReader(p, "x", profile.Samples)
		press(r, "/", "f", "1", "$", "enter", "t", "enter")
		if r.text() == "" {
			b.Fatalf("no text for %d stacks after /f1$, Enter, t, Enter", len(p.Stacks))
		}
	}
}
