package sframe

import (
	"fmt"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/sframe"
	"github.com/unspool/unspool/rows"
)

// byHand are tables with each kind of row, and what a section of each version says: rows, and reasons why some are left out.
var byHand = []struct{ table, two, three string }{
	{`machine x86_64
1000  cfa=rsp+8  ra=c-8
1001  cfa=rsp+16  rbp=c-16  ra=c-8
1004  cfa=rbp+16  rbx=c-24  rbp=c-16  ra=c-8
1005  cfa=rbp+16  rbx=s  rbp=c-16  ra=c-8
1010  cfa=rsp+100000  rbp=c-200  ra=c-8
1020  gap
`, "1000  cfa=rsp+8  rbp=s  ra=c-8  partial | 1001  cfa=rsp+16  rbp=c-16  ra=c-8  partial | 1004  cfa=rbp+16  rbp=c-16  ra=c-8  partial | 1010  cfa=rsp+100000  rbp=c-200  ra=c-8  partial | 1020  gap", "="},
	{`machine x86_64
1000  cfa=rsp+8  ra=c-8
1001  cfa=r10+0  ra=c-8
1002  cfa=DW_OP_breg6 RBP-8, DW_OP_deref  rbp=[DW_OP_breg6 RBP+0]  ra=c-8
1003  cfa=rsp+8  rbp=rbx  ra=c-8
1004  cfa=rsp+8  rbp=s  ra=rdx
1005  cfa=rsp+8  rbp=rbp  ra=c-8
1010  gap
`, "1000  cfa=rsp+8  rbp=s  ra=c-8  partial | 1001  gap | 1005  cfa=rsp+8  rbp=s  ra=c-8  partial | 1010  gap; 2 rows, 2 bytes: a CFA by another register, or from memory; 1 rows, 1 bytes: a frame pointer in another place; 1 rows, 1 bytes: a return address in another place",
		"1000  cfa=rsp+8  rbp=s  ra=c-8  partial | 1001  cfa=r10+0  rbp=s  ra=c-8  partial | 1002  cfa=DW_OP_breg6 RBP-8, DW_OP_deref  rbp=[DW_OP_breg6 RBP+0]  ra=c-8  partial | " +
			"1003  cfa=rsp+8  rbp=rbx  ra=c-8  partial | 1004  cfa=rsp+8  rbp=s  ra=rdx  partial | 1005  cfa=rsp+8  rbp=s  ra=c-8  partial | 1010  gap"},
	{`machine x86_64
1000  cfa=rsp+8  ra=c-8  signal
1001  cfa=rsp+8  ra=u
1002  cfa=rsp+8  ra=c-8  sync-only
1003  cfa=rsp+8  rbp=u  ra=c-8
1004  cfa=rsp+8  rsp=c-16  ra=c-8
1005  cfa=rsp+8
1006  cfa=DW_OP_breg7 RSP+8, DW_OP_dup  ra=c-8
1007  cfa=rsp+9999999999  ra=c-8
1008  gap
`, "1001  cfa=none  ra=u  partial | 1002  gap; 1 rows, 1 bytes: a lost frame pointer; 1 rows, 1 bytes: a rule for the stack pointer; 1 rows, 1 bytes: a signal's frame; " +
		"1 rows, 1 bytes: an expression; 1 rows, 1 bytes: an offset of more than 32 bits; 1 rows, 1 bytes: no return address; 1 rows, 1 bytes: right at calls only",
		"1000  cfa=rsp+8  rbp=s  ra=c-8  signal  partial | 1001  cfa=none  ra=u  partial | 1002  gap; 1 rows, 1 bytes: a lost frame pointer; 1 rows, 1 bytes: a rule for the stack pointer; " +
			"1 rows, 1 bytes: an expression; 1 rows, 1 bytes: an offset of more than 32 bits; 1 rows, 1 bytes: no return address; 1 rows, 1 bytes: right at calls only"},
	{`machine x86_64
1000  cfa=rsp+16  ra=c-8
1010  cfa=DW_OP_breg7 RSP+8, DW_OP_breg16 RIP+0, DW_OP_lit15, DW_OP_and, DW_OP_lit11, DW_OP_ge, DW_OP_lit3, DW_OP_shl, DW_OP_plus  ra=c-8
1050  cfa=rsp+16  ra=c-8
1061  cfa=DW_OP_breg7 RSP+8, DW_OP_breg16 RIP+0, DW_OP_lit15, DW_OP_and, DW_OP_lit11, DW_OP_ge, DW_OP_lit3, DW_OP_shl, DW_OP_plus  ra=c-8
1090  gap
`, "1000  cfa=rsp+16  rbp=s  ra=c-8  partial | 1010  cfa=DW_OP_breg7 RSP+8, DW_OP_breg16 RIP+0, DW_OP_lit15, DW_OP_and, DW_OP_lit11, DW_OP_ge, DW_OP_lit3, DW_OP_shl, DW_OP_plus  rbp=s  ra=c-8  partial | " +
		"1050  cfa=rsp+16  rbp=s  ra=c-8  partial | 1061  gap; 1 rows, 47 bytes: a linkage table that is not aligned", "="},
	{`machine aarch64
1000  cfa=sp+0  b-key  ra-signed
1004  cfa=sp+32  x29=c-32  ra=c-24  b-key  ra-signed
1008  cfa=x29+32  x29=c-32  ra=c-24
100c  cfa=sp+16  x29=c-16
1010  cfa=x8+0  ra=x9
1014  cfa=sp+0  ra=s  ra-signed-pc
1018  gap
21018  cfa=sp+0
51018  cfa=sp+16
51020  gap
`, "1000  cfa=sp+0  x29=s  ra=s  ra-signed  b-key  partial | 1004  cfa=sp+32  x29=c-32  ra=c-24  ra-signed  b-key  partial | 1008  cfa=x29+32  x29=c-32  ra=c-24  partial | 100c  gap | " +
		"21018  cfa=sp+0  x29=s  ra=s  partial | 51018  cfa=sp+16  x29=s  ra=s  partial | 51020  gap; " +
		"1 rows, 4 bytes: a CFA by another register, or from memory; 1 rows, 4 bytes: a frame pointer saved without the return address; 1 rows, 4 bytes: a return address signed with the program counter",
		"1000  cfa=sp+0  x29=s  ra=s  ra-signed  b-key  partial | 1004  cfa=sp+32  x29=c-32  ra=c-24  ra-signed  b-key  partial | 1008  cfa=x29+32  x29=c-32  ra=c-24  partial | " +
			"100c  cfa=sp+16  x29=c-16  ra=s  partial | 1010  cfa=x8+0  x29=s  ra=x9  partial | 1014  gap | " +
			"21018  cfa=sp+0  x29=s  ra=s  partial | 51018  cfa=sp+16  x29=s  ra=s  partial | 51020  gap; 1 rows, 4 bytes: a return address signed with the program counter"},
}

// TestByHand compares what sections say with tables by hand.
func TestByHand(t *testing.T) {
	for i, c := range byHand {
		ref, err := rows.ParseText(strings.NewReader(c.table))
		if err != nil {
			t.Fatal(err)
		}
		if c.three == "=" {
			c.three = c.two
		}
		for version, want := range map[int]string{2: c.two, 3: c.three} {
			s, err := Emit(ref, version, 0x100000, nil)
			if err != nil {
				t.Fatal(err)
			}
			check(t, fmt.Sprintf("table %d, version %d", i, version), ref, s, version)
			x, err := sframe.New(s.Bytes, s.Addr, ref.Machine)
			if err != nil {
				t.Fatal(err)
			}
			tab, _ := x.Rows()
			var w strings.Builder
			if err := tab.WriteText(&w); err != nil {
				t.Fatal(err)
			}
			_, got, _ := strings.Cut(strings.TrimSpace(w.String()), "\n")
			got = strings.ReplaceAll(got, "\n", " | ")
			for _, l := range s.Left {
				got += fmt.Sprintf("; %d rows, %d bytes: %s", l.Rows, l.Bytes, l.Reason)
			}
			if got != want {
				t.Errorf("table %d, version %d\n got %s\nwant %s", i, version, got, want)
			}
		}
	}
	if s, err := Emit(rows.Build(rows.NewBuilder(arch.ByELF(arch.EM_S390))), 3, 0, nil); err == nil {
		t.Errorf("Emit takes s390x: %d functions, bytes %.64x; want an error", s.Functions, s.Bytes)
	}
}

// TestBytes compares the bytes of a section of each version with the specification's, by hand.
func TestBytes(t *testing.T) {
	ref, err := rows.ParseText(strings.NewReader("machine x86_64\n1000  cfa=rsp+8  ra=c-8\n1001  cfa=rsp+16  rbp=c-16  ra=c-8\n1010  gap\n"))
	if err != nil {
		t.Fatal(err)
	}
	for version, want := range map[int]string{
		2: "e2de0201 0300f800 01000000 02000000 07000000 00000000 14000000 " + "00f0ffff 10000000 00000000 02000000 00000000 " + "000308 010510f0",
		3: "e2de0305 0300f800 01000000 02000000 0c000000 00000000 10000000 " + "e4efffffffffffff 10000000 00000000 " + "0200000000 000308 010510f0",
	} {
		s, err := Emit(ref, version, 0x2000, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := fmt.Sprintf("%x", s.Bytes), strings.ReplaceAll(want, " ", ""); got != want {
			t.Errorf("version %d\n got %s\nwant %s", version, got, want)
		}
	}
}
