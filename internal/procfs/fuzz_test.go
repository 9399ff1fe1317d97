package procfs

import (
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"
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
