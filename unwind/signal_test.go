package unwind

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// withText gives code the instructions in at, by address. There are no others.
func withText(c *Code, at map[arch.Vaddr]string) {
	c.Text = func(v arch.Vaddr, to []byte) int {
		for lo, s := range at {
			if v >= lo && v < lo+arch.Vaddr(len(s)) {
				return copy(to, s[v-lo:])
			}
		}
		return 0
	}
}

const (
	musl   = "\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"
	nops   = "\xcc\xcc\xcc\xcc\xcc\xcc\xcc\xcc"
	short  = "\xb8\x0f\x00\x00\x00\x0f\x05"
	arm    = "\x68\x11\x80\xd2\x01\x00\x00\xd4"
	call   = "\xe8\x00\x00\x00\x00"
	armBLR = "\x60\x00\x3f\xd6" // blr x3
)

// sigframe is what the kernel leaves for a handler, with values of registers in it.
func sigframe(m *arch.Machine, regs map[arch.Reg]uint64) []uint64 {
	words := make([]uint64, 80)
	for r, v := range regs {
		words[m.Signal.Saved[r]/8] = v
	}
	return words
}

func TestSigReturn(t *testing.T) {
	lines := []string{"400000  cfa=rsp+8  ra=c-8", "400100  cfa=rbx+8  rbp=c-16  ra=c-8", "400200  cfa=rsp+8  ra=u", "400300  gap"}
	space, code := world(t, lines...)
	withText(code, map[arch.Vaddr]string{0x400900: musl, 0x400a00: short, 0x400b00: musl[:8], 0x4001f8: nops, 0x400200: musl})
	const there = stackLo + 8*30 // the interrupted stack
	frame := sigframe(arch.AMD64, map[arch.Reg]uint64{16: 0x400100, 7: there, 3: there + 8})
	frame[30] = 0x400201 // where rbx says
	stack := func(ra uint64) []uint64 { return append([]uint64{ra}, frame...) }
	for _, c := range []struct {
		name string
		s    *Snapshot
		want string
	}{
		{"musl's and Go's", snap(space, 0x400000, stack(0x400900)...), "400000:start 400900:cfi 400100:sigreturn 400200:cfi outermost"},
		{"the short one", snap(space, 0x400000, stack(0x400a00)...), "400000:start 400a00:cfi 400100:sigreturn 400200:cfi outermost"},
		{"one with a rule, as Go's", snap(space, 0x400000, stack(0x400200)...), "400000:start 400200:cfi 400100:sigreturn 400200:cfi outermost"},
		{"one, without what the kernel leaves on the stack", snap(space, 0x400000, append([]uint64{0x400900, 8}, frame[1:]...)...), "400000:start 4008ff:cfi no-info"},
		{"the same, of the second word", snap(space, 0x400000, append([]uint64{0x400900, 7, 1}, frame[2:]...)...), "400000:start 4008ff:cfi no-info"},
		{"half of one", snap(space, 0x400000, stack(0x400b00)...), "400000:start 400aff:cfi no-info"},
		{"behind its beginning", snap(space, 0x400000, stack(0x400901)...), "400000:start 400900:cfi no-info"},
		{"about to begin", snap(space, 0x400900, frame...), "400900:start 400100:sigreturn "},
		{"about to call", snap(space, 0x400907, frame...), "400907:start 400100:sigreturn "},
		{"about to call, the short one", snap(space, 0x400a05, frame...), "400a05:start 400100:sigreturn "},
		{"cut off", snap(space, 0x400000, stack(0x400900)[:20]...), "400000:start 400900:cfi truncated"},
	} {
		if got := chain(NewWalker(0).Walk(c.s, nil)); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
	}

	// Registers has what was saved.
	s := snap(space, 0x400000, stack(0x400900)...)
	w := NewWalker(0)
	fs, _ := w.Walk(s, nil)
	n := 0
	w.Registers(s, fs, func(i int, known uint64, regs *[arch.NumSlots]uint64) {
		n++
		if i == 2 && (regs[3] != there+8 || regs[7] != there || known != 1<<17-1) {
			t.Errorf("registers of the interrupted frame: %x, known %#x", regs[:17], known)
		}
	})
	if n != len(fs) {
		t.Errorf("registers of %d frames, of %d", n, len(fs))
	}
}

func TestSigReturnARM64(t *testing.T) {
	tab, err := rows.ParseText(strings.NewReader("machine aarch64\n400000  cfa=sp+0\n400100  cfa=x19+16  ra=c-8\n400200  cfa=sp+8  ra=u\n400300  gap\n"))
	if err != nil {
		t.Fatal(err)
	}
	code := &Code{Machine: arch.ARM64, Stepper: rows.Interp{Table: tab}, Vaddr: func(off uint64) (arch.Vaddr, bool) { return arch.Vaddr(textLo + off), true }}
	withText(code, map[arch.Vaddr]string{0x400900: arm, 0x400240: armBLR})
	space := NewSpace(Mapping{Lo: textLo, Hi: textLo + 0x10000, Module: NewModule("", "", func(*Module) *Code { return code })})
	frame := sigframe(arch.ARM64, map[arch.Reg]uint64{32: 0x400100, 31: stackLo + 8*76, 19: stackLo + 8*76})
	frame[77] = 0x400244
	var b []byte
	for _, w := range frame {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	s := &Snapshot{Machine: arch.ARM64, Space: space, PC: 0x400000, Known: 1<<33 - 1, Mem: rows.Memory{Lo: stackLo, Bytes: b}}
	s.Regs[31], s.Regs[30] = stackLo, 0x400900
	if got, want := chain(NewWalker(0).Walk(s, nil)), "400000:start 400900:cfi 400100:sigreturn 400243:cfi outermost"; got != want {
		t.Errorf("a handler\n got %s\nwant %s", got, want)
	}
	for pc, where := range map[uint64]string{0x400900: "400900", 0x400904: "400904", 0x400908: "400908"} { // the last is in the call
		s.PC, s.Regs[30] = pc, 0x400300
		if got, want := chain(NewWalker(0).Walk(s, nil)), where+":start 400100:sigreturn 400243:cfi outermost"; got != want {
			t.Errorf("behind a handler\n got %s\nwant %s", got, want)
		}
	}
	s.PC, s.Regs[30] = 0, 0x400244
	if got, want := chain(NewWalker(0).Walk(s, nil)), "0:start 400243:call outermost"; got != want {
		t.Errorf("a null call\n got %s\nwant %s", got, want)
	}
	s.Regs[30] = 0x400248
	if got, want := chain(NewWalker(0).Walk(s, nil)), "0:start no-info"; got != want {
		t.Errorf("no call\n got %s\nwant %s", got, want)
	}
}

func TestCall(t *testing.T) {
	lines := []string{"400000  cfa=rsp+8  ra=c-8", "400100  cfa=rbx+8  ra=c-8", "400200  cfa=rsp+8  ra=u", "400300  gap"}
	space, code := world(t, lines...)
	withText(code, map[arch.Vaddr]string{0x400900: musl, 0x400110: call, 0x400210: call, 0x400ffb: call})
	const there = stackLo + 8*30
	handler := func(pc uint64) []uint64 {
		f := append([]uint64{0x400900}, sigframe(arch.AMD64, map[arch.Reg]uint64{16: pc, 7: there, 3: there + 16})...)
		f[30], f[32] = 0x400115, 0x400215
		return f
	}
	for _, c := range []struct {
		name string
		s    *Snapshot
		want string
	}{
		{"null", snap(space, 0, 0x400215), "0:start 400214:call outermost"},
		{"elsewhere", snap(space, 0x123456, 0x400215), "123456:start 400214:call outermost"},
		{"not after a call", snap(space, 0, 0x400216), "0:start no-info"},
		{"to unmapped code", snap(space, 0, 0x123456), "0:start no-info"},
		{"no stack", snap(space, 0), "0:start no-info"},
		{"below a handler", snap(space, 0x400000, handler(0)...), "400000:start 400900:cfi 0:sigreturn 400114:call 400214:cfi outermost"},
		{"below a handler, no call", snap(space, 0x400000, append(handler(0)[:30], 7)...), "400000:start 400900:cfi bad-return"},
		{"a return address, not below a handler", snap(space, 0x400000, 0, 0x400215), "400000:start bad-return"},
	} {
		c.s.Regs[3] = stackLo
		if got := chain(NewWalker(0).Walk(c.s, nil)); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
	}

	// Without the file, memory has the code.
	code.Text = nil
	s := snap(space, 0, 0x400215)
	s.Mem.Next = memory(func(addr uint64) (uint64, bool) {
		return binary.LittleEndian.Uint64([]byte("\x00\x00\x00" + call)), addr == 0x40020d
	})
	if got, want := chain(NewWalker(0).Walk(s, nil)), "0:start 400214:call outermost"; got != want {
		t.Errorf("code in memory\n got %s\nwant %s", got, want)
	}
}

// A memory is a function as a rows.Reader.
type memory func(addr uint64) (uint64, bool)

func (m memory) Read8(addr uint64) (uint64, bool) { return m(addr) }

// TestLostVDSO: handlers return to a vDSO that is not at hand. The registers behind both kinds of frames are those that the kernel has saved.
func TestLostVDSO(t *testing.T) {
	space := worldAt(arch.I386, rowAt{0x400000, 4, rows.Offset, 0}, rowAt{0x400100, 12, rows.Offset, 0}, rowAt{0x400200, 4, rows.Undefined, 0})
	vdso := NewModule("[vdso]", "", func(*Module) *Code { return nil })
	vdso.VDSO = true
	space = NewSpace(space.Mappings()[0], Mapping{Lo: 0x700000, Hi: 0x701000, Module: vdso})
	const there = stackLo + 4*100 // the interrupted stack
	for i, sig := range []*arch.Signal{arch.I386.Signal, arch.I386.Signal.Plain} {
		words := make(words32, 110)
		words[0] = 0x700400 // the handler's caller
		frame := words[1:]
		for r, v := range map[arch.Reg]uint32{8: 0x400100, 4: there, 3: there + 8, 7: 77} {
			frame[sig.Saved[r]/4] = v
		}
		if i == 1 {
			frame[sig.Same[0]/4], frame[sig.Same[1]/4] = there, there
		}
		words[102] = 0x400201
		s := &Snapshot{Machine: arch.I386, Space: space, PC: 0x400000, Known: 1<<9 - 1}
		s.Mem.Next = rows.WordsOf(arch.I386, words)
		s.Regs[4] = stackLo
		w := NewWalker(0)
		fs, stop := w.Walk(s, nil)
		if got, want := chain(fs, stop), "400000:start 700400:cfi 400100:sigreturn 400200:cfi outermost"; got != want {
			t.Errorf("frame %d\n got %s\nwant %s", i, got, want)
		}
		n := 0
		w.Registers(s, fs, func(i int, known uint64, regs *[arch.NumSlots]uint64) {
			n++
			if i == 2 && (regs[4] != there || regs[3] != there+8 || regs[7] != 77) {
				t.Errorf("frame %d: registers %x", i, regs[:9])
			}
		})
		if n != len(fs) {
			t.Errorf("frame %d: registers of %d frames, of %d", i, n, len(fs))
		}
	}
}
