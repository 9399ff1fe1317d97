package main

import (
	"bytes"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/report/annotate"
)

// hashProgram compiles a program with debug information.
func hashProgram(t *testing.T) string {
	t.Helper()
	oracle.Need(t, "gcc", "objdump")
	dir := t.TempDir()
	src, err := os.ReadFile("testdata/annotate/hash.c")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hash.c"), src, 0o644); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "hash")
	if out, err := exec.Command("gcc", "-O2", "-g", "-o", path, filepath.Join(dir, "hash.c")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// sampled returns a profile with one sample at each byte of code of the functions.
func sampled(t *testing.T, path string, names ...string) *profile.Profile {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	p := &profile.Profile{Modules: []profile.Module{{Path: path}}}
	for _, name := range names {
		for _, s := range syms {
			if s.Name != name {
				continue
			}
			sec := f.Sections[s.Section]
			for i := range s.Size {
				off := s.Value + i - sec.Addr + sec.Offset
				p.Stacks = append(p.Stacks, profile.Stack{Frames: []uint32{uint32(len(p.Locs))}, Count: 1})
				p.Locs = append(p.Locs, profile.Loc{Off: off, Func: int32(len(p.Funcs))})
			}
			p.Funcs = append(p.Funcs, profile.Func{Name: name, Named: true})
		}
	}
	if len(p.Funcs) != len(names) {
		t.Fatalf("%v are not all in the symbol table", names)
	}
	return p.Filter(func(*profile.Stack) bool { return true })
}

// TestAnnotatedLines holds the lines of instructions against objdump.
func TestAnnotatedLines(t *testing.T) {
	path := hashProgram(t)
	p := sampled(t, path, "hash", "main")
	out, err := exec.Command("objdump", "-d", "-l", "--no-show-raw-insn", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	want, where := map[arch.Vaddr]string{}, ""
	place := regexp.MustCompile(`^(/.*:\d+)( \(discriminator \d+\))?$`)
	for l := range strings.Lines(string(out)) {
		l = strings.TrimSuffix(l, "\n")
		if m := place.FindStringSubmatch(l); m != nil {
			where = m[1]
		} else if head, _, ok := strings.Cut(l, ":\t"); ok {
			if v, err := strconv.ParseUint(strings.TrimSpace(head), 16, 64); err == nil {
				want[arch.Vaddr(v)] = where
			}
		} else if strings.HasSuffix(l, ">:") {
			where = ""
		}
	}
	o := annotate.OptionsOf(names.New(names.Options{}), annotate.Sources{})
	for fn := range p.Funcs {
		a, err := annotate.Function(p, int32(fn), o)
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Insts) < 10 || a.Unknown > 0 {
			t.Errorf("%s: %d instructions, %d unknown; %v", a.Func, len(a.Insts), a.Unknown, a.Notes)
		}
		for _, x := range a.Insts {
			if got := fmt.Sprintf("%s:%d", x.File, x.Line); got != want[x.Addr] {
				t.Errorf("%#x %s: %s; objdump has %q", x.Addr, x.Text, got, want[x.Addr])
			}
			if n := uint64(len(x.Bytes)+1) / 3; x.Self != n || x.Total != n {
				t.Errorf("%#x %s: %d and %d samples, want %d", x.Addr, x.Text, x.Self, x.Total, n)
			}
		}
	}
}

func TestAnnotateFormats(t *testing.T) {
	path := hashProgram(t)
	p := sampled(t, path, "hash")
	moved := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Rename(filepath.Dir(path), moved); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Rename(moved, filepath.Dir(path)) })
	p.Modules[0].Path = filepath.Join(moved, "hash")
	for _, c := range []struct {
		format, syntax, fn string
		paths              []string
		has, lacks         []string
	}{
		{"annotate", "intel", "^hash$", []string{filepath.Dir(path) + "=" + moved}, []string{"h = mix(h, s[i]);", "imul eax, eax, 0x1000193", "hash.c"}, []string{"note: source"}},
		{"annotate", "gnu", "hash", nil, []string{"imul $0x1000193,%eax,%eax", "note: source: open"}, []string{"mix(h"}},
		{"disasm", "go", "hash", nil, []string{"IMULL $0x1000193, AX, AX", "; hash.c:"}, []string{"mix(h"}},
	} {
		a := annotator{syntax: c.syntax, paths: c.paths}
		if err := a.check(); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := a.formats().Named(c.format).Whole(&b, p, report.Options{Func: c.fn}); err != nil {
			t.Fatal(err)
		}
		for _, s := range c.has {
			if !strings.Contains(b.String(), s) {
				t.Errorf("%+v: there is no %q in\n%s", c, s, b.String())
			}
		}
		for _, s := range c.lacks {
			if strings.Contains(b.String(), s) {
				t.Errorf("%+v: there is %q in\n%s", c, s, b.String())
			}
		}
	}
	for _, f := range []string{"annotate", "disasm"} {
		a := annotator{syntax: "intel"}
		if err := a.check(); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := a.formats().Named(f).Whole(&b, p, report.Options{Func: "nosuch"}); err == nil || err.Error() != `no function matches "nosuch"` || b.Len() > 0 {
			t.Errorf("%v\n%s", err, b.String())
		}
	}
	for _, a := range []annotator{{syntax: "go", paths: []string{"=x"}}, {syntax: "go", paths: []string{"x"}}} {
		if err := a.check(); err == nil {
			t.Errorf("%+v is accepted", a)
		}
	}
}

// TestAnnotateElsewhere: a program that is found by its build ID is not root's because one of root's lies at the path that it had: in a container,
// a user chooses that. Of such a program, annotations have source that everybody may read.
func TestAnnotateElsewhere(t *testing.T) {
	oracle.Need(t, "gcc")
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	t.Setenv("UNSPOOL_CACHE", t.TempDir())
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	source, hidden, path := filepath.Join(dir, "a.c"), filepath.Join(dir, "hidden.c"), filepath.Join(dir, "prog")
	text := fmt.Sprintf("#line 1 %q\nint f(int x) {\n return x * 3;\n}\nint main(int n, char **v) { return f(n); }\n", hidden)
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-g", "-Wl,--build-id", "-o", path, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	id := hex.EncodeToString(img.BuildID())
	img.Close()
	p := sampled(t, path, "f")
	p.Modules[0].BuildID = id
	byID := filepath.Join(dir, ".build-id", id[:2], id[2:])
	if err := errors.Join(os.MkdirAll(filepath.Dir(byID), 0o755), os.Link(path, byID)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		at    string
		mode  os.FileMode
		shown bool
	}{{path, 0o600, true}, {"/bin/true", 0o600, false}, {"/bin/true", 0o644, true}} {
		os.Remove(hidden)
		if err := os.WriteFile(hidden, bytes.Repeat([]byte("root's secret\n"), 30), c.mode); err != nil {
			t.Fatal(err)
		}
		p.Modules[0].Path = c.at
		mods := modules.New()
		mods.Files.Dirs = []string{dir}
		var b bytes.Buffer
		a := annotator{mods: mods}
		if err := a.write(&b, p, report.Options{Func: "."}, true); err != nil {
			t.Fatal(err)
		}
		if shown := strings.Contains(b.String(), "secret"); shown != c.shown || !shown && !strings.Contains(b.String(), "not everybody may read this") || !strings.Contains(b.String(), " │ 2") {
			t.Errorf("%s, source of mode %o: shown %v\n%s", c.at, c.mode, shown, b.String())
		}
	}
}

// TestAnnotateForeign annotates a user's program whose debug information names files of root's as its source.
func TestAnnotateForeign(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	hidden := filepath.Join(dir, "hidden.c")
	if err := os.WriteFile(hidden, bytes.Repeat([]byte("root's secret\n"), 30), 0o600); err != nil {
		t.Fatal(err)
	}
	user := filepath.Join(dir, "user")
	for d := user; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := errors.Join(os.MkdirAll(d, 0o755), os.Chmod(d, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	for name, owner := range map[string]int{"/etc/shadow": 12345, hidden: 12345, hidden + " ": 0} {
		source, path := filepath.Join(user, "a.c"), filepath.Join(user, "prog")
		text := fmt.Sprintf("#line 1 %q\nint f(int x) {\n return x * 3;\n}\nint main(int n, char **v) { return f(n); }\n", strings.TrimSpace(name))
		if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("gcc", "-g", "-o", path, source).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, x := range []string{path, user} {
			if err := os.Chown(x, owner, owner); err != nil {
				t.Fatal(err)
			}
		}
		var b bytes.Buffer
		if err := new(annotator).write(&b, sampled(t, path, "f"), report.Options{Func: "."}, true); err != nil {
			t.Fatal(err)
		}
		shown := strings.Contains(b.String(), "secret") || strings.Contains(b.String(), "root:")
		if shown != (owner == 0) || !shown && !strings.Contains(b.String(), "note: source: ") {
			t.Errorf("%s of user %d's program: shown %v\n%s", name, owner, shown, b.String())
		}
	}
}
