package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/pflag"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/tui/top"
)

// hostile is a name that sets a terminal's title, forges a message and turns the rest of the line around.
const hostile = "a\x1b]0;pwn\x07\nunspool: all is well\u202e\u009b31m"

// harmless checks what the program printed for people.
func harmless(t *testing.T, r result, args []string) {
	t.Helper()
	for name, text := range map[string]string{"stdout": r.out, "stderr": r.stderr} {
		for line := range strings.Lines(text) {
			bad := strings.IndexFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool {
				return unicode.IsControl(r) && r != '\t' || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
			})
			if bad >= 0 || strings.HasPrefix(line, "unspool: all is well") {
				t.Errorf("unspool %q: %s has %.200q", args, name, line)
			}
		}
	}
	if strings.Contains(r.stderr, "goroutine ") || r.status < 0 {
		t.Errorf("unspool %q: status %d, %s", args, r.status, r.stderr)
	}
}

// foreignProgram is a program for the other of the two machines.
func foreignProgram(t *testing.T, dir string) string {
	t.Helper()
	oracle.Need(t, "go")
	src, path := filepath.Join(dir, "foreign.go"), filepath.Join(dir, "foreign")
	if err := os.WriteFile(src, []byte("package main\n\nfunc main() { println(1) }\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-o", path, src)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH])
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// TestHostileNames calls every verb, and every flag of each, with a name that a terminal would obey: of what does not exist, what is no file
// that it can read, a directory, a program that is cut short, and a whole one.
func TestHostileNames(t *testing.T) {
	oracle.Long(t)
	dir := t.TempDir()
	self, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	put := func(kind string, b []byte) string {
		path := filepath.Join(dir, kind+hostile)
		if err := os.WriteFile(path, b, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	foreign, err := os.ReadFile(foreignProgram(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{
		"foreign": put("foreign", foreign), "foreign-short": put("foreign-short", foreign[:len(foreign)*2/3]),
		"missing": filepath.Join(dir, hostile), "text": put("text", []byte("text")), "short": put("short", self[:len(self)/2]), "whole": put("whole", self),
		"directory": filepath.Join(dir, "dir"+hostile),
	}
	if err := os.Mkdir(paths["directory"], 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(paths["short"], filepath.Join(paths["directory"], "x"+hostile)); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) {
		c := program(t, args...)
		harmless(t, finish(t, c), args)
	}
	root := command()
	for _, verb := range root.Commands() {
		name := verb.Name()
		if name == "help" || name == "completion" || name == "version" {
			continue
		}
		run(name, "--"+hostile)
		verb.Flags().VisitAll(func(f *pflag.Flag) {
			if f.NoOptDefVal == "" && f.Name != "listen" {
				run(name, "--"+f.Name+"="+hostile, paths["missing"])
			}
		})
		for kind, path := range paths {
			switch args := []string{name, path}; {
			case kind != "missing" && (name == "man" || name == "doctor"):
			case slices.Contains([]string{"record", "top", "run"}, name):
				if kind != "whole" { // a shell, that would read standard input
					run(name, "--", path)
				}
			case name == "unwind" || name == "diff":
				run(append(args, path)...)
			default:
				run(args...)
			}
		}
	}
	run(hostile)
	run("help", hostile)
	run("verify", "--run", "--", paths["whole"], "-c", ":")
	run("compile", "--emit", "c", "-o", paths["directory"], paths["whole"])
	run("compile", "-o", paths["text"], paths["whole"])
}

// TestHostileRecording shows a recording of a program whose path, name and functions are hostile in every way in which it can be shown as text.
func TestHostileRecording(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	prog := filepath.Join(dir, "prog"+hostile)
	gcc := exec.Command("gcc", "-O1", "-g", "-o", prog, "-x", "c", "-")
	gcc.Stdin = strings.NewReader(`#include <sys/prctl.h>
volatile unsigned long n;
void f(void) __asm__("\"evil\033]0;pwn\007\"");
__attribute__((noinline)) void f(void) { for (int i = 0; i < 200000000; i++) n++; }
int main(int argc, char **argv) { prctl(PR_SET_NAME, "c\033[31m\nunspool: all is well"); do f(); while (argc > 1); return 0; }`)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := program(t, "record", "-o", "x"+hostile, "--format", "data", "--", prog)
	file := filepath.Join(c.Dir, "x"+hostile)
	r := finish(t, c)
	harmless(t, r, c.Args[1:])
	r.want(t, 0, "samples")
	run := func(args ...string) {
		r := runProgram(t, args...)
		harmless(t, r, args)
		if r.status != 0 || !strings.Contains(r.out, "evil") {
			t.Errorf("unspool %q: status %d, %.2000s%s", args, r.status, r.out, r.stderr)
		}
	}
	for _, format := range append(report.Formats.Names(), "annotate", "disasm") {
		switch format {
		case "json", "jsonl", "stacks", "firefox", "speedscope", "pprof", "flame": // for programs, with escapes of their own
		case "callers", "callees":
			run("report", file, "--format", format, "--function", "evil")
		default:
			run("report", file, "--format", format)
		}
	}
	run("diff", file, file, "--all")
	run("top", "-n", "1", "--", prog)
	for _, table := range top.Tables() {
		harmless(t, runProgram(t, "top", "-n", "1", "--table", table, "--", prog), []string{"top", table})
	}
	target := exec.Command(prog, "stay")
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer target.Wait()
	defer target.Process.Kill()
	for _, format := range []string{"text", "gdb", "eu"} {
		run("stack", "--format", format, fmt.Sprint(target.Process.Pid))
	}
}

// TestOneStandardError: messages go through stderr, not to os.Stderr.
func TestOneStandardError(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	raw := regexp.MustCompile(`(Fprint\w*|WriteString|NewWriter|NewEncoder)\(os\.Stderr|\bprintln\(`)
	for _, f := range files {
		if b, err := os.ReadFile(f); err != nil || !strings.HasSuffix(f, "_test.go") && raw.Match(b) {
			t.Errorf("%s: %s, %v", f, raw.Find(b), err)
		}
	}
}
