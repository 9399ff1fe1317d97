package symbol

import (
	"bytes"
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// TestKept compares names of the running kernel that come from the file with those that come from /proc/kallsyms.
func TestKept(t *testing.T) {
	oracle.Long(t)
	dir := t.TempDir()
	fresh := New(Options{CacheDir: dir})
	if note := noteOf(fresh); note != "" {
		t.Skip("this test lacks the kernel's symbols: " + note)
	}
	made, err := os.Stat(filepath.Join(dir, keptName))
	if err != nil {
		t.Fatal(err)
	}
	again := New(Options{CacheDir: dir})
	plain := New(Options{})
	lo, hi, ok := plain.KernelText()
	if !ok {
		t.Skip("this test lacks a kernel with _stext and _etext")
	}
	for a := lo - 64; a < hi+64; a += 509 {
		s1, m1, ok1 := again.Kernel(a)
		s2, m2, ok2 := plain.Kernel(a)
		if s1 != s2 || m1 != m2 || ok1 != ok2 {
			t.Fatalf("%#x: kept %+v %s %v, asked %+v %s %v", a, s1, m1, ok1, s2, m2, ok2)
		}
	}
	if now, err := os.Stat(filepath.Join(dir, keptName)); err != nil || !os.SameFile(now, made) {
		t.Errorf("the file was written again although it is good (%v)", err)
	}
	inside := New(Options{CacheDir: dir})
	inside.Kernel(lo + 1000)
	if inside.kernel.funcs != nil {
		t.Errorf("/proc/kallsyms was read for %#x, an address in the kernel proper: %d functions, want none", lo+1000, inside.kernel.funcs.len())
	}
	// With another kernel's build ID, nothing that is kept gives names either.
	other := New(Options{CacheDir: dir, KernelID: "00112233445566778899aabbccddeeff00112233"})
	if s, _, ok := other.Kernel(lo + 1000); ok {
		t.Errorf("another kernel's address is named %+v", s)
	}
}

// TestKeptAfter asks for addresses outside of the kernel proper. Of a recording that was finished before the file was written, the file answers;
// of others, /proc/kallsyms does, and the file is written again where that helps the next one.
func TestKeptAfter(t *testing.T) {
	dir := t.TempDir()
	if note := noteOf(New(Options{CacheDir: dir})); note != "" {
		t.Skip("this test lacks the kernel's symbols: " + note)
	}
	path := filepath.Join(dir, keptName)
	inode := func() fs.FileInfo {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	first := inode()
	for _, c := range []struct {
		what         string
		by           time.Time
		asks, writes bool
	}{
		{"what runs", time.Time{}, true, false},
		{"a recording of an hour ago", time.Now().Add(-time.Hour), false, false},
		{"a recording that may be newer than the file", first.ModTime(), true, true},
	} {
		r := New(Options{CacheDir: dir, RecordedBy: c.by})
		before := inode()
		r.Kernel(^uint64(0) - 1<<12)
		if asked := r.kernel.funcs != nil; asked != c.asks {
			t.Errorf("%s: /proc/kallsyms was read: %v", c.what, asked)
		}
		if written := !os.SameFile(before, inode()); written != c.writes {
			t.Errorf("%s: the file was written: %v", c.what, written)
		}
	}
	// All functions are in the file, not only those of the kernel proper.
	kept, plain := New(Options{CacheDir: dir, RecordedBy: time.Now().Add(-time.Hour)}), New(Options{})
	all := plain.loadKernel()
	for i := 0; i < all.funcs.len(); i += 7 {
		f := all.funcs.at(i)
		s1, m1, ok1 := kept.Kernel(f.start)
		s2, m2, ok2 := plain.Kernel(f.start)
		if f.mod == 0 && (s1 != s2 || m1 != m2 || ok1 != ok2) { // what other programs compile comes and goes
			t.Fatalf("%#x: kept %+v %s %v, asked %+v %s %v", f.start, s1, m1, ok1, s2, m2, ok2)
		}
	}
	if kept.kernel.funcs != nil {
		t.Errorf("/proc/kallsyms was read for functions that are in %s: %d functions, want none", path, kept.kernel.funcs.len())
	}
}

// Every truncation and flipped bit, and another boot's file, are refused; then the kernel is asked.
func TestKeptDamaged(t *testing.T) {
	const boot = "01234567-0123-0123-0123-0123456789ab"
	k := &kernel{asOf: time.Unix(1234567890, 987654321)}
	if err := k.read(bytes.NewReader([]byte(kallsyms))); err != nil {
		t.Fatal(err)
	}
	b := bytes.Join(k.encode(boot), nil)
	var back kernel
	if err := back.decode(b, boot); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(back.funcs, k.funcs) || !bytes.Equal(back.names, k.names) || !slices.Equal(back.mods, k.mods) || back.bounds != k.bounds || !back.asOf.Equal(k.asOf) {
		t.Fatalf("decoded\n%+v\nencoded\n%+v", &back, k)
	}
	if len(k.mods) < 2 {
		t.Errorf("this test has no functions of modules, but those of %q only", k.mods)
	}
	if back.decode(b, "x"+boot[1:]) == nil {
		t.Errorf("a file of boot %s, with %d functions, is taken on boot %s; want an error", boot, back.funcs.len(), "x"+boot[1:])
	}
	for i := range b {
		if back.decode(b[:i], boot) == nil {
			t.Errorf("cut to %d bytes, it is taken", i)
		}
		c := bytes.Clone(b)
		c[i] ^= 4
		if back.decode(c, boot) == nil {
			t.Errorf("with byte %d changed, it is taken", i)
		}
	}
	dir := t.TempDir()
	for _, bad := range [][]byte{nil, []byte("garbage"), b} {
		if err := os.WriteFile(filepath.Join(dir, keptName), bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := new(kernel).loadKept(dir); err == nil {
			t.Errorf("%d bytes are taken", len(bad))
		}
	}
	new(kernel).keep(filepath.Join(dir, "nowhere"), false) // no error, no file
}

func FuzzKept(f *testing.F) {
	const boot = "01234567-0123-0123-0123-0123456789ab"
	k := &kernel{}
	if err := k.read(bytes.NewReader([]byte(kallsyms))); err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.Join(k.encode(boot), nil)[keptHead:], uint32(3), uint32(10))
	f.Fuzz(func(t *testing.T, body []byte, n, size uint32) {
		b := append(bytes.Clone(k.encode(boot)[0]), body...)
		binary.LittleEndian.PutUint32(b[48:], n)
		binary.LittleEndian.PutUint32(b[52:], size)
		seal(b)
		var back kernel
		r := New(Options{})
		defer r.Close()
		if back.decode(b, boot) == nil {
			for i := range back.funcs.len() {
				r.kernelSymbol(&back, back.funcs.start(i))
			}
		}
	})
}

// noteOf asks for the kernel's names, and returns why there are none.
func noteOf(r *Resolver) string {
	r.Kernel(0)
	return r.KernelNote()
}

// TestMadeCode: what is kept has no code that the kernel makes, and a recording that is over has no names of what of it there is now.
func TestMadeCode(t *testing.T) {
	const more = `ffffffffc0200000 t bpf_prog_1111_one	[bpf]
ffffffffc0200100 t bpf_trampoline_22	[bpf]
ffffffffc0200200 t ftrace_trampoline	[__builtin__ftrace]
ffffffffc0200300 t late_read	[late]
`
	now, over := kernelOf(t, kallsyms+more, Options{}), kernelOf(t, kallsyms+more, Options{Recorded: true, KernelText: 0xffffffff81000000, KernelTextName: "_text"})
	defer now.Close()
	defer over.Close()
	for a, want := range map[uint64]string{0xffffffffc0200010: "bpf_prog_1111_one", 0xffffffffc0200110: "bpf_trampoline_22", 0xffffffffc0200210: "ftrace_trampoline"} {
		if s, _, _ := now.Kernel(a); s.Name != want {
			t.Errorf("%#x is %+v, want %s", a, s, want)
		}
		if s, mod, ok := over.Kernel(a); ok {
			t.Errorf("in a recording that is over, %#x is %+v of %s", a, s, mod)
		}
	}
	const boot = "01234567-0123-0123-0123-0123456789ab"
	b := bytes.Join(whole(now.loadKernel()).encode(boot), nil)
	for _, name := range []string{"bpf_", "ftrace_trampoline", "__builtin__"} {
		if bytes.Contains(b, []byte(name)) {
			t.Errorf("%s is kept", name)
		}
	}
	var back kernel
	if err := back.decode(b, boot); err != nil {
		t.Fatal(err)
	}
	for a, want := range map[uint64]string{0xffffffff81000110: "__global", 0xffffffffc0000010: "ext4_read", 0xffffffffc0200310: "late_read", 0xffffffffc0200010: "", 0xffffffffc0200210: ""} {
		s1, m1, ok1 := over.kernelSymbol(&back, a)
		s2, m2, ok2 := over.Kernel(a)
		if s1.Name != want || s1 != s2 || m1 != m2 || ok1 != ok2 {
			t.Errorf("%#x: kept %+v %s, asked %+v %s, want %s", a, s1, m1, s2, m2, want)
		}
	}
}

// whole returns all functions of k in memory, without the code that the kernel makes.
func whole(k *kernel) *kernel {
	if k.under != nil {
		return k.under
	}
	return k.part(func(mod string) bool { return !made(mod) })
}
