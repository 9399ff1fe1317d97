package unwind

import (
	"encoding/binary"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// both walks a stack by plain rules, and without them, and wants the same of both.
func both(t *testing.T, name, want string, make func(stepper bool) *Snapshot) {
	t.Helper()
	for _, plain := range []bool{true, false} {
		if got := chain(NewWalker(0).Walk(make(plain), nil)); got != want {
			t.Errorf("%s, plain rules %v\n got %s\nwant %s", name, plain, got, want)
		}
	}
}

// in returns a space of the lines, whose rules can be plain, or not.
func in(t *testing.T, m *arch.Machine, plain bool, lines ...string) (*Space, *Code) {
	if plain {
		s := worldOf(t, m, lines...)
		return s, s.maps[0].Module.Code()
	}
	s := worldBy(t, m, func(x *rows.Table) rows.Stepper { return opaque{rows.Interp{Table: x}} }, lines...)
	return s, s.maps[0].Module.Code()
}

// TestBelow: at the last instructions of a function, compilers' rows still say where registers were saved.
func TestBelow(t *testing.T) {
	lines := []string{
		"400000  cfa=rsp+8  rbp=c-16  ra=c-8",            // ret, after pop rbp
		"400010  cfa=rsp+8  rbx=c-16  rbp=c-512  ra=c-8", // what is far below is nobody's
		"400100  cfa=rbp+16  rbp=c-16  ra=c-8",
		"400180  cfa=rbx+8  ra=c-8",
		"400200  cfa=rsp+8  ra=u",
		"400300  gap"}
	words := []uint64{0x400101, 0xdead, 0x1111, 0x400201, 0x400181, 0, 0x400201}
	for _, c := range []struct {
		name, want string
		pc         uint64
		mem        memory
		edit       func([]uint64)
	}{
		{"a copy", "400000:start 400100:cfi 400200:cfi outermost", 0x400000, nil, nil},
		{"memory that has the slot still", "400000:start 400100:cfi 400200:cfi outermost", 0x400000, func(a uint64) (uint64, bool) { return stackLo + 16, a == stackLo-8 }, nil},
		{"the red zone, in which a function may save a register", "400000:start 400100:cfi 400180:cfi bad-cfa", 0x400000, func(a uint64) (uint64, bool) { return stackLo + 24, a == stackLo-8 }, nil},
		{"memory below the red zone", "400010:start 400100:cfi 400200:cfi outermost", 0x400010, func(a uint64) (uint64, bool) { return 0x1234, a < stackLo }, nil},
		{"another register", "400010:start 400180:cfi 400200:cfi outermost", 0x400010, nil, func(w []uint64) { w[0] = 0x400181 }},
	} {
		both(t, c.name, c.want, func(plain bool) *Snapshot {
			space, _ := in(t, arch.AMD64, plain, lines...)
			w := append([]uint64{}, words...)
			if c.edit != nil {
				c.edit(w)
			}
			s := snap(space, c.pc, w...)
			s.Regs[6], s.Regs[3] = stackLo+16, stackLo+24
			if c.mem != nil {
				s.Mem.Next = c.mem
			}
			return s
		})
	}

	// So does a frame that a signal interrupted; what the kernel has saved is below, too, but is no slot of the frame's.
	both(t, "below a signal", "400400:start 400000:signal 400100:cfi 400200:cfi outermost", func(plain bool) *Snapshot {
		space, _ := in(t, arch.AMD64, plain, append(lines[:5:5], "400400  cfa=DW_OP_breg7 RSP+8, DW_OP_deref  rbp=[DW_OP_breg7 RSP+16]  rsp=[DW_OP_breg7 RSP+8]  ra=[DW_OP_breg7 RSP+0]  signal", "400500  gap")...)
		s := snap(space, 0x400400, 0x400000, stackLo+32, stackLo+48, 7, 0x400101, 0xdead, 0x1111, 0x400201)
		s.Mem.Next = memory(func(a uint64) (uint64, bool) { return 0, false })
		copy(s.Mem.Bytes[24:32], "\xff\xff\xff\xff\xff\xff\xff\xff") // the slot: in the red zone, and read
		binary.LittleEndian.PutUint64(s.Mem.Bytes[24:], stackLo+48)
		return s
	})
	both(t, "a copy that begins above a signal's frame", "400000:start 400100:cfi bad-cfa", func(plain bool) *Snapshot {
		space, _ := in(t, arch.AMD64, plain, lines...)
		s := snap(space, 0x400000, words...)
		s.Known &^= 1 << 6 // rbp was never known
		return s
	})
}

// TestOtherStacks: a caller's stack may lie below.
func TestOtherStacks(t *testing.T) {
	lines := []string{
		"400000  cfa=rsp+8  ra=c-8",
		"400100  cfa=rbp+16  rbp=c-16  ra=c-8",
		"400200  cfa=rsp+8  ra=u",
		"400300  gap"}
	const low = stackLo - 0x10000
	other := map[uint64]uint64{low: low + 64, low + 8: 0x400101, low + 64: 0, low + 72: 0x400001, low + 80: 0x400201}
	for _, c := range []struct {
		name, want string
		bp, at     uint64
	}{
		{"down", "400000:start 400100:cfi 400100:cfi 400000:cfi 400200:cfi outermost", low, low},
		{"down, and round", "400000:start 400100:cfi 400100:cfi 400100:cfi bad-cfa", low, low + 64},
		{"not aligned", "400000:start 400100:cfi bad-cfa", low + 4, low},
		{"into the piece that was walked", "400000:start 400100:cfi bad-cfa", stackLo - 8, low},
	} {
		both(t, c.name, c.want, func(plain bool) *Snapshot {
			space, _ := in(t, arch.AMD64, plain, lines...)
			s := snap(space, 0x400000, 0x400101, 0x400101)
			s.Regs[6] = c.bp
			s.Mem.Next = memory(func(a uint64) (uint64, bool) {
				if a == low+4 || a == low+12 || a == stackLo-8 {
					return 0x400101, true
				}
				v, ok := other[a]
				if c.name == "down, and round" && a == low+64 {
					return low, true // the caller's is where it was
				}
				if c.name == "down, and round" && a == low+72 {
					return 0x400101, true
				}
				return v, ok
			})
			return s
		})
	}

	// A copy has one stack.
	both(t, "in a copy", "400000:start 400100:cfi bad-memory", func(plain bool) *Snapshot {
		space, _ := in(t, arch.AMD64, plain, lines...)
		s := snap(space, 0x400000, 0x400101)
		s.Regs[6] = low
		return s
	})

	// However often it goes down, it ends. Here frame pointers lead down, and return addresses are behind them.
	for _, plain := range []bool{true, false} {
		space, _ := in(t, arch.AMD64, plain, lines...)
		s := snap(space, 0x400000, 0x400101)
		s.Regs[6] = low
		s.Mem.Next = memory(func(a uint64) (uint64, bool) {
			if a&15 == 0 {
				return a - 32, true
			}
			return 0x400101, true
		})
		if fs, stop := NewWalker(0).Walk(s, nil); len(fs) != arch.MaxMoves+2 || stop != BadCFA {
			t.Errorf("downstairs: %d frames, %v", len(fs), stop)
		}
	}
}

// TestPlaces: a return address that no call has left is the place itself.
func TestPlaces(t *testing.T) {
	for _, plain := range []bool{true, false} {
		lines := []string{"400000  cfa=rsp+8  ra=c-8", "400100  cfa=rsp+24  ra=c-8", "400200  cfa=rsp+8  ra=u", "400280  cfa=rsp+24  ra=c-8", "400300  gap"}
		space, code := in(t, arch.AMD64, plain, lines...)
		withText(code, map[arch.Vaddr]string{0x4000fb: call, 0x4001f8: nops, 0x400278: nops, 0x400288: nops})
		for _, c := range []struct {
			name, want string
			words      []uint64
		}{
			{"a function's first byte, behind another", "400000:start 400200:cfi outermost", []uint64{0x400200}},
			{"one that nobody has called", "400000:start 400280:cfi outermost", []uint64{0x400280, 7, 7, 7}},
			{"amid a function", "400000:start 400290:cfi bad-return", []uint64{0x400290, 7, 7, 7}},
			{"behind a call that ends a function", "400000:start 4000ff:cfi 400200:cfi outermost", []uint64{0x400100, 0x400200}},
			{"a mapping's first byte", "400000:start 400000:cfi 400200:cfi outermost", []uint64{0x400000, 0x400200}},
		} {
			if got := chain(NewWalker(0).Walk(snap(space, 0x400000, c.words...), nil)); got != c.want {
				t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
			}
		}
	}
}

// TestNoRows: code without information that a call has led to, and that has not used the stack.
func TestNoRows(t *testing.T) {
	space, code := world(t, "400000  cfa=rsp+8  ra=c-8", "400100  cfa=rbx+8  ra=c-8", "400200  cfa=rsp+8  ra=u", "400300  gap")
	withText(code, map[arch.Vaddr]string{0x400110: call, 0x400210: call, 0x4002fc: "\xb8\x38\x00\x00",
		0x400300: "\x0f\x05\x48\x85\xc0\x7c\x13\x74\x01\xc3", 0x400800: "\xf3\x0f\x1e\xfa"})
	rax := func(v uint64) func(s *Snapshot) { return func(s *Snapshot) { s.Regs[0] = v } }
	for _, c := range []struct {
		name, want string
		s          *Snapshot
		edit       func(s *Snapshot)
	}{
		{"the first instruction", "400800:start 400114:call 400200:cfi outermost", snap(space, 0x400800, 0x400115, 0x400201), func(s *Snapshot) { s.Regs[3] = stackLo + 8 }},
		{"no call", "400800:start no-info", snap(space, 0x400800, 0x400111), nil},
		{"a thread is made", "400302:start 400214:call outermost", snap(space, 0x400302, 0x400215), rax(77)},
		{"about to be made", "400300:start 400214:call outermost", snap(space, 0x400300, 0x400215), rax(0)},
		{"the thread that was made", "400302:start outermost", snap(space, 0x400302, 0x400215), rax(0)},
		{"the same, farther on", "400307:start outermost", snap(space, 0x400307, 1), rax(0)},
		{"about to return", "400309:start 400214:call outermost", snap(space, 0x400309, 0x400215), rax(77)},
		{"too far", "400330:start no-info", snap(space, 0x400330, 1), rax(0)},
	} {
		if c.edit != nil {
			c.edit(c.s)
		}
		if got := chain(NewWalker(0).Walk(c.s, nil)); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
	}
	// A frame pointer comes first, but not where a thread is made.
	for pc, want := range map[uint64]string{0x400800: "400800:start 400200:fp outermost", 0x400302: "400302:start 400214:call outermost"} {
		s := snap(space, pc, 0x400215, 0, 0x400201)
		s.Regs[0], s.Regs[6] = 77, stackLo+8
		if got := chain(NewWalker(0).Walk(s, nil)); got != want {
			t.Errorf("with a frame pointer\n got %s\nwant %s", got, want)
		}
	}
}

// TestMoved: where a register has the stack pointer, and it is on another stack.
func TestMoved(t *testing.T) {
	for _, plain := range []bool{true, false} {
		space, code := in(t, arch.AMD64, plain, "400000  cfa=rsp+8  ra=c-8", "400100  cfa=rsp+16  rbp=c-16  ra=c-8", "400200  cfa=rsp+8  ra=u", "400300  gap")
		code.Moved = []Moved{{Range{0x400110, 0x400120}, 12}}
		const other = stackLo - 0x1000
		s := snap(space, 0x400000, 0x400115)
		s.Regs[12] = other
		s.Mem.Next = memory(func(a uint64) (uint64, bool) { return 0x400201, a == other+8 })
		if got, want := chain(NewWalker(0).Walk(s, nil)), "400000:start 400114:cfi 400200:cfi outermost"; got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
}

// TestForks: behind a system call that makes a thread, the thread for which it returns 0 has no caller; the other one has. So has whoever
// returns there.
func TestForks(t *testing.T) {
	for _, plain := range []bool{true, false} {
		space, code := in(t, arch.AMD64, plain, "400000  cfa=rsp+8  ra=c-8", "400100  cfa=rsp+16  rbp=c-16  ra=c-8", "400200  cfa=rsp+8  ra=u", "400300  gap")
		code.Forks = []Range{{0x400110, 0x400120}}
		s := snap(space, 0x400115, 0, 0x400201)
		w := NewWalker(0)
		for _, c := range []struct {
			result uint64
			want   string
		}{{0, "400115:start outermost"}, {4711, "400115:start 400200:cfi outermost"}, {0, "400115:start outermost"}} {
			s.Regs[0] = c.result
			if got := chain(w.Walk(s, nil)); got != c.want {
				t.Errorf("result %d\n got %s\nwant %s", c.result, got, c.want)
			}
		}
		s = snap(space, 0x400000, 0x400115, 0, 0x400201)
		if got, want := chain(w.Walk(s, nil)), "400000:start 400114:cfi 400200:cfi outermost"; got != want {
			t.Errorf("called from there\n got %s\nwant %s", got, want)
		}
	}
}

// TestSignedFramePointer: by frame pointers, return addresses that are signed are read without their codes.
func TestSignedFramePointer(t *testing.T) {
	for _, code := range []uint64{0, 0x7f << 48, 0x35 << 56, 1<<63 | 0x42<<52} {
		space := worldOf(t, arch.ARM64, "400000  cfa=sp+16  ra=u", "400100  gap")
		s := snap(space, 0x400800, stackLo+16, 0x400805|code, 0, 0x400005|code)
		s.Machine, s.Known = arch.ARM64, 1<<33-1
		s.Regs[31], s.Regs[29] = stackLo, stackLo
		if got, want := chain(NewWalker(0).Walk(s, nil)), "400800:start 400804:fp 400004:fp outermost"; got != want {
			t.Errorf("code %#x\n got %s\nwant %s", code, got, want)
		}
	}
}
