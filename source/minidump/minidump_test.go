package minidump

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/live"
	"github.com/unspool/unspool/stacks"
	"github.com/unspool/unspool/unwind"
)

// A dump is what a minidump is made of.
type dump struct {
	cpu     uint16
	os      uint32
	threads []thread
	modules []loaded
	memory  []part
	long    bool // a Memory64List
	padded  bool // lists begin eight bytes behind their beginning
	crashed int  // TID; 0: nobody
	code    uint32
	more    map[uint32][]byte // other streams
}

type thread struct {
	tid     int
	context []byte
	name    string
}

type loaded struct {
	base  uint64
	size  uint32
	stamp uint32
	path  string
	cv    []byte
}

// build returns the file.
func (d *dump) build() []byte {
	b := make([]byte, 32)
	copy(b, "MDMP\x93\xa7")
	put := func(x []byte) (loc []byte) {
		b = append(b, make([]byte, -len(b)&7)...)
		loc = le.AppendUint32(le.AppendUint32(nil, uint32(len(x))), uint32(len(b)))
		b = append(b, x...)
		return loc
	}
	text := func(s string) uint32 {
		u := utf16.Encode([]rune(s))
		x := le.AppendUint32(nil, uint32(2*len(u)))
		for _, c := range append(u, 0) {
			x = le.AppendUint16(x, c)
		}
		return le.Uint32(put(x)[4:])
	}
	list := func(n int) []byte {
		x := le.AppendUint32(nil, uint32(n))
		if d.padded {
			x = le.AppendUint32(x, 0)
		}
		return x
	}
	var dir []byte
	stream := func(typ uint32, x []byte) { dir = append(le.AppendUint32(dir, typ), put(x)...) }

	sys := le.AppendUint16(nil, d.cpu)
	sys = append(sys, make([]byte, 18)...)
	stream(systemInfo, append(le.AppendUint32(sys, d.os), make([]byte, 32)...))
	threads, names, exc := list(len(d.threads)), le.AppendUint32(nil, uint32(len(d.threads))), []byte(nil)
	for _, t := range d.threads {
		ctx := put(t.context)
		x := le.AppendUint32(nil, uint32(t.tid))
		x = append(x, make([]byte, 36)...)
		threads = append(threads, append(x, ctx...)...)
		names = le.AppendUint64(le.AppendUint32(names, uint32(t.tid)), uint64(text(t.name)))
		if t.tid == d.crashed {
			exc = le.AppendUint64(nil, uint64(t.tid))
			exc = le.AppendUint32(exc, d.code)
			exc = le.AppendUint64(append(exc, make([]byte, 12)...), 0x10)
			exc = append(append(exc, make([]byte, 160-len(exc))...), ctx...)
		}
	}
	stream(threadList, threads)
	stream(threadNames, names)
	stream(miscInfo, le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, 24), 1), 4711))
	if exc != nil {
		stream(exception, exc)
	}
	mods := list(len(d.modules))
	for _, m := range d.modules {
		x := le.AppendUint32(le.AppendUint64(nil, m.base), m.size)
		x = le.AppendUint32(le.AppendUint32(le.AppendUint32(x, 0), m.stamp), text(m.path))
		x = append(append(x, make([]byte, 52)...), put(m.cv)...)
		mods = append(mods, append(x, make([]byte, 24)...)...)
	}
	stream(moduleList, mods)
	if d.long {
		x := le.AppendUint64(le.AppendUint64(nil, uint64(len(d.memory))), 0)
		for _, p := range d.memory {
			x = le.AppendUint64(le.AppendUint64(x, p.lo), uint64(len(p.b)))
		}
		loc := put(x)
		dir = append(le.AppendUint32(dir, memory64List), loc...)
		le.PutUint64(b[le.Uint32(loc[4:])+8:], uint64(len(b)))
		for _, p := range d.memory {
			b = append(b, p.b...)
		}
	} else {
		mem := list(len(d.memory))
		for _, p := range d.memory {
			mem = le.AppendUint64(mem, p.lo)
			mem = append(mem, put(p.b)...)
		}
		stream(memoryList, mem)
	}
	for _, typ := range slices.Sorted(maps.Keys(d.more)) {
		stream(typ, d.more[typ])
	}
	at := le.Uint32(put(dir)[4:])
	le.PutUint32(b[8:], uint32(len(dir)/12))
	le.PutUint32(b[12:], at)
	return b
}

// contextOf is what a dump has of registers.
func contextOf(m *arch.Machine, get func(arch.Reg) uint64) []byte {
	c := m.Context
	b := make([]byte, 1232)
	le.PutUint32(b[c.Flags:], c.CPUs[0]|contextControl|contextInteger)
	for i, at := range c.At {
		if v := get(c.Regs[i]); m.WordSize() == 4 {
			le.PutUint32(b[at:], uint32(v))
		} else {
			le.PutUint64(b[at:], v)
		}
	}
	return b
}

func options(t testing.TB) Options {
	set := modules.New()
	t.Cleanup(func() { set.Close() })
	set.Files.DebugDirs = []string{}
	return Options{Mods: set.Module, Image: set.Image, Files: set.Files}
}

func open(t testing.TB, b []byte, o Options) *File {
	t.Helper()
	f, err := New("x.dmp", b, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// notes are all that a dump has, where all modules are used.
func notes(f *File) []string {
	return slices.Concat(f.Notes, f.Missing(func(*unwind.Module) bool { return true }))
}

// chain is the stack of a thread: modules by their last names, and offsets.
func chain(t testing.TB, p *source.Process, i int) string {
	t.Helper()
	one := *p
	one.Threads = p.Threads[i : i+1]
	s, err := stacks.Walk(&one, stacks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range s.Threads[0].Frames {
		name, off := "?", uint64(f.PC)
		if f.Mapping != nil {
			name, off = f.Mapping.Module.Path, f.Mapping.FileOff(f.PC)
		}
		fmt.Fprintf(&b, "%s+%#x ", name[strings.LastIndexAny(name, `/\`)+1:], off)
	}
	fmt.Fprint(&b, s.Threads[0].Stop)
	return b.String()
}

// TestMachines: registers of each machine and form of the lists are read, names and the exception too.
func TestMachines(t *testing.T) {
	for _, c := range []struct {
		cpu uint16
		os  uint32
		m   *arch.Machine
	}{
		{0, windowsNT, arch.I386}, {0, linux, arch.I386}, {5, android, arch.ARM}, {9, windowsNT, arch.WindowsAMD64}, {9, linux, arch.AMD64}, {9, macOS, arch.AMD64},
		{12, windowsNT, arch.WindowsARM64}, {12, iOS, arch.ARM64}, {0x8003, android, arch.ARM64},
	} {
		for form := range 4 {
			get := func(r arch.Reg) uint64 { return 0x1000 + 16*uint64(r) }
			ctx := contextOf(c.m, get)
			d := dump{cpu: c.cpu, os: c.os, padded: form&1 != 0, long: form&2 != 0, crashed: 8, code: 11,
				threads: []thread{{7, ctx, "first"}, {8, ctx, "zweitens"}, {9, ctx[:40], ""}}, memory: []part{{0x2000, []byte("abcdefgh")}, {0x1ff8, []byte("01234567!")}}}
			f := open(t, d.build(), options(t))
			if f.Machine != c.m || f.PID != 4711 || len(f.Threads) != 3 || f.Threads[2].Err == nil || f.Threads[0].TID != 8 || f.Threads[0].Name != "zweitens" || f.Threads[1].Name != "first" {
				t.Fatalf("%s, PID %d, %+v", f.Machine.Name, f.PID, f.Threads)
			}
			s := &f.Threads[0].Snapshot
			for _, r := range c.m.Context.Regs {
				if slot := c.m.Slot(r); slot != arch.NoSlot && (s.Regs[slot] != get(r) || s.Known>>slot&1 == 0) {
					t.Errorf("%s: register %d is %#x", c.m.Name, r, s.Regs[slot])
				}
			}
			if s.PC != get(c.m.PC) || (f.Signal != nil) != (c.os == linux || c.os == android) || f.Signal != nil && (f.Signal.Number != 11 || f.Signal.Addr != 0x10) {
				t.Errorf("%s: pc %#x, %+v", c.m.Name, s.PC, f.Signal)
			}
			if v, ok := f.mem.Read8(0x1ffc); string(le.AppendUint64(nil, v)) != "4567!bcd" || !ok {
				t.Errorf("memory: %q", le.AppendUint64(nil, v))
			}
			if v, ok := f.mem.Read8(0x2001); ok {
				t.Errorf("%s, form %d: 8 bytes at 0x2001 are read as %#x, but the dump's memory ends at 0x2008", c.m.Name, form, v)
			}
			want := map[uint32]string{windowsNT: "thread 8 ended the process: exception 0xb at 0x10", macOS: "thread 8 ended the process: EXC_RESOURCE (0xb) at 0x10"}
			want[iOS] = want[macOS]
			if got := strings.Join(f.Notes, "|"); got != want[c.os] {
				t.Errorf("notes %q, want %q", got, want[c.os])
			}
		}
	}
}

// TestRunning: the minidump of a running program has the stacks that the program has, by files with the build ID that the dump names, and a file
// with another one is not used.
func TestRunning(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	prog := filepath.Join(dir, "prog")
	gcc := exec.Command("gcc", "-O1", "-pthread", "-Wl,--build-id=sha1", "-x", "c", "-o", prog, "-")
	gcc.Stdin = strings.NewReader(`#include <pthread.h>
#include <unistd.h>
__attribute__((noipa)) int down(int n) { char b[64]; __asm__ volatile("" : : "r"(b) : "memory"); if (n) return down(n - 1) + 1; pause(); return 0; }
static void *start(void *p) { down(20); return p; }
int main(void) { pthread_t t; pthread_create(&t, 0, start, 0); write(1, "x", 1); return down(10); }`)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(prog)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for { // both threads wait
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", cmd.Process.Pid))
		asleep := 0
		for _, path := range threads {
			if b, _ := os.ReadFile(path); bytes.Contains(b, []byte(") S ")) {
				asleep++
			}
		}
		if asleep == 2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	o := options(t)
	p, _, err := live.Open(cmd.Process.Pid, live.Options{Mods: o.Mods})
	if err != nil {
		t.Fatal(err)
	}
	d := dump{cpu: 9, os: linux, crashed: p.Threads[1].TID, code: 6}
	if p.Machine == arch.ARM64 {
		d.cpu = 12
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for line := range strings.Lines(string(maps)) {
		var lo, hi uint64
		x := strings.Fields(line)
		fmt.Sscanf(x[0], "%x-%x", &lo, &hi)
		if len(x) < 6 || x[5][0] != '/' {
			continue
		}
		i, ok := at[x[5]]
		if !ok {
			img, err := module.Open(x[5])
			if err != nil {
				t.Fatal(err)
			}
			i, at[x[5]] = len(d.modules), len(d.modules)
			d.modules = append(d.modules, loaded{base: lo, path: x[5], cv: append([]byte("LEpB"), img.BuildID()...)})
			img.Close()
		}
		d.modules[i].size = uint32(hi - d.modules[i].base)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	var want []string
	for i := range p.Threads {
		s := &p.Threads[i].Snapshot
		get := func(r arch.Reg) uint64 { return s.Regs[p.Machine.Slot(r)] }
		d.threads = append(d.threads, thread{p.Threads[i].TID, contextOf(p.Machine, get), p.Threads[i].Name})
		b := make([]byte, 1<<14)
		n, _ := mem.ReadAt(b, int64(get(p.Machine.SP)))
		d.memory = append(d.memory, part{get(p.Machine.SP), b[:n]})
		want = append(want, chain(t, p, i))
	}
	f := open(t, d.build(), o)
	if len(f.Threads) != 2 || f.Threads[0].TID != d.crashed || f.Signal == nil || f.Signal.Number != 6 || strings.Count(want[0], " ") < 12 || len(notes(f)) > 0 {
		t.Fatalf("%+v, %v, %q, %q", f.Threads, f.Signal, want, notes(f))
	}
	for i, w := range []string{want[1], want[0]} {
		if got := chain(t, &f.Process, i); got != w {
			t.Errorf("thread %d\n got %s\nwant %s", i, got, w)
		}
	}

	// The same from a symbol server's directory, where the path leads nowhere, and by the GUID that Breakpad made of the build ID.
	prog2 := &d.modules[at[prog]]
	id := bytes.Clone(prog2.cv[4:])
	prog2.path = "/nowhere/prog"
	for i, c := range []struct {
		cv  []byte
		key string
	}{
		{prog2.cv, "elf-buildid-" + hex.EncodeToString(id)},
		{prog2.cv, strings.ToUpper(hex.EncodeToString(normal(id))) + "0"},
		{binary.LittleEndian.AppendUint32(append([]byte("RSDS"), id[:16]...), 0), strings.ToUpper(hex.EncodeToString(normal(id))) + "0"},
	} {
		prog2.cv = c.cv
		for _, right := range []bool{true, false} {
			root := t.TempDir()
			to := filepath.Join(root, "prog", c.key, "prog")
			from := prog
			if !right {
				from = "/bin/sh"
			}
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(from)
			if err == nil {
				err = os.WriteFile(to, b, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
			o := options(t)
			o.Files.Dirs = []string{root}
			f := open(t, d.build(), o)
			got := chain(t, &f.Process, 1)
			notes := notes(f)
			if right && (got != want[0] || len(notes) > 0) || !right && (got == want[0] || len(notes) != 1 || !strings.Contains(notes[0], to)) {
				t.Errorf("%d, the right file %v: %q\n got %s\nwant %s", i, right, notes, got, want[0])
			}
		}
	}
}

// TestWindows: a program for Windows is found by the time and the size, or by the GUID of its PDB, and its stack is walked by .pdata.
func TestWindows(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19")
	oracle.Need(t, "lld-link-19")
	dir := t.TempDir()
	obj, exe := filepath.Join(dir, "x.obj"), filepath.Join(dir, "x.exe")
	source := filepath.Join(dir, "x.s")
	if err := os.WriteFile(source, []byte(`.text
.def h; .scl 2; .type 32; .endef
.seh_proc h
h: subq $40,%rsp
.seh_stackalloc 40
.seh_endprologue
nop
addq $40,%rsp
ret
.seh_endproc
.p2align 4
.seh_proc g
g: pushq %rbx
.seh_pushreg %rbx
subq $32,%rsp
.seh_stackalloc 32
.seh_endprologue
call h
addq $32,%rsp
popq %rbx
ret
.seh_endproc
.p2align 4
.globl start
.seh_proc start
start: subq $40,%rsp
.seh_stackalloc 40
.seh_endprologue
call g
nop
addq $40,%rsp
ret
.seh_endproc
`), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "clang-19", "--target=x86_64-pc-windows-msvc", "-c", "-o", obj, source)
	oracle.Run(t, "lld-link-19", "/entry:start", "/subsystem:console", "/nodefaultlib", "/debug", "/pdb:"+filepath.Join(dir, "x.pdb"), "/out:"+exe, obj)
	img, err := module.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	id := img.BuildID()
	stamp, size, ok := img.Stamp()
	if len(id) != 20 || !ok {
		t.Fatalf("ID %x", id)
	}
	raw := normal(id) // there and back
	const base = 0x7ff6_1000_0000
	stack := make([]byte, 40+8+40+8+40+8)
	le.PutUint64(stack[40:], base+0x101a)
	le.PutUint64(stack[40+8+40:], base+0x1029)
	get := func(r arch.Reg) uint64 {
		switch r {
		case 7:
			return 0x10000
		case 16:
			return base + 0x1004
		}
		return 0
	}
	for i, m := range []loaded{
		{base, size, stamp, `C:\Program Files\x.exe`, nil},
		{base, size, 1, `C:\Program Files\x.exe`, le.AppendUint32(append([]byte("RSDS"), raw...), binary.BigEndian.Uint32(id[16:]))},
		{base, size, stamp + 1, `C:\Program Files\x.exe`, nil},
		{base, size, 1, `C:\Program Files\x.exe`, le.AppendUint32(append([]byte("RSDS"), raw...), 77)},
	} {
		d := dump{cpu: 9, os: windowsNT, threads: []thread{{1, contextOf(arch.WindowsAMD64, get), ""}}, modules: []loaded{m}, memory: []part{{0x10000, stack}}, crashed: 1, code: 0xc0000005}
		root := t.TempDir()
		o := options(t)
		o.Files.Sysroot = root
		to := filepath.Join(root, "x.exe")
		b, err := os.ReadFile(exe)
		if err == nil {
			err = os.WriteFile(to, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		f := open(t, d.build(), o)
		got := regexp.MustCompile(`\+0x[0-9a-f]*`).ReplaceAllString(chain(t, &f.Process, 0), "")
		if walked := strings.HasPrefix(got, "x.exe x.exe x.exe "); walked != (i < 2) || len(notes(f)) != 1+i/2 {
			t.Errorf("%d: %s, %q", i, got, notes(f))
		}
	}
}

// TestDamaged: what is cut off, or lies, costs itself.
func TestDamaged(t *testing.T) {
	oracle.Long(t)
	ctx := contextOf(arch.AMD64, func(arch.Reg) uint64 { return 0x2000 })
	d := dump{cpu: 9, os: linux, threads: []thread{{7, ctx, "a"}, {8, ctx, "b"}}, memory: []part{{0x2000, make([]byte, 64)}}, crashed: 7, code: 11,
		modules: []loaded{{0x1000, 0x3000, 1, "/a", nil}, {0x2000, 0x3000, 1, "/b", []byte("RSDS and so on")}, {0x8000, 0x1000, 0, "", nil}}}
	whole := d.build()
	f := open(t, whole, options(t))
	if got := strings.Join(notes(f), "|"); got != "module /b overlaps the one before: it is left out|/a: no such file; frames in a are found without it|"+
		"a module without a name: no such file; frames in what is at 0x8000 are found without it" {
		t.Errorf("notes %q", got)
	}
	for i := range whole {
		try(t, whole[:i])
	}
	for i := range whole {
		for _, v := range []byte{0, 1, 0x7f, 0xff} {
			b := bytes.Clone(whole)
			b[i] = v
			if i%7 == 0 {
				try(t, b)
			}
		}
	}
	for _, c := range []struct {
		b    []byte
		want error
	}{
		{[]byte("\x7fELF"), ErrNotMinidump}, {whole[:20], module.ErrTruncated}, {whole[:len(whole)-1], module.ErrTruncated},
		{(&dump{cpu: 9, os: linux}).build(), module.ErrMalformed}, {(&dump{cpu: 3, os: linux}).build(), module.ErrUnsupported},
	} {
		var e *Error
		if _, err := New("x.dmp", c.b, options(t)); !errors.Is(err, c.want) || !errors.As(err, &e) {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
}

// plain are options that open no file.
func plain() Options {
	return Options{
		Mods:  func(path, id string) *unwind.Module { return unwind.NewModule(path, id, nil) },
		Image: func(img *module.Image) *unwind.Module { return unwind.NewModule(img.Name(), "", nil) },
		Files: &module.Locator{DebugDirs: []string{}},
	}
}

// try reads and walks.
func try(t testing.TB, b []byte) {
	o := plain()
	defer o.Files.Close()
	f, err := New("x.dmp", b, o)
	if err != nil {
		return
	}
	defer f.Close()
	if _, err := stacks.Walk(&f.Process, stacks.Options{}); err != nil {
		t.Fatal(err)
	}
}

// FuzzMinidump: no bytes cause a panic.
func FuzzMinidump(f *testing.F) {
	for _, b := range shapes() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) { try(t, b) })
}
