package orc

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// objtool61 is the judge of Linux 6.1, for layouts before 6.3 (package linux-kbuild-6.1).
const objtool61 = "/usr/lib/linux-kbuild-6.1/tools/objtool/objtool"

// A judge runs objtool of one version of Linux.
type judge []string

// judgeOf returns the objtool that writes entries like those of a suite's kernel.
func judgeOf(t testing.TB, suite string) judge {
	t.Helper()
	if suite == "bookworm" || suite == "bullseye" {
		oracle.Need(t, objtool61)
		return judge{objtool61}
	}
	root := oracle.Debian(t, suite, "amd64", "kbuild", `^linux-kbuild-[0-9.]+\+deb[0-9]+$`)
	found, _ := filepath.Glob(root + "/usr/lib/linux-kbuild-*/tools/objtool/objtool.real-x86")
	if len(found) == 0 {
		t.Fatalf("no objtool in %s", root)
	}
	// The suite may have another C library.
	return judge{root + "/lib64/ld-linux-x86-64.so.2", "--library-path", root + "/usr/lib/x86_64-linux-gnu", found[len(found)-1]}
}

// A line is what the judge says of an entry.
type line struct {
	section string // "": of a linked file
	at      uint64
	sp, bp  string // "sp+8", "(bp-16)", "(sp)+8", "prevsp-16", "(und)"
	typ     string // "call", "regs", "regs (partial)", "(und)", "end"
	signal  bool
}

var (
	lineAt    = regexp.MustCompile(`^(?:(\S+)\+)?([0-9a-f]+): ?`)
	lineField = regexp.MustCompile(`(sp|bp|type|signal|end):(regs \(partial\)|\S+)`)
)

// dump returns the judge's lines, in the order of the file.
func (j judge) dump(t testing.TB, path string) []line {
	t.Helper()
	cmd := exec.Command(j[0], append(j[1:len(j):len(j)], "--dump=orc", path)...)
	cmd.Env = append(os.Environ(), "SRCARCH=x86")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v %s: %v\n%s", j, path, err, stderr.Bytes())
	}
	var lines []line
	sc := bufio.NewScanner(bytes.NewReader(out))
	for sc.Scan() {
		m := lineAt.FindStringSubmatch(sc.Text())
		if m == nil {
			t.Fatalf("%s: the judge says %q", path, sc.Text())
		}
		l := line{section: m[1]}
		l.at, _ = strconv.ParseUint(m[2], 16, 64)
		for _, f := range lineField.FindAllStringSubmatch(sc.Text()[len(m[0]):], -1) {
			switch f[1] {
			case "sp":
				l.sp = f[2]
			case "bp":
				l.bp = f[2]
			case "type":
				l.typ = f[2]
			case "signal":
				l.signal = f[2] == "1"
			case "end": // before 6.4: types do not tell that nothing is known
				switch {
				case l.sp == "(und)" && f[2] == "1":
					l.typ = "end"
				case l.sp == "(und)":
					l.typ = "(und)"
				}
				l.signal = strings.HasPrefix(l.typ, "regs")
			}
		}
		lines = append(lines, l)
	}
	return lines
}

// text returns the row that a line stands for, as rows.Set.Text spells it. Offsets in struct pt_regs are spelled out: the test has its own.
func (l line) text(t testing.TB, before bool) string {
	t.Helper()
	flag := map[bool]string{true: "  signal"}[l.signal]
	reg := func(name string) string {
		switch name {
		case "sp", "bp", "dx", "di", "ax":
			return "r" + name
		}
		return name
	}
	switch l.typ {
	case "(und)":
		return "gap"
	case "end":
		return "cfa=none  ra=u"
	}
	m := regexp.MustCompile(`^(\()?(sp|bp|dx|di|ax|r10|r13)(\))?([+-]\d+)(\))?$`).FindStringSubmatch(l.sp)
	if m == nil {
		t.Fatalf("the judge says sp:%s", l.sp)
	}
	off, _ := strconv.Atoi(m[4])
	dwarf := map[string]string{"bp": "6 RBP", "sp": "7 RSP"}[m[2]]
	cfa := ""
	switch {
	case m[1] == "":
		cfa = fmt.Sprintf("%s%+d", reg(m[2]), off)
	case m[3] == "" || before: // *(bp+8); *(sp+8)
		cfa = fmt.Sprintf("DW_OP_breg%s%+d, DW_OP_deref", dwarf, off)
	case off == 0:
		cfa = fmt.Sprintf("DW_OP_breg%s+0, DW_OP_deref", dwarf)
	default: // *(sp)+8
		cfa = fmt.Sprintf("DW_OP_breg%s+0, DW_OP_deref, DW_OP_plus_uconst %#x", dwarf, off)
	}
	bp := "s"
	if rest, ok := strings.CutPrefix(l.bp, "prevsp"); ok {
		bp = "c" + rest
	} else if rest, ok := strings.CutPrefix(l.bp, "bp"); ok {
		bp = "[DW_OP_breg6 RBP" + rest + "]"
	}
	switch l.typ {
	case "call":
		return "cfa=" + cfa + "  rbp=" + bp + "  ra=c-8" + flag + "  partial"
	case "regs (partial)":
		return "cfa=" + cfa + "  rbp=" + bp + "  rsp=c+24  ra=c+0" + flag + "  partial"
	case "regs":
		if bp == "s" {
			bp = "c+32"
		}
		return "cfa=" + cfa + "  rax=c+80  rdx=c+96  rcx=c+88  rbx=c+40  rsi=c+104  rdi=c+112  rbp=" + bp + "  rsp=c+152  r8=c+72  r9=c+64  r10=c+56" +
			"  r11=c+48  r12=c+24  r13=c+16  r14=c+8  r15=c+0  ra=c+128" + flag
	}
	t.Fatalf("the judge says type:%s", l.typ)
	return ""
}

// compare holds an image's rows against the judge's lines, at the address of every entry and, where the next one is farther, at the byte before it.
// address tells where a section's byte is.
func compare(t testing.TB, img *module.Image, lines []line, address func(section string, off uint64) arch.Vaddr) {
	t.Helper()
	tab, err := Open(img)
	if err != nil || tab == nil {
		t.Fatalf("%s: %v", img.Name(), err)
	}
	x, damage := tab.Rows()
	for _, d := range damage {
		t.Errorf("%s: %v", img.Name(), d)
	}
	type want struct {
		text string
		weak bool
	}
	wants := map[arch.Vaddr]want{}
	texts := map[line]string{}
	for _, l := range lines {
		at := address(l.section, l.at)
		l.at, l.section = 0, ""
		text, ok := texts[l]
		if !ok {
			text = l.text(t, tab.layout.before)
			texts[l] = text
		}
		if old, ok := wants[at]; ok && !old.weak && text == "gap" {
			continue // behind a section, where another begins
		}
		wants[at] = want{text, text == "gap"}
	}
	sets := make([]string, len(x.Sets))
	for i := range x.Sets {
		sets[i] = x.Sets[i].Text(x.Machine)
	}
	got := func(pc arch.Vaddr) string {
		if i := x.Find(pc); i >= 0 {
			return sets[x.Rows[i].Set]
		}
		return "gap"
	}
	bad := 0
	for at, w := range wants {
		if got := got(at); got != w.text && bad < 10 {
			bad++
			t.Errorf("%s: at %#x\n got %s\nwant %s", img.Name(), uint64(at), got, w.text)
		}
	}
	// No row begins elsewhere, but at the end.
	for i, r := range x.Rows[:max(len(x.Rows)-1, 0)] {
		if _, ok := wants[r.Lo]; !ok && bad < 10 {
			bad++
			t.Errorf("%s: a row at %#x, %s, which the judge does not know", img.Name(), uint64(r.Lo), sets[x.Rows[i].Set])
		}
	}
	t.Logf("%s: %s, %d entries, %d rows, %d sets", filepath.Base(img.Name()), tab.Layout(), len(lines), len(x.Rows), len(x.Sets))
	if len(lines) != tab.n() || len(lines) == 0 {
		t.Errorf("%s: %d entries, the judge has %d", img.Name(), tab.n(), len(lines))
	}
}

// TestKernels: every entry of Debian's kernels, as they boot, is what objtool of such a kernel says.
func TestKernels(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "objcopy")
	suites := []string{"bookworm", "trixie", "sid", "bullseye"}
	for _, suite := range suites[:oracle.Few(1, len(suites))] {
		t.Run(suite, func(t *testing.T) {
			j := judgeOf(t, suite)
			img, err := module.Open(oracle.Kernel(t, suite, "amd64"))
			if err != nil {
				t.Fatal(err)
			}
			defer img.Close()
			// objtool refuses a file without symbols.
			bare, path := filepath.Join(t.TempDir(), "bare"), filepath.Join(t.TempDir(), "vmlinux")
			if err := os.WriteFile(bare, img.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			oracle.Run(t, "objcopy", "--add-symbol", "zz=.text:0", bare, path)
			compare(t, img, j.dump(t, path), func(_ string, at uint64) arch.Vaddr { return arch.Vaddr(at) })
		})
	}
}

// modules returns the modules of a suite's kernel, sorted.
func modules(t testing.TB, suite string) []string {
	t.Helper()
	return oracle.Files(t, oracle.Debian(t, suite, "amd64", "modules", "linux-image-cloud-amd64"), func(p string) bool {
		return strings.HasSuffix(p, ".ko") || strings.HasSuffix(p, ".ko.xz")
	})
}

// sectionsOf returns where a file's sections are: the judge names bytes of a section.
func sectionsOf(t testing.TB, img *module.Image) func(section string, off uint64) arch.Vaddr {
	t.Helper()
	return func(section string, off uint64) arch.Vaddr {
		s := img.Section(section)
		if s == nil {
			t.Fatalf("%s: no section %s, which the judge names", img.Name(), section)
		}
		return s.Addr + arch.Vaddr(off)
	}
}

// TestModules: every entry of modules of Debian's kernels is what objtool of such a kernel says.
func TestModules(t *testing.T) {
	oracle.Long(t)
	suites := []string{"bookworm", "trixie", "sid"}
	for _, suite := range suites[:oracle.Few(1, len(suites))] {
		t.Run(suite, func(t *testing.T) {
			j := judgeOf(t, suite)
			all := modules(t, suite)
			if len(all) < 500 {
				t.Fatalf("%d modules", len(all))
			}
			entries := 0
			for _, path := range oracle.Spread(all, oracle.Few(20, 120)) {
				img, err := module.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				// objtool reads no compressed modules.
				path = filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(path), ".xz"))
				if err := os.WriteFile(path, img.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
				lines := j.dump(t, path)
				compare(t, img, lines, sectionsOf(t, img))
				entries += len(lines)
				img.Close()
			}
			t.Logf("%d entries", entries)
		})
	}
}

// builds are how testdata/functions.c is compiled, as kernels are.
var builds = [][]string{
	{"-O2"}, {"-Os"}, {"-O2", "-fno-omit-frame-pointer"}, {"-O1", "-fno-optimize-sibling-calls"}, {"-O2", "-mpreferred-stack-boundary=3"}, {"-O3", "-ffunction-sections"},
}

// built compiles testdata/functions.c and has objtool add its ORC.
func built(t testing.TB, flags ...string) (path string) {
	t.Helper()
	oracle.Need(t, "gcc", objtool61)
	path = filepath.Join(t.TempDir(), "functions.o")
	args := append([]string{"-c", "-fno-pic", "-mcmodel=kernel", "-mno-red-zone", "-fcf-protection=none", "-fno-jump-tables", "-fno-stack-protector",
		"-fasynchronous-unwind-tables", "-mno-sse", "-o", path, "testdata/functions.c"}, flags...)
	oracle.Run(t, "gcc", args...)
	oracle.Run(t, objtool61, "--orc", path)
	return path
}

// TestRelocations: a relocation that cannot be applied costs its entry only, and is named.
func TestRelocations(t *testing.T) {
	path := built(t, "-O2")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := judge{objtool61}.dump(t, path)
	rowsOf := func() (*module.Image, *rows.Table, []error) {
		img, err := module.New(path, bytes.Clone(b))
		if err != nil {
			t.Fatal(err)
		}
		tab, err := Open(img)
		if err != nil || tab == nil {
			t.Fatalf("Open(%s): a table: %v, %v, want a table", path, tab != nil, err)
		}
		x, damage := tab.Rows()
		return img, x, damage
	}
	img, whole, damage := rowsOf()
	s := img.Section(".rela.orc_unwind_ip")
	if len(damage) > 0 || s == nil {
		t.Fatalf("%v, relocations: %v", damage, s)
	}
	b[s.Off+24*5+8] = 200
	_, x, damage := rowsOf()
	if len(damage) != 1 || !strings.HasPrefix(damage[0].Error(), ".orc_unwind_ip+0x14: relocation ") {
		t.Errorf("damage: %v", damage)
	}
	var other []string // where the rule is another one
	for _, r := range whole.Rows {
		if got, want := x.At(r.Lo).Text(x.Machine), whole.At(r.Lo).Text(whole.Machine); got != want {
			section, off := img.Place(r.Lo)
			other = append(other, fmt.Sprintf("%s+%#x", section, off))
		}
	}
	if entry := fmt.Sprintf("%s+%#x", ".text", lines[5].at); !slices.Equal(other, []string{entry}) {
		t.Errorf("other rules at %v, want %s", other, entry)
	}
}

// padding says whether an instruction that does nothing has the byte at pc: nop, or nop with an operand and prefixes, inside of a function.
func padding(img *module.Image, pc arch.Vaddr) bool {
	for back := range arch.Vaddr(12) {
		b, ok := img.At(pc-back, 3)
		if !ok {
			return false
		}
		if b[0] == 0x90 && back == 0 || b[0] == 0x0f && b[1] == 0x1f && back < 8 || b[0] == 0x66 && (b[1] == 0x90 || b[1] == 0x0f && b[2] == 0x1f || b[1] == 0x2e || b[1] == 0x66) {
			return true
		}
	}
	return false
}

// TestCFI: objtool's entries, made from instructions, and gcc's call frame information, made by who wrote the instructions, say the same at
// every byte of the same code.
func TestCFI(t *testing.T) {
	oracle.Long(t)
	// What differs is permitted for a reason, and must differ somewhere.
	gaps, copied := 0, 0
	for _, flags := range builds {
		path := built(t, flags...)
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		compare(t, img, judge{objtool61}.dump(t, path), sectionsOf(t, img))
		tab, err := Open(img)
		if err != nil {
			t.Fatal(err)
		}
		x, _ := tab.Rows()
		frames, err := dwarf.Open(img)
		if err != nil {
			t.Fatal(err)
		}
		eh, damage := frames.Build(dwarf.EHFrame)
		if len(damage) > 0 || len(eh.Rows) < 50 {
			t.Fatalf("%v: .eh_frame has %d rows, %v", flags, len(eh.Rows), damage)
		}
		m := img.Machine()
		bad := 0
		for i, r := range eh.Rows {
			if r.Set == rows.GapID {
				continue
			}
			want := &eh.Sets[r.Set]
			for pc := r.Lo; pc < eh.Hi(i); pc++ {
				got := x.At(pc)
				if got.Gap() {
					if gaps++; !padding(img, pc) && bad < 10 {
						bad++
						section, off := img.Place(pc)
						t.Errorf("%v: no entry at %s+%#x", flags, section, off)
					}
					continue
				}
				fp, ok := want.Rule(m.FP)
				if !ok {
					fp = rows.Rule{Of: m.FP, Kind: rows.SameValue}
				}
				gotFP, _ := got.Rule(m.FP)
				gotCFA := got.CFA
				if code, ok := img.At(r.Lo, 3); ok && string(code) == "\x48\x83\xe4" && want.CFA.Kind == rows.CFAReg && want.CFA.Reg == 10 && pc < r.Lo+4 &&
					gotCFA == (rows.CFA{Kind: rows.CFAReg, Reg: m.SP, Off: 8}) {
					copied++ // before "and $-64,%rsp", r10 and rsp+8 are the same
					gotCFA = want.CFA
				}
				ra, _ := want.Rule(m.RA)
				if gotRA, _ := got.Rule(m.RA); (gotCFA != want.CFA || gotFP != fp || gotRA != ra) && bad < 10 {
					bad++
					section, off := img.Place(pc)
					t.Errorf("%v: at %s+%#x\nobjtool %s\n    gcc %s", flags, section, off, got.Text(m), want.Text(m))
				}
			}
		}
	}
	if t.Logf("%d bytes in gaps, %d before a stack is aligned", gaps, copied); gaps == 0 || copied == 0 {
		t.Errorf("%d bytes in gaps and %d before a stack is aligned, want some of each: what never differs needs no permission", gaps, copied)
	}
}
