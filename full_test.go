package unspool

import (
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// TestFullList: make full runs each test with oracle.Full, which runs nowhere else.
func TestFullList(t *testing.T) {
	oracle.Need(t, "git")
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	type run struct {
		names    *regexp.Regexp
		packages []string
	}
	var runs []run
	lines := strings.ReplaceAll(string(makefile), "\\\n", " ")
	for _, m := range regexp.MustCompile(`(?m)^\tUNSPOOL_FULL=1 .* test (.*)$`).FindAllStringSubmatch(lines, -1) {
		r := run{names: regexp.MustCompile("")}
		for _, word := range strings.Fields(m[1]) {
			word = strings.ReplaceAll(strings.Trim(word, "'"), "$$", "$")
			if strings.HasPrefix(word, "^") {
				r.names = regexp.MustCompile(word)
			} else if p, ok := strings.CutPrefix(word, "./"); ok {
				r.packages = append(r.packages, p)
			}
		}
		runs = append(runs, r)
	}
	out, err := exec.Command("git", "grep", "-l", `oracle\.Full(t)`, "--", "*_test.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	function := regexp.MustCompile(`^func (Test\w+)\(`)
	found := 0
	for file := range strings.FieldsSeq(string(out)) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := ""
		for line := range strings.Lines(string(b)) {
			if m := function.FindStringSubmatch(line); m != nil {
				name = m[1]
			}
			if strings.TrimSpace(line) != "oracle.Full(t)" {
				continue
			}
			found++
			if !slices.ContainsFunc(runs, func(r run) bool { return r.names.MatchString(name) && slices.Contains(r.packages, path.Dir(file)) }) {
				t.Errorf("make full does not run %s of ./%s", name, path.Dir(file))
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d tests with oracle.Full were found", found)
	}
}
