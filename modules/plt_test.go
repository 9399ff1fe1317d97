package modules

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/unwind"
)

// pltBuilds are programs whose linkage tables have the shapes that linkers make.
var pltBuilds = []struct {
	name    string
	m       *arch.Machine
	objdump string
	cc      []string
	lazy    bool
	most    uint64 // bytes that stubs push
}{
	{"binutils", arch.AMD64, "objdump", []string{"gcc", "-Wl,-z,lazy"}, true, 16},
	{"gold", arch.AMD64, "objdump", []string{"gcc", "-fuse-ld=gold"}, true, 16},
	{"lld, IBT", arch.AMD64, "objdump", []string{"clang-19", "-fuse-ld=/usr/bin/ld.lld-19", "-fcf-protection", "-Wl,-z,force-ibt"}, true, 16},
	{"binutils, IBT", arch.AMD64, "objdump", []string{"gcc", "-fcf-protection", "-Wl,-z,ibtplt,-z,lazy"}, true, 16},
	{"static", arch.AMD64, "objdump", []string{"gcc", "-static"}, false, 0},
	{"aarch64", arch.ARM64, "aarch64-linux-gnu-objdump", []string{"aarch64-linux-gnu-gcc"}, true, 16},
	{"aarch64, BTI", arch.ARM64, "aarch64-linux-gnu-objdump", []string{"aarch64-linux-gnu-gcc", "-mbranch-protection=standard", "-Wl,-z,force-bti"}, true, 16},
	{"aarch64, signed", arch.ARM64, "aarch64-linux-gnu-objdump", []string{"aarch64-linux-gnu-gcc", "-Wl,-z,pac-plt"}, true, 16},
	{"aarch64, lld", arch.ARM64, "aarch64-linux-gnu-objdump", []string{"clang-19", "--target=aarch64-linux-gnu", "-fuse-ld=/usr/bin/ld.lld-19"}, true, 16},
	{"aarch64, static", arch.ARM64, "aarch64-linux-gnu-objdump", []string{"aarch64-linux-gnu-gcc", "-static"}, false, 0},
	{"i386", arch.I386, "objdump", []string{"gcc", "-m32", "-shared", "-fPIC", "-nostdlib", "-Wl,-z,lazy"}, true, 8},
	{"i386, IBT", arch.I386, "objdump", []string{"gcc", "-m32", "-shared", "-fPIC", "-nostdlib", "-fcf-protection", "-Wl,-z,ibtplt,-z,lazy"}, true, 8},
	{"i386, lld", arch.I386, "objdump", lld("i686"), true, 8},
	{"arm, lld", arch.ARM, "llvm-objdump-19", lld("armv7"), true, 4},
	{"riscv64, lld", arch.RISCV64, "llvm-objdump-19", lld("riscv64"), true, 0},
	{"loongarch64, lld", arch.Loong64, "llvm-objdump-19", lld("loongarch64"), true, 0},
	{"s390x, lld", arch.S390X, "llvm-objdump-19", lld("s390x"), true, 0},
}

// lld is how LLVM links a library for a machine whose C library is not at hand.
func lld(machine string) []string {
	return []string{"clang-19", "--target=" + machine + "-linux-gnu", "-shared", "-fPIC", "-nostdlib", "-fuse-ld=/usr/bin/ld.lld-19", "-Wl,-z,lazy"}
}

const pltProgram = `int puts(const char *);
char *getenv(const char *);
int main(int n, char **v) { puts(v[0]); return n + (getenv(v[0]) != 0); }
`

// TestPLT walks out of each instruction of linkage tables, and takes objdump's word for what has been pushed there.
func TestPLT(t *testing.T) {
	oracle.Long(t)
	t.Setenv("UNSPOOL_CACHE", t.TempDir())
	dir := t.TempDir()
	src := filepath.Join(dir, "t.c")
	if err := os.WriteFile(src, []byte(pltProgram), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, c := range pltBuilds {
		t.Run(c.name, func(t *testing.T) {
			oracle.Need(t, c.objdump, c.cc[0])
			exe := filepath.Join(dir, strconv.Itoa(i))
			oracle.Run(t, c.cc[0], append(c.cc[1:], "-O1", "-o", exe, src)...)
			checkPLT(t, c.m, exe, c.objdump, c.lazy, c.most)
		})
	}
	for _, path := range []string{"/usr/aarch64-linux-gnu/lib/libc.so.6", "/usr/aarch64-linux-gnu/lib/libm.so.6", "/usr/aarch64-linux-gnu/lib/libstdc++.so.6"} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			if _, err := os.Stat(path); err != nil {
				oracle.Lacks(t, path)
			}
			oracle.Need(t, "aarch64-linux-gnu-objdump")
			checkPLT(t, arch.ARM64, path, "aarch64-linux-gnu-objdump", true, 16)
		})
	}
}

func checkPLT(t *testing.T, m *arch.Machine, path, objdump string, lazy bool, want uint64) {
	word := m.WordSize()
	code := *New().Module(path, "").Code()
	if code.Machine != m {
		t.Fatalf("%s is for %s", path, code.Machine.Name)
	}
	code.Stepper = nil // GNU ld gives x86-64's tables rules
	at := func(c *unwind.Code) *unwind.Module {
		c.Vaddr = func(off uint64) (arch.Vaddr, bool) { return arch.Vaddr(off), true }
		return unwind.NewModule("", "", func(*unwind.Module) *unwind.Code { return c })
	}
	top, err := rows.ParseText(strings.NewReader("machine " + m.Name + "\n0  cfa=" + m.RegName(m.SP) + "+16  ra=u\n100  gap\n"))
	if err != nil {
		t.Fatal(err)
	}
	const base, caller, stack = 0x10000000, 0x20000000, 0x7fff0000
	space := unwind.NewSpace(
		unwind.Mapping{Lo: base, Hi: caller, Module: at(&code)},
		unwind.Mapping{Lo: caller, Hi: caller + 0x100, Module: at(&unwind.Code{Machine: m, Stepper: rows.Interp{Table: top}})})

	// objdump fails where one of the sections is not there.
	text, _ := exec.Command(objdump, "-d", "--no-show-raw-insn", "-j", ".plt", "-j", ".plt.sec", "-j", ".plt.got", path).Output()
	w := unwind.NewWalker(0)
	var section string
	var pushed, most uint64
	n, jumped := 0, false
	for _, line := range strings.Split(string(text), "\n") {
		if _, name, ok := strings.Cut(line, "Disassembly of section "); ok {
			section, pushed, jumped = strings.TrimSpace(name), 0, false
			if lazy && section == ".plt:" && !m.RAInReg {
				pushed = word // the index
			}
			continue
		}
		f := instruction.FindStringSubmatch(line)
		if f == nil || jumped && filler.MatchString(f[2]) {
			continue // no instruction, or what fills a stub
		}
		v, _ := strconv.ParseUint(f[1], 16, 64)
		s := &unwind.Snapshot{Machine: m, Space: space, PC: base + v, Known: m.SavedSlots(), Mem: rows.Memory{Lo: stack, Bytes: make([]byte, 256)}}
		sp, cfa := uint64(stack+64), uint64(stack+64)+pushed
		s.Regs[m.Slot(m.SP)] = sp
		switch {
		case !m.RAInReg:
			binary.LittleEndian.PutUint64(s.Mem.Bytes[cfa-stack:], caller+8)
			cfa += word
		case m == arch.ARM && pushed > 0: // lr has another address
			binary.LittleEndian.PutUint64(s.Mem.Bytes[sp-stack:], caller+8)
			s.Regs[m.Slot(m.RA)] = base
		default:
			s.Regs[m.Slot(m.RA)] = caller + 8
		}
		frames, stop := w.Walk(s, nil)
		if len(frames) != 2 || frames[1].PC != caller+8 || frames[1].How != unwind.HowPLT || stop != unwind.Outermost {
			t.Fatalf("%s %s\n got %v, %v\nwant a caller at %#x", section, line, frames, stop, caller+8)
		}
		var got uint64
		w.Registers(s, frames, func(_ int, _ uint64, regs *[arch.NumSlots]uint64) { got = regs[m.Slot(m.SP)] })
		if got != cfa {
			t.Errorf("%s %s\n got the stack pointer %#x of the caller\nwant %#x", section, line, got, cfa)
		}

		n++
		jumped = false
		switch strings.Fields(strings.TrimPrefix(f[2], "bnd "))[0] {
		case "push":
			pushed += word
		case "str": // in Arm's first entry
			pushed += 4
		case "stp":
			pushed += 16
		case "jmp", "br":
			pushed, jumped = 0, true
		case "ldr":
			if strings.HasPrefix(strings.Fields(f[2])[1], "pc,") {
				pushed, jumped = 0, true
			}
		}
		most = max(most, pushed)
	}
	if n < 4 || most != want {
		t.Errorf("%d instructions, %d bytes pushed at most; want %d", n, most, want)
	}
}

// filler fills a stub, behind its jump.
var filler = regexp.MustCompile(`^(nop|xchg|add +%al,\(%eax\)|.*\.word)`)

var instruction = regexp.MustCompile(`^ *([0-9a-f]+):\s+([^ \t].*)$`)
