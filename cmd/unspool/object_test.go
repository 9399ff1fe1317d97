package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// TestObjects: the verbs read object files and archives of them; dump names each member of an archive.
func TestObjects(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "g++", "ar")
	dir := t.TempDir()
	for name, text := range map[string]string{"a.cc": "void g(int *);\nint f(int n) { int a[9]; g(a); return a[n]; }\n", "b.cc": "void g(int *);\nint h() { int a[9]; try { g(a); } catch (int i) { return i; } return a[0]; }\n", "none.cc": "int x = 1;\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []string{"g++ -O2 -c a.cc b.cc none.cc", "ar rcs lib.a a.o b.o none.o a.cc"} {
		cmd := exec.Command("sh", "-c", c)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", c, err, out)
		}
	}
	lib := filepath.Join(dir, "lib.a")
	for _, c := range []struct {
		args []string
		want string // matches the output
		not  string
	}{
		{[]string{"dump", lib}, `(?s)^# \S+/lib\.a\(a\.o\)\nmachine .*\n\.text\+0  cfa=.*\n# \S+/lib\.a\(b\.o\)\nmachine .*\n\.text\S*\+[0-9a-f]+  gap\n$`, "none.o"},
		{[]string{"dump", lib + "(b.o)"}, `(?s)^machine .*\nsection [0-9a-f]+ \.text\n`, "#"},
		{[]string{"dump", "--format", "json", lib}, `(?s)^\{"file":"\S+/lib\.a\(a\.o\)"\}\n\{"section":"\.text","lo":"0x0",`, "none.o"},
		{[]string{"dump", "--exceptions", lib}, `(?s)^# \S+/lib\.a\(b\.o\)\nfunction \.text\S*\+0 .*personality __gxx_personality_v0\n.*  catch _ZTIi\n`, "a.o"},
		{[]string{"verify", lib}, `^3 files: [0-9,]+ rows and [0-9,]+ rules equal the reference; 0 damaged entries; 1 file without unwind information\n`, "differ"},
		{[]string{"dump", dir}, `(?s)^# \S+/a\.o\nmachine .*\n# \S+/b\.o\nmachine .*\n# \S+/lib\.a\(a\.o\)\nmachine .*\n# \S+/lib\.a\(b\.o\)\nmachine `, "none.o"},
		{[]string{"verify", dir}, `^6 files: [0-9,]+ rows and [0-9,]+ rules equal the reference; 0 damaged entries; 2 files without unwind information\n`, "differ"},
		{[]string{"stats", dir}, `files +4 `, "none.o"},
		{[]string{"compile", "-o", filepath.Join(t.TempDir(), "out"), dir}, `^4 files compiled: .*; 2 without unwind information`, "none.o"},
		{[]string{"stats", lib, filepath.Join(dir, "a.o")}, `files +3 `, "none.o"},
		{[]string{"compile", "-o", filepath.Join(dir, "out"), lib}, `^2 files compiled: `, "none.o"},
	} {
		r := runProgram(t, c.args...)
		if !regexp.MustCompile(c.want).MatchString(r.out) || strings.Contains(r.out, c.not) {
			t.Errorf("%q: status %d\n%s%s\nwant %s", c.args, r.status, r.out, r.stderr, c.want)
		}
	}
}
