package modules

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
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
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=-trimpath")
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

// TestGoChild: of runtime.clone, the new thread's part is where a stack begins, and no more: it begins behind the first return after the
// system call, as go tool objdump prints the function. Between this call and this return, both threads are.
func TestGoChild(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "go")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() { println() }\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, machine := range []string{"amd64", "arm64"} {
		path := filepath.Join(dir, machine)
		cmd := exec.Command("go", "build", "-o", path, "main.go")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath", "GOARCH="+machine)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", machine, err, out)
		}
		var both, want, last arch.Vaddr // the first instruction behind the call; the child's first one, and its last
		called, returned := false, false
		for line := range strings.Lines(string(oracle.Run(t, "go", "tool", "objdump", "-s", `^runtime\.clone(\.abi0)?$`, path))) {
			// sys_linux_amd64.s:599	0x46c1e5	0f05	SYSCALL
			words := strings.Fields(line)
			if len(words) < 4 || !strings.HasPrefix(words[1], "0x") {
				continue
			}
			at, err := strconv.ParseUint(words[1], 0, 64)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if last = arch.Vaddr(at); returned && want == 0 {
				want = last
			}
			if called && both == 0 {
				both = last
			}
			called = called || words[3] == "SYSCALL" || words[3] == "SVC"
			returned = returned || called && words[3] == "RET"
		}
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		c := Interpreted().code(path, img)
		i := slices.IndexFunc(c.Terminal, func(r unwind.Range) bool { return r.Lo <= last && last < r.Hi })
		if want == 0 || i < 0 || c.Terminal[i].Lo != want {
			t.Errorf("%s: the new thread's part of runtime.clone begins at %#x and ends behind %#x; stacks begin at %#x", machine, want, last, c.Terminal)
		}
		if len(c.Forks) != 1 || c.Forks[0] != (unwind.Range{Lo: both, Hi: want}) {
			t.Errorf("%s: both threads are at %#x to %#x; got %#x", machine, both, want, c.Forks)
		}
		img.Close()
	}
}
