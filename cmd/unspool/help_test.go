package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/doctor"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/oracle"
)

// Every verb says what it does, how it is used, and shows an example that uses it and only flags that exist.
func TestExamples(t *testing.T) {
	root := command()
	flag := regexp.MustCompile(`(?:^| )(-[a-zA-Z]|--[a-z][a-z-]*)\b`)
	n := 0
	cli.EachVerb(root, func(c *cobra.Command) error {
		n++
		if c.Short == "" || c.Long == "" && c.Name() != "help" {
			t.Errorf("%s: no description", c.CommandPath())
		}
		used := false
		for _, line := range strings.Split(c.Example, "\n") {
			for _, part := range strings.FieldsFunc(line, func(r rune) bool { return r == '|' || r == '&' }) {
				part, _, _ = strings.Cut(part, " -- ")
				at := strings.Index(part, c.CommandPath())
				if at < 0 || c == root {
					used = used || at >= 0
					continue
				}
				used = true
				for _, m := range flag.FindAllStringSubmatch(part[at:], -1) {
					name := strings.TrimLeft(m[1], "-")
					if c.Flags().Lookup(name) == nil && c.Flags().ShorthandLookup(name[:1]) == nil && name != "help" {
						t.Errorf("%s: the example's %s does not exist: %s", c.CommandPath(), m[1], line)
					}
				}
			}
		}
		if !used {
			t.Errorf("%s: no example that uses it: %q", c.CommandPath(), c.Example)
		}
		return nil
	})
	if n < 15 {
		t.Errorf("only %d verbs", n)
	}
	r := runProgram(t, "diff", "--help")
	if r.want(t, 0, ""); !strings.Contains(r.out, "Examples:\n  unspool diff before.data after.data\n") {
		t.Errorf("diff --help prints\n%s\nwant the example unspool diff before.data after.data", r.out)
	}
}

// TestVersion: --version and the verb say the same: what is inside, a line each.
func TestVersion(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, doctor.Dropin), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("UNSPOOL_RUNTIME", dir)
	flag, verb := runProgram(t, "--version"), runProgram(t, "version")
	flag.want(t, 0, "^$")
	if verb.want(t, 0, "^$"); flag.out != verb.out {
		t.Errorf("--version: %q\nversion: %q", flag.out, verb.out)
	}
	want := `^unspool version \S.*\ncommit   \S.*\nbuilt    by go1\..* for linux/\w+\nwalks    x86_64, aarch64\n` +
		`kernel   BPF program for ` + arch.ByName(runtime.GOARCH).Name + fmt.Sprintf(`\ntables   version %d\ndrop-in  %s\n$`, compact.Version, regexp.QuoteMeta(dir))
	if !regexp.MustCompile(want).MatchString(flag.out) {
		t.Errorf("%q, want %q", flag.out, want)
	}
	t.Setenv("UNSPOOL_RUNTIME", filepath.Join(dir, "none"))
	if r := runProgram(t, "version"); !strings.Contains(r.out, "\ndrop-in  no "+doctor.Dropin+" in ") {
		t.Errorf("without a drop-in: %q", r.out)
	}
}

// Manual pages are what groff and mandoc take without a word.
func TestMan(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "groff", "mandoc")
	dir := t.TempDir()
	runProgram(t, "man", dir).want(t, 0, "")
	pages, _ := filepath.Glob(filepath.Join(dir, "unspool*.1"))
	if len(pages) < 15 {
		t.Fatalf("only %q", pages)
	}
	for _, page := range pages {
		cmd := exec.Command("groff", "-K", "utf8", "-man", "-ww", "-z", "-Tutf8", page)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("groff: %v\n%s", err, out)
		}
		out, _ := exec.Command("mandoc", "-Tlint", "-Wwarning", page).CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if !strings.Contains(line, "missing date") { // a test has no commit
				t.Errorf("mandoc -Tlint -Wwarning: %s", strings.TrimSpace(line))
			}
		}
	}
	out, err := exec.Command("mandoc", "-Tascii", filepath.Join(dir, "unspool-report.1")).Output()
	text := regexp.MustCompile(`.\x08`).ReplaceAllString(string(out), "")
	for _, want := range []string{
		"unspool-report - Show where", "unspool report [FILE] [flags]", "-o, --output string", "EXAMPLES", "unspool report perf.data -o flame.svg", "unspool(1)",
	} {
		if err != nil || !strings.Contains(text, want) {
			t.Errorf("no %q (%v) in\n%s", want, err, text)
		}
	}
}

// Completion scripts are what the shells take, and fish completes with one.
func TestCompletion(t *testing.T) {
	oracle.Long(t)
	for _, shell := range []string{"bash", "zsh", "fish"} {
		oracle.Need(t, shell)
		r := runProgram(t, "completion", shell)
		r.want(t, 0, "")
		path := filepath.Join(t.TempDir(), "unspool."+shell)
		if err := os.WriteFile(path, []byte(r.out), 0o666); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(shell, "-n", path).CombinedOutput(); err != nil || len(out) > 0 || len(r.out) < 1000 {
			t.Errorf("%s -n: %v\n%s", shell, err, out)
		}
	}
	for args, want := range map[string]string{
		"report --format f":  "folded\nflame\npprof\nfirefox\n",
		"diff --by s":        "share\nsamples\n",
		"completion \x00":    "",
		"di":                 "diff\tShow what has changed between two recordings\n",
		"report --stepper n": "",
	} {
		args := strings.ReplaceAll(args, "\x00", "")
		r := runProgram(t, append([]string{"__complete"}, strings.Split(args, " ")...)...)
		if r.want(t, 0, ""); !strings.Contains(r.out, want) {
			t.Errorf("%q completes to %q, want %q", args, r.out, want)
		}
	}
}
