package compile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/arch/x86/x86asm"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// assemble links a program without libraries, with its code at 0x401000.
func assemble(t *testing.T, source string) string {
	t.Helper()
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f.s"), []byte(source+"\n\t.section .note.GNU-stack,\"\",@progbits\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "f")
	oracle.Run(t, "gcc", "-nostdlib", "-static", "-no-pie", "-Wl,-e,f,-Ttext=0x401000", "-o", out, out+".s")
	return out
}

const called = `
	.globl f
	.cfi_sections .eh_frame, .debug_frame
	.text
f:	.cfi_startproc
	push %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	mov %rsp, %rbp
	.cfi_def_cfa_register %rbp
	call g
	pop %rbp
	.cfi_def_cfa %rsp, 8
	ret
	.cfi_endproc
g:	ret
`

// TestCompareRules: one table of f against others of it.
func TestCompareRules(t *testing.T) {
	img, err := module.Open(assemble(t, called))
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	table := func(text string) *rows.Table {
		t.Helper()
		tab, err := rows.ParseText(strings.NewReader("machine x86_64\n" + text))
		if err != nil {
			t.Fatal(err)
		}
		return tab
	}
	first := table("401000  cfa=rsp+8  ra=c-8\n401001  cfa=rsp+16  rbp=c-16  ra=c-8\n401004  cfa=rbp+16  rbp=c-16  ra=c-8\n40100a  cfa=rsp+8  rbp=c-16  ra=c-8\n40100b  gap\n")
	for name, x := range map[string]struct {
		second string
		want   Comparison
	}{
		"a part of it, elsewhere nothing": {"401001  cfa=rsp+16  rbp=c-16  ra=c-8\n401003  gap\n", Comparison{Equal: 2}},
		"partial: says less":              {"401001  cfa=rsp+16  ra=c-8  partial\n401004  gap\n", Comparison{Equal: 3}},
		"not partial: rbp is unchanged": {"401001  cfa=rsp+16  ra=c-8\n401004  gap\n",
			Comparison{Differ: 3, Differences: []Difference{{"", 0x401001, 0x401004, []Disagreement{{"rbp", "c-16", "s"}}}}}},
		"another register for the CFA": {"401004  cfa=rsp+16  rbp=c-16  ra=c-8\n40100a  gap\n", Comparison{OtherBase: 6}},
		"another place for rbp": {"401004  cfa=rsp+16  rbp=c-24  ra=c-8\n401005  cfa=rsp+24  rbp=c-24  ra=c-8\n40100a  gap\n",
			Comparison{Differ: 6, Differences: []Difference{{"", 0x401004, 0x40100a, []Disagreement{{"rbp", "c-16", "c-24"}}}}}},
		"another CFA and return address, then nothing, then another CFA": {"401001  cfa=rsp+24  rbp=c-16  ra=c-16\n401002  gap\n401003  cfa=rsp+24  rbp=c-16  ra=c-8\n401004  gap\n",
			Comparison{Differ: 2, Differences: []Difference{
				{"", 0x401001, 0x401002, []Disagreement{{"cfa", "rsp+16", "rsp+24"}, {"ra", "c-8", "c-16"}}},
				{"", 0x401003, 0x401004, []Disagreement{{"cfa", "rsp+16", "rsp+24"}}}}}},
		"a signal's frame": {"40100a  cfa=rsp+8  rbp=c-16  ra=c-8  signal\n40100b  gap\n",
			Comparison{Differ: 1, Differences: []Difference{{"", 0x40100a, 0x40100b, []Disagreement{{"signal", "no", "yes"}}}}}},
		"signed": {"40100a  cfa=rsp+8  rbp=c-16  ra=c-8  ra-signed\n40100b  gap\n",
			Comparison{Differ: 1, Differences: []Difference{{"", 0x40100a, 0x40100b, []Disagreement{{"signed", "no", "yes"}}}}}},
		"no caller":                      {"40100a  cfa=rsp+8  ra=u\n40100b  gap\n", Comparison{Differ: 1, Differences: []Difference{{"", 0x40100a, 0x40100b, []Disagreement{{"ra", "c-8", "u"}}}}}},
		"right at calls only, and right": {"401000  cfa=rbp+16  rbp=c-16  ra=c-8  sync-only\n40100b  gap\n", Comparison{Equal: 1}},
		"right at calls only, and wrong": {"401000  cfa=rbp+24  rbp=c-16  ra=c-8  sync-only\n40100b  gap\n",
			Comparison{Differ: 1, Differences: []Difference{{"", 0x401004, 0x40100a, []Disagreement{{"cfa", "rbp+16", "rbp+24"}}}}}},
	} {
		var got Comparison
		got.add(img, first, table(x.second))
		if !reflect.DeepEqual(got, x.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, x.want)
		}
	}
}

// TestCompare: an assembler writes .eh_frame and .debug_frame of the same directives; a .debug_frame by hand contradicts.
func TestCompare(t *testing.T) {
	for name, x := range map[string]struct {
		source string
		want   []Comparison
	}{
		"one source":     {strings.Replace(called, ", .debug_frame", "", 1), nil},
		"two that agree": {called, []Comparison{{First: ".eh_frame", Second: ".debug_frame", Equal: 11}}},
		"two that contradict": {strings.Replace(called, ", .debug_frame", "", 1) + `
	.section .debug_frame,"",@progbits
.Lcie:	.long .Lend - .Lid
.Lid:	.long 0xffffffff
	.byte 1, 0
	.uleb128 1
	.sleb128 -8
	.byte 16
	.byte 0x0c, 7, 24, 0x90, 1
	.balign 8
.Lend:	.long .Lstop - .Lfde
.Lfde:	.long .Lcie
	.quad f, 1
	.balign 8
.Lstop:
`, []Comparison{{First: ".eh_frame", Second: ".debug_frame", Differ: 1, Differences: []Difference{{"", 0x401000, 0x401001, []Disagreement{{"cfa", "rsp+8", "rsp+24"}}}}}}},
	} {
		p, err := Prove(assemble(t, x.source), false)
		if err != nil || !reflect.DeepEqual(p.Comparisons, x.want) {
			t.Errorf("%s: got %+v, %v, want %+v", name, p.Comparisons, err, x.want)
		}
	}
}

// TestPadding: sources may contradict each other where nothing is executed: in what aligns the code behind a return.
func TestPadding(t *testing.T) {
	oracle.Long(t)
	const source = `
	.text
	.globl f
f:	%s
	%s
	.balign 16, 0x90
g:	xor %%eax, %%eax
	ret
`
	for _, x := range []struct {
		last, pad string
		want      bool
	}{
		{"ret", "nopl 0(%rax,%rax)", true}, {"ret", "xchg %ax,%ax; nopw 0(%rax,%rax)", true}, {"jmp g", "nop", true}, {"ret", "int3; int3", true},
		{"call g", "nop", false}, {"ret", "xor %eax,%eax", false}, {"ret", "nop; xor %eax,%eax", false}, {"mov %eax,%ebx", "nop", false}, {"je g", "nop", false},
	} {
		img, err := module.Open(assemble(t, fmt.Sprintf(source, x.last, x.pad)))
		if err != nil {
			t.Fatal(err)
		}
		at := map[string]arch.Vaddr{}
		if err := img.Symbols(func(s module.Symbol) bool { at[s.Name] = s.Value; return true }); err != nil {
			t.Fatal(err)
		}
		code := img.Tail(at["f"])
		inst, err := x86asm.Decode(code, 64)
		if err != nil {
			t.Fatal(err)
		}
		if got := padding(img, at["f"], at["f"]+arch.Vaddr(inst.Len), at["g"]); got != x.want {
			t.Errorf("%s; %s: %v", x.last, x.pad, got)
		}
		if padding(img, at["f"], at["f"]+arch.Vaddr(inst.Len), at["g"]+2) {
			t.Errorf("%s; %s, and a function: padding", x.last, x.pad)
		}
		img.Close()
	}
}

// TestProofs: the text of files, some with several sources of unwind information.
func TestProofs(t *testing.T) {
	var c Proofs
	var out strings.Builder
	c.Add(Proof{File: "plain"}, errors.New("not read"))
	if c.WriteText(&out, 10); c.Differ() || out.Len() > 0 {
		t.Errorf("a file that could not be read: %s", out.String())
	}
	c.Add(Proof{File: "same", Comparisons: []Comparison{{First: ".eh_frame", Second: ".debug_frame", Equal: 10, OtherBase: 2}}}, nil)
	range1 := Difference{Lo: 0x1000, Hi: 0x1004, Rules: []Disagreement{{Of: "cfa", First: "rsp+8", Second: "rsp+16"}, {Of: "rbp", First: "s", Second: "c-16"}}}
	range2 := Difference{Section: ".text", Lo: 0x2000, Hi: 0x2001, Rules: []Disagreement{{Of: "ra", First: "c-8", Second: "u"}}}
	c.Add(Proof{File: "odd\x1b[m", Comparisons: []Comparison{
		{First: ".eh_frame", Second: ".debug_frame", Equal: 1, Padding: 7},
		{First: ".eh_frame", Second: ".sframe", Equal: 100, Differ: 5, Differences: []Difference{range1, range2}},
	}}, nil)
	c.Add(Proof{File: "plain", Rows: 1000, Rules: 1, Damaged: 2}, nil)
	c.Add(Proof{File: "hidden", Unindexed: []arch.Vaddr{0x3000, 0x4000, 0x5000}}, nil)
	c.Add(Proof{}, ErrNoRows)
	if c.WriteText(&out, 1); !c.Differ() {
		t.Errorf("Differ says that no file differs, after %d proofs with 5 differing addresses:\n%s", c.proven, out.String())
	}
	want := `5 files: 1,000 rows and 1 rule equal the reference; 2 damaged entries; 1 file without unwind information
hidden: .eh_frame_hdr does not lead to the FDEs of 3 functions: libgcc and libunwind find nothing there
  3000
  and 2 others; --differences N prints more
2 files with several sources of unwind information: they agree at 111 addresses, count from different registers at 2 and contradict each other at 5; in padding, which nothing reaches, they do so at 7
odd�[m: .eh_frame and .sframe differ at 5 addresses, in 2 ranges
  1000-1004  cfa: rsp+8 by .eh_frame, rsp+16 by .sframe
  1000-1004  rbp: s by .eh_frame, c-16 by .sframe
  and 1 other range; --differences N prints more
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
