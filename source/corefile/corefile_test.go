package corefile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// options make modules that load nothing.
func options() Options {
	return Options{
		Mods:  func(path, id string) *unwind.Module { return unwind.NewModule(path, id, nil) },
		Image: func(img *module.Image) *unwind.Module { return unwind.NewModule(img.Name(), "", nil) },
		Files: &module.Locator{DebugDirs: []string{}},
	}
}

func open(t testing.TB, b []byte) *File {
	t.Helper()
	f, err := New("core", b, options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestProcess(t *testing.T) {
	for _, m := range []*arch.Machine{arch.AMD64, arch.ARM64} {
		for _, tail := range []bool{false, true} {
			c := sample()
			c.machine, c.tail = m, tail
			f := open(t, c.build())
			if f.PID != 12 || f.Machine != m || strings.Join(f.Command, "|") != "/bin/program|-x" || f.Exe != "/nonexistent/program" {
				t.Errorf("PID %d, %s, %q, %q", f.PID, f.Machine.Name, f.Command, f.Exe)
			}
			if want := (source.Signal{Number: 11, Code: 1, Addr: 0x10, HasAddr: true}); f.Signal == nil || *f.Signal != want {
				t.Errorf("signal %+v, want %+v", f.Signal, want)
			}
			var got []string
			for i := range f.Threads {
				th := &f.Threads[i]
				got = append(got, fmt.Sprintf("%d %q %#x %#x", th.TID, th.Name, th.Snapshot.PC, th.Snapshot.Regs[m.Slot(m.SP)]))
			}
			if want := `12 "program" 0x401010 0x7ff010, 10 "" 0x401020 0x8ff010, 11 "" 0x401030 0x7ff020`; strings.Join(got, ", ") != want {
				t.Errorf("threads %s\n    want %s", strings.Join(got, ", "), want)
			}
			if s := &f.Threads[0].Snapshot; m == arch.AMD64 && (s.Regs[0] != 1010 || s.Regs[6] != 1004 || s.Regs[12] != 1003 || s.Known != 1<<17-1) {
				t.Errorf("registers %v, known %#x", s.Regs, s.Known) // rax, rbp and r12 are words 10, 4 and 3
			}
			maps := f.Space.Mappings()
			if len(maps) != 1 || maps[0].Lo != 0x401000 || maps[0].Off != 0x1000 || maps[0].Module.Path != "/nonexistent/program (lost)" {
				t.Errorf("mappings %+v", maps)
			}
			wantNotes(t, f, `/nonexistent/program: file does not exist`, `1 of 3 threads' stacks`)
		}
	}
}

// TestSigns: a core of AArch64 says which bits signatures use, for each thread; nonsense is not believed.
func TestSigns(t *testing.T) {
	c := sample()
	c.machine = arch.ARM64
	c.threads[0].signs, c.threads[1].signs, c.threads[2].signs = 0x7f<<48, 7<<52, 1<<63
	f := open(t, c.build())
	for i, want := range []uint64{0x7f << 48, 7 << 52, 0} {
		if got := f.Threads[i].Snapshot.Signs; got != want {
			t.Errorf("thread %d: %#x, want %#x", f.Threads[i].TID, got, want)
		}
	}
	c.machine = arch.AMD64
	if f = open(t, c.build()); f.Threads[0].Snapshot.Signs != 0 {
		t.Errorf("on x86-64: %#x", f.Threads[0].Snapshot.Signs)
	}
}

// TestOtherMachine: a file for another machine than the core's is not used, though nothing else tells it from the one that was mapped.
func TestOtherMachine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	b := elfHead(1, 1, 0x3000)
	for _, m := range []*arch.Machine{arch.AMD64, arch.ARM64} {
		le.PutUint16(b[18:], m.ELF)
		if err := os.WriteFile(path, b, 0o700); err != nil {
			t.Fatal(err)
		}
		c := sample()
		c.machine, c.threads, c.mem[0].b = arch.ARM64, c.threads[:1], nil // the core has nothing of the file
		for i := range c.files {
			c.files[i].path = path
		}
		if f := open(t, c.build()); m == arch.ARM64 {
			wantNotes(t, f, `^1 files cannot be checked`)
		} else {
			wantNotes(t, f, `^`+path+` is for x86_64, but was recorded on aarch64; its frames are found without it$`)
		}
	}
}

// wantNotes checks that there are just these notes, in any order.
func wantNotes(t testing.TB, f *File, want ...string) {
	t.Helper()
	ok := len(want) == len(f.Notes)
	for _, w := range want {
		ok = ok && regexp.MustCompile(w).MatchString(strings.Join(f.Notes, "\n"))
	}
	if !ok {
		t.Errorf("notes %q, want %q", f.Notes, want)
	}
}

// A living process of which gcore has written a core has no signal, although there is a siginfo_t; the leader comes first.
// TestNoImage: who does not ask for images of the core's own memory gets modules without code.
func TestNoImage(t *testing.T) {
	c := sample()
	c.mem = append(c.mem, coreMemory{0x9ff000, 0x1000, elfHead(1, 1, 0x1000), 5})
	c.auxv = []uint64{atSYSINFOEHDR, 0x9ff000, 0, 0}
	o := options()
	o.Image = nil
	f, err := New("core", c.build(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var paths []string
	for _, m := range f.Space.Mappings() {
		if m.Module.Path == "[vdso]" {
			return
		}
		paths = append(paths, m.Module.Path)
	}
	t.Errorf("the core has no [vdso]: it maps %q, and notes %q", paths, f.Notes)
}

func TestNoSignal(t *testing.T) {
	c := sample()
	c.threads[0].tid, c.threads[1].tid = 10, 12
	c.signal = 0
	f := open(t, c.build())
	if f.Signal != nil || f.Threads[0].TID != 10 {
		t.Errorf("signal %+v, first TID %d", f.Signal, f.Threads[0].TID)
	}
	c.signal, c.code = 11, 0x80
	if f := open(t, c.build()); f.Signal == nil || f.Signal.HasAddr {
		t.Errorf("SI_KERNEL: %+v", f.Signal)
	}
}

// Notes go to a terminal.
func TestNotesPrintable(t *testing.T) {
	c := sample()
	c.threads = c.threads[:1]
	for i := range c.files {
		c.files[i].path = "/nonexistent/\x1b[2Jé\n"
	}
	wantNotes(t, open(t, c.build()), `^/nonexistent/\?\[2Jé\?: file does not exist`)
}

// No path leads to a device.
func TestDevice(t *testing.T) {
	c := sample()
	for i := range c.files {
		c.files[i].path = "/nonexistent/..//dev/full"
	}
	if p := open(t, c.build()).Space.Mappings()[0].Module.Path; p != "/dev/full (lost)" {
		t.Errorf("the file is %s", p)
	}
}

func TestMemory(t *testing.T) {
	f := open(t, sample().build())
	whole, half := &f.Threads[0].Snapshot.Mem, &f.Threads[1].Snapshot.Mem
	for _, c := range []struct {
		addr uint64
		want uint64
		ok   bool
	}{
		{0x7ff000, 0x0807060504030201, true},
		{0x7ff004, 0x0403020108070605, true},
		{0x7ffff8, 0x0807060504030201, true},
		{0x7ffff9, 0, false},
		{0x400ffc, 0, false}, // goes on where nothing is
		{0x401000, 0, false},
		{0x8ff7f8, 0x0909090909090909, true},
		{0x8ff7f9, 0, false},
		{0xfffffffffffffffc, 0, false},
	} {
		for _, m := range []struct {
			name string
			load func(uint64) (uint64, bool)
		}{{"whole", whole.Load}, {"half", half.Load}} {
			if v, ok := m.load(c.addr); v != c.want || ok != c.ok {
				t.Errorf("%s: Load(%#x) = %#x, %v, want %#x, %v", m.name, c.addr, v, ok, c.want, c.ok)
			}
		}
	}
	if whole.Bytes != nil || half.Lo != 0x8ff000 || len(half.Bytes) != 0x800 {
		t.Errorf("windows: %d bytes, %d at %#x", len(whole.Bytes), len(half.Bytes), half.Lo)
	}
}

// Memory that the core lacks is the file's where it could not be written to, and only if the file is the same.
func TestBehind(t *testing.T) {
	// This file is an ELF file in which nothing lies but its header, a page of numbers, and one more.
	content := sample().build()[:64]
	le.PutUint16(content[16:], 2) // ET_EXEC
	le.PutUint16(content[56:], 0) // no program headers
	content = append(content, bytes.Repeat([]byte{0xab}, 3*page-64)...)
	path := filepath.Join(t.TempDir(), "program")
	for _, x := range []struct {
		name   string
		change func(file []byte, c *core)
		ok     bool
		notes  []string
	}{
		{"same", func([]byte, *core) {}, true, nil},
		{"changed", func(f []byte, _ *core) { f[100]++ }, false, []string{"has changed since"}},
		{"writable", func(_ []byte, c *core) { c.mem[1].flags = 7 }, false, nil},
		{"unchecked", func(_ []byte, c *core) { c.mem[0].b = nil }, true, []string{"cannot be checked"}},
	} {
		c := sample()
		file := bytes.Clone(content)
		c.threads = c.threads[:1]
		for i := range c.files {
			c.files[i].path = path
		}
		c.mem[0].b = bytes.Clone(content[:page])
		x.change(file, c)
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		f := open(t, c.build())
		v, ok := f.Threads[0].Snapshot.Mem.Load(0x401000)
		if ok != x.ok || ok && v != 0xabababababababab {
			t.Errorf("%s: Load = %#x, %v", x.name, v, ok)
		}
		wantNotes(t, f, x.notes...)
	}
}

func TestErrors(t *testing.T) {
	edit := func(at int, b ...byte) []byte {
		out := sample().build()
		copy(out[at:], b)
		return out
	}
	// renamed has one note, of another owner.
	renamed := func(owner string) []byte {
		b := sample().build()
		note := binary.LittleEndian.AppendUint32(nil, uint32(len(owner)))
		note = append(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(note, 0), 1), owner...)
		note = append(note, make([]byte, -len(note)&3)...)
		copy(b[binary.LittleEndian.Uint64(b[64+8:]):], note) // the first segment has the notes
		binary.LittleEndian.PutUint64(b[64+32:], uint64(len(note)))
		return b
	}
	for _, c := range []struct {
		name  string
		b     []byte
		cause error
		text  string
	}{
		{"text", []byte("hello"), ErrNotCore, "not a core file"},
		{"short", sample().build()[:40], module.ErrTruncated, "header is cut off"},
		{"zstd", []byte("\x28\xb5\x2f\xfd..."), ErrCompressed, "zstd -d core"},
		{"gzip", []byte("\x1f\x8b..."), ErrCompressed, "gunzip"},
		{"xz", []byte("\xfd7zXZ\x00..."), ErrCompressed, "xz -d"},
		{"lz4", []byte("\x04\x22\x4d\x18..."), ErrCompressed, "lz4 -d"},
		{"executable", edit(16, 3), ErrNotCore, "give the core file first"},
		{"object", edit(16, 1), ErrNotCore, "ET_REL"},
		{"macOS", []byte("\xcf\xfa\xed\xfe\x07\x00\x00\x01\x03\x00\x00\x00\x04\x00\x00\x00"), module.ErrUnsupported, "a core file of macOS: only core files of Linux"},
		{"a program of macOS", []byte("\xcf\xfa\xed\xfe\x07\x00\x00\x01\x03\x00\x00\x00\x02\x00\x00\x00"), ErrNotCore, "not a core file"},
		{"Windows's kernel", []byte("PAGEDU64\x0f\x00\x00\x00\x00\x00\x00\x00"), module.ErrUnsupported, "Windows's kernel"},
		{"FreeBSD", edit(7, 9), module.ErrUnsupported, "a core file of FreeBSD: only those of Linux"},
		{"NetBSD", renamed("NetBSD-CORE@1"), module.ErrUnsupported, "a core file of NetBSD: only those of Linux"},
		{"OpenBSD", renamed("OpenBSD@100"), module.ErrUnsupported, "a core file of OpenBSD: only those of Linux"},
		{"32-bit", edit(4, 1), module.ErrUnsupported, "32-bit"},
		{"big-endian", edit(5, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, arch.EM_X86_64), module.ErrUnsupported, "big-endian"},
		{"machine", edit(18, 50), module.ErrUnsupported, "cores of machine-50 cannot be read"},
		{"no notes", edit(64, 6), module.ErrMalformed, "no NT_PRSTATUS"},
		{"size of headers", edit(54, 8), module.ErrMalformed, "program headers"},
	} {
		_, err := New("core", c.b, options())
		if !errors.Is(err, c.cause) || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%s: %v, want %v, %q", c.name, err, c.cause, c.text)
		}
	}
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{dir: "not a regular file", "/dev/ptmx": "not a regular file", fifo: "not a regular file", filepath.Join(dir, "none"): "no such file"} {
		if _, err := Open(path, options()); !strings.Contains(fmt.Sprint(err), text) {
			t.Errorf("Open(%s): %v, want %q", path, err, text)
		}
	}
}

// Wherever a core is cut, it gives what it has, or an error that says that it is cut off.
func TestCut(t *testing.T) {
	for _, tail := range []bool{false, true} {
		c := sample()
		c.tail = tail
		b := c.build()
		threads := 0
		for n := 64; n < len(b); n += 4 {
			f, err := New("core", b[:n], options())
			if err != nil {
				if threads > 0 {
					t.Fatalf("tail %v, cut at %d of %d: %v, but cut earlier there were %d threads", tail, n, len(b), err, threads)
				}
				if !errors.Is(err, module.ErrTruncated) {
					t.Fatalf("tail %v, cut at %d of %d: %v", tail, n, len(b), err)
				}
				continue
			}
			if len(f.Threads) < threads {
				t.Fatalf("cut at %d: %d threads, cut earlier there were %d", n, len(f.Threads), threads)
			}
			threads = len(f.Threads)
			if !strings.Contains(strings.Join(f.Notes, "\n"), "cut off") {
				t.Fatalf("cut at %d of %d: notes %q", n, len(b), f.Notes)
			}
			f.Close()
		}
		if want := map[bool]int{false: 3, true: 2}[tail]; threads != want {
			t.Errorf("tail %v: %d threads in the end", tail, threads)
		}
	}
}

// TestJudgedOnce: the file without a build ID that was compared with the core is the one that is used, whatever lies at its path afterwards; and a
// program that is not the core's is opened, and refused, once.
func TestJudgedOnce(t *testing.T) {
	content := sample().build()[:64]
	le.PutUint16(content[16:], 2) // ET_EXEC
	le.PutUint16(content[56:], 0) // no program headers
	content = append(content, bytes.Repeat([]byte{0xab}, 3*page-64)...)
	path := filepath.Join(t.TempDir(), "program")
	c := sample()
	c.threads = c.threads[:1]
	for i := range c.files {
		c.files[i].path = path
	}
	c.mem[0].b = bytes.Clone(content[:page])
	c.auxv = []uint64{atPHDR, c.files[0].lo, 0, 0}
	o := options()
	o.Exe = path
	judged := ""
	o.Mods = func(path, id string) *unwind.Module {
		t.Errorf("%s, build ID %q, would be opened again", path, id)
		return unwind.NewModule(path, id, nil)
	}
	o.Image = func(img *module.Image) *unwind.Module {
		if img.Name() == path {
			os.Remove(path)
			judged = string(img.Bytes()[:page])
		}
		return unwind.NewModule(img.Name(), "", nil)
	}
	write := func(b []byte) {
		t.Helper()
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(content)
	f, err := New("core", c.build(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	wantNotes(t, f)
	if v, ok := f.Threads[0].Snapshot.Mem.Load(0x401000); judged != string(content[:page]) || !ok || v != 0xabababababababab {
		t.Errorf("%d bytes were judged; memory %#x, %v", len(judged), v, ok)
	}

	content[100]++
	write(content)
	f, err = New("core", c.build(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	wantNotes(t, f, `program is not the program of this core: its headers`, `program: file does not exist; its frames`)
}

// TestPages: the mappings of a small file whose segments share a page of the file, as lld links, on systems with pages of 4, 16 and 64 KiB. The core
// has the file's beginning and nothing else of it: gcore's kind says where files were mapped, also as data, below; the other only where the
// program was.
func TestPages(t *testing.T) {
	segs := []struct {
		flags           uint32
		off, addr, size uint64
	}{{4, 0, 0, 0x5600}, {5, 0x5600, 0x15600, 0x1a00}, {6, 0x7000, 0x27000, 0x800}}
	const base = 0x400000
	for _, pages := range []uint64{1 << 12, 1 << 14, 1 << 16} {
		for _, kind := range []string{"files", "files and data", "linked"} {
			head := elfHead(len(segs), 1, page)
			le.PutUint16(head[18:], arch.ARM64.ELF)
			c := sample()
			c.machine, c.threads, c.files = arch.ARM64, c.threads[:1], nil
			var text fileRange
			for i, s := range segs {
				copy(head[64+56*i:], put(nil, uint32(1), s.flags, s.off, s.addr, uint64(0), s.size, s.size, uint64(1<<16)))
				in := s.addr % pages // what binfmt_elf does
				r := fileRange{lo: base + s.addr - in, hi: base + s.addr - in + (in+s.size+pages-1)/pages*pages, off: s.off - in, path: "/nonexistent/program"}
				if s.flags == 5 {
					text = r
				}
				if kind != "linked" {
					c.files = append(c.files, r)
				}
			}
			if kind == "files and data" {
				c.files = append(c.files, fileRange{lo: base - 1<<20, hi: base - 1<<20 + 1<<16, path: "/nonexistent/program"})
			}
			c.auxv = []uint64{atPHDR, base + 64, atPHNUM, uint64(len(segs)), atPAGESZ, pages, 0, 0}
			c.mem = append(c.mem[2:], coreMemory{base, page, head, 4})
			f := open(t, c.build())
			if maps := f.Space.Mappings(); len(maps) != 1 || uint64(maps[0].Lo) != text.lo || uint64(maps[0].Hi) != text.hi || maps[0].Off != text.off {
				t.Errorf("pages of %#x, %s: mappings %+v\nwant %+v", pages, kind, maps, text)
			}
		}
	}
}
