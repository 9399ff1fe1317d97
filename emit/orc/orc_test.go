package orc

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// regsText is a struct pt_regs at the CFA.
const regsText = "  rax=c+80  rdx=c+96  rcx=c+88  rbx=c+40  rsi=c+104  rdi=c+112  rbp=c+32  rsp=c+152  r8=c+72  r9=c+64  r10=c+56  r11=c+48  r12=c+24  r13=c+16  r14=c+8  r15=c+0  ra=c+128"

// TestEntries has rules and their entries, made by hand from the definitions of each version, and what no entry can say.
func TestEntries(t *testing.T) {
	for _, c := range []struct {
		version Version
		set     string
		want    string // bytes, or a reason
	}{
		{Version{6, 4}, "cfa=rsp+8  ra=c-8", "08 00 00 00 05 02"},
		{Version{6, 4}, "cfa=rsp+8  rbp=s  ra=c-8  partial", "08 00 00 00 05 02"},
		{Version{6, 4}, "cfa=rsp+8  rsp=v+0  ra=c-8", "08 00 00 00 05 02"},
		{Version{6, 4}, "cfa=rsp+16  rbx=c-24  rbp=c-16  ra=c-8", "10 00 f0 ff 15 02"},
		{Version{6, 4}, "cfa=rbp+16  rbp=c-16  ra=c-8", "10 00 f0 ff 14 02"},
		{Version{6, 4}, "cfa=r10+0  ra=c-8", "00 00 00 00 06 02"},
		{Version{6, 4}, "cfa=r13+0  rbp=[DW_OP_breg6 RBP+0]  ra=c-8", "00 00 00 00 47 02"},
		{Version{6, 4}, "cfa=DW_OP_breg6 RBP-16, DW_OP_deref  rbp=[DW_OP_breg6 RBP+0]  ra=c-8", "f0 ff 00 00 48 02"},
		{Version{6, 4}, "cfa=DW_OP_breg7 RSP+0, DW_OP_deref, DW_OP_plus_uconst 0x10  ra=c-8", "10 00 00 00 09 02"},
		{Version{6, 4}, "cfa=rsp+8  ra=c-8  signal", "08 00 00 00 05 0a"},
		{Version{6, 4}, "cfa=rsp+8" + regsText + "  signal", "08 00 00 00 05 0b"},
		{Version{6, 4}, "cfa=rsp+8" + strings.Replace(regsText, "rbp=c+32", "rbp=c-16", 1), "08 00 f0 ff 15 03"},
		{Version{6, 4}, "cfa=rdx+8  rbp=s  rsp=c+24  ra=c+0  signal  partial", "08 00 00 00 02 0c"},
		{Version{6, 4}, "cfa=none  ra=u", "00 00 00 00 00 01"},
		{Version{6, 4}, "cfa=rsp+8  ra=u", "00 00 00 00 00 01"},
		{Version{6, 4}, "cfa=rsp+32767  ra=c-8", "ff 7f 00 00 05 02"},

		{Version{7, 1}, "cfa=rsp+16  rbp=c-16  ra=c-8", "10 00 f0 ff 83 02"},
		{Version{8, 0}, "cfa=rax+0  ra=c-8", "00 00 00 00 01 02"},
		{Version{7, 1}, "cfa=DW_OP_breg6 RBP-16, DW_OP_deref  rbp=[DW_OP_breg6 RBP+0]  ra=c-8", "f0 ff 00 00 4a 02"},
		{Version{7, 0}, "cfa=rdi+0  ra=c-8", "00 00 00 00 03 02"},
		{Version{6, 3}, "cfa=rsp+8  ra=c-8  signal", "08 00 00 00 05 04"},
		{Version{6, 3}, "cfa=none  ra=u", "00 00 00 00 00 08"},
		{Version{6, 3}, "cfa=rsp+8" + regsText + "  signal", "08 00 00 00 05 05"},
		{Version{6, 2}, "cfa=none  ra=u", "00 00 00 00 00 04"},
		{Version{6, 2}, "cfa=rsp+8" + regsText + "  signal", "08 00 00 00 05 01"},
		{Version{5, 12}, "cfa=DW_OP_breg7 RSP+0, DW_OP_deref, DW_OP_plus_uconst 0x10  ra=c-8", "10 00 00 00 09 00"},
		{Version{5, 11}, "cfa=DW_OP_breg7 RSP+16, DW_OP_deref  ra=c-8", "10 00 00 00 09 00"},
		{Version{4, 14}, "cfa=none  ra=u", "00 00 00 00 00 00"},

		{Version{6, 4}, "cfa=rsp+70000  ra=c-8", "the CFA is at offset 70000"},
		{Version{6, 4}, "cfa=rsp+32768  ra=c-8", "the CFA is at offset 32768"},
		{Version{6, 4}, "cfa=rbp+16  rbp=c-40000  ra=c-8", "the frame pointer is at offset -40000"},
		{Version{6, 4}, "cfa=rbx+16  ra=c-8", "the CFA is rbx+16"},
		{Version{6, 4}, "cfa=rax+0  ra=c-8", "the CFA is rax+0"},
		{Version{6, 4}, "cfa=DW_OP_breg7 RSP+16, DW_OP_deref  ra=c-8", "the CFA is DW_OP_breg7 RSP+16, DW_OP_deref"},
		{Version{5, 11}, "cfa=DW_OP_breg7 RSP+0, DW_OP_deref, DW_OP_plus_uconst 0x10  ra=c-8", "the CFA is DW_OP_breg7 RSP+0, DW_OP_deref, DW_OP_plus_uconst 0x10"},
		{Version{6, 4}, "cfa=rsp+8  ra=c-16", "the return address is c-16"},
		{Version{6, 4}, "cfa=rsp+8  ra=rdx", "the return address is rdx"},
		{Version{6, 4}, "cfa=rsp+8  rsp=c-16  ra=c-8", "the stack pointer is c-16"},
		{Version{6, 4}, "cfa=rsp+8  rbp=r12  ra=c-8", "the frame pointer is r12"},
		{Version{6, 4}, "cfa=rsp+8  rbp=u  ra=c-8", "the frame pointer is u"},
		{Version{6, 4}, "cfa=rsp+8  ra=c-8  partial", "the frame pointer is lost"},
		{Version{6, 4}, "cfa=rsp+8  ra=c-8  sync-only", "right at call sites only"},
		{Version{6, 4}, "cfa=rsp+8  rbp=s  rsp=c+152  ra=c+128  signal", "rax is not in struct pt_regs"},
		{Version{6, 4}, "cfa=rsp+8" + strings.Replace(regsText, "  rbp=c+32", "", 1), "the frame pointer is lost"},
		{Version{6, 2}, "cfa=rsp+8  ra=c-8  signal", "before Linux 6.3, the type says whether the caller was interrupted"},
		{Version{6, 2}, "cfa=rsp+8" + regsText, "before Linux 6.3, the type says whether the caller was interrupted"},
	} {
		x, err := rows.ParseText(strings.NewReader("machine x86_64\n1000  " + c.set + "\n2000  gap\n"))
		if err != nil {
			t.Fatalf("%s: %v", c.set, err)
		}
		got, err := Emit(x, c.version)
		if err != nil {
			t.Errorf("%v, %s: %v", c.version, c.set, err)
			continue
		}
		want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
		if refused := err != nil; refused {
			if len(got.Refused) != 1 || got.Refused[0] != (Refusal{0x1000, 0x2000, c.want}) || string(got.Entries) != "\x00\x00\x00\x00\x00\x00" {
				t.Errorf("%v, %s\n got %v, % x\nwant %s", c.version, c.set, got.Refused, got.Entries, c.want)
			}
		} else if string(got.Entries[:6]) != string(want) || len(got.Refused) > 0 {
			t.Errorf("%v, %s\n got % x, %v\nwant % x", c.version, c.set, got.Entries[:6], got.Refused, want)
		}
	}
}

// TestEmit: neighbours with the same entry share it, refusals with one reason are one range, and addresses are relative to their fields.
func TestEmit(t *testing.T) {
	x, err := rows.ParseText(strings.NewReader("machine x86_64\n1000  cfa=rsp+8  ra=c-8\n1004  cfa=rsp+8  rbx=c-16  ra=c-8\n1008  cfa=rsp+99999  ra=c-8\n" +
		"1010  cfa=rsp+99999  rbx=c-16  ra=c-8\n1014  cfa=rbx+8  ra=c-8\n1018  gap\n1020  cfa=rsp+8  ra=c-8\n1030  gap\n"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Emit(x, Version{6, 4})
	if err != nil {
		t.Fatal(err)
	}
	ips, err := got.IPs(0x2000)
	if want := "00f0ffff" + "04f0ffff" + "18f0ffff" + "24f0ffff"; err != nil || hex.EncodeToString(ips) != want {
		t.Errorf("addresses %x, %v, want %s", ips, err, want)
	}
	if len(got.Refused) != 2 || got.Refused[0] != (Refusal{0x1008, 0x1014, "the CFA is at offset 99999"}) || got.Refused[1] != (Refusal{0x1014, 0x1018, "the CFA is rbx+8"}) {
		t.Errorf("refused: %v", got.Refused)
	}
	if _, err := got.IPs(1 << 33); !errors.Is(err, ErrUnsupported) {
		t.Errorf("addresses 8 GiB away: %v", err)
	}
	if _, err := Emit(x, Version{4, 13}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("Linux 4.13: %v", err)
	}
	if _, err := Emit(&rows.Table{Machine: arch.ARM64}, Version{6, 4}); !errors.Is(err, ErrUnsupported) {
		t.Errorf("AArch64: %v", err)
	}
}
