package symbol

import (
	"bufio"
	"bytes"
	"debug/elf"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// judged are the files whose names are compared: C, C++ and Rust, with and without .symtab, with a separate debug file
// where one is installed.
func judged(t testing.TB) []string {
	t.Helper()
	var out []string
	for _, pattern := range []string{
		"/usr/lib/*-linux-gnu/libc.so.6", "/lib64/ld-linux*.so.2", "/usr/lib/*-linux-gnu/libstdc++.so.6", "/usr/bin/python3.*[0-9]", "/usr/bin/gdb",
		"/usr/bin/node", "/usr/lib/*-linux-gnu/libstd-*.so", "/usr/lib/gcc/*/*/cc1plus", "/usr/bin/perf_*",
	} {
		paths, _ := filepath.Glob(pattern)
		out = append(out, paths...)
	}
	if len(out) == 0 {
		oracle.Lacks(t, "binaries with symbols")
	}
	return out
}

// others are large files, for which llvm-symbolizer is fast enough, and programs of languages with names of their own, with debug
// information and without. What is left in stripped ones is for the tests of packages debuginfo and gosym.
func others(t *testing.T) []string {
	t.Helper()
	oracle.Need(t, "rustc", "go")
	var out []string
	for _, pattern := range []string{"/usr/lib/llvm-19/bin/clang", "/usr/lib/*-linux-gnu/libLLVM.so.19*", "/usr/lib/*-linux-gnu/libclang-cpp.so.19*"} {
		paths, _ := filepath.Glob(pattern)
		out = append(out, paths...)
	}
	dir := t.TempDir()
	rust, golang := filepath.Join(dir, "a.rs"), filepath.Join(dir, "a.go")
	write(t, rust, "trait T { fn f(&self) -> usize; }\nimpl<X: std::fmt::Debug> T for Vec<X> { #[inline(never)] fn f(&self) -> usize { format!(\"{:?}\", self).len() } }\n"+
		"fn main() { println!(\"{}\", vec![1, 2, 3].f() + vec![\"a\"].f()); }\n")
	write(t, golang, "package main\n\nimport \"fmt\"\n\nfunc main() { fmt.Println(fmt.Sprint(1)) }\n")
	for i, build := range [][]string{{"rustc", "-O", "-g"}, {"rustc", "-O"}, {"rustc", "-C", "symbol-mangling-version=v0"}, {"go", "build"}, {"go", "build", "-ldflags=-w"}} {
		src := rust
		if build[0] == "go" {
			src = golang
		}
		exe := filepath.Join(dir, fmt.Sprint(build[0], i))
		cmd := exec.Command(build[0], append(build[1:], "-o", exe, src)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GO111MODULE=off", "GOFLAGS=-trimpath")
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", build, err, b)
		}
		out = append(out, exe)
	}
	return out
}

// A truth is what a file's tables say, read by debug/elf.
type truth struct {
	funcs  []elf.Symbol            // functions with a size
	byName map[string][]elf.Symbol // all that have a place
}

func readTruth(t *testing.T, tab *Table) *truth {
	t.Helper()
	tr := &truth{byName: map[string][]elf.Symbol{}}
	tab.open()
	for _, img := range []string{tab.path, debugPath(tab)} {
		if img == "" {
			continue
		}
		f, err := elf.Open(img)
		if err != nil {
			t.Fatal(err)
		}
		a, _ := f.Symbols()
		b, _ := f.DynamicSymbols()
		for _, s := range append(a, b...) {
			if s.Section == elf.SHN_UNDEF {
				continue
			}
			tr.byName[s.Name] = append(tr.byName[s.Name], s)
			if typ := elf.ST_TYPE(s.Info); (typ == elf.STT_FUNC || typ == elf.STT_GNU_IFUNC) && s.Size > 0 {
				tr.funcs = append(tr.funcs, s)
			}
		}
		f.Close()
	}
	return tr
}

func debugPath(tab *Table) string {
	if tab.debug == nil {
		return ""
	}
	return tab.debug.Name()
}

// alias says whether the judge's name is another one for the start of ours. That is the only difference there may be:
// source.rank says which of several names is shown.
func (tr *truth) alias(ours Symbol, judge string) bool {
	return slices.ContainsFunc(tr.byName[judge], func(s elf.Symbol) bool { return s.Value == uint64(ours.Start) })
}

// compare asks for the start, the middle and the last byte of functions, and holds the answers against the judge's.
func compare(t *testing.T, judge string, files []string, limit int, ask func(path string, addrs []uint64) []string) {
	r := New(Options{})
	defer r.Close()
	total, aliases := 0, 0
	for _, path := range files {
		tab := r.Module(path, "")
		tr := readTruth(t, tab)
		var addrs []uint64
		step := max(1, len(tr.funcs)/limit)
		for i := 0; i < len(tr.funcs); i += step {
			s := &tr.funcs[i]
			addrs = append(addrs, s.Value, s.Value+s.Size/2, s.Value+s.Size-1)
		}
		slices.Sort(addrs)
		addrs = slices.Compact(addrs)
		theirs := ask(path, addrs)
		if len(theirs) != len(addrs) {
			t.Errorf("%s: %s answered %d of %d times", path, judge, len(theirs), len(addrs))
			continue
		}
		vaddrs := make([]arch.Vaddr, len(addrs))
		for i, a := range addrs {
			vaddrs[i] = arch.Vaddr(a)
		}
		bad := 0
		for i, ours := range tab.Resolve(vaddrs) {
			total++
			if one, _ := tab.Lookup(vaddrs[i]); one != ours {
				t.Errorf("%s: Lookup(%#x) = %+v, Resolve has %+v", path, addrs[i], one, ours)
			}
			want := theirs[i]
			// .symtab has versions in names, as "f@@V1".
			if base, _, _ := strings.Cut(ours.Linkage, "@"); ours.Linkage == want || base == want {
				continue
			}
			if tr.alias(ours, want) {
				aliases++
			} else if bad++; bad < 10 {
				t.Errorf("%s: %#x is %+v, %s says %q", path, addrs[i], ours, judge, want)
			}
		}
		if bad > 0 {
			t.Errorf("%s: %d of %d differ", path, bad, len(addrs))
		}
	}
	t.Logf("%d addresses, %d have another name for the same start", total, aliases)
}

func hexLines(addrs []uint64) *bytes.Buffer {
	var in bytes.Buffer
	for _, a := range addrs {
		fmt.Fprintf(&in, "%#x\n", a)
	}
	return &in
}

// TestLLVM compares names with llvm-symbolizer's. Where there is debug information it takes names from there, those of
// inlined functions too: it gets a copy without.
func TestLLVM(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-symbolizer-19", "objcopy")
	r := New(Options{})
	defer r.Close()
	plain := filepath.Join(t.TempDir(), "plain")
	compare(t, "llvm-symbolizer", append(judged(t), others(t)...), 4000, func(path string, addrs []uint64) []string {
		tab := r.Module(path, "")
		tab.open()
		if d := debugPath(tab); d != "" {
			path = d
		}
		if tab.debug != nil || tab.img.Section(".debug_info") != nil {
			oracle.Run(t, "objcopy", "--strip-debug", "--remove-section=.note.gnu.build-id", "--remove-section=.gnu_debuglink", path, plain)
			path = plain
		}
		cmd := exec.Command("llvm-symbolizer-19", "--obj="+path, "--functions=linkage", "--no-inlines", "--no-demangle", "--output-style=GNU")
		cmd.Stdin = hexLines(addrs)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("llvm-symbolizer-19 --obj=%s: %v", path, err)
		}
		var names []string
		for i, line := range strings.Split(strings.TrimSuffix(string(out), "\n"), "\n") {
			if i%2 == 0 { // a place in a source file is the other
				names = append(names, strings.TrimPrefix(line, "??"))
			}
		}
		return names
	})
}

// TestElfutils compares names with those of eu-addr2line -S.
func TestElfutils(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "eu-addr2line")
	offset := regexp.MustCompile(`\+0x[0-9a-f]+$`)
	compare(t, "eu-addr2line", judged(t), 300, func(path string, addrs []uint64) []string {
		cmd := exec.Command("eu-addr2line", "-S", "-e", path)
		cmd.Stdin = hexLines(addrs)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("eu-addr2line -e %s: %v", path, err)
		}
		var names []string
		for i, line := range strings.Split(strings.TrimSuffix(string(out), "\n"), "\n") {
			if i%2 == 0 {
				line = offset.ReplaceAllString(line, "")
				line, _, _ = strings.Cut(line, "@")
				if strings.HasPrefix(line, "()") || strings.HasPrefix(line, "(.") { // a section and an offset
					line = ""
				}
				names = append(names, line)
			}
		}
		return names
	})
}

// TestNm: what a symbol is called in full, as nm -C prints it.
func TestNm(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "nm")
	total, differ := 0, 0
	for _, path := range judged(t) {
		list := func(args ...string) []string {
			out, _ := exec.Command("nm", append(args, "-p", "--without-symbol-versions", path)...).Output()
			return strings.Split(string(out), "\n")
		}
		for _, table := range []string{"-a", "-D"} {
			raw, full := list(table), list(table, "-C")
			for i, line := range raw {
				if len(line) < 20 || i >= len(full) || len(full[i]) < 20 {
					continue
				}
				linkage, want := line[19:], full[i][19:]
				if !mangled(linkage) {
					continue
				}
				total++
				if got := Demangle(linkage, false); strip(got) != strip(want) {
					k := 0
					for k < len(got) && k < len(want) && got[k] == want[k] {
						k++
					}
					if differ++; differ <= 5 {
						t.Logf("%.40s got …%.100s want …%.100s", linkage, got[max(k-30, 0):], want[max(k-30, 0):])
					}
				}
			}
		}
	}
	t.Logf("%d names, %d are spelled otherwise", total, differ)
	if differ > total/500 {
		t.Errorf("%d of %d names are spelled otherwise", differ, total)
	}
}

var rustHash = regexp.MustCompile(`::h[0-9a-f]{16}(\.|$)`)

// strip takes away spaces, which nobody agrees on, and the hash of Rust's old mangling.
func strip(s string) string {
	return strings.ReplaceAll(rustHash.ReplaceAllString(s, "$1"), " ", "")
}

// TestPLT compares the names of procedure linkage tables with objdump's.
func TestPLT(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "objdump")
	files := oracle.Spread(oracle.Binaries(t), 60)
	files = append(files, judged(t)[:2]...)
	files = append(files, builtPLTs(t)...)
	r := New(Options{})
	defer r.Close()
	total := 0
	for _, path := range files {
		tool := "objdump"
		if st, err := os.Stat(path); err != nil || st.Size() > 8<<20 { // objdump is slow
			continue
		}
		f, err := elf.Open(path)
		if err != nil {
			continue
		}
		if f.Machine == elf.EM_AARCH64 {
			tool = "aarch64-linux-gnu-objdump"
		}
		want := map[uint64]string{}
		for _, s := range f.Sections {
			if !slices.Contains([]string{".plt", ".plt.sec", ".plt.got", ".iplt"}, s.Name) {
				continue
			}
			cmd := exec.Command(tool, "-d", "--no-show-raw-insn", "-j", s.Name, path)
			out, err := cmd.StdoutPipe()
			if err != nil || cmd.Start() != nil {
				continue
			}
			for sc := bufio.NewScanner(out); sc.Scan(); {
				if m := pltHead.FindStringSubmatch(sc.Text()); m != nil {
					a, _ := strconv.ParseUint(m[1], 16, 64)
					want[a] = pltName(m[2])
				}
			}
			cmd.Wait()
		}
		f.Close()
		tab := r.Module(path, "")
		for a, name := range want {
			total++
			s, _ := tab.Lookup(arch.Vaddr(a))
			got := pltName(s.Linkage)
			if resolver := strings.HasPrefix(name, "*ABS*+0x"); resolver { // of an indirect function
				v, _ := strconv.ParseUint(strings.TrimSuffix(name, "@plt")[8:], 16, 64)
				if f, ok := tab.Lookup(arch.Vaddr(v)); ok {
					name = pltName(f.Linkage + "@plt")
				} else {
					name = ""
				}
			}
			if got != name || got != "" && uint64(s.Start) != a {
				t.Errorf("%s: %#x is %+v, objdump says %s", path, a, s, name)
			}
		}
		tab.use(func() {
			tab.getIndex()
			for i := range tab.sources {
				s := &tab.sources[i]
				for j := range s.Len() {
					if e := s.At(j); bytes.HasSuffix(s.name(e.Name), []byte("@plt")) && want[e.Value] == "" {
						t.Errorf("%s: %#x is %s, objdump has no name", path, e.Value, s.name(e.Name))
					}
				}
			}
		})
	}
	t.Logf("%d entries in %d files", total, len(files))
}

var pltHead = regexp.MustCompile(`^([0-9a-f]{16}) <(.+@plt)>:$`)

// pltName takes the version out of "f@V1@plt".
func pltName(s string) string {
	base, _, ok := strings.Cut(s, "@")
	if !ok || strings.HasPrefix(s, "*ABS*") {
		return s
	}
	return base + "@plt"
}

// builtPLTs returns shared objects of every kind of table.
func builtPLTs(t *testing.T) (out []string) {
	dir := t.TempDir()
	src := filepath.Join(dir, "a.c")
	write(t, src, "int puts(const char *); void *malloc(unsigned long);\nvoid *p = malloc;\nint f(void) { puts(\"\"); return malloc(1) != p; }\n")
	for i, cc := range [][]string{
		{"gcc"}, {"gcc", "-Wl,-z,ibtplt"}, {"gcc", "-fcf-protection=full", "-Wl,-z,ibt"}, {"gcc", "-Wl,-z,now"}, {"clang-19", "-fuse-ld=lld"},
		{"aarch64-linux-gnu-gcc"}, {"aarch64-linux-gnu-gcc", "-mbranch-protection=standard", "-Wl,-z,force-bti"}, {"aarch64-linux-gnu-gcc", "-Wl,-z,pac-plt"},
	} {
		lib := filepath.Join(dir, fmt.Sprint(i, ".so"))
		if b, err := exec.Command(cc[0], append(cc[1:], "-shared", "-fPIC", "-O1", "-nostdlib", "-o", lib, src)...).CombinedOutput(); err != nil {
			t.Logf("%v: %v %s", cc, err, b)
			continue
		}
		out = append(out, lib)
	}
	return out
}

// TestStaticPLTs: in static programs, each stub has the name of the function that chooses its target: objdump says which slot it jumps by, and readelf
// which function chooses what is there.
func TestStaticPLTs(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc", "objdump", "readelf", "clang-19", "ld.lld-19")
	src := filepath.Join(t.TempDir(), "a.c")
	write(t, src, `static volatile int n;
static int f1(void) { return n; }
static int f2(void) { return 2; }
static void *pick(void) { return n ? f1 : f2; }
int f(void) __attribute__((ifunc("pick")));
int main(void) { return f(); }
`)
	jump := regexp.MustCompile(`(?m)^ *([0-9a-f]+):.*jmp .*# ([0-9a-f]+)`)
	relocation := regexp.MustCompile(`(?m)^([0-9a-f]+) .*R_X86_64_IRELATIVE? +([0-9a-f]+)`)
	for i, cc := range [][]string{{"gcc"}, {"gcc", "-fcf-protection=full", "-Wl,-z,ibtplt"}, {"clang-19", "-fuse-ld=lld"}} {
		path := filepath.Join(t.TempDir(), fmt.Sprint(i))
		oracle.Run(t, cc[0], append(cc[1:], "-static", "-O1", "-o", path, src)...)
		chosen := map[uint64]uint64{}
		for _, m := range relocation.FindAllSubmatch(oracle.Run(t, "readelf", "-rW", path), -1) {
			at, _ := strconv.ParseUint(string(m[1]), 16, 64)
			chosen[at], _ = strconv.ParseUint(string(m[2]), 16, 64)
		}
		r := New(Options{})
		tab, total, own := r.Module(path, ""), 0, 0
		for _, section := range []string{".plt", ".iplt"} {
			out, err := exec.Command("objdump", "-d", "--no-show-raw-insn", "-j", section, path).Output()
			if err != nil {
				continue // it has one of them
			}
			before := uint64(0) // where the last stub, of 8 bytes at least, begins
			for _, m := range jump.FindAllSubmatch(out, -1) {
				at, _ := strconv.ParseUint(string(m[1]), 16, 64)
				slot, _ := strconv.ParseUint(string(m[2]), 16, 64)
				f, ok := tab.Lookup(arch.Vaddr(chosen[slot]))
				if !ok {
					continue
				}
				total++
				got, _ := tab.Lookup(arch.Vaddr(at))
				if pltName(got.Linkage) != pltName(f.Linkage+"@plt") || uint64(got.Start) > at || uint64(got.Start) <= before {
					t.Errorf("%v: the stub at %#x is %+v, %s chooses its target", cc, at, got, f.Linkage)
				}
				if f.Linkage == "pick" || f.Linkage == "f" {
					own++
				}
				before = at
			}
		}
		r.Close()
		if total < 10 || own != 1 {
			t.Errorf("%v: %d stubs, %d of them ours", cc, total, own)
		}
	}
}

// TestPerf compares names with those that perf gives to samples of a program and of the kernel under it.
func TestPerf(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "perf", "python3")
	data := filepath.Join(t.TempDir(), "perf.data")
	prog := "import os\nfor i in range(60000): os.stat('/'); str(i).split('1'); sorted(range(30))"
	if out, err := exec.Command("perf", "record", "-q", "-e", "cpu-clock", "-F", "2000", "-o", data, "--", "python3", "-c", prog).CombinedOutput(); err != nil {
		t.Skipf("perf cannot record here: %v %s", err, out)
	}
	out, err := exec.Command("perf", "script", "-i", data, "-F", "ip,sym,symoff,dso").Output()
	if err != nil {
		t.Fatal(err)
	}
	r := New(Options{})
	defer r.Close()
	truths := map[string]*truth{}
	user, kernel, others := 0, 0, map[string]bool{}
	for _, m := range perfLine.FindAllStringSubmatch(string(out), -1) {
		ip, _ := strconv.ParseUint(m[1], 16, 64)
		off, _ := strconv.ParseUint(m[3], 16, 64)
		name, dso := m[2], m[4]
		if dso == "[kernel.kallsyms]" {
			if noteOf(r) != "" {
				continue
			}
			kernel++
			if s, mod, ok := r.Kernel(ip); !ok || mod != KernelModule || ip-uint64(s.Start) != off {
				t.Errorf("%#x is %+v in %s, perf says %s+%#x", ip, s, mod, name, off)
			} else if s.Linkage != name {
				others[name+" is "+s.Linkage] = true
			}
			continue
		}
		if !strings.HasPrefix(dso, "/") || strings.HasSuffix(name, "@plt") || strings.Contains(name, "::") {
			continue
		}
		tab := r.Module(dso, "")
		tr := truths[dso]
		if tr == nil {
			tr = readTruth(t, tab)
			truths[dso] = tr
		}
		user++
		found := false
		for _, s := range tr.byName[name] {
			ours, _ := tab.Lookup(arch.Vaddr(s.Value + off))
			if found = found || uint64(ours.Start) == s.Value && ours.Name != ""; ours.Linkage != name {
				others[name+" is "+ours.Linkage] = true
			}
		}
		if !found {
			t.Errorf("perf says %s+%#x (%s), which is not there", name, off, dso)
		}
	}
	t.Logf("%d user and %d kernel addresses; other names for the same start: %q", user, kernel, slices.Sorted(maps.Keys(others)))
	if user == 0 {
		t.Errorf("0 user addresses, %d of the kernel", kernel)
	}
}

var perfLine = regexp.MustCompile(`(?m)^\s*([0-9a-f]+) (\S.*)\+0x([0-9a-f]+) \((.+)\)$`)
