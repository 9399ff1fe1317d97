package compact

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestGolden holds the bytes of the tables in testdata/*.txt, which are in rows' text form, against
// testdata/*.hex: the layout does not change unnoticed.
func TestGolden(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txt")
	if len(files) == 0 {
		wd, _ := os.Getwd()
		t.Fatalf("%s has no testdata/*.txt", wd)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		ref, err := rows.ParseText(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		got := annotate(emit(t, ref))
		golden := strings.TrimSuffix(f, ".txt") + ".hex"
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s: the bytes have changed; run with -update, and change Version unless old readers can do with it\n got\n%s", golden, got)
			continue
		}
		// The bytes of the golden file alone make the same table.
		var b []byte
		for line := range strings.Lines(string(want)) {
			code, _, _ := strings.Cut(line, "#")
			if _, code, ok := strings.Cut(code, ":"); ok {
				x, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(code), " ", ""))
				if err != nil {
					t.Fatalf("%s: %v", golden, err)
				}
				b = append(b, x...)
			}
		}
		ct, err := Load(b)
		if err != nil {
			t.Fatalf("%s: %v", golden, err)
		}
		if err := Verify(ct, ref, 2); err != nil {
			t.Errorf("%s: %v", golden, err)
		}
	}
}

// annotate prints a table's bytes by part, with what they say.
func annotate(t *Table) string {
	var out strings.Builder
	line := func(at, n int, text string) {
		if text != "" {
			text = "  # " + text
		}
		fmt.Fprintf(&out, "%04x: % x%s\n", at, t.b[at:at+n], text)
	}
	partAt := func(name string, at, size, each int, say func(i int) string) {
		fmt.Fprintf(&out, "# %s\n", name)
		for i := 0; i*each < size; i++ {
			text := ""
			if say != nil {
				text = say(i)
			}
			line(at+i*each, min(each, size-i*each), text)
		}
		if pad := -size & (align - 1); pad > 0 {
			line(at+size, pad, "padding")
		}
	}
	part := func(name string, field, size, each int, say func(i int) string) {
		partAt(name, t.off(field), size, each, say)
	}
	fmt.Fprintf(&out, "# header\n")
	for at := 0; at < headerSize; at += 16 {
		line(at, 16, "")
	}
	line(headerSize, len(t.sh.slots), "slots of the saves")
	if pad := -len(t.sh.slots) & (align - 1); pad > 0 {
		line(headerSize+len(t.sh.slots), pad, "padding")
	}
	part("spans", hdrSpans, len(t.spans), spanSize, func(i int) string {
		s := t.span(i)
		return fmt.Sprintf("[%#x, %#x)", s.lo, s.lo+s.size)
	})
	partAt("rules", t.off(hdrRules)+t.sh.size, len(t.rules), t.sh.size, func(i int) string {
		s := t.Set(uint32(i + 1))
		return fmt.Sprintf("%d: %s", i+1, s.Text(t.machine))
	})
	part("regions", hdrRegions, len(t.regions), 4, nil)
	part("granules", hdrGranules, len(t.granules), 16, nil)
	part("rows", hdrRows, len(t.body), 16, nil)
	part("escapes: directory", hdrEscDir, len(t.dir), 16, nil)
	part("escapes: keys", hdrEscKeys, len(t.keys), 16, nil)
	part("escapes: rules", hdrEscRules, len(t.escs), 16, nil)
	part("wides", hdrWides, len(t.wides), 8, nil)
	part("expressions", hdrExprs, len(t.exprs), 16, nil)
	partAt("origins", len(t.b)-len(t.origins), len(t.origins), originSize, nil)
	fmt.Fprintf(&out, "# in words\n")
	for r := range t.Origins() {
		fmt.Fprintf(&out, "# %x  from %s\n", uint64(r.Lo), r.Origin)
	}
	t.Rows(func(lo arch.Vaddr, id uint32, _ bool) bool {
		s := t.Set(id)
		fmt.Fprintf(&out, "# %x  rule %d, %s\n", uint64(lo), id, s.Text(t.machine))
		return true
	})
	return out.String()
}
