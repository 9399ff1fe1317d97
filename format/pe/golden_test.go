package pe

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

var update = flag.Bool("update", false, "make the golden files anew")

// golden are small images, by the triple that their sources are assembled for.
var golden = map[string]string{"amd64": "x86_64-pc-windows-msvc", "arm64": "aarch64-pc-windows-msvc", "arm": thumbTriple}

// assemble makes an image of an assembler's source.
func assemble(t testing.TB, triple, source, image string) {
	oracle.Need(t, "clang-19", "lld-link-19")
	obj := filepath.Join(t.TempDir(), "a.obj")
	for _, c := range [][]string{
		{"clang-19", "--target=" + triple, "-c", "-o", obj, source},
		{"lld-link-19", "/dll", "/noentry", "/nodefaultlib", "/filealign:16", "/Brepro", "/export:codes", "/out:" + image, obj},
	} {
		oracle.Run(t, c[0], c[1:]...)
	}
	os.Remove(image[:len(image)-len(filepath.Ext(image))] + ".lib")
}

// text writes all that a table says, and what is wrong.
func text(tab *Table) []byte {
	var b bytes.Buffer
	r, errs := tab.Rows()
	for _, err := range errs {
		fmt.Fprintln(&b, "#", err)
	}
	r.From(rows.FromWindows).Overlay(tab.Leaves().From(rows.Synthesised)).WriteText(&b)
	return b.Bytes()
}

// firstDifference shows the first lines that differ.
func firstDifference(got, want []byte) string {
	a, b := bytes.Split(got, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range min(len(a), len(b)) {
		if !bytes.Equal(a[i], b[i]) {
			return fmt.Sprintf(" got  %s\n want %s", a[i], b[i])
		}
	}
	return fmt.Sprintf(" got %d lines, want %d", len(a), len(b))
}

// TestGolden compares the rows of small images with those that were read with their listings in hand. They have all operations, all forms of
// epilogues, and what assemblers do not write: chains, version 2, packed entries, damage.
func TestGolden(t *testing.T) {
	for name, triple := range golden {
		image := filepath.Join("testdata", name+".dll")
		if *update {
			assemble(t, triple, filepath.Join("testdata", name+".s"), image)
		}
		img, err := module.Open(image)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		got := text(Open(img))
		file := filepath.Join("testdata", name+".rows")
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s\n%s", image, firstDifference(got, want))
		}
	}
}

// TestAssembled: the assembler and the linker still make the golden images of their sources.
func TestAssembled(t *testing.T) {
	oracle.Long(t)
	for name, triple := range golden {
		image := filepath.Join(t.TempDir(), name+".dll") // its name is in it
		assemble(t, triple, filepath.Join("testdata", name+".s"), image)
		img, err := module.Open(image)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		want, err := os.ReadFile(filepath.Join("testdata", name+".rows"))
		if got := text(Open(img)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s.s: %v\n%s", name, err, firstDifference(got, want))
		}
	}
	object := filepath.Join(t.TempDir(), "handlers.obj")
	if *update {
		object = "testdata/handlers.obj"
	}
	oracle.Run(t, "clang-19", "--target=x86_64-pc-windows-msvc", "-c", "-o", object, "testdata/handlers.s")
	got, err := os.ReadFile(object)
	want, werr := os.ReadFile("testdata/handlers.obj")
	if err != nil || werr != nil || !bytes.Equal(got, want) {
		t.Errorf("handlers.s: %v, %v: another object file", err, werr)
	}
}
