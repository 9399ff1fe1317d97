package compact

import (
	"debug/elf"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/rows/rowstest"
)

// emit emits, loads and verifies a table.
func emit(t testing.TB, ref *rows.Table) *Table {
	t.Helper()
	b, err := Emit(ref)
	if err != nil {
		t.Fatal(err)
	}
	ct, err := Load(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := Verify(ct, ref, 1); err != nil {
		t.Fatal(err)
	}
	return ct
}

// readELF builds the rows of a file.
func readELF(t testing.TB, path string) (ref *rows.Table, ehFrame int) {
	t.Helper()
	e, err := elf.Open(path)
	if err != nil {
		t.Skipf("no %s", path)
	}
	defer e.Close()
	in := dwarf.Sections{Machine: arch.ByELF(uint16(e.Machine)), Order: binary.ByteOrder(e.ByteOrder), AddrSize: 8}
	if e.Class == elf.ELFCLASS32 {
		in.AddrSize = 4
	}
	for _, s := range e.Sections {
		if s.Name == ".eh_frame" && s.Type != elf.SHT_NOBITS {
			b, err := s.Data()
			if err != nil {
				t.Fatal(err)
			}
			in.EHFrame = append(in.EHFrame, dwarf.Section{Name: s.Name, Addr: arch.Vaddr(s.Addr), Data: b})
			ehFrame += len(b)
		}
	}
	ref, _ = dwarf.New(in).Build(dwarf.EHFrame)
	return ref, ehFrame
}

const libc = "/lib/x86_64-linux-gnu/libc.so.6"

func TestFiles(t *testing.T) {
	files := []string{libc, "/lib64/ld-linux-x86-64.so.2", "/usr/aarch64-linux-gnu/lib/libc.so.6", "/usr/aarch64-linux-gnu/lib/libstdc++.so.6", os.Args[0]}
	for _, f := range files {
		ref, size := readELF(t, f)
		if len(ref.Rows) == 0 {
			continue
		}
		st := emit(t, ref).Stats()
		t.Logf("%s: %+v, %.3f of .eh_frame", f, st, float64(st.Bytes)/float64(size))
	}
}

func TestRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		mach := []*arch.Machine{arch.AMD64, arch.ARM64, arch.ByELF(arch.EM_386)}[i%3]
		emit(t, rowstest.Table(r, mach, r.IntN(300)))
	}
}
