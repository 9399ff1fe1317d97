package annotate

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/profile"
)

var update = flag.Bool("update", false, "write testdata/f.txt")

// program is an image of one executable segment with the code at 0x1000, which is at offset 0x1000 of the file too.
func program(t testing.TB, machine uint16, code string) *module.Image {
	b := make([]byte, 0x1000, 0x1000+len(code))
	copy(b, "\x7fELF\x02\x01\x01")
	le := field(b)
	le(16, 2, 3) // ET_DYN
	le(18, 2, uint64(machine))
	le(32, 8, 64) // e_phoff
	le(54, 2, 56) // e_phentsize
	le(56, 2, 1)  // e_phnum
	le(64, 4, 1)  // PT_LOAD
	le(68, 4, 5)  // R X
	le(72, 8, 0x1000)
	le(80, 8, 0x1000)
	le(96, 8, uint64(len(code)))
	le(104, 8, uint64(len(code)))
	img, err := module.New("program", append(b, code...))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func field(b []byte) func(off, n int, v uint64) {
	return func(off, n int, v uint64) {
		for i := range n {
			b[off+i] = byte(v >> (8 * i))
		}
	}
}

// sample is a profile of a function "f" with a call inlined, called by "g":
//
//	1000  push rbx        f.c:10
//	1001  call 0x1010     f.c:11
//	1006  xor eax, eax    h.h:5, inlined at f.c:12
//	1008  jne 0x1006      h.h:6, inlined at f.c:12
//	100a  (0xd6)          f.c:13
//	100b  ret             f.c:13
const code = "\x53\xe8\x0a\x00\x00\x00\x31\xc0\x75\xfc\xd6\xc3\x90\x90\x90\x90\xc3"

func sample() *profile.Profile {
	return &profile.Profile{
		Modules: []profile.Module{{Path: "/bin/prog"}},
		Funcs:   []profile.Func{{Name: "f"}, {Name: "h"}, {Name: "g"}},
		Files:   []string{"", "/src/f.c", "/src/h.h"},
		Locs: []profile.Loc{
			0: {Off: 0x1005, Func: 0, File: 1, Line: 11},
			1: {Off: 0x1006, Func: 1, Inlined: true, File: 2, Line: 5},
			2: {Off: 0x1006, Func: 0, File: 1, Line: 12},
			3: {Off: 0x1008, Func: 1, Inlined: true, File: 2, Line: 6},
			4: {Off: 0x1008, Func: 0, File: 1, Line: 12},
			5: {Off: 0x1010, Func: 2},
			6: {Off: 0x100b, Func: 0},
		},
		Stacks: []profile.Stack{
			{Frames: []uint32{1, 2, 5}, Count: 3, Period: 30},
			{Frames: []uint32{3, 4, 0, 5}, Count: 2, Period: 20}, // recursion
			{Frames: []uint32{5, 0, 0}, Count: 4, Period: 40},
			{Frames: []uint32{6}, Count: 1, Period: 10},
			{Frames: []uint32{5}, Count: 10, Period: 100},
		},
	}
}

func options(t testing.TB) Options {
	img := program(t, arch.EM_X86_64, code)
	return Options{
		Open: func(*profile.Module) (*module.Image, error) { return img, nil },
		Bounds: func(_ *profile.Module, v arch.Vaddr) (lo, hi arch.Vaddr, ok bool) {
			if v < 0x100c {
				return 0x1000, 0x100c, true
			}
			return 0x1010, 0x1011, v == 0x1010
		},
		Lines: func(*profile.Module, arch.Vaddr, arch.Vaddr) []Line {
			return []Line{
				{Addr: 0x1000, File: "/src/f.c", Line: 10}, {Addr: 0x1001, File: "/src/f.c", Line: 11}, {Addr: 0x1006, File: "/src/h.h", Line: 5}, {Addr: 0x1008, File: "/src/h.h", Line: 6},
				{Addr: 0x100a, File: "/src/f.c", Line: 13}, {Addr: 0x100c, File: "", Line: 0},
			}
		},
		Symbol: func(_ *profile.Module, v arch.Vaddr) (string, uint64) {
			if v >= 0x1010 {
				return "g", uint64(v - 0x1010)
			}
			return "f", uint64(v - 0x1000)
		},
		Source: func(_ *profile.Module, path string) ([]byte, error) {
			if path == "/src/h.h" {
				return nil, errors.New("/src/h.h: it is gone")
			}
			return []byte(strings.Repeat("\n", 9) + "int f(void)\n{\tg();\n\th();\r\n}\x1b\n"), nil
		},
	}
}

func TestFunction(t *testing.T) {
	a, err := Function(sample(), 0, options(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := json.Marshal(a); err != nil {
		t.Error(err)
	}
	var b strings.Builder
	a.Text(&b, TextOptions{Source: true, Unit: "samples"})
	b.WriteString("\n")
	a.Text(&b, TextOptions{Unit: "samples", Width: 70})
	if *update {
		if err := os.WriteFile("testdata/f.txt", []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/f.txt")
	if d := cmp.Diff(string(want), b.String()); d != "" || err != nil {
		t.Errorf("%v\n%s\ngot\n%s", err, d, b.String())
	}
}

// Lines fit a terminal whose wide characters take two columns, and remarks stand in one column.
func TestWide(t *testing.T) {
	a := &Annotation{Func: "関数の名前", Module: "/opt/日本語", Total: 2, All: 2, Self: 2}
	a.Lines = []SourceLine{{File: "/src/源.c", Line: 1, Self: 2, Total: 2, Text: strings.Repeat("語", 60)}}
	a.Insts = []Inst{
		{Addr: 0x10, Text: "call 0x20", Target: 0x20, TargetName: "関数", File: "/src/源.c", Line: 1},
		{Addr: 0x15, Text: "ret", File: "/src/源.c", Line: 2},
	}
	for _, source := range []bool{true, false} {
		var b strings.Builder
		if err := a.Text(&b, TextOptions{Source: source, Unit: "samples", Width: 60}); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if w := printable.Width(strings.TrimSuffix(line, "\n")); w > 60 {
				t.Errorf("%d columns: %s", w, line)
			}
		}
	}
	var b strings.Builder
	a.Text(&b, TextOptions{Unit: "samples"})
	var at []int
	for line := range strings.Lines(b.String()) {
		if before, _, ok := strings.Cut(line, " ; "); ok {
			at = append(at, printable.Width(before))
		}
	}
	if len(at) != 2 || at[0] != at[1] {
		t.Errorf("remarks at columns %v:\n%s", at, b.String())
	}
}

// TestHottest: the order of functions is that of their weights, and a recursive function weighs a stack once, however often it is in it.
func TestHottest(t *testing.T) {
	p := &profile.Profile{
		Funcs: []profile.Func{{Name: "leaf"}, {Name: "recursive"}, {Name: "outer"}, {Name: "unused"}},
		Locs:  []profile.Loc{{Func: 0}, {Func: 1}, {Func: 1, Inlined: true}, {Func: 2}},
		Stacks: []profile.Stack{
			{Frames: []uint32{0, 1, 2, 1, 3}, Count: 2, Period: 1},
			{Frames: []uint32{0, 3}, Count: 1, Period: 70},
		},
	}
	for _, c := range []struct {
		by   profile.Weight
		not  string
		want []int32
	}{
		{profile.Samples, "", []int32{0, 2, 1}},
		{profile.Periods, "", []int32{0, 2, 1}},
		{profile.Samples, "leaf", []int32{2, 1}},
	} {
		if got := hottest(p, func(name string) bool { return name != c.not }, c.by); !slices.Equal(got, c.want) {
			t.Errorf("by %d, without %q: %v, want %v", c.by, c.not, got, c.want)
		}
	}
}

// TestInlined has a function without code of its own.
func TestInlined(t *testing.T) {
	o := options(t)
	o.By = profile.Periods
	a, err := Function(sample(), 1, o)
	if err != nil {
		t.Fatal(err)
	}
	got := []any{a.Self, a.Total, a.All, len(a.Insts), a.Lines}
	want := []any{uint64(50), uint64(50), uint64(200), 0, []SourceLine{
		{File: "/src/h.h", Line: 5, Self: 30, Total: 30}, {File: "/src/h.h", Line: 6, Self: 20, Total: 20}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Function of inlined calls: -want +got:\n%s", d)
	}
	if !slices.Contains(a.Notes, "source: /src/h.h: it is gone") {
		t.Errorf("Function has the notes %q, want source: /src/h.h: it is gone", a.Notes)
	}
}

// TestMissing takes away what annotations are made from, one by one: something is left, and a note.
func TestMissing(t *testing.T) {
	p := sample()
	for name, c := range map[string]struct {
		spoil func(o *Options, p *profile.Profile)
		note  string
	}{
		"file": {func(o *Options, p *profile.Profile) {
			o.Open = func(*profile.Module) (*module.Image, error) { return nil, os.ErrNotExist }
		}, "file does not exist"},
		"no file": {func(o *Options, p *profile.Profile) {
			o.Open = func(*profile.Module) (*module.Image, error) { return nil, nil }
		}, "/bin/prog: no file has this code"},
		"bounds": {func(o *Options, p *profile.Profile) {
			o.Bounds = func(*profile.Module, arch.Vaddr) (lo, hi arch.Vaddr, ok bool) { return }
		}, "the bounds of the function at 0x1005 are not known"},
		"long": {func(o *Options, p *profile.Profile) {
			o.Bounds = func(*profile.Module, arch.Vaddr) (lo, hi arch.Vaddr, ok bool) { return 0, 1 << 40, true }
		}, "the function has 1099511627776 bytes; the first 524288 are shown"},
		"beyond": {func(o *Options, p *profile.Profile) {
			o.Bounds = func(*profile.Module, arch.Vaddr) (lo, hi arch.Vaddr, ok bool) { return 0x1000, 0x3000, true }
		}, "the code at 0x1000 is not in the file"},
		"kernel":   {func(o *Options, p *profile.Profile) { p.Modules[0].Kernel = true }, "the kernel's code is not read"},
		"offset":   {func(o *Options, p *profile.Profile) { p.Locs[6].Off = 1 << 60 }, "/bin/prog: there is no code at 0x1000000000000000 in the file"},
		"build ID": {func(o *Options, p *profile.Profile) { p.Modules[0].BuildID = "" }, "/bin/prog: without a build ID, nothing shows whether this file ran"},
		"machine": {func(o *Options, p *profile.Profile) {
			img := program(t, arch.EM_S390, code)
			o.Open = func(*profile.Module) (*module.Image, error) { return img, nil }
		}, "instructions of s390x cannot be decoded"},
	} {
		t.Run(name, func(t *testing.T) {
			o, p := options(t), *p
			p.Modules, p.Locs = slices.Clone(p.Modules), slices.Clone(p.Locs)
			c.spoil(&o, &p)
			a, err := Function(&p, 0, o)
			if err != nil || a.Total != 10 || a.Self != 6 || len(a.Lines) == 0 || !slices.Contains(a.Notes, c.note) {
				t.Errorf("Function: %+v, %v; want a note %q", a, err, c.note)
			}
		})
	}
	if a, err := Function(p, 3, Options{}); err == nil {
		t.Errorf("Function 3, of a profile with %d, has %d lines; want an error", len(p.Funcs), len(a.Lines))
	}
}

func TestReplaced(t *testing.T) {
	img, err := module.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	o := options(t)
	o.Open = func(*profile.Module) (*module.Image, error) { return img, nil }
	p := sample()
	p.Modules[0].BuildID = strings.Repeat("ab", 20)
	if img.BuildID() == nil {
		t.Skip("the test has no build ID")
	}
	if a, _ := Function(p, 0, o); len(a.Insts) > 0 || !strings.Contains(strings.Join(a.Notes, "\n"), "the file was replaced") {
		t.Errorf("%+v", a)
	}
}

// FuzzCode disassembles anything, in all syntaxes: instructions follow each other, and together they are the code.
func FuzzCode(f *testing.F) {
	f.Add([]byte(code), byte(0))
	f.Add([]byte("\x62\xf1\x7c\x48\x28\x04\x25\x00\x00\x00\x00\xc5\xf8\x77\xf3\x0f\x1e\xfa\xc4"), byte(1))
	f.Add([]byte("\x00\x00\x00\x94\x00\x00\x00\x90\x41\x7c\xa0\x88\x20\x80\x20\xb8\x00"), byte(5))
	f.Fuzz(func(t *testing.T, code []byte, how byte) {
		m := arch.AMD64
		if how&4 != 0 {
			m = arch.ARM64
		}
		b := &builder{a: &Annotation{}}
		p := &part{lo: 0x1000, hi: 0x1000 + arch.Vaddr(len(code)), lines: []Line{{Addr: 0x1003, File: "x", Line: 1}, {Addr: 0x1009, File: "x", Line: 2}}}
		b.part(newDecoder(m, Syntaxes[int(how&3)%len(Syntaxes)]), p, code)
		at := p.lo
		for _, x := range b.a.Insts {
			if x.Addr != at || x.Text == "" {
				t.Fatalf("% x: %+v at %#x", code, x, at)
			}
			at += arch.Vaddr(len(x.Bytes)+1) / 3
		}
		if at != p.hi {
			t.Fatalf("% x: ends at %#x", code, at)
		}
	})
}

// TestManyParts: lines are asked for where the function is shown, and nowhere else.
func TestManyParts(t *testing.T) {
	oracle.Long(t)
	const size = maxCode / 2
	img := program(t, 62, strings.Repeat("\x90", 10*size))
	p := &profile.Profile{Modules: []profile.Module{{Path: "/bin/prog"}}, Funcs: []profile.Func{{Name: "f"}}, Files: []string{""}}
	for i := range uint64(10) {
		p.Locs = append(p.Locs, profile.Loc{Off: 0x1000 + i*size})
	}
	asked := 0
	a, err := Function(p, 0, Options{
		Open: func(*profile.Module) (*module.Image, error) { return img, nil },
		Bounds: func(_ *profile.Module, v arch.Vaddr) (lo, hi arch.Vaddr, ok bool) {
			lo = v - (v-0x1000)%size
			return lo, lo + size, true
		},
		Lines: func(_ *profile.Module, lo, hi arch.Vaddr) []Line {
			asked += int(hi - lo)
			return nil
		},
	})
	if err != nil || asked != maxCode || len(a.Insts) != maxCode || !strings.Contains(strings.Join(a.Notes, "\n"), "only parts of the function are shown") {
		t.Errorf("%v, lines of %d bytes, %d instructions, notes %q", err, asked, len(a.Insts), a.Notes)
	}
}
