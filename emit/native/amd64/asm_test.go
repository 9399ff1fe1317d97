package amd64

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// instructions pairs each instruction with its text, as objdump -M intel has it, and its bytes.
var instructions = []struct {
	emit  func(a *Asm)
	text  string
	bytes string
}{
	{func(a *Asm) { a.Mov(RAX, R12) }, "mov rax,r12", "4c 89 e0"},
	{func(a *Asm) { a.Mov32(R9, RDX) }, "mov r9d,edx", "41 89 d1"},
	{func(a *Asm) { a.Load(RCX, At(RDI, 8)) }, "mov rcx,QWORD PTR [rdi+0x8]", "48 8b 4f 08"},
	{func(a *Asm) { a.Load(RAX, At(RBP, 0)) }, "mov rax,QWORD PTR [rbp+0x0]", "48 8b 45 00"},
	{func(a *Asm) { a.Load(RAX, At(R13, 0)) }, "mov rax,QWORD PTR [r13+0x0]", "49 8b 45 00"},
	{func(a *Asm) { a.Load(R8, At(RSP, 0x200)) }, "mov r8,QWORD PTR [rsp+0x200]", "4c 8b 84 24 00 02 00 00"},
	{func(a *Asm) { a.Load(R15, At(R12, -128)) }, "mov r15,QWORD PTR [r12-0x80]", "4d 8b 7c 24 80"},
	{func(a *Asm) { a.Load(RAX, Indexed(RDI, RAX, 8, 0x228)) }, "mov rax,QWORD PTR [rdi+rax*8+0x228]", "48 8b 84 c7 28 02 00 00"},
	{func(a *Asm) { a.Load32(RDX, Indexed(RCX, R10, 4, 0)) }, "mov edx,DWORD PTR [rcx+r10*4]", "42 8b 14 91"},
	{func(a *Asm) { a.Load16(R10, Indexed(R11, RCX, 2, 4)) }, "movzx r10d,WORD PTR [r11+rcx*2+0x4]", "45 0f b7 54 4b 04"},
	{func(a *Asm) { a.Load8(RAX, Indexed(R10, RCX, 1, -1)) }, "movzx eax,BYTE PTR [r10+rcx*1-0x1]", "41 0f b6 44 0a ff"},
	{func(a *Asm) { a.Store(At(RDI, 0xa8), RCX) }, "mov QWORD PTR [rdi+0xa8],rcx", "48 89 8f a8 00 00 00"},
	{func(a *Asm) { a.StoreImm(At(RBP, -24), 3) }, "mov QWORD PTR [rbp-0x18],0x3", "48 c7 45 e8 03 00 00 00"},
	{func(a *Asm) { a.Zext16(R8, R8) }, "movzx r8d,r8w", "45 0f b7 c0"},
	{func(a *Asm) { a.Zext8(RCX, RCX) }, "movzx ecx,cl", "0f b6 c9"},
	{func(a *Asm) { a.Imm(RAX, 7) }, "mov eax,0x7", "b8 07 00 00 00"},
	{func(a *Asm) { a.Imm(R9, 0xffffffff) }, "mov r9d,0xffffffff", "41 b9 ff ff ff ff"},
	{func(a *Asm) { a.Imm(RDX, 1<<64-5) }, "mov rdx,0xfffffffffffffffb", "48 c7 c2 fb ff ff ff"},
	{func(a *Asm) { a.Imm(R10, 0x1122334455667788) }, "movabs r10,0x1122334455667788", "49 ba 88 77 66 55 44 33 22 11"},
	{func(a *Asm) { a.Lea(RDX, At(RAX, -16)) }, "lea rdx,[rax-0x10]", "48 8d 50 f0"},
	{func(a *Asm) { a.LeaAbs(R11, 0x1000) }, "lea r11,[rip+0x…]", "4c 8d 1d"},
	{func(a *Asm) { a.RR(ADD, RAX, RCX) }, "add rax,rcx", "48 01 c8"},
	{func(a *Asm) { a.RR(OR, R8, RDX) }, "or r8,rdx", "49 09 d0"},
	{func(a *Asm) { a.RR(SBB, RDX, RDX) }, "sbb rdx,rdx", "48 19 d2"},
	{func(a *Asm) { a.RR32(XOR, R10, R10) }, "xor r10d,r10d", "45 31 d2"},
	{func(a *Asm) { a.RM(SUB, RDX, At(RSI, 0)) }, "sub rdx,QWORD PTR [rsi]", "48 2b 16"},
	{func(a *Asm) { a.MR(AND, At(RDI, 32), RDX) }, "and QWORD PTR [rdi+0x20],rdx", "48 21 57 20"},
	{func(a *Asm) { a.RI(ADD, RAX, 8) }, "add rax,0x8", "48 83 c0 08"},
	{func(a *Asm) { a.RI(ADD, RAX, 0x8030) }, "add rax,0x8030", "48 05 30 80 00 00"},
	{func(a *Asm) { a.RI(AND, R8, -0x10081) }, "and r8,0xfffffffffffeff7f", "49 81 e0 7f ff fe ff"},
	{func(a *Asm) { a.RI32(CMP, RAX, 0x12345) }, "cmp eax,0x12345", "3d 45 23 01 00"},
	{func(a *Asm) { a.RI32(AND, R9, 0xfff) }, "and r9d,0xfff", "41 81 e1 ff 0f 00 00"},
	{func(a *Asm) { a.MI(CMP, At(RSI, 40), 0) }, "cmp QWORD PTR [rsi+0x28],0x0", "48 83 7e 28 00"},
	{func(a *Asm) { a.MI(SUB, At(RBP, -40), 0x1000) }, "sub QWORD PTR [rbp-0x28],0x1000", "48 81 6d d8 00 10 00 00"},
	{func(a *Asm) { a.Test(RCX) }, "test rcx,rcx", "48 85 c9"},
	{func(a *Asm) { a.Test32(RDX) }, "test edx,edx", "85 d2"},
	{func(a *Asm) { a.TestByte(At(RDI, 16), 0x80) }, "test BYTE PTR [rdi+0x10],0x80", "f6 47 10 80"},
	{func(a *Asm) { a.Shift(SHR, R9, 16) }, "shr r9,0x10", "49 c1 e9 10"},
	{func(a *Asm) { a.Shift(SAR, RCX, 63) }, "sar rcx,0x3f", "48 c1 f9 3f"},
	{func(a *Asm) { a.ShiftCL(SHL, R8) }, "shl r8,cl", "49 d3 e0"},
	{func(a *Asm) { a.Not(RDX) }, "not rdx", "48 f7 d2"},
	{func(a *Asm) { a.Neg(R8) }, "neg r8", "49 f7 d8"},
	{func(a *Asm) { a.Mul(RCX, RAX) }, "imul rcx,rax", "48 0f af c8"},
	{func(a *Asm) { a.Div(RCX) }, "div rcx", "48 f7 f1"},
	{func(a *Asm) { a.IDiv(RCX) }, "idiv rcx", "48 f7 f9"},
	{func(a *Asm) { a.Cqo() }, "cqo", "48 99"},
	{func(a *Asm) { a.Bts(R8, 7) }, "bts r8,0x7", "49 0f ba e8 07"},
	{func(a *Asm) { a.Btr(R9, 16) }, "btr r9,0x10", "49 0f ba f1 10"},
	{func(a *Asm) { a.Btr32(RDX, 31) }, "btr edx,0x1f", "0f ba f2 1f"},
	{func(a *Asm) { a.Push(RBP) }, "push rbp", "55"},
	{func(a *Asm) { a.Push(R10) }, "push r10", "41 52"},
	{func(a *Asm) { a.Pop(RAX) }, "pop rax", "58"},
	{func(a *Asm) { a.Pop(R11) }, "pop r11", "41 5b"},
	{func(a *Asm) { a.PushImm(-8) }, "push 0xfffffffffffffff8", "6a f8"},
	{func(a *Asm) { a.PushImm(0x1000) }, "push 0x1000", "68 00 10 00 00"},
	{func(a *Asm) { a.PushMem(At(RSP, 8)) }, "push QWORD PTR [rsp+0x8]", "ff 74 24 08"},
	{func(a *Asm) { a.JmpReg(RCX) }, "jmp rcx", "ff e1"},
	{func(a *Asm) { a.CallReg(RAX) }, "call rax", "ff d0"},
	{func(a *Asm) { a.Ret() }, "ret", "c3"},
	{func(a *Asm) { a.Leave() }, "leave", "c9"},
	{func(a *Asm) { a.Clc() }, "clc", "f8"},
	{func(a *Asm) { a.Stc() }, "stc", "f9"},
	{func(a *Asm) { a.Setcc(GE, RCX) }, "setge cl", "0f 9d c1"},
	{func(a *Asm) { a.Cmov(A, RDX, RCX) }, "cmova rdx,rcx", "48 0f 47 d1"},
	{func(a *Asm) { a.Tzcnt32(RAX, RAX) }, "tzcnt eax,eax", "f3 0f bc c0"},
	{func(a *Asm) { a.MovdX(0, RAX) }, "movd xmm0,eax", "66 0f 6e c0"},
	{func(a *Asm) { a.LoadX(1, Indexed(R10, RDX, 1, 0)) }, "movdqu xmm1,XMMWORD PTR [r10+rdx*1]", "f3 41 0f 6f 0c 12"},
	{func(a *Asm) { a.MovX(2, 1) }, "movdqa xmm2,xmm1", "66 0f 6f d1"},
	{func(a *Asm) { a.Unpack8(0, 0) }, "punpcklbw xmm0,xmm0", "66 0f 60 c0"},
	{func(a *Asm) { a.Unpack64(0, 0) }, "punpcklqdq xmm0,xmm0", "66 0f 6c c0"},
	{func(a *Asm) { a.Shuffle16(0, 0, 0) }, "pshuflw xmm0,xmm0,0x0", "f2 0f 70 c0 00"},
	{func(a *Asm) { a.Min8(2, 0) }, "pminub xmm2,xmm0", "66 0f da d0"},
	{func(a *Asm) { a.Equal8(2, 1) }, "pcmpeqb xmm2,xmm1", "66 0f 74 d1"},
	{func(a *Asm) { a.Mask8(RAX, 2) }, "pmovmskb eax,xmm2", "66 0f d7 c2"},
}

// TestBytes holds each instruction against the bytes beside it.
func TestBytes(t *testing.T) {
	for _, x := range instructions {
		var a Asm
		x.emit(&a)
		b, _ := a.Bytes()
		if got := fmt.Sprintf("% x", b); !strings.HasPrefix(got, x.bytes) {
			t.Errorf("%s\n got  %s\n want %s", x.text, got, x.bytes)
		}
	}
}

var spaces = regexp.MustCompile(`\s+`)

// disassemble returns the instructions of code as objdump has them.
func disassemble(t *testing.T, code []byte) []string {
	t.Helper()
	oracle.Need(t, "objdump")
	path := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(path, code, 0o600); err != nil {
		t.Fatal(err)
	}
	out := oracle.Run(t, "objdump", "-D", "-b", "binary", "-m", "i386:x86-64", "-M", "intel", "--no-show-raw-insn", path)
	var text []string
	for line := range strings.Lines(string(out)) {
		if _, ins, ok := strings.Cut(line, ":\t"); ok {
			ins, _, _ = strings.Cut(ins, "#")
			text = append(text, strings.TrimSpace(spaces.ReplaceAllString(ins, " ")))
		}
	}
	return text
}

// TestText holds each instruction against its disassembly.
func TestText(t *testing.T) {
	var a Asm
	for _, x := range instructions {
		x.emit(&a)
	}
	b, _ := a.Bytes()
	text := disassemble(t, b)
	if len(text) != len(instructions) {
		t.Fatalf("%d instructions, want %d", len(text), len(instructions))
	}
	rip := regexp.MustCompile(`\[rip\+0x[0-9a-f]+\]`)
	for i, x := range instructions {
		if got := rip.ReplaceAllString(text[i], "[rip+0x…]"); got != x.text {
			t.Errorf("instruction %d\n got  %s\n want %s", i, got, x.text)
		}
	}
}

// TestOperands tries every register in every place of an operand.
func TestOperands(t *testing.T) {
	names := strings.Fields("rax rcx rdx rbx rsp rbp rsi rdi r8 r9 r10 r11 r12 r13 r14 r15")
	var a Asm
	var want []string
	for r := range Reg(16) {
		for _, disp := range []int32{0, 8, -0x1000} {
			at := map[int32]string{0: "", 8: "+0x8", -0x1000: "-0x1000"}[disp]
			if disp == 0 && r&7 == RBP {
				at = "+0x0"
			}
			a.Load(15-r, At(r, disp))
			want = append(want, fmt.Sprintf("mov %s,QWORD PTR [%s%s]", names[15-r], names[r], at))
			if x := (r + 3) % 16; x != RSP {
				a.Lea(r, Indexed(r, x, 4, disp))
				want = append(want, fmt.Sprintf("lea %s,[%s+%s*4%s]", names[r], names[r], names[x], at))
			}
		}
		a.Push(r)
		a.Pop(r)
		a.Mov(r, 15-r)
		want = append(want, "push "+names[r], "pop "+names[r], fmt.Sprintf("mov %s,%s", names[r], names[15-r]))
	}
	b, _ := a.Bytes()
	got := disassemble(t, b)
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Fatalf("instruction %d\n got  %q\n want %q", i, got[min(i, len(got)-1)], want[i])
		}
	}
}

// TestJumps: a jump is short where that reaches, and goes where its label is.
func TestJumps(t *testing.T) {
	for _, gap := range []int{0, 1, 100, 126, 127, 128, 129, 300, 70_000} {
		var a Asm
		over, back := a.Label(), a.Here()
		a.Jcc(NE, over)
		a.Jmp(over)
		a.Call(over)
		for range gap {
			a.Clc()
		}
		a.Set(over)
		a.Jmp(back)
		a.Jcc(B, back)
		b, at := a.Bytes()
		text := disassemble(t, b)
		n := len(text)
		to, from := fmt.Sprintf("0x%x", at[over]), fmt.Sprintf("0x%x", at[back])
		want := []string{"jne " + to, "jmp " + to, "call " + to, "jmp " + from, "jb " + from}
		got := append(append([]string{}, text[:3]...), text[n-2:]...)
		if !strings.EqualFold(strings.Join(got, "; "), strings.Join(want, "; ")) {
			t.Errorf("gap %d\n got  %s\n want %s", gap, got, want)
		}
		if size := len(b) - gap - 5; gap == 100 && size != 2*4 {
			t.Errorf("gap %d: the jumps take %d bytes", gap, size)
		}
	}
}

// TestDeterministic: the same calls give the same bytes, and Bytes can be asked twice.
func TestDeterministic(t *testing.T) {
	var a Asm
	l := a.Label()
	for range 50 {
		a.Jcc(E, l)
		a.Imm(RAX, 1)
	}
	a.Set(l)
	x, _ := a.Bytes()
	y, _ := a.Bytes()
	if !bytes.Equal(x, y) {
		t.Errorf("%x\n then %x", x, y)
	}
}
