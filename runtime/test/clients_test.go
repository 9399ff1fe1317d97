package test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// A withLibrary is a way to run a program with some libunwind, and what its path then is.
type withLibrary struct {
	name string
	run  []string // goes before the command
	env  []string
	path string
}

// withLibraries are Debian's, and ours by LD_LIBRARY_PATH and by unspool run.
func withLibraries(t *testing.T) []withLibrary {
	t.Helper()
	needStock(t)
	lib := dropIn(t, "gcc")
	ours := filepath.Join(lib, "libunwind.so.8")
	return []withLibrary{
		{"stock", nil, stockEnv(), filepath.Join("/lib/x86_64-linux-gnu", filepath.Base(stockLocal))},
		{"LD_LIBRARY_PATH", nil, dropInEnv(lib), ours},
		{"unspool run", []string{unspool(t), "run", "--runtime", lib, "--"}, append(stockEnv(), "UNSPOOL_CACHE="+t.TempDir()), ours},
	}
}

// runs runs a command. The program must say that it has the library that is meant.
func (l *withLibrary) runs(t *testing.T, env []string, args ...string) {
	t.Helper()
	args = slices.Concat([]string{"-s", "KILL", "300"}, l.run, args)
	cmd := exec.Command("timeout", args...)
	cmd.Env = append(slices.Clone(l.env), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	if !bytes.Contains(out, []byte("libunwind: "+l.path+"\n")) {
		t.Fatalf("%s: the program does not have %s:\n%s", l.name, l.path, out)
	}
}

// profiled compiles testdata/client.c, whose functions are at the addresses that its file says.
func profiled(t *testing.T) string {
	t.Helper()
	oracle.Need(t, "gcc")
	prog := filepath.Join(t.TempDir(), "client")
	if out, err := exec.Command("gcc", "-g", "-O1", "-fno-pie", "-no-pie", "-Wall", "-Werror", "-o", prog, "testdata/client.c", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return prog
}

// The stacks of testdata/client.c below take: how often recurse is there.
var depths = []int{5, 10, 20}

const gperftools = "/usr/lib/x86_64-linux-gnu/libprofiler.so.0"

// TestGperftools: the processor time profiler of gperftools, which walks in a signal handler, has the same stacks.
func TestGperftools(t *testing.T) {
	if _, err := os.Stat(gperftools); err != nil {
		oracle.Lacks(t, gperftools)
	}
	prog := profiled(t)
	var stock []string
	for _, l := range withLibraries(t) {
		out := filepath.Join(t.TempDir(), "profile")
		l.runs(t, []string{"TCMALLOC_STACKTRACE_METHOD=libunwind"}, "env", "LD_PRELOAD="+gperftools, "CPUPROFILE="+out, prog, "0.3")
		stacks, n := profile(t, out, prog), 0
		for s, times := range stacks {
			if !strings.HasPrefix(s, "take ") {
				t.Errorf("%s: %d times a stack that is cut off: %s", l.name, times, s)
			}
			n += times
		}
		got := slices.Sorted(maps.Keys(stacks))
		if stock == nil {
			stock = got
		}
		if !slices.Equal(got, stock) {
			t.Errorf("%s:\n got  %q\n want %q", l.name, got, stock)
		}
		var calls []int
		for _, s := range got {
			calls = append(calls, strings.Count(s, "recurse "))
		}
		slices.Sort(calls)
		if !slices.Equal(calls, depths) {
			t.Errorf("%s: recursions of %d calls, want %d", l.name, calls, depths)
		}
		if n < 30 {
			t.Errorf("%s: %d samples of 0.9 s", l.name, n)
		}
		t.Logf("%s: %d samples", l.name, n)
	}
}

var profileMap = regexp.MustCompile(`(?m)^([0-9a-f]+)-([0-9a-f]+) r.x. ([0-9a-f]+) \S+ \d+ +(/\S+)$`)

// profile reads a profile of gperftools' (words: a head of 5; then how often, how many, that many program counters; 0, 1,
// 0; then /proc/self/maps) and returns how often each stack is there, from take on; stacks without it only where they are cut
// off.
func profile(t *testing.T, path, prog string) map[string]int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var words []uint64
	for i := 0; i+8 <= len(b); i += 8 {
		words = append(words, binary.LittleEndian.Uint64(b[i:]))
	}
	file, err := elf.Open(prog)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	syms, err := file.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	loaded := profileMap.FindAllStringSubmatch(string(b), -1)
	name := func(pc uint64) string {
		for _, s := range syms {
			if elf.ST_TYPE(s.Info) == elf.STT_FUNC && pc-s.Value < s.Size {
				return s.Name + " "
			}
		}
		for _, m := range loaded {
			lo, _ := strconv.ParseUint(m[1], 16, 64)
			hi, _ := strconv.ParseUint(m[2], 16, 64)
			off, _ := strconv.ParseUint(m[3], 16, 64)
			if lo <= pc && pc < hi {
				return fmt.Sprintf("%s+%#x ", filepath.Base(m[4]), pc-lo+off)
			}
		}
		return "? "
	}
	stacks, outermost := map[string]int{}, map[string]bool{}
	i := 5
	for ; i+2 < len(words) && words[i] != 0; i += 2 + int(words[i+1]) {
		var s strings.Builder
		if words[i+1] > uint64(len(words)-i-2) {
			break
		}
		for _, pc := range words[i+2 : i+2+int(words[i+1])] {
			s.WriteString(name(pc))
		}
		stack := s.String()
		if strings.HasPrefix(stack, "ld-linux") {
			continue // before or after all that
		}
		if at := strings.Index(stack, "take "); at >= 0 {
			stack = stack[at:]
			outermost[last(stack)] = true
		}
		stacks[stack] += int(words[i])
	}
	// Whole stacks elsewhere: main starts a thread and waits for it.
	maps.DeleteFunc(stacks, func(s string, _ int) bool {
		return !strings.HasPrefix(s, "take ") && outermost[last(s)]
	})
	if i+3 > len(words) || words[i] != 0 || words[i+1] != 1 {
		t.Fatalf("%s has no end", path)
	}
	return stacks
}

// last is the last word.
func last(stack string) string {
	stack = strings.TrimSpace(stack)
	return stack[strings.LastIndexByte(stack, ' ')+1:]
}

var unnamed = regexp.MustCompile(`0x[0-9a-f]+`)

// TestHeaptrack: heaptrack, which walks at each allocation, prints the same stacks.
func TestHeaptrack(t *testing.T) {
	oracle.Need(t, "heaptrack", "heaptrack_print")
	prog := profiled(t)
	want := ""
	for _, l := range withLibraries(t) {
		data := filepath.Join(t.TempDir(), "data")
		l.runs(t, nil, "heaptrack", "-o", data, prog)
		folded := filepath.Join(t.TempDir(), "folded")
		files, _ := filepath.Glob(data + ".*") // its ending says how it is compressed
		if len(files) != 1 {
			t.Fatalf("heaptrack wrote %q", files)
		}
		if out, err := exec.Command("heaptrack_print", "-F", folded, files[0]).CombinedOutput(); err != nil {
			t.Fatalf("heaptrack_print: %v\n%s", err, out)
		}
		b, err := os.ReadFile(folded)
		if err != nil {
			t.Fatal(err)
		}
		// Where there is no name there is an address, in what is loaded anywhere.
		lines := slices.Sorted(strings.Lines(unnamed.ReplaceAllString(string(b), "?")))
		got := strings.Join(lines, "")
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("%s:\n got\n%s\n want\n%s", l.name, got, want)
		}
		var calls []int
		for _, s := range lines {
			if strings.Contains(s, ";take ") {
				calls = append(calls, strings.Count(s, "recurse "))
			}
		}
		slices.Sort(calls)
		if !slices.Equal(calls, depths) {
			t.Errorf("%s: recursions of %d calls, want %d:\n%s", l.name, calls, depths, got)
		}
	}
}
