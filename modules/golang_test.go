package modules

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/unwind"
)

// TestGoFunctions: what a Go program's own table says of functions is what its symbols say, however it was linked.
func TestGoFunctions(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "go", "gcc")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println() }\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, flags := range []string{"", "-buildmode=pie", "-ldflags=-linkmode=external", "-buildmode=pie -ldflags=-linkmode=external"} {
		path := filepath.Join(dir, "prog")
		cmd := exec.Command("go", append(append([]string{"build", "-o", path}, strings.Fields(flags)...), "main.go")...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		type function struct {
			name string
			at   arch.Vaddr
		}
		symbols, want := map[function]bool{}, 0
		img.Symbols(func(s module.Symbol) bool {
			f := function{strings.TrimSuffix(s.Name, ".abi0"), s.Value}
			if symbols[f] = true; goFirst[f.name] {
				want++
			}
			return true
		})
		n, first := 0, 0
		format.Functions(img)(func(name string, lo, hi arch.Vaddr) {
			f := function{strings.TrimSuffix(name, ".abi0"), lo}
			if symbols[f] {
				n++
			}
			if goFirst[f.name] {
				if first++; !symbols[f] {
					t.Errorf("%q: there is no symbol %s at %#x", flags, f.name, lo)
				}
			}
		})
		if n < 1000 || first != want || want < len(goFirst) {
			t.Errorf("%q: %d functions are where their symbols are; %d of %d first ones", flags, n, first, want)
		}
		c := Interpreted().code(path, img)
		if len(c.Injected) < len(goInjected) {
			t.Errorf("%q: %d of %d functions that are called for interrupted code", flags, len(c.Injected), len(goInjected))
		}
		if len(c.Moved) < 2 { // nanotime1 and time.now; others are left out where nobody calls them
			t.Errorf("%q: %d functions go on with another stack", flags, len(c.Moved))
		}
		entries := 0
		for f := range symbols {
			if in := slices.ContainsFunc(c.Terminal, func(r unwind.Range) bool { return r.Lo == f.at }); strings.HasPrefix(f.name, "_rt0_") {
				if entries++; in == strings.Contains(f.name, "_lib") {
					t.Errorf("%q: %s is where stacks begin: %v", flags, f.name, in)
				}
			}
		}
		if entries == 0 && !strings.Contains(flags, "external") { // else the C library's code begins
			t.Errorf("%q: no function with which it begins", flags)
		}
		img.Close()
	}
}
