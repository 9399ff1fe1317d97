package rows

import (
	"encoding/binary"
	"testing"

	"github.com/unspool/unspool/arch"
)

// memory is a Reader of words.
type memory map[uint64]uint64

func (m memory) Read8(a uint64) (uint64, bool) { v, ok := m[a]; return v, ok }

func mustSet(t *testing.T, m *arch.Machine, text string) *Set {
	t.Helper()
	s, err := ParseSet(text, m)
	if err != nil {
		t.Fatal(err)
	}
	return &s
}

// start is a state in which slot i holds 1000*i, but for the stack pointer.
func start(m *arch.Machine, pc, sp uint64) *State {
	s := &State{}
	s.Start(pc, 1<<17-1)
	for i := range s.Snap {
		s.Snap[i] = uint64(1000 * i)
	}
	s.Snap[m.Slot(m.SP)] = sp
	return s
}

func TestStep(t *testing.T) {
	mem := &Memory{Next: memory{0x1018: 0x4444, 0x1010: 0x5555, 0x2000: 0x1020, 0x10a0: 0x7000, 0x10a8: 0x8888, 0x1008: 0x9999}}
	for _, c := range []struct {
		row     string
		outcome Outcome
		pc, cfa uint64
		get     map[arch.Slot]uint64 // values afterwards
		lost    []arch.Slot
	}{
		{row: "cfa=rsp+32  rbx=c-16  ra=c-8", pc: 0x4444, cfa: 0x1020, get: map[arch.Slot]uint64{3: 0x5555, 7: 0x1020, 12: 12000, 16: 0x4444}, lost: []arch.Slot{0, 1, 8}},
		{row: "cfa=rsp+32  rbx=c-16  r13=s  ra=c-8  partial", pc: 0x4444, cfa: 0x1020, get: map[arch.Slot]uint64{3: 0x5555, 7: 0x1020, 13: 13000, 16: 0x4444},
			lost: []arch.Slot{0, 1, 6, 8, 12, 14, 15}},
		{row: "cfa=rsp+32  ra=c-8  signal  partial", pc: 0x4444, cfa: 0x1020, get: map[arch.Slot]uint64{7: 0x1020}, lost: []arch.Slot{0, 3, 6, 12, 13, 14, 15}},
		{row: "cfa=rsp+32  rbp=c-16  ra=c-8  sync-only", pc: 0x4444, cfa: 0x1020, get: map[arch.Slot]uint64{3: 3000, 6: 0x5555}, lost: []arch.Slot{0}},
		{row: "cfa=rsp+32  ra=u", outcome: Outermost},
		{row: "cfa=none  ra=u", outcome: Outermost},
		{row: "gap", outcome: NoRule},
		{row: "cfa=rsp+32  ra=c+80", outcome: Unreadable},
		{row: "cfa=rsp+32", outcome: LostRegister},          // x86-64 has no default for the return address
		{row: "cfa=xmm0+32  ra=c-8", outcome: LostRegister}, // nor are vector registers carried
		{row: "cfa=rsp+32  ra=rdi", pc: 5000, cfa: 0x1020},  // vfork
		{row: "cfa=rsp+32  rbx=r12  r12=rbx  ra=c-8", pc: 0x4444, cfa: 0x1020, get: map[arch.Slot]uint64{3: 12000, 12: 3000}}, // at once, not in turn
		{row: "cfa=rsp+32  rbx=v-4  ra=c-8", pc: 0x4444, cfa: 0x1020, get: map[arch.Slot]uint64{3: 0x101c}},
		{row: "cfa=rsp+32  rbx=u  r12=[DW_OP_drop, DW_OP_breg7 RSP+16]  ra=c-8", pc: 0x4444, cfa: 0x1020, get: map[arch.Slot]uint64{12: 0x5555}, lost: []arch.Slot{3}},
		{row: "cfa=rsp+32  rbx=[DW_OP_breg40 MM7+0]  ra=c-8", outcome: OK, pc: 0x4444, cfa: 0x1020, lost: []arch.Slot{3}},
		{row: "cfa=DW_OP_breg7 RSP+4096, DW_OP_deref  ra=c-8", pc: 0x4444, cfa: 0x1020},
		{row: "cfa=DW_OP_breg7 RSP+4096, DW_OP_deref, DW_OP_plus_uconst 0x8  ra=c-16", pc: 0x4444, cfa: 0x1028},
		{row: "cfa=DW_OP_breg7 RSP+8, DW_OP_breg16 RIP+0, DW_OP_lit15, DW_OP_and, DW_OP_lit11, DW_OP_ge, DW_OP_lit3, DW_OP_shl, DW_OP_plus  ra=c-8", pc: 0x9999, cfa: 0x1010},
		{row: "cfa=DW_OP_breg7 RSP+8, DW_OP_breg16 RIP+0, DW_OP_lit15, DW_OP_and, DW_OP_lit13, DW_OP_ge, DW_OP_lit3, DW_OP_shl, DW_OP_plus  ra=c-8", outcome: Unreadable},
		{row: "cfa=DW_OP_breg7 RSP+160  rax=[DW_OP_breg7 RSP+160]  rdi=s  rsp=[DW_OP_breg7 RSP+160]  ra=[DW_OP_breg7 RSP+168]  signal", pc: 0x8888, cfa: 0x10a0,
			get: map[arch.Slot]uint64{0: 0x7000, 7: 0x7000, 5: 5000, 8: 8000}},
		{row: "cfa=DW_OP_lit1, DW_OP_skip -4  ra=c-8", outcome: BadExpr}, // for ever
		{row: "cfa=DW_OP_plus  ra=c-8", outcome: BadExpr},
		{row: "cfa=DW_OP_drop  ra=c-8", outcome: BadExpr},
		{row: "cfa=DW_OP_lit1, DW_OP_lit0, DW_OP_div  ra=c-8", outcome: BadExpr},
	} {
		s := start(arch.AMD64, 0x40100b, 0x1000)
		before := *s
		set := mustSet(t, arch.AMD64, c.row)
		got := Step(arch.AMD64, set, s, mem)
		if got != c.outcome {
			t.Errorf("Step %s\n got %v\nwant %v", c.row, got, c.outcome)
			continue
		}
		if got != OK {
			if !s.Equal(&before) {
				t.Errorf("Step %s changed the state although it came to %v", c.row, got)
			}
			continue
		}
		if s.PC != c.pc || s.CFA != c.cfa {
			t.Errorf("Step %s\n got pc %#x cfa %#x\nwant pc %#x cfa %#x", c.row, s.PC, s.CFA, c.pc, c.cfa)
		}
		for slot, want := range c.get {
			if v, o := s.Get(slot, mem); o != OK || v != want {
				t.Errorf("Step %s: %s\n got %#x %v\nwant %#x", c.row, arch.AMD64.RegName(arch.Reg(slot)), v, o, want)
			}
		}
		for _, slot := range c.lost {
			if v, o := s.Get(slot, mem); o != LostRegister {
				t.Errorf("Step %s: %s is %#x %v, want it lost", c.row, arch.AMD64.RegName(arch.Reg(slot)), v, o)
			}
		}
	}
}

func TestStepARM64(t *testing.T) {
	mem := &Memory{Next: memory{0x1008: 0x0a00_0000_4444_0000}}
	s := start(arch.ARM64, 0x400000, 0x1000)
	s.Start(0x400000, 1<<35-1)
	if o := Step(arch.ARM64, mustSet(t, arch.ARM64, "cfa=sp+0"), s, mem); o != OK || s.PC != 30000 || s.CFA != 0x1000 {
		t.Errorf("a leaf's return address is in x30: %v pc %d", o, s.PC)
	}
	s.Start(0x400000, 1<<35-1)
	if o := Step(arch.ARM64, mustSet(t, arch.ARM64, "cfa=sp+16  x29=c-16  ra=c-8  ra-signed"), s, mem); o != OK || s.PC != 0x4444_0000 {
		t.Errorf("a signed return address: %v pc %#x", o, s.PC)
	}
}

// TestArith pairs expressions with their values; DWARF 5, section 2.5.1.4.
func TestArith(t *testing.T) {
	for text, want := range map[string]int64{
		"DW_OP_const1s -7, DW_OP_lit2, DW_OP_div":                                               -3,
		"DW_OP_const1s -7, DW_OP_abs":                                                           7,
		"DW_OP_const1u 0xff, DW_OP_lit16, DW_OP_mod":                                            15,
		"DW_OP_const1s -1, DW_OP_lit1, DW_OP_shr":                                               0x7fff_ffff_ffff_ffff,
		"DW_OP_const1s -4, DW_OP_lit1, DW_OP_shra":                                              -2,
		"DW_OP_lit1, DW_OP_const1u 0x40, DW_OP_shl":                                             0,
		"DW_OP_const1s -1, DW_OP_lit1, DW_OP_lt":                                                1,
		"DW_OP_lit1, DW_OP_lit2, DW_OP_lit3, DW_OP_rot":                                         2, // 3 goes below 1 2
		"DW_OP_lit1, DW_OP_lit2, DW_OP_swap, DW_OP_minus":                                       1,
		"DW_OP_lit5, DW_OP_lit6, DW_OP_lit7, DW_OP_pick 0x2":                                    5,
		"DW_OP_lit5, DW_OP_lit6, DW_OP_over":                                                    5,
		"DW_OP_lit1, DW_OP_bra +1, DW_OP_lit9, DW_OP_lit4":                                      4,
		"DW_OP_lit9, DW_OP_lit0, DW_OP_bra +1, DW_OP_nop":                                       9,
		"DW_OP_lit10, DW_OP_lit1, DW_OP_minus, DW_OP_dup, DW_OP_bra -6, DW_OP_lit3, DW_OP_plus": 3,
		"DW_OP_const8u 0x1000, DW_OP_deref_size 0x2":                                            0x6677,
		"DW_OP_const8u 0x1006, DW_OP_deref_size 0x2":                                            0x0011,
		"DW_OP_lit6, DW_OP_not, DW_OP_neg":                                                      7,
		"DW_OP_lit6, DW_OP_lit3, DW_OP_xor, DW_OP_lit8, DW_OP_or, DW_OP_lit4, DW_OP_mul":        52,
	} {
		e, err := ParseExpr(text, arch.AMD64)
		if err != nil {
			t.Error(err)
			continue
		}
		stack := binary.LittleEndian.AppendUint64(nil, 0x0011_2233_4455_6677)
		v, o := eval(arch.AMD64, e, start(arch.AMD64, 0, 0), &Memory{Lo: 0x1000, Bytes: stack}, 0, false)
		if o != OK || int64(v) != want {
			t.Errorf("%s\n got %d %v\nwant %d", text, int64(v), o, want)
		}
	}
}

// FuzzStep feeds arbitrary expressions to the interpreter: it ends, and reads only through Memory.
func FuzzStep(f *testing.F) {
	f.Add("\x77\x08\x80\x00\x3f\x1a\x3b\x2a\x33\x24\x22", "\x76\x78")
	f.Add("\x2f\xfd\xff", "\x28\x00\x00")
	f.Fuzz(func(t *testing.T, cfa, rule string) {
		set := &Set{CFA: LowerCFA(cfa, arch.AMD64), RA: 16, Rules: []Rule{
			LowerRule(Rule{Of: 3, Kind: ValExpr, Expr: rule}), {Of: 16, Kind: Expr, Expr: rule}}}
		if k := set.CFA.Kind; k != CFAExpr && set.CFA.Expression(arch.AMD64) != cfa {
			t.Fatalf("LowerCFA(%q) forgets the expression", cfa)
		}
		s := start(arch.AMD64, 0x401000, 0x1000)
		Step(arch.AMD64, set, s, &Memory{Lo: 0x1000, Bytes: make([]byte, 64)})
	})
}
