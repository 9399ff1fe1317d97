package arm64

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// instructions pairs each instruction with its text and its bytes.
var instructions = []struct {
	emit  func(a *Asm)
	text  string
	bytes string
}{
	{func(a *Asm) { a.Mov(X9, X30) }, "mov x9, x30", "e9 03 1e aa"},
	{func(a *Asm) { a.Mov32(X2, X17) }, "mov w2, w17", "e2 03 11 2a"},
	{func(a *Asm) { a.RR(ADD, X1, X2, X3) }, "add x1, x2, x3", "41 00 03 8b"},
	{func(a *Asm) { a.RR(SUB, X15, X16, X17) }, "sub x15, x16, x17", "0f 02 11 cb"},
	{func(a *Asm) { a.RR(SUB, X9, XZR, X10) }, "neg x9, x10", "e9 03 0a cb"},
	{func(a *Asm) { a.RR(AND, X1, X2, X3) }, "and x1, x2, x3", "41 00 03 8a"},
	{func(a *Asm) { a.RR(BIC, X1, X2, X3) }, "bic x1, x2, x3", "41 00 23 8a"},
	{func(a *Asm) { a.RR(ORR, X1, X2, X3) }, "orr x1, x2, x3", "41 00 03 aa"},
	{func(a *Asm) { a.RR(ORN, X1, XZR, X3) }, "mvn x1, x3", "e1 03 23 aa"},
	{func(a *Asm) { a.RR(EOR, X1, X2, X3) }, "eor x1, x2, x3", "41 00 03 ca"},
	{func(a *Asm) { a.RR(LSL, X1, X2, X3) }, "lsl x1, x2, x3", "41 20 c3 9a"},
	{func(a *Asm) { a.RR(LSR, X1, X2, X3) }, "lsr x1, x2, x3", "41 24 c3 9a"},
	{func(a *Asm) { a.RR(ASR, X1, X2, X3) }, "asr x1, x2, x3", "41 28 c3 9a"},
	{func(a *Asm) { a.RR(UDIV, X1, X2, X3) }, "udiv x1, x2, x3", "41 08 c3 9a"},
	{func(a *Asm) { a.RR(SDIV, X1, X2, X3) }, "sdiv x1, x2, x3", "41 0c c3 9a"},
	{func(a *Asm) { a.RR(MUL, X1, X2, X3) }, "mul x1, x2, x3", "41 7c 03 9b"},
	{func(a *Asm) { a.Msub(X1, X2, X3, X4) }, "msub x1, x2, x3, x4", "41 90 03 9b"},
	{func(a *Asm) { a.Shifted(ADD, X14, X10, X13, 1) }, "add x14, x10, x13, lsl #1", "4e 05 0d 8b"},
	{func(a *Asm) { a.Shifted(ORR, X1, X2, X3, 63) }, "orr x1, x2, x3, lsl #63", "41 fc 03 aa"},
	{func(a *Asm) { a.RR32(ADD, X1, X2, X3) }, "add w1, w2, w3", "41 00 03 0b"},
	{func(a *Asm) { a.RR32(SUB, X1, X2, X3) }, "sub w1, w2, w3", "41 00 03 4b"},
	{func(a *Asm) { a.Cmp(X9, X10) }, "cmp x9, x10", "3f 01 0a eb"},
	{func(a *Asm) { a.AddImm(X9, SP, 0) }, "mov x9, sp", "e9 03 00 91"},
	{func(a *Asm) { a.AddImm(SP, X29, 16) }, "add sp, x29, #16", "bf 43 00 91"},
	{func(a *Asm) { a.AddImm(X1, X2, 4095) }, "add x1, x2, #4095", "41 fc 3f 91"},
	{func(a *Asm) { a.SubImm(X1, X2, 4096) }, "sub x1, x2, #1, lsl #12", "41 04 40 d1"},
	{func(a *Asm) { a.SubsImm(X1, X2, 1) }, "subs x1, x2, #1", "41 04 00 f1"},
	{func(a *Asm) { a.CmpImm(X1, 64) }, "cmp x1, #64", "3f 00 01 f1"},
	{func(a *Asm) { a.AndImm(X1, X2, 63) }, "and x1, x2, #63", "41 14 40 92"},
	{func(a *Asm) { a.OrrImm(X1, X2, 1<<31) }, "orr x1, x2, #2147483648", "41 00 61 b2"},
	{func(a *Asm) { a.Imm(X0, 0) }, "mov x0, #0", "00 00 80 d2"},
	{func(a *Asm) { a.Imm(X0, 0x10000) }, "mov x0, #65536", "20 00 a0 d2"},
	{func(a *Asm) { a.Imm(X0, ^uint64(0)) }, "mov x0, #-1", "00 00 80 92"},
	{func(a *Asm) { a.Imm(X0, 0xffff_ffff_0000) }, "mov x0, #281474976645120", "e0 7f 70 b2"},
	{func(a *Asm) { a.LslImm(X1, X2, 16) }, "lsl x1, x2, #16", "41 bc 70 d3"},
	{func(a *Asm) { a.LsrImm(X1, X2, 8) }, "lsr x1, x2, #8", "41 fc 48 d3"},
	{func(a *Asm) { a.AsrImm(X1, X2, 63) }, "asr x1, x2, #63", "41 fc 7f 93"},
	{func(a *Asm) { a.Zext16(X1, X2) }, "uxth w1, w2", "41 3c 00 53"},
	{func(a *Asm) { a.Csel(X1, X2, X3, HI) }, "csel x1, x2, x3, hi", "41 80 83 9a"},
	{func(a *Asm) { a.Cset(X1, GE) }, "cset x1, ge", "e1 b7 9f 9a"},
	{func(a *Asm) { a.Rbit(X1, X2) }, "rbit x1, x2", "41 00 c0 da"},
	{func(a *Asm) { a.Clz(X1, X2) }, "clz x1, x2", "41 10 c0 da"},
	{func(a *Asm) { a.Load(X9, At(X0, 16)) }, "ldr x9, [x0, #16]", "09 08 40 f9"},
	{func(a *Asm) { a.Load(X9, At(SP, 0)) }, "ldr x9, [sp]", "e9 03 40 f9"},
	{func(a *Asm) { a.Load(X9, At(X29, -16)) }, "ldur x9, [x29, #-16]", "a9 03 5f f8"},
	{func(a *Asm) { a.Store(At(X0, 1064), X11) }, "str x11, [x0, #1064]", "0b 14 02 f9"},
	{func(a *Asm) { a.Store(At(X29, -256), XZR) }, "stur xzr, [x29, #-256]", "bf 03 10 f8"},
	{func(a *Asm) { a.LoadSize(Word, X10, At(X15, 32)) }, "ldr w10, [x15, #32]", "ea 21 40 b9"},
	{func(a *Asm) { a.LoadSize(Half, X10, At(X15, 2)) }, "ldrh w10, [x15, #2]", "ea 05 40 79"},
	{func(a *Asm) { a.LoadSize(Byte, X10, At(X15, 7)) }, "ldrb w10, [x15, #7]", "ea 1d 40 39"},
	{func(a *Asm) { a.LoadSize(Byte, X10, At(X15, -1)) }, "ldurb w10, [x15, #-1]", "ea f1 5f 38"},
	{func(a *Asm) { a.LoadIndexed(Double, X1, X2, X3) }, "ldr x1, [x2, x3, lsl #3]", "41 78 63 f8"},
	{func(a *Asm) { a.LoadIndexed(Word, X1, X2, X3) }, "ldr w1, [x2, x3, lsl #2]", "41 78 63 b8"},
	{func(a *Asm) { a.LoadIndexed(Half, X1, X2, X3) }, "ldrh w1, [x2, x3, lsl #1]", "41 78 63 78"},
	{func(a *Asm) { a.LoadIndexed(Byte, X1, X2, X3) }, "ldrb w1, [x2, x3]", "41 68 63 38"},
	{func(a *Asm) { a.StorePair(X1, X2, At(X0, 504)) }, "stp x1, x2, [x0, #504]", "01 88 1f a9"},
	{func(a *Asm) { a.LoadPair(X1, X2, At(SP, -512)) }, "ldp x1, x2, [sp, #-512]", "e1 0b 60 a9"},
	{func(a *Asm) { a.PushPair(X29, X30, 16) }, "stp x29, x30, [sp, #-16]!", "fd 7b bf a9"},
	{func(a *Asm) { a.PopPair(X29, X30, 16) }, "ldp x29, x30, [sp], #16", "fd 7b c1 a8"},
	{func(a *Asm) { a.JmpReg(X10) }, "br x10", "40 01 1f d6"},
	{func(a *Asm) { a.CallReg(X10) }, "blr x10", "40 01 3f d6"},
	{func(a *Asm) { a.Ret(X30) }, "ret", "c0 03 5f d6"},
	{func(a *Asm) { a.Ret(X16) }, "ret x16", "00 02 5f d6"},
	{func(a *Asm) { a.Strip() }, "xpaclri", "ff 20 03 d5"},
	{func(a *Asm) { a.LoadVec(1, X14, X15) }, "ldr q1, [x14, x15]", "c1 69 ef 3c"},
	{func(a *Asm) { a.Dup(0, X9) }, "dup v0.16b, w9", "20 0d 01 4e"},
	{func(a *Asm) { a.NotBelow(1, 0, 1) }, "cmhs v1.16b, v0.16b, v1.16b", "01 3c 21 6e"},
	{func(a *Asm) { a.Nibbles(1, 1) }, "shrn v1.8b, v1.8h, #4", "21 84 0c 0f"},
	{func(a *Asm) { a.Low(X10, 1) }, "fmov x10, d1", "2a 00 66 9e"},
}

// TestBytes holds each instruction against the bytes beside it.
func TestBytes(t *testing.T) {
	for _, x := range instructions {
		var a Asm
		x.emit(&a)
		b, _ := a.Bytes(0)
		if got := fmt.Sprintf("% x", b); got != x.bytes {
			t.Errorf("%s\n got  %s\n want %s", x.text, got, x.bytes)
		}
	}
}

// lines are instructions with operands of all kinds: their text, and what was encoded.
func lines() (text []string, code []byte) {
	var a Asm
	add := func(s string, f func()) { f(); text = append(text, s) }
	for _, x := range instructions {
		add(x.text, func() { x.emit(&a) })
	}
	name := func(r Reg) string {
		if r == SP {
			return "sp"
		}
		return fmt.Sprintf("x%d", r)
	}
	for r := range Reg(32) {
		other := (r + 7) & 31
		for _, disp := range []int32{8, 248, 255, -1, 256, 32760} {
			op := "ldr"
			if disp < 0 || disp&7 != 0 {
				op = "ldur"
			}
			if other != XZR {
				add(fmt.Sprintf("%s %s, [%s, #%d]", op, name(other), name(r), disp), func() { a.Load(other, At(r, disp)) })
				add(fmt.Sprintf("%s %s, [%s, #%d]", strings.Replace(op, "ld", "st", 1), name(other), name(r), disp), func() { a.Store(At(r, disp), other) })
			}
		}
		add(fmt.Sprintf("add %s, %s, #16", name(r), name(other)), func() { a.AddImm(r, other, 16) })
		if r == SP || other == SP {
			continue
		}
		add(fmt.Sprintf("mov %s, %s", name(r), name(other)), func() { a.Mov(r, other) })
		add(fmt.Sprintf("sub %s, %s, #4080, lsl #12", name(r), name(other)), func() { a.SubImm(r, other, 4080<<12) })
		add(fmt.Sprintf("eor %s, %s, %s", name(r), name(other), name(r)), func() { a.RR(EOR, r, other, r) })
		for n := uint8(1); n < 64; n += 9 {
			add(fmt.Sprintf("lsl %s, %s, #%d", name(r), name(other), n), func() { a.LslImm(r, other, n) })
			add(fmt.Sprintf("lsr %s, %s, #%d", name(r), name(other), n), func() { a.LsrImm(r, other, n) })
			add(fmt.Sprintf("asr %s, %s, #%d", name(r), name(other), n), func() { a.AsrImm(r, other, n) })
		}
		add(fmt.Sprintf("ret %s", name(r)), func() { a.Ret(r) })
		if r == X30 {
			text[len(text)-1] = "ret"
		}
	}
	for c, s := range map[Cond]string{EQ: "eq", NE: "ne", HS: "hs", LO: "lo", HI: "hi", LS: "ls", GE: "ge", LT: "lt", GT: "gt", LE: "le"} {
		add("csel x1, x2, x3, "+s, func() { a.Csel(X1, X2, X3, c) })
		add("cset x1, "+s, func() { a.Cset(X1, c) })
	}
	code, _ = a.Bytes(0)
	return text, code
}

// logicals are numbers that logical operations can hold: every field, every run, every rotation.
func logicals() (vs []uint64) {
	for size := 2; size <= 64; size *= 2 {
		for ones := 1; ones < size; ones++ {
			for rot := 0; rot < size; rot += 1 + size/8 {
				f := uint64(1)<<ones - 1
				f = f>>rot | f<<(size-rot)&(^uint64(0)>>(64-size))
				v := uint64(0)
				for at := 0; at < 64; at += size {
					v |= f << at
				}
				vs = append(vs, v)
			}
		}
	}
	return vs
}

// assemblers and disassemblers judge the encoder, each with the arguments in front of a file's name.
var (
	assemblers = map[string]func(src, out string) []string{
		"llvm-mc-19": func(src, out string) []string {
			return []string{"--triple=aarch64", "-mattr=+pauth", "--filetype=obj", "-o", out, src}
		},
		"aarch64-linux-gnu-as": func(src, out string) []string { return []string{"-march=armv8.3-a", "-o", out, src} },
	}
	disassemblers = map[string]func(file string) []string{
		"llvm-objdump-19":           func(f string) []string { return []string{"-d", "--mattr=+pauth", "--no-show-raw-insn", f} },
		"aarch64-linux-gnu-objdump": func(f string) []string { return []string{"-d", "--no-show-raw-insn", f} },
	}
	objcopy = "aarch64-linux-gnu-objcopy"
)

// assemble returns the code of lines.
func assemble(t *testing.T, tool string, text []string) []byte {
	t.Helper()
	oracle.Need(t, tool, objcopy)
	dir := t.TempDir()
	src, obj, bin := filepath.Join(dir, "x.s"), filepath.Join(dir, "x.o"), filepath.Join(dir, "x.bin")
	if err := os.WriteFile(src, []byte(".text\n"+strings.Join(text, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{append([]string{tool}, assemblers[tool](src, obj)...), {objcopy, "-O", "binary", "-j", ".text", obj, bin}} {
		oracle.Run(t, c[0], c[1:]...)
	}
	b, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestAssemblers: two assemblers make the same of each text.
func TestAssemblers(t *testing.T) {
	text, code := lines()
	for _, v := range logicals() {
		var a Asm
		a.AndImm(X3, X4, v)
		w, _ := a.Bytes(0)
		text, code = append(text, fmt.Sprintf("and x3, x4, #%#x", v)), append(code, w...)
	}
	for tool := range assemblers {
		t.Run(tool, func(t *testing.T) {
			got := assemble(t, tool, text)
			if len(got) != len(code) {
				t.Fatalf("%d bytes, want %d", len(code), len(got))
			}
			for i, s := range text {
				if g, w := code[4*i:][:4], got[4*i:][:4]; string(g) != string(w) {
					t.Errorf("%s\n got  % x\n want % x", s, g, w)
				}
			}
		})
	}
}

var (
	spaces  = regexp.MustCompile(`\s+`)
	numbers = regexp.MustCompile(`0x[0-9a-f]+`)
	carry   = regexp.MustCompile(`, c[sc]$`) // two names of a condition
)

// disassemble returns the instructions of code, with numbers in decimal.
func disassemble(t *testing.T, tool string, code []byte) (text []string) {
	t.Helper()
	oracle.Need(t, tool, "aarch64-linux-gnu-as")
	dir := t.TempDir()
	src, obj := filepath.Join(dir, "x.s"), filepath.Join(dir, "x.o")
	var b strings.Builder
	b.WriteString(".text\n")
	for i := 0; i < len(code); i += 4 {
		fmt.Fprintf(&b, ".inst %#x\n", binary.LittleEndian.Uint32(code[i:]))
	}
	if err := os.WriteFile(src, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "aarch64-linux-gnu-as", "-o", obj, src)
	out, err := exec.Command(tool, disassemblers[tool](obj)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		at, ins, ok := strings.Cut(line, ":")
		if _, err := strconv.ParseUint(strings.TrimSpace(at), 16, 64); !ok || err != nil {
			continue
		}
		ins, _, _ = strings.Cut(ins, "//")
		ins = strings.TrimSpace(spaces.ReplaceAllString(ins, " "))
		ins = numbers.ReplaceAllStringFunc(ins, func(s string) string {
			v, _ := strconv.ParseUint(s[2:], 16, 64)
			return strconv.FormatInt(int64(v), 10)
		})
		text = append(text, carry.ReplaceAllStringFunc(ins, func(s string) string { return map[string]string{", cs": ", hs", ", cc": ", lo"}[s] }))
	}
	return text
}

// TestText: two disassemblers read what was meant.
func TestText(t *testing.T) {
	text, code := lines()
	for tool := range disassemblers {
		t.Run(tool, func(t *testing.T) {
			got := disassemble(t, tool, code)
			if len(got) != len(text) {
				t.Fatalf("%d instructions, want %d", len(got), len(text))
			}
			for i := range text {
				if got[i] != text[i] {
					t.Errorf("instruction %d\n got  %s\n want %s", i, got[i], text[i])
				}
			}
		})
	}
}

// TestImm: numbers of all kinds are what the instructions make, by the assembler's own mov where one instruction does, and by arithmetic.
func TestImm(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	vs := append(logicals(), 0, 1, 0xffff, 0x10000, 1<<32, 1<<48, 0xffff<<48, 1<<63, ^uint64(0), ^uint64(1), 0x12345678, 0xffffffff12345678)
	for range 2000 {
		vs = append(vs, r.Uint64()&(^uint64(0)>>r.IntN(64))<<r.IntN(32))
	}
	want := map[int]int{}
	for _, v := range vs {
		var a Asm
		a.Imm(X7, v)
		b, _ := a.Bytes(0)
		got := uint64(0)
		for i := 0; i < len(b); i += 4 {
			w := binary.LittleEndian.Uint32(b[i:])
			part, shift := uint64(w>>5&0xffff), w>>21&3*16
			switch w >> 23 {
			case 0x1a5:
				got = part << shift
			case 0x125:
				got = ^(part << shift)
			case 0x1e5:
				got = got&^(0xffff<<shift) | part<<shift
			default: // orr
				enc, ok := Logical(v)
				if !ok || len(b) != 4 || w != 0xb20003e7|enc<<10 {
					t.Fatalf("%#x: %x", v, b)
				}
				got = v
			}
		}
		if got != v || len(b) > 16 {
			t.Errorf("%#x is %#x: %x", v, got, b)
		}
		want[len(b)]++
	}
	for n := 4; n <= 16; n += 4 {
		if want[n] == 0 {
			t.Errorf("no number took %d bytes", n)
		}
	}
}

// TestBranches: a branch goes where its label is, near and far, forward and back.
func TestBranches(t *testing.T) {
	oracle.Long(t)
	for _, gap := range []int{0, 1, 8100, 8190, 8191, 8192, 8200, 262_100, 262_140, 262_143, 262_144, 262_150} {
		var a Asm
		over, back := a.Label(), a.Here()
		to := func(l Label) {
			a.Jcc(NE, l)
			a.Cbz(X3, l)
			a.Cbnz(X4, l)
			a.Tbz(X5, 40, l)
			a.Tbnz(X6, 3, l)
			a.Jmp(l)
			a.Call(l)
		}
		to(over)
		for range gap {
			a.Ret(X30)
		}
		a.Set(over)
		to(back)
		b, at := a.Bytes(0)
		names := []string{"b.ne", "cbz x3,", "cbnz x4,", "tbz x5, #40,", "tbnz w6, #3,", "b", "bl"}
		tool := "llvm-objdump-19"
		check := func(code []byte, base int, target uint32) {
			// The shape is known: each is one instruction, or its opposite over a branch.
			at := 0
			text := disassemble(t, tool, code)
			for _, n := range names {
				if at >= len(text) {
					t.Fatalf("gap %d: %q ends before %s", gap, text, n)
				}
				want := fmt.Sprintf("%s %d", n, int(target)-base)
				got, _, _ := strings.Cut(text[at], " <")
				if got == want {
					at++
					continue
				}
				flip := strings.NewReplacer("b.ne", "b.eq", "tbnz", "tbz", "tbz", "tbnz", "cbnz", "cbz", "cbz", "cbnz")
				skip, _, _ := strings.Cut(text[at], " <")
				over, _, _ := strings.Cut(text[at+1], " <")
				if skip != fmt.Sprintf("%s %d", flip.Replace(n), 4*at+8) || over != fmt.Sprintf("b %d", int(target)-base) {
					t.Fatalf("gap %d\n got  %s; %s\n want %s", gap, skip, over, want)
				}
				at += 2
			}
		}
		n := len(b)
		first := n
		for i := 0; i+4 <= n; i += 4 {
			if hex.EncodeToString(b[i:i+4]) == "c0035fd6" || i == int(at[over]) {
				first = i
				break
			}
		}
		check(b[:first], 0, at[over])
		check(b[at[over]:], int(at[over]), at[back])
		if long := (first+n-int(at[over]))/4 - 14; (gap < 8000 && long != 0) || (gap > 262_144 && long != 10) {
			t.Errorf("gap %d: %d branches are long", gap, long)
		}
	}
}

// TestPage: adrp leads to the start of a file, wherever in it the code is.
func TestPage(t *testing.T) {
	for _, offset := range []int64{0x240, 0x12345678} {
		for _, page := range []int64{0, 1, 0x1234} {
			var a Asm
			a.Ret(X30)
			a.Page(X15, page)
			b, _ := a.Bytes(offset)
			w := binary.LittleEndian.Uint32(b[4:])
			imm := int64(w>>5&0x7ffff<<2|w>>29&3) << 43 >> 43
			if got := (offset+4)>>12 + imm; w&0x9f00001f != 0x9000000f || got != page {
				t.Errorf("code at %#x: page %#x\n want %#x", offset, got, page)
			}
		}
	}
}

// TestSelf: adr of the instruction itself.
func TestSelf(t *testing.T) {
	var a Asm
	a.Self(X16)
	b, _ := a.Bytes(0)
	for tool := range assemblers {
		if want := assemble(t, tool, []string{"adr x16, ."}); string(b) != string(want) {
			t.Errorf("%s\n got  % x\n want % x", tool, b, want)
		}
	}
	for tool := range disassemblers {
		if text := disassemble(t, tool, b); len(text) != 1 || !strings.HasPrefix(text[0], "adr x16, ") || !strings.HasPrefix(strings.TrimPrefix(text[0][9:], "#"), "0") {
			t.Errorf("%s: %q", tool, text)
		}
	}
}

// TestUnknown: an instruction that makes no sense is an error and no panic.
func TestUnknown(t *testing.T) {
	run := func(w uint32) error {
		c := CPU{Regions: []Region{{Addr: 0x1000, Bytes: binary.LittleEndian.AppendUint32(nil, w), Code: true}}}
		return c.Run(0x1000)
	}
	for _, w := range []uint32{0x9200fc00, 0x9200f800, 0xb200fc00, 0xb23ffc1f} { // logical operations with a field of one bit, or of none
		if err := run(w); err == nil || !strings.Contains(err.Error(), "is not known") {
			t.Errorf("%08x: %v", w, err)
		}
	}
	r := rand.New(rand.NewPCG(3, 5))
	for range 1 << 18 {
		if w := r.Uint32(); run(w) == nil {
			t.Errorf("%08x returns", w)
		}
	}
}
