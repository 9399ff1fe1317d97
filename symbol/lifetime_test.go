package symbol

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// open opens t.
func (t *Table) open() {
	t.enter()
	t.leave()
}

// openAs opens t by a function of the test's.
func (t *Table) openAs(open func()) {
	t.life.Lock()
	defer t.life.Unlock()
	open()
	t.opened = true
}

// TestEvict: names and lines are the same whether a table stays open or is released after each use, from many goroutines at once, and what the tables
// take stays within the budget.
func TestEvict(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	const programs = 20
	var paths []string
	for i := range programs {
		src, path := filepath.Join(dir, "prog.c"), filepath.Join(dir, fmt.Sprint("prog", i))
		code := fmt.Sprintf("static inline int in%d(int x) { return x * %d; }\n__attribute__((noinline)) int f%[1]d(int x) { return in%[1]d(x) + x; }\nint main(int n, char **v) { return f%[1]d(n); }\n", i, i+3)
		if err := os.WriteFile(src, []byte(code), 0o600); err != nil {
			t.Fatal(err)
		}
		oracle.Run(t, "gcc", "-O2", "-g", "-o", path, src)
		paths = append(paths, path)
	}
	type answer struct {
		symbols []Symbol
		places  [][]Place
		private bool
		off     arch.Vaddr
	}
	ask := func(r *Resolver, path string) (a answer) {
		tab := r.Module(path, "")
		lo, hi, ok := tab.FuncRange("main")
		if !ok {
			t.Errorf("%s: no main", path)
			return a
		}
		var addrs []arch.Vaddr
		for v := lo; v < hi; v++ {
			addrs = append(addrs, v)
		}
		a.symbols, a.places, a.private = tab.Resolve(addrs), tab.Places(addrs), tab.Private()
		a.off, _ = tab.OffToVaddr(uint64(lo))
		return a
	}
	roomy := New(Options{})
	defer roomy.Close()
	want := map[string]answer{}
	for _, path := range paths {
		if want[path] = ask(roomy, path); len(want[path].places[0]) == 0 {
			t.Fatalf("%s: no lines", path)
		}
	}
	if used := roomy.opt.Files.Memory.Used(); used < programs*tableCost {
		t.Errorf("%d tables take %d bytes", programs, used)
	}
	files := &module.Locator{}
	files.Memory.Max = 3 * tableCost
	tight := New(Options{Files: files})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				for _, path := range paths {
					if got := ask(tight, path); !reflect.DeepEqual(got, want[path]) {
						t.Errorf("%s: %+v, want %+v", path, got, want[path])
					}
				}
			}
		})
	}
	wg.Wait()
	if !tight.scarce.Load() || roomy.scarce.Load() {
		t.Errorf("there was no room: %v; in a budget that is large enough: %v", tight.scarce.Load(), roomy.scarce.Load())
	}
	ask(tight, paths[0]) // what was in use when it had to go goes now
	// In the end only the last one, with its file, is more than the budget has room for.
	most := 2*files.Memory.Max + roomy.opt.Files.Memory.Used()/programs*2
	if used := files.Memory.Used(); used > most {
		t.Errorf("what is open takes %d bytes of %d", used, most)
	}
	if err := tight.Close(); err != nil {
		t.Error(err)
	}
	if err := files.Close(); err != nil {
		t.Error(err)
	}
	if used := files.Memory.Used(); used != 0 {
		t.Errorf("after Close, %d bytes are used", used)
	}
}

// TestScarce: where there was no room, a table that is asked for one address makes an index of that, and of all when it is asked again.
func TestScarce(t *testing.T) {
	r := New(Options{})
	defer r.Close()
	tab := r.Module("/proc/self/exe", "")
	lo, _, ok := tab.FuncRange("main.main")
	if !ok {
		t.Fatalf("/proc/self/exe has no main.main: %q", tab.Note())
	}
	want, _ := tab.Lookup(lo)
	if want.Linkage != "main.main" || tab.index == nil {
		t.Fatalf("%+v, %v", want, tab.index)
	}
	size := tab.size()
	if evicted := tab.evict(); !evicted || tab.index != nil || !r.scarce.Load() {
		t.Fatalf("a table of %d bytes: evict says %v, want true; it has an index: %v, want false; the Resolver is scarce: %v, want true", size, evicted, tab.index != nil, r.scarce.Load())
	}
	if got, _ := tab.Lookup(lo); got != want || tab.index != nil || tab.size() >= size {
		t.Errorf("%+v, and an index of all symbols: %v; %d bytes, before %d", got, tab.index != nil, tab.size(), size)
	}
	if got, _ := tab.Lookup(lo); got != want || tab.index == nil || tab.size() != size {
		t.Errorf("asked again: %+v, and an index of all symbols: %v; %d bytes, before %d", got, tab.index != nil, tab.size(), size)
	}
}
