package unwind

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// TestLay compares mappings laid over each other with a byte map.
func TestLay(t *testing.T) {
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		const top = 40
		var want [top]string // module and file offset
		s := NewSpace()
		for n := range 10 {
			lo, hi := rnd.IntN(top), rnd.IntN(top+1)
			if rnd.IntN(4) == 0 {
				s = s.Without(arch.Addr(lo), arch.Addr(hi))
				for a := lo; a < hi; a++ {
					want[a] = ""
				}
				continue
			}
			off := uint64(100 * n)
			s = s.With(Mapping{Lo: arch.Addr(lo), Hi: arch.Addr(hi), Off: off, Module: &Module{Path: fmt.Sprint(n)}})
			for a := lo; a < hi; a++ {
				want[a] = fmt.Sprint(n, "+", off+uint64(a-lo))
			}
		}
		for a := range want {
			got := ""
			if m := s.Find(arch.Addr(a)); m != nil {
				got = fmt.Sprint(m.Module.Path, "+", m.FileOff(arch.Addr(a)))
			}
			if got != want[a] {
				t.Fatalf("seed %d: Find(%d)\n got %q\nwant %q", seed, a, got, want[a])
			}
		}
		for i := 1; i < len(s.maps); i++ {
			if s.maps[i].Lo < s.maps[i-1].Hi {
				t.Fatalf("seed %d: %v overlap", seed, s.maps)
			}
		}
	}
}

// NewSpace gives what laying one mapping after the other does, whether they are in order or not.
func TestNewSpace(t *testing.T) {
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		var maps []Mapping
		want, at := NewSpace(), 0
		for range 6 {
			lo := at + rnd.IntN(4) - rnd.IntN(1+int(seed%3))
			hi := lo + rnd.IntN(6)
			at = hi
			maps = append(maps, Mapping{Lo: arch.Addr(lo + 10), Hi: arch.Addr(hi + 10), Off: uint64(lo)})
			want = want.With(maps[len(maps)-1])
		}
		if got := NewSpace(maps...); fmt.Sprint(got.maps) != fmt.Sprint(want.maps) {
			t.Fatalf("seed %d: NewSpace(%v)\n got %v\nwant %v", seed, maps, got.maps, want.maps)
		}
	}
}

const (
	textLo  = 0x400000
	stackLo = 0x7ffc0000
)

// world is a process with one module at its link-time addresses.
func world(t *testing.T, lines ...string) (*Space, *Code) {
	t.Helper()
	tab, err := rows.ParseText(strings.NewReader("machine x86_64\n" + strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	code := &Code{Machine: arch.AMD64, Stepper: rows.Interp{Table: tab},
		Vaddr: func(off uint64) (arch.Vaddr, bool) { return arch.Vaddr(textLo + off), true }}
	mod := NewModule("/bin/prog", "", func(*Module) *Code { return code })
	return NewSpace(Mapping{Lo: textLo, Hi: textLo + 0x10000, Module: mod}), code
}

// snap is a snapshot at pc with words on the stack.
func snap(s *Space, pc uint64, words ...uint64) *Snapshot {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	sn := &Snapshot{Machine: arch.AMD64, Space: s, PC: pc, Known: 1<<17 - 1, Mem: rows.Memory{Lo: stackLo, Bytes: b}}
	sn.Regs[7] = stackLo
	return sn
}

func chain(fs []Frame, stop Stop) string {
	var b strings.Builder
	for _, f := range fs {
		fmt.Fprintf(&b, "%x:%v ", uint64(f.Addr()), f.How)
	}
	return b.String() + stop.String()
}

func TestWalk(t *testing.T) {
	space, code := world(t,
		"400000  cfa=rsp+8  ra=c-8",
		"400100  cfa=rsp+16  ra=c-8",
		"400200  cfa=rsp+8  ra=u",
		"400300  gap",
		"400400  cfa=rbp+16  rbp=c-16  ra=c-8",
		"400500  cfa=rsp+24  rsp=[DW_OP_breg7 RSP+16]  ra=c-16  signal",
		"400600  cfa=rsp-8  ra=c+8",
		"400700  cfa=rbx+8  ra=c-8",
		"400800  gap",
		"401000  cfa=rsp+8  ra=c-8", "401100  gap")
	code.Terminal = []Range{{0x401000, 0x401010}}
	code.PLT = []PLTRange{{Range{0x402000, 0x402040}, true}}
	const x = 0xdeadbeef
	for _, c := range []struct {
		name string
		s    *Snapshot
		want string
	}{
		{"to the outermost", snap(space, 0x400000, 0x400101, x, 0x400001, 0x400201), "400000:start 400100:cfi 400000:cfi 400200:cfi outermost"},
		{"a return address behind its function's end", snap(space, 0x400000, 0x400100, 0x400300), "400000:start 4000ff:cfi 4002ff:cfi outermost"},
		{"captured stack ends", snap(space, 0x400000, 0x400101, x), "400000:start 400100:cfi truncated"},
		{"return address outside of the code", snap(space, 0x400000, 0x400101, x, 0x7000), "400000:start 400100:cfi bad-return"},
		{"null return address", snap(space, 0x400000, 0), "400000:start bad-return"},
		{"signal: exact above it, and another stack", snap(space, 0x400000, 0x400501, x, 0x400000, stackLo+0x20, 0x400201), "400000:start 400501:cfi 400000:signal 400200:cfi outermost"},
		{"CFA goes down", snap(space, 0x400600, 0x400601, 0x400601), "400600:start 400600:cfi bad-memory"},
		{"lost register", snap(space, 0x400000, 0x400701, x, x), "400000:start 400700:cfi bad-memory"},
		{"a place without callers", snap(space, 0x400000, 0x401005, x, x), "400000:start 401004:cfi outermost"},
		{"unmapped", snap(space, 0x1000, x), "1000:start no-info"},
		{"no information, no frame pointer", snap(space, 0x400900, x), "400900:start no-info"},
		{"PLT stub", snap(space, 0x402010, 0x400201), "402010:start 400200:plt outermost"},
		{"PLT stub after its push", snap(space, 0x40201b, x, 0x400201), "40201b:start 400200:plt outermost"},
		{"first PLT entry after its push", snap(space, 0x402006, x, x, 0x400201), "402006:start 400200:plt outermost"},
	} {
		if got := chain(NewWalker(0).Walk(c.s, nil)); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
	}

	// By the frame pointer through code without information.
	s := snap(space, 0x400900, x, stackLo+0x18, 0x400401, stackLo+0x28, 0x400201)
	s.Regs[6] = stackLo + 8
	if got, want := chain(NewWalker(0).Walk(s, nil)), "400900:start 400400:fp 400200:cfi outermost"; got != want {
		t.Errorf("frame pointer\n got %s\nwant %s", got, want)
	}
}

func TestDepth(t *testing.T) {
	space, _ := world(t, "400000  cfa=rsp+8  ra=c-8", "400300  gap")
	words := make([]uint64, 100)
	for i := range words {
		words[i] = 0x400001
	}
	fs, stop := NewWalker(10).Walk(snap(space, 0x400000, words...), nil)
	if len(fs) != 10 || stop != DepthLimit {
		t.Errorf("got %d frames and %v, want 10 and %v", len(fs), stop, DepthLimit)
	}
}

// TestCache: what a walker remembers of one Space does not leak into another.
func TestCache(t *testing.T) {
	a, _ := world(t, "400000  cfa=rsp+8  ra=c-8", "400300  gap")
	b, _ := world(t, "400000  cfa=rsp+16  ra=c-8", "400300  gap")
	w := NewWalker(0)
	for range 3 {
		for _, c := range []struct {
			s    *Space
			want string
		}{
			{a, "400000:start 400010:cfi truncated"}, {b, "400000:start 400020:cfi truncated"},
			{a.Without(textLo, textLo+0x18), "400000:start no-info"},
		} {
			if got := chain(w.Walk(snap(c.s, 0x400000, 0x400011, 0x400021), nil)); !strings.HasPrefix(got, c.want[:20]) {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		}
	}
}

// TestForget: what a walker remembers of spaces does not keep them in memory for ever.
func TestForget(t *testing.T) {
	w := NewWalker(0)
	walk := func(more int) weak.Pointer[Mapping] {
		space, code := world(t, "400000  cfa=rsp+8  ra=c-8", "400300  gap")
		if more > 0 {
			m := NewModule("", "", func(*Module) *Code { return code })
			maps := []Mapping{{Lo: textLo, Hi: textLo + 0x1000, Module: m}}
			for i := range more {
				at := arch.Addr(0x10000000 + 0x2000*i)
				maps = append(maps, Mapping{Lo: at, Hi: at + 0x1000, Module: m})
			}
			space = NewSpace(maps...)
		}
		w.Walk(snap(space, 0x400000, 0x400011, 0x400021), nil)
		return weak.Make(&space.Mappings()[0])
	}
	kept := func(m weak.Pointer[Mapping]) bool {
		runtime.GC()
		return m.Value() != nil
	}
	a := walk(0)
	if !kept(a) {
		t.Error("a walker remembers nothing") // else this test says nothing
	}
	if w.Forget(); kept(a) {
		t.Error("a space is kept behind Forget")
	}
	a = walk(0)
	const large = 1 << 13
	for range maxHeld/large + 1 {
		walk(large)
	}
	if kept(a) {
		t.Errorf("a space is kept behind new ones of more than %d mappings", maxHeld)
	}
}

// FuzzWalk gives the walker arbitrary stacks and registers: it ends, within its depth.
func FuzzWalk(f *testing.F) {
	f.Add(uint64(0x400000), uint64(0x400400), []byte("\x01\x04\x40\x00\x00\x00\x00\x00"))
	f.Add(uint64(0x400200), uint64(stackLo), []byte(strings.Repeat("\x01\x02\x40\x00\x00\x00\x00\x00\x81\x04\x40\x00\x00\x00\x00\x00\x18\x00\xfc\x7f\x00\x00\x00\x00", 4)))
	f.Add(uint64(0x400000), uint64(0), []byte("\x00\x70\x40\x00\x00\x00\x00\x00"+strings.Repeat("\x00\x00\xfc\x7f\x00\x00\x00\x00\x05\x71\x40\x00\x00\x00\x00\x00", 20)))
	walker := NewWalker(100)
	f.Fuzz(func(t *testing.T, pc, bp uint64, stack []byte) {
		lines := []string{"400000  cfa=rsp+8  ra=c-8", "400200  cfa=rsp+24  rbx=c-24  rbp=c-16  ra=c-8", "400400  cfa=rbp+16  rbp=c-16  ra=c-8",
			"400480  cfa=rbx+8  ra=c-8", "4004c0  cfa=rsp+8  rbp=rbx  ra=c-8",
			"400500  cfa=rsp+24  rbp=[DW_OP_breg7 RSP+8]  rsp=[DW_OP_breg7 RSP+16]  ra=c-16  signal", "400580  cfa=rsp+8  ra=u", "400600  gap"}
		s := snap(worldOf(t, arch.AMD64, lines...), pc)
		s.Mem.Bytes = stack
		s.Regs[6], s.Regs[3] = bp, pc
		fs, stop := walker.Walk(s, nil)
		if len(fs) < 1 || len(fs) > 100 {
			t.Fatalf("%d frames", len(fs))
		}
		s.Space = worldBy(t, arch.AMD64, func(x *rows.Table) rows.Stepper { return opaque{rows.Interp{Table: x}} }, lines...)
		if got, want := chain(fs, stop), chain(walker.Walk(s, nil)); got != want {
			t.Fatalf("by plain rules\n got %s\nwant %s", got, want)
		}
	})
}

func BenchmarkWalk(b *testing.B) {
	tab, err := rows.ParseText(strings.NewReader("machine x86_64\n400000  cfa=rsp+8  ra=c-8\n400100  cfa=rsp+32  rbx=c-24  rbp=c-16  ra=c-8\n400200  cfa=rsp+8  ra=u\n400300  gap\n"))
	if err != nil {
		b.Fatal(err)
	}
	code := &Code{Machine: arch.AMD64, Stepper: rows.Interp{Table: tab}, Vaddr: func(off uint64) (arch.Vaddr, bool) { return arch.Vaddr(textLo + off), true }}
	space := NewSpace(Mapping{Lo: textLo, Hi: textLo + 0x10000, Module: NewModule("", "", func(*Module) *Code { return code })})
	words := []uint64{0x400101}
	for range 20 {
		words = append(words, 1, 2, 3, 0x400101)
	}
	words = append(words, 1, 2, 3, 0x400201)
	s := snap(space, 0x400000, words...)
	w := NewWalker(0)
	var fs []Frame
	n := 0
	for b.Loop() {
		fs, _ = w.Walk(s, fs[:0])
		n += len(fs)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/frame")
}

// TestPLTARM64: on AArch64 a stub's return address is in x30. A stub calls nobody: a return address in one leads nowhere.
func TestPLTARM64(t *testing.T) {
	space := worldOf(t, arch.ARM64, "400000  cfa=sp+16  ra=u", "400100  gap")
	code := space.maps[0].Module.Code()
	code.PLT = []PLTRange{{Range{0x400800, 0x400860}, true}}
	withText(code, map[arch.Vaddr]string{0x400800: "\xf0\x7b\xbf\xa9", 0x400014: armBLR, 0x40082c: armBLR})
	s := snap(space, 0x400824, 0)
	s.Machine, s.Known = arch.ARM64, 1<<33-1
	s.Regs[31], s.Regs[30] = stackLo, 0x400018
	if got, want := chain(NewWalker(0).Walk(s, nil)), "400824:start 400017:plt outermost"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	s.Regs[30] = 0x400830
	if got, want := chain(NewWalker(0).Walk(s, nil)), "400824:start 40082f:plt no-info"; got != want {
		t.Errorf("a stub called by a stub\n got %s\nwant %s", got, want)
	}
	s.Known &^= 1 << 30
	if got, want := chain(NewWalker(0).Walk(s, nil)), "400824:start bad-cfa"; got != want {
		t.Errorf("x30 is not known\n got %s\nwant %s", got, want)
	}
}
