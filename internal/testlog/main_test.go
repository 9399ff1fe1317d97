package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// module is a module whose tests pass, fail and are skipped in all ways.
var module = map[string]string{
	"go.mod": "module example.org/m\n\ngo 1.24\n",
	"good/a_test.go": `package good
import ("testing"; "time")
func TestGood(t *testing.T) { t.Log("of no interest"); time.Sleep(120*time.Millisecond) }
func TestLacks(t *testing.T) { t.Log("before"); t.Skip("this machine lacks gdb: not found") }
func TestSub(t *testing.T) {
	t.Run("a", func(t *testing.T) { t.Skip("this machine lacks gdb") })
	t.Run("b", func(t *testing.T) { t.Skip("for root") })
	t.Run("c", func(t *testing.T) { t.Skip("part of TestGood") })
}`,
	// It ends late, so that others are done between its lines.
	"bad/a_test.go": `package bad
import ("os"; "testing"; "time")
func TestMain(m *testing.M) { code := m.Run(); time.Sleep(300*time.Millisecond); os.Exit(code) }
func TestGood(t *testing.T) {}
func TestBad(t *testing.T) { t.Run("inner", func(t *testing.T) { t.Error("is wrong") }) }
func TestOther(t *testing.T) { t.Error("too") }`,
	"worse/a_test.go": "package worse\nimport \"testing\"\nfunc TestPanics(t *testing.T) { panic(\"at the disco\") }",
	"none/a.go":       "package none\n",
	"broken/a.go":     "package broken\nvar x int = \"text\"\n",
	"broken/a_test.go": `package broken
import "testing"
func TestNone(t *testing.T) {}`,
}

// TestLog: what is printed has the lines of go test that scripts look for, and its exit status.
func TestLog(t *testing.T) {
	oracle.Long(t)
	dir := t.TempDir()
	bin := filepath.Join(dir, "testlog")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, text := range module {
		path := filepath.Join(dir, name)
		os.MkdirAll(filepath.Dir(path), 0o700)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (string, int) {
		c := exec.Command(args[0], args[1:]...)
		c.Dir = dir
		c.Env = append(os.Environ(), "XDG_CACHE_HOME="+dir, "GOFLAGS=") // with -trimpath, the cache would know the tests from another directory
		if os.Getenv("GOCACHE") == "" {
			cache, _ := exec.Command("go", "env", "GOCACHE").Output()
			c.Env = append(c.Env, "GOCACHE="+strings.TrimSpace(string(cache)))
		}
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, &out
		c.Run()
		return out.String(), c.ProcessState.ExitCode()
	}
	for _, pkgs := range []string{"./good", "./bad", "./worse", "./none", "./broken", "./...", "./nowhere"} {
		plain, status := run("go", "test", pkgs)
		got, gotStatus := run(bin, "go", "test", pkgs)
		if (gotStatus == 0) != (status == 0) {
			t.Errorf("%s: status %d, want %d\n%s", pkgs, gotStatus, status, got)
		}
		// All lines that .ci/run and people look for, of both. With -json, go test prints what packages say as it comes: their lines are mixed.
		lines := func(s string) (list []string) {
			for _, m := range regexp.MustCompile(`(?m)^(--- FAIL: \w+|(?:ok|FAIL|\?)[ \t]+\S+|panic: .*|.*\[(?:build|setup) failed\]|[ \t]+\w+\.go:\d+: .*|.*no required module.*|.*cannot use "text".*)`).FindAllString(s, -1) {
				list = append(list, strings.Join(strings.Fields(m), " "))
			}
			return list
		}
		want := lines(plain)
		have := strings.Join(lines(got), "\n")
		for _, l := range want {
			if !strings.Contains(have, l) {
				t.Errorf("%s: %q is missing\n%s\ngo test says\n%s", pkgs, l, got, plain)
			}
		}
		if strings.Contains(got, "of no interest") || strings.Contains(got, "=== RUN") || !strings.HasPrefix(got, "All tests take ") {
			t.Errorf("testlog go test %s: lines of tests that pass, or a first line that does not say how long all take:\n%s", pkgs, got)
		}
		// The slowest test is named once. What the cache answers for took its time in an earlier run.
		slow := regexp.MustCompile(`(?ms)^The slowest tests:\n.*^ +\d+\.\ds  example\.org/m/good TestGood$`)
		if good := pkgs == "./good"; slow.MatchString(got) != good || good && strings.Count(got, "/good TestGood\n") != 1 {
			t.Errorf("testlog go test %s: TestGood is among the slowest tests: %v, want %v:\n%s", pkgs, !good, good, got)
		}
		if !regexp.MustCompile(`(?m)^\d+m?\d*s, of processors \d+m?\d*s$`).MatchString(got) {
			t.Errorf("testlog go test %s: no line of processor time:\n%s", pkgs, got)
		}
		last := "No tests skipped.\n"
		if pkgs == "./good" || pkgs == "./..." {
			last = "3 tests skipped for want of: gdb (2), root (1)\n"
		}
		if !strings.HasSuffix(got, last) {
			t.Errorf("%s: the last line is not %q:\n%s", pkgs, last, got)
		}
	}
}
