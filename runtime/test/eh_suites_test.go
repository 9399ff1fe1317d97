package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// An ehSuite is a suite of others: each of its files is a program.
type ehSuite struct {
	name  string
	m     *ehMachine
	min   int    // so many of its programs end well with libgcc
	stock string // a library that is preloaded beside libgcc, or none
	files []string
	cxx   []string
}

// TestEhSuites runs the programs of the suites of compilers' authors for exceptions: of GCC's g++.dg/eh and g++.old-deja/g++.eh, of libstdc++'s
// 18_support, of libc++abi and of LLVM's libunwind. Each ends with the library as it ends with libgcc, which is preloaded where a program has LLVM's
// libunwind. What is not a program of one file is left out.
func TestEhSuites(t *testing.T) {
	oracle.Full(t)
	ehLibrary(t)
	oracle.Need(t, "clang++-19", "tar", "xz")
	libgcc := ehHere.libgcc(t)
	gcc, llvm := gccTests(t), oracle.Source(t, "bookworm", "exceptions-llvm", "llvm-toolchain-19", "*/libcxxabi/test/*", "*/libcxx/test/support/*", "*/libunwind/test/*")
	cxx := oracle.Debian(t, "bookworm", "amd64", "libcxx", "libc++-19-dev", "libc++abi-19-dev", "libc++1-19", "libc++abi1-19", "libunwind-19")
	libs := filepath.Join(cxx, "usr/lib/llvm-19/lib")
	sources := func(dir string) []string {
		return oracle.Files(t, dir, func(path string) bool {
			return slices.Contains([]string{".C", ".cc", ".cpp"}, filepath.Ext(path)) && !strings.Contains(path, ".compile.")
		})
	}
	var suites []ehSuite
	for _, m := range ehMachines {
		var flags []string
		if m != ehHere {
			flags = []string{"-mbranch-protection=standard"}
		}
		gxx := append([]string{m.cxx}, flags...)
		suites = append(suites,
			ehSuite{"g++.dg", m, 65, "", sources(filepath.Join(gcc, "gcc/testsuite/g++.dg/eh")), gxx},
			ehSuite{"g++.old-deja", m, 45, "", sources(filepath.Join(gcc, "gcc/testsuite/g++.old-deja/g++.eh")), append(slices.Clone(gxx), "-std=gnu++14")},
			ehSuite{"libstdc++", m, 70, "", sources(filepath.Join(gcc, "libstdc++-v3/testsuite/18_support")),
				append(slices.Clone(gxx), "-std=gnu++17", "-I"+filepath.Join(gcc, "libstdc++-v3/testsuite/util"))})
	}
	suites = append(suites,
		ehSuite{"libc++abi", ehHere, 50, libgcc, sources(filepath.Join(llvm, "libcxxabi/test")), []string{"clang++-19", "-std=c++17", "-nostdinc++", "-nostdlib++",
			"-isystem", filepath.Join(cxx, "usr/lib/llvm-19/include/c++/v1"), "-I" + filepath.Join(llvm, "libcxx/test/support"), "-I" + filepath.Join(llvm, "libcxxabi/test/support"),
			"-L" + libs, "-Wl,-rpath," + libs, "-l:libc++.so.1", "-l:libc++abi.so.1"}},
		ehSuite{"libunwind", ehHere, 5, "", sources(filepath.Join(llvm, "libunwind/test")), []string{"clang++-19", "-funwind-tables", "-rdynamic"}})
	for _, s := range suites {
		t.Run(s.name+" "+s.m.name, func(t *testing.T) { s.judge(t, s.m.library(t)) })
	}
}

// gccTests unpacks the tests of GCC's source.
func gccTests(t *testing.T) string {
	t.Helper()
	archives, err := filepath.Glob(filepath.Join(oracle.Source(t, "bookworm", "exceptions-gcc", "gcc-12", "*.tar.xz"), "gcc-*.tar.xz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("the archives of gcc-12 are %q, %v, want 1", archives, err)
	}
	dir := t.TempDir()
	oracle.Run(t, "tar", "-x", "-C", dir, "-f", archives[0], "--strip-components=1", "--wildcards", "*/gcc/testsuite/g++.dg/eh/*",
		"*/gcc/testsuite/g++.old-deja/g++.eh/*", "*/libstdc++-v3/testsuite/18_support/*", "*/libstdc++-v3/testsuite/util/*")
	return dir
}

// dgOptions are a test's options of the compiler, on all machines; their place is in DejaGnu's comments.
var dgOptions = regexp.MustCompile(`\{ *dg-(?:additional-)?options +"([^"]*)" *\}`)

// judge compiles each file and runs the program with libgcc and with the library.
func (s ehSuite) judge(t *testing.T, lib string) {
	type result struct{ file, stock, ours string }
	var wg sync.WaitGroup
	files, results, dir := make(chan string), make(chan result), t.TempDir()
	for worker := range 2 {
		wg.Go(func() {
			prog := filepath.Join(dir, fmt.Sprint("prog", worker))
			for file := range files {
				data, err := os.ReadFile(file)
				if err != nil {
					t.Error(err)
					continue
				}
				args := append(slices.Clone(s.cxx[1:]), "-w", "-pthread", "-o", prog, file)
				for _, m := range dgOptions.FindAllSubmatch(data, -1) {
					args = append(args, strings.Fields(string(m[1]))...)
				}
				os.Remove(prog)
				if exec.Command("timeout", append([]string{"60", s.cxx[0]}, args...)...).Run() != nil || !exists(prog) {
					continue
				}
				run := func(preload string) string { return s.m.run(t, preload, nil, prog) }
				r := result{file, run(s.stock), run(lib)}
				if r.stock != r.ours { // some print addresses, and some ask for memory that is short now
					r = result{file, addresses.ReplaceAllString(run(s.stock), "ADDRESS"), addresses.ReplaceAllString(run(lib), "ADDRESS")}
				}
				results <- r
			}
		})
	}
	go func() {
		for _, file := range s.files {
			files <- file
		}
		close(files)
		wg.Wait()
		close(results)
	}()
	var programs, stock, ours int
	for r := range results {
		well := func(out string) int {
			if strings.HasSuffix(out, "<nil>\n") {
				return 1
			}
			return 0
		}
		programs, stock, ours = programs+1, stock+well(r.stock), ours+well(r.ours)
		if r.stock != r.ours {
			t.Errorf("%s: with libgcc:\n%s\nwith the library:\n%s", r.file, r.stock, r.ours)
		}
	}
	t.Logf("%d files, %d programs: %d end well with libgcc, %d with the library", len(s.files), programs, stock, ours)
	if stock < s.min {
		t.Errorf("only %d end well with libgcc", stock)
	}
}

// TestEhSanitizers: programs that ASan, TSan and UBSan watch throw and catch as with libgcc, and nothing is reported. ASan objects to stacks that
// programs make, and TSan to exceptions that a signal handler makes, whatever unwinds them.
func TestEhSanitizers(t *testing.T) {
	oracle.Full(t)
	lib := ehLibrary(t)
	for _, c := range []struct{ flag, library, not string }{{"address", "libasan.so", "coroutines"}, {"thread", "libtsan.so", "signals"}, {"undefined", "", ""}} {
		t.Run(c.flag, func(t *testing.T) {
			flags := []string{"-O1", "-w", "-fnon-call-exceptions", "-fsanitize=" + c.flag}
			prog, plugin := ehHere.program(t, "eh_shapes.cc", flags...), ehHere.program(t, "eh_plugin.cc", append(flags, "-fPIC", "-shared")...)
			preload := lib
			if c.library != "" { // it must be the first
				preload = strings.TrimSpace(string(oracle.Run(t, "g++", "-print-file-name="+c.library))) + " " + lib
			}
			env := []string{"EH_PLUGIN=" + plugin, "EH_PLUGIN_2=" + plugin, "ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigfpe=0"}
			for _, way := range append([]string{"signals", "modules"}, ehWays...) {
				if way == c.not || way == "abort" { // the report of an abort has addresses
					continue
				}
				stock, ours := ehRun(t, "", env, prog, way), ehRun(t, preload, env, prog, way)
				if stock != ours || strings.Contains(stock, "SUMMARY") {
					t.Errorf("%s: with libgcc:\n%s\nwith the library:\n%s", way, stock, ours)
				}
			}
		})
	}
}

// TestArmEhShadow: with AArch64's shadow stack on, handlers are entered with the shadow stack of their frames, also from a signal's handler. libgcc 12 knows
// no shadow stacks: with it the program has one fault after the other. The test needs QEMU 11, and has the archive: the loader turns shadow stacks off where it loads the library.
func TestArmEhShadow(t *testing.T) {
	oracle.Full(t)
	m := ehMachines[1]
	archive := filepath.Join(built(t, m.cc, "", "libunspool_eh.a"), "libunspool_eh.a")
	qemu := filepath.Join(oracle.Debian(t, "sid", "amd64", "qemu-user", "qemu-user"), "usr/bin/qemu-aarch64")
	flags := []string{"-O2", "-static", "-fnon-call-exceptions"}
	run := func(seconds, prog string) string {
		out, err := exec.Command("timeout", "-s", "KILL", seconds, qemu, "-cpu", "max", prog).CombinedOutput()
		return fmt.Sprintf("%s%v\n", out, err)
	}
	want := strings.Repeat("frames: 7, 301 cleanups, shadow stack as before\nagain: 7, 7 cleanups, shadow stack as before\n"+
		"signal: 8, 5 cleanups, shadow stack as before\n", 3) + "<nil>\n"
	if out := run("100", m.program(t, "eh_gcs.cc", append(flags, "-Wl,--whole-archive", archive, "-Wl,--no-whole-archive")...)); out != want {
		t.Errorf("with the archive:\n%s", out)
	}
	if out := run("10", m.program(t, "eh_gcs.cc", flags...)); strings.HasSuffix(out, "<nil>\n") {
		t.Errorf("with libgcc:\n%s", out)
	}
}
