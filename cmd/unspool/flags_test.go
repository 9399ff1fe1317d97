package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/hex"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/record"
)

// TestNothingAsked: numbers that ask for nothing, or for no one knows what, are wrong usage.
func TestNothingAsked(t *testing.T) {
	for _, c := range []struct{ flag, value, want string }{
		{"-F", "0", "-F takes a number"}, {"-c", "0", "-c takes a number"}, {"--duration", "5", "5s or 5m"}, {"--duration", "0s", "such as 10s"},
	} {
		r := runProgram(t, "record", c.flag, c.value, "-o", "x.data", "--", "true")
		r.want(t, 2, c.want)
	}
}

// TestUnusedFlags: a flag that changes nothing in a format is wrong usage, and the message names the formats that it is for.
func TestUnusedFlags(t *testing.T) {
	oracle.Long(t)
	for args, want := range map[string]string{
		"report --icicle x":                              "--icicle is for flame, and changes nothing in top",
		"report --summary -o x.svg x":                    "--summary is for json, jsonl or stacks, and changes nothing in flame",
		"report --function f --format tree x":            "--function is for callers, callees, annotate or disasm, and changes nothing in tree",
		"report --limit 5 -o x.pb.gz x":                  "--limit is for top, callers, callees, annotate or disasm, and changes nothing in pprof",
		"report --sort total --format annotate x":        "--sort is for top, callers or callees, and changes nothing in annotate",
		"report --asm gnu x":                             "--asm is for annotate or disasm, and changes nothing in top",
		"report --source-path a=b --format disasm x":     "--source-path is for annotate, and changes nothing in disasm",
		"record --icicle -- true":                        "--icicle is for flame, and changes nothing in data",
		"record --limit 5 -o x.jsonl -- true":            "--limit is for top, callers or callees, and changes nothing in jsonl",
		"diff --icicle x y":                              "--icicle is for flame, and changes nothing in top",
		"diff --all --format json x y":                   "--all is for top or flame, and changes nothing in json",
		"report --sort self --limit 0 --format folded x": "", // as without
		"record --limit 5 --cgroup /nonexistent":         "", // of the table that follows
		"report --function f x":                          "", // callers
	} {
		r := runProgram(t, strings.Fields(args)...)
		if want == "" {
			r.want(t, 1, "no such")
		} else if r.want(t, 2, "^unspool: "+want+"\n"); r.out != "" {
			t.Errorf("unspool %s: %s", args, r.out)
		}
	}
}

// TestNoDirectory: a flag for a directory takes nothing else, in every verb that has it.
func TestNoDirectory(t *testing.T) {
	oracle.Long(t)
	n := 0
	for _, verb := range command().Commands() {
		for _, flag := range []string{"sysroot", "debug-dir", "source-root"} {
			if verb.Flags().Lookup(flag) == nil {
				continue
			}
			n++
			for path, want := range map[string]string{"/nonexistent": "no such directory", "/etc/passwd": "not a directory"} {
				args := []string{verb.Name(), "--" + flag, path, "x"}
				if verb.Name() == "diff" {
					args = append(args, "y")
				}
				runProgram(t, args...).want(t, 1, "^unspool: --"+flag+" "+path+": "+want+"\n$")
			}
		}
	}
	if n < 10 {
		t.Errorf("%d flags for directories", n)
	}
}

// TestFlagsOfPerf: who types -g or perf's other call graphs gets a recording.
func TestFlagsOfPerf(t *testing.T) {
	canRecord(t)
	for _, flags := range [][]string{{"-g"}, {"--call-graph", "dwarf,16384"}, {"--call-graph=lbr"}} {
		r := runProgram(t, append(append(append([]string{"record"}, flags...), "-o", "x.folded", "--"), busy...)...)
		r.want(t, 7, "changes? nothing")
	}
}

// TestCallGraph: frame pointers lead through a program that has them, and stop in one that does not; where they stop, tables lead on. Perf
// reads the recording of frame pointers with the same stacks.
func TestCallGraph(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "perf")
	dir := t.TempDir()
	src := filepath.Join(dir, "calls.c")
	if err := os.WriteFile(src, []byte(`
static volatile unsigned long sum;
__attribute__((noinline)) static void inner(void) { for (long i = 0; i < 800000000; i++) sum += i; }
__attribute__((noinline)) static void middle(void) { inner(); sum++; }
__attribute__((noinline)) static void outer(void) { middle(); sum++; }
int main(void) { outer(); return sum == 1; }
`), 0o666); err != nil {
		t.Fatal(err)
	}
	const chain = "main;outer;middle;inner"
	for _, c := range []struct {
		built, way string
		whole      bool // the chain
	}{
		{"-O0", "fp", true}, // gcc -O1 leaves inner without a frame, whatever is asked,
		{"-O1", "fp", false},
		{"-O1", "fp,cfi", true},
		{"-O1", "cfi", true},
	} {
		prog, out := filepath.Join(dir, "calls"+c.built), filepath.Join(dir, "x.data")
		if b, err := exec.Command("gcc", c.built, "-o", prog, src).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		recording := runProgram(t, "record", "-F", "500", "--user", "--call-graph", c.way, "-o", out, "--", prog)
		recording.want(t, 0, map[bool]string{true: "samples", false: "end where code has no frame pointer"}[c.whole])
		folded := runProgram(t, "report", out, "--format", "folded")
		all, with := 0, 0
		for line := range strings.Lines(folded.out) {
			at := strings.LastIndexByte(line, ' ')
			n, _ := strconv.Atoi(strings.TrimSpace(line[at+1:]))
			if !strings.HasPrefix(line, "calls") {
				continue
			}
			if all += n; strings.HasSuffix(line[:at], chain) {
				with += n
			}
		}
		if all < 20 || c.whole && with < all*9/10 || !c.whole && with > all/10 {
			t.Errorf("%s, --call-graph %s: %d of %d samples have %s:\n%s%s", c.built, c.way, with, all, chain, folded.out, recording.stderr)
		}
		if c.way != "fp" || !c.whole {
			continue
		}
		b, err := exec.Command("perf", "script", "--no-inline", "-i", out, "-F", "ip,sym").Output()
		if n := strings.Count(strings.Join(strings.Fields(regexp.MustCompile(`(?m)^\s+[0-9a-f]+ `).ReplaceAllString(string(b), "")), " "), "inner middle outer main"); err != nil || n < with*9/10 {
			t.Errorf("perf script has %d of %d stacks: %v\n%.2000s", n, with, err, b)
		}
	}
	for flags, want := range map[string]string{
		"--call-graph=x": "want cfi, fp or fp,cfi", "--call-graph=fp --source=ebpf": "only with --source perf", "--call-graph=fp --stack-size=8192": "copies no stacks",
		"--call-graph=fp,cfi --memory=1M": "excludes",
	} {
		runProgram(t, append(append([]string{"record"}, strings.Fields(flags)...), "--", "true")...).want(t, 2, want)
	}
}

// TestCgroupAlone: a cgroup needs no other target.
func TestCgroupAlone(t *testing.T) {
	at := procfs.Mounted("cgroup2")
	if at == "" {
		oracle.Lacks(t, "cgroup v2")
	}
	p := plan{Plan: record.Plan{Source: record.Auto}, given: func(string) bool { return false }}
	p.InKernel.Cgroup = at
	if err := p.check("compact", &record.Filter{}); err != nil || !p.All {
		t.Errorf("%v, all: %v", err, p.All)
	}
	p = plan{Plan: record.Plan{Source: record.Auto}, given: p.given}
	p.InKernel.Cgroup, p.PIDs = at, []int{1}
	if err := p.check("compact", &record.Filter{}); err != nil || p.All {
		t.Errorf("with a process: %v, all: %v", err, p.All)
	}
}

// TestDamagedRecording: samples before a record of size 0 are in every output; a compressed recording says what to do.
func TestDamagedRecording(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "perf")
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	if out, err := exec.Command("perf", append([]string{"record", "-q", "-e", "cpu-clock", "-F", "999", "-o", file("whole"), "--"}, busy...)...).CombinedOutput(); len(out) > 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	b, err := os.ReadFile(file("whole"))
	if err != nil {
		t.Fatal(err)
	}
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	w.Write(b)
	w.Close()
	const want = 20
	at, samples := binary.LittleEndian.Uint64(b[40:]), 0
	for ; samples < want; at += uint64(binary.LittleEndian.Uint16(b[at+6:])) {
		if binary.LittleEndian.Uint32(b[at:]) == 9 {
			samples++
		}
	}
	clear(b[at : at+8])
	for name, content := range map[string][]byte{"damaged": b, "gz": z.Bytes(), "zst": []byte("\x28\xb5\x2f\xfd, and more than a header"), "xz": []byte("\xfd7zXZ\x00, and more than a header")} {
		if err := os.WriteFile(file(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, format := range []string{"json", "jsonl"} {
		r := runProgram(t, "report", "--format", format, file("damaged"))
		if r.want(t, 1, "its size is 0"); format == "jsonl" && strings.Count(r.out, `"pid"`) != want {
			t.Errorf("%d samples of %d:\n%.1000s", strings.Count(r.out, `"pid"`), want, r.out)
		} else if len(r.out) == 0 {
			t.Errorf("--format %s: nothing", format)
		}
	}
	for name, want := range map[string]string{"gz": "gunzip", "zst": "unzstd", "xz": "unxz"} {
		r := runProgram(t, "report", file(name))
		r.want(t, 1, want)
	}
}

// TestKernelIdentity: a recording says of which kernel it is.
func TestKernelIdentity(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "perf")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root, to see the kernel")
	}
	notes, err := os.ReadFile("/sys/kernel/notes")
	if err != nil {
		t.Skipf("a kernel that has a build ID: %v", err)
	}
	for _, from := range []string{"perf", "ebpf"} {
		c := program(t, "record", "-a", "--source", from, "--duration", "300ms", "-o", "x.data")
		if r := finish(t, c); r.status != 0 {
			t.Fatalf("record -a --source %s: status %d, want 0:\n%s", from, r.status, r.stderr)
		}
		out, err := exec.Command("perf", "buildid-list", "-i", filepath.Join(c.Dir, "x.data")).Output()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) == 2 && f[1] == "[kernel.kallsyms]" {
				if id, err := hex.DecodeString(f[0]); err != nil || !bytes.Contains(notes, id) {
					t.Errorf("--source %s: build ID %s, which is not in /sys/kernel/notes", from, f[0])
				}
				out = nil
			}
		}
		if out != nil {
			t.Errorf("--source %s: no build ID of the kernel:\n%s", from, out)
		}
	}
}

// TestAdvice: the flags that package record names, in notes and errors, exist.
func TestAdvice(t *testing.T) {
	files, err := filepath.Glob("../../record/*.go")
	if err != nil {
		t.Fatal(err)
	}
	flag := regexp.MustCompile(`(?:[ ("]|^)--?([a-z][a-z-]+|[a-zA-Z])\b`)
	named := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				for _, m := range flag.FindAllStringSubmatch(lit.Value, -1) {
					named[m[1]] = true
				}
			}
			return true
		})
	}
	verbs := []*cobra.Command{recordCmd(), reportCmd()}
	for name := range named {
		if !slices.ContainsFunc(verbs, func(c *cobra.Command) bool {
			return c.Flags().Lookup(name) != nil || len(name) == 1 && c.Flags().ShorthandLookup(name) != nil
		}) {
			t.Errorf("there is no flag %s", name)
		}
	}
	for _, name := range []string{"stack-size", "F", "c", "cgroup", "memory", "time"} {
		if !named[name] {
			t.Errorf("nothing names the flag %s", name)
		}
	}
}
