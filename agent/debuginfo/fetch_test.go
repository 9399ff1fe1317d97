package debuginfo

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/unspool/unspool/internal/elfnote"
	"github.com/unspool/unspool/internal/oracle"
)

// sparse makes a copy of a program that claims n headers of sections, in a hole at its end, and returns its path and its build ID.
func sparse(t *testing.T, n uint64) (name, buildID string) {
	t.Helper()
	b, err := os.ReadFile("/bin/sleep")
	if err != nil || elf.Class(b[elf.EI_CLASS]) != elf.ELFCLASS64 {
		oracle.Lacks(t, "/bin/sleep")
	}
	buildID = hex.EncodeToString(elfnote.BuildID.In(bytes.NewReader(b)))
	off := (uint64(len(b)) + 4095) &^ 4095
	binary.LittleEndian.PutUint64(b[40:], off) // e_shoff
	binary.LittleEndian.PutUint32(b[60:], 0)   // e_shnum: the first section's sh_size has the number; e_shstrndx
	var first bytes.Buffer
	if err := binary.Write(&first, binary.LittleEndian, elf.Section64{Size: n}); err != nil {
		t.Fatal(err)
	}
	b = append(append(b, make([]byte, off-uint64(len(b)))...), first.Bytes()...)
	name = filepath.Join(t.TempDir(), "sparse")
	if err := errors.Join(os.WriteFile(name, b, 0o755), os.Truncate(name, int64(off+64*n))); err != nil {
		t.Fatal(err)
	}
	return name, buildID
}

// TestSparse: a file that claims many headers in a hole costs no memory, whoever runs it.
func TestSparse(t *testing.T) {
	for _, n := range []uint64{1 << 18, 1 << 30} {
		name, id := sparse(t, n)
		pid := start(t, name, 0)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := find(wanted{path: name, buildID: id, pids: []int32{pid}})
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, errGone) || took > 8<<20 {
			t.Errorf("%d headers: %v, %d bytes", n, err, took)
		}
	}
}

// TestFetch: what package module looks at has been read before: headers, names of sections, and notes.
func TestFetch(t *testing.T) {
	oracle.Need(t, "gcc")
	m := program(t, t.TempDir(), "aabbccdd", "-g")
	f := mustOpen(t, m.Path)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	var got reads
	if got.ReaderAt = f; !fetch(&got, st.Size()) {
		t.Fatal("it claims too much")
	}
	e, err := elf.NewFile(f)
	if err != nil {
		t.Fatal(err)
	}
	var head elf.Header64
	if err := binary.Read(io.NewSectionReader(f, 0, 64), e.ByteOrder, &head); err != nil {
		t.Fatal(err)
	}
	want := map[string][2]int64{
		"header": {0, 64}, "segments": {int64(head.Phoff), int64(head.Phoff) + int64(len(e.Progs))*56}, "sections": {int64(head.Shoff), int64(head.Shoff) + int64(len(e.Sections))*64},
	}
	for _, p := range e.Progs {
		if p.Type == elf.PT_NOTE {
			want["segment of notes"] = [2]int64{int64(p.Off), int64(p.Off + p.Filesz)}
		}
	}
	for _, s := range e.Sections {
		if s.Type == elf.SHT_NOTE || s.Name == ".shstrtab" {
			want[s.Name] = [2]int64{int64(s.Offset), int64(s.Offset + s.FileSize)}
		}
	}
	if len(want) < 6 {
		t.Errorf("the program has no notes: %v", want)
	}
	for what, r := range want {
		if !slices.ContainsFunc(got.list, func(have [2]int64) bool { return have[0] <= r[0] && r[1] <= have[1] }) {
			t.Errorf("%s at %v is not read: %v", what, r, got.list)
		}
	}
}

// reads notes what is read of a file.
type reads struct {
	io.ReaderAt
	list [][2]int64
}

func (r *reads) ReadAt(p []byte, off int64) (int, error) {
	n, err := r.ReaderAt.ReadAt(p, off)
	r.list = append(r.list, [2]int64{off, off + int64(n)})
	return n, err
}
