package pe

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

func armReg(r arch.Reg) string {
	if r >= v0 {
		return fmt.Sprintf("d%d", r-v0)
	}
	return fmt.Sprintf("x%d", r)
}

// spell writes an op as an instruction of a prologue, or of an epilogue.
func (o *op) spell(epilogue bool) string {
	word := func(pro, epi string) string {
		if epilogue {
			return epi
		}
		return pro
	}
	switch {
	case o.kind == pairs:
		return word("save next", "restore next")
	case o.kind == zreg:
		return fmt.Sprintf(word("st", "ld")+"r z%d, [sp, #%d, mul vl]", o.reg, o.vl)
	case o.kind == preg:
		return fmt.Sprintf(word("st", "ld")+"r p%d, [sp, #%d, mul vl]", o.reg, o.vl)
	case o.kind == sign:
		return word("pacibsp", "autibsp")
	case o.kind == setFP && o.pop == 0:
		return word("mov x29, sp", "mov sp, x29")
	case o.kind == setFP:
		return fmt.Sprintf(word("add x29, sp, #%d", "sub sp, x29, #%d"), o.pop)
	case o.kind >= machine:
		return map[kind]string{machine: "machine frame", whole: "context", exact: "clear unwound to call"}[o.kind]
	case o.kind != save:
		return "?"
	case o.vl > 0:
		return fmt.Sprintf("addvl sp, #"+word("-", "")+"%d", o.vl)
	case o.reg == 0 && o.pop == 0:
		return "nop"
	case o.reg == 0:
		return fmt.Sprintf(word("sub", "add")+" sp, #%d", o.pop)
	}
	s := word("st", "ld") + "r " + armReg(o.reg)
	if o.two != 0 {
		s = word("st", "ld") + "p " + armReg(o.reg) + ", " + armReg(o.two)
	}
	if o.pop == 0 {
		return s + fmt.Sprintf(", [sp, #%d]", o.off)
	}
	return s + fmt.Sprintf(word(", [sp, #-%d]!", ", [sp], #%d"), o.pop)
}

// lines writes a sequence, up to the end of the function's own part.
func (q *sequence) lines(epilogue bool) string {
	var b strings.Builder
	n := q.n
	for i := range q.ops {
		if q.ops[i].counts() {
			if n--; n < 0 {
				break
			}
		}
		fmt.Fprintln(&b, q.ops[i].spell(epilogue))
	}
	return b.String()
}

var judgeWords = strings.NewReplacer("lr", "x30", "fp", "x29", "sub sp, sp,", "sub sp,")

// own takes the instructions out of what llvm-readobj lists, up to the end of the function's own part.
func own(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if _, after, ok := strings.Cut(line, "; "); ok {
			line = after
		}
		if line == "end" || line == "end_c" {
			break
		}
		line = vector.ReplaceAllString(judgeWords.Replace(line), "d$1")
		fmt.Fprintln(&b, argument.ReplaceAllString(line, "nop"))
	}
	return b.String()
}

var (
	vector      = regexp.MustCompile(`\bq(\d+)`)                             // whose lower half a call preserves
	argument    = regexp.MustCompile(`^stp x[0246], x[1357], \[sp, #\d+\]$`) // that is stored
	armFunction = regexp.MustCompile(`(?s)Function: (?:.* \()?0x([0-9A-F]+)\)?\n.*?FunctionLength: (\d+)\n.*?Prologue \[\n(.*?)\n\s+\]`)
	armScope    = regexp.MustCompile(`(?s)StartOffset: (\d+)\n.*?Opcodes \[\n(.*?)\n\s+\]`)
	armSingle   = regexp.MustCompile(`(?s)Epilogue \[\n(.*?)\n\s+\]`)
)

// armImages returns the images for AArch64.
func armImages(t *testing.T) (list []string) {
	all := images(t)
	for _, path := range all {
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if img.Machine() == arch.WindowsARM64 && Open(img) != nil { // Go's for AArch64 have no directory
			list = append(list, path)
		}
		img.Close()
	}
	if len(list) == 0 {
		t.Fatalf("none of %d images is for AArch64 and has a directory of functions", len(all))
	}
	return list
}

// opened returns the table of an image, and what makes its rows, until the test is over.
func opened(t *testing.T, path string) (*Table, *arm64) {
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	tab := Open(img)
	if _, errs := tab.Rows(); len(errs) > 0 && !strings.HasPrefix(path, "testdata/") {
		t.Errorf("%s: %v, and %d more", path, errs[0], len(errs)-1)
	}
	a := newARM64(tab, tab.reader())
	return tab, a
}

// TestReadobjARM64 compares lengths, prologues and epilogues of all functions with llvm-readobj's.
func TestReadobjARM64(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-readobj-19")
	functions, packed, epilogues, invalid := 0, 0, 0, 0
	for _, path := range append(armImages(t), "testdata/arm64.dll") {
		tab, a := opened(t, path)
		out := oracle.Run(t, "llvm-readobj-19", "--unwind", path)
		list := strings.Split(string(out), "  RuntimeFunction {\n")[1:]
		if len(list) != len(tab.entries) {
			t.Fatalf("%s: the judge has %d functions of %d", path, len(list), len(tab.entries))
		}
		for i, text := range list {
			e := &tab.entries[i]
			m := armFunction.FindStringSubmatch(text)
			if m == nil {
				t.Fatalf("%s: function %d: %s", path, i, text)
			}
			functions++
			var scopes []string
			a.seen = func(start int64, q *sequence) {
				scopes = append(scopes, fmt.Sprintf("at %d\n%s", start, q.lines(true)))
			}
			if _, err := a.rows(e); err != nil {
				if !strings.HasPrefix(path, "testdata/") {
					t.Errorf("%s: %v", path, err)
				}
				continue
			}
			want := own(m[3])
			if e.data&3 != 0 {
				packed++
				// x19 and the return address alone: no one instruction saves both and makes room, and version 19 has no words for two.
				if strings.Contains(want, "INVALID!") && e.data>>16&15 == 1 && e.data>>21&3 == 1 {
					invalid++
					continue
				}
			}
			got := a.pro.lines(false)
			if strings.Contains(want, "Bad opcode!") && strings.Contains(got, "addvl") { // version 19 does not know these: TestScalable asks version 22
				continue
			}
			if where := fmt.Sprintf("%X %d", uint64(tab.base)+uint64(e.begin), e.end-e.begin); got != want || where != m[1]+" "+m[2] {
				t.Errorf("%s: function %s, want %s %s\n got\n%s\n want\n%s", path, where, m[1], m[2], got, want)
			}
			if e.data&3 == 0 {
				var theirs []string
				for _, s := range armScope.FindAllStringSubmatch(text, -1) {
					var start int64
					fmt.Sscan(s[1], &start)
					theirs = append(theirs, fmt.Sprintf("at %d\n%s", 4*start, own(s[2])))
				}
				if s := armSingle.FindStringSubmatch(text); s != nil && len(scopes) == 1 {
					w := own(s[1])
					theirs = append(theirs, fmt.Sprintf("at %d\n%s", int64(e.end-e.begin)-4*int64(strings.Count(w, "\n")+1), w))
				}
				if strings.Contains(text, "EpilogueOffset: 0\n") {
					scopes = nil // the judge lists no epilogue that has the prologue's codes: TestCode looks at it
				}
				epilogues += len(theirs)
				if g, w := strings.Join(scopes, ""), strings.Join(theirs, ""); g != w {
					t.Errorf("%s: epilogues of %#x\n got\n%s\n want\n%s", path, e.begin, g, w)
				}
			}
			if t.Failed() {
				return
			}
		}
	}
	if functions < 10_000 || epilogues < 4_000 || invalid > functions/100 {
		t.Errorf("%d functions, %d epilogues, %d that the judge calls invalid", functions, epilogues, invalid)
	}
	t.Logf("%d functions, %d of them packed, %d epilogues; permitted: %d that the judge calls invalid", functions, packed, epilogues, invalid)
}

// disarm spells the instruction that a code can stand for; "" for another.
func disarm(w uint32) string {
	rt, rn, rt2 := w&31, w>>5&31, w>>10&31
	imm7 := int64(int32(w<<10)>>25) * 8
	imm9 := int64(int32(w<<11) >> 23)
	imm12 := int64(w >> 10 & 0xfff * 8)
	name := func(r uint32, float bool) string {
		if float {
			return fmt.Sprintf("d%d", r)
		}
		return fmt.Sprintf("x%d", r)
	}
	switch w {
	case 0xd503237f:
		return "pacibsp"
	case 0xd50323ff:
		return "autibsp"
	case 0xd503201f:
		return "nop"
	case 0x910003fd:
		return "mov x29, sp"
	case 0x910003bf:
		return "mov sp, x29"
	case 0xd65f03c0, 0xd65f0fff:
		return "ret"
	}
	if rn == 31 {
		f := w>>26&1 != 0
		switch w & 0xffc00000 {
		case 0xa9000000, 0x6d000000:
			return fmt.Sprintf("stp %s, %s, [sp, #%d]", name(rt, f), name(rt2, f), imm7)
		case 0xa9800000, 0x6d800000:
			return fmt.Sprintf("stp %s, %s, [sp, #%d]!", name(rt, f), name(rt2, f), imm7)
		case 0xa9400000, 0x6d400000:
			return fmt.Sprintf("ldp %s, %s, [sp, #%d]", name(rt, f), name(rt2, f), imm7)
		case 0xa8c00000, 0x6cc00000:
			return fmt.Sprintf("ldp %s, %s, [sp], #%d", name(rt, f), name(rt2, f), imm7)
		case 0xf9000000, 0xfd000000:
			return fmt.Sprintf("str %s, [sp, #%d]", name(rt, f), imm12)
		case 0xf9400000, 0xfd400000:
			return fmt.Sprintf("ldr %s, [sp, #%d]", name(rt, f), imm12)
		}
		switch w & 0xffe00c00 {
		case 0xf8000c00, 0xfc000c00:
			return fmt.Sprintf("str %s, [sp, #%d]!", name(rt, f), imm9)
		case 0xf8400400, 0xfc400400:
			return fmt.Sprintf("ldr %s, [sp], #%d", name(rt, f), imm9)
		}
	}
	n := int64(w>>10&0xfff) << (12 * (w >> 22 & 1))
	switch {
	case w&0xff8003ff == 0xd10003ff:
		return fmt.Sprintf("sub sp, #%d", n)
	case w&0xff8003ff == 0x910003ff:
		return fmt.Sprintf("add sp, #%d", n)
	case w&0xff8003ff == 0x910003fd:
		return fmt.Sprintf("add x29, sp, #%d", n)
	case w&0xff8003ff == 0xd10003bf:
		return fmt.Sprintf("sub sp, x29, #%d", n)
	case w>>26 == 0x25:
		return "bl"
	}
	return ""
}

// TestCode compares each code of prologues and epilogues with the instruction that it stands for.
func TestCode(t *testing.T) {
	same, permitted := 0, map[string]int{}
	for _, path := range armImages(t) {
		tab, a := opened(t, path)
		code := tab.reader()
		for i := range tab.entries {
			e := &tab.entries[i]
			b := img32(code.tail(e.begin))
			check := func(start int64, q *sequence, epilogue bool) {
				list := strings.Split(strings.TrimSuffix(strings.ReplaceAll(q.lines(epilogue), "clear unwound to call\n", ""), "\n"), "\n")
				if q.n == 0 {
					return
				}
				for k, want := range list {
					at := k
					if !epilogue {
						at = len(list) - 1 - k
					}
					off := start + 4*int64(at)
					if off+4 > int64(e.end-e.begin) || off+4 > int64(len(b)) {
						continue
					}
					got := disarm(b.at(int(off)))
					if w := b.at(int(off)); w&^(1<<30) == 0x8b2f73ff { // add or sub sp, sp, x15, uxtx #4: a large frame
						for back := int64(4); back <= 12 && back <= off; back += 4 {
							if m := b.at(int(off - back)); m&0xffe0001f == 0xd280000f { // mov x15, #n
								got = fmt.Sprintf("%s sp, #%d", map[bool]string{true: "sub", false: "add"}[w>>30&1 != 0], m>>5&0xffff*16)
							}
						}
					}
					pair := strings.HasPrefix(got, map[bool]string{true: "ldp ", false: "stp "}[epilogue])
					switch {
					case got == want, want == "nop", strings.HasSuffix(want, " next") && pair:
						same++
					case got == "bl" && strings.HasSuffix(want, " sp, #16"):
						permitted["a call pushes or pops the cookie that guards the stack (/GS)"]++
					case want == "mov sp, x29":
						permitted["the epilogue does not set the stack pointer from x29, which has the frame still"]++
					default:
						t.Errorf("%s: %#x: %q, want %q", path, uint64(tab.base)+uint64(e.begin)+uint64(off), got, want)
					}
				}
			}
			a.seen = func(start int64, q *sequence) { check(start, q, true) }
			if _, err := a.rows(e); err != nil {
				continue
			}
			if e.data&3 != 2 {
				check(0, &a.pro, false)
			}
		}
	}
	if same < 80_000 || len(permitted) != 2 {
		t.Errorf("%d codes are the code's instructions, want 80,000; permitted: %v", same, permitted)
	}
	for why, n := range permitted {
		if n > same/200 {
			t.Errorf("%d of %d: %s", n, same, why)
		}
	}
	t.Logf("%d codes are the code's instructions; permitted: %v", same, permitted)
}
