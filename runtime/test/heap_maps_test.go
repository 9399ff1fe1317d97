package test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source/heap"
)

// A mapper is what a process maps without a file, as strace shows it.
type mapper struct {
	pages     map[uint64]bool // that are mapped
	alloc     heap.Amount
	peak, end uint64
}

func (m *mapper) drop(lo, n uint64) (was int) {
	for p := lo / 4096; p < (lo+n+4095)/4096; p++ {
		if m.pages[p] {
			was++
		}
		delete(m.pages, p)
	}
	return was
}

func (m *mapper) add(lo, n uint64) {
	n = (n + 4095) &^ 4095
	for p := range n / 4096 {
		m.pages[lo/4096+p] = true
	}
	m.alloc.Objects++
	m.alloc.Bytes += n
	m.peak = max(m.peak, 4096*uint64(len(m.pages)))
}

var straced = regexp.MustCompile(`^(mmap|munmap|mremap|brk)\((.*)\)\s+= (0x[0-9a-f]+|0)$`)

// call replays a line of strace. Until counted, only the break is kept.
func (m *mapper) call(t *testing.T, line string, counted bool) {
	x := straced.FindStringSubmatch(line)
	if x == nil {
		return
	}
	args := strings.Split(x[2], ", ")
	word := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil && s != "NULL" {
			t.Fatalf("%s: %v", line, err)
		}
		return n
	}
	got := word(x[3])
	switch {
	case x[1] == "brk":
		if counted && got > m.end {
			m.add(m.end, got-m.end)
		} else if counted {
			m.drop(got, m.end-got)
		}
		m.end = got
	case !counted:
	case x[1] == "munmap":
		m.drop(word(args[0]), word(args[1]))
	case x[1] == "mmap":
		if m.drop(got, word(args[1])); strings.Contains(args[3], "MAP_ANONYMOUS") {
			m.add(got, word(args[1]))
		}
	case word(args[1]) == 0: // mremap
		m.add(got, word(args[2]))
	default:
		m.drop(word(args[0]), word(args[1]))
		m.drop(got, word(args[2]))
		m.add(got, word(args[2]))
	}
}

// anonymous returns how many bytes a process has mapped without a file.
func anonymous(t *testing.T, pid int) (bytes uint64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var lo, hi uint64
		if f := strings.Fields(line); len(f) == 5 || f[5] == "[heap]" || f[5] == "/dev/zero" {
			if _, err := fmt.Sscanf(f[0], "%x-%x", &lo, &hi); err != nil {
				t.Fatal(err)
			}
			bytes += hi - lo
		}
	}
	return bytes
}

// atStops runs a program that says when it begins and when it has done its work, and calls f at both moments.
func atStops(t *testing.T, env, command []string, f func(pid int)) {
	t.Helper()
	c := exec.Command(command[0], command[1:]...)
	c.Env, c.Stderr = append(os.Environ(), env...), os.Stderr
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
	for _, want := range []string{"begin\n", "end\n"} {
		buf := make([]byte, len(want))
		if _, err := io.ReadFull(out, buf); err != nil || string(buf) != want {
			t.Fatalf("%q, %v: want %q", buf, err, want)
		}
		f(c.Process.Pid)
		if _, err := in.Write([]byte{'x'}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestHeapMaps: what a program maps, remaps and unmaps, in parts, over what is there, and in threads, is what strace shows of it. What is in use is
// what Linux says.
func TestHeapMaps(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc", "strace")
	prog := filepath.Join(t.TempDir(), "maps")
	if out, err := exec.Command("gcc", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", prog, "testdata/heap_maps.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lib := heapLibrary(t)
	for _, threads := range []string{"0", "4"} {
		command := []string{prog, prog, threads}
		var got *heap.Process
		dir := t.TempDir()
		atStops(t, []string{"LD_PRELOAD=" + lib, "UNSPOOL_HEAP=" + dir, "UNSPOOL_HEAP_MAPS=1"}, command, func(int) {
			all, err := heap.Read(dir)
			if err != nil || len(all) != 1 || all[0].Damaged+all[0].Lost+all[0].Nested > 0 {
				t.Fatalf("Read(%s) = %d processes, %v, want 1 with nothing damaged, lost or nested", dir, len(all), err)
			}
			got = all[0]
		})
		var alloc, inUse, peak, brief heap.Amount
		for _, s := range got.Stacks {
			alloc.Objects, alloc.Bytes = alloc.Objects+s.Alloc.Objects, alloc.Bytes+s.Alloc.Bytes
			inUse.Bytes, peak.Bytes = inUse.Bytes+s.InUse.Bytes, peak.Bytes+s.Peak.Bytes
			brief.Objects += s.Brief.Objects
			if len(s.Frames) < 4 {
				t.Errorf("a stack of %d frames", len(s.Frames))
			}
		}
		if inUse.Bytes != got.InUse.Bytes || peak.Bytes != got.Peak.Bytes || threads == "0" && brief.Objects != 10 {
			t.Errorf("stacks have %d bytes in use and %d at the peak, the process %d and %d; %d are temporary", inUse.Bytes, peak.Bytes, got.InUse.Bytes, got.Peak.Bytes, brief.Objects)
		}

		// The threads' memory is their own: each file of strace can be replayed alone.
		files := filepath.Join(t.TempDir(), "s")
		atStops(t, nil, slices.Concat([]string{"strace", "-ff", "-e", "trace=memory,write", "-o", files}, command), func(int) {})
		var want mapper
		paths, _ := filepath.Glob(files + ".*")
		if len(paths) != len(command[2:])*int(threads[0]-'0')+1 {
			t.Fatalf("strace writes %q, want a file for the program, and for each of %s threads", paths, threads)
		}
		var wantUse uint64
		for _, path := range paths {
			m := mapper{pages: map[uint64]bool{}}
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			counted := path != paths[0] // the first thread says when it begins
			for sc := bufio.NewScanner(f); sc.Scan(); {
				m.call(t, sc.Text(), counted)
				counted = counted && !strings.HasPrefix(sc.Text(), `write(1, "end`) || strings.HasPrefix(sc.Text(), `write(1, "begin`)
			}
			want.alloc.Objects, want.alloc.Bytes = want.alloc.Objects+m.alloc.Objects, want.alloc.Bytes+m.alloc.Bytes
			want.peak += m.peak
			wantUse += 4096 * uint64(len(m.pages))
		}
		var before, after uint64
		atStops(t, nil, command, func(pid int) { before, after = after, anonymous(t, pid) })
		t.Logf("%s threads: %v allocated, %d bytes in use, %d at the peak", threads, alloc, inUse.Bytes, peak.Bytes)
		if alloc != want.alloc || inUse.Bytes != wantUse || inUse.Bytes != after-before || threads == "0" && peak.Bytes != want.peak || peak.Bytes > want.peak {
			t.Errorf("%s threads: recorded %v, in use %d, at the peak %d; strace: %v, %d, %d; Linux: %d", threads, alloc, inUse.Bytes, peak.Bytes, want.alloc, wantUse, want.peak, after-before)
		}
	}
}

// TestHeapMapsLock: a library behind this one whose munmap takes a lock, and whose threads map memory under that lock, goes on.
func TestHeapMapsLock(t *testing.T) {
	oracle.Need(t, "gcc", "timeout")
	dir := t.TempDir()
	for _, args := range [][]string{{"-shared", "-fPIC", "-DLIBRARY", "-o", dir + "/liblock.so"}, {"-o", dir + "/lock", "-L" + dir, "-Wl,--no-as-needed", "-llock", "-Wl,-rpath," + dir}} {
		if out, err := exec.Command("gcc", slices.Concat([]string{"-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "testdata/heap_maps_lock.c"}, args)...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	out, all := heapRun(t, heapLibrary(t), []string{"UNSPOOL_HEAP_MAPS=1"}, "timeout", "-s", "KILL", "300", dir+"/lock")
	at := slices.IndexFunc(all, func(p *heap.Process) bool { return filepath.Base(p.Path) == "lock" })
	if out != "done\n<nil>\n" || at < 0 {
		t.Fatalf("%s: %d processes", out, len(all))
	}
	var gone uint64
	for _, s := range all[at].Stacks {
		gone += s.Alloc.Objects - s.InUse.Objects
	}
	if gone < 4*5000 || all[at].Lost > 0 {
		t.Errorf("%d mappings are gone, want %d; %d are lost", gone, 4*5000, all[at].Lost)
	}
}

// TestHeapMapsChildren: a child has its own mappings only, and those of its parent are not its own after all that it does. A Go program with C code
// maps its heap by the C library's functions.
func TestHeapMapsChildren(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "python3", "go", "gcc")
	lib, env := heapLibrary(t), []string{"UNSPOOL_HEAP_MAPS=1"}
	has := func(p *heap.Process, objects, pages uint64) bool {
		return slices.ContainsFunc(p.Stacks, func(s heap.Stack) bool { return s.InUse == heap.Amount{Objects: objects, Bytes: 4096 * pages} })
	}
	out, all := heapRun(t, lib, env, "python3", "-c", `
import mmap, os
a = mmap.mmap(-1, 77 * 4096)
if os.fork() == 0:
    b = mmap.mmap(-1, 55 * 4096)
    a.close()
    c = [mmap.mmap(-1, 4096 * i) for i in range(1, 3000)]
    for x in c: x.close()
    os._exit(0)
os.wait()
c = [mmap.mmap(-1, 4096) for i in range(3000)]
for x in c[::2]: x.close()
print("done", flush=True)
os._exit(0)
`)
	parents := slices.DeleteFunc(slices.Clone(all), func(p *heap.Process) bool { return !has(p, 1501, 77+1500) })
	children := slices.DeleteFunc(all, func(p *heap.Process) bool { return !has(p, 1, 55) })
	if all = append(parents, children...); out != "done\n<nil>\n" || len(parents) != 1 || len(children) != 1 { // wrappers of python3 are others
		t.Fatalf("%s: %d parents, %d children", out, len(parents), len(children))
	}
	for i, p := range all {
		var brief uint64
		for _, s := range p.Stacks {
			brief += s.Alloc.Objects - s.InUse.Objects
		}
		if want := []uint64{1500, 2999}[i]; brief < want || brief > want+20 {
			t.Errorf("process %d: %d mappings are gone, want %d and some of python's own", i, brief, want)
		}
	}

	dir := t.TempDir()
	source, prog := filepath.Join(dir, "main.go"), filepath.Join(dir, "grows")
	if err := os.WriteFile(source, []byte("package main\n\nimport \"C\"\n\nvar keep [][]byte\n\nfunc main() {\n\tfor range 200 {\n\t\tkeep = append(keep, make([]byte, 1<<20))\n\t}\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", prog, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, all = heapRun(t, lib, env, prog)
	if out != "<nil>\n" || !slices.ContainsFunc(all, func(p *heap.Process) bool { return filepath.Base(p.Path) == "grows" && p.InUse.Bytes > 200<<20 }) {
		t.Errorf("%s: %d processes", out, len(all))
	}
}
