package main

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// script has a function that is compiled while it runs. It prints its process's number, which the name of a map in /tmp has.
const script = `function hot(n) { let h = 0; for (let i = 0; i < n; i++) h = (h * 31 + i) | 0; return h; }
let t = 0;
for (let i = 0; i < 300; i++) t += hot(500000);
console.log(process.pid);
`

var hotName = regexp.MustCompile(`(?m);JS:[*^~]hot [^;]*/script\.js:1:\d+[; ]`)

// TestJavaScript: what node compiles has names, from a perf map and from a jitdump, recorded by perf and by this program.
func TestJavaScript(t *testing.T) {
	oracle.Need(t, "node", "perf")
	canRecord(t)
	dir := t.TempDir()
	js := filepath.Join(dir, "script.js")
	if err := os.WriteFile(js, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	clean := func(stdout []byte) {
		if pid := bytes.TrimSpace(stdout); regexp.MustCompile(`^\d+$`).Match(pid) {
			os.Remove("/tmp/perf-" + string(pid) + ".map")
		}
	}

	data := filepath.Join(dir, "perf.data")
	cmd := exec.Command("perf", "record", "-q", "-e", "cpu-clock", "-F", "500", "--call-graph", "dwarf", "-o", data, "--", "node", "--perf-basic-prof", js)
	cmd.Dir = dir
	pid, err := cmd.Output()
	defer clean(pid)
	if err != nil {
		t.Fatal(err)
	}
	r := runProgram(t, "report", data, "--format", "folded")
	if r.want(t, 0, ""); !hotName.MatchString(r.out) {
		t.Errorf("a map, and a recording of perf's: no %v in\n%.2000s", hotName, r.out)
	}

	for _, flag := range []string{"--perf-basic-prof", "--perf-prof"} {
		folded := filepath.Join(dir, "out.folded")
		c := program(t, "record", "-e", "cpu-clock", "-o", folded, "--", "node", flag, js)
		c.Dir = dir // node leaves the dump there
		r := finish(t, c)
		clean([]byte(r.out))
		r.want(t, 0, "")
		if b, _ := os.ReadFile(folded); !hotName.Match(b) {
			t.Errorf("%s: no %v in\n%.2000s", flag, hotName, b)
		}
		if strings.Contains(r.stderr, "jit-") {
			t.Errorf("%s: %s", flag, r.stderr)
		}
	}
}

const inliningC = `static inline __attribute__((always_inline)) unsigned mix(unsigned a, unsigned b) { return a * 31 + (b ^ a >> 3); }
__attribute__((noinline)) unsigned outer(unsigned n) {
	unsigned h = 1;
	for (unsigned i = 0; i < n; i++)
		h = mix(h, i);
	return h;
}
int main(int c, char **v) {
	unsigned s = 0;
	for (int i = 0; i < 3000; i++)
		s += outer(100000 + c + i);
	return s == 1;
}
`

// TestInlined: calls that were inlined are in a report, and are not with --no-inline.
func TestInlined(t *testing.T) {
	oracle.Need(t, "gcc", "perf")
	canRecord(t)
	dir := t.TempDir()
	src, prog, data := filepath.Join(dir, "a.c"), filepath.Join(dir, "prog"), filepath.Join(dir, "perf.data")
	if err := os.WriteFile(src, []byte(inliningC), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"gcc", "-O2", "-g", "-o", prog, src},
		{"perf", "record", "-q", "-e", "cpu-clock", "-F", "500", "--call-graph", "dwarf", "-o", data, "--", prog},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	r := runProgram(t, "report", data, "--format", "folded")
	if r.want(t, 0, ""); !strings.Contains(r.out, ";main;outer;mix ") {
		t.Errorf("no inlined call:\n%s", r.out)
	}
	// A function that has no code of its own is shown in its callers.
	r = runProgram(t, "report", data, "--format", "disasm", "--function", "^mix$")
	if r.want(t, 0, ""); !regexp.MustCompile(`(?m)^note: .*shown in outer$`).MatchString(r.out) || !regexp.MustCompile(`(?m)^in outer$`).MatchString(r.out) || !regexp.MustCompile(`(?m)^ +\d+\.\d% .*│ .*(imul|shr|xor|sub|shl) `).MatchString(r.out) {
		t.Errorf("mix has no instructions:\n%s", r.out)
	}
	r = runProgram(t, "report", data, "--format", "annotate", "--function", "^mix$")
	if r.want(t, 0, ""); strings.Contains(r.out, "h = mix(h, i)") || !strings.Contains(r.out, "a * 31") {
		t.Errorf("mix has other lines:\n%s", r.out)
	}
	for _, format := range []string{"callers", "callees", "annotate", "disasm"} {
		r = runProgram(t, "report", data, "--format", format, "--function", "^nosuch$")
		if r.want(t, 1, `no function matches "\^nosuch\$"`); r.out != "" {
			t.Errorf("%s: %s", format, r.out)
		}
	}
	runProgram(t, "report", data, "--sort", "time").want(t, 2, "--sort is self or total")
	r = runProgram(t, "report", data, "--sort", "total", "--limit", "1")
	if r.want(t, 0, ""); !regexp.MustCompile(`(?m) 100\.0 % +\d+ `).MatchString(r.out) && !regexp.MustCompile(`(?m) >?9\d\.\d % +[\d,]+ `).MatchString(r.out) {
		t.Errorf("by total:\n%s", r.out)
	}
	// A live view has the numbers of a report.
	for _, plain := range []bool{false, true} {
		args := []string{"top", "-n", "1", "--interval", "1s", "--limit", "5", "--", prog}
		if plain {
			args = append([]string{"top", "--no-inline"}, args[1:]...)
		}
		r := runProgram(t, args...)
		if has := regexp.MustCompile(`(?m) prog +mix$`).MatchString(r.out); has == plain {
			t.Errorf("%v: mix is there: %v\n%s%s", args, has, r.out, r.stderr)
		}
	}
	r = runProgram(t, "report", data, "--format", "folded", "--no-inline")
	if r.want(t, 0, ""); strings.Contains(r.out, ";mix ") || !strings.Contains(r.out, ";main;outer ") {
		t.Errorf("--no-inline:\n%s", r.out)
	}
}

// TestStackFetches: stack names functions of a stripped program by what a debuginfod has, whatever else it is told of where to look.
func TestStackFetches(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc", "objcopy", "strip")
	dir := t.TempDir()
	prog, debug := filepath.Join(dir, "waits"), filepath.Join(dir, "waits.debug")
	build(t, prog, `#include <unistd.h>
__attribute__((noinline)) int where_it_waits(void) { char c; write(1, "", 1); return read(0, &c, 1) + 1; }
int main(void) { return where_it_waits() * 2; }
`, "-Wl,--build-id")
	for _, args := range [][]string{{"objcopy", "--only-keep-debug", prog, debug}, {"strip", prog}} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	img, err := module.Open(prog)
	if err != nil {
		t.Fatal(err)
	}
	path := "/buildid/" + hex.EncodeToString(img.BuildID()) + "/debuginfo"
	img.Close()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			http.NotFound(w, r)
			return
		}
		http.ServeFile(w, r, debug)
	}))
	defer s.Close()
	c := exec.Command(prog)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer in.Close()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"--debug-dir", t.TempDir()}} {
		p := program(t, append(append([]string{"stack"}, args...), fmt.Sprint(c.Process.Pid))...)
		p.Env = append(p.Env, "DEBUGINFOD_URLS="+s.URL, "DEBUGINFOD_CACHE_PATH="+t.TempDir())
		r := finish(t, p)
		if r.want(t, 0, ""); !strings.Contains(r.out, "where_it_waits") || !strings.Contains(r.out, "a.c:3") {
			t.Errorf("stack %v:\n%s%s", args, r.stderr, r.out)
		}
	}
}

// TestFetchInterrupted: an interrupt ends what is being fetched, and nothing more is.
func TestFetchInterrupted(t *testing.T) {
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			syscall.Kill(os.Getpid(), syscall.SIGINT)
		}
		<-r.Context().Done()
	}))
	defer s.Close()
	t.Setenv("DEBUGINFOD_URLS", s.URL)
	t.Setenv("DEBUGINFOD_CACHE_PATH", t.TempDir())
	n := newNamer(names.Options{}, true)
	defer n.Close()
	for _, id := range []string{"0123456789", "9876543210"} {
		var names [1]profile.Name
		if n.User(&unwind.Module{Path: "/none/" + id, BuildID: id}, []uint64{0x1000}, names[:]); names[0].Func != "" {
			t.Errorf("build ID %s, of which nothing is here: 0x1000 has the name %+v after %d requests", id, names[0], asked.Load())
		}
	}
	if got := asked.Load(); got != 1 {
		t.Errorf("%d requests", got)
	}
}
