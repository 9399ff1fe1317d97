package unwind

import (
	"encoding/binary"
	"testing"

	"github.com/unspool/unspool/arch"
)

// TestEdge: where a function without information that keeps frame pointers begins and ends, its caller is not left out.
func TestEdge(t *testing.T) {
	const function = "\x55\x48\x89\xe5\x48\x83\xec\x10\xc9\xc3" // push %rbp; mov %rsp,%rbp; sub $16,%rsp; leave; ret
	const begin = "\x48\x83\xec\x08\x48\x8b\x05\x01\x02\x03\x00\x48\x85\xc0\x74\x02\xff\xd0\x48\x83\xc4\x08\xc3"
	lines := []string{"400000  cfa=rsp+8  ra=c-8", "400100  cfa=rbp+16  rbp=c-16  ra=c-8", "400200  cfa=rsp+8  ra=u", "400300  gap"}
	space, code := world(t, lines...)
	withText(code, map[arch.Vaddr]string{
		0x400900: function, 0x400a00: "\x5d\xc3", 0x400b00: begin,
		0x400110: call, 0x400210: call,
	})
	const caller, outermost = 0x400115, 0x400215
	// The stack is the caller's frame, whose frame pointer is at 4, with what the function has pushed below.
	frame := []uint64{0, 0, caller, 7, stackLo + 8*8, outermost, 0, 0, 0, 0}
	at := func(pc, sp uint64, fp uint64) *Snapshot {
		s := snap(space, pc, frame...)
		s.Regs[7], s.Regs[6] = stackLo+8*sp, stackLo+8*fp
		s.Mem.Lo, s.Mem.Bytes = s.Mem.Lo+8*sp, s.Mem.Bytes[8*sp:]
		return s
	}
	pushed := func(s *Snapshot, fp uint64) *Snapshot { // what was pushed is at the stack pointer
		binary.LittleEndian.PutUint64(s.Mem.Bytes, stackLo+8*fp)
		return s
	}
	whole := ":start 400114:call 400214:cfi outermost"
	for _, c := range []struct {
		name string
		s    *Snapshot
		want string
	}{
		{"push", at(0x400900, 2, 4), "400900" + whole},
		{"mov", pushed(at(0x400901, 1, 4), 4), "400901" + whole},
		{"leave", pushed(at(0x400908, 1, 1), 4), "400908:start 400114:fp 400214:cfi outermost"},
		{"ret", at(0x400909, 2, 4), "400909" + whole},
		{"pop", pushed(at(0x400a00, 1, 1), 4), "400a00" + whole},
		{"pop, and the frame pointer is not the function's", pushed(at(0x400a00, 1, 9), 4), "400a00" + whole},
		{"_init", at(0x400b00, 2, 4), "400b00" + whole},
		{"_init, further", at(0x400b04, 1, 4), "400b04" + whole},
		{"_init, before its call", at(0x400b10, 1, 4), "400b10" + whole},
		{"_init, at its end", at(0x400b16, 2, 4), "400b16" + whole},
		{"no call has left the word", at(0x400909, 3, 4), "400909:start 400214:fp outermost"},
	} {
		got := chain(NewWalker(0).Walk(c.s, nil))
		if got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
		// Registers takes the same way.
		w, n := NewWalker(0), 0
		fs, _ := w.Walk(c.s, nil)
		w.Registers(c.s, fs, func(i int, known uint64, regs *[arch.NumSlots]uint64) {
			if n++; i == 1 && (known>>6&1 == 0 || regs[6] != stackLo+8*4) && fs[1].How == HowCall {
				t.Errorf("%s: the caller's frame pointer is %#x, known %v", c.name, regs[6], known>>6&1 != 0)
			}
		})
		if n != len(fs) {
			t.Errorf("%s: registers of %d frames, of %d", c.name, n, len(fs))
		}
	}

	// A caller's place is behind its call: what follows is not run yet.
	withText(code, map[arch.Vaddr]string{0x400900: "\xe8\x00\x00\x00\x00\xc3", 0x400110: call, 0x400210: call})
	s := snap(space, 0x400000, 0x400905, 0, stackLo+8*4, caller, stackLo+8*6, outermost)
	s.Regs[6] = stackLo + 8*2
	if got, want := chain(NewWalker(0).Walk(s, nil)), "400000:start 400904:cfi 400114:fp 400214:cfi outermost"; got != want {
		t.Errorf("a caller\n got %s\nwant %s", got, want)
	}

	// A signal has interrupted it.
	withText(code, map[arch.Vaddr]string{0x400900: function, 0x400110: call, 0x400210: call, 0x407000: musl})
	words := append([]uint64{0x407000}, sigframe(arch.AMD64, map[arch.Reg]uint64{16: 0x400900, 7: stackLo + 8*90, 6: stackLo + 8*92})...)
	words = append(words, make([]uint64, 20)...)
	words[90], words[92], words[93] = caller, stackLo+8*94, outermost
	if got, want := chain(NewWalker(0).Walk(snap(space, 0x400000, words...), nil)), "400000:start 407000:cfi 400900:sigreturn 400114:call 400214:cfi outermost"; got != want {
		t.Errorf("below a handler\n got %s\nwant %s", got, want)
	}

	// Without the file, memory has the code.
	code.Text = nil
	s = at(0x400909, 2, 4)
	s.Mem.Next = memory(func(addr uint64) (uint64, bool) {
		switch {
		case addr == 0x40010d:
			return binary.LittleEndian.Uint64([]byte("\x00\x00\x00" + call)), true
		case addr >= 0x400900 && addr < 0x400940:
			return binary.LittleEndian.Uint64(append([]byte(function), make([]byte, 64)...)[addr-0x400900:]), true
		}
		return 0, false
	})
	if got, want := chain(NewWalker(0).Walk(s, nil)), "400909"+whole; got != want {
		t.Errorf("code in memory\n got %s\nwant %s", got, want)
	}
}

// TestEdgeARM64: the same, with a link register.
func TestEdgeARM64(t *testing.T) {
	space := worldOf(t, arch.ARM64, "400100  cfa=x29+16  x29=c-16  x30=c-8", "400200  cfa=sp+8  ra=u", "400300  gap")
	code := space.Mappings()[0].Module.Code()
	withText(code, map[arch.Vaddr]string{
		0x400900: "\xfd\x7b\xbe\xa9\xfd\x03\x00\x91\xfd\x7b\xc2\xa8\xc0\x03\x5f\xd6", // stp x29,x30,[sp,#-32]!; mov x29,sp; ldp x29,x30,[sp],#32; ret
		0x400110: armBLR, 0x400210: armBLR,
	})
	for _, c := range []struct {
		pc, sp uint64
		want   string
	}{
		{0x400900, 4, "400900:start 400113:call 400213:cfi outermost"},
		{0x400904, 0, "400904:start 400113:call 400213:cfi outermost"},
		{0x400908, 0, "400908:start 400113:fp 400213:cfi outermost"},
		{0x40090c, 4, "40090c:start 400113:call 400213:cfi outermost"},
	} {
		s := snap(space, c.pc, stackLo+8*4, 0x400114, 0, 0, stackLo+8*6, 0x400214, 0, 0)
		s.Machine, s.Known = arch.ARM64, 1<<33-1
		s.Regs[31], s.Regs[30], s.Regs[29] = stackLo+8*c.sp, 0x400114, stackLo+8*4
		if c.pc == 0x400908 {
			s.Regs[29], s.Regs[30] = stackLo, 0
		}
		if got := chain(NewWalker(0).Walk(s, nil)); got != c.want {
			t.Errorf("%#x\n got %s\nwant %s", c.pc, got, c.want)
		}
	}
}

// TestLeafFunction: a function without information that keeps no frame, between those that do, does not leave its caller out. What the call
// that the frame pointer leads to has called says whose frame pointer it is.
func TestLeafFunction(t *testing.T) {
	space, code := world(t, "400100  cfa=rbp+16  rbp=c-16  ra=c-8", "400200  cfa=rsp+8  ra=u", "400300  gap")
	withText(code, map[arch.Vaddr]string{
		0x400210: "\xe8\xeb\x06\x00\x00", // call 0x400900
		0x400230: "\xe8\xcb\x05\x00\x00", // call 0x400800
		0x400250: "\xff\xd0",             // call *%rax
		0x400920: call,
		0x408000: "\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90",
	})
	const top = 0x400925 // in the function at 0x400900
	for _, c := range []struct {
		name string
		pc   uint64
		top  uint64
		to   uint64
		want string
	}{
		{"a leaf", 0x408000, top, 0x400215, "408000:start 400924:call 400214:fp outermost"},
		{"a leaf before its caller", 0x400800, top, 0x400215, "400800:start 400924:call 400214:fp outermost"},
		{"its own frame", 0x400910, top, 0x400215, "400910:start 400214:fp outermost"},
		{"its own frame: another function was called", 0x400a00, 0x300000, 0x400235, "400a00:start 400234:fp outermost"},
		{"no call has left the word", 0x408000, top + 1, 0x400215, "408000:start 400214:fp outermost"},
		{"the call does not say what it has called", 0x408000, top, 0x400252, "408000:start 400251:fp outermost"},
	} {
		s := snap(space, c.pc, c.top, 0, stackLo+0x100, c.to, 0, 0)
		s.Regs[6] = stackLo + 8*2
		w := NewWalker(0)
		fs, stop := w.Walk(s, nil)
		if got := chain(fs, stop); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
		n := 0
		if w.Registers(s, fs, func(int, uint64, *[arch.NumSlots]uint64) { n++ }); n != len(fs) {
			t.Errorf("%s: registers of %d frames, of %d", c.name, n, len(fs))
		}
	}
	// What is not in a copy of the stack is cut off, and not without information.
	s := snap(space, 0x408000, 0, 0)
	s.Regs[6] = stackLo + 8*2
	if got, want := chain(NewWalker(0).Walk(s, nil)), "408000:start truncated"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
