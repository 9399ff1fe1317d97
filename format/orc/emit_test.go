package orc

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	emit "github.com/unspool/unspool/emit/orc"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/rows/rowstest"
)

// An atEntry is an entry and where it begins to hold.
type atEntry struct {
	at    arch.Vaddr
	bytes [6]byte
}

// inForce returns a table's entries as Linux finds them: in order, of several at one address the last, and without repetitions.
func inForce(t testing.TB, tab *Table) (list []atEntry) {
	t.Helper()
	add := func(i int, at arch.Vaddr) {
		e := atEntry{at, [6]byte(tab.entries[6*i:])}
		if n := len(list); n > 0 && list[n-1].at == at {
			list = list[:n-1]
		}
		if n := len(list); n == 0 || list[n-1].bytes != e.bytes {
			list = append(list, e)
		}
	}
	if tab.sorted() {
		for i := range tab.n() {
			add(i, tab.at(i))
		}
	} else if err := tab.order(add); err != nil {
		t.Fatal(err)
	}
	if len(list) > 0 && list[0].bytes == [6]byte{} {
		list = list[1:]
	}
	return list
}

// emitted returns the entries that are written for rows. None may be refused.
func emitted(t testing.TB, x *rows.Table, v emit.Version) (list []atEntry) {
	t.Helper()
	out, err := emit.Emit(x, v)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range out.Refused {
		t.Errorf("Linux %v: refused at %#x: %s", v, uint64(r.Lo), r.Reason)
	}
	for i, at := range out.Addrs {
		list = append(list, atEntry{at, [6]byte(out.Entries[6*i:])})
	}
	return list
}

// TestEmitKernels: the rows of a kernel come to its own entries again, byte for byte.
func TestEmitKernels(t *testing.T) {
	oracle.Long(t)
	kernels := []struct {
		suite   string
		version emit.Version
	}{{"bookworm", emit.Version{Major: 6, Minor: 1}}, {"trixie", emit.Version{Major: 6, Minor: 12}}, {"sid", emit.Version{Major: 7, Minor: 2}}, {"bullseye", emit.Version{Major: 5, Minor: 10}}}
	for _, k := range kernels[:oracle.Few(1, len(kernels))] {
		img, err := module.Open(oracle.Kernel(t, k.suite, "amd64"))
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		tab, err := Open(img)
		if err != nil {
			t.Fatal(err)
		}
		x, _ := tab.Rows()
		want, got := inForce(t, tab), emitted(t, x, k.version)
		got = got[:min(len(got), len(want))] // behind them is the end of the section
		for i := range want {
			if i >= len(got) || got[i] != want[i] {
				t.Fatalf("%s: entry %d of %d\n got %x\nwant %x", k.suite, i, len(want), got[min(i, len(got)-1)], want[i])
			}
		}
		t.Logf("%s: %d entries", k.suite, len(want))
	}
}

// TestEmitCFI: entries made from gcc's call frame information are objtool's, at each byte of code. objtool would cut off an offset of
// more than 16 bits; it is refused.
func TestEmitCFI(t *testing.T) {
	oracle.Long(t)
	at := func(list []atEntry, pc arch.Vaddr) (e atEntry) {
		i, found := slices.BinarySearchFunc(list, pc, func(e atEntry, pc arch.Vaddr) int { return int(e.at) - int(pc) })
		if !found {
			i--
		}
		if i >= 0 {
			e = list[i]
		}
		return e
	}
	gaps, copied := 0, 0
	for _, flags := range builds {
		img, err := module.Open(built(t, flags...))
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		tab, err := Open(img)
		if err != nil {
			t.Fatal(err)
		}
		frames, err := dwarf.Open(img)
		if err != nil {
			t.Fatal(err)
		}
		eh, _ := frames.Build(dwarf.EHFrame)
		want, got := inForce(t, tab), emitted(t, eh, emit.Version{Major: 6, Minor: 1})
		bad := 0
		for i, r := range eh.Rows {
			for pc := r.Lo; r.Set != rows.GapID && pc < eh.Hi(i); pc++ {
				g, w := at(got, pc), at(want, pc)
				switch code, _ := img.At(r.Lo, 3); {
				case g.bytes == w.bytes:
				case w.bytes == [6]byte{} && padding(img, pc):
					gaps++
				case string(code) == "\x48\x83\xe4" && pc < r.Lo+4 && g.bytes == [6]byte{4: 6} && w.bytes == [6]byte{0: 8, 4: 5}:
					copied++ // as in TestCFI
				case bad < 10:
					bad++
					t.Errorf("%v: at %#x\nobjtool % x\n    got % x", flags, uint64(pc), w.bytes, g.bytes)
				}
			}
		}
	}
	if gaps == 0 || copied == 0 {
		t.Errorf("%d bytes of padding, %d before a stack is aligned: what never differs needs no permission", gaps, copied)
	}

	dir := t.TempDir()
	source, object := filepath.Join(dir, "large.c"), filepath.Join(dir, "large.o")
	if err := os.WriteFile(source, []byte("extern void sink(void *);\nvoid large(void) { char b[70000]; sink(b); }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-c", "-O2", "-fcf-protection=none", "-fno-stack-protector", "-fasynchronous-unwind-tables", "-o", object, source)
	img, err := module.Open(object)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	frames, err := dwarf.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	eh, _ := frames.Build(dwarf.EHFrame)
	out, err := emit.Emit(eh, emit.Version{Major: 6, Minor: 1})
	if err != nil || len(out.Refused) == 0 || !strings.HasPrefix(out.Refused[0].Reason, "the CFA is at offset 70") {
		t.Errorf("a frame of 70,000 bytes: %v, %v", out, err)
	}
}

// TestEmitRandom: what is written for random rules is read back as rules that say the same of the registers that ORC knows.
func TestEmitRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	m := arch.AMD64
	versions := map[emit.Version]string{{Major: 4, Minor: 19}: "Linux version 4.19.0", {Major: 6, Minor: 1}: "Linux version 6.1.0", {Major: 6, Minor: 3}: "Linux version 6.3.0",
		{Major: 6, Minor: 4}: "Linux version 6.4.0", {Major: 7, Minor: 1}: "Linux version 7.1.0"}
	written := 0
	for range oracle.Few(3000, 100_000) {
		b := rows.NewBuilder(m)
		set := rowstest.Set(rnd, m)
		if rnd.IntN(4) > 0 { // more of those that can be said
			set.CFA = rows.CFA{Kind: rows.CFAReg, Reg: []arch.Reg{m.SP, m.FP, 0, 1, 5, 10, 13}[rnd.IntN(7)], Off: rnd.Int64N(80_000) - 40_000}
			set.RA, set.Flags, set.Rules = m.RA, rows.Partial, []rows.Rule{{Of: m.FP, Kind: rows.Kind(rnd.IntN(int(rows.Expr))), Reg: m.FP, Off: rnd.Int64N(80_000) - 40_000}, {Of: m.RA, Kind: rows.Offset, Off: -8}}
		}
		b.Begin(textAt, textAt+16)
		b.Row(textAt, b.Intern(set))
		x := rows.Build(b)
		for v, says := range versions {
			out, err := emit.Emit(x, v)
			if err != nil {
				t.Fatal(err)
			}
			if len(out.Refused) > 0 || len(out.Addrs) == 0 {
				continue
			}
			var at []uint64
			for _, a := range out.Addrs {
				at = append(at, uint64(a))
			}
			tab, err := Open(opened(t, kernel(arch.EM_X86_64, says, at, out.Entries)))
			if err != nil {
				t.Fatal(err)
			}
			ips, err := out.IPs(ipAt)
			if err != nil || !bytes.Equal(ips, tab.ips) {
				t.Fatalf("addresses %x, %v, want %x", ips, err, tab.ips)
			}
			y, damage := tab.Rows()
			got := y.At(textAt)
			rule := func(s *rows.Set, r arch.Reg) string {
				if x, ok := s.Rule(r); ok {
					return x.Cell(m)
				}
				return map[arch.Reg]string{m.SP: "v+0", m.FP: "s"}[r]
			}
			say := func(s *rows.Set) string {
				if s.Outermost() {
					return "outermost"
				}
				return fmt.Sprint(s.CFACell(m), rule(s, m.FP), rule(s, m.SP), rule(s, m.RA), s.Flags&rows.Signal)
			}
			if written++; say(got) != say(&set) || len(damage) > 0 {
				t.Fatalf("Linux %v: %s\n got %s, %v", v, set.Text(m), got.Text(m), damage)
			}
		}
	}
	if written < 1000 {
		t.Errorf("%d sets were written", written)
	}
}
