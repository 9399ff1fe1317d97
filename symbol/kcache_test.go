package symbol

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// TestKept compares names of the running kernel that come from the file with those that come from /proc/kallsyms.
func TestKept(t *testing.T) {
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
		t.Error("/proc/kallsyms was read for an address in the kernel proper")
	}
	// With another kernel's build ID, nothing that is kept gives names either.
	other := New(Options{CacheDir: dir, KernelID: "00112233445566778899aabbccddeeff00112233"})
	if s, _, ok := other.Kernel(lo + 1000); ok {
		t.Errorf("another kernel's address is named %+v", s)
	}
}

// Every truncation and flipped bit, and another boot's file, are refused; then the kernel is asked.
func TestKeptDamaged(t *testing.T) {
	const boot = "01234567-0123-0123-0123-0123456789ab"
	k := &kernel{}
	if err := k.read(bytes.NewReader([]byte(kallsyms))); err != nil {
		t.Fatal(err)
	}
	b := k.encode(boot)
	var back kernel
	if err := back.decode(b, boot); err != nil || back.funcs.len() != 3 || back.bounds != k.bounds {
		t.Fatalf("%v: %+v, %+v", err, back.funcs, back.bounds)
	}
	if back.decode(b, "x"+boot[1:]) == nil {
		t.Error("another boot's file is taken")
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
	new(kernel).keep(filepath.Join(dir, "nowhere")) // no error, no file
}

func FuzzKept(f *testing.F) {
	const boot = "01234567-0123-0123-0123-0123456789ab"
	k := &kernel{}
	if err := k.read(bytes.NewReader([]byte(kallsyms))); err != nil {
		f.Fatal(err)
	}
	f.Add(k.encode(boot)[keptHead:], uint32(3), uint32(10))
	f.Fuzz(func(t *testing.T, body []byte, n, size uint32) {
		b := append(bytes.Clone(k.encode(boot)[:keptHead]), body...)
		binary.LittleEndian.PutUint32(b[48:], n)
		binary.LittleEndian.PutUint32(b[52:], size)
		seal(b)
		var back kernel
		if back.decode(b, boot) == nil {
			for i := range back.funcs.len() {
				f := back.funcs.at(i)
				_, _ = back.names[f.name:][:f.len], back.mods[f.mod]
			}
		}
	})
}

// noteOf asks for the kernel's names, and returns why there are none.
func noteOf(r *Resolver) string {
	r.Kernel(0)
	return r.KernelNote()
}
