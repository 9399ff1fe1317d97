package lab

import (
	"debug/elf"
	"strings"
	"sync"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/unwind"
)

// A loader makes the modules of address spaces, each file once. Its tables are made by table.
type loader struct {
	table func(*module.Image) (rows.Stepper, error)

	mu   sync.Mutex
	mods map[string]*unwind.Module
	errs map[string]error
}

func newLoader(table func(*module.Image) (rows.Stepper, error)) *loader {
	return &loader{table: table, mods: map[string]*unwind.Module{}, errs: map[string]error{}}
}

// interpreted makes tables that rows.Step interprets.
func interpreted(img *module.Image) (rows.Stepper, error) {
	f, err := tmpOpen(img)
	if err != nil {
		return nil, err
	}
	t, _ := f.Build(dwarf.Both)
	if len(t.Rows) == 0 {
		return nil, nil
	}
	return rows.Interp{Table: t}, nil
}

func (l *loader) module(path, buildID string) *unwind.Module {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.mods[path]
	if m == nil {
		m = unwind.NewModule(path, buildID, l.load)
		l.mods[path] = m
	}
	return m
}

func (l *loader) load(m *unwind.Module) *unwind.Code {
	var img *module.Image
	var err error
	switch {
	case m.Path == "[vdso]":
		img, err = module.VDSO()
	case strings.HasPrefix(m.Path, "/") && !strings.HasPrefix(m.Path, "//") && !strings.HasPrefix(m.Path, "/dev/"):
		img, err = module.Open(m.Path)
	default:
		return nil
	}
	if err != nil {
		l.mu.Lock()
		l.errs[m.Path] = err
		l.mu.Unlock()
		return nil
	}
	c := &unwind.Code{Machine: img.Machine(), Vaddr: img.OffToVaddr}
	c.Stepper, c.Err = l.table(img)
	c.Terminal = terminals(img, c.Stepper)
	for _, s := range img.Sections() {
		if s.Flags&elf.SHF_EXECINSTR != 0 && (s.Name == ".plt" || s.Name == ".plt.sec" || s.Name == ".plt.got") {
			c.PLT = append(c.PLT, unwind.PLTRange{Range: unwind.Range{Lo: s.Addr, Hi: s.Addr + arch.Vaddr(s.Size)}, Lazy: s.Name == ".plt"})
		}
	}
	return c
}

// terminals returns the code without a caller: what lies at the entry point, where no row says anything,
// and the first functions on Go's stacks.
func terminals(img *module.Image, st rows.Stepper) (out []unwind.Range) {
	lo := img.Entry()
	hi := lo
	for ; lo != 0 && hi < lo+256; hi++ {
		if st != nil {
			if _, ok := st.Find(hi); ok {
				break
			}
		}
	}
	if hi > lo {
		out = append(out, unwind.Range{Lo: lo, Hi: hi})
	}
	if img.Section(".gopclntab") == nil {
		return out
	}
	img.Symbols(func(s module.Symbol) bool {
		switch strings.TrimSuffix(s.Name, ".abi0") {
		case "runtime.goexit", "runtime.mstart", "runtime.rt0_go":
			out = append(out, unwind.Range{Lo: s.Value, Hi: s.Value + arch.Vaddr(s.Size)})
		}
		return true
	})
	return out
}

// spaces makes walkable address spaces of those of a recording.
type spaces struct {
	l     *loader
	known map[uint32]*unwind.Space
	size  map[uint32]int
}

func newSpaces(l *loader) *spaces {
	return &spaces{l, map[uint32]*unwind.Space{}, map[uint32]int{}}
}

// load fails the test where a module of the corpus could not be read: the comparison would be hollow.
func (l *loader) check(t testing.TB) {
	for path, err := range l.errs {
		t.Logf("%s: %v", path, err)
	}
}
