package procfs

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"
)

func FuzzParseMappings(f *testing.F) {
	b, _ := os.ReadFile("/proc/self/maps")
	f.Add(b)
	f.Add([]byte("7f10-7f00 r-xp 0 0:0 0\n7f00 r-xp 0 0:0 0\n7f00-7f10 r-x 0 0:0 0\n7f00-7f10 rwxs 0 0:0 0 a\\012b\nffffffffff600000-100000000000000 --xp 0 0:0 0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range ParseMappings(b) {
			if m.Lo >= m.Hi {
				t.Errorf("%+v", m)
			}
		}
	})
}

// TestFileBuildID: a file may be as large as it likes to say.
func TestFileBuildID(t *testing.T) {
	const note = "\x04\x00\x00\x00\x04\x00\x00\x00\x03\x00\x00\x00GNU\x00abcd"
	for class, b := range map[elf.Class][]byte{
		elf.ELFCLASS64: encode(elf.Header64{Phoff: 64, Phentsize: 56, Phnum: 2, Shoff: 256, Shentsize: 64, Shnum: 2, Shstrndx: 1},
			elf.Prog64{Type: uint32(elf.PT_NOTE), Filesz: 1 << 33}, elf.Prog64{Type: uint32(elf.PT_NOTE), Off: 176, Filesz: 20}, []byte(note),
			make([]byte, 124), elf.Section64{Type: uint32(elf.SHT_STRTAB), Size: 1 << 33}),
		elf.ELFCLASS32: encode(elf.Header32{Phoff: 52, Phentsize: 32, Phnum: 1}, elf.Prog32{Type: uint32(elf.PT_NOTE), Off: 84, Filesz: 20}, []byte(note)),
	} {
		copy(b, elf.ELFMAG)
		b[elf.EI_CLASS], b[elf.EI_DATA], b[elf.EI_VERSION] = byte(class), byte(elf.ELFDATA2LSB), 1
		path := filepath.Join(t.TempDir(), "sparse")
		if err := errors.Join(os.WriteFile(path, b, 0o600), os.Truncate(path, 1<<34)); err != nil {
			t.Skip(err)
		}
		if id, ok := FileBuildID(path, 0); string(id) != "abcd" || !ok {
			t.Errorf("%v: %q, %v", class, id, ok)
		}
	}
}

// TestLongBuildID: a build ID that the kernel would not find is none.
func TestLongBuildID(t *testing.T) {
	for n, want := range map[uint32]string{maxBuildID: "a build ID of 20 byt", maxBuildID + 1: ""} {
		b := encode(elf.Header64{Phoff: 64, Phentsize: 56, Phnum: 1}, elf.Prog64{Type: uint32(elf.PT_NOTE), Off: 120, Filesz: 40}, uint32(4), n, uint32(3), []byte("GNU\x00a build ID of 20 bytes..."))
		copy(b, elf.ELFMAG)
		b[elf.EI_CLASS], b[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
		path := filepath.Join(t.TempDir(), "long")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if id, ok := FileBuildID(path, 0); string(id) != want || !ok {
			t.Errorf("%d bytes: %q, %v; want %q", n, id, ok, want)
		}
	}
}

// TestExiting: a thread ends from the flag on until it is a zombie, whatever its name is.
func TestExiting(t *testing.T) {
	for text, want := range map[string]bool{
		"1 (a) R 0 1 1 0 -1 4194308 0": true, "1 (a) 9) D 0 1 1 0 -1 4 0": true, "1 (a) R 0 1 1 0 -1 4194304 0": false, "1 (a) Z 0 1 1 0 -1 4 0": false,
		"1 (a) X 0 1 1 0 -1 4 0": false, "1 (a) R 0 1 1 0 -1": false, "1 (a) R 0 1 1 0 -1 x": false, "": false, "1 (a)": false,
	} {
		if got := Exiting([]byte(text)); got != want {
			t.Errorf("Exiting(%q) = %v, want %v", text, got, want)
		}
	}
}

func encode(parts ...any) (b []byte) {
	for _, p := range parts {
		b, _ = binary.Append(b, binary.LittleEndian, p)
	}
	return b
}

func TestState(t *testing.T) {
	for text, want := range map[string]byte{"1 (a) b) R 1": 'R', "1 (x) S": 'S', "": 0, "1 (x)": 0, "1 (x) ": 0} {
		if got := State([]byte(text)); got != want {
			t.Errorf("%q: %c, want %c", text, got, want)
		}
	}
}

// TestSegments: a process's code and data are in its program's segments, and its stack is not.
func TestSegments(t *testing.T) {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	lo, hi := Segments(text)
	code, _, _, _ := runtime.Caller(0)
	data, stack := uint64(uintptr(unsafe.Pointer(&table))), uint64(uintptr(unsafe.Pointer(&lo)))
	if in := func(at uint64) bool { return lo <= at && at < hi }; !in(uint64(code)) || !in(data) || in(stack) {
		t.Errorf("segments from %#x to %#x, code at %#x, data at %#x, stack at %#x", lo, hi, code, data, stack)
	}
	for _, text := range []string{"", "1 (a", "1 (a) R 1 2", string(bytes.Replace(text, fmt.Append(nil, lo), []byte("1x"), -1)), "1 (a)" + strings.Repeat(" 0", 50)} {
		if lo, hi := Segments([]byte(text)); lo != 0 || hi != 0 {
			t.Errorf("%q: segments from %#x to %#x", text, lo, hi)
		}
	}
}

// table is initialised data.
var table = [2]int{1, 2}
