package unwind

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
)

// worldOf is world for any machine.
func worldOf(t testing.TB, m *arch.Machine, lines ...string) *Space {
	return worldBy(t, m, func(x *rows.Table) rows.Stepper { return rows.Interp{Table: x} }, lines...)
}

// worldBy is worldOf with a Stepper of one's own.
func worldBy(t testing.TB, m *arch.Machine, stepper func(*rows.Table) rows.Stepper, lines ...string) *Space {
	t.Helper()
	tab, err := rows.ParseText(strings.NewReader("machine " + m.Name + "\n" + strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	code := &Code{Machine: m, Stepper: stepper(tab), Vaddr: func(off uint64) (arch.Vaddr, bool) { return arch.Vaddr(textLo + off), true }}
	withText(code, map[arch.Vaddr]string{0x407000: musl, 0x407100: call})
	return NewSpace(Mapping{Lo: textLo, Hi: textLo + 0x10000, Module: NewModule("/bin/prog", "", func(*Module) *Code { return code })})
}

// TestStops has a stack for each way to end, besides those of TestWalk.
func TestStops(t *testing.T) {
	space := worldOf(t, arch.AMD64,
		"400000  cfa=rsp+8  ra=c-8",
		"400100  cfa=rsp+8  ra=rdi", // vfork
		"400200  cfa=rsp+8  ra=u",
		"400300  cfa=rdx+8  ra=c-8", // a register that calls do not preserve
		"400400  cfa=DW_OP_lit1, DW_OP_skip -4  ra=c-8",
		"400500  cfa=DW_OP_breg7 RSP+160, DW_OP_deref  rdx=[DW_OP_breg7 RSP+8]  rsp=[DW_OP_breg7 RSP+160]  ra=[DW_OP_breg7 RSP+168]  signal",
		"400600  cfa=rsp+8",
		"400700  cfa=none  ra=u",
		"400800  cfa=rsp+16  rbp=c-16  ra=c-8",
		"400900  cfa=rbp+16  rbp=c-16  ra=c-8",
		"400a00  gap")
	const x = 0xdeadbeef
	signal := make([]uint64, 30)
	signal[0] = 0x400501         // the handler's return address; its stack pointer is then stackLo+8
	signal[1+1] = stackLo + 0xd8 // rdx
	signal[1+20] = stackLo + 0xd0
	signal[1+21] = 0x400300
	signal[27] = 0x400201
	for _, c := range []struct {
		name string
		s    *Snapshot
		edit func(s *Snapshot)
		want string
	}{
		{"return address in a register", snap(space, 0x400100, x), func(s *Snapshot) { s.Regs[5] = 0x400201 }, "400100:start 400200:cfi outermost"},
		{"the same, of a caller: it is lost", snap(space, 0x400000, 0x400101, x), nil, "400000:start 400100:cfi bad-cfa"},
		{"a register that a call has lost", snap(space, 0x400000, 0x400301, x), func(s *Snapshot) { s.Regs[1] = stackLo }, "400000:start 400300:cfi bad-cfa"},
		{"a register of a signal's frame", snap(space, 0x400000, signal...), nil, "400000:start 400501:cfi 400300:signal 400200:cfi outermost"},
		{"an expression without end", snap(space, 0x400400, x), nil, "400400:start bad-cfa"},
		{"no rule for the return address", snap(space, 0x400600, x), nil, "400600:start bad-cfa"},
		{"no caller, nor a CFA", snap(space, 0x400700), nil, "400700:start outermost"},
		{"unreadable, far from the stack", snap(space, 0x400900, x), func(s *Snapshot) { s.Regs[6] = 0x1000 }, "400900:start bad-memory"},
		{"the missing rest of the stack", snap(space, 0x400900, x), func(s *Snapshot) { s.Regs[6] = stackLo + 1<<20 }, "400900:start truncated"},
		{"no stack at all", snap(space, 0x400000), nil, "400000:start bad-memory"},
		{"a frame pointer that leads down", snap(space, 0x400800, x, 0x400901), func(s *Snapshot) { s.Mem.Bytes = append(s.Mem.Bytes, make([]byte, 64)...) }, "400800:start 400900:cfi bad-memory"},
		{"the same CFA twice", snap(space, 0x400800, stackLo, 0x400901), nil, "400800:start 400900:cfi bad-cfa"},
	} {
		if c.edit != nil {
			c.edit(c.s)
		}
		if got := chain(NewWalker(0).Walk(c.s, nil)); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
	}
	for s := range NumStops {
		if s.String() == "?" {
			t.Errorf("Stop %d has no name", s)
		}
	}
}

// TestSyncOnly: rules that are right at call sites only do not count where a frame has called nobody: frame 0, and what a signal has
// interrupted. There the frame pointer leads on, and the frame says so.
func TestSyncOnly(t *testing.T) {
	for _, flag := range []string{"sync-only", ""} {
		space := worldOf(t, arch.AMD64,
			"400000  cfa=rsp+8  ra=c-8  "+flag,
			"400100  cfa=rsp+16  rbp=c-16  ra=c-8",
			"400200  cfa=rsp+8  ra=u",
			"400500  cfa=DW_OP_breg7 RSP+160, DW_OP_deref  rbp=[DW_OP_breg7 RSP+120]  rsp=[DW_OP_breg7 RSP+160]  ra=[DW_OP_breg7 RSP+168]  signal",
			"400600  gap")
		// By its rule the return address of 400010 is on top of the stack, by the frame pointer above.
		first := []uint64{0x400201, 0x400201, stackLo + 0x30, 0x400101, 0, 0, 0, 0x400201}
		called := append([]uint64{stackLo + 0x40, 0x400011}, first...) // of 400100, whose caller is 400010
		signal := make([]uint64, 40)
		signal[1] = 0x400501 // of 400110; then what the kernel leaves
		signal[2+15], signal[2+20], signal[2+21] = stackLo+8*32, stackLo+8*30, 0x400010
		signal[30], signal[32], signal[33] = 0x400201, stackLo+8*34, 0x400201
		for _, c := range []struct {
			name      string
			pc, fp    uint64
			stack     []uint64
			want, old string
		}{
			{"frame 0", 0x400010, stackLo + 0x10, first, "400010:start 400100:fp", "400010:start 400200:cfi"},
			{"a caller", 0x400110, stackLo + 0x40, called, "400110:start 400010:cfi 400200:cfi", "400110:start 400010:cfi 400200:cfi"},
			{"what a signal has interrupted", 0x400110, 0, signal, "400110:start 400501:cfi 400010:signal 400200:fp", "400110:start 400501:cfi 400010:signal 400200:cfi"},
		} {
			sn := snap(space, c.pc, c.stack...)
			sn.Regs[6] = c.fp
			want := c.want
			if flag == "" {
				want = c.old
			}
			if got := chain(NewWalker(0).Walk(sn, nil)); !strings.HasPrefix(got, want) {
				t.Errorf("%s, %q\n got %s\nwant %s", c.name, flag, got, want)
			}
		}
	}
}

// TestLeaf: on a machine with a link register a leaf's CFA is its stack pointer, in frame 0 and where a signal
// interrupted it; a caller's is above.
func TestLeaf(t *testing.T) {
	space := worldOf(t, arch.ARM64,
		"400000  cfa=sp+0", // a leaf
		"400100  cfa=sp+16  x29=c-16  ra=c-8",
		"400200  cfa=sp+0  ra=u",
		"400300  cfa=sp+32  x30=c-32  sp=[DW_OP_breg31 SP+16]  pc=c-8  ra-column=pc  signal",
		"400400  gap")
	sn := snap(space, 0x400000, 0, 0x400201)
	sn.Machine, sn.Known = arch.ARM64, 1<<32-1
	sn.Regs[31], sn.Regs[30] = stackLo, 0x400101
	if got, want := chain(NewWalker(0).Walk(sn, nil)), "400000:start 400100:cfi 400200:cfi outermost"; got != want {
		t.Errorf("a leaf\n got %s\nwant %s", got, want)
	}
	// Its own return address again: the second time its CFA must be above.
	sn.Regs[30] = 0x400001
	if got, want := chain(NewWalker(0).Walk(sn, nil)), "400000:start 400000:cfi bad-cfa"; got != want {
		t.Errorf("a leaf that calls itself\n got %s\nwant %s", got, want)
	}
}

// TestInterruptedLeaf: the handler returns to a signal frame, above which is a leaf whose CFA is the stack pointer
// that the signal found.
func TestInterruptedLeaf(t *testing.T) {
	space := worldOf(t, arch.ARM64,
		"400000  cfa=sp+0",
		"400200  cfa=sp+0  ra=u",
		"400300  cfa=sp+64  ra=[DW_OP_breg31 SP+8]  sp=[DW_OP_breg31 SP+16]  signal",
		"400400  gap")
	// The row recovers x30 and the interrupted address from one column, so the leaf returns to where it starts.
	sn := snap(space, 0x400300, 0, 0x400000, stackLo+0x60, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	sn.Machine, sn.Known = arch.ARM64, 1<<32-1
	sn.Regs[31] = stackLo
	if got, want := chain(NewWalker(0).Walk(sn, nil)), "400300:start 400000:signal 400000:cfi bad-cfa"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestCacheOverTime lets modules come and go at random, and compares a walker that has seen it all with one that
// has not.
func TestCacheOverTime(t *testing.T) {
	oracle.Long(t)
	modules := make([]*Module, 4)
	for i := range modules {
		var text strings.Builder
		text.WriteString("machine x86_64\n")
		rnd := rand.New(rand.NewPCG(uint64(i), 8))
		rows8 := []string{"cfa=rsp+8  ra=c-8", "cfa=rsp+16  ra=c-8", "cfa=rsp+24  rbx=c-16  ra=c-8", "cfa=rsp+8  ra=u", "cfa=rsp+16  rsp=[DW_OP_breg7 RSP+16]  ra=c-8  signal"}
		last := -1
		for lo := 0x1000; lo < 0x3000; lo += 8 + rnd.IntN(64) {
			k := rnd.IntN(len(rows8) + 1)
			if k == last || lo == 0x1000 && k == len(rows8) {
				k = (k + 1) % len(rows8)
			}
			if last = k; k == len(rows8) {
				text.WriteString(hex(lo) + "  gap\n")
			} else {
				text.WriteString(hex(lo) + "  " + rows8[k] + "\n")
			}
		}
		if last != len(rows8) {
			text.WriteString("3000  gap\n")
		}
		tab, err := rows.ParseText(strings.NewReader(text.String()))
		if err != nil {
			t.Fatal(err)
		}
		code := &Code{Machine: arch.AMD64, Stepper: rows.Interp{Table: tab}, Vaddr: func(off uint64) (arch.Vaddr, bool) { return arch.Vaddr(off + 0x1000), off < 0x4000 }}
		if i == 2 {
			code.Terminal = []Range{{0x1800, 0x1900}}
			code.PLT = []PLTRange{{Range{0x3000, 0x3100}, true}}
		}
		modules[i] = NewModule(hex(i), "", func(*Module) *Code { return code })
	}
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		old, fresh := NewWalker(0), NewWalker(0)
		spaces := []*Space{NewSpace()}
		address := func() arch.Addr { return arch.Addr(textLo + 0x1000*rnd.IntN(16)) }
		for range 60 {
			at := rnd.IntN(len(spaces)) // several processes in turn, and some that forked
			s := spaces[at]
			for range rnd.IntN(4) {
				lo := address()
				hi := lo + arch.Addr(0x1000*(1+rnd.IntN(4)))
				if rnd.IntN(3) == 0 {
					s = s.Without(lo, hi)
				} else {
					s = s.With(Mapping{Lo: lo, Hi: hi, Off: uint64(0x1000 * rnd.IntN(3)), Module: modules[rnd.IntN(len(modules))]})
				}
			}
			if rnd.IntN(3) == 0 {
				spaces = append(spaces, s)
			} else {
				spaces[at] = s
			}
			for range 4 {
				words := make([]uint64, 64)
				for i := range words {
					if words[i] = textLo + 8*rnd.Uint64N(0x2000); rnd.IntN(8) == 0 {
						words[i] = stackLo + 8*rnd.Uint64N(64)
					}
				}
				sn := snap(s, textLo+8*rnd.Uint64N(0x2000), words...)
				sn.Regs[6] = stackLo + 8*rnd.Uint64N(64)
				gotFrames, gotStop := old.Walk(sn, nil)
				clear(fresh.cache[:])
				wantFrames, wantStop := fresh.Walk(sn, nil)
				if got, want := chain(gotFrames, gotStop), chain(wantFrames, wantStop); got != want {
					t.Fatalf("seed %d\n got %s\nwant %s", seed, got, want)
				}
				for i := range gotFrames {
					g, w := gotFrames[i].Mapping, wantFrames[i].Mapping
					if (g == nil) != (w == nil) || g != nil && *g != *w {
						t.Fatalf("seed %d: frame %d lies in %+v, want %+v", seed, i, g, w)
					}
				}
			}
		}
	}
}

func hex(n int) string {
	const digits = "0123456789abcdef"
	if n < 16 {
		return digits[n : n+1]
	}
	return hex(n/16) + hex(n%16)
}

// TestHostileStacks: whatever rules, registers and stack say, the walk ends within its depth, above the window nothing
// is read, and each frame is above the one before.
func TestHostileStacks(t *testing.T) {
	oracle.Long(t)
	walker, total := NewWalker(200), 0
	for seed := range uint64(10000) {
		rnd := rand.New(rand.NewPCG(seed, 10))
		var lines []string
		last := ""
		for lo := textLo; lo < textLo+0x400; lo += 16 {
			row := [...]string{"gap", "cfa=rsp+8  ra=c-8", "cfa=rsp+0  ra=c-8", "cfa=rsp-8  ra=c-8", "cfa=rbp+16  rbp=c-16  ra=c-8", "cfa=rbp-4096  ra=c-8",
				"cfa=rsp+16  rsp=[DW_OP_breg7 RSP+0]  ra=c-8  signal", "cfa=DW_OP_breg7 RSP+0, DW_OP_deref  rbp=[DW_OP_breg7 RSP+16]  rsp=[DW_OP_breg7 RSP+8]  ra=[DW_OP_breg7 RSP+24]  signal",
				"cfa=rsp+8  ra=rdi", "cfa=rsp+8  rbx=rbp  rbp=rbx  ra=rbx", "cfa=rsp+8  ra=v+8"}[rnd.IntN(11)]
			if row == last || row == "gap" && len(lines) == 0 {
				continue
			}
			last = row
			lines = append(lines, hex(lo)+"  "+row)
		}
		if last != "gap" {
			lines = append(lines, "400400  gap")
		}
		if len(lines) < 2 {
			continue
		}
		space := worldOf(t, arch.AMD64, lines...)
		words := make([]uint64, 48)
		for i := range words {
			switch rnd.IntN(4) {
			case 0:
				words[i] = stackLo + 8*rnd.Uint64N(40)
			case 1:
				words[i] = textLo + rnd.Uint64N(0x400)
				if rnd.IntN(4) == 0 {
					words[i] = rnd.Uint64()
				}
			default:
				words[i] = textLo + rnd.Uint64N(0x500)
			}
		}
		sn := snap(space, textLo+rnd.Uint64N(0x400), words...)
		for i := range sn.Regs[:16] {
			sn.Regs[i] = words[rnd.IntN(len(words))]
		}
		sn.Known &= rnd.Uint64() | rnd.Uint64()
		sn.Mem.Next = beyond{}
		fs, stop := walker.Walk(sn, nil)
		// Without plain rules it must come to the same.
		slow := *sn
		slow.Space = worldBy(t, arch.AMD64, func(x *rows.Table) rows.Stepper { return opaque{rows.Interp{Table: x}} }, lines...)
		if got, want := chain(fs, stop), chain(walker.Walk(&slow, nil)); got != want {
			t.Fatalf("seed %d\n got %s\nwant %s\nrows %s", seed, got, want, strings.Join(lines, "\n"))
		}
		total += len(fs)
		if len(fs) < 1 || len(fs) > 200 || stop >= NumStops {
			t.Fatalf("seed %d: %d frames, %v", seed, len(fs), stop)
		}
		for i, f := range fs {
			if i > 0 && f.Mapping == nil || (i == 0) != (f.How == HowStart) || f.Exact != (f.How == HowStart || f.How == HowSignal || f.PC == textLo || signalAt(f.Mapping, f.PC)) {
				t.Fatalf("seed %d: frame %d of %s: %+v", seed, i, chain(fs, stop), f)
			}
		}
	}
	if total < 12000 {
		t.Errorf("%d frames in all", total)
	}
}

// signalAt says whether the rule of a signal frame holds at pc, and before it.
func signalAt(m *Mapping, pc arch.Addr) bool {
	at, _ := m.Vaddr(pc)
	st := m.Module.Code().Stepper
	id, ok := st.Find(at)
	before, ok2 := st.Find(at - 1)
	return ok && ok2 && id == before && st.Signal(id)
}

// opaque hides what a Stepper's rules are.
type opaque struct{ rows.Stepper }

// beyond is memory where nothing is.
type beyond struct{}

func (beyond) Read8(uint64) (uint64, bool) { return 0, false }

// A rowAt has the CFA at a number from the stack pointer; the return address is in the word below the CFA, or there is none.
type rowAt struct {
	lo    arch.Vaddr
	cfa   int64
	ra    rows.Kind
	flags rows.Flags
}

// worldAt is worldOf for a machine of 4-byte words.
func worldAt(m *arch.Machine, list ...rowAt) *Space {
	b := rows.NewBuilder(m)
	for _, r := range list {
		set := rows.Set{CFA: rows.CFA{Kind: rows.CFAReg, Reg: m.SP, Off: r.cfa}, RA: m.RA, Rules: []rows.Rule{{Of: m.RA, Kind: r.ra}}, Flags: r.flags}
		if r.ra == rows.Offset {
			set.Rules[0].Off = -4
		}
		b.Range(r.lo, r.lo+0x100, []rows.Row{{Lo: r.lo, Set: b.Intern(set)}})
	}
	code := &Code{Machine: m, Stepper: rows.Interp{Table: rows.Build(b)}, Vaddr: func(off uint64) (arch.Vaddr, bool) { return arch.Vaddr(textLo + off), true }}
	return NewSpace(Mapping{Lo: textLo, Hi: textLo + 0x10000, Module: NewModule("/bin/prog", "", func(*Module) *Code { return code })})
}

// words32 are words of 4 bytes at stackLo.
type words32 []uint32

func (w words32) Read8(addr uint64) (v uint64, ok bool) {
	i := (addr - stackLo) / 4
	if addr < stackLo || i+1 >= uint64(len(w)) {
		return 0, false
	}
	return uint64(w[i]) | uint64(w[i+1])<<32, true
}

// TestSyncBegins: where a function begins, the link register has the caller, and a rule that holds at calls only would leave the caller out.
func TestSyncBegins(t *testing.T) {
	space := worldAt(arch.ARM,
		rowAt{0x400000, 8, rows.Offset, rows.SyncOnly}, // two functions
		rowAt{0x400100, 16, rows.Offset, rows.SyncOnly},
		rowAt{0x400200, 0, rows.Undefined, 0})
	withText(space.Mappings()[0].Module.Code(), map[arch.Vaddr]string{
		0x400108: "\xcc\xff\xff\xeb", 0x400110: "\x33\xff\x2f\xe1", 0x400210: "\x33\xff\x2f\xe1", // bl 0x400040; blx r3
	})
	for _, c := range []struct {
		pc, lr uint64
		want   string
	}{
		{0x400000, 0x400114, "400000:start 400113:call 400213:cfi outermost"},
		{0x400004, 0x400114, "400004:start 400213:sync outermost"}, // the place tells nothing
		{0x400040, 0x40010c, "400040:start 40010b:call 400213:cfi outermost"},
		{0x400040, 0x400114, "400040:start 400213:sync outermost"}, // the two functions have one rule, and the call does not say whom it calls
		{0x400044, 0x40010c, "400044:start 400213:sync outermost"},
		{0x400000, 0x400118, "400000:start 400213:sync outermost"}, // no call
	} {
		s := &Snapshot{Machine: arch.ARM, Space: space, PC: c.pc, Known: 1<<16 - 1}
		s.Mem.Next = rows.WordsOf(arch.ARM, words32{0, 0x400214, 0, 0x400214, 0})
		s.Regs[13], s.Regs[14] = stackLo, c.lr
		w := NewWalker(0)
		fs, stop := w.Walk(s, nil)
		if got := chain(fs, stop); got != c.want {
			t.Errorf("%#x called from %#x\n got %s\nwant %s", c.pc, c.lr, got, c.want)
		}
		n := 0
		if w.Registers(s, fs, func(int, uint64, *[arch.NumSlots]uint64) { n++ }); n != len(fs) {
			t.Errorf("%#x called from %#x: registers of %d frames, of %d", c.pc, c.lr, n, len(fs))
		}
	}
}
