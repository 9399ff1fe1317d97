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

// TestCompileSFrame makes copies with an SFrame section: they run, dump shows the section, and verify finds it equal to .eh_frame.
func TestCompileSFrame(t *testing.T) {
	oracle.Long(t)
	dir := t.TempDir()
	for _, emit := range []string{"sframe", "sframe2"} {
		to := filepath.Join(dir, emit)
		r := runProgram(t, "compile", "--emit", emit, "-o", to, "/bin/ls")
		r.want(t, 0, "^$")
		if !regexp.MustCompile(`/` + emit + `: [0-9,]+ rows in [0-9.]+ [KM]iB, beside [0-9.]+ [KM]iB of \.eh_frame and its index\n`).MatchString(r.out) {
			t.Errorf("%s: %s", emit, r.out)
		}
		for _, args := range [][]string{{"/"}, {"--version"}} {
			want, err := exec.Command("/bin/ls", args...).Output()
			got, gerr := exec.Command(to, args...).Output()
			if err != nil || gerr != nil || string(got) != string(want) {
				t.Errorf("%s %v: %v, %v\n%s", to, args, err, gerr, got)
			}
		}
		file, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		if r = runProgram(t, "compile", "--emit", emit, "-o", "-", "/bin/ls"); r.status != 0 || r.out != string(file) || !strings.Contains(r.stderr, "/dev/stdout: ") {
			t.Errorf("%s to standard output: status %d, %d bytes of %d, %s", emit, r.status, len(r.out), len(file), r.stderr)
		}
		r = runProgram(t, "dump", "--unwind", ".sframe", to)
		if r.want(t, 0, "^$"); !strings.Contains(r.out, "cfa=rsp+8") {
			t.Errorf("%s: %.500s", emit, r.out)
		}
		r = runProgram(t, "verify", to)
		if r.want(t, 0, "^$"); !regexp.MustCompile(`they agree at [0-9,]{5,} addresses, count from different registers at 0 and contradict each other at 0`).MatchString(r.out) {
			t.Errorf("%s: %s", emit, r.out)
		}
	}
	// A copy in the place of the file would be of itself.
	self := filepath.Join(dir, "self")
	b, err := os.ReadFile("/bin/ls")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(self, b, 0o755); err != nil {
		t.Fatal(err)
	}
	runProgram(t, "compile", "--emit", "sframe", "-o", self, self).want(t, 1, "is the input, too")
	runProgram(t, "compile", "--emit", "sframe", "-o", self, filepath.Join(dir, "sframe")).want(t, 1, "the file has an SFrame section")
}
