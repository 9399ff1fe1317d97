package rows

import (
	"errors"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
)

// cells pairs the text of a row with what it says.
var cells = []struct {
	text string
	set  Set
}{
	{"gap", Set{}},
	{"cfa=rsp+32816  ra=c-8", Set{CFA: CFA{Kind: CFAReg, Reg: 7, Off: 32816}, Rules: []Rule{{Of: 16, Kind: Offset, Off: -8}}}},
	{"cfa=r11+262192  rbx=rdx  ra=u", Set{CFA: CFA{Kind: CFAReg, Reg: 11, Off: 262192}, Rules: []Rule{{Of: 3, Kind: Register, Reg: 1}, {Of: 16, Kind: Undefined}}}},
	{"cfa=DW_OP_breg6 RBP-8, DW_OP_deref  rbp=[DW_OP_breg6 RBP+0]  ra=c-8", Set{CFA: CFA{Kind: CFARegDeref, Reg: 6, Off: -8},
		Rules: []Rule{{Of: 6, Kind: RegDeref, Reg: 6}, {Of: 16, Kind: Offset, Off: -8}}}},
	{"cfa=DW_OP_breg7 RSP+72, DW_OP_deref, DW_OP_plus_uconst 0x8  ra=c-8", Set{CFA: CFA{Kind: CFARegDeref, Reg: 7, Off: 72, Off2: 8},
		Rules: []Rule{{Of: 16, Kind: Offset, Off: -8}}}},
	{"cfa=DW_OP_breg7 RSP+8, DW_OP_breg16 RIP+0, DW_OP_lit15, DW_OP_and, DW_OP_lit11, DW_OP_ge, DW_OP_lit3, DW_OP_shl, DW_OP_plus  ra=c-8",
		Set{CFA: CFA{Kind: CFAPLT, Reg: 7, Off: 8, Off2: 11}, Rules: []Rule{{Of: 16, Kind: Offset, Off: -8}}}},
	{"cfa=rsp+8  rax=s  rdx=v+16  rbx=DW_OP_breg7 RSP+8  rsi=[DW_OP_drop, DW_OP_breg7 RSP+8]  ra=c-8  signal",
		Set{CFA: CFA{Kind: CFAReg, Reg: 7, Off: 8}, Flags: Signal, Rules: []Rule{{Of: 0, Kind: SameValue}, {Of: 1, Kind: ValOffset, Off: 16},
			{Of: 3, Kind: RegOffset, Reg: 7, Off: 8}, {Of: 4, Kind: Expr, Expr: "\x13\x77\x08"}, {Of: 16, Kind: Offset, Off: -8}}}},
	{"cfa=DW_OP_breg7 RSP+8  ra=[DW_OP_lit8, DW_OP_minus, DW_OP_const4s -64, DW_OP_and, DW_OP_const2u 0x1234, DW_OP_plus]",
		Set{CFA: CFA{Kind: CFAExpr, Expr: "\x77\x08"}, Rules: []Rule{{Of: 16, Kind: Expr, Expr: "\x38\x1c\x0d\xc0\xff\xff\xff\x1a\x0a\x34\x12\x22"}}}},
	{"cfa=none  ra=u", Set{Rules: []Rule{{Of: 16, Kind: Undefined}}}},
	{"cfa=DW_OP_bregx R40+3  xmm0=c-32", Set{CFA: CFA{Kind: CFAExpr, Expr: "\x92\x28\x03"}, Rules: []Rule{{Of: 17, Kind: Offset, Off: -32}}}},
}

func TestCells(t *testing.T) {
	for _, c := range cells {
		if !c.set.Gap() {
			c.set.RA = 16
		}
		if got := c.set.Text(arch.AMD64); got != strings.Replace(c.text, "R40", strings.ToUpper(arch.AMD64.RegName(40)), 1) {
			t.Errorf("Text\n got %s\nwant %s", got, c.text)
		}
		back, err := ParseSet(c.set.Text(arch.AMD64), arch.AMD64)
		if err != nil {
			t.Errorf("ParseSet(%q): %v", c.text, err)
			continue
		}
		if !equalSets(&back, &c.set) {
			t.Errorf("ParseSet(%q)\n got %+v\nwant %+v", c.text, back, c.set)
		}
	}
}

// sectionText is the text of a file that is not linked. Two sections have the same name, and one a name that is made to confuse.
const sectionText = `machine x86_64
section 1000 .text
origin .text+0 .eh_frame
.text+0  cfa=rsp+8  ra=c-8
.text+1  cfa=rsp+16  ra=c-8
.text+40  gap
section 1050 .text
origin .text+8 .debug_frame
.text+8  cfa=rsp+8  ra=c-8
.text+9  gap
section 1070 "#a\x20\x20+\x1b"
"#a\x20\x20+\x1b"+0  cfa=rsp+8  ra=c-8
"#a\x20\x20+\x1b"+10  gap
`

const sectionJSON = `{"section":".text","lo":"0x0","hi":"0x1","cfa":"rsp+8","ra":"c-8","rules":{},"signal":false,"origin":".eh_frame"}
{"section":".text","lo":"0x1","hi":"0x40","cfa":"rsp+16","ra":"c-8","rules":{},"signal":false,"origin":".eh_frame"}
{"section":".text","lo":"0x8","hi":"0x9","cfa":"rsp+8","ra":"c-8","rules":{},"signal":false,"origin":".debug_frame"}
{"section":"#a  +\u001b","lo":"0x0","hi":"0x10","cfa":"rsp+8","ra":"c-8","rules":{},"signal":false,"origin":".debug_frame"}
`

// TestSections: addresses of a file that is not linked are printed, and read back, as a section and an offset.
func TestSections(t *testing.T) {
	x, err := ParseText(strings.NewReader(sectionText))
	if err != nil {
		t.Fatal(err)
	}
	var text, json strings.Builder
	if err := errors.Join(x.WriteText(&text), x.WriteJSON(&json)); err != nil {
		t.Fatal(err)
	}
	if text.String() != sectionText || json.String() != sectionJSON {
		t.Errorf("got\n%s%swant\n%s%s", text.String(), json.String(), sectionText, sectionJSON)
	}
	if x.Rows[3].Lo != 0x1058 || len(x.Sections) != 3 || x.In(nil).Sections != nil {
		t.Errorf("%+v, %+v", x.Rows, x.Sections)
	}
	for _, wrong := range []string{".text+0 ", ".data+0  gap", "1000  gap", "section 1000 .x", "section x .x", "section 2000 \"", ".text+ffffffffffffffff  gap", "origin 1050 .eh_frame"} {
		if _, err := ParseText(strings.NewReader("machine x86_64\nsection 1000 .text\n" + wrong + "\n")); err == nil {
			t.Errorf("%q is read", wrong)
		}
	}
}

func FuzzParseText(f *testing.F) {
	var all strings.Builder
	all.WriteString("machine x86_64\n")
	for i, c := range cells {
		all.WriteString(strings.ToLower(string("0123456789abcdef"[i+1])) + "0  " + c.text + "\n")
	}
	f.Add(all.String() + "f0  gap\n")
	f.Add("machine aarch64\n10  cfa=sp+16  x29=c-16  ra=c-8  ra-signed\n20  gap\n")
	f.Add("machine x86_64\norigin 10 .eh_frame\n10  cfa=rsp+8\n18  gap\norigin 19 pclntab\norigin 1a origin-77\n20  cfa=rsp+8\n28  gap\n")
	f.Add(sectionText)
	f.Fuzz(func(t *testing.T, text string) {
		tab, err := ParseText(strings.NewReader(text))
		if err != nil {
			return
		}
		var one, two strings.Builder
		if err := tab.WriteText(&one); err != nil {
			t.Fatal(err)
		}
		again, err := ParseText(strings.NewReader(one.String()))
		if err != nil {
			t.Fatalf("does not read what it wrote: %v\n%s", err, one.String())
		}
		if err := again.WriteText(&two); err != nil || one.String() != two.String() {
			t.Fatalf("round trip\n got %s\nwant %s", two.String(), one.String())
		}
	})
}

// TestMachines: the table of any machine is read back, also of one that has a number only.
func TestMachines(t *testing.T) {
	seen := map[string]bool{}
	for _, em := range []uint16{arch.EM_386, arch.EM_MIPS, arch.EM_PPC64, arch.EM_S390, arch.EM_ARM, arch.EM_X86_64, arch.EM_AARCH64, arch.EM_RISCV, arch.EM_LOONG,
		arch.IMAGE_FILE_MACHINE_AMD64, arch.IMAGE_FILE_MACHINE_ARM64, 4242} {
		m := arch.ByELF(em)
		b := NewBuilder(m)
		b.Begin(0x10, 0x20)
		b.Row(0x10, b.Intern(Set{CFA: CFA{Kind: CFAReg, Reg: m.SP, Off: 16}, RA: m.RA}))
		tab := Build(b)
		var one, two strings.Builder
		if err := tab.WriteText(&one); err != nil || len(tab.Rows) != 2 || seen[m.Name] {
			t.Fatalf("%s: %d rows, %v", m.Name, len(tab.Rows), err)
		}
		seen[m.Name] = true
		again, err := ParseText(strings.NewReader(one.String()))
		if err != nil {
			t.Errorf("%s: %v\n%s", m.Name, err, one.String())
			continue
		}
		if err := again.WriteText(&two); err != nil || again.Machine.ELF != em || one.String() != two.String() {
			t.Errorf("%s, %v\n got %s\nwant %s", again.Machine.Name, err, two.String(), one.String())
		}
	}
	for _, first := range []string{"x86_64", "machine ", "machine vax", "machine machine-62", "machine machine-4242x", "machine machine-70000"} {
		if _, err := ParseText(strings.NewReader(first + "\n10  cfa=rsp+8\n20  gap\n")); err == nil {
			t.Errorf("%q: no error", first)
		}
	}
}

// TestOriginText: origins are read back, those too that have a number only; what no table can have is an error.
func TestOriginText(t *testing.T) {
	const text = "machine x86_64\norigin 10 .eh_frame\n10  cfa=rsp+8\norigin 12 origin-77\n18  cfa=rsp+16\norigin 20 pclntab\n20  cfa=rsp+8\n28  gap\n"
	tab, err := ParseText(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	if err := tab.WriteText(&got); err != nil || got.String() != text {
		t.Errorf("%v\n got %s\nwant %s", err, got.String(), text)
	}
	for pc, want := range map[arch.Vaddr]Origin{0x10: FromEHFrame, 0x11: FromEHFrame, 0x12: 77, 0x1f: 77, 0x20: FromPCLNTab, 0x27: FromPCLNTab} {
		if got := tab.Origin(pc); got != want {
			t.Errorf("origin at %#x\n got %s\nwant %s", uint64(pc), got, want)
		}
	}
	for _, lines := range []string{
		"origin 10 .eh_frame\n",
		"origin 11 .eh_frame\n10  cfa=rsp+8\n20  gap\n",
		"origin 8 .eh_frame\n10  cfa=rsp+8\n20  gap\n",
		"origin 10 .eh_frame\norigin 10 pclntab\n10  cfa=rsp+8\n20  gap\n",
		"origin 10 .eh_frame\norigin 11 .eh_frame\n10  cfa=rsp+8\n20  gap\n",
		"origin 10 .eh_frame\norigin 20 pclntab\n10  cfa=rsp+8\n20  gap\n",
		"origin 10 origin-255\n10  cfa=rsp+8\n20  gap\n",
		"origin 10 somewhere\n10  cfa=rsp+8\n20  gap\n",
	} {
		if _, err := ParseText(strings.NewReader("machine x86_64\n" + lines)); err == nil {
			t.Errorf("%q: no error", lines)
		}
	}
}
