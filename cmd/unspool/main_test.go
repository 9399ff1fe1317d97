package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/doctor"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/report"
)

// The test binary is the program, too: with this variable set it runs main.
const asProgram = "UNSPOOL_TEST_MAIN"

func TestMain(m *testing.M) {
	refuseEvents()
	if os.Getenv(asProgram) != "" {
		main()
	}
	if os.Getenv(asDropped) != "" {
		afterDrop()
		os.Exit(0)
	}
	status := m.Run()
	os.RemoveAll(stackDir())
	for _, dir := range []string{plain.dir, heapLibraries.dir} {
		if dir != "" {
			os.RemoveAll(dir)
		}
	}
	os.Exit(status)
}

// A result is what the program did.
type result struct {
	status      int
	out, stderr string
}

// program returns a command that runs the program in an empty directory, with a cache of its own.
func program(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, args...)
	c.Dir = t.TempDir()
	c.Env = append(os.Environ(), asProgram+"=1", "UNSPOOL_TABLES=", "UNSPOOL_CACHE="+t.TempDir())
	return c
}

func finish(t testing.TB, c *exec.Cmd) result {
	t.Helper()
	return begin(t, c)()
}

// begin starts c and returns what waits for its end: c.Process is there, for signals.
func begin(t testing.TB, c *exec.Cmd) (wait func() result) {
	t.Helper()
	var out, stderr bytes.Buffer
	c.Stdout, c.Stderr = &out, &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	timeout := time.AfterFunc(2*time.Minute, func() { c.Process.Kill() })
	return func() result {
		t.Helper()
		defer timeout.Stop()
		err := c.Wait()
		if c.ProcessState == nil {
			t.Fatal(err)
		}
		return result{c.ProcessState.ExitCode(), out.String(), stderr.String()}
	}
}

func runProgram(t testing.TB, args ...string) result {
	t.Helper()
	return finish(t, program(t, args...))
}

// want checks the exit status and that a part of what was printed matches.
func (r result) want(t testing.TB, status int, stderr string) {
	t.Helper()
	if r.status != status || !regexp.MustCompile(stderr).MatchString(r.stderr) {
		t.Fatalf("status %d, want %d\n--- stdout\n%s--- stderr, want a match of %q\n%s", r.status, status, r.out, stderr, r.stderr)
	}
}

func TestUsage(t *testing.T) {
	oracle.Long(t)
	for _, c := range []struct {
		args   string
		status int
		stderr string
	}{
		{"", 2, ""},
		{"--help", 0, ""},
		{"--version", 0, ""},
		{"frobnicate", 2, `unknown command "frobnicate"\n`},
		{"recrod", 2, `^unspool: unknown command "recrod"; did you mean record\?\n`},
		{"version", 0, "^$"},
		{"report", 2, `^unspool: name a recording: there is no unspool.data here\n`},
		{"compile --registers rip,rsp /bin/sh", 2, `^unspool: --registers is for machine code and C that -o writes\n`},
		{"compile --emit native --registers rip,rsp /bin/sh", 2, `^unspool: --registers is for machine code and C that -o writes\n`},
		{"compile --emit sframe --registers rip,rsp -o x /bin/sh", 2, `^unspool: --registers does not go with --emit sframe\n`},
		{"compile --functions /bin/sh", 2, `^unspool: --functions is for tables that -o writes\n`},
		{"dump", 2, `^unspool: an argument is missing: unspool dump FILE \[flags\]\n`},
		{"diff", 2, "there is no unspool.data.old here"},
		{"help recrod", 2, `unknown command "recrod"; did you mean record\?`},
		{"help stack", 0, "^$"},
		{"top --sort x", 2, "--sort is self or total"},
		{"verify /var/empty-of-programs", 1, "no such file"},
		{"verify .", 1, `^unspool: \.: no executables, libraries or object files\n$`},
		{"stats .", 1, "no executables"},
		{"compile .", 1, `^unspool: \.: no executables or libraries\n$`},
		{"dump .", 1, "no executables"},
		{"record -- /etc/passwd", 1, `^unspool: exec: "/etc/passwd": permission denied\n$`},
		{"report x y", 2, "too many arguments"},
		{"report --limit -3 x", 2, `^unspool: --limit takes a number of functions, not -3\n`},
		{"report --time 2,1 x", 2, `^unspool: --time ends at 1, before it begins at 2\n`},
		{"compile --layout x /bin/sh", 2, `^unspool: --layout is page, tree or inline, not "x"\n`},
		{"compile --pid 999999999", 1, `^unspool: process 999999999: no such process\n$`},
		{"report --limti 5 x", 2, `unknown flag --limti; did you mean --limit\?`},
		{"report --limit five x", 2, `--limit takes a number of rows such as 20, not "five"`},
		{"report x --limit", 2, "--limit takes a number of rows such as 20: give it a value"},
		{"report --pid abc x", 2, `--pid takes process IDs such as 1234, not "abc"`},
		{"report --icicle=maybe x", 2, `--icicle takes true or false, not "maybe"`},
		{"record -p abc", 2, `-p takes process IDs such as 1234, not "abc"`},
		{"record -t 1,x", 2, `-t takes thread IDs such as 1234, not "1,x"`},
		{"record --duration -5 -- true", 2, `--duration takes a time such as 10s, not "-5"`},
		{"record --off-cpu -F 10 -- true", 2, "--off-cpu records every wait, and excludes -F and -c"},
		{"serve /etc/passwd", 1, `^unspool: /etc/passwd: not a recording: it starts with "root:x:0"; want a perf.data file, as perf record and unspool record write, or a pprof profile\n$`},
		{"record -F fast -- true", 2, `-F takes a number such as 10, not "fast"`},
		{"compile -p abc", 2, `-p takes a process ID such as 1234, not "abc"`},
		{"compile", 2, "nothing to compile"},
		{"stack -t x 1", 2, `-t takes a thread ID such as 1234, not "x"`},
		{"record -Z", 2, `unknown flag -Z\n`},
		{"doctor x", 2, "too many arguments"},
		{"verify --steps 5 x", 2, "--steps needs --run"},
		{"verify --run --module ( -- x", 2, "--module"},
		{"verify --run --format xml -- x", 2, "text or json"},
		{"report --frobnicate x", 2, "unknown flag --frobnicate\n"},
		{"report --format svg x", 2, `--format is top, .*, not "svg"`},
		{"report -o x.png y", 2, "the ending of .*\\.svg"},
		{"report --comm ( x", 2, "--comm"},
		{"report --time 5 x", 2, "FROM,TO"},
		{"report /nonexistent", 1, "no such file"},
		{"report /etc/passwd", 1, `^unspool: /etc/passwd: not a recording: it starts with "root:x:0"; want a perf.data file, .* or a pprof profile\n$`},
		{"report /dev/null", 1, `^unspool: /dev/null: not a recording: it is empty; want a perf.data file, .* or a pprof profile\n$`},
		{"diff x", 2, "missing: unspool diff \\[BEFORE AFTER\\]"},
		{"report --asm att x", 2, `^unspool: --asm is intel, gnu or go, not "att"\n`},
		{"top --table x", 2, `--table is functions,? .*, not "x"`},
		{"record --source x -- true", 2, `--source is auto, ebpf, perf or ptrace, not "x"`},
		{"stack --stepper x 1", 2, `--stepper is compact, native or rows, not "x"`},
		{"stats --format xml x", 2, `--format is text or json, not "xml"`},
		{"verify --emit c x", 2, `--emit is table or native, not "c"`},
		{"diff --by weight x y", 2, "--by is share, samples or periods"},
		{"diff --format pprof x y", 2, "a comparison is top, flame, folded or json"},
		{"diff - -", 2, "only one of the two"},
		{"diff /nonexistent /etc/passwd", 1, "no such file"},
		{"man", 2, "missing: unspool man DIR"},
		{"serve", 2, "name a recording: there is no unspool.data here"},
		{"serve --listen :80 x", 2, "--listen .*127.0.0.1:80"},
		{"serve /nonexistent", 1, "no such file"},
		{"diff /etc/passwd x", 1, "not a recording: .*pprof profile"},
		{"record", 2, "give a command, -p PID, -t TID or -a"},
		{"record -p 1 -- true", 2, "exclude each other"},
		{"record --stack-size 7 -- true", 2, "multiple of 8"},
		{"record --duration soon -- true", 2, "--duration takes a time"},
		{"record --user --kernel -- true", 2, "user.*kernel"},
		{"record --source x -- true", 2, "auto, ebpf, perf or ptrace"},
		{"record --source ebpf --stepper rows -- true", 2, "compact tables"},
		{"record --source perf --off-cpu -- true", 2, `--off-cpu works only with --source ebpf \(root\)`},
		{"record --stepper rows --cgroup / -- true", 2, "--cgroup walks by compact tables, not --stepper rows"},
		{"record --source perf --cgroup / -- true", 2, `--cgroup works only with --source ebpf \(root\)`},
		{"record --cgroup /nonexistent -- true", 1, `^unspool: --cgroup /nonexistent: no such directory\n$`},
		{"record --cgroup / -- true", 1, `^unspool: --cgroup /: not a directory of cgroup v2; .*cgroup.*\n$`},
		{"top --cgroup /etc/passwd", 1, `^unspool: --cgroup /etc/passwd: not a directory\n$`},
		{"record --off-cpu -e cycles -- true", 2, "exclude each other"},
		{"record --memory much -- true", 2, "--memory is a size"},
		{"record --memory 0 -- true", 2, "--memory is a size"},
		{"record --comm ( -- true", 2, "--comm"},
		{"dump /etc/passwd", 1, "not an ELF, Mach-O or PE file"},
		{"dump --format xml /bin/sh", 2, "text or json"},
		{"compile --emit x /bin/sh", 2, "--emit"},
		{"compile --embed /bin/sh", 2, "^unspool: --embed goes with --emit native\n"},
		{"compile --emit native --embed /bin/sh", 2, "^unspool: --emit native takes one file, and -o says where its copy goes\n"},
		{"compile --emit sframe /bin/sh", 2, `^unspool: --emit sframe takes one file, and -o says where its copy goes\n`},
		{"compile --emit sframe2 --deref self -o x /bin/sh", 2, `^unspool: --deref does not go with --emit sframe2\n`},
		{"verify", 2, "missing"},
		{"stats /nonexistent", 1, "no such file"},
		{"unwind /bin/sh out", 1, `not a recording: it starts with "\\x7fELF.*; want a perf.data file, as perf record and unspool record write\n$`},
		{"completion bash", 0, ""},
	} {
		r := runProgram(t, strings.Fields(c.args)...)
		if r.status != c.status || !regexp.MustCompile(c.stderr).MatchString(r.stderr) {
			t.Errorf("unspool %s: status %d, want %d\n%s%s", c.args, r.status, c.status, r.out, r.stderr)
		}
		if strings.Contains(r.stderr, "goroutine") {
			t.Errorf("unspool %s: %s", c.args, r.stderr)
		}
	}
}

// The JSON of dump is part of the interface: every field is there, in every row, and rows are in order.
func TestDumpJSON(t *testing.T) {
	r := runProgram(t, "dump", "--format", "json", "/bin/sh")
	r.want(t, 0, "")
	last := uint64(0)
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	for _, l := range lines {
		var row map[string]any
		if err := json.Unmarshal([]byte(l), &row); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		for _, f := range []string{"lo", "hi", "cfa", "ra", "rules", "signal", "origin"} {
			if _, ok := row[f]; !ok {
				t.Fatalf("%s has no %q", l, f)
			}
		}
		var lo, hi uint64
		fmt.Sscanf(row["lo"].(string), "0x%x", &lo)
		fmt.Sscanf(row["hi"].(string), "0x%x", &hi)
		if lo < last || hi <= lo {
			t.Fatalf("%s follows %#x", l, last)
		}
		last = hi
	}
	if len(lines) < 100 {
		t.Errorf("%d rows", len(lines))
	}
}

func TestVerifyStatsCompile(t *testing.T) {
	r := runProgram(t, "verify", "/bin/sh")
	r.want(t, 0, "")
	if !regexp.MustCompile(`^1 file: [\d,]+ rows and [\d,]+ rules equal the reference`).MatchString(r.out) {
		t.Errorf("verify /bin/sh prints %q, want 1 file whose rows and rules equal the reference", r.out)
	}
	r = runProgram(t, "stats", "--format", "json", "/bin/sh")
	r.want(t, 0, "")
	var s compile.Stats
	if err := json.Unmarshal([]byte(r.out), &s); err != nil || s.Rows == 0 || s.Ratio <= 0 || s.FDEs == 0 || s.Origins[".eh_frame"] == 0 {
		t.Errorf("%v: %s", err, r.out)
	}
	c := program(t, "compile", "-o", "tables", "/bin/sh")
	finish(t, c).want(t, 0, "")
	if list, err := filepath.Glob(filepath.Join(c.Dir, "tables", "*.unspool")); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	c = program(t, "compile", "/bin/sh")
	cache := strings.TrimPrefix(c.Env[len(c.Env)-1], "UNSPOOL_CACHE=")
	finish(t, c).want(t, 0, "")
	list, err := os.ReadDir(cache)
	list = slices.DeleteFunc(list, func(e os.DirEntry) bool { return e.Type() == os.ModeSymlink }) // which remember what was read
	if err != nil || len(list) != 1 {
		t.Errorf("the cache holds %v, %v", list, err)
	}
}

// TestNothingMade: files that are cut short are errors, and no success is told; files without unwind information are none.
func TestNothingMade(t *testing.T) {
	oracle.Long(t)
	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	short, bare, odd := filepath.Join(dir, "short"), filepath.Join(dir, "bare"), filepath.Join(dir, "odd")
	other := bytes.Clone(sh)
	binary.LittleEndian.PutUint16(other[18:], 9999) // e_machine
	header := bytes.Clone(sh[:64])
	for _, f := range [][2]int{{0x20, 8}, {0x28, 8}, {0x38, 2}, {0x3c, 4}} { // no program headers, no section headers
		clear(header[f[0]:][:f[1]])
	}
	dll, err := os.ReadFile("../../format/pe/testdata/amd64.dll")
	if err != nil {
		t.Fatal(err)
	}
	headers := filepath.Join(dir, "headers.dll") // and nothing behind them
	if err := errors.Join(os.WriteFile(headers, dll[:0x200], 0o600), os.WriteFile(odd, other, 0o600), os.WriteFile(short, sh[:len(sh)/2], 0o600), os.WriteFile(bare, header, 0o600)); err != nil {
		t.Fatal(err)
	}
	const cut = `^unspool: \S*short\+0x[0-9a-f]+: section headers: truncated\n$`
	for _, c := range []struct {
		args        []string
		status      int
		stderr, out string
	}{
		{[]string{"compile", short}, 1, cut, ""},
		{[]string{"compile", "--emit", "native", short}, 1, cut, ""},
		{[]string{"compile", bare}, 0, "^$", "0 files compiled; 1 without unwind information\n"},
		{[]string{"compile", short, bare}, 1, cut, "0 files compiled; 1 without unwind information\n"},
		{[]string{"compile", odd}, 1, `^unspool: \S*odd: made for an unknown machine: e_machine is 9999\n$`, ""},
		{[]string{"verify", short}, 1, cut, ""},
		{[]string{"verify", headers}, 1, `^unspool: \S*headers.dll: none of its unwind information can be read: .pdata\+0x0: an exception directory of 156 bytes: truncated\n$`, ""},
		{[]string{"verify", short, bare}, 1, cut, "1 file: 0 rows and 0 rules equal the reference; 0 damaged entries; 1 file without unwind information\n"},
		{[]string{"dump", short}, 1, cut, ""},
	} {
		r := runProgram(t, c.args...)
		if r.want(t, c.status, c.stderr); r.out != c.out {
			t.Errorf("unspool %s: %q, want %q", strings.Join(c.args, " "), r.out, c.out)
		}
	}
}

// TestCompileNative makes machine code and C: for a file, for a process, into a directory and into the cache.
func TestCompileNative(t *testing.T) {
	oracle.Long(t)
	c := program(t, "compile", "--emit", "native", "-o", "native", "/bin/sh", "/lib/x86_64-linux-gnu/libc.so.6")
	r := finish(t, c)
	r.want(t, 0, "")
	list, err := filepath.Glob(filepath.Join(c.Dir, "native", "*.eh_elf.so"))
	if err != nil || len(list) != 2 || !strings.HasPrefix(r.out, "2 files compiled: ") {
		t.Errorf("%v, %v: %s", list, err, r.out)
	}
	for _, path := range list {
		code, err := native.Open(path)
		if err != nil || code.Deref() != native.Self || code.ID()+".eh_elf.so" != filepath.Base(path) {
			t.Fatalf("%s: %v", path, err)
		}
		code.Close()
	}
	c = program(t, "compile", "--emit", "native", "--pid", strconv.Itoa(os.Getpid()))
	cache := strings.TrimPrefix(c.Env[len(c.Env)-1], "UNSPOOL_CACHE=")
	r = finish(t, c)
	r.want(t, 0, "")
	if list, err := filepath.Glob(filepath.Join(cache, "*.page-slice.1.eh_elf.so")); err != nil || len(list) == 0 {
		t.Errorf("%v, %v: %s", list, err, r.out)
	}
	c = program(t, "compile", "--emit", "c", "-o", ".", "/bin/sh")
	finish(t, c).want(t, 0, "")
	if list, err := filepath.Glob(filepath.Join(c.Dir, "*.c")); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	r = runProgram(t, "verify", "--emit", "native", "/bin/sh")
	r.want(t, 0, "")
}

// TestCompileForeign makes and verifies machine code for AArch64 on any machine, whose cache keeps it, too. Nobody walks with it elsewhere.
func TestCompileForeign(t *testing.T) {
	oracle.Long(t)
	const lib = "/usr/aarch64-linux-gnu/lib/libm.so.6"
	if _, err := os.Stat(lib); err != nil {
		oracle.Lacks(t, lib)
	}
	c := program(t, "compile", "--emit", "native", "-o", "native", lib)
	finish(t, c).want(t, 0, "")
	list, err := filepath.Glob(filepath.Join(c.Dir, "native", "*.eh_elf.so"))
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	f, err := elf.Open(list[0])
	if err != nil || f.Machine != elf.EM_AARCH64 {
		t.Fatalf("%s: %v, %v", list[0], f.Machine, err)
	}
	f.Close()
	code, err := native.Open(list[0])
	if err != nil || code.Callable() != (runtime.GOARCH == "arm64") {
		t.Fatalf("%s: %v", list[0], err)
	}
	defer code.Close()
	if id, ok := code.Find(0x8000); ok && !code.Callable() {
		t.Errorf("Find: rule %d of code that cannot be called", id)
	}
	c = program(t, "compile", "--emit", "native", lib)
	cache := strings.TrimPrefix(c.Env[len(c.Env)-1], "UNSPOOL_CACHE=")
	finish(t, c).want(t, 0, "")
	if list, err := filepath.Glob(filepath.Join(cache, "*.page-slice.1.eh_elf.so")); err != nil || len(list) == 0 {
		t.Errorf("%v, %v", list, err)
	}
	r := runProgram(t, "verify", "--emit", "native", lib)
	if r.want(t, 0, ""); !strings.Contains(r.out, "1 file: ") {
		t.Errorf("%s", r.out)
	}
}

// TestCompileForged compiles a file with the build ID of another, and then the other into the same directory.
func TestCompileForged(t *testing.T) {
	oracle.Long(t)
	b, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	frames := f.Section(".eh_frame")
	section := b[frames.Offset:][:frames.Size]
	i := bytes.Index(section, []byte{0x0e, 16}) // DW_CFA_def_cfa_offset
	if i < 0 {
		t.Fatalf(".eh_frame of /bin/sh, %d bytes at %#x, has no DW_CFA_def_cfa_offset 16", frames.Size, frames.Offset)
	}
	section[i+1] = 24
	dir := t.TempDir()
	forged := filepath.Join(dir, "sh")
	if err := os.WriteFile(forged, b, 0o755); err != nil {
		t.Fatal(err)
	}
	for emit, ending := range map[string]string{"table": ".unspool", "native": ".eh_elf.so"} {
		made := map[string]string{}
		for _, c := range [][2]string{{"first", forged}, {"first", "/bin/sh"}, {"second", "/bin/sh"}} {
			into := filepath.Join(dir, emit+c[0])
			runProgram(t, "compile", "--emit", emit, "-o", into, c[1]).want(t, 0, "")
			list, err := filepath.Glob(filepath.Join(into, "*"+ending))
			if err != nil || len(list) != 1 {
				t.Fatalf("%v, %v", list, err)
			}
			b, err := os.ReadFile(list[0])
			if err != nil {
				t.Fatal(err)
			}
			if c[1] == forged {
				made[forged] = string(b)
			} else {
				made[c[0]] = string(b)
			}
		}
		if made["first"] != made["second"] || made["first"] == made[forged] {
			t.Errorf("%s of /bin/sh: it depends on what was in the directory", emit)
		}
	}
}

// TestSteppers walks one recording with all steppers: they say the same.
func TestSteppers(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "perf")
	file := filepath.Join(t.TempDir(), "perf.data")
	args := append([]string{"record", "-q", "-F", "999", "--call-graph", "dwarf", "-o", file, "--"}, busy...)
	if out, err := exec.Command("perf", args...).CombinedOutput(); err != nil && !strings.Contains(err.Error(), "status 7") {
		t.Fatalf("%v: %s", err, out)
	}
	var want string
	for _, stepper := range []string{"rows", "compact", "native"} {
		r := runProgram(t, "report", "--stepper", stepper, "--format", "json", file)
		r.want(t, 0, "")
		switch {
		case stepper == "rows":
			want = r.out
		case r.out != want:
			t.Errorf("%s: %d bytes that are not the reference's %d", stepper, len(r.out), len(want))
		}
	}
	if strings.Count(want, "\n") < 20 {
		t.Errorf("%d samples", strings.Count(want, "\n"))
	}
}

// TestRun starts a program on the drop-in, passes its status on, and says what to do where there is no drop-in.
func TestRun(t *testing.T) {
	oracle.Long(t)
	dir := t.TempDir()
	r := runProgram(t, "run", "--runtime", dir, "--", "true")
	if r.want(t, 1, ""); !strings.Contains(r.stderr, doctor.Dropin+" in "+dir+": install all of a release") {
		t.Errorf("run without libraries says %q, want that %s is not in %s", r.stderr, doctor.Dropin, dir)
	}
	if err := os.WriteFile(filepath.Join(dir, doctor.Dropin), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r = runProgram(t, "run", "--strict", "--runtime", dir, "--", "sh", "-c", `echo "$LD_LIBRARY_PATH" "$UNSPOOL_STRICT"; exit 7`)
	if r.want(t, 7, ""); r.out != dir+" 1\n" {
		t.Errorf("run --strict sets LD_LIBRARY_PATH and UNSPOOL_STRICT to %q, want %q", r.out, dir+" 1\n")
	}
	r = runProgram(t, "run", "--runtime", dir, "--", "/no/such")
	r.want(t, 1, "no such file")
	if runtime.GOARCH != "amd64" {
		return
	}
	r = runProgram(t, "run", "--exceptions", "--runtime", dir, "--", "true")
	r.want(t, 1, "no "+doctor.Exceptions+" in "+dir)
	if err := os.WriteFile(filepath.Join(dir, doctor.Exceptions), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r = runProgram(t, "run", "--exceptions", "--runtime", dir, "--", "sh", "-c", `echo "$LD_PRELOAD"`)
	if r.out != filepath.Join(dir, doctor.Exceptions)+"\n" { // the loader says that there is nothing in it
		t.Errorf("run --exceptions sets LD_PRELOAD to %q, want %s in %s; stderr: %s", r.out, doctor.Exceptions, dir, r.stderr)
	}
}

// busy is a command that computes for a while.
var busy = []string{"sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exit 7"}

// canRecord skips the test where perf events may not be used.
func canRecord(t testing.TB) {
	t.Helper()
	oracle.Long(t)
	r := runProgram(t, "record", "--source", "perf", "-o", os.DevNull, "--format", "folded", "--", "true")
	if r.status != 0 {
		oracle.Lacks(t, "the permission to record: "+r.stderr)
	}
}

// Without -o, record writes a file that report and perf read, prints a table, and passes the status on.
func TestRecord(t *testing.T) {
	canRecord(t)
	for _, source := range []string{"perf", "ebpf", "ptrace"} {
		t.Run(source, func(t *testing.T) {
			if source == "ebpf" {
				canWalk(t)
			}
			testRecord(t, source)
		})
	}
}

func testRecord(t *testing.T, source string) {
	c := program(t, append([]string{"record", "--source", source, "--"}, busy...)...)
	r := finish(t, c)
	r.want(t, 7, `unspool.data: [\d,]+ samples · `)
	if !strings.Contains(r.out, "% whole") || !strings.Contains(r.out, "libc.so") && !strings.Contains(r.out, "sh") {
		t.Errorf("no table:\n%s", r.out)
	}
	file := filepath.Join(c.Dir, "unspool.data")
	again := runProgram(t, "report", file)
	again.want(t, 0, "")
	if first, _, _ := strings.Cut(again.out, "\n"); !strings.HasPrefix(r.out, first) {
		t.Errorf("report of the file says\n%s\nrecord said\n%s", first, r.out)
	}
	endings := []string{"x.folded", "x.perf"} // of a profile, and of samples as they come
	if source == "perf" {
		endings = append(endings, "x.svg", "x.pb.gz", "x.txt", "x.json", "x.jsonl", "x.stacks.json")
	}
	for _, ending := range endings {
		c := program(t, "report", file, "-o", ending)
		finish(t, c).want(t, 0, "")
		if st, err := os.Stat(filepath.Join(c.Dir, ending)); err != nil || st.Size() == 0 {
			t.Errorf("%s: %v", ending, err)
		}
		c = program(t, append([]string{"record", "--source", source, "-o", ending, "--"}, busy...)...)
		finish(t, c).want(t, 7, `samples`)
		if st, err := os.Stat(filepath.Join(c.Dir, ending)); err != nil || st.Size() == 0 {
			t.Errorf("record -o %s: %v", ending, err)
		}
	}
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	c = program(t, "report", "-")
	c.Stdin = in
	if piped := finish(t, c); piped.out != again.out {
		t.Errorf("from standard input:\n%s\nwant\n%s", piped.out, again.out)
	}
	if _, err := exec.LookPath("perf"); err != nil {
		oracle.Lacks(t, "perf")
	}
	out, err := exec.Command("perf", "report", "--stdio", "-i", file).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("Samples:")) {
		t.Errorf("perf report: %v\n%s", err, out)
	}
}

func TestRecordFails(t *testing.T) {
	canRecord(t)
	runProgram(t, "record", "--", "/nonexistent/program").want(t, 1, "/nonexistent/program")
	runProgram(t, "record", "-o", "/nonexistent/x.svg", "--", "true").want(t, 1, "/nonexistent/x.svg")
	runProgram(t, "record", "-p", "999999999").want(t, 1, "999999999")
	runProgram(t, "record", "-e", "cycels", "--", "true").want(t, 1, "cycles")
	runProgram(t, "record", "-o", "x.svg", "--", "sh", "-c", "kill -9 $$").want(t, 137, "")
}

// Ctrl-C ends a recording, and the result is written.
func TestInterrupt(t *testing.T) {
	canRecord(t)
	c := program(t, "record", "-o", "x.folded", "--", "sh", "-c", "while :; do :; done")
	wait := begin(t, c)
	untilWorked(t, c.Process.Pid, 300*time.Millisecond) // before the command runs, there is nothing that could be kept
	c.Process.Signal(os.Interrupt)
	r := wait()
	if r.status != 143 && r.status != 130 {
		t.Errorf("status %d\n%s", r.status, r.stderr)
	}
	if b, err := os.ReadFile(filepath.Join(c.Dir, "x.folded")); err != nil || len(b) == 0 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

// TestTimeout: timeout(1) asks a recording twice to end, and its result is written.
func TestTimeout(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "timeout")
	pid := spinner(t).Process.Pid
	for range 3 {
		for _, seconds := range []string{"3", "30"} {
			c := program(t, "record", "-p", fmt.Sprint(pid), "-o", "x.folded")
			timeout := exec.Command("timeout", append([]string{seconds}, c.Args...)...)
			timeout.Dir, timeout.Env = c.Dir, c.Env
			r := finish(t, timeout)
			if seconds == "3" && r.stderr == "unspool: interrupted\n" {
				continue // on a busy machine, it has not begun by then
			}
			if b, err := os.ReadFile(filepath.Join(c.Dir, "x.folded")); err != nil || len(b) == 0 {
				t.Errorf("%d bytes, %v\n%s", len(b), err, r.stderr)
			}
			break
		}
	}
}

// A process that runs already is recorded for a while, and goes on.
func TestRecordProcess(t *testing.T) {
	canRecord(t)
	target := exec.Command("sh", "-c", "while :; do :; done")
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer target.Wait()
	defer target.Process.Kill()
	r := runProgram(t, "record", "-p", fmt.Sprint(target.Process.Pid), "--duration", "1s", "-o", "x.json")
	r.want(t, 0, "samples ·")
	if err := target.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the target is gone: %v", err)
	}
}

// A target that exits while it is recorded ends the recording.
func TestTargetExits(t *testing.T) {
	canRecord(t)
	target := exec.Command("sh", append(busy[1:2:2], "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done")...)
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	go target.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := program(t, "record", "-p", fmt.Sprint(target.Process.Pid), "-o", "x.folded")
	context.AfterFunc(ctx, func() { c.Process.Kill() })
	finish(t, c).want(t, 0, "samples ·")
}

// What cannot be written is an error that names the file; a cache that cannot be used is a remark.
func TestFull(t *testing.T) {
	canRecord(t)
	c := program(t, append([]string{"record", "--"}, busy...)...)
	finish(t, c)
	file := filepath.Join(c.Dir, "unspool.data")
	for _, args := range [][]string{
		{"report", file, "-o", "/dev/full", "--format", "flame"},
		{"report", file, "-o", "/dev/full", "--format", "pprof"},
		{"report", file, "-o", "/dev/full", "--format", "json"},
		{"unwind", file, "/dev/full"},
		append([]string{"record", "-o", "/dev/full", "--format", "data", "--"}, busy...),
	} {
		runProgram(t, args...).want(t, 1, "no space left")
	}
	// Each verb that prints something, to a standard output that takes nothing.
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	printing := map[string][][]string{
		"record":     {append([]string{"record", "--"}, busy...), append([]string{"record", "-o", "-", "--format", "folded", "--"}, busy...)},
		"top":        {append([]string{"top", "-n", "1", "--"}, busy...)},
		"agent":      {{"agent", "--output", "parca=http://127.0.0.1:7070", "--print-config"}},
		"diff":       {{"diff", file, file}, {"diff", file, file, "--format", "json"}},
		"serve":      {{"serve", file}},
		"unwind":     {{"unwind", file, "-"}},
		"stack":      {{"stack", fmt.Sprint(os.Getpid())}, {"stack", "--format", "json", fmt.Sprint(os.Getpid())}},
		"dump":       {{"dump", "/bin/sh"}, {"dump", "--format", "json", "/bin/sh"}},
		"compile":    {{"compile", "/bin/sh"}},
		"verify":     {{"verify", "/bin/sh"}, {"verify", "--run", "--steps", "1000", "-o", "-", "--", "true"}},
		"stats":      {{"stats", "/bin/sh"}, {"stats", "--format", "json", "/bin/sh"}},
		"doctor":     {{"doctor", "--quick"}, {"doctor", "--quick", "--json"}},
		"version":    {{"version"}},
		"help":       {{"help"}, {"--help"}, {"--version"}, {"help", "record"}},
		"completion": {{"completion", "bash"}, {"completion", "zsh"}, {"completion", "fish"}},
	}
	for _, format := range append(report.Formats.Names(), "annotate", "disasm") {
		printing["report"] = append(printing["report"], []string{"report", file, "--format", format})
	}
	for _, verb := range command().Commands() {
		runs := printing[verb.Name()]
		if len(runs) == 0 && verb.Name() != "man" && verb.Name() != "run" {
			t.Errorf("%s is not tried", verb.Name())
		}
		for _, args := range runs {
			c := program(t, args...)
			c.Stdout = full
			var text bytes.Buffer
			c.Stderr = &text
			timeout := time.AfterFunc(time.Minute, func() { c.Process.Kill() })
			c.Run()
			timeout.Stop()
			if c.ProcessState.ExitCode() != 1 || !strings.Contains(text.String(), "no space left") {
				t.Errorf("%s >/dev/full: status %d\n%s", strings.Join(args, " "), c.ProcessState.ExitCode(), text.String())
			}
		}
	}
	c = program(t, "report", file)
	c.Env = append(c.Env, "UNSPOOL_CACHE=/proc/nowhere")
	finish(t, c).want(t, 0, "are not kept")
	runProgram(t, "unwind", file, file).want(t, 2, "is the input")
}
