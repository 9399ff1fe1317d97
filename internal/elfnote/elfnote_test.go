package elfnote

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"slices"
	"testing"
)

func encode(order binary.ByteOrder, parts ...any) (b []byte) {
	for _, p := range parts {
		b, _ = binary.Append(b, order, p)
	}
	return b
}

// note makes a note of the owner GNU whose contents are not filled up.
func note(order binary.ByteOrder, typ uint32, desc string) []byte {
	return encode(order, uint32(4), uint32(len(desc)), typ, []byte("GNU\x00"), []byte(desc))
}

// before is a note whose contents end 4 bytes before the next multiple of 8. What stands between it and the next note depends on the alignment.
const before = "1234"

// TestFind: notes are aligned to 4 or 8 bytes, and a size past the end ends the search.
func TestFind(t *testing.T) {
	const id = "a build ID of more than 20 bytes"
	for _, o := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		at4, at8 := slices.Concat(note(o, 5, before), note(o, 3, id)), slices.Concat(note(o, 5, before), make([]byte, 4), note(o, 3, id))
		long := slices.Concat(note(o, 3, id), note(o, 3, id))
		o.PutUint32(long[4:], 0xffffffff)
		named := note(o, 3, id)
		o.PutUint32(named, 0xffffffff)
		for _, c := range []struct {
			what  string
			b     []byte
			align uint64
			want  string
		}{
			{"aligned to 4", at4, 4, id},
			{"without an alignment", at4, 0, id},
			{"aligned to 8", at8, 8, id},
			{"contents past the end", long, 4, ""},
			{"a name past the end", named, 4, ""},
			{"no contents", note(o, 3, ""), 4, ""},
			{"another type", note(o, 4, id), 4, ""},
			{"cut off", at4[:len(at4)-1], 4, ""},
		} {
			if got := BuildID.Find(c.b, o, c.align); string(got) != c.want {
				t.Errorf("%v, %s: %q, want %q", o, c.what, got, c.want)
			}
		}
		if got := GoBuildID.Find(note(o, 4, id), o, 4); got != nil {
			t.Errorf("%v: GNU's note of type 4 is Go's: %q", o, got)
		}
	}
}

// TestIn: segments are found in files of both classes and byte orders, and their notes by the segments' alignment.
func TestIn(t *testing.T) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		for _, align := range []uint64{4, 8} {
			notes := note(order, 5, before)
			notes = append(append(notes, make([]byte, align-4)...), note(order, 3, "abcd")...)
			n := uint64(len(notes))
			for class, b := range map[elf.Class][]byte{
				elf.ELFCLASS64: encode(order, elf.Header64{Phoff: 64, Phentsize: 56, Phnum: 2}, elf.Prog64{Type: uint32(elf.PT_LOAD)},
					elf.Prog64{Type: uint32(elf.PT_NOTE), Off: 176, Filesz: n, Align: align}, notes),
				elf.ELFCLASS32: encode(order, elf.Header32{Phoff: 52, Phentsize: 32, Phnum: 1},
					elf.Prog32{Type: uint32(elf.PT_NOTE), Off: 84, Filesz: uint32(n), Align: uint32(align)}, notes),
			} {
				copy(b, elf.ELFMAG)
				b[elf.EI_CLASS], b[elf.EI_DATA] = byte(class), byte(elf.ELFDATA2LSB)
				if order == binary.BigEndian {
					b[elf.EI_DATA] = byte(elf.ELFDATA2MSB)
				}
				if got := BuildID.In(bytes.NewReader(b)); string(got) != "abcd" {
					t.Errorf("%v, %v, aligned to %d: %q, want abcd", class, order, align, got)
				}
			}
		}
	}
}

func FuzzFind(f *testing.F) {
	f.Add(note(binary.LittleEndian, 3, "abcd"), uint64(4))
	f.Fuzz(func(t *testing.T, b []byte, align uint64) {
		if got := BuildID.Find(b, binary.LittleEndian, align); !bytes.Contains(b, got) {
			t.Errorf("Find(% x, %d) = % x", b, align, got)
		}
	})
}

func FuzzIn(f *testing.F) {
	self, _ := os.ReadFile("/proc/self/exe")
	f.Add(self[:min(len(self), 1<<12)])
	f.Fuzz(func(t *testing.T, b []byte) {
		if got := BuildID.In(bytes.NewReader(b)); !bytes.Contains(b, got) {
			t.Errorf("In(%d bytes) = % x", len(b), got)
		}
	})
}
