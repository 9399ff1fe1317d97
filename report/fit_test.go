package report

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
)

// TestFit holds the shortening of names on terminals against that of pages.
func TestFit(t *testing.T) {
	oracle.Need(t, "node")
	names := []string{
		"main", "std::map<int, std::string>::operator[](int const&)", "a::b::c<d::e<f>>::g(h, i<j>) const", "operator<<(std::ostream&, X<int> const&)",
		"github.com/unspool/unspool/source.(*World).Apply", "<alloc::vec::Vec<T> as core::ops::drop::Drop>::drop", "core::ptr::drop_in_place<Box<dyn Fn() -> i32>>",
		"(anonymous namespace)::f(int)", "void f<(anonymous namespace)::T>(int (*)(char))", "unbalanced<(", ")>>)", "漢字::漢字<漢字>(漢字)", "", "x->y", "runtime.goexit",
		"std::_Function_handler<void (), main::{lambda()#1}>::_M_invoke(std::_Any_data const&)", "operator()(int)", "A::operator->*(B)", "operator",
	}
	type ask struct {
		Name string
		N    int
	}
	var asks []ask
	for _, name := range names {
		for n := 3; n < 60; n++ {
			asks = append(asks, ask{name, n})
		}
	}
	in, err := json.Marshal(asks)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("node", "-e", Names+`; console.log(JSON.stringify(JSON.parse(require("fs").readFileSync(0, "utf8")).map(a => fit(a.Name, a.N))))`)
	c.Stdin = bytes.NewReader(in)
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	if err := json.Unmarshal(out, &want); err != nil {
		t.Fatal(err)
	}
	for i, a := range asks {
		if got := fit(a.Name, a.N); got != want[i] {
			t.Errorf("fit(%q, %d) = %q, a page has %q", a.Name, a.N, got, want[i])
		}
	}
}

// TestTopBounded: a table is as long as the terminal is high and says how much is left out, in the order that is asked for.
func TestTopBounded(t *testing.T) {
	p := &profile.Profile{Modules: []profile.Module{{Path: "/bin/x"}}}
	for i := range 50 {
		p.Funcs = append(p.Funcs, profile.Func{Name: strings.Repeat("n", i+1) + "::f(int)", Named: true})
		p.Locs = append(p.Locs, profile.Loc{Func: int32(i), Mapping: -1})
		p.Stacks = append(p.Stacks, profile.Stack{Frames: []uint32{uint32(i), 0}, Count: uint64(i + 1)})
	}
	p = p.Filter(func(*profile.Stack) bool { return true })
	top := func(o Options) []string {
		var b bytes.Buffer
		if err := Top(&b, p, o); err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	}
	if got := top(Options{Width: 80, Rows: 24}); len(got) != 22 || !strings.HasSuffix(got[21], " in 32 more functions") {
		t.Errorf("%d lines:\n%s", len(got), strings.Join(got, "\n"))
	}
	if got := top(Options{Width: 60, Rows: 24}); !strings.HasSuffix(got[3], "  f()") {
		t.Errorf("%s", got[3])
	}
	if got := top(Options{Rows: 24, Limit: 3}); len(got) != 7 {
		t.Errorf("%d lines", len(got))
	}
	if got := top(Options{}); len(got) != 53 {
		t.Errorf("%d lines", len(got))
	}
	if got := top(Options{Total: true}); !strings.HasSuffix(got[3], "  n::f(int)") || strings.HasSuffix(top(Options{})[3], "  n::f(int)") {
		t.Errorf("by total, the first is %s", got[3])
	}
}

// TestTopWide: columns are counted as a terminal shows them, so that names in wide characters neither move those after them nor end a line late.
func TestTopWide(t *testing.T) {
	p := &profile.Profile{Modules: []profile.Module{{Path: "/bin/x"}, {Path: "/bin/日本語"}, {Path: "/bin/" + strings.Repeat("木", 30)}}}
	for i := range p.Modules {
		p.Funcs = append(p.Funcs, profile.Func{Name: "|" + strings.Repeat("関数", 30), Module: int32(i), Named: true})
		p.Locs = append(p.Locs, profile.Loc{Func: int32(i), Module: int32(i), Mapping: -1})
		p.Stacks = append(p.Stacks, profile.Stack{Frames: []uint32{uint32(i)}, Count: uint64(i + 1)})
	}
	p = p.Filter(func(*profile.Stack) bool { return true })
	for _, columns := range []int{30, 40, 60, 80, 120} {
		var b bytes.Buffer
		if err := Top(&b, p, Options{Width: columns}); err != nil {
			t.Fatal(err)
		}
		at := map[int]bool{}
		for _, l := range strings.Split(b.String(), "\n")[3:6] {
			before, _, _ := strings.Cut(l, "|")
			at[printable.Width(before)] = true
			if n := printable.Width(l); n > columns || n < columns-1 {
				t.Errorf("%d columns of %d: %q", n, columns, l)
			}
		}
		if len(at) != 1 {
			t.Errorf("functions begin in columns %v of\n%s", at, b.String())
		}
	}
}
