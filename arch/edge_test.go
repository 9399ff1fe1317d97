package arch_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// TestEdge has an assembler make prologues and epilogues; the place is at ^.
func TestEdge(t *testing.T) {
	oracle.Long(t)
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
		{arch.I386, "^ push %ebp; mov %esp,%ebp", none, true},
		{arch.I386, "^ endbr32; push %ebp; mov %esp,%ebp", none, true},
		{arch.I386, "^ .byte 0x8b,0xff; push %ebp; .byte 0x8b,0xec", none, true}, // as Microsoft's compiler writes mov
		{arch.I386, "push %ebp; ^ .byte 0x8b,0xec; sub $16,%esp", arch.Edge{Off: 4}, true},
		{arch.I386, "push %ebp; ^ mov %esp,%ebp; sub $16,%esp", arch.Edge{Off: 4}, true},
		{arch.I386, "push %ebp; mov %esp,%ebp; ^ push %ebx; mov 8(%ebp),%ebx", none, false},
		{arch.I386, "call *%edx; ^ ret $20", none, true}, // a system call of Windows
		{arch.I386, "call *%edx; ^ add $4,%esp; ret $20", arch.Edge{Off: 4, FP: -1}, true},
		{arch.I386, "nop; ^ pop %ebp; ret", arch.Edge{Off: 4, FP: 0}, true},
		{arch.I386, "nop; ^ add $24,%esp; pop %ebp; ret", arch.Edge{Off: 28, FP: 24}, true},
		{arch.I386, "nop; ^ pop %ebx; pop %ebp; ret", none, false},
		{arch.I386, "nop; ^ leave; ret", none, false},
		{arch.I386, "leave; ^ ret", none, true},
		{arch.I386, "pop %ebp; ^ jmp .+1000", none, true},
		{arch.I386, "leave; ^ jmp *%eax", none, true},
		{arch.I386, "nop; ^ jmp .+1000", none, false},
		{arch.ARM64, "^ stp x29,x30,[sp,#-32]!; mov x29,sp", none, true},
		{arch.ARM64, "^ bti c; stp x29,x30,[sp,#-32]!; mov x29,sp", none, true},
		{arch.ARM64, "^ bti c; paciasp; stp x29,x30,[sp,#-32]!; mov x29,sp", none, true},
		{arch.ARM64, "^ nop; stp x29,x30,[sp,#-16]!; mov x29,sp; bl .+100", none, true}, // _init of glibc
		{arch.ARM64, "^ nop; sub sp,sp,#48; stp x29,x30,[sp,#32]", none, true},
		{arch.ARM64, "^ nop; sub sp,sp,#48; str x0,[sp]", none, false},
		{arch.ARM64, "^ nop; nop; stp x29,x30,[sp,#-16]!", none, false}, // between functions
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
		{arch.ARM64, "^ cmp w0,#15; b.hi .+100; mov w2,#1; ldr w6,[x4]; tbnz w6,#0,.+100; dmb ishld; isb; mrs x2,cntvct_el0; ldr xzr,[x5]; ret", none, true},
		{arch.ARM64, "^ ldp x12,x11,[x4,#8]; ldp w7,w9,[x4,#24]; madd x0,x0,x7,x10; stp x5,x0,[x1]; ldr x0,[sp,#8]; ret", none, true},
		{arch.ARM64, "^ mov x8,#113; svc #0; ret", none, true},
		{arch.ARM64, "^ ldr x1,[x0],#8; fadd d30,d1,d2; ret", none, false}, // its number is the link register's
		{arch.ARM64, "^ mov w0,#0; bl .+1000; ret", none, false},
		{arch.ARM64, "^ mov w0,#0; ldr x30,[sp],#16; ret", none, false},
		{arch.ARM64, "^ mov w0,#0; ldp x29,x30,[sp,#16]; ret", none, false},
		{arch.ARM64, "^ mov w0,#0; add sp,sp,#16; ret", none, false},
		{arch.ARM64, "^ mov w0,#0; mov sp,x20; ret", none, false},
		{arch.ARM64, "^ add sp,x20,w1,uxtw; ret", none, false},
		{arch.ARM64, "^ and sp,x1,#-16; ret", none, false},
		{arch.ARM64, "^ str x1,[sp,#-16]!; ret", none, false},
		{arch.ARM64, "^ stp x1,x2,[sp],#16; ret", none, false},
		{arch.ARM64, "paciasp; ^ mov w0,#0; autiasp; ret", none, true},
		{arch.ARM64, "^ mov w0,#0; paciasp; ret", none, false},
		{arch.ARM64, "^ mov w0,#0; ret x27", none, false},
		{arch.ARM64, "nop; ^ blr x16", none, false},
	} {
		t.Run(c.m.Name+" "+c.code, func(t *testing.T) {
			before, at, _ := strings.Cut(c.code, "^ ")
			cc := "gcc"
			if c.m == arch.ARM64 {
				cc = "aarch64-linux-gnu-gcc"
			}
			mode := ""
			if c.m == arch.I386 {
				mode = ".code32\n"
			}
			code := assemble(t, cc, mode+before+"\n"+at)
			n := 0
			if before != "" {
				n = len(assemble(t, cc, mode+before))
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
	if got, ok := arch.ByELF(arch.EM_S390).Edge(nil, []byte("\xc3")); ok {
		t.Errorf("Edge of s390x finds a rule in c3, a return of x86: %+v; want none", got)
	}
}

// TestPasses: of what leaves the link register and the stack pointer alone, a disassembler says so, too: random instructions, of which those that Edge
// lets pass on to a return behind them write neither, and lead nowhere else.
func TestPasses(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "aarch64-linux-gnu-objdump")
	r := rand.New(rand.NewPCG(7, 11))
	ret := []byte("\xc0\x03\x5f\xd6")
	var code []byte
	for range 200_000 {
		w := r.Uint32()
		if r.IntN(2) == 0 { // of the registers in question
			w = w&^0x3ff | uint32(r.IntN(4)+28)<<5 | uint32(r.IntN(4)+28)
		}
		if r.IntN(3) == 0 {
			w = w&^0x7c00 | 30<<10
		}
		word := binary.LittleEndian.AppendUint32(nil, w)
		if _, ok := arch.ARM64.Edge(nil, append(word, ret...)); ok && w != 0xd65f03c0 && w&0xffc07fff != 0xa9807bfd { // but those that are edges themselves
			code = append(code, word...)
		}
	}
	path := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(path, code, 0o666); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("aarch64-linux-gnu-objdump", "-D", "-b", "binary", "-m", "aarch64", "--no-show-raw-insn", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	var (
		line   = regexp.MustCompile(`(?m)^ *([0-9a-f]+):\t(\S+)\s*(.*)$`)
		leaves = regexp.MustCompile(`^(bl|blr.*|br.*|b|ret.*|eret.*|drps|brk|hlt|udf|pac[^g].*|aut[^i].*|auti.(1716|z)|xpac.*|chkfeat|gcs.*)$`)
		writes = regexp.MustCompile(`^(sp|wsp|x30|w30)\b|\[(sp|x30)(\]!?, ?[^\]]|[^\]]*\]!)`)
		second = regexp.MustCompile(`^\S+, ?(x30|w30)\b`)
		pairs  = regexp.MustCompile(`^(ldn?p|ldpsw|ldxp|ldaxp)$`)
		reads  = regexp.MustCompile(`^(cmp|cmn|tst|ccm.*|cb.*|tb.*|b\..*|bc\..*|prfm|prfum|st.*|swp.*|cas.*|rcw.*|ld(add|clr|eor|set|smax|smin|umax|umin).*)$`)
	)
	all := line.FindAllStringSubmatch(string(out), -1)
	if len(all) < 20_000 || len(all)*4 != len(code) {
		t.Fatalf("%d lines for %d bytes", len(all), len(code))
	}
	known := 0
	for _, m := range all {
		name, args := m[2], m[3]
		if name == ".inst" {
			continue // no instruction of this disassembler's
		}
		known++
		at, _ := strconv.ParseUint(m[1], 16, 64)
		wrong := leaves.MatchString(name) && !strings.HasPrefix(name, "b.")
		for _, x := range writes.FindAllString(args, -1) {
			wrong = wrong || strings.HasPrefix(x, "[") || !reads.MatchString(name)
		}
		wrong = wrong || pairs.MatchString(name) && second.MatchString(args)
		if wrong {
			t.Errorf("% x passes: %s %s", code[at:at+4], name, args)
		}
	}
	if known < 15_000 {
		t.Errorf("only %d of %d are instructions", known, len(all))
	}
	t.Logf("%d instructions pass", known)
}

func FuzzEdge(f *testing.F) {
	f.Add([]byte("\x55"), []byte("\x48\x89\xe5\xc3"))
	f.Fuzz(func(t *testing.T, before, at []byte) {
		for _, m := range []*arch.Machine{arch.AMD64, arch.I386, arch.ARM64} {
			if e, ok := m.Edge(before, at); ok && (e.FP >= 0 && uint64(e.FP) >= e.Off || e.Off > 1<<24) {
				t.Errorf("%s: %+v", m.Name, e)
			}
		}
	})
}
