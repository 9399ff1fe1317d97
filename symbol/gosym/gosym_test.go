package gosym

import (
	"bytes"
	"debug/gosym"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/pclntab"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

func open(t testing.TB, path string) *Table {
	t.Helper()
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	tab, err := Open(img)
	if err != nil || tab == nil {
		t.Fatalf("%s: %v, %v", path, tab, err)
	}
	return tab
}

// addresses returns n addresses in functions, sorted.
func (t *Table) addresses(n int) (out []arch.Vaddr) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range n {
		i := rnd.IntN(t.N)
		if lo, hi := t.Start(i), t.Start(i+1); lo < hi {
			out = append(out, lo+arch.Vaddr(rnd.Uint64N(uint64(hi-lo))))
		}
	}
	slices.Sort(out)
	return out
}

// TestRuntime compares with what the Go run time says of this test's own code: of each address the innermost place. The run time hides what
// the type parameters of a function are, and has a name for no address in the padding behind a function.
func TestRuntime(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tab := open(t, self)
	here, _, line, _ := runtime.Caller(0)
	bias := arch.Vaddr(0)
	tab.Funcs(func(name string, lo, hi arch.Vaddr) bool {
		f := runtime.FuncForPC(here)
		if name == f.Name() {
			bias = arch.Vaddr(f.Entry()) - lo
			if p := tab.Places([]arch.Vaddr{arch.Vaddr(here) - 1 - bias})[0]; len(p) != 1 || int(p[0].Line) != line {
				t.Errorf("this line, %d, is %+v", line, p)
			}
		}
		return true
	})
	addrs := tab.addresses(20_000)
	bad, hidden := 0, 0
	for i, p := range tab.Places(addrs) {
		frames := runtime.CallersFrames([]uintptr{uintptr(addrs[i]+bias) + 1})
		want, _ := frames.Next()
		if k, _ := tab.index(addrs[i] + 1); tab.Start(k) == addrs[i]+1 {
			continue // it would be the next function's first
		}
		if want.Function == "" || strings.Contains(want.Function, "[...]") || want.File == "?" {
			hidden++
			continue
		}
		if len(p) == 0 || p[0].Func != want.Function || p[0].File != want.File || int(p[0].Line) != want.Line {
			if bad++; bad < 10 {
				t.Errorf("%#x is %+v, the run time says %s %s:%d", addrs[i], p, want.Function, want.File, want.Line)
			}
		}
	}
	t.Logf("%d functions, %d addresses, of which the run time hides %d; %d differ", tab.N, len(addrs), hidden, bad)
	if hidden > len(addrs)/3 {
		t.Errorf("the run time hides %d of %d names", hidden, len(addrs))
	}
}

const program = `package main

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"
)

type pair[K comparable, V any] struct { k K; v V }

func (p pair[K, V]) String() string { return fmt.Sprint(p.k, p.v) }

func main() {
	x := []int{3, 1, 2}
	sort.Ints(x)
	b, _ := json.Marshal(x)
	fmt.Println(strings.ToUpper(string(b)), pair[string, int]{"a", 1})
}
`

// built returns a program with debug information, and the same without.
func built(t testing.TB) (whole string, stripped []string) {
	t.Helper()
	oracle.Need(t, "go", "strip", "llvm-objcopy-19")
	dir := t.TempDir()
	src := filepath.Join(dir, "main.go")
	if err := os.WriteFile(src, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) {
		t.Helper()
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GO111MODULE=off") // with -trimpath, DWARF has other names for files
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	run("go", "build", "-o", "whole", src)
	run("go", "build", "-ldflags=-s -w", "-o", "linked", src)
	run("strip", "-o", "stripped", "whole")
	run("llvm-objcopy-19", "--strip-sections", "whole", "headless")
	return filepath.Join(dir, "whole"), []string{filepath.Join(dir, "linked"), filepath.Join(dir, "stripped"), filepath.Join(dir, "headless")}
}

// symbolize asks llvm-symbolizer for the places of addresses.
func symbolize(t *testing.T, path string, addrs []arch.Vaddr) (out [][]Place) {
	t.Helper()
	var in bytes.Buffer
	for _, a := range addrs {
		fmt.Fprintf(&in, "%#x\n", uint64(a))
	}
	cmd := exec.Command("llvm-symbolizer-19", "--obj="+path, "--output-style=JSON", "--no-demangle")
	cmd.Stdin = &in
	b, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range bytes.Split(bytes.TrimSpace(b), []byte("\n")) {
		var r struct {
			Symbol []struct {
				FunctionName, FileName string
				Line                   uint32
			}
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		var p []Place
		for _, s := range r.Symbol {
			p = append(p, Place{s.FunctionName, s.FileName, s.Line})
		}
		out = append(out, p)
	}
	return out
}

// TestLLVM compares the tables of stripped programs with the debug information of the same one that was not: inlined calls, files and lines.
func TestLLVM(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-symbolizer-19")
	whole, stripped := built(t)
	addrs := open(t, whole).addresses(20_000)
	want, used := symbolize(t, whole, addrs), map[string]int{}
	for _, path := range stripped {
		tab := open(t, path)
		bad := 0
		for i, got := range tab.Places(addrs) {
			if !same(got, want[i], used) {
				if bad++; bad < 20 {
					t.Errorf("%s: %#x\n got %+v\nwant %+v", filepath.Base(path), uint64(addrs[i]), got, want[i])
				}
			}
		}
		t.Logf("%s: %d functions, %d addresses, %d differ", filepath.Base(path), tab.N, len(addrs), bad)
	}
	for _, p := range permitted {
		if used[p.why] == 0 {
			t.Errorf("never: %s", p.why)
		}
	}
	t.Log(used)
}

// permitted are the differences from the judge that there may be in a place.
var permitted = []struct {
	why string
	is  func(got, want Place) bool
}{
	{"the linker calls assembly .abi0", func(got, want Place) bool { return got.Func+".abi0" == want.Func }},
	{"debug information has a dot in place of another", func(got, want Place) bool {
		return got.Func != want.Func && strings.ReplaceAll(got.Func, "·", ".") == want.Func
	}},
	{"code that the compiler made has a file in the directory, or none, or that of what it is made for", func(got, want Place) bool {
		return got.File == "<autogenerated>" && got.Line <= 1
	}},
	{"marks of the linker", func(got, want Place) bool { return strings.HasPrefix(got.Func, "go:textfips") }},
}

// same says whether two answers agree but for what is permitted, and counts that. The judge has one place that says nothing for an address in no function.
func same(got, want []Place, used map[string]int) bool {
	if len(got) == 0 && len(want) == 1 && want[0] == (Place{}) {
		return true
	}
	if len(got) != len(want) {
		return false
	}
places:
	for i := range got {
		if got[i] == want[i] {
			continue
		}
		for _, p := range permitted {
			if p.is(got[i], want[i]) {
				used[p.why]++
				continue places
			}
		}
		return false
	}
	return true
}

// older rewrites a program's table in the layout of an older Go: no more than the parts that were there then.
func older(t *testing.T, tab *Table, magic pclntab.Version) []byte {
	t.Helper()
	le := binary.LittleEndian
	n := tab.N
	head := func(words ...int) []byte {
		b := le.AppendUint32(nil, uint32(magic))
		b = append(b, 0, 0, 1, 8)
		for _, w := range words {
			b = le.AppendUint64(b, uint64(w))
		}
		return b
	}
	// What is the same in all: where the old table's parts are.
	whole := tab.Bytes
	off := func(part []byte) int { return len(whole) - len(part) }
	pad := func(b []byte) []byte { return append(b, make([]byte, -len(b)&7)...) }
	describe := func(f fn) []byte {
		b := le.AppendUint64(nil, uint64(f.entry))
		if magic == pclntab.Go118 {
			b = le.AppendUint32(nil, uint32(uint64(f.entry)-tab.Text))
		}
		for _, v := range []uint32{f.nameOff, 0, 0, 0, f.file, f.line, 0, f.unit, 0} {
			b = le.AppendUint32(b, v)
		}
		return b
	}
	width := 8
	if magic == pclntab.Go118 {
		width = 4
	}
	num := func(b []byte, v uint64) []byte {
		if width == 4 {
			return le.AppendUint32(b, uint32(v))
		}
		return le.AppendUint64(b, v)
	}
	base := uint64(0)
	if magic == pclntab.Go118 {
		base = tab.Text
	}
	table := func(at func(i int) int) (b []byte) {
		for i := range n {
			b = num(num(b, uint64(tab.Start(i))-base), uint64(at(i)))
		}
		return num(b, uint64(tab.Start(n))-base)
	}
	size := len(describe(fn{}))
	size += -size & 7
	words := []int{n, 0, 0, 0, 0, 0, 0}
	if magic == pclntab.Go118 {
		words = []int{n, 0, int(tab.Text), 0, 0, 0, 0, 0}
	}
	at := len(head(words...))
	parts := words[len(words)-5:]
	for i, p := range [][]byte{tab.Names, tab.Units, tab.Files, tab.Numbers} {
		parts[i] = at + off(p)
	}
	parts[4] = at + len(whole)
	funcs := 2*n*width + width
	funcs += -funcs & 7
	b := append(append(head(words...), whole...), pad(table(func(i int) int { return funcs + i*size }))...)
	for i := range n {
		b = append(b, pad(describe(tab.fn(i)))...)
	}
	return b
}

// TestLayouts reads the tables of older versions, and compares with the standard library's debug/gosym.
func TestLayouts(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	now := open(t, self)
	addrs := now.addresses(3000)
	for _, magic := range []pclntab.Version{pclntab.Go116, pclntab.Go118, pclntab.Go120} {
		b := now.Bytes
		if magic != pclntab.Go120 {
			b = older(t, now, magic)
		}
		h, err := pclntab.Parse(b, binary.LittleEndian)
		if err != nil {
			t.Fatalf("%#x: %v", magic, err)
		}
		old := &Table{h}
		old.Text = map[bool]uint64{true: now.Text}[magic != pclntab.Go116]
		std, err := gosym.NewTable(nil, gosym.NewLineTable(b, now.Text))
		if err != nil {
			t.Fatalf("%#x: %v", magic, err)
		}
		bad := 0
		for i, p := range old.Places(addrs) {
			file, line, f := std.PCToLine(uint64(addrs[i]))
			switch {
			case line <= 0 && (len(p) == 0 || p[0].Line == 0): // padding, and functions without code
			case len(p) == 0 || f == nil || p[len(p)-1].Func != f.Name || p[0].Line != uint32(line) || p[0].File != file:
				if bad++; bad < 5 {
					t.Errorf("%#x: %#x is %+v, debug/gosym says %v %s:%d", magic, uint64(addrs[i]), p, f, file, line)
				}
			}
		}
	}
}

// BenchmarkPlaces opens the table of this test's own program and asks for 1,000 addresses. Peer: debug/gosym, which gives the function and
// the line, and no inlined calls.
func BenchmarkPlaces(b *testing.B) {
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	img, err := module.Open(self)
	if err != nil {
		b.Fatal(err)
	}
	defer img.Close()
	tab, err := Open(img)
	if err != nil {
		b.Fatal(err)
	}
	addrs := tab.addresses(1000)
	measure := func(name string, f func()) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			start := oracle.CPUTime()
			for b.Loop() {
				f()
			}
			b.ReportMetric(float64((oracle.CPUTime()-start).Microseconds())/float64(b.N), "µs-CPU/op")
		})
	}
	measure("gosym", func() {
		tab, _ := Open(img)
		tab.Places(addrs)
	})
	measure("debug-gosym", func() {
		std, err := gosym.NewTable(nil, gosym.NewLineTable(tab.Bytes, tab.Text))
		if err != nil {
			b.Fatal(err)
		}
		for _, v := range addrs {
			std.PCToLine(uint64(v))
		}
	})
}

// tiny returns a table of two functions, one inlined into the other, and what follows it.
func tiny(magic pclntab.Version) []byte {
	le := binary.LittleEndian
	b := append(le.AppendUint32(nil, uint32(magic)), 0, 0, 1, 8)
	names, units, files, numbers, funcs := 72, 88, 96, 104, 128
	for _, w := range []int{1, 1, 0x1000, names, units, files, numbers, funcs} {
		b = le.AppendUint64(b, uint64(w))
	}
	b = append(b, "\x00main.f\x00main.g\x00\x00"...)
	b = append(le.AppendUint32(b, 0), make([]byte, 4)...)
	b = append(b, "f.go\x00\x00\x00\x00"...)
	b = append(b, 0, 2, 32, 0, 40, 16, 4, 16, 0, 2, 8, 1, 24, 0)
	b = append(b, make([]byte, funcs-len(b))...)
	b = le.AppendUint32(le.AppendUint32(le.AppendUint32(b, 0), 16), 0x40)
	b = le.AppendUint32(b, 0)
	for _, w := range []uint32{0, 1, 0, 0, 0, 1, 4, 3, 0, 7, 4 << 24, 0, 0, 9, ^uint32(0), ^uint32(0), ^uint32(0), 0} {
		b = le.AppendUint32(b, w)
	}
	return b
}

func FuzzTable(f *testing.F) {
	for _, magic := range []pclntab.Version{pclntab.Go12, pclntab.Go116, pclntab.Go118, pclntab.Go120} {
		f.Add(tiny(magic), []byte("\x00\x00\x00\x00\x08\x00\x00\x00\x10\x00\x00\x00\x01\x00\x00\x00"), uint64(0x1008))
	}
	f.Fuzz(func(t *testing.T, b, inlined []byte, addr uint64) {
		h, err := pclntab.Parse(b, binary.LittleEndian)
		if err != nil {
			return
		}
		tab := &Table{h}
		tab.Inlined = inlined
		tab.Places([]arch.Vaddr{arch.Vaddr(addr), tab.Start(0), tab.Start(tab.N) - 1})
		size := 0
		tab.Funcs(func(name string, lo, hi arch.Vaddr) bool { size += 1 + len(name); return size < 1<<20 })
	})
}
