package lab

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/unwind"
)

// A codeMemory reads a text as data.
type codeMemory struct {
	lo   uint64
	text []byte
}

func (m codeMemory) Read8(addr uint64) (uint64, bool) {
	if at := addr - m.lo; addr >= m.lo && at <= uint64(len(m.text))-8 {
		return binary.LittleEndian.Uint64(m.text[at:]), true
	}
	return 0, false
}

// A ground is what random code of a machine is made of.
type ground struct {
	*arch.Machine
	instructions []string // all that says something of code without information
	calls        [2]int   // the first of those that are calls, and what follows the last
	lazy, plain  string   // linkage tables, with a first entry and without
	fill         string
	rules        []string
}

// unit is what addresses of instructions are multiples of.
func (g *ground) unit() uint64 { return uint64(len(g.fill)) }

var grounds = []*ground{groundAMD64(), groundARM64()}

func groundAMD64() *ground {
	g := &ground{Machine: arch.AMD64, fill: "\xcc", calls: [2]int{13, 19}}
	g.instructions = []string{
		"\x55\x48\x89\xe5", "\x55\x48\x8b\xec", "\xf3\x0f\x1e\xfa\x55\x48\x89\xe5", "\x55\x31\xc0\x48\x89\xe5", // prologues
		"\xc9\xc3", "\x5d\xc3", "\x48\x83\xc4\x10\x5d\xc3", "\xf3\xc3", "\xc2\x08\x00", "\x5d\xe9\x01\x02\x03\x04", "\xc9\xff\xe0", // epilogues
		"\x48\x83\xec\x08\x48\x8b\x05\x01\x02\x03\x04\x48\x85\xc0\x74\x02\xff\xd0\x48\x83\xc4\x08\xc3", "\x50\x58\xc3", // _init
		"\xe8\x01\x02\x03\x04", "\xff\xd0", "\xff\x50\x08", "\xff\x15\x01\x02\x03\x04", "\x41\xff\xd4", "\xff\x14\xc8", // calls
		"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05", "\xb8\x0f\x00\x00\x00\x0f\x05", // to what handlers return
		"\x0f\x05\x48\x85\xc0\xc3", "\x90", "\xcc", "\x48\x89\xfb",
	}
	plt := "\xff\x35\x01\x02\x03\x00\xff\x25\x01\x02\x03\x00\x0f\x1f\x40\x00" // push x(%rip); jmp *x(%rip)
	for i := range byte(7) {
		if i&1 == 1 {
			plt += "\xf3\x0f\x1e\xfa\x68" + string(i) + "\x00\x00\x00\xe9\x01\x02\x03\x00\x66\x90" // endbr64; push $i; jmp
			continue
		}
		plt += "\xff\x25\x01\x02\x03\x00\x68" + string(i) + "\x00\x00\x00\xe9\x01\x02\x03\x00" // jmp *x(%rip); push $i; jmp
	}
	g.lazy = plt
	g.plain = strings.Repeat("\xf3\x0f\x1e\xfa\xff\x25\x01\x02\x03\x00\x66\x0f\x1f\x44\x00\x00", 3) + // endbr64; jmp *x(%rip)
		strings.Repeat("\xf3\x0f\x1e\xfa\xf2\xff\x25\x01\x02\x03\x00\x0f\x1f\x44\x00\x00", 3) + strings.Repeat("\xff\x25\x01\x02\x03\x00\x66\x90", 4) // bnd jmp *x(%rip)
	g.rules = []string{"cfa=rsp+8  ra=c-8", "cfa=rsp+24  rbp=c-16  ra=c-8", "cfa=rbp+16  rbp=c-16  ra=c-8", "cfa=rsp+16  rbx=c-16  ra=c-8",
		"cfa=rbx+8  rbp=c-24  ra=c-8", "cfa=rsp+8  ra=u",
		"cfa=rsp+24  rbp=c-16  ra=c-8  partial", "cfa=rsp+16  ra=c-8  sync-only", "cfa=rbp+16  rbx=c-24  ra=c-8  sync-only  partial",
		"cfa=DW_OP_breg7 RSP+160, DW_OP_deref  rbp=[DW_OP_breg7 RSP+120]  rsp=[DW_OP_breg7 RSP+160]  ra=[DW_OP_breg7 RSP+168]  signal"}
	return g
}

// wild is random code, of which a table knows a part, with linkage tables in it, and random stacks on it.
type wild struct {
	*ground
	rnd    *rand.Rand
	text   []byte
	after  []uint64 // places behind an instruction: half of them behind calls
	sig    []uint64 // to what handlers return
	mod    *unwind.Module
	space  *unwind.Space
	memory codeMemory
}

const wildLo, wildStack, wildSize, wildText = 0x7f0000000000, 0x7ffd00000000, 4 << 10, 32 << 10

// newWild makes code. Every other stretch of it, of random length, has a rule.
func newWild(t *testing.T, g *ground, seed uint64) *wild {
	x := &wild{ground: g, rnd: rand.New(rand.NewPCG(seed, 7))}
	for len(x.text) < wildText {
		i := x.rnd.IntN(len(g.instructions))
		in := g.instructions[i]
		if n, ok := g.Signal.At([]byte(in)); ok && n == len(in) {
			x.sig = append(x.sig, wildLo+uint64(len(x.text)))
		}
		x.text = append(x.text, in...)
		last := len(x.text) - 4
		switch { // of a function nearby
		case g.Machine == arch.AMD64 && in[0] == 0xe8:
			binary.LittleEndian.PutUint32(x.text[last:], x.rnd.Uint32N(wildText)-wildText/2)
		case g.Machine == arch.ARM64 && in[3] == 0x94:
			binary.LittleEndian.PutUint32(x.text[last:], 0x94000000|(x.rnd.Uint32N(wildText)-wildText/2)>>2&(1<<26-1))
		}
		if i >= g.calls[0] && i < g.calls[1] || x.rnd.IntN(3) == 0 {
			x.after = append(x.after, wildLo+uint64(len(x.text)))
		}
	}
	for len(x.text)%4096 != 0 { // mappings are of whole pages
		x.text = append(x.text, g.fill...)
	}
	copy(x.text[0x1000:], g.lazy)
	copy(x.text[0x2000:], g.plain)
	lines := []string{"machine " + g.Name}
	for at := 0x90; at < len(x.text)-300; {
		unit := int(g.unit())
		n := (1 + x.rnd.IntN(100)/unit) * unit
		lines = append(lines, fmt.Sprintf("%x  %s", at, g.rules[x.rnd.IntN(len(g.rules))]), fmt.Sprintf("%x  gap", at+n))
		if at += n + (1+x.rnd.IntN(160)/unit)*unit; at&^0x3fff == 0 && at&0xfff >= 0xf00 { // none in the linkage tables
			at += 0x200
		}
	}
	ref, err := rows.ParseText(strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	b, err := compact.Emit(ref)
	if err != nil {
		t.Fatal(err)
	}
	table, err := compact.Load(b)
	if err != nil {
		t.Fatal(err)
	}
	c := &unwind.Code{
		Machine: g.Machine, Stepper: table,
		Vaddr:    func(off uint64) (arch.Vaddr, bool) { return arch.Vaddr(off), off < uint64(len(x.text)) },
		Text:     func(v arch.Vaddr, to []byte) int { return copy(to, x.text[min(uint64(v), uint64(len(x.text))):]) },
		Segments: []unwind.Segment{{Off: 0, Size: uint64(len(x.text)), Vaddr: 0}},
		Terminal: []unwind.Range{{Lo: 0x40, Hi: 0x50}},
		PLT:      []unwind.PLTRange{{Range: unwind.Range{Lo: 0x1000, Hi: 0x1080}, Lazy: true}, {Range: unwind.Range{Lo: 0x2000, Hi: 0x2080}}},
	}
	x.mod = unwind.NewModule("wild", "", func(*unwind.Module) *unwind.Code { return c })
	x.space = unwind.NewSpace(unwind.Mapping{Lo: wildLo, Hi: wildLo + arch.Addr(len(x.text)), Module: x.mod})
	x.memory = codeMemory{wildLo, x.text}
	return x
}

// pc returns an address in the code: mostly where an instruction begins or ends, or what handlers return to.
func (x *wild) pc() uint64 {
	switch x.rnd.IntN(8) {
	case 0:
		return wildLo + x.rnd.Uint64N(uint64(len(x.text)))/x.unit()*x.unit()
	case 1:
		return x.sig[x.rnd.IntN(len(x.sig))]
	case 2:
		return wildLo + 0x1000 + 0x1000*x.rnd.Uint64N(2) + x.rnd.Uint64N(0x80)/x.unit()*x.unit()
	}
	return x.after[x.rnd.IntN(len(x.after))]
}

// ra returns an address to return to: on AArch64, half of them are signed.
func (x *wild) ra() uint64 {
	pc := x.pc()
	if x.RAInReg && x.rnd.IntN(2) == 0 {
		pc |= x.rnd.Uint64N(1<<7) << 48
	}
	return pc
}

func (x *wild) stackAddr() uint64 { return wildStack + 8*x.rnd.Uint64N(wildSize/8) }

// snapshot makes a stack. The stack pointer is amid the memory, half of the time.
func (x *wild) snapshot() *unwind.Snapshot {
	regs, m := x.Slot(x.PC), x.Machine
	s := &unwind.Snapshot{Machine: m, Space: x.space, PC: x.pc(), Known: 1<<(regs+1) - 1}
	from := wildStack + 8*x.rnd.Uint64N(wildSize/16)
	s.Mem.Lo, s.Mem.Bytes, s.Mem.Next = wildStack, make([]byte, wildSize), x.memory
	if x.rnd.IntN(2) == 0 {
		s.Mem.Lo = from
	}
	put := func(at, v uint64) {
		if at >= s.Mem.Lo && at-s.Mem.Lo < wildSize {
			binary.LittleEndian.PutUint64(s.Mem.Bytes[at-s.Mem.Lo:], v)
		}
	}
	for at := s.Mem.Lo; at < s.Mem.Lo+wildSize; at += 8 {
		v := x.ra()
		switch x.rnd.IntN(8) {
		case 0, 1, 2:
			v = x.stackAddr()
		case 3:
			v = x.rnd.Uint64()
		case 4:
			v = 0
		}
		put(at, v)
	}
	handler := func(sp uint64) { // what the kernel leaves for one, or nearly
		put(sp+uint64(m.Signal.Context), x.rnd.Uint64N(9))
		put(sp+uint64(m.Signal.Context)+8, x.rnd.Uint64N(8)/7)
		put(sp+uint64(m.Signal.Saved[m.SP]), x.stackAddr())
		put(sp+uint64(m.Signal.Saved[m.PC]), x.pc())
	}
	for range x.rnd.IntN(6) {
		at := x.stackAddr()
		if m.RAInReg { // behind the frame pointer
			at += uint64(m.Record.RA)
		}
		put(at, x.sig[x.rnd.IntN(len(x.sig))])
		handler(at + 8)
	}
	if x.rnd.IntN(8) == 0 { // about to return
		s.PC = x.sig[x.rnd.IntN(len(x.sig))]
		handler(from)
	}
	for r := range s.Regs[:regs] {
		s.Regs[r] = x.stackAddr()
	}
	if m.RAInReg {
		s.Regs[m.Slot(m.RA)] = x.ra()
	}
	s.Regs[0] = x.rnd.Uint64N(2) // after a system call, that of a new thread
	s.Regs[m.Slot(m.SP)], s.Regs[regs] = from, s.PC
	return s
}

// TestBlindWalks: on random stacks over random code of each machine, of which a part has rules, the walk that runs in the kernel finds what ours finds, in
// every way that there is: linkage tables, handlers' returns, system calls, edges of functions, frame pointers, calls.
func TestBlindWalks(t *testing.T) {
	for _, g := range grounds {
		t.Run(g.Name, func(t *testing.T) { blindWalks(t, g) })
	}
}

func blindWalks(t *testing.T, g *ground) {
	hows, stops := map[unwind.How]int{}, map[unwind.Stop]int{}
	k, given := newKernelWalk(t, g.Machine), 0
	for seed := range uint64(15) {
		x, w := newWild(t, g, seed), unwind.NewWalker(1024)
		snaps := make([]*unwind.Snapshot, 3000)
		for i := range snaps {
			snaps[i] = x.snapshot()
		}
		go func() {
			for _, s := range snaps {
				k.ask(s)
			}
			k.in.Flush()
		}()
		bad := 0
		for i, s := range snaps {
			words, stop, missing, err := k.answer()
			if err != nil {
				t.Fatal(err)
			}
			frames, want := w.Walk(s, nil)
			for _, f := range frames {
				hows[f.How]++
			}
			stops[want]++
			switch {
			// Permitted: without its memory's size the kernel's program takes what lies right above for a page that is missing.
			case stop == unwind.Truncated || stop == unwind.BadMemory:
				stop = want
			// Permitted: where no code is, or a page of it is not in memory, the kernel's program gives the walk up for a copy of the stack.
			case missing && stop != unwind.BadReturn:
				given++
				continue
			case missing && len(frames) > len(words):
				frames, want = frames[:len(words)], stop
			}
			if diff := differs(words, stop, frames, want); diff != "" {
				if bad++; bad <= 3 {
					t.Errorf("seed %d, stack %d: %s\n got %x\nwant%s", seed, i, diff, words, dump(frames))
				}
			}
		}
		if bad > 3 {
			t.Errorf("seed %d: %d of %d stacks differ", seed, bad, len(snaps))
		}
	}
	t.Log(hows, stops, given, "given up")
	for how := range unwind.NumHows {
		// Rules that hold at calls only are applied elsewhere on Arm alone, where no walker in C runs.
		if (hows[how] < 300) != (how == unwind.HowSync) {
			t.Errorf("%v: %d frames", how, hows[how])
		}
	}
}

// dump prints the frames of a walk.
func dump(fs []unwind.Frame) (s string) {
	for _, f := range fs {
		s += fmt.Sprintf(" %x:%v:%v", uint64(f.PC), f.How, f.Exact)
	}
	return
}

func groundARM64() *ground {
	le := func(words ...uint32) (s string) {
		for _, w := range words {
			s += string(binary.LittleEndian.AppendUint32(nil, w))
		}
		return s
	}
	const (
		stpPre, movFP, ldpPost, ret = 0xa9bf7bfd, 0x910003fd, 0xa8c17bfd, 0xd65f03c0 // of x29, x30
		nop, btiC, paciasp, autiasp = 0xd503201f, 0xd503245f, 0xd503233f, 0xd50323bf
		adrp, ldr, add, br          = 0x90000010, 0xf9400211, 0x91000210, 0xd61f0220 // of x16, x17
	)
	g := &ground{Machine: arch.ARM64, fill: le(0xd4200000), calls: [2]int{14, 18}}
	g.instructions = []string{
		le(stpPre, movFP), le(paciasp, stpPre, movFP), le(btiC, stpPre, movFP), le(0xd10083ff, 0xa9017bfd, 0x910043fd), le(stpPre, 0xd2800000, movFP), // prologues
		le(ldpPost, ret), le(ldpPost, autiasp, ret), le(0xa9417bfd, 0x910083ff, ret), le(ldpPost, 0x14000011), le(ldpPost, 0xd61f0000), le(autiasp, 0xd65f0bff), // epilogues
		le(paciasp, stpPre, movFP, 0x94000011, ldpPost, autiasp, ret), le(nop, stpPre, movFP), le(ret), // _init
		le(0x94000011), le(0xd63f0020), le(0xd73f0821), le(0xd63f0260), // calls
		le(0xd2801168, 0xd4000001), // to what handlers return
		le(0xd4000001, 0xb4000040, ret), le(nop), le(0xd4200000), le(0xaa0003f3), le(0xf94003e0), le(0xd53bd041, ret), le(0x910043ff),
	}
	g.lazy = le(0xa9bf7bf0, adrp, ldr, add, br, nop, nop, nop) // stp x16,x30
	for i := range uint32(6) {
		g.lazy += le(adrp, ldr|i<<10, add, br)
	}
	for range 4 {
		g.plain += le(btiC, adrp, ldr, add, br, nop)
	}
	g.plain += strings.Repeat(le(adrp, ldr, add, br), 2)
	g.rules = []string{
		"cfa=sp+0", "cfa=sp+32  x29=c-32  ra=c-24", "cfa=x29+16  x29=c-16  ra=c-8", "cfa=sp+16  x19=c-16  ra=c-8", "cfa=x19+16  x29=c-24  ra=c-8",
		"cfa=sp+16  ra=u", "cfa=sp+32  x29=c-32  ra=c-24  ra-signed", "cfa=sp+0  ra-signed", "cfa=sp+32  x29=c-32  ra=c-24  partial",
		"cfa=sp+16  x29=c-16  ra=c-8  sync-only", "cfa=x29+16  x19=c-16  ra=c-8  sync-only  partial", "cfa=x29+16  x29=c-16  ra=c-8  signal",
	}
	return g
}
