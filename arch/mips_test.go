package arch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// TestMIPS: GCC saves, in a function that uses all registers, those that a call preserves and the return address; no others.
func TestMIPS(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "mipsel-linux-gnu-gcc")
	src := filepath.Join(t.TempDir(), "a.c")
	text := "void g(void);\nvoid f(void) { g(); __asm__ volatile (\"\" : : : \"$31\""
	for i := 2; i < 32; i++ {
		if i < 26 || i == 30 { // of the others, k0 and k1 are the kernel's, and the compiler keeps gp and sp itself
			text += ", \"$" + strconv.Itoa(i) + "\""
		}
		text += ", \"$f" + strconv.Itoa(i) + "\""
	}
	if err := os.WriteFile(src, []byte(text+"); g(); }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	offset := regexp.MustCompile(`(?m)^\s*\.cfi_offset (\d+),`)
	for _, c := range []struct {
		convention arch.MIPSConvention
		args       []string
	}{{arch.O32, []string{"-mabi=32", "-mips32r2"}}, {arch.N32, []string{"-mabi=n32", "-mips64r2"}}, {arch.N64, []string{"-mabi=64", "-mips64r2"}}} {
		for _, big := range []bool{false, true} {
			m := arch.MIPSMachine(c.convention, big)
			args := append([]string{"-O1", "-fasynchronous-unwind-tables", "-S", "-o", "-", src}, c.args...)
			if big {
				args = append(args, "-EB")
			}
			var saved []arch.Reg
			for _, x := range offset.FindAllStringSubmatch(string(oracle.Run(t, "mipsel-linux-gnu-gcc", args...)), -1) {
				r, _ := strconv.Atoi(x[1])
				saved = append(saved, arch.Reg(r))
			}
			slices.Sort(saved)
			want := append(slices.Clone(m.CalleeSaved), m.RA)
			slices.Sort(want)
			if !slices.Equal(saved, want) {
				t.Errorf("%s: GCC saves %v, calls preserve %v", m.Name, saved, want)
			}
			if m.BigEndian != big || !m.StepKnown || (m.WordSize() == 4) != (c.convention == arch.O32) || arch.Named(m.Name) != m || arch.ByELF(m.ELF) != arch.MIPS ||
				!slices.Contains(m.Variants(), m) {
				t.Errorf("%s is not what it is called", m.Name)
			}
			for _, r := range append(want, m.SP, m.FP, m.PC) {
				if m.Slot(r) >= arch.NumSlots {
					t.Errorf("%s: %s has no slot", m.Name, m.RegName(r))
				}
			}
		}
	}
	if v := arch.AMD64.Variants(); len(v) != 1 || v[0] != arch.AMD64 {
		t.Errorf("variants of x86-64: %v", v)
	}
}
