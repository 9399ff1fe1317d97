package compile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/emit/csource"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

const spin = "../testdata/root/opt/spin"

// TestArchive: an archive stands for its object files, and each of them can be opened by its name.
func TestArchive(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc", "ar")
	dir := t.TempDir()
	lib, source := filepath.Join(dir, "lib(1).a"), filepath.Join(dir, "a.c")
	if err := os.WriteFile(source, []byte("int g(int *);\nint f(void) { int a[9]; return g(a) + 1; }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{{"gcc", "-O2", "-c", "-o", "a.o", "a.c"}, {"gcc", "-O2", "-g", "-c", "-o", "b(2).o", "a.c"}, {"ar", "rcs", "lib(1).a", "a.o", "b(2).o", "a.c"}} {
		cmd := exec.Command(c[0], c[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
	}
	var skipped []string
	files, err := Files([]string{lib, lib + "(a.o)"}, false, func(err error) { skipped = append(skipped, err.Error()) })
	if want := []string{lib + "(a.o)", lib + "(b(2).o)", lib + "(a.o)"}; err != nil || !slices.Equal(files, want) {
		t.Errorf("Files = %q, %v, want %q", files, err, want)
	}
	if want := []string{lib + ": 1 of 3 members are no object files"}; !slices.Equal(skipped, want) {
		t.Errorf("skipped %q, want %q", skipped, want)
	}
	for _, path := range files {
		if p, err := Prove(path, true); err != nil || p.Rows < 3 || p.Damaged != 0 {
			t.Errorf("Prove(%s) = %+v, %v", path, p, err)
		}
		if s, err := Measure(path); err != nil || s.FDEs != 1 || s.File != path {
			t.Errorf("Measure(%s) = %+v, %v", path, s, err)
		}
	}
	if x, damage, err := Rows(files[1]); err != nil || len(damage) > 0 || len(x.Sections) == 0 {
		t.Errorf("Rows(%s): %v, %v", files[1], err, damage)
	}
	if _, _, err := Rows(lib); err == nil || !strings.Contains(err.Error(), "name one of its members") {
		t.Errorf("Rows of an archive: %v", err)
	}
}

func TestFiles(t *testing.T) {
	empty := t.TempDir()
	if err := os.WriteFile(filepath.Join(empty, "text"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	var skipped []string
	got, err := Files([]string{"../testdata", empty, spin, filepath.Join(empty, "text")}, false, func(err error) { skipped = append(skipped, err.Error()) })
	if want := []string{spin, spin, filepath.Join(empty, "text")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Files = %q, %v, want %q", got, err, want)
	}
	if want := []string{empty + ": no executables or libraries"}; !slices.Equal(skipped, want) {
		t.Errorf("skipped %q, want %q", skipped, want)
	}
	if _, err := Files([]string{filepath.Join(empty, "none")}, true, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestDirectory: a directory stands for the files of every format below it: linked, not linked, in archives, and compressed.
func TestDirectory(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc", "ar", "xz", "clang-19", "lld-link-19")
	dir := t.TempDir()
	put(t, filepath.Join(dir, "a.c"), []byte("int g(int *);\nint f(void) { int a[9]; return g(a) + 1; }\n"), 0o600)
	for _, c := range []string{"gcc -O2 -c a.c", "mkdir sub", "ar rcs sub/lib.a a.o a.c", "gcc -O2 -shared -fPIC -o sub/lib.so a.c", "cp a.o sub/m.ko", "xz -k sub/m.ko",
		"clang-19 --target=x86_64-apple-macos -O2 -c -o sub/mach.o a.c", "clang-19 --target=x86_64-pc-windows-msvc -O2 -c -o coff.obj a.c",
		"lld-link-19 /dll /noentry /force:unresolved /nodefaultlib /out:sub/x.dll coff.obj", "rm sub/x.lib", "head -c 100 a.o > sub/cut.o", "head -c 300 sub/lib.a > sub/cut.a"} {
		cmd := exec.Command("sh", "-c", c)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil && !strings.HasPrefix(c, "lld") {
			t.Fatalf("%s: %v\n%s", c, err, out)
		}
	}
	for objects, want := range map[bool][]string{false: {"sub/lib.so", "sub/x.dll"}, true: {"a.o", "coff.obj", "sub/cut.o", "sub/lib.a(a.o)", "sub/lib.so", "sub/m.ko", "sub/m.ko.xz", "sub/mach.o", "sub/x.dll"}} {
		var skipped []string
		files, err := Files([]string{dir}, objects, func(err error) { skipped = append(skipped, err.Error()) })
		for i := range want {
			want[i] = filepath.Join(dir, want[i])
		}
		if err != nil || !slices.Equal(files, want) {
			t.Errorf("objects %v: %q, %v, want %q", objects, files, err, want)
		}
		if damaged := len(skipped) == 1 && strings.Contains(skipped[0], "cut.a"); damaged != objects {
			t.Errorf("objects %v: skipped %q", objects, skipped)
		}
		if !objects {
			continue
		}
		var proofs Proofs
		failed := 0
		if err := Each(t.Context(), files, func(path string) (Proof, error) { return Prove(path, false) }, func(p Proof, err error) {
			if err != nil {
				failed++
			}
			proofs.Add(p, err)
		}); err != nil {
			t.Error(err)
		}
		var text strings.Builder
		if proofs.WriteText(&text, 10); failed != 1 || !strings.HasPrefix(text.String(), "8 files: ") || !strings.Contains(text.String(), "; 0 damaged entries; 0 files without") {
			t.Errorf("%d failed\n%s", failed, text.String())
		}
	}
}

// TestUniversal: a universal file that llvm-lipo makes has the rows of the programs that it was made of, also where these are archives.
func TestUniversal(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-lipo-19")
	oracle.Need(t, "llvm-ar-19")
	text := func(path string) string {
		tab, damage, err := Rows(path)
		if err != nil || len(damage) > 0 {
			t.Fatalf("%s: %v %v", path, err, damage)
		}
		var b strings.Builder
		if err := tab.WriteText(&b); err != nil || len(tab.Rows) == 0 {
			t.Fatalf("WriteText of the %d rows of %s = %v, want a text", len(tab.Rows), path, err)
		}
		return b.String()
	}
	dir := t.TempDir()
	thin := map[string]string{}
	for _, path := range oracle.MachO(t, 2) {
		name := "x86_64"
		if strings.Contains(path, "arm64") {
			name = "arm64"
		}
		thin[name] = path
	}
	if len(thin) != 2 {
		t.Fatalf("the Mach-O files are %q, want one for x86_64 and one for arm64", thin)
	}
	fat := filepath.Join(dir, "fat")
	oracle.Run(t, "llvm-lipo-19", "-create", thin["x86_64"], thin["arm64"], "-output", fat)
	lib, libs := filepath.Join(dir, "lib.a"), []string{"-create", "-output", filepath.Join(dir, "lib.a")}
	for _, name := range []string{"x86_64", "arm64"} {
		a := filepath.Join(dir, name+".a")
		oracle.Run(t, "llvm-ar-19", "rc", a, "../module/testdata/"+name+".macho.o")
		libs = append(libs, a)
	}
	oracle.Run(t, "llvm-lipo-19", libs...)
	for _, c := range []struct{ whole, part, alone string }{
		{fat, "x86_64", thin["x86_64"]}, {fat, "arm64", thin["arm64"]},
		{lib, "x86_64:x86_64.macho.o", "../module/testdata/x86_64.macho.o"}, {lib, "arm64:arm64.macho.o", "../module/testdata/arm64.macho.o"},
	} {
		name := c.whole + "(" + c.part + ")"
		files, err := Files([]string{c.whole}, false, func(err error) { t.Error(err) })
		if err != nil || len(files) != 2 || !slices.Contains(files, name) {
			t.Errorf("%s: %q, %v", c.whole, files, err)
		}
		if text(name) != text(c.alone) {
			t.Errorf("%s and %s have other rows", name, c.alone)
		}
	}
	files, err := Files([]string{dir}, true, func(err error) { t.Error(err) })
	if err != nil || len(files) != 6 {
		t.Errorf("of the directory: %q, %v", files, err)
	}
	if _, _, err := Open(lib); err == nil || !strings.Contains(err.Error(), "name one of its members") {
		t.Errorf("a universal library: %v", err)
	}
}

// TestJudgeObjects: of object files in this machine's static libraries, stats counts the entries that the judge prints, and verify proves the
// tables. (format/dwarf compares each of their rows with the judge's.)
func TestJudgeObjects(t *testing.T) {
	oracle.Long(t)
	const judge = "llvm-dwarfdump-19"
	oracle.Need(t, judge)
	var libs []string
	for _, pattern := range []string{"/usr/lib/gcc*/*/*/libgcc*.a", "/usr/lib/*/*.a", "/usr/*/lib/*.a"} {
		more, _ := filepath.Glob(pattern)
		libs = append(libs, more...)
	}
	member := regexp.MustCompile(`(?m)^.*\(.*\):\tfile format .*\n`)
	want, files, fdes := oracle.Few(200, 5000), 0, 0
	for _, lib := range libs {
		st, err := os.Stat(lib)
		if err != nil || st.Size() > 30<<20 || !module.IsArchive(lib) { // a linker's script
			continue
		}
		if files >= want {
			break
		}
		names, err := Files([]string{lib}, true, func(err error) { t.Log(err) })
		if err != nil {
			t.Fatal(err)
		}
		said := member.Split(string(oracle.Run(t, judge, "--debug-frame", lib)), -1)[1:]
		if len(said) != len(names) {
			t.Fatalf("%s: the judge has %d members, want %d", lib, len(said), len(names))
		}
		for i, name := range names {
			files++
			s, err := Measure(name)
			_, perr := Prove(name, false)
			if errors.Is(err, ErrNoRows) && errors.Is(perr, ErrNoRows) {
				s, err, perr = newStats(), nil, nil
			}
			if err != nil || perr != nil {
				t.Errorf("%s: %v, %v", name, err, perr)
				continue
			}
			f, c := strings.Count(said[i], " FDE cie="), strings.Count(said[i], " CIE\n")
			if fdes += f; s.FDEs != f || f > 0 && s.CIEs != c || s.Damaged != 0 {
				t.Errorf("%s: %d FDEs, %d CIEs, %d damaged entries, the judge has %d and %d", name, s.FDEs, s.CIEs, s.Damaged, f, c)
			}
		}
	}
	t.Logf("%d FDEs of %d files", fdes, files)
	if least := min(want, 1000); files < least || fdes < files/2 {
		t.Errorf("%d FDEs of %d files, not of %d", fdes, files, least)
	}
}

func TestMapped(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if files, err := Mapped(os.Getpid()); err != nil || !slices.Contains(files, self) {
		t.Errorf("Mapped = %q, %v, want %s among them", files, err, self)
	}
}

// Each file is worked on once, what is done with the results needs no lock, and nothing begins when the context has ended.
func TestEach(t *testing.T) {
	var files, done []string
	for i := range 100 {
		files = append(files, fmt.Sprint(i))
	}
	failed := 0
	work := func(path string) (string, error) {
		if strings.HasSuffix(path, "7") {
			return path, errors.New(path)
		}
		return path, nil
	}
	err := Each(t.Context(), files, work, func(path string, err error) {
		if done = append(done, path); err != nil {
			failed++
		}
	})
	slices.Sort(files)
	slices.Sort(done)
	if err != nil || failed != 10 || !slices.Equal(done, files) {
		t.Errorf("Each: %v, %d failed, done with %q", err, failed, done)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err = Each(ctx, files, work, func(string, error) { n++; cancel() })
	if !errors.Is(err, context.Canceled) || n == 0 || n > 50 {
		t.Errorf("interrupted: %v, %d done", err, n)
	}
}

func TestCompiler(t *testing.T) {
	img, err := module.Open(spin)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	for emit, ending := range map[string]string{"table": ".unspool", "native": ".eh_elf.so", "c": ".c"} {
		c := Compiler{Emit: emit, Dir: t.TempDir(), Native: native.Options{Layout: native.Page, Deref: native.Self}}
		r, err := c.File(spin)
		made, rerr := os.ReadFile(filepath.Join(c.Dir, img.ID()+ending))
		if err != nil || rerr != nil || r.Size != int64(len(made)) || r.Size == 0 || r.Source != 0x80 || r.Found {
			t.Errorf("%s: %+v, %v: %d bytes, %v", emit, r, err, len(made), rerr)
		}
		if emit == "table" {
			if _, err := compact.Load(made); err != nil {
				t.Error(err)
			}
		}
		c.Dir = filepath.Join(c.Dir, "none")
		if _, err := c.File(spin); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want %v", emit, err, os.ErrNotExist)
		}
	}
}

// TestTally: each file is counted as one thing, and what is damaged in it does not matter.
func TestTally(t *testing.T) {
	var got Tally
	bad := errors.New("bad")
	for _, r := range []struct {
		Result
		err error
	}{{Result{Size: 5, Source: 10}, nil}, {Result{Size: 6, Source: 20, Found: true}, bad}, {Result{}, nil}, {Result{}, bad}, {Result{Size: 1, Source: 2}, bad}} {
		got.Add(r.Result, r.err)
	}
	if want := (Tally{Made: 2, Found: 1, None: 1, Size: 12, Source: 32}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestCOptions: C is laid out, and reads memory, as machine code with the same options does.
func TestCOptions(t *testing.T) {
	for _, o := range []native.Options{{Layout: native.Page, Deref: native.Self}, {Layout: native.Tree, Deref: native.Callback}, {Layout: native.Inline, Deref: native.Slice}} {
		c := cOptions(o)
		if c.Deref.String() != o.Deref.String() || (c.Layout == csource.Switch) != (o.Layout == native.Inline) {
			t.Errorf("%v, %v: %v, %v", o.Layout, o.Deref, c.Layout, c.Deref)
		}
	}
}

// TestRows: the rows of a file are there by source, and a file without any says so.
func TestRows(t *testing.T) {
	all, damage, err := Rows(spin)
	if err != nil || len(damage) > 0 || len(all.Rows) == 0 {
		t.Fatalf("%v, %v, %v", all, damage, err)
	}
	if one, _, err := Rows(spin, ".eh_frame"); err != nil || len(one.Rows) != len(all.Rows) {
		t.Errorf(".eh_frame: %v, %v", one, err)
	}
	if _, _, err := Rows(spin, ".debug_frame"); err == nil || err.Error() != spin+`: no unwind information named ".debug_frame": there is .eh_frame` {
		t.Errorf(".debug_frame: %v", err)
	}
	if all, damage, err := Rows("compile_test.go"); err == nil {
		t.Errorf("compile_test.go, which is a text, has %d rows, %v; want an error", len(all.Rows), damage)
	}
}

func TestProveAndMeasure(t *testing.T) {
	for _, code := range []bool{false, true} {
		p, err := Prove(spin, code)
		if err != nil || p.Rows == 0 || p.Rules == 0 || p.Damaged != 0 {
			t.Errorf("Prove = %+v, %v", p, err)
		}
	}
	s, err := Measure(spin)
	if err != nil || s.File != spin || s.FDEs != 4 || s.CIEs != 2 || s.EHFrame != 0x80 || s.Sources[".eh_frame"] != 0x80 || s.Opcodes["DW_CFA_undefined"] != 1 {
		t.Errorf("Measure = %+v, %v", s, err)
	}
	sum := Sum([]*Stats{s, s})
	if sum.Files != 2 || sum.Rows != 2*s.Rows || sum.Table != 2*s.Table || sum.Sources[".eh_frame"] != 0x100 || sum.Ratio != s.Ratio || sum.Opcodes["DW_CFA_undefined"] != 2 {
		t.Errorf("Sum = %+v", sum)
	}
	if s, err := Measure("compile_test.go"); err == nil {
		t.Errorf("compile_test.go, which is a text, is measured: %+v; want an error", s)
	}
}
