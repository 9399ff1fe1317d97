package sframe

import (
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

var update = flag.Bool("update", false, "write the golden files anew, with the releases of binutils")

// TestGolden reads sections that assemblers and linkers of three releases made, and compares the rows with text. A golden file has the machine, the
// section's address and bytes, and the rows.
func TestGolden(t *testing.T) {
	if *update {
		for _, b := range releases(t) {
			for _, m := range []*arch.Machine{arch.AMD64, arch.ARM64, s390} {
				path := filepath.Join(t.TempDir(), "a")
				if err := b.build(m, "testdata/"+m.Name+".s", path, func(path string, _ []byte) error {
					img, err := module.Open(path)
					if err != nil {
						return err
					}
					defer img.Close()
					if !img.Linked() {
						return nil
					}
					s := img.Section(name)
					data, err := img.Data(s)
					if err != nil {
						return err
					}
					head := fmt.Sprintf("%s %#x\n", m.Name, uint64(s.Addr))
					for len(data) > 0 {
						n := min(32, len(data))
						head += hex.EncodeToString(data[:n]) + "\n"
						data = data[n:]
					}
					return os.WriteFile(fmt.Sprintf("testdata/%s-v%d.golden", m.Name, b.version), []byte(golden(t, head)), 0o666)
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	files, err := filepath.Glob("testdata/*.golden")
	if err != nil || len(files) != 7 {
		t.Fatalf("%d golden files, want 7: %v", len(files), err)
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		head, _, ok := strings.Cut(string(b), "\n\n")
		if got := golden(t, head+"\n"); !ok || got != string(b) {
			t.Errorf("%s\n got %s\nwant %s", path, got, b)
		}
	}
}

// golden returns the text of a golden file, by its lines in front of the rows.
func golden(t *testing.T, head string) string {
	t.Helper()
	first, bytes, _ := strings.Cut(head, "\n")
	var name string
	var addr uint64
	if _, err := fmt.Sscanf(first, "%s %v", &name, &addr); err != nil {
		t.Fatalf("%q: %v", first, err)
	}
	data, err := hex.DecodeString(strings.ReplaceAll(bytes, "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]*arch.Machine{"x86_64": arch.AMD64, "aarch64": arch.ARM64, "s390x": s390}[name]
	s, err := parse(data, arch.Vaddr(addr), m)
	if err != nil {
		t.Fatal(err)
	}
	tab, errs := (&Table{machine: m, sections: []*section{s}}).Rows()
	if len(errs) > 0 {
		t.Fatalf("Rows of %q has damage %v, want none", first, errs)
	}
	var w strings.Builder
	w.WriteString(head + "\n")
	if err := tab.WriteText(&w); err != nil {
		t.Fatal(err)
	}
	return w.String()
}

// BenchmarkRows is the time for the rows of a program with 20,000 functions of 12 rows each, in the order of addresses.
func BenchmarkRows(b *testing.B) {
	h := byHand[0].hand
	h.funcs = nil
	for i := range 20000 {
		f := handFunc{start: int64(i) * 128, size: 120, num: 12}
		for k := range 12 {
			f.rows = append(f.rows, byte(9*k), 5, byte(8+8*(k+i%5)), 0xf0)
		}
		h.funcs = append(h.funcs, f)
	}
	data := h.bytes()
	n := 0
	for b.Loop() {
		s, err := parse(data, 0x2000, arch.AMD64)
		if err != nil {
			b.Fatal(err)
		}
		tab, errs := (&Table{machine: arch.AMD64, sections: []*section{s}}).Rows()
		if len(errs) > 0 {
			b.Fatalf("Rows has damage %v, want none", errs)
		}
		n += len(tab.Rows)
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds()/1e6, "Mrows/s")
}
