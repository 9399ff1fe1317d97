package symbol

import (
	"debug/elf"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/module"
)

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// built is a program with a function that other files see and many that they do not.
func built(t testing.TB) (path string) {
	t.Helper()
	oracle.Need(t, "gcc", "objcopy", "strip")
	dir := t.TempDir()
	var src strings.Builder
	for i := range 300 {
		fmt.Fprintf(&src, "__attribute__((noinline)) static int hidden%d(int a) { return a*%d+1; }\n", i, i)
	}
	src.WriteString("int shown(int a) { return 0")
	for i := range 300 {
		fmt.Fprintf(&src, "+hidden%d(a)", i)
	}
	src.WriteString("; }\nint main(int c, char **v) { return shown(c); }\n")
	write(t, filepath.Join(dir, "a.c"), src.String())
	path = filepath.Join(dir, "a")
	oracle.Run(t, "gcc", "-O1", "-g", "-rdynamic", "-Wl,--build-id", "-o", path, filepath.Join(dir, "a.c"))
	return path
}

// TestStripped: the names that are left in a file without .symtab; those of its debug file; those of
// .gnu_debugdata.
func TestStripped(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "xz")
	whole := built(t)
	dir := filepath.Dir(whole)
	img, err := module.Open(whole)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	id := hex.EncodeToString(img.BuildID())
	f, err := elf.Open(whole)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, _ := f.Symbols()
	all = slices.DeleteFunc(all, func(s elf.Symbol) bool { return !strings.HasPrefix(s.Name, "hidden") && s.Name != "shown" })
	if len(all) != 301 {
		t.Fatalf("%d functions", len(all))
	}

	bare, debug, mini := filepath.Join(dir, "bare"), filepath.Join(dir, "debug", ".build-id", id[:2], id[2:]+".debug"), filepath.Join(dir, "mini")
	os.MkdirAll(filepath.Dir(debug), 0o700)
	oracle.Run(t, "strip", "-o", bare, whole)
	oracle.Run(t, "objcopy", "--only-keep-debug", whole, debug)
	oracle.Run(t, "objcopy", "--strip-debug", "--only-keep-debug", whole, filepath.Join(dir, "mini.elf"))
	embed := func(xz ...string) string {
		os.Remove(filepath.Join(dir, "mini.elf.xz"))
		oracle.Run(t, "xz", append(xz, "-k", filepath.Join(dir, "mini.elf"))...)
		oracle.Run(t, "objcopy", "--add-section", ".gnu_debugdata="+filepath.Join(dir, "mini.elf.xz"), bare, mini)
		b, err := os.ReadFile(mini)
		if err != nil {
			t.Fatal(err)
		}
		path := mini + strings.Join(xz, "")
		write(t, path, string(b))
		return path
	}
	nowhere := []string{filepath.Join(dir, "nowhere")}
	for _, c := range []struct {
		what, path string
		dirs       []string
		id         string
		want       int // how many of the 301 have names
	}{
		{"whole", whole, nowhere, id, 301},
		{"no recorded build ID", whole, nowhere, "", 301},
		{"padded build ID", whole, nowhere, id + "000000", 301},
		{"another build ID", whole, nowhere, "00112233", 0},
		{"stripped", bare, nowhere, id, 1},
		{"debug file", bare, []string{filepath.Join(dir, "debug")}, id, 301},
		{"file gone, debug file there", whole + " (deleted)", []string{filepath.Join(dir, "debug")}, id, 301},
		{"mini debug info", embed(), nowhere, id, 301},
		{"mini debug info, best compression", embed("-9e"), nowhere, id, 301},
		{"mini debug info, several blocks", embed("--block-size=4096", "--check=sha256"), nowhere, id, 301},
		{"mini debug info, one thread's blocks with sizes", embed("-T2", "--block-size=4096", "--check=none"), nowhere, id, 301},
	} {
		r := New(Options{Files: &module.Locator{DebugDirs: c.dirs}})
		tab := r.Module(c.path, c.id)
		n := 0
		for _, s := range all {
			got, ok := tab.Lookup(arch.Vaddr(s.Value + s.Size - 1))
			if ok && got.Name == s.Name && uint64(got.Start) == s.Value && got.Size == s.Size {
				n++
			} else if ok {
				t.Errorf("%s: %s is called %+v", c.what, s.Name, got)
			}
		}
		if n != c.want {
			t.Errorf("%s: %d names, want %d; note %q", c.what, n, c.want, tab.Note())
		}
		if (n == 0) != (tab.Note() != "") {
			t.Errorf("%s: %d names, and the note is %q", c.what, n, tab.Note())
		}
		if n > 0 {
			off, _ := img.VaddrToOff(arch.Vaddr(all[0].Value))
			if v, ok := tab.OffToVaddr(off); c.path[len(c.path)-1] != ')' && (!ok || uint64(v) != all[0].Value) {
				t.Errorf("%s: OffToVaddr(%#x) = %#x, %v", c.what, off, v, ok)
			}
			lo, hi, ok := tab.FuncRange("shown")
			if s, _ := tab.Lookup(lo); !ok || s.Name != "shown" || uint64(hi-lo) != s.Size {
				t.Errorf("%s: FuncRange = %#x, %#x, %v", c.what, lo, hi, ok)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if _, ok := tab.Lookup(arch.Vaddr(all[0].Value)); ok {
			t.Errorf("%s: names after Close", c.what)
		}
	}
	// Without section headers.
	b, _ := os.ReadFile(bare)
	clear(b[40:48])
	write(t, bare+"-headless", string(b))
	r := New(Options{Files: &module.Locator{DebugDirs: nowhere}})
	defer r.Close()
	headless := r.Module(bare+"-headless", "")
	if lo, hi, ok := headless.FuncRange("shown"); !ok || lo == 0 {
		t.Errorf("without section headers, FuncRange of the dynamic symbol shown = %#x, %#x, %v; note %q", lo, hi, ok, headless.Note())
	}
	if vdso := r.Module("[vdso]", ""); vdso.Note() == "" {
		lo, _, ok := vdso.FuncRange("__vdso_clock_gettime") // x86-64; AArch64 has __kernel_clock_gettime
		if s, found := vdso.Lookup(lo); ok && (!found || !strings.Contains(s.Name, "clock_gettime")) {
			t.Errorf("[vdso]: %+v", s)
		}
	} else {
		t.Log(vdso.Note())
	}
	if tab := r.Module("//anon", ""); tab.Note() != "" || tab.Resolve([]arch.Vaddr{1})[0] != (Symbol{}) {
		t.Errorf("anonymous memory has the name %+v, and note %q; want none", tab.Resolve([]arch.Vaddr{1})[0], tab.Note())
	}
	if tab := r.Module("/nonexistent", ""); tab.Note() == "" {
		t.Error("/nonexistent, a file that is not there, has no note; want one")
	}
}

// TestDebugFile: the names of a stripped C library are those of its installed debug file.
func TestDebugFile(t *testing.T) {
	libs, _ := filepath.Glob("/usr/lib/*-linux-gnu/libc.so.6")
	debug, _ := filepath.Glob("/usr/lib/debug/.build-id/*/*.debug")
	if len(libs) == 0 || len(debug) == 0 {
		oracle.Lacks(t, "libc6-dbg")
	}
	r := New(Options{})
	defer r.Close()
	tab := r.Module(libs[0], "")
	lo, hi, ok := tab.FuncRange("__libc_start_call_main")
	if !ok || hi <= lo {
		t.Fatalf("__libc_start_call_main: %#x, %#x, %v", lo, hi, ok)
	}
	if s, ok := tab.Lookup(hi - 1); !ok || s.Name != "__libc_start_call_main" {
		t.Errorf("%+v", s)
	}
	// Where only the debug file is left, it must not say where code is in a file that it is not.
	gone := r.Module(libs[0]+" (deleted)", hex.EncodeToString(tab.img.BuildID()))
	if s, ok := gone.Lookup(lo); !ok || s.Name != "__libc_start_call_main" {
		t.Errorf("by build ID: %+v", s)
	}
	off, _ := tab.OffToVaddr(0x30000)
	if v, ok := gone.OffToVaddr(0x30000); ok && v != off {
		t.Errorf("OffToVaddr = %#x, want %#x", v, off)
	} else {
		t.Logf("OffToVaddr by the debug file: %#x, %v; the file has %#x", v, ok, off)
	}
}

// TestTruncatedLater: a file that shrinks under a table costs its names.
func TestTruncatedLater(t *testing.T) {
	oracle.Long(t)
	path := built(t)
	r := New(Options{})
	defer r.Close()
	tab := r.Module(path, "")
	tab.open()
	os.Truncate(path, 0)
	if s, ok := tab.Lookup(0x1000); ok {
		t.Errorf("%+v", s)
	}
	tab.FuncRange("shown")
}

// TestWritten: a file that another program is written into, in place, has no names for what ran, and those of the other one for what runs then. What was
// read while it was written to is not used.
func TestWritten(t *testing.T) {
	oracle.Long(t)
	for _, flag := range []string{"-Wl,--build-id", "-Wl,--build-id=none"} {
		t.Run(flag, func(t *testing.T) { written(t, flag) })
	}
}

func written(t *testing.T, flag string) {
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	var prog [2][]byte
	var id [2]string
	var at [2]arch.Vaddr
	for i, name := range []string{"first", "second"} {
		src, out := filepath.Join(dir, name+".c"), filepath.Join(dir, name)
		write(t, src, fmt.Sprintf("int %s(int a) { return a; }\nint main(int c, char **v) { return %s(c); }\n", name, name))
		oracle.Run(t, "gcc", "-O0", flag, "-o", out, src)
		img, err := module.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		id[i] = hex.EncodeToString(img.BuildID())
		img.Symbols(func(s module.Symbol) bool {
			if s.Name == name {
				at[i] = s.Value
			}
			return true
		})
		if prog[i], err = os.ReadFile(out); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "program")
	begin := time.Now()
	put := func(i int) {
		write(t, path, string(prog[i]))
		at := begin.Add(time.Duration(i) * time.Second) // the clock of files may stand still for a while
		os.Chtimes(path, at, at)
		if flag == "-Wl,--build-id=none" {
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil {
				t.Fatal(err)
			}
			id[i] = module.Inode(unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino, procfs.Stamp(&st))
		}
	}
	put(0)
	r := New(Options{})
	defer r.Close()
	first := r.Module(path, id[0])
	name := func(tab *Table, i int) string {
		s, _ := tab.Lookup(at[i])
		return s.Name
	}
	if got := name(first, 0); got != "first" {
		t.Fatalf("what runs has the name %q; note %q", got, first.Note())
	}
	put(1)
	if got := name(first, 0); got != "" || !first.Replaced() {
		t.Errorf("what ran has the name %q, replaced %v; want none, replaced", got, first.Replaced())
	}
	if got := name(r.Module(path, id[1]), 1); got != "second" {
		t.Errorf("what runs now has the name %q; note %q", got, r.Module(path, id[1]).Note())
	}
	put(0)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if got := name(first, 0); got == "first" && first.Note() == "" && !first.Replaced() {
			break
		} else if time.Now().After(end) {
			t.Fatalf("what ran, and is there again, has the name %q; note %q, replaced %v", got, first.Note(), first.Replaced())
		}
	}
	if first.use(func() { put(1) }) {
		t.Error("what is read of two files is used")
	}
}

// TestNotKept: the answers of a file that shrank may not be kept, nor those of a table that named further files
// before it was released.
func TestNotKept(t *testing.T) {
	oracle.Long(t)
	path := built(t)
	time.Sleep(2100 * time.Millisecond) // nothing is kept of younger files
	tables := map[string]*Table{}
	for what, spoil := range map[string]func(tab *Table){
		"good": func(*Table) {},
		"named another": func(tab *Table) {
			tab.enter()
			tab.linked("/nonexistent", nil)
			tab.leave()
		},
	} {
		r := New(Options{})
		defer r.Close()
		tab := r.Module(path, "")
		if _, ok := tab.Identity(true); !ok {
			t.Skipf("this test lacks a directory of temporary files that only this user can change: %q", tab.Note())
		}
		spoil(tab)
		if !tab.evict() {
			t.Fatalf("%s is not evicted: it is in use", path)
		}
		if _, ok := tab.Identity(true); ok != (what == "good") {
			t.Errorf("%s: kept %v", what, ok)
		}
		tables[what] = tab
	}
	tab := tables["good"]
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if s, ok := tab.Lookup(0x1000); ok || tab.Note() == "" {
		t.Errorf("truncated: %+v, note %q", s, tab.Note())
	}
	if id, ok := tab.Identity(false); ok {
		t.Errorf("truncated: answers are kept as those of build ID %q, sum %x; want none", id.BuildID, id.Sum)
	}
}

// TestDamaged: files with flipped bits and cut ones.
func TestDamaged(t *testing.T) {
	oracle.Long(t)
	b, err := os.ReadFile(built(t))
	if err != nil {
		t.Fatal(err)
	}
	try := func(b []byte) {
		if img, err := module.New("damaged", b); err == nil {
			tab := New(Options{Files: &module.Locator{DebugDirs: []string{}}}).Module("damaged", "")
			tab.openAs(func() { tab.find(img) })
			tab.Resolve([]arch.Vaddr{0, 0x1000, 0x1010, 0x1100, 0x2000, ^arch.Vaddr(0)})
			tab.FuncRange("shown")
		}
	}
	for n := 0; n < len(b); n += 1 + len(b)/200 {
		try(b[:n:n])
	}
	at := len(b) - 64*40 // section headers are at the end
	for i := 8 * at; i < 8*len(b); i += 7 {
		b[i/8] ^= 1 << (i % 8)
		try(b)
		b[i/8] ^= 1 << (i % 8)
	}
}

// TestConcurrent: one resolver, many callers. The race detector judges.
func TestConcurrent(t *testing.T) {
	path := built(t)
	r := New(Options{})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			tab := r.Module(path, "")
			lo, hi, ok := tab.FuncRange("shown")
			if s, found := tab.Lookup(hi - 1); !ok || !found || s.Start != lo {
				t.Errorf("%#x, %v, %+v", lo, ok, s)
			}
			tab.Note()
			tab.OffToVaddr(0x1000)
			r.Short("_ZN1a1bEv")
			r.Kernel(uint64(i))
		})
	}
	wg.Wait()
	for range 2 {
		wg.Go(func() { r.Close() })
		wg.Go(func() { r.Module(path, "").Lookup(0x1100) })
	}
	wg.Wait()
}

// TestDemangle: with and without parameters; what is no mangled name stays.
func TestDemangle(t *testing.T) {
	for _, c := range [][3]string{
		{"_ZN1a1bEi", "a::b(int)", "a::b"},
		{"_ZNSt6vectorIiSaIiEE9push_backERKi", "std::vector<int, std::allocator<int> >::push_back(int const&)", "std::vector<int, std::allocator<int> >::push_back"},
		{"_ZN1a1bEi.part.0", "a::b(int) [clone .part.0]", "a::b"},
		{"_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write", "core::fmt::write"},
		{"_ZN3std2fs10DirBuilder7_create17h0123456789abcdefE", "std::fs::DirBuilder::_create", "std::fs::DirBuilder::_create"},
		{"_ZN43_$LT$alloc..vec..Vec$u20$as$u20$core..X$GT$1f17h0123456789abcdefE.llvm.1234567", "<alloc::vec::Vec as core::X>::f", "<alloc::vec::Vec as core::X>::f"},
		{"_ZN3std2io5Write3fmt17h0123456789abcdefE.cold", "std::io::Write::fmt [clone .cold]", "std::io::Write::fmt"},
		{"_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar", "mycrate::foo::bar"},
		{"_ZN1a1bEi@V1", "a::b(int)", "a::b"}, {"memcpy@@GLIBC_2.14", "memcpy", "memcpy"}, {"f@V1@plt", "f@plt", "f@plt"}, {"_ZN1a1bEi@plt", "a::b(int)@plt", "a::b@plt"}, {"@x", "@x", "@x"},
		{"main", "main", "main"}, {"_Z", "_Z", "_Z"}, {"_Zgarbage", "_Zgarbage", "_Zgarbage"}, {"", "", ""},
		{"runtime.mallocgc", "runtime.mallocgc", "runtime.mallocgc"},
	} {
		if got := Demangle(c[0], false); got != c[1] {
			t.Errorf("Demangle(%q) = %q, want %q", c[0], got, c[1])
		}
		if got := Demangle(c[0], true); got != c[2] {
			t.Errorf("Demangle(%q, short) = %q, want %q", c[0], got, c[2])
		}
	}
	// Each name is demangled once.
	var n names
	a := n.get("_ZN1a1bEi", false)
	if allocs := testing.AllocsPerRun(10, func() { n.get("_ZN1a1bEi", false) }); allocs != 0 || a != "a::b(int)" {
		t.Errorf("%v allocations for a name that is known", allocs)
	}
}

func FuzzDemangle(f *testing.F) {
	f.Add("_ZNSt6vectorIiSaIiEE9push_backERKi@V")
	f.Add("_RNvNtCs1234_7mycrate3foo3bar")
	f.Fuzz(func(t *testing.T, s string) {
		Demangle(s, false)
		Demangle(s, true)
	})
}

// TestLost: a file that was written to, and is not there any more, is looked for again, but not twice for one question, however long that takes.
func TestLost(t *testing.T) {
	oracle.Long(t)
	path := built(t)
	asked := 0
	r := New(Options{Fetch: func([]byte, string) (string, error) {
		asked++
		time.Sleep(rewriting / 2) // one for the program, one for its debug file
		return "", os.ErrNotExist
	}})
	defer r.Close()
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	tab := r.Module(path, hex.EncodeToString(img.BuildID()))
	if _, ok := tab.Lookup(img.Entry()); !ok {
		t.Fatalf("no name: %q", tab.Note())
	}
	write(t, path, "another file")
	for i := range 2 {
		if s, ok := tab.Lookup(img.Entry()); ok {
			t.Errorf("a name: %+v", s)
		}
		if want := 2 * (i + 1); asked > want {
			t.Errorf("after question %d, it was looked for %d times, want %d at most", i, asked, want)
		}
		time.Sleep(rewriting)
	}
}
