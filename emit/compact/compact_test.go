package compact

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
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
	img, err := module.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		oracle.Lacks(t, path)
	} else if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	f, err := dwarf.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	ref, _ = f.Build(dwarf.EHFrame)
	return ref, int(f.Sizes().EHFrame)
}

const libc = "/lib/x86_64-linux-gnu/libc.so.6"

func TestFiles(t *testing.T) {
	files := []string{libc, "/lib64/ld-linux-x86-64.so.2", "/usr/aarch64-linux-gnu/lib/libc.so.6", "/usr/aarch64-linux-gnu/lib/libstdc++.so.6", os.Args[0]}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			ref, size := readELF(t, f)
			if len(ref.Rows) == 0 && f != os.Args[0] { // Go puts nothing into .eh_frame
				t.Fatalf("%s: no rows", f)
			}
			st := emit(t, ref).Stats()
			t.Logf("%s: %+v, %.3f of .eh_frame", f, st, float64(st.Bytes)/float64(max(size, 1)))
		})
	}
}

func TestRandom(t *testing.T) {
	oracle.Long(t)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		mach := []*arch.Machine{arch.AMD64, arch.ARM64, arch.ByELF(arch.EM_386), arch.ByELF(20)}[i%4] // the last has no names for its registers
		emit(t, rowstest.Table(r, mach, r.IntN(300)))
	}
}
