package symbol

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// A tsym is a symbol of a test's table.
type tsym struct {
	name  string
	value uint64
	size  uint64
	typ   module.SymbolKind
	bind  module.Bind
	sec   module.SectionIndex
}

// tsource returns a table of the symbols. Section 1 is code at 0x1000–0x2000, section 2 is data.
func tsource(syms ...tsym) source {
	s := synthetic()
	s.secs = []module.Section{
		{}, {Perm: module.Exec, Addr: 0x1000, Size: 0x1000}, {Perm: module.Write, Addr: 0x3000, Size: 0x1000},
	}
	for _, m := range syms {
		s.Add(m.name, module.SymbolEntry{Value: m.value, Size: m.size, Kind: m.typ, Bind: m.bind, Section: m.sec})
	}
	return s
}

// tableOf returns a table with these sources, of no file.
func tableOf(sources ...source) *Table {
	t := New(Options{}).Module("test", "")
	t.openAs(func() { t.sources = sources })
	return t
}

// show writes the spans as "1000-1010 f, …".
func show(t *Table) string {
	var out []string
	t.use(func() {
		x := t.getIndex()
		for i := range x.starts {
			if x.refs[i] != none {
				lo, hi := x.span(i)
				out = append(out, fmt.Sprintf("%x-%x %s", lo, hi, t.symbol(x, i).Linkage))
			}
		}
	})
	return strings.Join(out, ", ")
}

// TestRules: which symbol names an address, rule by rule.
func TestRules(t *testing.T) {
	const (
		f, n, o = module.Func, module.Unmarked, module.Object
		g, w, l = module.Global, module.Weak, module.Local
	)
	for _, c := range []struct {
		rule string
		syms []tsym
		want string
	}{
		{"none", nil, ""},
		{"a size ends it", []tsym{{"a", 0x1000, 16, f, g, 1}, {"b", 0x1020, 16, f, g, 1}}, "1000-1010 a, 1020-1030 b"},
		{"the next symbol ends one without a size", []tsym{{"a", 0x1000, 0, f, g, 1}, {"b", 0x1020, 16, f, g, 1}}, "1000-1020 a, 1020-1030 b"},
		{"its section ends one without a size", []tsym{{"a", 0x1ff0, 0, f, g, 1}}, "1ff0-2000 a"},
		{"functions before labels", []tsym{{"a", 0x1000, 16, f, l, 1}, {"b", 0x1000, 16, n, g, 1}, {"c", 0x1008, 0, n, g, 1}}, "1000-1010 a"},
		{"a label where there is no function", []tsym{{"a", 0x1000, 16, f, l, 1}, {"b", 0x1010, 0, n, g, 1}}, "1000-1010 a, 1010-2000 b"},
		{"the inner of two", []tsym{{"out", 0x1000, 64, f, g, 1}, {"in", 0x1010, 16, f, g, 1}}, "1000-1010 out, 1010-1020 in, 1020-1040 out"},
		{"the later of two", []tsym{{"a", 0x1000, 32, f, g, 1}, {"b", 0x1010, 32, f, g, 1}}, "1000-1010 a, 1010-1030 b"},
		{"what other files see", []tsym{{"a", 0x1000, 16, f, l, 1}, {"__b_longer", 0x1000, 16, f, w, 1}}, "1000-1010 __b_longer"},
		{"few underscores", []tsym{{"__read", 0x1000, 16, f, g, 1}, {"read", 0x1000, 16, f, w, 1}}, "1000-1010 read"},
		{"global before weak", []tsym{{"aa", 0x1000, 16, f, w, 1}, {"bb", 0x1000, 16, f, g, 1}}, "1000-1010 bb"},
		{"short", []tsym{{"aaa", 0x1000, 16, f, g, 1}, {"bb", 0x1000, 16, f, g, 1}}, "1000-1010 bb"},
		{"without a version", []tsym{{"aa@V1", 0x1000, 16, f, g, 1}, {"bb", 0x1000, 16, f, g, 1}}, "1000-1010 bb"},
		{"the first of equals", []tsym{{"aa", 0x1000, 16, f, g, 1}, {"bb", 0x1000, 16, f, g, 1}}, "1000-1010 aa"},
		{"of two sizes the better while it lasts", []tsym{{"a", 0x1000, 16, f, g, 1}, {"longer", 0x1000, 32, f, g, 1}}, "1000-1010 a, 1010-1020 longer"},
		{"no data", []tsym{{"a", 0x3000, 16, o, g, 2}, {"b", 0x3000, 0, n, g, 2}, {"c", 0x1000, 0, f, g, 0}, {"d", 0x1000, 8, f, g, module.SectionIndex(elf.SHN_ABS)}}, ""},
		{"no mapping symbols, no assembler's labels", []tsym{{"$x", 0x1000, 0, n, l, 1}, {"$d.12", 0x1010, 0, n, l, 1}, {".L3", 0x1020, 0, n, l, 1}, {"$xrv64i", 0x1030, 0, n, l, 1}, {"$other", 0x1040, 8, n, l, 1}}, "1040-1048 $other"},
		{"sizes that wrap", []tsym{{"a", 0x1000, math.MaxUint64, f, g, 1}, {"b", math.MaxUint64 - 3, 100, f, g, 1}}, "1000-100000fff a, fffffffffffffffc-ffffffffffffffff b"},
	} {
		if got := show(tableOf(tsource(c.syms...))); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.rule, got, c.want)
		}
	}
}

// slow names v by looking at every symbol: the rules of build, once more.
func slow(syms []tsym, s *source, v uint64) string {
	end := func(i int) uint64 {
		e := s.At(i)
		end := addSat(e.Value, uint64(s.extent(&e)))
		if e.Size == 0 {
			for j := range syms {
				if o := s.At(j); s.kind(&o) != noCode && o.Value > e.Value {
					end = min(end, o.Value)
				}
			}
		}
		return end
	}
	best, bestKind := -1, noCode
	for i := range syms {
		e := s.At(i)
		k := s.kind(&e)
		if k == noCode || v < e.Value || v >= end(i) {
			continue
		}
		hidden := false
		for j := range syms {
			o := s.At(j)
			ok := s.kind(&o)
			// Symbols of one start: only the best kind. A label inside of a function is no name.
			hidden = hidden || o.Value == e.Value && ok < k || k != function && ok == function && o.Value < e.Value && e.Value < end(j)
		}
		if hidden {
			continue
		}
		if best >= 0 {
			b := s.At(best)
			if e.Value < b.Value || e.Value == b.Value && s.rank(&e) <= s.rank(&b) {
				continue
			}
		}
		best, bestKind = i, k
	}
	if bestKind == noCode {
		return ""
	}
	return syms[best].name
}

// TestRandom compares the index with the plain rules.
func TestRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 2000 {
		var syms []tsym
		for i := range 1 + rnd.IntN(20) {
			m := tsym{name: strings.Repeat("_", rnd.IntN(3)) + fmt.Sprint("f", i), value: 0x1000 + uint64(rnd.IntN(64)), size: uint64(rnd.IntN(20)),
				typ: []module.SymbolKind{module.Func, module.Func, module.Unmarked, module.IFunc}[rnd.IntN(4)], bind: module.Bind(rnd.IntN(3)), sec: 1}
			if rnd.IntN(3) == 0 {
				m.size = 0
			}
			syms = append(syms, m)
		}
		s := tsource(syms...)
		tab := tableOf(s)
		for v := uint64(0xff0); v < 0x1070; v++ {
			got, _ := tab.Lookup(arch.Vaddr(v))
			if want := slow(syms, &s, v); got.Linkage != want {
				t.Fatalf("round %d: Lookup(%#x)\n in %v\n got %q\nwant %q", round, v, syms, got.Linkage, want)
			}
		}
	}
}

// TestForeign: tables of 32 bits and of the other byte order.
func TestForeign(t *testing.T) {
	be := binary.BigEndian
	s := source{SymbolTable: module.SymbolTable{Order: be, Names: []byte("\x00f\x00g\x00"), Thumb: true}, secs: tsource().secs}
	for _, m := range []struct{ name, value, size uint32 }{{1, 0x1001, 8}, {3, 0x1010, 0}} {
		s.Entries = be.AppendUint32(be.AppendUint32(be.AppendUint32(s.Entries, m.name), m.value), m.size)
		s.Entries = be.AppendUint16(append(s.Entries, byte(module.Global)<<4|byte(module.Func), 0), 1)
	}
	if got, want := show(tableOf(s)), "1000-1008 f, 1010-2000 g"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestSeveral: symbols are numbered through several sources.
func TestSeveral(t *testing.T) {
	a := tsource(tsym{"a", 0x1000, 8, module.Func, module.Global, 1})
	b := tsource(tsym{"long", 0x1000, 8, module.Func, module.Global, 1}, tsym{"b", 0x1008, 8, module.Func, module.Local, 1})
	if got, want := show(tableOf(a, b)), "1000-1008 a, 1008-1010 b"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestQuadratic: a table whose every symbol has the same place and one endless name takes no time either: if it did, it would
// be minutes.
func TestQuadratic(t *testing.T) {
	oracle.Long(t)
	for _, name := range []string{"_", "a", "@"} {
		s := tsource()
		for i := range 100_000 {
			s.add("", 0x1000, 16+uint64(i%2))
		}
		s.Names = bytes.Repeat([]byte(name), 64<<20)
		tab := tableOf(s)
		got, ok := tab.Lookup(0x1000)
		tab.FuncRange("a")
		if !ok || len(got.Linkage) != maxName {
			t.Errorf("%v, %d bytes", ok, len(got.Linkage))
		}
	}
}

// FuzzTable: any table, any strings; what comes out lies where it was asked for.
func FuzzTable(f *testing.F) {
	s := tsource(tsym{"a", 0x1000, 8, module.Func, module.Global, 1}, tsym{"_Z1fv", 0x1004, 0, module.Func, module.Local, 1},
		tsym{"b", 0x1004, math.MaxUint64, module.Func, module.Weak, 1}, tsym{"$x", 0x1010, 0, module.Unmarked, 0, 1})
	f.Add(s.Entries, s.Names, true, false, uint64(0x1004))
	f.Add(s.Entries[:33], s.Names[:3], false, true, uint64(1))
	f.Fuzz(func(t *testing.T, syms, names []byte, is64, big bool, v uint64) {
		s := source{SymbolTable: module.SymbolTable{Entries: syms, Names: names, Order: binary.LittleEndian, Is64: is64, Thumb: len(syms)%2 == 1}, secs: tsource().secs}
		if big {
			s.Order = binary.BigEndian
		}
		tab := tableOf(s)
		addrs := []arch.Vaddr{0, arch.Vaddr(v), arch.Vaddr(v + 1), 0x1000, 0x1008, math.MaxUint64}
		for i := range min(s.Len(), 100) {
			e := s.At(i)
			addrs = append(addrs, arch.Vaddr(e.Value), arch.Vaddr(e.Value+e.Size-1))
		}
		all := tab.Resolve(addrs)
		for i, a := range addrs {
			got := all[i]
			one, ok := tab.Lookup(a)
			if one != got || ok != (got.Linkage != "") {
				t.Fatalf("Lookup(%#x) = %+v, Resolve has %+v", a, one, got)
			}
			if got.Name != "" && (a < got.Start || uint64(a-got.Start) >= got.Size) {
				t.Fatalf("Lookup(%#x) = %+v", a, got)
			}
		}
		sameFew(t, []source{s}, addrs)
		x := build([]source{s})
		for i := 1; i < len(x.starts); i++ {
			if x.starts[i] <= x.starts[i-1] {
				t.Fatalf("spans %#x, %#x", x.starts[i-1], x.starts[i])
			}
		}
		tab.FuncRange("a")
	})
}

// sameFew compares what an index of some addresses says of them with what the index of all symbols says.
func sameFew(t *testing.T, sources []source, addrs []arch.Vaddr) {
	t.Helper()
	slices.Sort(addrs)
	tab := tableOf(sources...)
	all, few := build(sources), buildFor(sources, addrs)
	in := func(x *index, v arch.Vaddr) (s Symbol) {
		if span := x.find(uint64(v), -1); span >= 0 && x.refs[span] != none {
			s = tab.symbolOf(x, span)
		}
		return s
	}
	for _, v := range addrs {
		if got, want := in(few, v), in(all, v); got != want {
			t.Fatalf("an index of %#x: %#x is in %+v; in that of all symbols, in %+v", addrs, v, got, want)
		}
	}
}

// TestFew: random symbols that overlap, with and without sizes; and those of this program, and of a C library.
func TestFew(t *testing.T) {
	oracle.Long(t)
	r := rand.New(rand.NewPCG(1, 2))
	for _, path := range []string{"/proc/self/exe", "/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6"} {
		tab := New(Options{}).Module(path, "")
		tab.use(func() {
			x := tab.getIndex()
			for range 20 {
				var addrs []arch.Vaddr
				for range r.IntN(50) {
					addrs = append(addrs, arch.Vaddr(x.starts[r.IntN(len(x.starts))]+r.Uint64N(64)))
				}
				sameFew(t, tab.sources, addrs)
			}
		})
		tab.close()
	}
	kinds := []module.SymbolKind{module.Func, module.Func, module.IFunc, module.Unmarked}
	binds := []module.Bind{module.Local, module.Global, module.Weak}
	for range oracle.Few(20_000, 1_000_000) {
		var syms []tsym
		span := 1 + r.Uint64N(200)
		for i := range r.IntN(30) {
			size := r.Uint64N(40)
			switch r.IntN(10) {
			case 0, 1, 2:
				size = 0
			case 3:
				size = r.Uint64N(300)
			case 4:
				size = math.MaxUint64 - r.Uint64N(3)
			}
			syms = append(syms, tsym{fmt.Sprint("f", i%7), 0xfe0 + r.Uint64N(span), size, kinds[r.IntN(len(kinds))], binds[r.IntN(len(binds))], module.SectionIndex(1 + r.IntN(2))})
		}
		var addrs []arch.Vaddr
		for range 1 + r.IntN(5) {
			addrs = append(addrs, arch.Vaddr(0xfd0+r.Uint64N(300)))
		}
		sameFew(t, []source{tsource(syms...)}, addrs)
	}
}
