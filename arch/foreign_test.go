package arch_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// others are the machines that this program does not run on, but whose stacks it walks, with LLVM's name for each.
var others = []struct {
	m            *arch.Machine
	target       string
	calls, not   []string
	returns      []string
	plainReturns []string
}{
	{arch.ARM, "armv7-linux-gnueabihf", []string{"bl .+1000", "blx .+1000", "blx r3", "blne .+1000", "mov lr, pc; bx r3", "mov lr, pc; ldr pc, [r3]"},
		[]string{"nop", "bx lr", "b .+1000", "pop {r4, pc}", "add r0, r1, r2", "svc #0"}, []string{"mov r7, #173; svc #0"}, []string{"mov r7, #119; svc #0"}},
	{arch.ARM, "thumbv7-linux-gnueabihf", []string{"bl .+1000", "blx .+1000", "blx r3", "blx r12"},
		[]string{"nop", "bx lr", "b .+100", "b.w .+1000", "pop {r4, pc}", "movs r0, #1"}, []string{"mov.w r7, #173; svc #0", "movs r7, #173; svc #0"}, []string{"mov.w r7, #119; svc #0"}},
	{arch.I386, "i686-linux-gnu", []string{"call .+1000", "call *%eax", "call *8(%ebx)", "call *(%esp)", "call *0x1000(,%eax,4)"},
		[]string{"nop", "jmp *%eax", "ret", "push 8(%eax)"}, []string{"mov $173, %eax; int $0x80"}, []string{"pop %eax; mov $119, %eax; int $0x80"}},
	{arch.RISCV64, "riscv64-linux-gnu", []string{"jal ra, .+1000", "jal t0, .+1000", "jalr ra, 8(a0)", "jalr t0, 0(a0)", ".option arch,+c; c.jalr a0"},
		[]string{"nop", "jal zero, .+1000", "jalr zero, 0(ra)", ".option arch,+c; c.jr a0", ".option arch,+c; c.nop", ".option arch,+c; c.ebreak"}, []string{"li a7, 139; ecall"}, nil},
	{arch.Loong64, "loongarch64-linux-gnu", []string{"bl 1000", "jirl $ra, $a0, 8"}, []string{"nop", "b 1000", "jirl $zero, $ra, 0", "beq $a0, $a1, 16"},
		[]string{"ori $a7, $zero, 139; syscall 0"}, nil},
	{arch.S390X, "s390x-linux-gnu", []string{"brasl %r14, .+1000", "bras %r14, .+1000", "basr %r14, %r1", "bas %r14, 8(%r1)"}, []string{"br %r14", "brcl 15, .+1000", "nopr %r7", "basr %r13, 0"},
		[]string{"svc 173"}, []string{"svc 119"}},
	{arch.PPC64LE, "powerpc64le-linux-gnu", []string{"bl .+1000", "bctrl", "blrl", "bcl 20, 31, .+4"}, []string{"nop", "b .+1000", "blr", "bctr"}, []string{"li 0, 172; sc"}, nil},
	{arch.MIPSel, "mipsel-linux-gnu", mipsCalls, mipsOthers, []string{"li $2, 4193; syscall"}, []string{"li $2, 4119; syscall"}},
	{arch.MIPS, "mips-linux-gnu", mipsCalls, mipsOthers, []string{"li $2, 4193; syscall"}, []string{"li $2, 4119; syscall"}},
	{arch.MIPS64el, "mips64el-linux-gnuabi64", mipsCalls, mipsOthers, []string{"li $2, 5211; syscall"}, nil},
	{arch.MIPS64, "mips64-linux-gnuabi64", mipsCalls, mipsOthers, []string{"li $2, 5211; syscall"}, nil},
	{arch.MIPS64el, "mips64r6el-linux-gnuabi64", []string{"balc 1000", "jialc $25, 0"}, []string{"bc 1000", "jic $25, 0"}, nil, nil},
}

var (
	mipsCalls = []string{".set noreorder; jal 0x1000; nop", ".set noreorder; jalr $25; addiu $4, $4, 8", ".set noreorder; bal 1000; nop", ".set noreorder; bltzal $4, 1000; nop",
		".set noreorder; jalx 0x1000; nop"}
	mipsOthers = []string{"nop; nop", ".set noreorder; j 0x1000; nop", ".set noreorder; jr $31; nop", ".set noreorder; b 1000; nop", ".set noreorder; jalr $1, $25; nop", "addu $31, $4, $5; nop"}
)

// TestOthers has LLVM assemble calls, and the code that signal handlers return to, for the machines that this program does not run on.
func TestOthers(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-mc-19", "llvm-objcopy-19")
	for _, o := range others {
		code := func(s string) []byte {
			dir := t.TempDir()
			src, obj, out := filepath.Join(dir, "a.s"), filepath.Join(dir, "a.o"), filepath.Join(dir, "a.bin")
			if err := os.WriteFile(src, []byte(s+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			for _, cmd := range [][]string{{"llvm-mc-19", "--triple=" + o.target, "--filetype=obj", "-o", obj, src}, {"llvm-objcopy-19", "-O", "binary", "-j", ".text", obj, out}} {
				if b, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
					t.Fatalf("%s: %v: %v\n%s", s, cmd, err, b)
				}
			}
			b, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		for i, c := range append(o.calls, o.not...) {
			b := code(c)
			if got, want := o.m.AfterCall(b[max(0, len(b)-arch.MaxCall):]), i < len(o.calls); got != want {
				t.Errorf("%s: AfterCall(%s: % x) = %v", o.target, c, b, got)
			}
		}
		for _, c := range o.returns {
			if b := code(c); len(b) > arch.MaxReturn {
				t.Errorf("%s: %s has %d bytes", o.target, c, len(b))
			} else if n, ok := o.m.Signal.At(b); !ok || n != len(b) {
				t.Errorf("%s: At(%s: % x) = %d, %v", o.target, c, b, n, ok)
			}
		}
		for _, c := range o.plainReturns {
			if b := code(c); len(b) > arch.MaxReturn {
				t.Errorf("%s: %s has %d bytes", o.target, c, len(b))
			} else if n, ok := o.m.Signal.Plain.At(b); !ok || n != len(b) {
				t.Errorf("%s: At(%s: % x) = %d, %v", o.target, c, b, n, ok)
			}
		}
	}
}

// TestOthersWhole: they have what walks of cores use, and slots for it.
func TestOthersWhole(t *testing.T) {
	for _, o := range others {
		m := o.m
		for _, r := range append([]arch.Reg{m.SP, m.FP, m.PC, m.RA}, m.CalleeSaved...) {
			if m.Slot(r) >= arch.NumSlots {
				t.Errorf("%s: register %s has no slot", m.Name, m.RegName(r))
			}
		}
		if !m.StepKnown || !slices.Contains(arch.ByELF(m.ELF).Variants(), m) || len(m.UserRegs.Slots) == 0 || len(m.Signal.Saved) <= int(m.PC) || m.AfterCall(nil) || (m.CallPush == 0) != m.RAInReg {
			t.Errorf("%s is described by half", m.Name)
		}
		var seen uint64
		for _, s := range m.UserRegs.Slots {
			if s != arch.NoSlot {
				if s >= arch.NumSlots || seen>>s&1 != 0 {
					t.Errorf("%s: slot %d twice", m.Name, s)
				}
				seen |= 1 << s
			}
		}
		for _, r := range []arch.Reg{m.SP, m.PC} {
			if seen>>m.Slot(r)&1 == 0 || m.Signal.Saved[r] == 0 {
				t.Errorf("%s: %s is not in cores, or signal frames", m.Name, m.RegName(r))
			}
		}
	}
}

// TestOthersPerf holds the registers of perf's samples against Linux's header for each machine.
func TestOthersPerf(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19")
	numbered := func(prefix string, first, n int) map[string]arch.Reg {
		all := map[string]arch.Reg{}
		for i := first; i < n; i++ {
			all[fmt.Sprint(prefix, i)] = arch.Reg(i)
		}
		return all
	}
	with := func(all, more map[string]arch.Reg) map[string]arch.Reg { maps.Copy(all, more); return all }
	for _, o := range []struct {
		m             *arch.Machine
		target, short string
		prefix, last  string
		regs          map[string]arch.Reg // by the header's names; all others count for nothing
	}{
		{arch.ARM, "armv7-linux-gnueabihf", "armhf", "PERF_REG_ARM_", "MAX", with(numbered("R", 0, 11), map[string]arch.Reg{"FP": 11, "IP": 12, "SP": 13, "LR": 14, "PC": 15})},
		{arch.I386, "i686-linux-gnu", "i386", "PERF_REG_X86_", "32_MAX", map[string]arch.Reg{"AX": 0, "CX": 1, "DX": 2, "BX": 3, "SP": 4, "BP": 5, "SI": 6, "DI": 7, "IP": 8}},
		{arch.RISCV64, "riscv64-linux-gnu", "riscv64", "PERF_REG_RISCV_", "MAX", map[string]arch.Reg{"PC": 64, "RA": 1, "SP": 2, "GP": 3, "TP": 4, "T0": 5, "T1": 6, "T2": 7, "S0": 8, "S1": 9,
			"A0": 10, "A1": 11, "A2": 12, "A3": 13, "A4": 14, "A5": 15, "A6": 16, "A7": 17, "S2": 18, "S3": 19, "S4": 20, "S5": 21, "S6": 22, "S7": 23, "S8": 24, "S9": 25, "S10": 26, "S11": 27,
			"T3": 28, "T4": 29, "T5": 30, "T6": 31}},
		{arch.S390X, "s390x-linux-gnu", "s390x", "PERF_REG_S390_", "MAX", with(numbered("R", 0, 16), map[string]arch.Reg{"PC": 65, "FP0": 16, "FP2": 17, "FP4": 18, "FP6": 19, "FP1": 20, "FP3": 21,
			"FP5": 22, "FP7": 23, "FP8": 24, "FP10": 25, "FP12": 26, "FP14": 27, "FP9": 28, "FP11": 29, "FP13": 30, "FP15": 31})},
		{arch.PPC64LE, "powerpc64le-linux-gnu", "ppc64el", "PERF_REG_POWERPC_", "MAX", with(numbered("R", 0, 32), map[string]arch.Reg{"NIP": 67, "LINK": 65})},
		{arch.MIPSel, "mipsel-linux-gnu", "mipsel", "PERF_REG_MIPS_", "MAX", with(numbered("R", 1, 32), map[string]arch.Reg{"PC": 66})},
		{arch.MIPS64, "mips64-linux-gnuabi64", "mips64", "PERF_REG_MIPS_", "MAX", with(numbered("R", 1, 32), map[string]arch.Reg{"PC": 66})},
		{arch.Loong64, "loongarch64-linux-gnu", "", "PERF_REG_LOONGARCH_", "MAX", with(numbered("R", 1, 32), map[string]arch.Reg{"PC": 64})},
	} {
		var include string
		if o.short != "" {
			root := oracle.Debian(t, "bookworm", "amd64", "uapi-"+o.short, "linux-libc-dev-"+o.short+"-cross")
			dirs, _ := filepath.Glob(filepath.Join(root, "usr/*/include"))
			if len(dirs) != 1 {
				t.Fatalf("%s has the directories %q, want one usr/*/include", root, dirs)
			}
			include = dirs[0]
		} else {
			include = filepath.Join(oracle.Debian(t, "sid", "loong64", "uapi-loong64", "linux-libc-dev"), "usr/include")
		}
		text := "#include <asm/perf_regs.h>\n"
		used := 0
		for name, r := range o.regs {
			slot := o.m.Slot(r)
			at := slices.Index(o.m.Perf, slot)
			if at < 0 {
				t.Errorf("%s: %s is in no sample", o.m.Name, name)
			}
			text += fmt.Sprintf("_Static_assert(%s%s == %d, %q);\n", o.prefix, name, at, name)
		}
		for _, s := range o.m.Perf {
			if s != arch.NoSlot {
				used++
			}
		}
		if used != len(o.regs) {
			t.Errorf("%s: %d registers, want %d", o.m.Name, used, len(o.regs))
		}
		text += fmt.Sprintf("_Static_assert(%d <= %s%s, \"all\");\n", len(o.m.Perf), o.prefix, o.last)
		src := filepath.Join(t.TempDir(), "regs.c")
		if err := os.WriteFile(src, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		multi := filepath.Join(include, map[string]string{"": "loongarch64-linux-gnu"}[o.short])
		if out, err := exec.Command("clang-19", "--target="+o.target, "-nostdlibinc", "-isystem", include, "-isystem", multi, "-fsyntax-only", src).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", o.m.Name, err, out)
		}
	}
}
