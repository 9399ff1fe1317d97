package shadow

import (
	"encoding/hex"
	"strings"
	"testing"

	"golang.org/x/arch/x86/x86asm"
)

func bytesOf(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestDecode holds instructions against what they are.
func TestDecode(t *testing.T) {
	for _, c := range []struct {
		code, text string
		want       inst
	}{
		{"e8 10 00 00 00", "call", inst{kind: call, size: 5, direct: true, rel: 16, writes: true}},
		{"66 66 48 e8 fb ff ff ff", "data16 call", inst{kind: call, size: 8, direct: true, rel: -5, writes: true}},
		{"ff d0", "call *%rax", inst{kind: call, size: 2, writes: true}},
		{"41 ff d4", "call *%r12", inst{kind: call, size: 3, writes: true}},
		{"ff 15 00 01 00 00", "call *0x100(%rip)", inst{kind: call, size: 6, writes: true}},
		{"41 ff 54 24 08", "call *8(%r12)", inst{kind: call, size: 5, writes: true}},
		{"ff 14 c5 00 01 00 00", "call *0x100(,%rax,8)", inst{kind: call, size: 7, writes: true}},
		{"3e ff d0", "notrack call *%rax", inst{kind: call, size: 3, writes: true}},
		{"67 e8 00 00 00 00", "addr32 call", inst{kind: call, size: 6, direct: true, writes: true}},
		{"c3", "ret", inst{kind: ret}},
		{"f3 c3", "rep ret", inst{kind: ret}},
		{"f2 c3", "bnd ret", inst{kind: ret}},
		{"c2 08 00", "ret $8", inst{kind: ret}},
		{"ff e0", "jmp *%rax", inst{kind: jump}},
		{"41 ff e3", "jmp *%r11", inst{kind: jump}},
		{"3e ff e2", "notrack jmp *%rdx", inst{kind: jump}},
		{"ff 25 00 00 00 00", "jmp *(%rip)", inst{kind: jump}},
		{"ff 30", "push (%rax)", inst{writes: true}},
		{"eb 10", "jmp", inst{}},
		{"0f 85 00 00 00 00", "jne", inst{}},
		{"0f 05", "syscall", inst{kind: kernel, writes: true}},
		{"cd 80", "int $0x80", inst{kind: kernel, writes: true}},
		{"cc", "int3", inst{kind: trap, writes: true}},
		{"9c", "pushf", inst{kind: pushf, writes: true}},
		{"c9", "leave", inst{kind: setSP}},
		{"48 89 ec", "mov %rbp,%rsp", inst{kind: setSP}},
		{"4c 89 c4", "mov %r8,%rsp", inst{kind: setSP}},
		{"48 8b a2 a0 00 00 00", "mov 0xa0(%rdx),%rsp", inst{kind: setSP}},
		{"4c 8b 65 f8", "mov -8(%rbp),%r12", inst{}},
		{"49 89 e4", "mov %rsp,%r12", inst{}},
		{"49 89 c4", "mov %rax,%r12", inst{}},
		{"48 94", "xchg %rax,%rsp", inst{kind: setSP, writes: true}},
		{"48 87 e0", "xchg %rsp,%rax", inst{kind: setSP, writes: true}},
		{"5c", "pop %rsp", inst{kind: setSP}},
		{"41 5c", "pop %r12", inst{}},
		{"48 8d 65 d8", "lea -0x28(%rbp),%rsp", inst{kind: setSP}},
		{"49 8d 62 f8", "lea -8(%r10),%rsp", inst{kind: setSP}},
		{"48 8d 64 24 08", "lea 8(%rsp),%rsp", inst{}},
		{"48 83 ec 18", "sub $0x18,%rsp", inst{}},
		{"48 89 5c 24 08", "mov %rbx,8(%rsp)", inst{writes: true}},
		{"48 8b 5c 24 08", "mov 8(%rsp),%rbx", inst{}},
		{"48 83 3d 00 00 00 00 00", "cmpq $0,(%rip)", inst{}},
		{"48 01 03", "add %rax,(%rbx)", inst{writes: true}},
		{"f3 48 ab", "rep stos", inst{writes: true}},
		{"0f 94 c0", "sete %al", inst{}},
		{"0f 94 00", "sete (%rax)", inst{writes: true}},
		{"c5 fe 7f 07", "vmovdqu %ymm0,(%rdi)", inst{writes: true}},
		{"", "nothing", inst{writes: true}},
		{"66", "half", inst{writes: true}},
	} {
		if got := decodeAMD64(bytesOf(t, c.code)); got != c.want {
			t.Errorf("%s (%s)\ngot  %+v\nwant %+v", c.code, c.text, got, c.want)
		}
	}
}

// TestDisassemble holds text against objdump's of the same bytes.
func TestDisassemble(t *testing.T) {
	for _, c := range []struct {
		code, want string
		n          int
	}{
		{"f3 0f 1e fa 55", "endbr64", 4},
		{"48 8b b5 e8 fd ff ff", "mov -0x218(%rbp),%rsi", 7},
		{"62 f1 fe 48 6f 44 24 01", "vmovdqu64 0x40(%rsp),%zmm0", 8},
		{"0f", ".byte 0f", 1},
	} {
		if n, text := disassembleAMD64(bytesOf(t, c.code), 0x1000); n != c.n || text != c.want {
			t.Errorf("%s: %d %q, not %d %q", c.code, n, text, c.n, c.want)
		}
	}
}

// FuzzDecode decodes any bytes. Where x86asm knows a call, its length must be the same.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{"e8 10 00 00 00", "ff 14 c5 00 01 00 00", "62 f1 fe 48 6f 44 24 01", "c4 e3 7d 39 c1 01", "66 66 48 e8 fb ff ff ff"} {
		f.Add(bytesOf(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d := decodeAMD64(b)
		x, err := x86asm.Decode(b, 64)
		if err == nil && x.Op == x86asm.CALL && x.Len != int(d.size) && !strings.ContainsAny(string(b[:x.Len]), "\x66") { // 66 makes the target 16 bits wide, without REX.W
			t.Errorf("% x: a call of %d bytes, not %d", b, x.Len, d.size)
		}
		for at := range 4 {
			disassemble(b, 0x1000, 0x1000, nil)
			if n, _ := disassembleAMD64(b[min(at, len(b)):], 0x1000); n < 0 || n > maxInst || n == 0 && at < len(b) {
				t.Errorf("% x: %d bytes", b, n)
			}
		}
	})
}
