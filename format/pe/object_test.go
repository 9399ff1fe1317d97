package pe

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// objects has calls at the ends of functions, parts that are called for exceptions, frames of all sizes, and functions in sections of their own.
const objects = `
extern "C" { int ext(int); void use(void *, double); }
struct S { S(); ~S(); int x[40]; };
template <int N> struct Big { int x[N]; Big(); ~Big(); };
inline int both(int a) { S s; return ext(a) + s.x[a]; }
template <int N> int sized(int a) { Big<N> b; S s; try { return both(a) + b.x[a]; } catch (int i) { return ext(i + N); } catch (...) { return ext(a - N); } }
extern "C" {
int one(int a) { S s; return ext(a) + 1; }
int two(int a) { return both(a) + both(a + 1); }
int leaf(int a) { return a * 3; }
int tail(int a, int *p) { *p = ext(a); return ext(*p); }
int ways(int a, int *p) { if (a > 3) { int x = ext(a); return ext(x + *p); } *p = ext(a + 1) + ext(a + 2); if (*p > 9) return leaf(a); return ext(*p * a); }
double vectors(double a, double b, double c, double d) { double e = ext(1) * a; return e + b * c * d * ext(2) * e; }
int small(int a) { return sized<3>(a) + sized<40>(a); }
int large(int a) { return sized<2000>(a) + sized<200000>(a); }
void varies(int n) { use(__builtin_alloca(n), 1.5); use(0, ext(n)); }
int loop(int n) { int r = 0; for (int i = 0; i < n; i++) r += ext(i) * ext(r); return r; }
}
`

// TestObjects: the rows of an object file are those of the image that LLVM's linker makes of it, at each address of each function.
func TestObjects(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19", "lld-link-19")
	dir := t.TempDir()
	source := filepath.Join(dir, "a.cc")
	if err := os.WriteFile(source, []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, triple := range []string{"x86_64-pc-windows-msvc", "aarch64-pc-windows-msvc", "x86_64-w64-windows-gnu"} {
		for _, level := range []string{"-O0", "-O1", "-O2", "-Os"} {
			object, image := filepath.Join(dir, triple+level+".obj"), filepath.Join(dir, triple+level+".dll")
			oracle.Run(t, "clang-19", "--target="+triple, level, "-fexceptions", "-ffunction-sections", "-c", "-o", object, source)
			sameLinked(t, object, image, 400)
		}
	}
	for name, triple := range golden {
		object, image := filepath.Join(dir, name+".obj"), filepath.Join(dir, name+".dll")
		oracle.Run(t, "clang-19", "--target="+triple, "-c", "-o", object, filepath.Join("testdata", name+".s"))
		sameLinked(t, object, image, 70)
	}
}

// sameLinked links an object file, and compares so many addresses at least.
func sameLinked(t *testing.T, object, image string, want int) {
	t.Helper()
	args := []string{"/dll", "/noentry", "/nodefaultlib", "/opt:noref,noicf", "/debug:symtab", "/force", "/out:" + image, object}
	if strings.Contains(object, "gnu") {
		args = append(args, "/lldmingw")
	}
	oracle.Run(t, "lld-link-19", args...)
	read := func(path string) (*Table, *rows.Table, map[string]arch.Vaddr) {
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { img.Close() })
		tab := Open(img)
		if tab == nil {
			t.Fatalf("%s: no unwind information", path)
		}
		r, _ := tab.Rows()
		at := map[string]arch.Vaddr{}
		img.Symbols(func(s module.Symbol) bool {
			if s.Kind == module.Func && !s.Dynamic && s.Bind == module.Global {
				at[strings.Clone(s.Name)] = s.Value
			}
			return true
		})
		return tab, r.Overlay(tab.Leaves()), at
	}
	a, x, begins := read(object)
	b, y, theirs := read(image)
	if len(a.errs) > 0 || len(a.entries) != len(b.entries) {
		t.Errorf("%s: %d entries, want %d; %v", object, len(a.entries), len(b.entries), a.errs)
	}
	n := 0
	for name, begin := range begins {
		to, ok := theirs[name]
		if !ok {
			continue
		}
		lo, hi, ok := a.Bounds(begin)
		_, end, also := b.Bounds(to)
		if ok != also || ok && (lo != begin || hi-begin != end-to) {
			t.Errorf("%s: %s: [%#x, %#x), and in the image %#x to %#x", object, name, uint64(lo), uint64(hi), uint64(to), uint64(end))
			continue
		}
		if !ok {
			hi = begin + 1
		}
		for ; begin < hi; begin, to = begin+1, to+1 {
			text := func(r *rows.Table, v arch.Vaddr) string {
				if s := r.At(v); s != nil {
					return s.Text(r.Machine)
				}
				return "none"
			}
			if got, want := text(x, begin), text(y, to); got != want {
				t.Errorf("%s: %s, at %#x: %s, want %s", object, name, uint64(begin), got, want)
				break
			}
			n++
		}
	}
	if n < want {
		t.Errorf("%s: %d addresses, want %d", object, n, want)
	}
	t.Logf("%s: %d addresses of %d functions", filepath.Base(object), n, len(begins))
}

// TestReadobjObjects: entries and codes of object files are those that llvm-readobj reads. It writes addresses as offsets of relocations.
func TestReadobjObjects(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19", "llvm-readobj-19")
	dir := t.TempDir()
	source := filepath.Join(dir, "a.cc")
	if err := os.WriteFile(source, []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	where := regexp.MustCompile(`(?m)^(StartAddress|EndAddress|UnwindInfoAddress|Handler): .*$`)
	for _, triple := range []string{"x86_64-pc-windows-msvc", "x86_64-w64-windows-gnu"} {
		object := filepath.Join(dir, triple+".obj")
		oracle.Run(t, "clang-19", "--target="+triple, "-O2", "-fexceptions", "-ffunction-sections", "-c", "-o", object, source)
		img, err := module.Open(object)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		tab := Open(img)
		want, whole := readobj(t, object)
		if !whole || len(want) != len(tab.entries) || len(want) < 12 {
			t.Fatalf("%s: %d entries, want %d", triple, len(tab.entries), len(want))
		}
		count := map[string]int{}
		for i, w := range want {
			got, err := tab.likeReadobj(tab.reader(), tab.entries[i])
			if err != nil {
				t.Error(err)
			}
			count[where.ReplaceAllString(got, "$1")]++
			count[where.ReplaceAllString(named.ReplaceAllString(w, "$1 $2"), "$1")]--
		}
		for s, n := range count {
			if n != 0 {
				t.Errorf("%s: %+d times\n%s", triple, n, s)
			}
		}
	}
}
