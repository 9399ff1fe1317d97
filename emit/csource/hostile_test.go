package csource

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
)

// A counter counts what is written, and the lines.
type counter struct{ bytes, lines int }

func (c *counter) Write(b []byte) (int, error) {
	c.bytes += len(b)
	c.lines += bytes.Count(b, []byte{'\n'})
	return len(b), nil
}

// mass is a table's size: what the length of its C is bounded by.
func mass(t *rows.Table) int {
	n := 100*len(t.Rows) + 8192
	seen := map[string]bool{}
	expr := func(e string) {
		if !seen[e] {
			seen[e] = true
			n += 200 * (len(e) + 8)
		}
	}
	for i := range t.Sets {
		s := &t.Sets[i]
		n += 2000
		expr(s.CFA.Expr)
		for k := range s.Rules {
			n += 300
			expr(s.Rules[k].Expr)
		}
	}
	return n
}

// TestHostile: tables at the limits of what a file can say give C whose length is in proportion.
func TestHostile(t *testing.T) {
	oracle.Long(t)
	plain := func(off int64) rows.Set {
		return rows.Set{RA: 16, CFA: rows.CFA{Kind: rows.CFAReg, Reg: 7, Off: off}, Rules: []rows.Rule{{Of: 16, Kind: rows.Offset, Off: -8}}}
	}
	many := func(n, distinct int, lo uint64, set func(i int) rows.Set) *rows.Table {
		b := rows.NewBuilder(arch.AMD64)
		b.Begin(arch.Vaddr(lo), arch.Vaddr(lo+uint64(n)))
		ids := make([]rows.SetID, distinct)
		for i := range ids {
			ids[i] = b.Intern(set(i))
		}
		for i := range n {
			b.Row(arch.Vaddr(lo+uint64(i)), ids[i%distinct])
		}
		return rows.Build(b)
	}
	r := rand.New(rand.NewPCG(1, 1))
	noise := make([]byte, 1<<20)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	long := "\x31\x28\x00\x00" + strings.Repeat("\x31\x13", 1<<17) // a quarter of a megabyte of operations
	jumps := strings.Repeat("\x31\x28\x01\x00", 1<<16)             // to where no operation was
	back := strings.Repeat("\x31\x28\xfb\xff", 1<<16)
	allRegs := func(i int) rows.Set {
		s := rows.Set{RA: 16, CFA: rows.CFA{Kind: rows.CFAExpr, Expr: long}}
		for of := range 10_000 {
			s.Rules = append(s.Rules, rows.Rule{Of: arch.Reg(of), Kind: rows.Kind(of % int(rows.NumKinds)), Reg: arch.Reg(of + i), Off: -1 << 63, Expr: jumps})
		}
		return s
	}
	for _, c := range []struct {
		name string
		ref  *rows.Table
	}{
		{"a million rows", many(1<<20, 2, 0, func(i int) rows.Set { return plain(int64(i)) })},
		{"a million rows to the top", many(1<<20, 3, ^uint64(0)-1<<20, func(i int) rows.Set { return plain(int64(i-1)<<62 - 5) })},
		{"30,000 rules that share a long expression", many(30_000, 30_000, 0x1000, func(i int) rows.Set {
			s := plain(int64(i))
			s.Rules = append([]rows.Rule{{Of: 3, Kind: rows.Expr, Expr: long}}, s.Rules...)
			return s
		})},
		{"all registers", many(20, 20, 0x1000, allRegs)},
		{"noise", many(4, 4, 0x1000, func(i int) rows.Set {
			return rows.Set{RA: 16, CFA: rows.CFA{Kind: rows.CFAExpr, Expr: string(noise[i*1000:])}}
		})},
		{"jumps", many(1, 1, 0x1000, func(int) rows.Set { return rows.Set{RA: 16, CFA: rows.CFA{Kind: rows.CFAExpr, Expr: jumps}} })},
		{"jumps back", many(1, 1, 0x1000, func(int) rows.Set { return rows.Set{RA: 16, CFA: rows.CFA{Kind: rows.CFAExpr, Expr: back}} })},
		{"one row of all", many(1, 1, 0, func(int) rows.Set { return plain(8) })},
	} {
		for l := range numLayouts {
			if l == Switch && len(c.ref.Rows) > 1000 {
				continue
			}
			var n counter
			if err := Emit(&n, c.ref, Options{Layout: l}); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			most := mass(c.ref)
			if l == Switch {
				most += 2000 * len(c.ref.Rows)
			}
			if n.bytes > most {
				t.Errorf("%s, %v: %d bytes of C, more than %d", c.name, l, n.bytes, most)
			}
			t.Logf("%s, %v: %d bytes, %d lines", c.name, l, n.bytes, n.lines)
		}
	}
}

type brokenWriter struct{}

var errBroken = errors.New("no room")

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

// TestErrors: what cannot be written is refused.
func TestErrors(t *testing.T) {
	good := synthetic(arch.AMD64, 1, 1)
	if err := Emit(brokenWriter{}, good, Options{}); !errors.Is(err, errBroken) {
		t.Errorf("a writer that fails: %v", err)
	}
	for _, o := range []Options{{Layout: numLayouts}, {Deref: numDerefs}, {Prefix: "a b"}, {Prefix: "1a"}, {Prefix: "a;"}} {
		if err := Emit(&counter{}, good, o); err == nil {
			t.Errorf("%+v: no error", o)
		}
	}
	rule := func(r ...rows.Rule) *rows.Table {
		return &rows.Table{Machine: arch.AMD64, Rows: []rows.Row{{Lo: 1, Set: 1}}, Sets: []rows.Set{{}, {CFA: rows.CFA{Kind: rows.CFAReg}, Rules: r}}}
	}
	for _, ref := range []*rows.Table{
		{Machine: arch.AMD64},
		{Machine: arch.AMD64, Sets: make([]rows.Set, 1), Rows: []rows.Row{{Lo: 2}, {Lo: 1}}},
		{Machine: arch.AMD64, Sets: make([]rows.Set, 1), Rows: []rows.Row{{Lo: 2, Set: 1}}},
		{Machine: arch.AMD64, Sets: []rows.Set{{}, {CFA: rows.CFA{Kind: rows.NumCFAKinds}}}},
		rule(rows.Rule{Kind: rows.NumKinds}),
		rule(rows.Rule{Of: 3}, rows.Rule{Of: 3}),
	} {
		if err := Emit(&counter{}, ref, Options{}); err == nil {
			t.Errorf("%+v: no error", ref)
		}
	}
}

// TestHeader compiles the code for a program that has the declarations already, with more warnings, and for
// another machine.
func TestHeader(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	ref := synthetic(arch.ARM64, 1, 20)
	clean := func(o Options, cc string, flags ...string) {
		src, err := generate(t.TempDir(), ref, o)
		if err == nil {
			err = compile(append(append(append([]string{cc}, strict...), flags...), "-c", "-o", os.DevNull, src)...)
		}
		if err != nil {
			t.Error(err)
		}
	}
	clean(Options{}, "gcc", "-O1", "-DUNSPOOL_STATE_DEFINED", "-include", "testdata/eh_elf.h")
	clean(Options{Deref: Slice}, "gcc", "-O0", "-Wconversion", "-Wno-sign-conversion", "-Wshadow", "-Wstrict-prototypes")
	if _, err := exec.LookPath("aarch64-linux-gnu-gcc"); err == nil {
		clean(Options{Deref: Callback}, "aarch64-linux-gnu-gcc", "-ffreestanding", "-O1")
	}
}
