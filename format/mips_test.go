package format_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// TestMIPSCompact: .eh_frame has the functions that the index leaves to it, MIPS's tables the others; both are in the table and in its key.
func TestMIPSCompact(t *testing.T) {
	path := "mips/testdata/opcodes-mipsel"
	key := func(path string) (*format.Unwind, string) {
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { img.Close() })
		u, err := format.Open(img)
		if err != nil {
			t.Fatal(err)
		}
		return u, u.Key()
	}
	u, first := key(path)
	if len(u.Sources) != 2 || u.Sources[0].Name != format.EHFrame || u.Sources[1].Name != format.MIPSCompact || u.IndexSize() != 0 {
		t.Fatalf("%+v, index of %d bytes", u.Sources, u.IndexSize())
	}
	all, damage := u.Rows()
	own, _ := u.Rows(format.MIPSCompact)
	if len(damage) != 10 {
		t.Errorf("%d damaged entries: %v", len(damage), damage)
	}
	count := map[rows.Origin]int{}
	for i, r := range all.Rows {
		if !all.Sets[r.Set].Gap() {
			count[all.Origin(r.Lo)]++
			if from := all.Origin(r.Lo); (from == rows.FromMIPS) != (all.Sets[r.Set].Flags&rows.SyncOnly != 0) || from == rows.FromEHFrame && !own.At(r.Lo).Gap() {
				t.Errorf("%#x to %#x, from %v: %s", uint64(r.Lo), uint64(all.Hi(i)), from, all.Sets[r.Set].Text(u.Machine))
			}
		}
	}
	if len(count) != 2 || count[rows.FromEHFrame] != 3 || count[rows.FromMIPS] < 35 {
		t.Errorf("rows by origin: %v", count)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		what     string
		old, new string
		same     bool
	}{{"opcodes in the index", "\x01\x03\x70\x5c", "\x01\x03\x71\x5c", false}, {"a table", "\x03\x03\x43\x61", "\x03\x03\x43\x63", false}, {"what follows opcodes", "\x80\x59\x5c\x80", "\x80\x59\x5c\x81", true}} {
		if bytes.Count(b, []byte(x.old)) == 0 {
			t.Fatalf("no %s", x.what)
		}
		changed := filepath.Join(t.TempDir(), "changed")
		if err := os.WriteFile(changed, []byte(strings.Replace(string(b), x.old, x.new, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, other := key(changed); (other == first) != x.same {
			t.Errorf("another %s: key %s, before %s", x.what, other, first)
		}
	}
}
