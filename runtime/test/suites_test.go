package test

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// A suite is the tests of a program of Debian.
type suite struct {
	name     string
	programs string // those whose processes are looked at, as an expression for their links in /proc
	run      func(t *testing.T, dir string, run func(dir string, args ...string) string) (outcomes map[string]string)
}

var suites = []suite{
	{"python", `^/usr/bin/python3\.11$`, pythonSuite},
	{"rust-smallvec", `/smallvec$`, smallvecSuite},
	{"g++", `/(cc1plus|prog)$`, gxxSuite},
	{"sqlite3", `/testfixture$`, sqliteSuite},
	{"openssl", `/(apps/openssl|test/\w+)$`, opensslSuite},
}

// preloads are all libraries that unspool preloads into programs.
var preloads = []string{"libunspool_eh.so", "libunspool_heap.so", "libunspool-dw.so"}

// TestSuites runs tests of Debian's programs under all libraries at once that unspool preloads, and on its libunwind.so.8: each test ends as it does
// without. UNSPOOL_SUITES names the suites.
func TestSuites(t *testing.T) {
	oracle.Full(t)
	ehLibrary(t)
	build := dropIn(t, "gcc")
	var paths []string
	for _, name := range preloads {
		if path := filepath.Join(build, name); exists(path) {
			paths = append(paths, path)
		} else {
			oracle.Lacks(t, name)
		}
	}
	ours := []string{"LD_PRELOAD=" + strings.Join(paths, ":"), "LD_LIBRARY_PATH=" + build}
	for _, s := range suites {
		if only := os.Getenv("UNSPOOL_SUITES"); only != "" && !slices.Contains(strings.Fields(only), s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			stock, with := outcomes(t, s, nil, nil), outcomes(t, s, ours, paths)
			if len(stock) < 50 {
				t.Errorf("only %d tests", len(stock))
			}
			count := map[string]int{}
			for name, want := range stock {
				if count[want]++; with[name] != want {
					t.Errorf("%s: %q, without the libraries %q", name, with[name], want)
				}
			}
			for name, got := range with {
				if _, ok := stock[name]; !ok {
					t.Errorf("%s: %q, without the libraries no such test", name, got)
				}
			}
			t.Logf("%d tests: %v", len(stock), count)
		})
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// outcomes runs a suite. Each process of its programs that is seen has the libraries mapped, and there are some.
func outcomes(t *testing.T, s suite, env, libraries []string) map[string]string {
	t.Helper()
	dir, mapped, programs := t.TempDir(), map[string]int{}, regexp.MustCompile(s.programs)
	got := s.run(t, dir, func(at string, args ...string) string {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir, cmd.Env = at, append(append(stockEnv(), "TMPDIR="+dir, "LC_ALL=C.UTF-8"), env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = 10 * time.Second
		log, err := os.Create(filepath.Join(dir, "log"))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan bool)
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				for exe, maps := range processes(dir, programs) {
					mapped[filepath.Base(exe)]++
					if slices.ContainsFunc(libraries, func(lib string) bool { return !strings.Contains(maps, " "+lib+"\n") }) {
						t.Errorf("%s: a library is not mapped:\n%s", exe, maps)
						return
					}
				}
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
			}
		}()
		err = cmd.Wait()
		cancel()
		<-done
		b, err2 := os.ReadFile(log.Name())
		if err2 != nil {
			t.Fatal(err2)
		}
		return fmt.Sprintf("%s%v\n", b, err)
	})
	if len(mapped) == 0 {
		t.Errorf("no process of %s was seen", s.programs)
	}
	t.Logf("processes seen: %v", mapped)
	return got
}

// processes are those of some programs whose files for a time are in dir: each one's program, and its maps once the loader is done. A program without
// the C library is linked statically.
func processes(dir string, programs *regexp.Regexp) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		found, _ := filepath.Glob("/proc/[0-9]*/exe")
		for _, link := range found {
			exe, err := os.Readlink(link)
			if err != nil || !programs.MatchString(exe) {
				continue
			}
			proc := filepath.Dir(link)
			env, err := os.ReadFile(proc + "/environ")
			if err != nil || !bytes.Contains(env, []byte("TMPDIR="+dir+"\x00")) {
				continue
			}
			// The kernel gives a list in pieces: that of a process that ends meanwhile lacks some. The loader maps the C library last.
			maps, err := os.ReadFile(proc + "/maps")
			again, err2 := os.ReadFile(proc + "/maps")
			if err != nil || err2 != nil || !bytes.Equal(maps, again) || !bytes.Contains(maps, []byte("libc.so.6\n")) || !bytes.Contains(maps, []byte("[stack]\n")) {
				continue
			}
			if !yield(exe, string(maps)) {
				return
			}
		}
	}
}

// pythonTests are those of Debian's libpython3.11-testsuite that have to do with stacks, signals, threads, processes and C.
var pythonTests = []string{"test_exceptions", "test_except_star", "test_faulthandler", "test_threading", "test_thread", "test_threadsignals", "test_signal", "test_ctypes",
	"test_fork1", "test_generators", "test_traceback", "test_gc", "test_mmap", "test_dbm", "test_decimal", "test_select", "test_embed"}

func pythonSuite(t *testing.T, dir string, run func(dir string, args ...string) string) map[string]string {
	if !exists("/usr/lib/python3.11/test/test_gc.py") {
		oracle.Lacks(t, "libpython3.11-testsuite")
	}
	report := filepath.Join(dir, "report.xml")
	out := run(dir, slices.Concat([]string{"/usr/bin/python3.11", "-m", "test", "-j2", "--timeout", "1200", "--junit-xml", report}, pythonTests)...)
	b, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var x struct {
		Suite []struct {
			Case []struct {
				Name    string    `xml:"name,attr"`
				Skipped *struct{} `xml:"skipped"`
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(b, &x); err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]string{}
	for _, s := range x.Suite {
		for _, c := range s.Case {
			switch {
			case c.Failure != nil || c.Error != nil:
				outcomes[c.Name] = "failed"
			case c.Skipped != nil:
				outcomes[c.Name] = "skipped"
			default:
				outcomes[c.Name] = "ok"
			}
		}
	}
	return outcomes
}

// smallvecSuite are the tests of Debian's librust-smallvec-dev: a third of them panics, in many ways.
func smallvecSuite(t *testing.T, dir string, run func(dir string, args ...string) string) map[string]string {
	oracle.Need(t, "rustc")
	var crate string
	err := filepath.WalkDir(oracle.Debian(t, "bookworm", "amd64", "smallvec", "librust-smallvec-dev"), func(path string, e fs.DirEntry, err error) error {
		if err == nil && strings.Contains(path, "/smallvec-") && strings.HasSuffix(path, "/src/lib.rs") {
			crate = path
		}
		return err
	})
	if err != nil || crate == "" {
		t.Fatalf("there is no smallvec: %v", err)
	}
	prog := filepath.Join(dir, "smallvec")
	if out, err := exec.Command("rustc", "--test", "-O", "-g", "--edition", "2018", "--cap-lints", "allow", "--cfg", `feature="write"`, "-o", prog, crate).CombinedOutput(); err != nil {
		t.Fatalf("rustc: %v\n%s", err, out)
	}
	outcomes := map[string]string{}
	// Often, so that its process is seen.
	for range 10 {
		out := run(dir, prog)
		for _, m := range regexp.MustCompile(`(?m)^test (\S+)(?: - should panic)? \.\.\. (\w+)$`).FindAllStringSubmatch(out, -1) {
			if was, ok := outcomes[m[1]]; ok && was != m[2] {
				t.Errorf("%s: %s, then %s", m[1], was, m[2])
			}
			outcomes[m[1]] = m[2]
		}
		if !strings.HasSuffix(out, "\n<nil>\n") {
			t.Fatalf("%v\n%s", slices.Collect(maps.Keys(outcomes)), out)
		}
	}
	return outcomes
}

// gxxSuite are GCC's tests of exceptions in C++: what the compiler says of each file, and how its program ends.
func gxxSuite(t *testing.T, dir string, run func(dir string, args ...string) string) map[string]string {
	oracle.Need(t, "g++-12", "tar", "xz")
	gcc, outcomes := gccTests(t), map[string]string{}
	for _, part := range []string{"gcc/testsuite/g++.dg/eh", "gcc/testsuite/g++.old-deja/g++.eh"} {
		for _, file := range oracle.Files(t, filepath.Join(gcc, part), func(path string) bool { return strings.HasSuffix(path, ".C") || strings.HasSuffix(path, ".cc") }) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			name, prog := strings.TrimPrefix(file, gcc), filepath.Join(dir, "prog")
			os.Remove(prog)
			args := []string{"x86_64-linux-gnu-g++-12", "-w", "-pthread", "-I" + filepath.Join(gcc, "libstdc++-v3/testsuite/util"), "-o", prog, file}
			for _, m := range dgOptions.FindAllSubmatch(data, -1) {
				args = append(args, strings.Fields(string(m[1]))...)
			}
			outcome := run(dir, args...)
			outcomes[name] = strings.ReplaceAll(scratch.ReplaceAllString(outcome, "/tmp/SCRATCH"), gcc, "GCC")
			if exists(prog) {
				outcomes[name+" runs"] = addresses.ReplaceAllString(run(dir, "timeout", "-s", "KILL", "60", prog), "ADDRESS")
			}
		}
	}
	return outcomes
}

// scratch are files of compilers.
var scratch = regexp.MustCompile(`/\S*/cc\w+\.\w`)

// sqliteScripts are tests of sqlite3 of its SQL, transactions, logs, and threads; those that end within seconds, and need not be another user than root.
var sqliteScripts = []string{"select1", "select2", "insert", "update", "join", "where", "rollback", "savepoint", "thread005", "wal", "backup", "incrblob",
	"func", "expr", "window1", "json101"}

// sqliteSuite are scripts of sqlite3's own tests, by its program for them, which is built from Debian's source.
func sqliteSuite(t *testing.T, dir string, run func(dir string, args ...string) string) map[string]string {
	oracle.Need(t, "make", "gcc", "tclsh")
	if !exists("/usr/lib/tcl8.6/tclConfig.sh") {
		oracle.Lacks(t, "tcl-dev")
	}
	source := oracle.Source(t, "bookworm", "sqlite-suite", "sqlite3", "*")
	build := once(t, "sqlite3", func(dir string) error {
		cmd := exec.Command("sh", "-c", `"$0/configure" --disable-shared --with-tcl=/usr/lib/tcl8.6 >configure.log && make -j2 CFLAGS=-O0 testfixture`, source)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	outcomes := map[string]string{}
	for _, name := range sqliteScripts {
		out := run(dir, filepath.Join(build, "testfixture"), filepath.Join(source, "test", name+".test"))
		for _, m := range regexp.MustCompile(`(?m)^(\S+)\.\.\. ?(Ok|.*)$`).FindAllStringSubmatch(out, -1) {
			outcomes[name+" "+m[1]] = m[2]
		}
		outcomes[name] = strings.Join(regexp.MustCompile(`(?m)^\d+ errors out of \d+ tests|^!?Failures on.*$|^exit status.*$|^signal.*$`).FindAllString(out, -1), "; ")
	}
	return outcomes
}

// opensslTests are those of openssl's tests that have to do with threads, coroutines, memory, loading and unloading of libraries, and TLS in one
// process: 107 of 265 scripts, by the numbers that their names begin with. test_store takes minutes for a thousand processes of perl.
const opensslTests = "0? 61 90 -test_store"

// opensslSuite are openssl's own tests, by its harness. Its library and programs are built from Debian's source, once in the user's cache.
func opensslSuite(t *testing.T, _ string, run func(dir string, args ...string) string) map[string]string {
	oracle.Need(t, "make", "gcc", "perl")
	source := oracle.Source(t, "bookworm", "openssl-suite", "openssl", "*")
	build := filepath.Join(filepath.Dir(source), "build")
	lock, err := os.Create(build + ".lock")
	if err == nil {
		defer lock.Close()
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	const make = `set -e; cd "$0"; [ ! -e built ] || exit 0; perl "$1/Configure" linux-x86_64 -O1 >configure.log; make -j2 build_sw >make.log 2>&1 || { tail make.log; exit 1; }; touch built`
	if err := os.MkdirAll(build, 0o700); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "sh", "-c", make, build, source)
	out := run(build, "make", "-s", "run_tests", "HARNESS_JOBS=2", "HARNESS_VERBOSE_FAILURE=yes", "TESTS="+opensslTests)
	outcomes := map[string]string{"all": strings.Join(regexp.MustCompile(`(?m)^Files=\d+, Tests=\d+|^Result: .*$`).FindAllString(out, -1), ", ")}
	for _, m := range regexp.MustCompile(`(?m)^(\d+-test_\S+\.t) \.+ *(.*)$`).FindAllStringSubmatch(out, -1) {
		outcomes[m[1]] = m[2]
	}
	return outcomes
}
