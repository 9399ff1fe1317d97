package elfcopy

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// hand returns a file of one segment of 0x3000 bytes of memory at an address, and two sections.
func hand(vaddr, align uint64) []byte {
	b := make([]byte, ehsize+phentsize+2*shentsize+16)
	copy(b, "\x7fELF\x02\x01\x01")
	for at, v := range map[int]uint16{16: 3, 18: 62, 52: ehsize, 54: phentsize, 56: 1, 58: shentsize, 60: 2, 62: 1} {
		le.PutUint16(b[at:], v)
	}
	le.PutUint64(b[32:], ehsize)
	le.PutUint64(b[40:], ehsize+phentsize)
	le.PutUint32(b[ehsize:], ptLoad)
	for at, v := range map[int]uint64{16: vaddr, 32: uint64(len(b)), 40: 0x3000, 48: align} {
		le.PutUint64(b[ehsize+at:], v)
	}
	le.PutUint64(b[ehsize+phentsize+shentsize+24:], uint64(len(b)-16))
	le.PutUint64(b[ehsize+phentsize+shentsize+32:], 16)
	return b
}

const data = "nine byte"

func add(b []byte) ([]byte, error) {
	f, err := Read(b)
	if err != nil {
		return nil, err
	}
	return f.Add(1, func(addr uint64) ([]Section, error) {
		return []Section{{Name: ".a", Type: 1, Program: 0x60000001, Align: 8, Bytes: []byte(data)}, {Name: ".b", Type: 1, Align: 64, Bytes: []byte(data)}}, nil
	})
}

// TestAlign makes copies of files whose segments are at different distances from their places in the file: each segment's address and offset differ by
// a multiple of its alignment.
func TestAlign(t *testing.T) {
	for _, c := range []struct{ vaddr, align, want uint64 }{
		{0, 0, 0x1000}, {0, 1 << 16, 1 << 16}, {0x400000, 0x200000, 0x200000}, {0x401000, 0x200000, 0x1000}, {0x10000, 1 << 21, 1 << 16}, {0x400800, 0x1000, 0},
	} {
		out, err := add(hand(c.vaddr, c.align))
		if c.want == 0 {
			if err == nil || !strings.Contains(err.Error(), "it is not aligned to pages") {
				t.Errorf("%#x: %v", c.vaddr, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		f, err := Read(out)
		if err != nil {
			t.Fatal(err)
		}
		p := f.loads[1]
		if p.align != c.want || (p.vaddr-p.off)&(p.align-1) != 0 || p.vaddr&(minPage-1) != 0 || p.vaddr < c.vaddr+0x3000 {
			t.Errorf("%#x, aligned to %#x: a segment at %#x, %#x of the file, aligned to %#x", c.vaddr, c.align, p.vaddr, p.off, p.align)
		}
		if !f.Has(".a", 0) || !f.Has(".b", 0) || !f.Has("", 0x60000001) || f.Has(".c", 7) {
			t.Errorf("%#x, aligned to %#x: the copy has .a %v, .b %v, program header 0x60000001 %v, .c %v; want all but .c",
				c.vaddr, c.align, f.Has(".a", 0), f.Has(".b", 0), f.Has("", 0x60000001), f.Has(".c", 7))
		}
	}
}

// TestBehind refuses a file that something was appended to: it would not find that in a copy. Zeros are nothing.
func TestBehind(t *testing.T) {
	b := hand(0, 0)
	if _, err := add(append(bytes.Clone(b), make([]byte, 100)...)); err != nil {
		t.Error(err)
	}
	if _, err := add(append(bytes.Clone(b), "\x00PK..\x00"...)); err == nil || !strings.Contains(err.Error(), "5 B follow at 0x108, behind all segments and sections") {
		t.Errorf("an archive: %v", err)
	}
}

// TestInterpreter tells dynamic linkers from programs that link themselves, and from libraries with an entry point.
func TestInterpreter(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc", "musl-gcc", "strip")
	dir := t.TempDir()
	src := filepath.Join(dir, "a.c")
	if err := os.WriteFile(src, []byte("#include <stdio.h>\nint f(void) { return puts(\"\"); }\nint main(void) { return f(); }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused := func(path string) bool {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Read(b)
		if err != nil && !strings.Contains(err.Error(), "a dynamic linker") {
			t.Errorf("%s: %v", path, err)
		}
		return err != nil
	}
	for _, path := range []string{"/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"} {
		if !refused(path) {
			t.Errorf("%s is not refused", path)
		}
	}
	for _, args := range []string{"gcc", "gcc -static", "gcc -static-pie", "gcc -static-pie -s", "gcc -no-pie", "musl-gcc", "musl-gcc -static",
		"gcc -shared -fPIC -Wl,-e,f", "gcc -shared -fPIC -Wl,-e,f -Wl,-soname,a.so"} {
		to := filepath.Join(dir, "a")
		cmd := strings.Fields(args)
		if out, err := exec.Command(cmd[0], append(cmd[1:], "-o", to, src)...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", args, err, out)
		}
		if refused(to) {
			t.Errorf("%s: refused", args)
		}
	}
}

// FuzzAdd adds sections to any bytes: a copy begins with the file, but for its headers' places.
func FuzzAdd(f *testing.F) {
	if _, err := add(hand(0, 0)); err != nil {
		f.Fatal(err)
	}
	f.Add(hand(0, 0))
	if b, err := os.ReadFile("/bin/true"); err == nil {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		out, err := add(b)
		if !bytes.Equal(b, before) {
			t.Fatalf("Add changed the file that it was given: %d bytes, error %v", len(b), err)
		}
		if err != nil {
			return
		}
		if len(out) > 3*len(b)+maxHole+1<<17 {
			t.Errorf("%d bytes of %d", len(out), len(b))
		}
		if !bytes.Equal(out[ehsize:len(b)], b[ehsize:]) || bytes.Count(out[len(b):], []byte(data)) < 2 {
			t.Errorf("the copy, of %d bytes, is not the file, of %d, with sections behind it: it has the file's bytes %v; behind them, %q is found %d times, want 2 or more",
				len(out), len(b), bytes.Equal(out[ehsize:len(b)], b[ehsize:]), data, bytes.Count(out[len(b):], []byte(data)))
		}
		if f, err := Read(out); err == nil && !f.Has("", 0x60000001) {
			t.Errorf("the copy, of %d bytes, has no program header 0x60000001, which was added to the file of %d", len(out), len(b))
		}
	})
}
