package format

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// TestObject: the rows of a file that is not linked name their addresses by section.
func TestObject(t *testing.T) {
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	source, object := filepath.Join(dir, "a.c"), filepath.Join(dir, "a.o")
	if err := os.WriteFile(source, []byte("int f(int x) { return x; }\nint g(int x) { return x + 1; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-c", "-O2", "-ffunction-sections", "-fasynchronous-unwind-tables", "-o", object, source)
	img, err := module.Open(object)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	u, err := Open(img)
	if err != nil {
		t.Fatal(err)
	}
	x, damage := u.Rows()
	var text strings.Builder
	if err := x.WriteText(&text); err != nil || len(damage) > 0 {
		t.Fatalf("WriteText of %s = %v, damage %v, want none", object, err, damage)
	}
	for _, want := range []string{" .text.f\n", "\n.text.f+0  cfa=", " .text.g\n", "\n.text.g+0  cfa="} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}

// TestORC: a module of Linux has its own tables as a source, behind DWARF, which wins; a table that cannot be read is damage.
func TestORC(t *testing.T) {
	objtool := "/usr/lib/linux-kbuild-6.1/tools/objtool/objtool"
	oracle.Need(t, "gcc", objtool, "objcopy")
	dir := t.TempDir()
	source, object := filepath.Join(dir, "a.c"), filepath.Join(dir, "a.o")
	text := "int f(int x) { return x; }\nint g(int x) { return f(x) + 1; }\n__attribute__((used, section(\".modinfo\"))) static const char v[] = \"vermagic=6.1.0\";\n"
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "gcc", "-c", "-O2", "-fno-pic", "-fcf-protection=none", "-fasynchronous-unwind-tables", "-o", object, source)
	run(t, dir, objtool, "--orc", object)
	run(t, dir, "objcopy", "--remove-section", ".eh_frame", "a.o", "bare.o")
	run(t, dir, "objcopy", "--remove-section", ".modinfo", "bare.o", "unknown.o")
	_, both := opened(t, object)
	if got := both.names(); !slices.Equal(got, []string{EHFrame, ORC}) {
		t.Fatalf("sources %v", got)
	}
	x, damage := both.Rows()
	if len(damage) > 0 || x.Origin(x.Rows[0].Lo) != rows.FromEHFrame {
		t.Errorf("%v; rows are from %v", damage, x.Origin(x.Rows[0].Lo))
	}
	_, bare := opened(t, filepath.Join(dir, "bare.o"))
	y, damage := bare.Rows()
	if got := bare.names(); !slices.Equal(got, []string{ORC}) || len(damage) > 0 || y.Origin(y.Rows[0].Lo) != rows.FromORC || bare.Key() == both.Key() {
		t.Errorf("without .eh_frame: sources %v, %v; rows are from %v", got, damage, y.Origin(y.Rows[0].Lo))
	}
	if first := y.Sets[y.Rows[0].Set].Text(y.Machine); first != "cfa=rsp+8  rbp=s  ra=c-8  partial" {
		t.Errorf("the first row is %s", first)
	}
	_, unknown := opened(t, filepath.Join(dir, "unknown.o"))
	if z, damage := unknown.Rows(); len(z.Rows) != 0 || len(damage) != 1 || !strings.Contains(damage[0].Error(), "say which kernel wrote the entries") {
		t.Errorf("without a version: %d rows, %v", len(z.Rows), damage)
	}
}
