package dwarf

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// TestInstructions pairs instructions with the rows that they make, by the definitions of DWARF 5, section 6.4.2,
// and of the extensions. They are an FDE's for [1000, 1100); the CIE's are in cie.
func TestInstructions(t *testing.T) {
	const usual = "0c0708 9001" // def_cfa rsp+8; offset ra c-8
	for _, c := range []struct {
		name  string
		cie   string
		insns string
		want  string // without the gap at 1100
	}{
		{"none", usual, "", "1000  cfa=rsp+8  ra=c-8"},
		{"nop", usual, "0000 0e10 000000", "1000  cfa=rsp+16  ra=c-8"},

		{"advance_loc", usual, "44 0e10", "1000  cfa=rsp+8  ra=c-8 | 1004  cfa=rsp+16  ra=c-8"},
		{"advance_loc 63", usual, "7f 0e10", "1000  cfa=rsp+8  ra=c-8 | 103f  cfa=rsp+16  ra=c-8"},
		{"advance_loc 0", usual, "40 0e10 40 0e18", "1000  cfa=rsp+24  ra=c-8"},
		{"advance_loc1", usual, "02f0 0e10", "1000  cfa=rsp+8  ra=c-8 | 10f0  cfa=rsp+16  ra=c-8"},
		{"advance_loc2", usual, "03f000 0e10", "1000  cfa=rsp+8  ra=c-8 | 10f0  cfa=rsp+16  ra=c-8"},
		{"advance_loc4", usual, "04f0000000 0e10", "1000  cfa=rsp+8  ra=c-8 | 10f0  cfa=rsp+16  ra=c-8"},
		{"MIPS_advance_loc8", usual, "1df000000000000000 0e10", "1000  cfa=rsp+8  ra=c-8 | 10f0  cfa=rsp+16  ra=c-8"},
		{"set_loc", usual, "01f010000000000000 0e10", "1000  cfa=rsp+8  ra=c-8 | 10f0  cfa=rsp+16  ra=c-8"},
		{"set_loc to where it is", usual, "010010000000000000 0e10", "1000  cfa=rsp+16  ra=c-8"},
		{"several advances", usual, "41 0210 030100 42 0e10", "1000  cfa=rsp+8  ra=c-8 | 1014  cfa=rsp+16  ra=c-8"},
		{"an advance at the end", usual, "0e10 41", "1000  cfa=rsp+16  ra=c-8"},
		{"rows at and beyond the end do not count", usual, "02ff 0e10 41 0e18 42 0e20", "1000  cfa=rsp+8  ra=c-8 | 10ff  cfa=rsp+16  ra=c-8"},
		{"a row that changes nothing", usual, "41 0e08 41 0e10", "1000  cfa=rsp+8  ra=c-8 | 1002  cfa=rsp+16  ra=c-8"},

		{"def_cfa", usual, "0c0610", "1000  cfa=rbp+16  ra=c-8"},
		{"def_cfa, long numbers", usual, "0c8b0090800100", "1000  cfa=r11+16400  ra=c-8"},
		{"def_cfa_sf", usual, "12067e", "1000  cfa=rbp+16  ra=c-8"},
		{"def_cfa_register", usual, "0d06", "1000  cfa=rbp+8  ra=c-8"},
		{"def_cfa_offset", usual, "0eb08002", "1000  cfa=rsp+32816  ra=c-8"},
		{"def_cfa_offset_sf", usual, "137e", "1000  cfa=rsp+16  ra=c-8"},
		{"def_cfa_offset_sf, below", usual, "1302", "1000  cfa=rsp-16  ra=c-8"},
		{"def_cfa_expression", usual, "0f0376 7806", "1000  cfa=DW_OP_breg6 RBP-8, DW_OP_deref  ra=c-8"},
		{"def_cfa_expression, long", usual, "0f05 7708 06 2308", "1000  cfa=DW_OP_breg7 RSP+8, DW_OP_deref, DW_OP_plus_uconst 0x8  ra=c-8"},
		{"def_cfa_expression, of a PLT", usual, "0f0b 7708 8000 3f1a3b2a332422",
			"1000  cfa=DW_OP_breg7 RSP+8, DW_OP_breg16 RIP+0, DW_OP_lit15, DW_OP_and, DW_OP_lit11, DW_OP_ge, DW_OP_lit3, DW_OP_shl, DW_OP_plus  ra=c-8"},
		{"LLVM_def_aspace_cfa", usual, "30061000", "1000  cfa=rbp+16  ra=c-8"},
		{"LLVM_def_aspace_cfa_sf", usual, "31067e05", "1000  cfa=rbp+16  ra=c-8"},

		{"offset", usual, "8602", "1000  cfa=rsp+8  rbp=c-16  ra=c-8"},
		{"offset, a long number", usual, "86808001", "1000  cfa=rsp+8  rbp=c-131072  ra=c-8"},
		{"offset_extended", usual, "050602", "1000  cfa=rsp+8  rbp=c-16  ra=c-8"},
		{"offset_extended of a vector register", usual, "052502", "1000  cfa=rsp+8  ra=c-8  st4=c-16"},
		{"offset_extended_sf", usual, "11067e", "1000  cfa=rsp+8  rbp=c+16  ra=c-8"},
		{"GNU_negative_offset_extended", usual, "2f0602", "1000  cfa=rsp+8  rbp=c+16  ra=c-8"},
		{"val_offset", usual, "140602", "1000  cfa=rsp+8  rbp=v-16  ra=c-8"},
		{"val_offset_sf", usual, "15067e", "1000  cfa=rsp+8  rbp=v+16  ra=c-8"},
		{"register", usual, "090306", "1000  cfa=rsp+8  rbx=rbp  ra=c-8"},
		{"register for the return address", usual, "091005", "1000  cfa=rsp+8  ra=rdi"},
		{"expression", usual, "100602 7678", "1000  cfa=rsp+8  rbp=[DW_OP_breg6 RBP-8]  ra=c-8"},
		{"expression, padded", usual, "100603 76f87f", "1000  cfa=rsp+8  rbp=[DW_OP_breg6 RBP-8]  ra=c-8"},
		{"expression, long", usual, "100608 381c0dc0ffffff1a", "1000  cfa=rsp+8  rbp=[DW_OP_lit8, DW_OP_minus, DW_OP_const4s -64, DW_OP_and]  ra=c-8"},
		{"val_expression", usual, "160602 7678", "1000  cfa=rsp+8  rbp=DW_OP_breg6 RBP-8  ra=c-8"},
		{"val_expression, a register's location", usual, "160601 53", "1000  cfa=rsp+8  rbp=rbx  ra=c-8"},
		{"undefined", usual, "0710", "1000  cfa=rsp+8  ra=u"},
		{"same_value", usual, "8602 0806", "1000  cfa=rsp+8  rbp=s  ra=c-8"},
		{"GNU_args_size", usual, "2e8001 0e10", "1000  cfa=rsp+16  ra=c-8"},

		{"restore", usual + "8602", "44 0806 44 c6", "1000  cfa=rsp+8  rbp=c-16  ra=c-8 | 1004  cfa=rsp+8  rbp=s  ra=c-8 | 1008  cfa=rsp+8  rbp=c-16  ra=c-8"},
		{"restore_extended", usual + "8602", "44 0806 44 0606", "1000  cfa=rsp+8  rbp=c-16  ra=c-8 | 1004  cfa=rsp+8  rbp=s  ra=c-8 | 1008  cfa=rsp+8  rbp=c-16  ra=c-8"},
		{"restore to no rule", usual, "44 8602 44 c6", "1000  cfa=rsp+8  ra=c-8 | 1004  cfa=rsp+8  rbp=c-16  ra=c-8 | 1008  cfa=rsp+8  ra=c-8"},
		{"restore of what has no rule", usual, "c3 44 0e10", "1000  cfa=rsp+8  ra=c-8 | 1004  cfa=rsp+16  ra=c-8"},
		{"pushes", usual, "41 0e10 8602 42 0e18 8303 44 0e10 c3 41 0e08 c6",
			"1000  cfa=rsp+8  ra=c-8 | 1001  cfa=rsp+16  rbp=c-16  ra=c-8 | 1003  cfa=rsp+24  rbx=c-24  rbp=c-16  ra=c-8 | 1007  cfa=rsp+16  rbp=c-16  ra=c-8 | 1008  cfa=rsp+8  ra=c-8"},
		{"a push to another place, and of another register", usual, "41 0e10 8602 42 0e18 8602 42 0e10 8302",
			"1000  cfa=rsp+8  ra=c-8 | 1001  cfa=rsp+16  rbp=c-16  ra=c-8 | 1003  cfa=rsp+24  rbp=c-16  ra=c-8 | 1005  cfa=rsp+16  rbx=c-16  rbp=c-16  ra=c-8"},
		{"a push after which offsets are wider", usual, "41 0e10 868001 41 0e8001 8602", "1000  cfa=rsp+8  ra=c-8 | 1001  cfa=rsp+16  rbp=c-1024  ra=c-8 | 1002  cfa=rsp+128  rbp=c-16  ra=c-8"},
		{"a push from one state to two places", usual, "0a 41 0e10 8602 41 0b 41 0e10 8603",
			"1000  cfa=rsp+8  ra=c-8 | 1001  cfa=rsp+16  rbp=c-16  ra=c-8 | 1002  cfa=rsp+8  ra=c-8 | 1003  cfa=rsp+16  rbp=c-24  ra=c-8"},
		{"a push in the CIE", usual + "0e108602", "41 0e18 8303", "1000  cfa=rsp+16  rbp=c-16  ra=c-8 | 1001  cfa=rsp+24  rbx=c-24  rbp=c-16  ra=c-8"},
		{"remember and restore, with the CFA", usual, "0a 44 0c0610 8602 44 0b", "1000  cfa=rsp+8  ra=c-8 | 1004  cfa=rbp+16  rbp=c-16  ra=c-8 | 1008  cfa=rsp+8  ra=c-8"},
		{"a stack of them", usual, "0a 41 0e10 0a 41 0e18 0a 41 0e20 41 0b 41 0b 41 0b",
			"1000  cfa=rsp+8  ra=c-8 | 1001  cfa=rsp+16  ra=c-8 | 1002  cfa=rsp+24  ra=c-8 | 1003  cfa=rsp+32  ra=c-8 | 1004  cfa=rsp+24  ra=c-8 | 1005  cfa=rsp+16  ra=c-8 | 1006  cfa=rsp+8  ra=c-8"},
		{"remember without restore", usual, "0a 0a 0e10", "1000  cfa=rsp+16  ra=c-8"},

		{"register and offset again, behind an expression", usual, "0e38 44 0f027708 44 0d07", // libgcrypt
			"1000  cfa=rsp+56  ra=c-8 | 1004  cfa=DW_OP_breg7 RSP+8  ra=c-8 | 1008  cfa=rsp+56  ra=c-8"},
		{"the same, behind two of them", usual, "0e38 0f027708 44 0f027708 0f027710 44 0d06", "1000  cfa=DW_OP_breg7 RSP+8  ra=c-8 | 1004  cfa=DW_OP_breg7 RSP+16  ra=c-8 | 1008  cfa=rbp+56  ra=c-8"},
		{"the same, remembered", usual, "0e38 0f027708 0a 0c0610 44 0b 44 0d06", "1000  cfa=rbp+16  ra=c-8 | 1004  cfa=DW_OP_breg7 RSP+8  ra=c-8 | 1008  cfa=rbp+56  ra=c-8"},
		{"the same, from the CIE", usual + "0f027708", "0d06", "1000  cfa=rbp+8  ra=c-8"},

		{"no CFA", "07 10", "", "1000  cfa=none  ra=u"},
		{"nothing at all", "00", "", ""},
		{"nothing until later", "00", "44 0c0708", "1004  cfa=rsp+8"},
	} {
		// On two paths: the second FDE finds what the first has added to the automaton.
		l := &listing{}
		cie := l.cie(cieHead{}, unhex(t, c.cie)...)
		l.fde(cie, 0x1000, 0x100, unhex(t, c.insns)...)
		want := ""
		if c.want != "" {
			want = c.want + " | 1100  gap"
		}
		if got := built(t, l.frames()); got != want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, want)
		}
		if strings.Contains(c.insns, "01f010") || strings.Contains(c.insns, "010010") || want == "" {
			continue // set_loc is not relative
		}
		l.fde(cie, 0x2000, 0x100, unhex(t, c.insns)...)
		x, ds := l.frames().Build(Both)
		sound(t, ds)
		for i, r := range x.Rows {
			if r.Lo < 0x1100 && x.At(r.Lo+0x1000) != x.At(r.Lo) {
				t.Errorf("%s: row %d: the second FDE has %s", c.name, i, x.At(r.Lo+0x1000).Text(arch.AMD64))
			}
		}
	}
}

// TestMachines is about the instructions that not every machine has.
func TestMachines(t *testing.T) {
	for _, c := range []struct {
		name  string
		mach  *arch.Machine
		head  cieHead
		insns string
		want  string
	}{
		{"negate_ra_state", arch.ARM64, cieHead{caf: []byte{4}, ra: []byte{30}}, "2d 41 2d 41 2d",
			"1000  cfa=sp+0  ra-signed | 1004  cfa=sp+0 | 1008  cfa=sp+0  ra-signed | 1100  gap"},
		{"negate_ra_state, remembered", arch.ARM64, cieHead{caf: []byte{4}, ra: []byte{30}}, "2d 0a 41 2d 41 0b",
			"1000  cfa=sp+0  ra-signed | 1004  cfa=sp+0 | 1008  cfa=sp+0  ra-signed | 1100  gap"},
		{"negate_ra_state_with_pc", arch.ARM64, cieHead{caf: []byte{4}, ra: []byte{30}}, "2c 41 2c",
			"1000  cfa=sp+0  ra-signed  ra-signed-pc | 1004  cfa=sp+0 | 1100  gap"},
		{"set_ra_state", arch.ARM64, cieHead{caf: []byte{4}, ra: []byte{30}}, "2b0100 41 2b027c 41 2b0000",
			"1000  cfa=sp+0  ra-signed | 1004  cfa=sp+0  ra-signed  ra-signed-pc | 1008  cfa=sp+0 | 1100  gap"},
		{"code alignment factor", arch.ARM64, cieHead{caf: []byte{4}, ra: []byte{30}}, "42 0e10 0203 0e20 030400 0e30 0405000000 0e40 1d0100000000000000 0e50",
			"1000  cfa=sp+0 | 1008  cfa=sp+16 | 1014  cfa=sp+32 | 1024  cfa=sp+48 | 1038  cfa=sp+64 | 103c  cfa=sp+80 | 1100  gap"},
	} {
		l := &listing{mach: c.mach}
		l.fde(l.cie(c.head, DW_CFA_def_cfa, 31, 0), 0x1000, 0x100, unhex(t, c.insns)...)
		if got := built(t, l.frames()); got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
		}
	}

	// SPARC's register window: %l0 to %i7 lie at the start of the frame, at CFA+0 and up.
	for _, c := range []struct {
		elf  uint16
		word int
	}{{emSPARC, 4}, {emSPARC32PLUS, 4}, {emSPARCV9, 8}} {
		l := &listing{mach: arch.ByELF(c.elf), word: c.word, big: true}
		l.fde(l.cie(cieHead{ra: []byte{15}}, DW_CFA_def_cfa, 14, 0), 0x1000, 0x100, DW_CFA_def_cfa_register, 30, DW_CFA_GNU_window_save, DW_CFA_register, 15, 31)
		x, ds := l.frames().Build(Both)
		sound(t, ds)
		set := x.At(0x1000)
		if len(set.Rules) != 17 {
			t.Fatalf("machine %d: %s", c.elf, set.Text(l.mach))
		}
		for i, r := range set.Rules[1:] {
			if want := (rows.Rule{Of: arch.Reg(16 + i), Kind: rows.Offset, Off: int64(i * c.word)}); r != want {
				t.Errorf("machine %d: got %+v, want %+v", c.elf, r, want)
			}
		}
	}
}

// TestBadInstructions pairs instructions with the offset of the damage among them and its cause. The FDE is lost
// in whole, and nothing else is.
func TestBadInstructions(t *testing.T) {
	const usual = "0c0708 9001"
	for _, c := range []struct {
		name  string
		cie   string
		insns string
		at    int // offset of the damage in the FDE's instructions, or, below zero, -1-offset in the CIE's
		cause error
		text  string // in the message
	}{
		{"unknown", usual, "44 0e10 17", 3, ErrUnsupported, "instruction 0x17"},
		{"of users", usual, "44 3f", 1, ErrUnsupported, "instruction 0x3f"},
		{"restore_state on an empty stack", usual, "0a 0b 0b", 2, ErrMalformed, "DW_CFA_restore_state: malformed: empty stack"},
		{"no operand", usual, "44 0e", 2, ErrTruncated, "DW_CFA_def_cfa_offset"},
		{"half an operand", usual, "86 80", 1, ErrTruncated, "DW_CFA_offset"},
		{"half a number", usual, "04 0000", 1, ErrTruncated, "DW_CFA_advance_loc4"},
		{"half an advance", usual, "03 00", 1, ErrTruncated, "DW_CFA_advance_loc2"},
		{"no delta", usual, "02", 1, ErrTruncated, "DW_CFA_advance_loc1"},
		{"half an address", usual, "01 00000000000000", 1, ErrTruncated, "DW_CFA_set_loc"},
		{"half an expression", usual, "0f 03 7708", 2, ErrTruncated, "DW_CFA_def_cfa_expression: truncated expression"},
		{"expression of all the memory there is", usual, "10 06 ffffffffffffffffff01 00", 12, ErrTruncated, "expression"},
		{"backwards", usual, "44 01 0110000000000000", 1, ErrMalformed, "back to 0x1001 from 0x1004"},
		{"beyond the address space", usual, "1df0ffffffffffffff", 0, ErrMalformed, "advance beyond the address space"},
		{"LEB128 of more than 64 bits", usual, "0e 8080808080808080808001", 1, ErrMalformed, "64 bits"},
		{"negative unsigned number", usual, "0e ffffffffffffffffff01", 0, ErrMalformed, "too large"},
		{"product of more than 64 bits", usual, "86 ffffffffffffffff7f", 0, ErrMalformed, "too large"},
		{"register 65536", usual, "07 808004", 0, ErrUnsupported, "register 65536"},
		{"def_cfa_offset without a CFA", "00", "0e10", 0, ErrMalformed, "the CFA is no register and offset"},
		{"def_cfa_register behind an expression only", "0f027708", "0d06", 0, ErrMalformed, "the CFA is no register and offset"},
		{"def_cfa_offset behind an expression only", "0f027708", "0e10", 0, ErrMalformed, "the CFA is no register and offset"},
		{"window_save on x86-64", usual, "2d", 0, ErrUnsupported, "on machine x86_64"},
		{"set_ra_state 3", usual, "2b0300", 0, ErrMalformed, "state 3"},
		{"restore in a CIE", usual + "c6", "", -1 - 5, ErrMalformed, "in a CIE"},
		{"restore_extended in a CIE", usual + "0606", "", -1 - 5, ErrMalformed, "in a CIE"},
		{"restore_state in a CIE", usual + "0b", "", -1 - 5, ErrMalformed, "empty stack"},
		{"unknown in a CIE", usual + "18", "", -1 - 5, ErrUnsupported, "CIE: unsupported: instruction 0x18"},
	} {
		l := &listing{}
		l.fde(l.cie(cieHead{}), 0x500, 0x10, DW_CFA_advance_loc+1, DW_CFA_def_cfa_offset, 16)
		cie := l.cie(cieHead{}, unhex(t, c.cie)...)
		fde := l.fde(cie, 0x1000, 0x100, unhex(t, c.insns)...)
		at := fde + 4 + 4 + 16 + c.at
		if c.at < 0 {
			at = cie + 4 + 4 + len(cieHead{}.bytes()) - 1 - c.at
		}
		l.fde(0, 0x2000, 0x10)
		x, ds := l.frames().Build(Both)
		if got, want := lines(t, x), "500  cfa=rsp+8  ra=c-8 | 501  cfa=rsp+16  ra=c-8 | 510  gap | 2000  cfa=rsp+8  ra=c-8 | 2010  gap"; got != want {
			t.Errorf("%s: the others\n got %s\nwant %s", c.name, got, want)
		}
		if len(ds) != 1 {
			t.Errorf("%s: damages %v, want one", c.name, ds)
			continue
		}
		d := ds[0]
		if d.Section != ".debug_frame" || d.Off != uint64(at) || d.Entry != uint64(fde) || !d.IsFDE || d.PC != 0x1000 ||
			!errors.Is(d, c.cause) || !strings.Contains(d.Error(), c.text) {
			t.Errorf("%s: got %v (entry %#x), want .debug_frame+%#x: FDE 0x1000 (entry %#x): %v … %q", c.name, d, d.Entry, at, fde, c.cause, c.text)
		}
		if _, err := l.frames().Lookup(0x1010); !errors.Is(err, c.cause) {
			t.Errorf("%s: Lookup gives %v", c.name, err)
		}
	}
}

// TestLostCFA: an instruction that changes the offset of an expression is damage. Rows before it hold, and those behind the CFA's next definition.
func TestLostCFA(t *testing.T) {
	const expr = "0f027708" // DW_OP_breg7 +8
	for _, c := range []struct{ insns, want string }{
		{"41" + expr + "41 0e20 41 0e00", "1000  cfa=rsp+8  ra=c-8 | 1001  cfa=DW_OP_breg7 RSP+8  ra=c-8 | 1002  cfa=none  ra=c-8 | 1010  gap"},
		{"41" + expr + "41 0e20 41 0d06", "1000  cfa=rsp+8  ra=c-8 | 1001  cfa=DW_OP_breg7 RSP+8  ra=c-8 | 1002  cfa=none  ra=c-8 | 1003  cfa=rbp+32  ra=c-8 | 1010  gap"},
		{"41" + expr + "0a 41 0e20 41 0b", "1000  cfa=rsp+8  ra=c-8 | 1001  cfa=DW_OP_breg7 RSP+8  ra=c-8 | 1002  cfa=none  ra=c-8 | 1003  cfa=DW_OP_breg7 RSP+8  ra=c-8 | 1010  gap"},
		{"41" + expr + "41 0e20 8602 41 0c0710", "1000  cfa=rsp+8  ra=c-8 | 1001  cfa=DW_OP_breg7 RSP+8  ra=c-8 | 1002  cfa=none  rbp=c-16  ra=c-8 | 1003  cfa=rsp+16  rbp=c-16  ra=c-8 | 1010  gap"},
		{"41" + expr + "41 137e 41" + expr, "1000  cfa=rsp+8  ra=c-8 | 1001  cfa=DW_OP_breg7 RSP+8  ra=c-8 | 1002  cfa=none  ra=c-8 | 1003  cfa=DW_OP_breg7 RSP+8  ra=c-8 | 1010  gap"},
	} {
		l := &listing{}
		cie := l.cie(cieHead{})
		for range 2 { // the second time, all edges are known
			l.fde(cie, 0x1000, 0x10, unhex(t, c.insns)...)
		}
		l.fde(cie, 0x2000, 0x10)
		x, ds := l.frames().Build(Both)
		if got := lines(t, x); got != c.want+" | 2000  cfa=rsp+8  ra=c-8 | 2010  gap" {
			t.Errorf("%s:\n got %s\nwant %s", c.insns, got, c.want)
		}
		if len(ds) != 2 || !errors.Is(ds[0], ErrMalformed) || !strings.Contains(ds[0].Error(), ": DW_CFA_def_cfa_offset") || ds[1].Off <= ds[0].Off {
			t.Errorf("%s: damages %v, want two", c.insns, ds)
		}
		if x, err := l.frames().Lookup(0x1001); err != nil || lines(t, x) != c.want {
			t.Errorf("%s: Lookup gives %v", c.insns, err)
		}
	}
}

// TestLostCFAOfGCC: readelf goes on with the expression where GCC's code for SVE has no CFA here. All other rows are equal.
func TestLostCFAOfGCC(t *testing.T) {
	const gcc = "aarch64-linux-gnu-gcc"
	oracle.Need(t, gcc, "readelf")
	src, obj := filepath.Join(t.TempDir(), "sve.c"), filepath.Join(t.TempDir(), "sve.so")
	if err := os.WriteFile(src, []byte(`
#include <arm_sve.h>
extern void other(svfloat64_t *);
double twice(double *a, long n)
{
	svfloat64_t v = svld1_f64(svptrue_b64(), a), w = svadd_f64_x(svptrue_b64(), v, v);
	if (n > 5) {
		other(&v);
		return n;
	}
	other(&w);
	other(&v);
	return svaddv_f64(svptrue_b64(), w) + n;
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, gcc, "-O2", "-march=armv8.2-a+sve", "-shared", "-fPIC", "-nostdlib", "-o", obj, src)
	img, err := module.Open(obj)
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(img)
	if err != nil {
		t.Fatal(err)
	}
	table, damage := f.Build(EHFrame)
	j, err := askReadelf(obj, EHFrame)
	if err != nil {
		t.Fatal(err)
	}
	n, ds := j.compare(table, 100)
	lost := 0
	for _, d := range ds {
		if d.hi == 0 { // the number of bytes with rows, which is another
			continue
		}
		if rules, ok := strings.CutPrefix(strings.Replace(d.got, "nothing", "none", 1), "none"); !ok || d.want != "exp"+rules {
			t.Errorf("rows of [%#x, %#x)\n got %s\nwant %s", d.lo, d.hi, d.got, d.want)
		}
		lost++
	}
	t.Logf("%d rows, %d of them without a CFA; %v", n, lost, damage)
	if n < 10 || (lost > 0) != (len(damage) == 1) {
		t.Errorf("%d rows, %d without a CFA, damages %v", n, lost, damage)
	}
}

// TestFarAdvance: an advance beyond the address space, of the usual kinds.
func TestFarAdvance(t *testing.T) {
	for _, insns := range []string{"7f", "02ff", "03ffff"} {
		l := &listing{}
		b := unhex(t, strings.Repeat("02ff", 255)+insns)
		fde := l.fde(l.cie(cieHead{}), ^uint64(0)-255*255, 16, b...)
		x, ds := l.frames().Build(Both)
		if at := uint64(fde + 24 + 2*255); len(ds) != 1 || ds[0].Off != at || len(x.Rows) != 0 {
			t.Errorf("%s: damages %v, want one at %#x", insns, ds, at)
		}
	}
}

// TestInstructionText holds the names and operands that Entry.Instructions gives.
func TestInstructionText(t *testing.T) {
	l := &listing{}
	l.fde(l.cie(cieHead{caf: []byte{4}}), 0x1000, 0x100, unhex(t, "44 0203 01f010000000000000 8602 c6 0f0376 7806 100602 7678 090306 0a 0b 2e10 137e 00")...)
	var got []string
	sound(t, l.frames().Entries(Both, func(e Entry) bool {
		if !e.IsFDE {
			return true
		}
		err := e.Instructions(func(i *Instruction) bool {
			got = append(got, i.Text(arch.AMD64))
			return true
		})
		if err != nil {
			t.Error(err)
		}
		return true
	}))
	want := []string{"DW_CFA_advance_loc: 16", "DW_CFA_advance_loc1: 12", "DW_CFA_set_loc: 0x10f0", "DW_CFA_offset: rbp -16", "DW_CFA_restore: rbp",
		"DW_CFA_def_cfa_expression: DW_OP_breg6 RBP-8, DW_OP_deref", "DW_CFA_expression: rbp DW_OP_breg6 RBP-8", "DW_CFA_register: rbx rbp",
		"DW_CFA_remember_state", "DW_CFA_restore_state", "DW_CFA_GNU_args_size: +16", "DW_CFA_def_cfa_offset_sf: +16", "DW_CFA_nop"}
	if g, w := strings.Join(got, "\n"), strings.Join(want, "\n"); g != w {
		t.Errorf("got %s\nwant %s", g, w)
	}
	for op, want := range map[byte]string{0x17: "DW_CFA_0x17", 0x86: "DW_CFA_offset", 0x2d: "DW_CFA_GNU_window_save"} {
		if got := OpName(op, arch.AMD64); got != want {
			t.Errorf("OpName(%#x) = %s, want %s", op, got, want)
		}
	}
	if got := OpName(0x2d, arch.ARM64); got != "DW_CFA_AARCH64_negate_ra_state" {
		t.Errorf("OpName(0x2d) = %s on AArch64", got)
	}
}

// TestForeignExpressions: numbers in expressions become little-endian, and addresses constants of their size.
func TestForeignExpressions(t *testing.T) {
	for _, c := range []struct {
		big       bool
		word      int
		expr, out string
	}{
		{true, 8, "0a1234 0b fffe 28 0001 96", "DW_OP_const2u 0x1234, DW_OP_const2s -2, DW_OP_bra +1, DW_OP_nop"},
		{true, 8, "0c12345678 0e0102030405060708 03 0000000000001000", "DW_OP_const4u 0x12345678, DW_OP_const8u 0x102030405060708, DW_OP_addr 0x1000"},
		{true, 4, "03 00001000 77 08 10 8001", "DW_OP_const4u 0x1000, DW_OP_breg7 R7+8, DW_OP_constu 0x80"},
		{false, 4, "03 00100000 06", "DW_OP_const4u 0x1000, DW_OP_deref"},
		{false, 8, "03 0010000000000000 06", "DW_OP_addr 0x1000, DW_OP_deref"},
		{true, 8, "0a12", "<truncated operation at 0x0>"},
		{true, 4, "0a0102 e0 0a0102", "DW_OP_const2u 0x201, <operation 0xe0 is not allowed in call frame information at 0x3>"},
	} {
		l := &listing{big: c.big, word: c.word, mach: arch.ByELF(arch.EM_MIPS)}
		e := unhex(t, c.expr)
		l.fde(l.cie(cieHead{}), 0x1000, 0x100, append([]byte{DW_CFA_def_cfa_expression, byte(len(e))}, e...)...)
		x, ds := l.frames().Build(Both)
		sound(t, ds)
		if got := x.At(0x1000).CFACell(l.mach); got != c.out {
			t.Errorf("%s\n got %s\nwant %s", c.expr, got, c.out)
		}
	}
}
