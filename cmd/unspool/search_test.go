package main

import (
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// TestSearch: the programs of a recording are found below --sysroot, in --debug-dir and where perf keeps them; by report, diff and annotations.
func TestSearch(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "perf")
	dir := t.TempDir()
	prog, data := filepath.Join(dir, "prog"), filepath.Join(dir, "perf.data")
	build(t, prog, spins, "-Wl,--build-id")
	img, err := module.Open(prog)
	if err != nil {
		t.Fatal(err)
	}
	id := hex.EncodeToString(img.BuildID())
	img.Close()
	perf := exec.Command("perf", "record", "-q", "-F", "999", "-g", "-o", data, prog)
	home := t.TempDir() // perf keeps the program here
	perf.Env = append(os.Environ(), "HOME="+home)
	if out, err := perf.CombinedOutput(); err != nil {
		t.Fatalf("perf: %v\n%s", err, out)
	}
	root, debug := filepath.Join(dir, "root"), filepath.Join(dir, "debug")
	for _, to := range []string{filepath.Join(root, prog), filepath.Join(debug, ".build-id", id[:2], id[2:])} {
		os.MkdirAll(filepath.Dir(to), 0o755)
		b, _ := os.ReadFile(prog)
		if err := os.WriteFile(to, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	build(t, prog, strings.ReplaceAll(spins, "where_it_spins", "what_never_ran"), "-Wl,--build-id")

	for _, c := range []struct {
		what string
		env  string
		args []string
		want bool
	}{
		{"nowhere", dir, nil, false},
		{"--sysroot", dir, []string{"--sysroot", root}, true},
		{"--debug-dir", dir, []string{"--debug-dir", debug}, true},
		{"~/.debug", home, nil, true},
	} {
		for _, verb := range [][]string{{"report", data, "--format", "folded"}, {"diff", data, data, "--all"}, {"report", data, "--format", "annotate", "--function", "where_it_spins"}} {
			p := program(t, append(verb, c.args...)...)
			p.Env = append(p.Env, "HOME="+c.env, "DEBUGINFOD_URLS=")
			r := finish(t, p)
			out := strings.ReplaceAll(r.out, `no function matches "where_it_spins"`, "")
			if strings.Contains(out, "where_it_spins") != c.want || strings.Contains(r.out, "what_never_ran") {
				t.Errorf("%s: %v: status %d\n%s%s", c.what, verb, r.status, r.stderr, r.out)
			}
		}
	}
}
