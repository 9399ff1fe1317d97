package test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// armCC is the compiler of the drop-ins for AArch64, whose programs run under qemu-user.
const armCC = "aarch64-linux-gnu-gcc"

// armObjects are the objects of a library for AArch64: for shared objects and for static executables.
func armObjects(t testing.TB, library string) []string {
	t.Helper()
	oracle.Need(t, "qemu-aarch64")
	return objectsOf(t, armCC, "", library)
}

// armLibrary is the path of a library for AArch64.
func armLibrary(t testing.TB, name string) string {
	t.Helper()
	oracle.Need(t, "qemu-aarch64")
	return filepath.Join(built(t, armCC, "", name), name)
}

var armWarn = []string{"-std=c11", "-g", "-Wall", "-Wextra", "-Werror"}

// armBuild compiles for AArch64.
func armBuild(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command(armCC, append(slices.Clone(armWarn), args...)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", armCC, err, out)
	}
}

// armStacks are what testdata/local_arm.c prints. Functions of the C library have no names that can be relied on: they are between those of the program.
var armStacks = []string{
	`deep: look deep deep deep deep main`,
	`called back: look compare( \S+)+ main`,
	`alloca: look varied main`,
	`tagged: tagged main`,
	`vectors: look floats main`,
	`signal: look handler <signal>( \S+)+ main`,
	`leaf: look handler <signal> leaf faulting main`,
	`leaf, from its context: leaf faulting main`,
	`stack 2: look handler <signal>( \S+)+ main`,
	`thread: look thread( \S+)*`,
	`set: 1`,
	`resumed: 1`,
}

// TestArmLocal: the drop-in for the own process walks an AArch64 program's known stacks: linked dynamically and statically, without frame
// pointers, with signed return addresses, and as unoptimised code.
func TestArmLocal(t *testing.T) {
	walkArm(t, "local", "libunwind.so.8", armStacks)
}

// TestArmRemote: so does the drop-in for any process, through its accessors for the own one.
func TestArmRemote(t *testing.T) {
	walkArm(t, "remote", "libunwind-aarch64.so.8", armStacks[:len(armStacks)-1], "-DREMOTE")
}

func walkArm(t *testing.T, library, name string, stacks []string, define ...string) {
	dir, lib := t.TempDir(), armLibrary(t, name)
	if library == "local" {
		t.Run("steps", func(t *testing.T) { countSteps(t, lib) })
	}
	for i, flags := range []string{"", "-fomit-frame-pointer -mbranch-protection=standard", "-O0", "-static-pie -fPIE"} {
		t.Run(flags, func(t *testing.T) {
			prog := filepath.Join(dir, fmt.Sprint("prog", i))
			args := append([]string{"-O2", "-fno-optimize-sibling-calls", "-I..", "-o", prog, "testdata/local_arm.c"}, append(strings.Fields(flags), define...)...)
			if strings.Contains(flags, "-static") {
				args = append(args, armObjects(t, library)...)
			} else {
				args = append(args, "-rdynamic", lib)
			}
			armBuild(t, append(args, "-pthread")...)
			cmd := exec.Command("timeout", "-s", "KILL", "300", "qemu-aarch64", "-cpu", "max", "-L", armRoot, "-E", "LD_LIBRARY_PATH="+filepath.Dir(lib), prog)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("%v", err)
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			for i := range max(len(lines), len(stacks)) {
				if i >= len(lines) || i >= len(stacks) || !regexp.MustCompile("^"+stacks[i]+"$").MatchString(lines[i]) {
					t.Fatalf("line %d\n got:\n%s\n want %s", i+1, out, strings.Join(stacks, "\n "))
				}
			}
		})
	}
}

// TestArmEhElf: an AArch64 program walks its own stack with eh_elf files, as libgcc does, through signal frames too; a walk through garbage ends;
// the files are what dlopen loads; and each rule's code can be walked through. Another stack for signals lies too far away for one piece of memory
// that is read plainly.
func TestArmEhElf(t *testing.T) {
	oracle.Need(t, armCC, "qemu-aarch64")
	oracle.Long(t)
	for i, flags := range []string{"-O2", "-O1 -mbranch-protection=standard -fomit-frame-pointer"} {
		prog := filepath.Join(t.TempDir(), "walk")
		armBuild(t, append(strings.Fields(flags), "-Wpedantic", "-I..", "-Wl,--build-id", "-pthread", "-o", prog, "testdata/walk.c", "-ldl")...)
		for _, l := range layouts[:len(layouts)-2*i] {
			for _, d := range derefs {
				dir := t.TempDir()
				for _, lib := range []string{prog, armRoot + "/lib/libc.so.6", armRoot + "/lib/libgcc_s.so.1", armRoot + "/lib/ld-linux-aarch64.so.1"} {
					img, err := module.Open(lib)
					if err != nil {
						t.Fatal(err)
					}
					write(t, dir, img, native.Options{Layout: l, Deref: d})
					img.Close()
				}
				for _, how := range []string{"recurse", "signal", "altstack", "maps", "dlopen", "hostile", "traced"} {
					if how == "hostile" && d == native.Self || how == "altstack" && d != native.Self || how == "traced" && d != native.Callback || l != native.Page && (how != "recurse" || d != native.Self) {
						continue
					}
					t.Run(fmt.Sprintf("%s %v %v %s", flags, l, d, how), func(t *testing.T) {
						run(t, exec.Command("timeout", "-s", "KILL", "300", "qemu-aarch64", "-cpu", "max", "-L", armRoot, prog, dir, fmt.Sprint(int(d)), how, "0x100000"))
					})
				}
			}
		}
	}
}

// TestArmMadeUp: a process that is made up has addresses of 48 or of 52 bits, which qemu-user's own programs do not have. Its registers are set, its
// frames' return addresses are signed, and a frame pointer has a tag.
func TestArmMadeUp(t *testing.T) {
	prog := filepath.Join(t.TempDir(), "prog")
	for _, code := range []string{"0xaaaab0000000", "0xfaaaab0000000"} {
		armBuild(t, append(append([]string{"-O2", "-static", "-I..", "-DCODE=" + code + "ull", "-o", prog, "testdata/arm_remote.c"}, armObjects(t, "remote")...), "-pthread")...)
		if out, err := exec.Command("qemu-aarch64", "-cpu", "max", prog).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", code, err, out)
		}
	}
}

// TestArmPages: a library whose segments share a page of the file, as lld links, is found where its code is mapped, whatever the size of a page,
// and whether the caller says what part of the file is mapped there (libunwind-ptrace) or not (libunwind-coredump).
func TestArmPages(t *testing.T) {
	oracle.Need(t, "ld.lld-19", "aarch64-linux-gnu-nm")
	dir := t.TempDir()
	src, lib, prog := filepath.Join(dir, "lib.c"), filepath.Join(dir, "lib.so"), filepath.Join(dir, "prog")
	if err := os.WriteFile(src, []byte("const char room[0x5000] = {1};\n__asm__(\".text\\n.skip 0x9000\");\nint leaf(int a)\n{\n\treturn a * 3 + 1;\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	armBuild(t, "-O2", "-fPIC", "-fno-toplevel-reorder", "-c", "-o", lib+".o", src)
	if out, err := exec.Command("ld.lld-19", "-shared", "--build-id", "--eh-frame-hdr", "-z", "max-page-size=65536", "-o", lib, lib+".o").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	symbols, err := exec.Command("aarch64-linux-gnu-nm", lib).Output()
	leaf := regexp.MustCompile(`(?m)^([0-9a-f]+) T leaf$`).FindSubmatch(symbols)
	if err != nil || leaf == nil {
		t.Fatalf("%v\n%s", err, symbols)
	}
	armBuild(t, append(append([]string{"-O2", "-static", "-I..", "-o", prog, "testdata/arm_pages.c"}, armObjects(t, "remote")...), "-pthread")...)
	for _, page := range []string{"4096", "16384", "65536"} {
		if out, err := exec.Command("qemu-aarch64", "-cpu", "max", prog, lib, string(leaf[1]), page).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// TestArmNative: libunspool walks an AArch64 program's own stacks as libgcc does, names functions, and says how it found each frame. Other
// processes' threads are walked where a kernel has ptrace: TestMachines in lab/shapes.
func TestArmNative(t *testing.T) {
	dir, lib := t.TempDir(), armLibrary(t, "libunspool.so")
	for _, c := range []struct{ source, flags, out string }{
		{"testdata/native_arm.c", "-O2", `^5 stacks\n$`},
		{"testdata/native_arm.c", "-O1 -fomit-frame-pointer -mbranch-protection=standard", `^5 stacks\n$`},
		{"../examples/here.c", "-O1", `(?m)^#0 +0x[0-9a-f]+ main\+0x[0-9a-f]+\n(#.*\n)*#\d+ +0x[0-9a-f]+ _start\+0x[0-9a-f]+\n$`},
		{"../examples/crash.c", "-O1 -std=gnu11", `^signal 11\n#0  0 sp 0x[0-9a-f]+ how 0\n#1  0x[0-9a-f]+ sp 0x[0-9a-f]+ how 5\n(#.* how 1\n)+ended: 0\n$`},
	} {
		prog := filepath.Join(dir, "prog")
		armBuild(t, append(strings.Fields(c.flags), "-I..", "-rdynamic", "-pthread", "-o", prog, c.source, lib)...)
		cmd := exec.Command("timeout", "-s", "KILL", "300", "qemu-aarch64", "-cpu", "max", "-L", armRoot, "-E", "LD_LIBRARY_PATH="+filepath.Dir(lib), prog)
		if out, err := cmd.CombinedOutput(); err != nil || !regexp.MustCompile(c.out).Match(out) {
			t.Errorf("%s %s: %v\n%s", c.source, c.flags, err, out)
		}
	}
}

// TestArmPacked: rules that the drop-in for the own process has packed are what they were, and steps by them what us_apply_with comes to.
func TestArmPacked(t *testing.T) {
	prog := filepath.Join(t.TempDir(), "packed")
	objects := slices.DeleteFunc(armObjects(t, "local"), func(path string) bool { return filepath.Base(path) == "local_walk.o" })
	armBuild(t, append([]string{"-O2", "-static", "-I..", "-o", prog, "testdata/packed.c"}, objects...)...)
	out, err := exec.Command("qemu-aarch64", "-cpu", "max", prog).CombinedOutput()
	var packed, stepped int
	if _, e := fmt.Sscan(string(out), &packed, &stepped); err != nil || e != nil || packed < 100000 || stepped < 20000 {
		t.Errorf("%v\n%s", err, out)
	}
}

// countSteps: a step through the own stack, with two registers that are asked for, takes 200 instructions at most, a tenth of what libunwind
// 1.6.2 takes (check-libunwind). QEMU counts them; two programs' difference is walks only.
func countSteps(t *testing.T, lib string) {
	prog := filepath.Join(t.TempDir(), "prog")
	armBuild(t, "-O2", "-DNO_HEADER", "-o", prog, "testdata/step_count.c", lib)
	qemu := func(walks string, args ...string) []byte {
		out, err := exec.Command("qemu-aarch64", append(args, "-cpu", "max", "-L", armRoot, "-E", "LD_LIBRARY_PATH="+filepath.Dir(lib), prog, walks)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	steps, err := strconv.Atoi(strings.TrimSpace(string(qemu("1"))))
	if err != nil || steps < 40 {
		t.Fatalf("step_count with %s counts %d steps, %v, want 40 or more", lib, steps, err)
	}
	help, _ := exec.Command("qemu-aarch64", "-help").Output()
	one := "-singlestep" // in QEMU before 8.1, and no more since 9.0
	if strings.Contains(string(help), "one-insn-per-tb") {
		one = "-one-insn-per-tb"
	}
	count := func(walks string) int {
		return bytes.Count(qemu(walks, one, "-d", "exec,nochain", "-D", "/dev/stdout"), []byte("Trace "))
	}
	less, more := count("10"), count("20")
	n := (more - less) / 10 / steps
	t.Logf("%d steps a walk, %d instructions a step", steps, n)
	if less == 0 || n < 50 || n > 200 {
		t.Errorf("%d and %d instructions in 10 and 20 walks of %d steps: %d a step", less, more, steps, n)
	}
}

// TestArmBranchTargets: the library's pages can be guarded: each function in assembly begins with BTI and says so, and jumps elsewhere are RETs.
func TestArmBranchTargets(t *testing.T) {
	oracle.Need(t, armCC, "aarch64-linux-gnu-readelf", "aarch64-linux-gnu-objdump")
	obj := filepath.Join(t.TempDir(), "local.o")
	armBuild(t, "-c", "-o", obj, "../local_aarch64.S")
	notes, err := exec.Command("aarch64-linux-gnu-readelf", "-nW", obj).CombinedOutput()
	if err != nil || !strings.Contains(string(notes), "AArch64 feature: BTI") {
		t.Errorf("%v\n%s", err, notes)
	}
	code, err := exec.Command("aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", obj).CombinedOutput()
	functions := regexp.MustCompile(`(?m)^[0-9a-f]+ <.*>:\n.*`).FindAllString(string(code), -1)
	if err != nil || len(functions) != 4 {
		t.Fatalf("%v: %q\n%s", err, functions, code)
	}
	for _, f := range functions {
		if !strings.HasSuffix(strings.TrimSpace(f), "bti\tc") {
			t.Errorf("a function of local_aarch64.S begins with %q, want bti c", f)
		}
	}
	if jump := regexp.MustCompile(`(?m)^.*\tbr\t.*$`).Find(code); jump != nil {
		t.Errorf("%s", jump)
	}
}

// TestUnmarked: the libraries do not say that shadow stacks may be on where they are loaded, though compilers mark what they compile: unw_resume
// does not move one.
func TestUnmarked(t *testing.T) {
	oracle.Need(t, "make", "gcc", armCC, "readelf")
	for cc, flags := range map[string]string{"gcc": "-O0 -nostartfiles -fcf-protection=full", armCC: "-O0 -mbranch-protection=standard"} {
		dir := t.TempDir()
		if out, err := exec.Command("make", "-s", "-C", "..", "BUILD="+dir, "CC="+cc, "CFLAGS="+flags).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		libs, err := filepath.Glob(filepath.Join(dir, "*.so*"))
		if err != nil || len(libs) < 2 {
			t.Fatalf("make CC=%s builds %q, %v, want 2 or more libraries", cc, libs, err)
		}
		for _, lib := range libs {
			notes, err := exec.Command("readelf", "-nW", lib).CombinedOutput()
			if mark := regexp.MustCompile(`SHSTK|GCS`).Find(notes); err != nil || mark != nil {
				t.Errorf("%s of %s is marked: %v\n%s", filepath.Base(lib), cc, err, notes)
			}
		}
	}
}
