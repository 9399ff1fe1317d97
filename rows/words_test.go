package rows

import (
	"testing"

	"github.com/unspool/unspool/arch"
)

// pieces is memory of two words in a row, of which nothing follows.
type pieces string

func (p pieces) Read8(addr uint64) (v uint64, ok bool) {
	if addr < 0x1000 || addr+8 > 0x1000+uint64(len(p)) {
		return 0, false
	}
	for i := range uint64(8) {
		v |= uint64(p[addr-0x1000+i]) << (8 * i)
	}
	return v, true
}

// TestWords: words have the size and the order of the machine, up to the last one of a piece; what an expression loads, too.
func TestWords(t *testing.T) {
	mem := pieces("\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c")
	for _, c := range []struct {
		m     *arch.Machine
		at    uint64
		want  uint64
		ok    bool
		size2 uint64 // what DW_OP_deref_size 2 gives there
	}{
		{arch.AMD64, 0x1000, 0x0807060504030201, true, 0x0201},
		{arch.RISCV64, 0x1004, 0x0c0b0a0908070605, true, 0x0605},
		{arch.S390X, 0x1000, 0x0102030405060708, true, 0x0102},
		{arch.ARM, 0x1000, 0x04030201, true, 0x0201},
		{arch.I386, 0x1008, 0x0c0b0a09, true, 0x0a09},
		{arch.I386, 0x100c, 0, false, 0},
		{arch.AMD64, 0x1008, 0, false, 0},
	} {
		m := &Memory{Next: WordsOf(c.m, mem)}
		if v, ok := m.Load(c.at); v != c.want && c.ok || ok != c.ok {
			t.Errorf("%s: Load(%#x) = %#x, %v, want %#x, %v", c.m.Name, c.at, v, ok, c.want, c.ok)
		}
		if !c.ok {
			continue
		}
		var s State
		e := string([]byte{DW_OP_const2u, byte(c.at), byte(c.at >> 8), DW_OP_deref_size, 2})
		if v, o := Eval(c.m, e, &s, m, 0, false); v != c.size2 || o != OK {
			t.Errorf("%s: deref_size at %#x = %#x, %v, want %#x", c.m.Name, c.at, v, o, c.size2)
		}
	}
	if v, o := Eval(arch.S390X, string([]byte{DW_OP_const2u, 0x0a, 0x10, DW_OP_deref_size, 2}), new(State), &Memory{Next: WordsOf(arch.S390X, mem)}, 0, false); v != 0x0b0c || o != OK {
		t.Errorf("the last half of the last word: %#x, %v", v, o)
	}
}

// TestArithmetic32: values of a machine with addresses of 32 bits have 32 bits.
func TestArithmetic32(t *testing.T) {
	for _, c := range []struct {
		expr []byte
		want uint64
	}{
		{[]byte{DW_OP_lit0, DW_OP_lit0 + 1, DW_OP_minus}, 0xffffffff},
		{[]byte{DW_OP_const1s, 0x80, DW_OP_neg}, 0x80},
		{[]byte{DW_OP_const1s, 0xff, DW_OP_lit0 + 4, DW_OP_shr}, 0x0fffffff},
		{[]byte{DW_OP_const1s, 0xff, DW_OP_lit0 + 4, DW_OP_shra}, 0xffffffff},
		{[]byte{DW_OP_const1s, 0xf0, DW_OP_lit0 + 4, DW_OP_div}, 0xfffffffc},
		{[]byte{DW_OP_const1s, 0xff, DW_OP_lit0, DW_OP_lt}, 1},
		{[]byte{DW_OP_const1s, 0xff, DW_OP_lit0 + 16, DW_OP_mod}, 15},
	} {
		if v, o := Eval(arch.ARM, string(c.expr), new(State), new(Memory), 0, false); v != c.want || o != OK {
			t.Errorf("% x = %#x, %v, want %#x", c.expr, v, o, c.want)
		}
	}
}
