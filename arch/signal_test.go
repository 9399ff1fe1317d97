package arch_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// TestSaved has a C compiler say where the kernel saves registers.
func TestSaved(t *testing.T) {
	for _, c := range []struct {
		m        *arch.Machine
		cc       string
		fields   func(r arch.Reg) string // of ucontext_t; "" for none
		ucontext string                  // where it is at the stack pointer that a handler returns with
	}{
		{arch.AMD64, "gcc", func(r arch.Reg) string {
			return fmt.Sprintf("offsetof(ucontext_t, uc_mcontext.gregs[REG_%s])", strings.ToUpper(arch.AMD64.RegName(r)))
		}, "0"},
		{arch.ARM64, "aarch64-linux-gnu-gcc", func(r arch.Reg) string {
			if r < 31 {
				return fmt.Sprintf("offsetof(ucontext_t, uc_mcontext.regs[%d])", r)
			}
			return fmt.Sprintf("offsetof(ucontext_t, uc_mcontext.%s)", arch.ARM64.RegName(r))
		}, "sizeof(siginfo_t)"},
	} {
		t.Run(c.m.Name, func(t *testing.T) {
			oracle.Need(t, c.cc)
			// The answers are in the object, so that nothing has to run.
			src := "#define _GNU_SOURCE\n#include <stddef.h>\n#include <signal.h>\n#include <sys/ucontext.h>\n"
			for r := range c.m.Signal.Saved {
				src += fmt.Sprintf("_Static_assert(%s + %s == %d, \"%s\");\n", c.ucontext, c.fields(arch.Reg(r)), c.m.Signal.Saved[r], c.m.RegName(arch.Reg(r)))
			}
			src += fmt.Sprintf("_Static_assert(%s == %d && offsetof(ucontext_t, uc_flags) == 0 && offsetof(ucontext_t, uc_link) == 8, \"ucontext\");\n", c.ucontext, c.m.Signal.Context)
			path := filepath.Join(t.TempDir(), "offsets.c")
			if err := os.WriteFile(path, []byte(src), 0o644); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(c.cc, "-fsyntax-only", path).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestReturns has an assembler make the code that handlers return to.
func TestReturns(t *testing.T) {
	for _, c := range []struct {
		m        *arch.Machine
		cc, code string
	}{
		{arch.AMD64, "gcc", "mov $15, %rax; syscall"},
		{arch.AMD64, "gcc", "mov $15, %eax; syscall"},
		{arch.ARM64, "aarch64-linux-gnu-gcc", "mov x8, #139; svc #0"},
	} {
		t.Run(c.code, func(t *testing.T) {
			code := assemble(t, c.cc, c.code)
			n, ok := c.m.Signal.At(append(code, 0xcc))
			if !ok || n != len(code) || n > arch.MaxReturn {
				t.Errorf("At(% x) = %d, %v", code, n, ok)
			}
			if n, ok := c.m.Signal.At(code[:len(code)-1]); ok {
				t.Errorf("At(% x), which lacks a byte of % x, = %d, %v; want false", code[:len(code)-1], code, n, ok)
			}
		})
	}
}

func TestAfterCall(t *testing.T) {
	oracle.Long(t)
	for _, c := range []struct {
		m          *arch.Machine
		cc         string
		calls, not []string
	}{
		{arch.AMD64, "gcc", []string{
			"call .+1000", "call *%rax", "call *%r12", "call *(%rax)", "call *(%rsp)", "call *(%r12)", "call *(%r13)", "call *8(%rbx)",
			"call *8(%rsp)", "call *1000(%rax)", "call *1000(%rsp)", "call *1000(%r12,%rax,8)", "call *0x1000(,%rax,8)", "call *8(%rip)",
			"call *(%rax,%rbx,4)", "call *8(%rax,%rbx,4)", "call *0x1000",
		}, []string{"nop", "jmp *%rax", "push 8(%rax)", "ret", "mov $0x10, %eax", "inc %rax"}},
		{arch.ARM64, "aarch64-linux-gnu-gcc", []string{"bl .+1000", "blr x3", "blraaz x3", "blraa x3, x4", "blrab x3, sp"},
			[]string{"nop", "br x3", "ret", "b .+1000", "braa x3, x4"}},
	} {
		for i, code := range append(c.calls, c.not...) {
			t.Run(code, func(t *testing.T) {
				b := assemble(t, c.cc, "nop; nop; nop; nop; "+code)
				want := i < len(c.calls)
				if got := c.m.AfterCall(b[max(0, len(b)-arch.MaxCall):]); got != want {
					t.Errorf("AfterCall(% x) = %v", b, got)
				}
			})
		}
	}
	for _, m := range []*arch.Machine{arch.AMD64, arch.ARM64, arch.ByELF(arch.EM_S390)} {
		if m.AfterCall(nil) || m.AfterCall([]byte{0xff}) {
			t.Errorf("%s: nothing is a call", m.Name)
		}
	}
}

func FuzzAfterCall(f *testing.F) {
	f.Add([]byte("\xff\x14\x24"))
	f.Fuzz(func(t *testing.T, b []byte) {
		arch.AMD64.AfterCall(b)
		arch.ARM64.AfterCall(b)
		arch.AMD64.Signal.At(b)
	})
}

// assemble returns the machine code of instructions.
func assemble(t *testing.T, cc, code string) []byte {
	t.Helper()
	copier := strings.TrimSuffix(cc, "gcc") + "objcopy"
	oracle.Need(t, cc, copier)
	dir := t.TempDir()
	src, obj, out := filepath.Join(dir, "a.s"), filepath.Join(dir, "a.o"), filepath.Join(dir, "a.bin")
	if strings.HasPrefix(cc, "aarch64") {
		code = ".arch armv8.3-a\n" + code
	}
	if err := os.WriteFile(src, []byte(code+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range [][]string{{cc, "-c", "-o", obj, src}, {copier, "-O", "binary", "-j", ".text", obj, out}} {
		if b, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, b)
		}
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
