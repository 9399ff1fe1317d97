package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// programs are the packages with the programs that are executed.
var programs = []string{"coreutils", "dash", "bash", "gzip", "xz-utils", "grep", "sed", "findutils", "diffutils", "tar", "sqlite3", "openssl", "perl-base", "libc-bin", "libstdc++6",
	"groff-base", "aria2", "ninja-build", "lzip", "ripgrep", "fd-find", "sd"}

// executions are commands that are executed on AArch64, and how many instructions of each, from its entry point on or, where whole says so, from
// the dynamic linker's first. /jumps, /throw and /goroutines are those of shadow/testdata.
var executions = []struct {
	command string
	steps   uint64
	whole   bool
}{
	{"/usr/bin/date -u", 40_000, true},
	{"/jumps", 40_000, false},
	{"/throw", 30_000, false},
	{"/goroutines", 30_000, true},
	{"/usr/bin/ls -l /usr", 10_000, false},
	{"/usr/bin/sort -r /etc/services.txt", 10_000, false},
	{"/usr/bin/sha256sum /etc/services.txt", 10_000, false},
	{"/usr/bin/grep -E tcp|udp /etc/services.txt", 15_000, false},
	{"/usr/bin/sed s/tcp/udp/ /etc/services.txt", 15_000, false},
	{"/usr/bin/gzip -c /etc/services.txt", 10_000, false},
	{"/usr/bin/bash /script.sh", 20_000, false},
	{"/usr/bin/sqlite3 :memory: .read /script.sql", 15_000, false},
	{"/usr/bin/openssl dgst -sha256 /etc/services.txt", 15_000, false},
	{"/usr/bin/perl /script.pl", 15_000, false},
	// C++, then Rust.
	{"/usr/bin/troff -Tascii /page.roff", 10_000, false},
	{"/usr/bin/aria2c --split=none /file", 10_000, false},
	{"/usr/bin/ninja -n -f /build.ninja", 10_000, false},
	{"/usr/bin/lzip.lzip -c /etc/services.txt", 10_000, false},
	{"/usr/bin/rg -c tcp|udp /etc/services.txt", 10_000, false},
	{"/usr/bin/fdfind -j 1 txt /etc", 10_000, false},
	{"/usr/bin/sd -p tcp udp /etc/services.txt", 10_000, false},
}

// TestExecution executes programs of Debian step by step on AArch64, in a virtual machine, 300,000 instructions of at least 20: docs/FINDINGS.md
// lists each wrong row.
func TestExecution(t *testing.T) {
	oracle.Long(t)
	if list := os.Getenv("UNSPOOL_MACHINES"); list != "all" && !slices.Contains(strings.Fields(list), "trixie/arm64") {
		t.Skip("this test lacks UNSPOOL_MACHINES=all (make vms): a quarter of an hour")
	}
	oracle.Need(t, "qemu-system-aarch64", "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++")
	ctx, cancel := context.WithTimeout(t.Context(), 40*time.Minute)
	defer cancel()
	k := New("trixie", "arm64", oracle.Kernel(t, "trixie", "arm64"))
	root := tree(t, oracle.Debian(t, "trixie", "arm64", "programs", programs...))
	if err := root.Init(ctx, "arm64"); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, c := range [][]string{
		{"jumps", "aarch64-linux-gnu-gcc", "-O2", "-pthread", "../../shadow/testdata/jumps.c", "-o"},
		{"throw", "aarch64-linux-gnu-g++", "-O2", "../../shadow/testdata/throw.cc", "-o"},
		{"goroutines", "go", "build", "-o"},
		{"unspool", "go", "build", "-o"},
	} {
		path := filepath.Join(dir, c[0])
		args := append(c[2:], path)
		switch c[0] {
		case "goroutines":
			args = append(args, "../../shadow/testdata/goroutines.go")
		case "unspool":
			args = append(args, "github.com/unspool/unspool/cmd/unspool")
		}
		cmd := exec.Command(c[1], args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=arm64")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
		if err := root.Copy(c[0], path); err != nil {
			t.Fatal(err)
		}
	}
	var services strings.Builder
	for i := range 100 {
		fmt.Fprintf(&services, "service%d\t%d/%s\t# of no use\n", i*7919%100, i, []string{"tcp", "udp"}[i%2])
	}
	for name, text := range map[string]string{
		"etc/services.txt": services.String(),
		"script.sh":        "trap 'echo caught' USR1; for i in 1 2 3; do kill -USR1 $$; echo $i | cat; done\n",
		"script.sql":       "create table t(a,b); insert into t values(1,2),(3,4); select sum(a*b) from t group by b;\n",
		"page.roff":        ".de T\n\\fB\\$1\\fP\n..\n.T one\nA line of text.\n.sp\n.T two\nAnother line.\n",
		"build.ninja":      "rule r\n  command = c $in\nbuild a: r b\nbuild b: r c.txt\nbuild c.txt: phony\n",
		"script.pl":        "my %h; $h{$_ % 7} .= $_ for 1..500; print join(',', sort keys %h), \"\\n\";\n",
	} {
		root.Add(name, 0o644, []byte(text))
	}
	var steps []Step
	out := func(i int) string { return fmt.Sprintf("/tmp/out%d.json", i) }
	for i, e := range executions {
		args := []string{"/unspool", "verify", "--run", "--format", "json", "-o", out(i), "--steps", strconv.FormatUint(e.steps, 10)}
		if !e.whole {
			args = append(args, "--entry")
		}
		steps = append(steps, Step{Name: e.command, Args: append(append(args, "--"), strings.Fields(e.command)...), Seconds: 900,
			Env: []string{"PATH=/usr/bin", "LC_ALL=C", "PERL_HASH_SEED=0", "UNSPOOL_CACHE=/tmp/cache"}, Files: []string{out(i)}})
	}
	results, err := k.Boot(ctx, root, steps)
	var instructions, compared, unknown uint64
	count := 0
	for i, r := range results {
		var got struct {
			Instructions, Compared uint64
			Modules                []struct {
				Truth_unknown uint64
			}
			Findings []struct {
				Module, Function, Addr, Row, Should, Known string
				Ours                                       bool
				Wrong                                      []struct{ Register, Got, Want string }
				Code                                       []struct{ Addr, Text string }
			}
			Errors []string
		}
		if err := json.Unmarshal(r.Files[out(i)], &got); err != nil {
			t.Errorf("%s: %v, exit %d\n%s%s", r.Name, err, r.Exit, r.Stdout, r.Stderr)
			continue
		}
		count++
		instructions, compared = instructions+got.Instructions, compared+got.Compared
		for _, m := range got.Modules {
			unknown += m.Truth_unknown
		}
		known := map[string]int{}
		for _, f := range got.Findings {
			if known[f.Known]++; f.Known == "" || f.Ours {
				t.Errorf("%s: %+v", r.Name, f)
			}
		}
		if r.Exit != 0 || len(got.Errors) > 0 {
			t.Errorf("%s: exit %d, %q\n%s%s", r.Name, r.Exit, got.Errors, r.Stdout, r.Stderr)
		}
		t.Logf("%s (%.1f s): %d instructions, %d compared, known: %v", r.Name, r.Seconds, got.Instructions, got.Compared, known)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("Linux %s: %d instructions of %d programs, %d compared, of %d the truth is not known", k.Version, instructions, count, compared, unknown)
	if instructions < 300_000 || count < 20 || compared*100 < instructions*95 {
		t.Errorf("not 300,000 of 20, or not nearly all compared")
	}
}
