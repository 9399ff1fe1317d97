package arch_test

import (
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
)

// TestEdge has an assembler make prologues and epilogues; the place is at ^.
func TestEdge(t *testing.T) {
	none := arch.Edge{FP: -1}
	for _, c := range []struct {
		m    *arch.Machine
		code string
		want arch.Edge
		ok   bool
	}{
		{arch.AMD64, "^ push %rbp; mov %rsp,%rbp", none, true},
		{arch.AMD64, "^ endbr64; push %rbp; mov %rsp,%rbp", none, true},
		{arch.AMD64, "endbr64; push %rbp; ^ mov %rsp,%rbp; sub $16,%rsp", arch.Edge{Off: 8}, true},
		{arch.AMD64, "push %rbp; ^ xor %eax,%eax; mov %rsp,%rbp; sub $16,%rsp", arch.Edge{Off: 8}, true},
		{arch.AMD64, "push %rbp; mov %rsp,%rbp; ^ sub $16,%rsp; mov %rdi,-8(%rbp)", none, false},
		{arch.AMD64, "push %rbp; mov %rsp,%rbp; ^ push %rbx; mov %rdi,%rbx", none, false},
		{arch.AMD64, "nop; ^ leave; ret", none, false},
		{arch.AMD64, "leave; ^ ret", none, true},
		{arch.AMD64, "leave; ^ repz ret", none, true},
		{arch.AMD64, "leave; ^ ret $8", none, true},
		{arch.AMD64, "nop; ^ pop %rbp; ret", arch.Edge{Off: 8, FP: 0}, true},
		{arch.AMD64, "nop; ^ add $24,%rsp; pop %rbp; ret", arch.Edge{Off: 32, FP: 24}, true},
		{arch.AMD64, "nop; ^ pop %rbx; pop %rbp; ret", none, false}, // rbx is not known then
		{arch.AMD64, "pop %rbp; ^ jmp .+1000", none, true},
		{arch.AMD64, "leave; ^ jmp *%rax", none, true},
		{arch.AMD64, "pop %rbp; ^ call *%rbx", none, false},
		{arch.AMD64, "nop; ^ jmp .+1000", none, false},
		{arch.AMD64, "nop; ^ ret", none, true},
		{arch.AMD64, "^ sub $8,%rsp; mov 1000(%rip),%rax; test %rax,%rax; je .+4; call *%rax; add $8,%rsp; ret", none, true},
		{arch.AMD64, "sub $8,%rsp; ^ mov 1000(%rip),%rax; test %rax,%rax; je .+4; call *%rax; add $8,%rsp; ret", arch.Edge{Off: 8, FP: -1}, true},
		{arch.AMD64, "nop; ^ movq $0,%rax; test %rax,%rax; je .+4; call *%rax; call .+1000; add $8,%rsp; ret", arch.Edge{Off: 8, FP: -1}, true},
		{arch.AMD64, "test %rax,%rax; je .+4; ^ call *%rax; add $8,%rsp; ret", arch.Edge{Off: 8, FP: -1}, true},
		{arch.AMD64, "sub $8,%rsp; ^ add $8,%rsp; ret", arch.Edge{Off: 8, FP: -1}, true},
		{arch.AMD64, "push %rax; ^ pop %rax; ret", arch.Edge{Off: 8, FP: -1}, true},
		{arch.AMD64, "^ push %rax; pop %rax; ret", none, true},
		{arch.AMD64, "^ sub $8,%rsp; ret", none, false}, // there is no such word
		{arch.AMD64, "nop; ^ mov %rbx,%rax; ret", none, false},
		{arch.ARM64, "^ stp x29,x30,[sp,#-32]!; mov x29,sp", none, true},
		{arch.ARM64, "^ bti c; stp x29,x30,[sp,#-32]!; mov x29,sp", none, true},
		{arch.ARM64, "bti c; ^ paciasp; stp x29,x30,[sp,#-32]!; mov x29,sp", none, true},
		{arch.ARM64, "nop; stp x29,x30,[sp,#-32]!; ^ mov x29,sp", arch.Edge{Off: 32, FP: -1}, true},
		{arch.ARM64, "stp x29,x30,[sp,#-512]!; ^ mov x29,sp; nop", arch.Edge{Off: 512, FP: -1}, true},
		{arch.ARM64, "stp x29,x30,[sp,#-32]!; mov x29,sp; ^ nop", none, false},
		{arch.ARM64, "^ sub sp,sp,#48; stp x29,x30,[sp,#32]; add x29,sp,#32", none, true},
		{arch.ARM64, "sub sp,sp,#48; ^ stp x29,x30,[sp,#32]; add x29,sp,#32", arch.Edge{Off: 48, FP: -1}, true},
		{arch.ARM64, "sub sp,sp,#48; stp x29,x30,[sp,#32]; ^ add x29,sp,#32", arch.Edge{Off: 48, FP: -1}, true},
		{arch.ARM64, "sub sp,sp,#1,lsl #12; ^ stp x29,x30,[sp,#32]; add x29,sp,#32", arch.Edge{Off: 4096, FP: -1}, true},
		{arch.ARM64, "sub sp,sp,#48; ^ str x0,[sp]", none, false},
		{arch.ARM64, "ldp x29,x30,[sp],#32; ^ ret", none, true},
		{arch.ARM64, "ldp x29,x30,[sp],#32; ^ autiasp; ret", none, true},
		{arch.ARM64, "ldp x29,x30,[sp],#32; ^ retaa", none, true},
		{arch.ARM64, "ldp x29,x30,[sp],#32; ^ b .+1000", none, true},
		{arch.ARM64, "ldp x29,x30,[sp],#32; ^ br x16", none, true},
		{arch.ARM64, "nop; ^ ldp x29,x30,[sp],#32; ret", none, false},
		{arch.ARM64, "nop; ^ b .+1000", none, false},
		{arch.ARM64, "nop; ^ blr x16", none, false},
	} {
		t.Run(c.m.Name+" "+c.code, func(t *testing.T) {
			before, at, _ := strings.Cut(c.code, "^ ")
			cc := "gcc"
			if c.m == arch.ARM64 {
				cc = "aarch64-linux-gnu-gcc"
			}
			code := assemble(t, cc, before+"\n"+at)
			n := 0
			if before != "" {
				n = len(assemble(t, cc, before))
			}
			got, ok := c.m.Edge(code[:n], code[n:])
			if ok != c.ok || ok && got != c.want {
				t.Errorf("Edge(% x, % x) = %+v, %v", code[:n], code[n:], got, ok)
			}
			for i := range code[n:] { // cut off: the same, or nothing
				if got, ok := c.m.Edge(code[:n], code[n:n+i]); ok && got != c.want {
					t.Errorf("Edge(% x, % x) = %+v", code[:n], code[n:n+i], got)
				}
			}
		})
	}
	if _, ok := arch.ByELF(arch.EM_S390).Edge(nil, []byte("\xc3")); ok {
		t.Error("another machine's code")
	}
}

func FuzzEdge(f *testing.F) {
	f.Add([]byte("\x55"), []byte("\x48\x89\xe5\xc3"))
	f.Fuzz(func(t *testing.T, before, at []byte) {
		for _, m := range []*arch.Machine{arch.AMD64, arch.ARM64} {
			if e, ok := m.Edge(before, at); ok && (e.FP >= 0 && uint64(e.FP) >= e.Off || e.Off > 1<<24) {
				t.Errorf("%s: %+v", m.Name, e)
			}
		}
	})
}
