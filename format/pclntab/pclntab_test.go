package pclntab

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

const program = `package main

import "fmt"

func main() {
	defer func() { fmt.Println(recover()) }()
	var p *int
	fmt.Println(*p)
}
`

// TestJudge: the rows are those of the .debug_frame that the linker made of the same numbers, at every PC, also of the program without
// .debug_frame, without section headers, and with a table in a section of another name.
func TestJudge(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "go", "gcc", "llvm-objcopy-19")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, mode, ldflags string
		env                 []string
	}{
		{"plain", "exe", "", []string{"GOARCH=amd64", "CGO_ENABLED=0"}},
		{"pie", "pie", "", []string{"GOARCH=amd64", "CGO_ENABLED=0"}},
		{"external", "exe", "-linkmode=external", []string{"GOARCH=amd64", "CGO_ENABLED=1"}},
		{"aarch64", "exe", "", []string{"GOARCH=arm64", "CGO_ENABLED=0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			build := func(path, more string) *module.Image {
				t.Helper()
				cmd := exec.Command("go", "build", "-o", path, "-buildmode="+c.mode, "-ldflags="+c.ldflags+more, "main.go")
				cmd.Dir, cmd.Env = dir, append(append(os.Environ(), "GOFLAGS=-trimpath"), c.env...)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				img, err := module.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { img.Close() })
				return img
			}
			img := build(filepath.Join(dir, c.name), "")
			f, err := dwarf.Open(img)
			if err != nil {
				t.Fatal(err)
			}
			want, damage := f.Build(dwarf.DebugFrame)
			if len(damage) > 0 || len(want.Rows) < 5000 {
				t.Fatalf("%d rows, %v", len(want.Rows), damage)
			}
			same(t, want, Open(img).Rows())
			stripped := build(filepath.Join(dir, c.name+"-stripped"), " -s")
			if f, err := dwarf.Open(stripped); err != nil || f.Sizes().DebugFrame != 0 {
				t.Fatalf("it is not stripped: %v", err)
			}
			if n := len(Open(stripped).Rows().Rows); n < 5000 {
				t.Errorf("stripped: %d rows", n)
			}
			for how, args := range map[string][]string{
				"bare":     {"--strip-all"},
				"headless": {"--strip-sections"},
				"renamed":  {"--strip-all", "--rename-section=.gopclntab=.rodata.pc", "--rename-section=.go.module=.data.module"},
			} {
				path := filepath.Join(dir, how)
				oracle.Run(t, "llvm-objcopy-19", append(args, filepath.Join(dir, c.name), path)...)
				img, err := module.Open(path)
				if err != nil {
					t.Fatal(err)
				}
				defer img.Close()
				if named := img.Section(".gopclntab") != nil; named != (how == "bare") {
					t.Fatalf("%s: a section has the table's name: %v", how, named)
				}
				if tab := Open(img); tab == nil {
					t.Errorf("%s: no table", how)
				} else {
					t.Log(how)
					same(t, want, tab.Rows())
				}
				if how == "headless" && c.name == "external" {
					unmarked(t, img)
				}
			}
		})
	}
}

// unmarked: a file without section headers that another linker made is searched for names, and for rows only where it says that it is Go's.
func unmarked(t *testing.T, img *module.Image) {
	t.Helper()
	b := bytes.Clone(img.Bytes())
	at := bytes.Index(b, append([]byte("\x04\x00\x00\x00Go\x00\x00"), img.GoBuildID()...))
	if at < 0 || len(img.GoBuildID()) < 20 {
		t.Fatalf("no note has Go's build ID, %q", img.GoBuildID())
	}
	b[at+4] = 'N'
	other, err := module.New("unmarked", b)
	if err != nil {
		t.Fatal(err)
	}
	if h, err := Find(other); h == nil || err != nil || other.GoBuildID() != nil {
		t.Errorf("Find: %v, %v; Go's build ID is %q", h, err, other.GoBuildID())
	}
	if tab := Open(other); tab != nil {
		t.Errorf("a file of another linker's, which does not say that it is Go's, was searched for rows: it has %d; want no table", len(tab.Rows().Rows))
	}
}

// same compares tables at both ends of the rows of each.
func same(t *testing.T, want, got *rows.Table) {
	t.Helper()
	bad, n := 0, 0
	for _, x := range []*rows.Table{want, got} {
		for i, r := range x.Rows {
			hi := r.Lo
			if i+1 < len(x.Rows) {
				hi = x.Rows[i+1].Lo - 1
			}
			for _, pc := range []arch.Vaddr{r.Lo, hi} {
				n++
				if w, g := want.At(pc).Text(want.Machine), got.At(pc).Text(got.Machine); w != g {
					if bad++; bad < 10 {
						t.Errorf("%#x: %s, .debug_frame has %s", uint64(pc), g, w)
					}
				}
			}
		}
	}
	t.Logf("%d addresses, %d differ", n, bad)
}
