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

// TestLinux has a C compiler say what Linux's headers have: the layouts of registers, and the numbers of system calls.
func TestLinux(t *testing.T) {
	for _, c := range []struct {
		m        *arch.Machine
		cc       string
		user     string // the structure of UserRegs
		field    func(r arch.Reg) string
		perf     func(r arch.Reg) string
		numPerf  string
		tls      string
		starting []string
		trap     string // si_code of the machine's breakpoint
	}{
		{arch.AMD64, "gcc", "struct user_regs_struct", func(r arch.Reg) string { return arch.AMD64.RegName(r) }, func(r arch.Reg) string {
			name := strings.ToUpper(arch.AMD64.RegName(r))
			if r < 8 || r == arch.AMD64.PC {
				name = name[1:]
			}
			return "PERF_REG_X86_" + name
		}, "PERF_REG_X86_64_MAX", "fs_base", []string{"vfork", "clone", "clone3"}, "SI_KERNEL"},
		{arch.ARM64, "aarch64-linux-gnu-gcc", "struct user_pt_regs", func(r arch.Reg) string {
			if r < 31 {
				return fmt.Sprintf("regs[%d]", r)
			}
			return arch.ARM64.RegName(r)
		}, func(r arch.Reg) string {
			if r == 30 {
				return "PERF_REG_ARM64_LR"
			}
			return "PERF_REG_ARM64_" + strings.ToUpper(arch.ARM64.RegName(r))
		}, "PERF_REG_ARM64_MAX", "", []string{"clone", "clone3"}, "TRAP_BRKPT"},
	} {
		t.Run(c.m.Name, func(t *testing.T) {
			oracle.Need(t, c.cc)
			u := c.m.UserRegs
			src := "#include <stddef.h>\n#include <asm/siginfo.h>\n#include <elf.h>\n#include <sys/user.h>\n#include <asm/ptrace.h>\n#include <asm/perf_regs.h>\n#include <asm/unistd.h>\n"
			same := func(what string, n any) {
				src += fmt.Sprintf("_Static_assert(%s == %d, \"%[1]s\");\n", what, n)
			}
			offset := func(field string, word int) { same(fmt.Sprintf("offsetof(%s, %s)", c.user, field), 8*word) }
			same("sizeof("+c.user+")", 8*u.Words)
			var seen uint64
			for i, s := range u.Slots {
				if s != arch.NoSlot {
					offset(c.field(arch.Reg(s)), i)
					seen |= 1 << s
				}
			}
			if u.TLS != 0 {
				offset(c.tls, u.TLS)
			} else {
				same("NT_ARM_TLS", u.TLSSet)
			}
			if u.SignSet != 0 {
				same("NT_ARM_PAC_MASK", u.SignSet)
				same("NT_ARM_HW_BREAK", u.BreakSet)
				same("sizeof(struct user_hwdebug_state)", 8+16*16)
				same("offsetof(struct user_hwdebug_state, dbg_regs[0].ctrl)", 16)
				same("offsetof(struct user_pac_mask, insn_mask)", 8)
				same("sizeof(struct user_pac_mask)", 16)
			}
			if u.Mode != 0 {
				offset("cs", u.Mode)
			}
			same(c.numPerf, len(c.m.Perf))
			var perf uint64
			for i, s := range c.m.Perf {
				if s != arch.NoSlot {
					same(c.perf(arch.Reg(s)), i)
					perf |= 1 << s
				}
			}
			if all := uint64(1)<<(c.m.PC+1) - 1; seen != all || perf != all {
				t.Errorf("slots %#x and, of perf, %#x; want all registers, %#x", seen, perf, all)
			}
			for i, name := range c.starting {
				same("__NR_"+name, c.m.Syscall.Starts[i])
			}
			same("__NR_mmap", c.m.Syscall.Maps[0])
			same("__NR_mprotect", c.m.Syscall.Maps[1])
			same(c.trap, c.m.Trap.Codes[0])
			if len(c.starting) != len(c.m.Syscall.Starts) {
				t.Errorf("system calls %v; want %v", c.m.Syscall.Starts, c.starting)
			}
			path := filepath.Join(t.TempDir(), "linux.c")
			if err := os.WriteFile(path, []byte(src), 0o644); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(c.cc, "-fsyntax-only", path).CombinedOutput(); err != nil {
				t.Errorf("%v\n%s\n%s", err, out, src)
			}
		})
	}
}

func TestByName(t *testing.T) {
	for name, want := range map[string]*arch.Machine{
		"x86_64": arch.AMD64, "amd64": arch.AMD64, "aarch64": arch.ARM64, "arm64": arch.ARM64, "": nil, "riscv64": arch.RISCV64, "i686": arch.I386, "armv7l": arch.ARM,
		"loongarch64": arch.Loong64, "ppc64le": arch.PPC64LE, "ppc64": nil, "arm": nil, "sparc64": nil, "mips": arch.MIPS, "mips64": arch.MIPS64, "s390x": arch.S390X,
	} {
		if got := arch.ByName(name); got != want {
			t.Errorf("ByName(%q) = %v", name, got)
		}
	}
}

// TestWhole: a machine whose frames can be walked lacks nothing that walkers use. It fails for a machine that is added by half.
func TestWhole(t *testing.T) {
	for _, m := range arch.Machines() {
		for what, ok := range map[string]bool{
			"StepKnown":   m.StepKnown && !m.Numbered,
			"names":       m.Name != "" && m.GoArch != "" && m.RAName != "",
			"ByELF":       arch.ByELF(m.ELF) == m,
			"ByName":      arch.ByName(m.Name) == m && arch.ByName(m.GoArch) == m,
			"slots":       m.Slot(m.SP) != arch.NoSlot && m.Slot(m.FP) != arch.NoSlot && m.Slot(m.PC) != arch.NoSlot && m.Slot(m.RA) != arch.NoSlot,
			"CalleeSaved": len(m.CalleeSaved) > 0 && m.SavedSlots()>>m.Slot(m.SP)&1 == 1,
			"Vectors":     m.Vectors >= 0 && m.Vectors <= len(m.CalleeSaved),
			"CallPush":    (m.CallPush == 0) == m.RAInReg,
			"Record":      m.Record.RA > 0 && m.Record.Size > m.Record.RA,
			"Signal":      m.Signal != nil && len(m.Signal.Returns) > 0 && len(m.Signal.Saved) > int(m.PC) && m.Signal.Saved[m.SP] > 0,
			"PLT":         m.PLT != nil && len(m.PLT.First.Push) > 0 && m.PLT.Jumps != nil,
			"Syscall":     len(m.Syscall.Code) > 0 && len(m.Syscall.Starts) > 0 && m.Syscall.Maps[0] > 0 && m.Syscall.Maps[1] > 0 && m.Syscall.Restart != 0,
			"Args":        len(m.Args) >= 3,
			"Perf":        len(m.Perf) > 0 && len(m.Perf) <= 64,
			"UserRegs":    len(m.UserRegs.Slots) > 0 && m.UserRegs.Words >= len(m.UserRegs.Slots) && m.UserRegs.TLS+m.UserRegs.TLSSet > 0,
			"GoMove":      len(m.GoMove.Code) > 0,
			"Return":      len(m.Return) > 0,
			"Trap":        len(m.Trap.Code) > 0 && len(m.Trap.Codes) > 0,
			"EdgeBytes":   m.EdgeBytes > 0 && m.EdgeBytes <= arch.MaxEdge,
			"GoPush":      (m.GoPush > 0) == m.RAInReg,
		} {
			if !ok {
				t.Errorf("%s: %s", m.Name, what)
			}
		}
		for _, code := range m.Signal.Returns {
			if len(code) > arch.MaxReturn {
				t.Errorf("%s: handlers return to %d bytes, more than MaxReturn", m.Name, len(code))
			}
		}
		for _, s := range [...]arch.Stub{m.PLT.First, m.PLT.Entry, m.PLT.Last} {
			for _, p := range s.Push {
				if p.At+uint64(len(p.Code)) > arch.MaxPush {
					t.Errorf("%s: an instruction that pushes ends %d bytes behind a stub's beginning, more than MaxPush", m.Name, p.At+uint64(len(p.Code)))
				}
			}
		}
		if m.AfterCall(nil) {
			t.Errorf("%s: nothing is a call", m.Name)
		}
	}
}

// TestTriplet has Debian's compilers say where libraries are.
func TestTriplet(t *testing.T) {
	for _, c := range []struct {
		m  *arch.Machine
		cc []string
	}{{arch.AMD64, []string{"gcc"}}, {arch.I386, []string{"gcc", "-m32"}}, {arch.ARM64, []string{"aarch64-linux-gnu-gcc"}}} {
		oracle.Need(t, c.cc[0])
		if want := strings.TrimSpace(string(oracle.Run(t, c.cc[0], append(c.cc[1:], "-print-multiarch")...))); c.m.Triplet != want {
			t.Errorf("%s: %q, %q says %q", c.m.Name, c.m.Triplet, c.cc, want)
		}
	}
}
