package test

import (
	"context"
	"encoding/xml"
	"fmt"
	"io/fs"
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
	name string
	main string // the program whose tests they are, as its link in /proc begins or ends
	run  func(t *testing.T, dir string, run func(dir string, args ...string) string) (outcomes map[string]string)
}

var suites = []suite{
	{"python", "/usr/bin/python3.11", pythonSuite},
	{"rust-smallvec", "/smallvec", smallvecSuite},
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

// outcomes runs a suite. Each process of its program that is seen has the libraries mapped, and there are some.
func outcomes(t *testing.T, s suite, env, libraries []string) map[string]string {
	t.Helper()
	dir, mapped := t.TempDir(), 0
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
				if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", cmd.Process.Pid)); err == nil && (exe == s.main || strings.HasSuffix(exe, s.main)) {
					maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
					lacks := func(lib string) bool { return !strings.Contains(string(maps), " "+lib+"\n") }
					// The loader maps the C library last.
					if err == nil && strings.Contains(string(maps), "libc.so.6\n") {
						if mapped++; slices.ContainsFunc(libraries, lacks) {
							t.Errorf("a library is not mapped:\n%s", maps)
							return
						}
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
	if mapped == 0 {
		t.Errorf("%s was not seen", s.main)
	}
	return got
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
