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

// instructions are what random code is made of: all that says something of code without information.
var instructions = []string{
	"\x55\x48\x89\xe5", "\x55\x48\x8b\xec", "\xf3\x0f\x1e\xfa\x55\x48\x89\xe5", "\x55\x31\xc0\x48\x89\xe5", // prologues
	"\xc9\xc3", "\x5d\xc3", "\x48\x83\xc4\x10\x5d\xc3", "\xf3\xc3", "\xc2\x08\x00", "\x5d\xe9\x01\x02\x03\x04", "\xc9\xff\xe0", // epilogues
	"\x48\x83\xec\x08\x48\x8b\x05\x01\x02\x03\x04\x48\x85\xc0\x74\x02\xff\xd0\x48\x83\xc4\x08\xc3", "\x50\x58\xc3", // _init
	"\xe8\x01\x02\x03\x04", "\xff\xd0", "\xff\x50\x08", "\xff\x15\x01\x02\x03\x04", "\x41\xff\xd4", "\xff\x14\xc8", // calls
	"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05", "\xb8\x0f\x00\x00\x00\x0f\x05", // to what handlers return
	"\x0f\x05\x48\x85\xc0\xc3", "\x90", "\xcc", "\x48\x89\xfb",
}

// wild is random code, of which a table knows a part, with linkage tables in it, and random stacks on it.
type wild struct {
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
func newWild(t *testing.T, seed uint64) *wild {
	x := &wild{rnd: rand.New(rand.NewPCG(seed, 7))}
	for len(x.text) < wildText {
		i := x.rnd.IntN(len(instructions))
		in := instructions[i]
		if strings.HasSuffix(in, "\x0f\x05") {
			x.sig = append(x.sig, wildLo+uint64(len(x.text)))
		}
		x.text = append(x.text, in...)
		if in[0] == 0xe8 { // of a function nearby
			binary.LittleEndian.PutUint32(x.text[len(x.text)-4:], x.rnd.Uint32N(wildText)-wildText/2)
		}
		if i >= 13 && i < 19 || x.rnd.IntN(3) == 0 {
			x.after = append(x.after, wildLo+uint64(len(x.text)))
		}
	}
	for len(x.text)%4096 != 0 { // mappings are of whole pages
		x.text = append(x.text, 0xcc)
	}
	plt := "\xff\x35\x01\x02\x03\x00\xff\x25\x01\x02\x03\x00\x0f\x1f\x40\x00" // push x(%rip); jmp *x(%rip)
	for i := range byte(7) {
		if i&1 == 1 {
			plt += "\xf3\x0f\x1e\xfa\x68" + string(i) + "\x00\x00\x00\xe9\x01\x02\x03\x00\x66\x90" // endbr64; push $i; jmp
			continue
		}
		plt += "\xff\x25\x01\x02\x03\x00\x68" + string(i) + "\x00\x00\x00\xe9\x01\x02\x03\x00" // jmp *x(%rip); push $i; jmp
	}
	copy(x.text[0x1000:], plt)
	plt = strings.Repeat("\xf3\x0f\x1e\xfa\xff\x25\x01\x02\x03\x00\x66\x0f\x1f\x44\x00\x00", 3) + // endbr64; jmp *x(%rip)
		strings.Repeat("\xf3\x0f\x1e\xfa\xf2\xff\x25\x01\x02\x03\x00\x0f\x1f\x44\x00\x00", 3) + strings.Repeat("\xff\x25\x01\x02\x03\x00\x66\x90", 4) // bnd jmp *x(%rip)
	copy(x.text[0x2000:], plt)
	rules := []string{"cfa=rsp+8  ra=c-8", "cfa=rsp+24  rbp=c-16  ra=c-8", "cfa=rbp+16  rbp=c-16  ra=c-8", "cfa=rsp+16  rbx=c-16  ra=c-8",
		"cfa=rbx+8  rbp=c-24  ra=c-8", "cfa=rsp+8  ra=u",
		"cfa=rsp+24  rbp=c-16  ra=c-8  partial", "cfa=rsp+16  ra=c-8  sync-only", "cfa=rbp+16  rbx=c-24  ra=c-8  sync-only  partial",
		"cfa=DW_OP_breg7 RSP+160, DW_OP_deref  rbp=[DW_OP_breg7 RSP+120]  rsp=[DW_OP_breg7 RSP+160]  ra=[DW_OP_breg7 RSP+168]  signal"}
	lines := []string{"machine x86_64"}
	for at := 0x90; at < len(x.text)-300; {
		n := 1 + x.rnd.IntN(100)
		lines = append(lines, fmt.Sprintf("%x  %s", at, rules[x.rnd.IntN(len(rules))]), fmt.Sprintf("%x  gap", at+n))
		if at += n + 1 + x.rnd.IntN(160); at&^0x3fff == 0 && at&0xfff >= 0xf00 { // none in the linkage tables
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
		Machine: arch.AMD64, Stepper: table,
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
		return wildLo + x.rnd.Uint64N(uint64(len(x.text)))
	case 1:
		return x.sig[x.rnd.IntN(len(x.sig))]
	case 2:
		return wildLo + 0x1000 + 0x1000*x.rnd.Uint64N(2) + x.rnd.Uint64N(0x80)
	}
	return x.after[x.rnd.IntN(len(x.after))]
}

func (x *wild) stackAddr() uint64 { return wildStack + 8*x.rnd.Uint64N(wildSize/8) }

// snapshot makes a stack. The stack pointer is amid the memory, half of the time.
func (x *wild) snapshot() *unwind.Snapshot {
	s := &unwind.Snapshot{Machine: arch.AMD64, Space: x.space, PC: x.pc(), Known: 1<<17 - 1}
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
		v := x.pc()
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
	handler := func(at uint64) { // what the kernel leaves for one, or nearly
		put(at, x.rnd.Uint64N(9))
		put(at+8, x.rnd.Uint64N(8)/7)
		put(at+160, x.stackAddr())
		put(at+168, x.pc())
	}
	for range x.rnd.IntN(6) {
		at := x.stackAddr()
		put(at, x.sig[x.rnd.IntN(len(x.sig))])
		handler(at + 8)
	}
	if x.rnd.IntN(8) == 0 { // about to return
		s.PC = x.sig[x.rnd.IntN(len(x.sig))]
		handler(from)
	}
	for r := range s.Regs[:16] {
		s.Regs[r] = x.stackAddr()
	}
	s.Regs[0] = x.rnd.Uint64N(2) // after a system call, that of a new thread
	s.Regs[7], s.Regs[16] = from, s.PC
	return s
}

// TestBlindWalks: on random stacks over random code, of which a part has rules, the walk that runs in the kernel finds what ours finds, in
// every way that there is: linkage tables, handlers' returns, system calls, edges of functions, frame pointers, calls.
func TestBlindWalks(t *testing.T) {
	hows, stops := map[unwind.How]int{}, map[unwind.Stop]int{}
	k, given := newKernelWalk(t, arch.AMD64), 0
	for seed := range uint64(15) {
		x, w := newWild(t, seed), unwind.NewWalker(1024)
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
