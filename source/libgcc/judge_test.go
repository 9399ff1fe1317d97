package libgcc_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/corefile"
	"github.com/unspool/unspool/source/gdbjit"
	"github.com/unspool/unspool/source/libgcc"
	"github.com/unspool/unspool/source/live"
	"github.com/unspool/unspool/unwind"
)

// build compiles testdata/register.c.
func build(t *testing.T, flags ...string) string {
	if arch.Host() != arch.AMD64 {
		oracle.Lacks(t, "an x86-64 processor")
	}
	oracle.Need(t, "gcc")
	out := filepath.Join(t.TempDir(), "register")
	oracle.Run(t, "gcc", append(flags, "-O2", "-Wall", "-Wextra", "-pthread", "-o", out, "testdata/register.c")...)
	return out
}

// loader returns the command line that starts programs with the libraries of a suite of Debian.
func loader(t *testing.T, suite string) []string {
	root := oracle.Debian(t, suite, "amd64", "libgcc", "libgcc-s1")
	return []string{filepath.Join(root, "lib64/ld-linux-x86-64.so.2"), "--library-path", filepath.Join(root, "usr/lib/x86_64-linux-gnu")}
}

// start starts a program, and returns the return addresses that it prints before "ready", outermost frame excluded.
func start(t *testing.T, args ...string) (pid int, chain []uint64) {
	cmd := exec.Command(args[0], args[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	in := bufio.NewScanner(out)
	for in.Scan() && in.Text() != "ready" {
		a, err := strconv.ParseUint(in.Text(), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		if a != 0 {
			chain = append(chain, a)
		}
	}
	if len(chain) < 3 {
		t.Fatalf("%v printed %x", args, chain)
	}
	return cmd.Process.Pid, chain
}

// check compares the stack of a process's first thread with the chain that libgcc has found. The program waits in the function that called libgcc,
// so its first address is another.
func check(t *testing.T, what string, p *source.Process, chain []uint64) {
	t.Helper()
	frames, stop := unwind.NewWalker(0).Walk(&p.Threads[0].Snapshot, nil)
	var got []uint64
	for i := range frames {
		if f := &frames[i]; f.How == unwind.HowCFI {
			got = append(got, uint64(f.PC))
		} else if i > 0 {
			t.Errorf("%s: frame %d at %#x is found by %s", what, i, f.PC, f.How)
		}
	}
	want := chain[1:]
	if got = got[max(0, len(got)-len(want)):]; stop != unwind.Outermost || !slices.Equal(got, want) {
		t.Errorf("%s: the stack ends as %s, and is\n%x\nlibgcc has\n%x", what, stop, got, want)
	}
}

func open(t *testing.T, set *modules.Set, pid int) *source.Process {
	t.Helper()
	p, _, err := live.Open(pid, live.Options{Mods: set.Module, Made: set.Made(arch.AMD64), Image: set.Image, Files: set.Files})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestRegistered: stacks through registered code are those that libgcc itself finds, of running processes and in cores, by each way to register, with each
// layout of the registry, and where no symbol says where it is.
func TestRegistered(t *testing.T) {
	oracle.Long(t)
	dynamic := build(t)
	for _, c := range []struct {
		name string
		args func() []string
	}{
		{"GCC 12", func() []string { return []string{dynamic} }},
		{"GCC 12, static", func() []string { return []string{build(t, "-static")} }},
		{"GCC 12, static, stripped", func() []string { return []string{build(t, "-static", "-s")} }},
		{"GCC 12, in the program", func() []string { return []string{build(t, "-static-libgcc")} }},
		{"GCC 14", func() []string { return append(loader(t, "trixie"), dynamic) }},
		{"GCC of sid", func() []string { return append(loader(t, "sid"), dynamic) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := c.args()
			for _, how := range []string{"frame", "info", "table", "single"} {
				for _, n := range []int{1, 7, 1000} {
					set := modules.Interpreted()
					pid, chain := start(t, append(slices.Clone(args), how, strconv.Itoa(n))...)
					p := open(t, set, pid)
					check(t, fmt.Sprint(how, n), p, chain)
					if len(p.Notes) > 0 {
						t.Errorf("%s %d: %q", how, n, p.Notes)
					}
					if n == 7 {
						core(t, set, how, pid, dynamic, chain)
					}
					set.Close()
				}
			}
		})
	}
}

// core checks the stack in a core of a process.
func core(t *testing.T, set *modules.Set, how string, pid int, exe string, chain []uint64) {
	t.Helper()
	oracle.Need(t, "gcore")
	prefix := filepath.Join(t.TempDir(), "core")
	if out, err := exec.Command("gcore", "-o", prefix, strconv.Itoa(pid)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := corefile.Open(fmt.Sprintf("%s.%d", prefix, pid), corefile.Options{Mods: set.Module, Image: set.Image, Kept: set.Kept, Files: set.Files})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	check(t, how+", core", &f.Process, chain)
	if len(f.Notes) > 0 {
		t.Errorf("%s, core: %q", how, f.Notes)
	}
}

// TestBusy: while a thread registers and deregisters code, what stays registered is found, or a note says that the registry changed.
func TestBusy(t *testing.T) {
	oracle.Long(t)
	dynamic := build(t)
	for _, c := range []struct {
		name string
		load []string
	}{{"GCC 12", nil}, {"GCC 14", loader(t, "trixie")}} {
		pid, chain := start(t, append(c.load, dynamic, "busy", "20")...)
		notes := 0
		for range 100 {
			set := modules.Interpreted()
			p := open(t, set, pid)
			if len(p.Notes) > 0 {
				notes++
			} else {
				check(t, c.name, p, chain)
			}
			set.Close()
		}
		t.Logf("%s: %d of 100 have a note", c.name, notes)
		if notes > 20 {
			t.Errorf("%s: %d of 100 have a note", c.name, notes)
		}
	}
}

// jitted is a program for lli: its functions have frames.
const jitted = `declare i32 @puts(ptr)
declare i32 @pause()
@ready = constant [6 x i8] c"ready\00"
define i32 @leaf(i32 %n) uwtable {
  %a = alloca [40 x i8]
  call i32 @puts(ptr @ready)
  call i32 @pause()
  %p = load volatile i32, ptr %a
  ret i32 %p
}
define i32 @middle(i32 %n) uwtable {
  %a = alloca [72 x i8]
  %c = call i32 @leaf(i32 %n)
  %p = load volatile i32, ptr %a
  %r = add i32 %p, %c
  ret i32 %r
}
define i32 @main() uwtable {
  %c = call i32 @middle(i32 1)
  %r = add i32 %c, 1
  ret i32 %r
}
`

// TestLLVM: LLVM's compilers register the same code with libgcc as with GDB's interface: the rows are the same.
func TestLLVM(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "lli-19")
	src := filepath.Join(t.TempDir(), "jitted.ll")
	if err := os.WriteFile(src, []byte(jitted), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flags := range [][]string{{}, {"-jit-linker=jitlink"}, {"-jit-kind=mcjit"}} {
		cmd := exec.Command("stdbuf", append(append([]string{"-oL", "lli-19"}, flags...), src)...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if b := make([]byte, 5); true {
			if _, err := out.Read(b); err != nil || string(b) != "ready" {
				t.Fatalf("%v: %q, %v", flags, b, err)
			}
		}
		images, tables := registered(t, cmd.Process.Pid)
		cmd.Process.Kill()
		cmd.Wait()
		n := 0
		for _, img := range images {
			u, err := format.Open(img)
			if err != nil {
				t.Fatal(err)
			}
			want, _ := u.Rows()
			for i, x := range want.Rows {
				if x.Set == rows.GapID {
					continue
				}
				n++
				for at := x.Lo; at < want.Rows[i+1].Lo; at++ {
					if !slices.ContainsFunc(tables, func(t *rows.Table) bool {
						k := t.Find(at)
						return k >= 0 && t.Rows[k].Set != rows.GapID && fmt.Sprint(t.Sets[t.Rows[k].Set].Rules, t.Sets[t.Rows[k].Set].CFA) == fmt.Sprint(want.Sets[x.Set].Rules, want.Sets[x.Set].CFA)
					}) {
						t.Fatalf("%v: the registry has no such rule at %#x: %v", flags, at, want.Sets[x.Set])
					}
				}
			}
		}
		if n < 5 {
			t.Errorf("%v: %d images have %d rows", flags, len(images), n)
		}
	}
}

// registered returns the images that a process has registered for debuggers, and the rows that it has registered with libgcc.
func registered(t *testing.T, pid int) (images []*module.Image, tables []*rows.Table) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	read := func(addr uint64, b []byte) bool {
		n, _ := mem.ReadAt(b, int64(addr))
		return n == len(b)
	}
	maps := procfs.ParseMappings(text)
	made := func(lo, hi arch.Addr) bool {
		return slices.ContainsFunc(maps, func(m procfs.Mapping) bool {
			return m.Name == "" && m.Prot&procfs.Exec != 0 && m.Lo < uint64(hi) && uint64(lo) < m.Hi
		})
	}
	room := uint64(gdbjit.Room)
	var data []libgcc.Range
	for _, m := range maps {
		if m.Prot&procfs.Exec == 0 || !strings.HasPrefix(m.Name, "/") {
			continue
		}
		img, err := module.Open(m.Name)
		if err != nil {
			continue
		}
		first, _ := img.OffToVaddr(m.Off)
		if v, ok := gdbjit.Descriptor(img); ok {
			found, err := gdbjit.Read(arch.AMD64, read, m.Lo+uint64(v-first), &room)
			if err != nil {
				t.Error(err)
			}
			images = append(images, found...)
		}
		for _, d := range libgcc.Data(img, false) {
			data = append(data, libgcc.Range{Lo: m.Lo + uint64(d.Lo-first), Hi: m.Lo + uint64(d.Hi-first)})
		}
		img.Close()
	}
	tables, err = libgcc.Read(arch.AMD64, read, data, made)
	if err != nil {
		t.Error(err)
	}
	return images, tables
}
