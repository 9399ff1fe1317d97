package test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

const stockLocal = "/usr/lib/x86_64-linux-gnu/libunwind.so.8"

// needStock skips a test where Debian's library is not installed.
func needStock(t testing.TB) {
	t.Helper()
	if _, err := os.Stat(stockLocal); err != nil {
		oracle.Lacks(t, stockLocal)
	}
}

// remoteProgram compiles a program of testdata together with libunwind-x86_64.so.8's objects.
func remoteProgram(t testing.TB, source string, flags ...string) string {
	t.Helper()
	args := slices.Concat([]string{"-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-I..", "-pthread", filepath.Join("testdata", source)},
		objectsOf(t, "gcc", cflagsWith(flags), "remote"), flags)
	return compiledAs(t, "prog", "gcc", args...)
}

// cflagsWith are CFLAGS for the Makefile, its own where there are no flags.
func cflagsWith(flags []string) string {
	if len(flags) == 0 {
		return ""
	}
	return "-O2 -g " + strings.Join(flags, " ")
}

// localLib builds libunwind.so.8 with a compiler and flags and returns a directory that has nothing else.
func localLib(t testing.TB, cc string, flags ...string) string {
	t.Helper()
	from := built(t, cc, cflagsWith(flags), "libunwind.so.8")
	return once(t, "libunwind.so.8 alone of "+from, func(dir string) error {
		return os.Link(filepath.Join(from, "libunwind.so.8"), filepath.Join(dir, "libunwind.so.8"))
	})
}

// stockLib returns a directory with Debian's library, of a name as long as that of ours: where the stack starts depends on
// the size of the environment.
func stockLib(t testing.TB, like string) string {
	t.Helper()
	needStock(t)
	dir := like[:len(like)-1] + "_"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Symlink(stockLocal, filepath.Join(dir, "libunwind.so.8")); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	return dir
}

// localProgram compiles a program that is linked against Debian's library.
func localProgram(t testing.TB, cc, source string, flags ...string) string {
	t.Helper()
	oracle.Need(t, cc)
	needStock(t)
	return compiledAs(t, "prog", cc, slices.Concat([]string{"-O2", "-g", "-Wall", filepath.Join("testdata", source)}, flags, []string{"-lunwind", "-lpthread"})...)
}

func runWith(dir string, env []string, prog string, args ...string) ([]byte, error) {
	cmd := exec.Command("timeout", append([]string{"-s", "KILL", "300", prog}, args...)...)
	cmd.Env = append(append(os.Environ(), "LD_LIBRARY_PATH="+dir), env...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%v: %s", err, errs.Bytes())
	}
	return out, err
}

// TestLocalSame runs one program against Debian's library and ours.
func TestLocalSame(t *testing.T) {
	for _, cc := range []string{"gcc", "clang-19"} {
		for _, opt := range []string{"-O0", "-O2", "-O2 -fno-omit-frame-pointer"} {
			t.Run(cc+opt, func(t *testing.T) {
				lib := localLib(t, cc)
				stock := stockLib(t, lib)
				prog := localProgram(t, cc, "local_same.c", strings.Fields(opt)...)
				want, err := runWith(stock, nil, prog)
				if err != nil {
					t.Fatalf("with Debian's: %v", err)
				}
				got, err := runWith(lib, nil, prog)
				if err != nil {
					t.Fatal(err)
				}
				if bytes.Equal(got, want) {
					return
				}
				w, g := strings.Split(string(want), "\n"), strings.Split(string(got), "\n")
				for i := range max(len(w), len(g)) {
					if i >= len(w) || i >= len(g) || w[i] != g[i] {
						t.Fatalf("line %d:\n got %v\nwant %v", i+1, g[min(i, len(g)):min(i+1, len(g))], w[min(i, len(w)):min(i+1, len(w))])
					}
				}
			})
		}
	}
}

// localMissing are the names of Debian's library that ours does not have, and why.
func localMissing(name string) string {
	switch {
	case strings.HasPrefix(name, "_Unwind_"), strings.HasPrefix(name, "__libunwind_Unwind_"):
		return "libgcc's, which the loader finds through DT_NEEDED"
	case name == "backtrace":
		return "glibc's"
	}
	return ""
}

func exportedBy(t *testing.T, path string) (names []string) {
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range syms {
		if s.Section != elf.SHN_UNDEF {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names
}

// TestLocalExports compares the exported names with those of Debian's library.
func TestLocalExports(t *testing.T) {
	needStock(t)
	path := filepath.Join(localLib(t, "gcc"), "libunwind.so.8")
	got, want := exportedBy(t, path), exportedBy(t, stockLocal)
	for _, name := range want {
		if why := localMissing(name); (why == "") != slices.Contains(got, name) {
			t.Errorf("%s: exported %v; allowed to be missing: %q", name, slices.Contains(got, name), why)
		}
	}
	for _, name := range got {
		if !slices.Contains(want, name) && name != "unw_backtrace2" && name != "_ULx86_64_get_proc_name_by_ip" {
			t.Errorf("%s is exported, but not by Debian's library", name)
		}
	}
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if libs, _ := f.ImportedLibraries(); !slices.Contains(libs, "libgcc_s.so.1") {
		t.Errorf("needs %v, without libgcc_s.so.1", libs)
	}
	syms, _ := f.DynamicSymbols()
	for _, s := range syms {
		if s.Name == "_ULx86_64_local_addr_space" && s.Size != 8 {
			t.Errorf("%s has %d bytes", s.Name, s.Size)
		}
	}
}

// plugins are two shared objects that are different where one looks the same as the other.
func plugins(t *testing.T, flags ...string) []string {
	var libs []string
	for i, flag := range []string{"-DNONE", "-DDEPTH"} {
		args := append([]string{"-O2", "-g", "-shared", "-fPIC", flag, "testdata/local_plugin.c"}, flags...)
		libs = append(libs, compiledAs(t, "plugin"+strconv.Itoa(i)+".so", "gcc", args...))
	}
	return libs
}

// asan are flags for AddressSanitizer and UndefinedBehaviorSanitizer; -O1, for at -O2 the compiler takes twice as long.
var asan = []string{"-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"}

// TestLocalStress walks under bad conditions, plain and under the sanitizers. Two things ThreadSanitizer does not do: it
// lets a handler run only where the program makes a call that it intercepts, and blocks signals meanwhile, so that handlers
// do not interrupt a walk or each other (they do in the other runs). And it knows nothing of the loader's lock, for the
// loader is not instrumented: what is called from there is ignored.
func TestLocalStress(t *testing.T) {
	libs := plugins(t)
	for _, kind := range []struct {
		name, env string
		flags     []string
	}{
		{"plain", "NONE=1", nil},
		{"address", "ASAN_OPTIONS=detect_stack_use_after_return=0:use_sigaltstack=0:handle_segv=0", asan},
		{"thread", "TSAN_OPTIONS=handle_segv=0:report_signal_unsafe=0:ignore_noninstrumented_modules=1", []string{"-fsanitize=thread"}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			lib := localLib(t, "gcc", kind.flags...)
			prog := localProgram(t, "gcc", "local_stress.c", kind.flags...)
			for _, what := range []string{"threads", "storm", "altstorm", "fork", "dlopen", "dlstorm", "corrupt", "guard", "gone", "overflow", "alt", "call"} {
				t.Run(what, func(t *testing.T) {
					t.Parallel() // half of them go on for a fixed time
					if out, err := runWith(lib, []string{kind.env}, prog, append([]string{what}, libs...)...); err != nil {
						t.Errorf("%v\n%s", err, out)
					}
				})
			}
		})
	}
}

// TestLocalUnnamed walks through modules without a build ID, of which nothing is remembered.
func TestLocalUnnamed(t *testing.T) {
	libs := append(plugins(t, "-Wl,--build-id=none"), plugins(t)...)
	if out, err := runWith(localLib(t, "gcc"), nil, localProgram(t, "gcc", "local_stress.c"), append([]string{"unnamed"}, libs...)...); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// damage writes copies of a shared object in which bytes are changed that the loader does not look at.
func damage(t *testing.T, lib string, copies int) (paths []string) {
	b, err := os.ReadFile(lib)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	table := &elf.Section{SectionHeader: elf.SectionHeader{Offset: binary.LittleEndian.Uint64(b[40:])}}
	table.FileSize = uint64(len(f.Sections)) * 64
	parts := []*elf.Section{table}
	for _, name := range []string{".eh_frame", ".eh_frame_hdr", ".note.gnu.build-id", ".symtab", ".strtab"} {
		if s := f.Section(name); s != nil {
			parts = append(parts, s)
		}
	}
	r := rand.New(rand.NewPCG(11, 12))
	for i := range copies {
		x := bytes.Clone(b)
		for range 1 + r.IntN(40) {
			s := parts[r.IntN(len(parts))]
			x[s.Offset+r.Uint64N(s.FileSize)] = byte(r.Uint32())
		}
		path := filepath.Join(t.TempDir(), fmt.Sprintf("damaged%d.so", i))
		if err := os.WriteFile(path, x, 0o755); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

// TestLocalDamaged: a damaged module ends walks, and nothing else, whether it was loaded at the start or later.
func TestLocalDamaged(t *testing.T) {
	damaged := damage(t, plugins(t)[1], 40)
	for _, flags := range [][]string{nil, asan} {
		lib := localLib(t, "gcc", flags...)
		prog := localProgram(t, "gcc", "local_stress.c", flags...)
		preload := "LD_PRELOAD="
		if flags != nil {
			damaged = damaged[:6] // they are slow
			so, err := exec.Command("gcc", "-print-file-name=libasan.so").Output()
			if err != nil {
				t.Fatal(err)
			}
			preload += strings.TrimSpace(string(so)) + ":"
		}
		env := []string{"ASAN_OPTIONS=detect_stack_use_after_return=0:detect_leaks=0"}
		for _, path := range damaged {
			if out, err := runWith(lib, env, prog, "damaged", path); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			if out, err := runWith(lib, env, "env", preload+path, prog, "damaged"); err != nil {
				t.Errorf("there from the start: %v\n%s", err, out)
			}
		}
	}
}

// TestLocalShapes: stacks that are hard at one place.
func TestLocalShapes(t *testing.T) {
	needStock(t)
	lib := localLib(t, "gcc")
	prog := filepath.Join(t.TempDir(), "shapes")
	if out, err := exec.Command("gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-fno-optimize-sibling-calls", "-o", prog,
		"testdata/local_shapes.c", "-lunwind").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(prog)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+lib)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
