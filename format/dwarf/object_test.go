package dwarf

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// objectSource has functions in sections of their own, in a group, in two parts, and with local names.
const objectSource = `
#ifndef __cplusplus
int g(int *p);
static __attribute__((noinline)) int f(int c) { int a[c]; return g(a) + 1; }
int main(int c) { int a[8]; return g(a) + f(c) + f(c + 1); }
#else
struct X { X(); ~X(); int a; };
template<class T> T f(T x) { X y; return x + y.a; }
static __attribute__((noinline)) void g(int n) { X y; if (n > 3) throw 1; }
int h(int (*p)(int), int c) { X y; return p(c) + p(y.a) + 1; }
__attribute__((section(".text.other"))) int k(int c) { return h(0, c) + 2; }
int main(int c, char **v) { try { g(c); } catch (int i) { return i; } catch (X &) { return 7; } return f<long>(c) + f<short>(c); }
#endif
`

// objects compiles objectSource in many ways: for each machine that clang knows, with .eh_frame or .debug_frame, with relative and absolute
// addresses.
func objects(t *testing.T, dir string) (paths []string) {
	source := filepath.Join(dir, "a.cc")
	if err := os.WriteFile(source, []byte(objectSource), 0o600); err != nil {
		t.Fatal(err)
	}
	debug := []string{"-g", "-fno-exceptions", "-fno-asynchronous-unwind-tables", "-Dthrow=(void)", "-Dtry=if(1)", "-Dcatch(x)=else if(int i=c)"}
	for _, c := range []struct {
		name string
		args []string
	}{
		{"gcc", []string{"g++"}},
		{"gcc-sections", []string{"g++", "-ffunction-sections"}},
		{"gcc-absolute", []string{"g++", "-fno-pic", "-mcmodel=large"}},
		{"gcc-debug", append([]string{"g++"}, debug...)},
		{"gcc-debug-compressed", append([]string{"g++", "-gz", "-ffunction-sections"}, debug...)},
		{"gcc-32", []string{"g++", "-m32"}},
		{"arm64-gcc", []string{"aarch64-linux-gnu-gcc", "-xc"}},
		{"x86_64", []string{"clang-19", "--target=x86_64-linux-gnu", "-ffunction-sections"}},
		{"x86_64-debug", append([]string{"clang-19", "--target=x86_64-linux-gnu", "-ffunction-sections"}, debug...)},
		{"x86_64-large", []string{"clang-19", "--target=x86_64-linux-gnu", "-mcmodel=large"}},
		{"i386", []string{"clang-19", "--target=i386-linux-gnu", "-ffunction-sections"}},
		{"i386-debug", append([]string{"clang-19", "--target=i386-linux-gnu"}, debug...)},
		{"aarch64", []string{"clang-19", "--target=aarch64-linux-gnu", "-ffunction-sections"}},
		{"aarch64-debug", append([]string{"clang-19", "--target=aarch64-linux-gnu"}, debug...)},
		{"aarch64-be", []string{"clang-19", "--target=aarch64_be-linux-gnu", "-ffunction-sections"}},
		{"arm-debug", append([]string{"clang-19", "--target=armv7-linux-gnueabihf"}, debug...)},
		{"riscv64", []string{"clang-19", "--target=riscv64-linux-gnu", "-ffunction-sections"}},
		{"riscv64-debug", append([]string{"clang-19", "--target=riscv64-linux-gnu", "-mno-relax"}, debug...)},
		{"riscv32", []string{"clang-19", "--target=riscv32-linux-gnu", "-mno-relax"}},
		{"s390x", []string{"clang-19", "--target=s390x-linux-gnu", "-ffunction-sections"}},
		{"loongarch64", []string{"clang-19", "--target=loongarch64-linux-gnu", "-ffunction-sections"}},
		{"mips64el", []string{"clang-19", "--target=mips64el-linux-gnuabi64", "-fPIC"}},
		{"mips", []string{"clang-19", "--target=mips-linux-gnu", "-fno-pic"}},
		{"ppc64le", []string{"clang-19", "--target=powerpc64le-linux-gnu", "-ffunction-sections"}},
	} {
		if _, err := exec.LookPath(c.args[0]); err != nil {
			continue
		}
		path := filepath.Join(dir, c.name+".o")
		if out, err := exec.Command(c.args[0], append(c.args[1:], "-O2", "-c", "-o", path, source)...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, out)
			continue
		}
		paths = append(paths, path)
	}
	return paths
}

// groups has two .eh_frame sections, the second in the group of its function.
const groups = `
.macro frame f
	.long 1f-0f
0:	.long 0
	.byte 1
	.asciz "zR"
	.uleb128 1
	.sleb128 -8
	.byte 16
	.uleb128 1
	.byte 0x1b, 0x0c, 7, 8, 0x90, 1
	.balign 8, 0
1:	.long 3f-2f
2:	.long 2b-0b+4
	.long \f-.
	.long 2
	.uleb128 0
	.byte 0x41, 0x0e, 16
	.balign 8, 0
3:
.endm
	.section .text.f,"ax",@progbits
f:	push %rax
	ret
	.section .text.g,"axG",@progbits,g,comdat
	.weak g
g:	push %rax
	ret
	.section .eh_frame,"a",@progbits
	frame f
	.section .eh_frame,"aG",@progbits,g,comdat
	frame g
`

// merged makes objects of objects: ld -r and lld -r leave nothing of the second function of a group but its FDE, whose relocation is of no symbol;
// and one that has two .eh_frame sections. They are not for the judge: llvm-dwarfdump applies R_X86_64_NONE, of which ld leaves some at the lengths
// of entries, by writing 0, and takes that for the end of the section. readelf reads on, as we do.
func merged(t *testing.T, dir string) (paths []string) {
	run := func(cmd ...string) bool {
		if _, err := exec.LookPath(cmd[0]); err != nil {
			return false
		}
		if out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", cmd, err, out)
			return false
		}
		return true
	}
	name := func(s string) string { return filepath.Join(dir, s) }
	two := strings.NewReplacer("h(", "h2(", "k(", "k2(", "main(", "main2(").Replace(objectSource)
	for file, text := range map[string]string{"1.cc": objectSource, "2.cc": two, "groups.s": groups} {
		if err := os.WriteFile(name(file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []string{"1", "2"} {
		run("clang-19", "--target=x86_64-linux-gnu", "-O2", "-ffunction-sections", "-c", "-o", name(n+".o"), name(n+".cc"))
	}
	for _, ld := range []string{"ld", "ld.lld-19"} {
		if run(ld, "-r", "-o", name(ld+".o"), name("1.o"), name("2.o")) {
			paths = append(paths, name(ld+".o"))
		}
	}
	if run("clang-19", "--target=x86_64-linux-gnu", "-c", "-o", name("groups.o"), name("groups.s")) {
		paths = append(paths, name("groups.o"))
	}
	return paths
}

// TestObjects compares files that are not linked with the same files linked: lld's map says where it put each section. So the judge of the
// relocations is lld, which applies them too.
func TestObjects(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19", "ld.lld-19")
	dir := t.TempDir()
	files, total := 0, 0
	for _, path := range append(objects(t, dir), merged(t, dir)...) {
		n, err := linkedAlike(path, filepath.Join(dir, "linked"))
		if err != nil {
			t.Errorf("%s: %v", filepath.Base(path), err)
		}
		files, total = files+1, total+n
	}
	t.Logf("%d files, %d rows", files, total)
	if files < 15 || total < 15*20 {
		t.Errorf("%d files, %d rows", files, total)
	}
}

// TestJudgeObjects compares every row of files that are not linked with the judge's.
func TestJudgeObjects(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, judge)
	paths := objects(t, t.TempDir())
	for _, pattern := range []string{"/usr/lib/*/*crt*.o", "/usr/lib/gcc*/*/*/crt*.o", "/usr/aarch64-linux-gnu/lib/*crt*.o"} {
		more, _ := filepath.Glob(pattern)
		paths = append(paths, more...)
	}
	rows := 0
	for _, path := range paths {
		if otherNames.MatchString(path) {
			continue
		}
		v := judgeFile(path)
		for _, err := range v.errs {
			t.Error(err)
		}
		rows += v.rows
	}
	t.Logf("%d rows of %d files", rows, len(paths))
	if rows < 300 {
		t.Errorf("%d rows of %d files, want 300 or more", rows, len(paths))
	}
}

// TestJudgeArchives compares every row of the members of this machine's static libraries with the judge's: of some 150 members, or of 20,000.
func TestJudgeArchives(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, judge)
	var paths []string
	for _, pattern := range []string{"/usr/lib/*/*.a", "/usr/lib/gcc*/*/*/*.a", "/usr/*/lib/*.a"} {
		more, _ := filepath.Glob(pattern)
		paths = append(paths, more...)
	}
	if len(paths) == 0 {
		oracle.Lacks(t, "static libraries")
	}
	size := func(path string) int64 {
		st, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return max(st.Size(), 300<<10) // the small ones first, in the order of their names
	}
	slices.SortStableFunc(paths, func(a, b string) int { return cmp.Compare(size(a), size(b)) })
	left, rows, files, signed, archives := oracle.Few(150, 20_000), 0, 0, 0, 0
	for _, path := range paths {
		if left <= 0 {
			break
		}
		if !module.IsArchive(path) {
			continue // a linker's script
		}
		list, err := judgeArchive(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		for _, v := range list {
			for _, err := range v.errs {
				t.Error(err)
			}
			rows, signed = rows+v.rows, signed+v.signed
		}
		files, left, archives = files+len(list), left-len(list), archives+1
	}
	t.Logf("%d rows, %d of them signed, of %d members of %d archives", rows, signed, files, archives)
	if left > 0 && files < oracle.Few(100, 1000) {
		t.Errorf("%d members", files)
	}
}

// memberLine is how the judge begins what it says of an archive's member.
var memberLine = regexp.MustCompile(`(?m)^.*\(.*\):\tfile format .*\n`)

// judgeArchive compares each object in an archive with what the judge says of it.
func judgeArchive(path string) (list []verdict, err error) {
	a, err := module.OpenArchive(path)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	members, err := a.Members()
	if err != nil {
		return nil, err
	}
	members = slices.DeleteFunc(members, func(m module.Member) bool { return !a.IsImage(m) })
	said := map[Which][]string{}
	for which, flag := range map[Which]string{EHFrame: "--eh-frame", DebugFrame: "--debug-frame"} {
		out, err := exec.Command(judge, flag, path).Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", judge, err)
		}
		said[which] = memberLine.Split(string(out), -1)[1:]
		if len(said[which]) != len(members) {
			return nil, fmt.Errorf("the judge has %d members, want %d", len(said[which]), len(members))
		}
	}
	for i, m := range members {
		img, err := a.Open(m)
		if err != nil {
			return list, err
		}
		list = append(list, judgeImage(img.Name(), img, func(which Which) (*judged, error) {
			return readJudge(strings.NewReader(said[which][i]), map[Which]string{EHFrame: ".eh_frame", DebugFrame: ".debug_frame"}[which])
		}))
		img.Close()
	}
	return list, nil
}

// otherNames matches files of machines whose registers the judge calls by other names: TestObjects judges these.
var otherNames = regexp.MustCompile("/(arm-debug|loongarch64|ppc64le|s390x)[.]o$")

// mapLine is a line of lld's map for a section of the only input: its address and size, and its name.
var mapLine = regexp.MustCompile(`(?m)^ *([0-9a-f]+) +[0-9a-f]+ +([0-9a-f]+) +\d+ {9}\S+:\((\S+)\)$`)

// linkedAlike links an object, and compares the rows of both files, placed as the map says.
func linkedAlike(path, linked string) (n int, err error) {
	out, err := exec.Command("ld.lld-19", "-o", linked, "-e", "0", "--no-relax", "--unresolved-symbols=ignore-all", "--noinhibit-exec", "--no-gc-sections", "-Map", "-", path).Output()
	if err != nil {
		return 0, fmt.Errorf("ld.lld-19: %w", err)
	}
	at, size := map[string]uint64{}, map[string]uint64{}
	for _, m := range mapLine.FindAllStringSubmatch(string(out), -1) {
		var v, z uint64
		fmt.Sscanf(m[1]+" "+m[2], "%x %x", &v, &z)
		at[m[3]], size[m[3]] = v, z
	}
	open := func(path string) (*module.Image, *rows.Table, error) {
		img, err := module.Open(path)
		if err != nil {
			return nil, nil, err
		}
		f, err := Open(img)
		if err != nil {
			return nil, nil, err
		}
		x, damage := f.Build(Both)
		if len(damage) > 0 {
			return nil, nil, damage[0]
		}
		return img, x, nil
	}
	img, x, err := open(path)
	if err != nil {
		return 0, err
	}
	defer img.Close()
	ref, y, err := open(linked)
	if err != nil {
		return 0, err
	}
	defer ref.Close()
	covered := uint64(0)
	for i, r := range x.Rows {
		if r.Set == rows.GapID {
			continue
		}
		section, off := img.Place(r.Lo)
		base, ok := at[section]
		if !ok {
			return n, fmt.Errorf("row at %#x: section %q is not in the map", uint64(r.Lo), section)
		}
		length := uint64(x.Hi(i) - r.Lo)
		covered += length
		got := x.Sets[r.Set].Text(x.Machine)
		for _, v := range []uint64{base + off, base + off + length - 1} {
			if want := y.At(arch.Vaddr(v)).Text(y.Machine); got != want || off+length > size[section] {
				return n, fmt.Errorf("row at %s+%#x of %#x bytes, linked to %#x\n got %s\nwant %s", section, off, length, v, got, want)
			}
		}
		n++
	}
	want := uint64(0)
	for i, r := range y.Rows {
		if r.Set != rows.GapID {
			want += uint64(y.Hi(i) - r.Lo)
		}
	}
	if covered != want {
		return n, fmt.Errorf("%#x bytes have rows, want %#x", covered, want)
	}
	if n == 0 {
		err = errors.New("no rows")
	}
	return n, err
}

// TestDamagedObject: a relocation that cannot be applied costs the entry that has it, which is named by its function's place.
func TestDamagedObject(t *testing.T) {
	oracle.Need(t, "clang-19")
	dir := t.TempDir()
	source, object := filepath.Join(dir, "a.s"), filepath.Join(dir, "a.o")
	text := strings.Replace(groups, "\tframe f\n", "\tframe f\n\t.long 0\n", 1) + ".reloc .Lcut, R_X86_64_GOTPCREL, g\n.reloc .Lf, R_X86_64_NONE\n"
	text = strings.Replace(text, "\t.balign 8, 0\n3:", "\t.byte 0, 0, 0\n.ifc \\f,g\n.Lcut:\t.byte 0, 0, 0, 0\n.else\n.Lf:\n.endif\n\t.balign 8, 0\n3:", 1)
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "clang-19", "--target=x86_64-linux-gnu", "-c", "-o", object, source)
	img := openImage(t, object)
	f := openFrames(t, img)
	x, ds := f.Build(EHFrame)
	if section, off := img.Place(x.Rows[0].Lo); len(x.Rows) != 3 || section != ".text.f" || off != 0 {
		t.Errorf("%d rows, from %s+%#x on", len(x.Rows), section, off)
	}
	want := regexp.MustCompile(`^\.eh_frame\+0x[0-9a-f]+: FDE \.text\.g\+0x0: unsupported: relocation R_X86_64_GOTPCREL: not known here$`)
	if len(ds) != 1 || !want.MatchString(ds[0].Error()) {
		t.Errorf("%v, want %v", ds, want)
	}
}

// TestObjectsI386: in an object file of i386 for Windows, each FDE begins where a function does, whose symbol the compiler has written. llvm-dwarfdump does
// not apply these relocations.
func TestObjectsI386(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19")
	dir := t.TempDir()
	src, obj := filepath.Join(dir, "a.c"), filepath.Join(dir, "a.o")
	if err := os.WriteFile(src, []byte("int g(int);\nint one(int a) { volatile char b[9]; b[a] = 1; return g(b[2]); }\nint two(int a) { return g(a) + g(a + 1); }\nstatic int three(void) { return g(3) + 1; }\nint (*p)(void) = three;\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flags := range [][]string{{"-O2"}, {"-O1", "-ffunction-sections"}, {"-O0"}} {
		oracle.Run(t, "clang-19", append(flags, "--target=i686-w64-mingw32", "-fasynchronous-unwind-tables", "-c", "-o", obj, src)...)
		img, err := module.Open(obj)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(img)
		if err != nil {
			t.Fatal(err)
		}
		functions := map[arch.Vaddr]string{}
		if err := img.Symbols(func(s module.Symbol) bool {
			if slices.Contains([]string{"_one", "_two", "_three"}, s.Name) {
				functions[s.Value] = s.Name
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		table, damage := f.Build(EHFrame)
		for _, d := range damage {
			t.Errorf("Build(EHFrame) of %s, built with %s: %v", obj, flags, d)
		}
		if len(functions) != 3 {
			t.Errorf("%v: %v", flags, functions)
		}
		for v, name := range functions {
			if lo, hi, ok := f.Bounds(EHFrame, v); !ok || lo != v || hi < lo+5 || table.Find(v) < 0 {
				t.Errorf("%v: %s at %#x: an FDE of [%#x, %#x)", flags, name, uint64(v), uint64(lo), uint64(hi))
			}
		}
		img.Close()
	}
}
