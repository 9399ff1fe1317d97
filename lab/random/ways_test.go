package random

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/arch/x86/x86asm"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/emit/orc"
	emitsframe "github.com/unspool/unspool/emit/sframe"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/format/sframe"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/shadow"
	"github.com/unspool/unspool/unwind"
)

// A way walks a stack: it returns the addresses at which callers go on, innermost first. max bounds their number.
type way struct {
	name string
	walk func(w *world, s *sample, max int) []uint64
	time bool // it is as fast as its idea: others interpret rows
}

// A sample is a thread at one moment, with the part of its stack that has its callers.
type sample struct {
	pc    uint64
	regs  [arch.NumSlots]uint64
	space *unwind.Space
	stack []byte // from lo on
	lo    uint64
	next  rows.Reader // other memory; nil: none
}

// ways are compared in this order.
var ways = []way{
	{"frame pointers", framePointers, true},
	{"frame pointers, tables in the gaps", framesThenTables, false},
	{"frame pointers if they reach the outermost frame, else tables", framesOrTables, true},
	{"tables, right at calls only", tables(func(m *tabled, v arch.Vaddr, exact bool) *rows.Set { return m.sync(v, exact) }), false},
	{"Apple's compact form, modelled", tables(func(m *tabled, v arch.Vaddr, exact bool) *rows.Set { return m.apple(v, exact) }), false},
	{"SFrame V2", tables(func(m *tabled, v arch.Vaddr, _ bool) *rows.Set { return m.sframe2.At(v) }), false},
	{"SFrame V3", tables(func(m *tabled, v arch.Vaddr, _ bool) *rows.Set { return m.sframe3.At(v) }), false},
	{"ORC", tables(func(m *tabled, v arch.Vaddr, _ bool) *rows.Set { return m.orc.At(v) }), false},
	{"tables, all memory", tables(func(m *tabled, v arch.Vaddr, _ bool) *rows.Set { return m.all.At(v) }), false},
	{"ours, a copy of 8 KiB", ours(8 << 10), false},
	{"ours, a copy of 16 KiB", ours(16 << 10), false},
	{"ours, a copy of 32 KiB", ours(32 << 10), false},
	{"ours, a copy of 64 KiB", ours(65528), true}, // perf's most
	{"ours, all memory", ours(0), true},
}

// A world has the tables of all files that were met, in each form.
type world struct {
	byPath map[string]*tabled
	walker *unwind.Walker
	frames []unwind.Frame
	chain  []uint64
	state  rows.State
}

func newWorld() *world { return &world{byPath: map[string]*tabled{}, walker: unwind.NewWalker(0)} }

// A tabled is a file's unwind information in all forms, and its functions as far as anybody has asked.
type tabled struct {
	path    string
	err     error
	all     *rows.Table // as the file has it
	sframe2 *rows.Table
	sframe3 *rows.Table
	orc     *rows.Table // what an entry can say of the same rows

	bounds rows.Bounds
	text   func(v arch.Vaddr, n int) []byte
	funcs  map[arch.Vaddr]*function
	bytes  map[string]int // by form; "code": of executable segments
}

// A function is what right-at-calls rows are made from.
type function struct {
	lo, hi  arch.Vaddr
	calls   []arch.Vaddr // the last bytes of its calls
	body    *rows.Set    // of a function that calls nobody: what holds in most of its bytes
	compact *rows.Set    // what Apple's form says everywhere in it; nil: it is left to DWARF
}

// none is a table without rows.
func none() *rows.Table { return rows.Build(rows.NewBuilder(arch.AMD64)) }

// file returns the tables of a module.
func (w *world) file(m *unwind.Module) *tabled {
	t := w.byPath[m.Path]
	if t == nil {
		t = &tabled{path: m.Path, funcs: map[arch.Vaddr]*function{}, bytes: map[string]int{}}
		t.all, t.sframe2, t.sframe3, t.orc = none(), none(), none(), none()
		t.bounds = func(arch.Vaddr) (lo, hi arch.Vaddr, ok bool) { return 0, 0, false }
		t.text = func(arch.Vaddr, int) []byte { return nil }
		t.err = t.open()
		w.byPath[m.Path] = t
	}
	return t
}

// open reads a file, writes its rows in the other forms, and reads them back.
func (t *tabled) open() error {
	img, err := module.OpenMapped(t.path)
	if err != nil || img == nil {
		return err
	}
	return module.Guard(func() error {
		f, err := format.Open(img)
		if err != nil {
			return err
		}
		t.all, _ = f.Rows()
		if len(t.all.Rows) == 0 {
			return nil
		}
		t.text = func(v arch.Vaddr, n int) []byte { b := img.Tail(v); return b[:min(n, len(b))] }
		for _, s := range img.Segments() {
			if s.Perm&module.Exec != 0 {
				t.bytes["code"] += int(s.Size)
			}
		}
		if fr, err := dwarf.Open(img); err == nil && fr != nil {
			t.bounds = func(pc arch.Vaddr) (lo, hi arch.Vaddr, ok bool) {
				if lo, hi, ok = fr.Bounds(dwarf.EHFrame, pc); !ok {
					lo, hi, ok = fr.Bounds(dwarf.DebugFrame, pc)
				}
				return lo, hi, ok
			}
			size := fr.Sizes()
			t.bytes[".eh_frame and its index"] = int(size.EHFrame + size.EHFrameHdr)
		}
		table, err := compact.Emit(t.all)
		if err != nil {
			return err
		}
		t.bytes["unspool's table"] = len(table)
		for _, v := range []struct {
			version int
			to      **rows.Table
		}{{2, &t.sframe2}, {3, &t.sframe3}} {
			s, err := emitsframe.Emit(t.all, v.version, t.all.Rows[len(t.all.Rows)-1].Lo+4096, t.bounds)
			if err != nil {
				return err
			}
			read, err := sframe.New(s.Bytes, s.Addr, t.all.Machine)
			if err != nil {
				return err
			}
			table, errs := read.Rows()
			if len(errs) > 0 {
				return errs[0]
			}
			*v.to = table
			t.bytes[fmt.Sprintf("SFrame V%d", v.version)] = len(s.Bytes)
		}
		return t.makeORC()
	})
}

// makeORC makes what ORC's entries say of the rows: three registers, and nothing where the emitter refuses.
func (t *tabled) makeORC() error {
	o, err := orc.Emit(t.all, orc.Version{Major: 6, Minor: 4})
	if err != nil {
		return err
	}
	t.bytes["ORC"] = len(o.Entries) + 4*len(o.Addrs)
	refused := slices.Clone(o.Refused)
	slices.SortFunc(refused, func(a, b orc.Refusal) int { return cmp.Compare(a.Lo, b.Lo) })
	b := rows.NewBuilder(t.all.Machine)
	for i, r := range t.all.Rows[:len(t.all.Rows)-1] {
		k, found := slices.BinarySearchFunc(refused, r.Lo, func(x orc.Refusal, v arch.Vaddr) int { return cmp.Compare(x.Lo, v) })
		set := t.all.Sets[r.Set]
		if found || k > 0 && r.Lo < refused[k-1].Hi || set.Gap() {
			continue
		}
		var rules []rows.Rule
		for _, rule := range set.Rules {
			if rule.Of == t.all.Machine.RA || rule.Of == t.all.Machine.FP {
				rules = append(rules, rule)
			}
		}
		if _, ok := set.Rule(t.all.Machine.FP); !ok {
			rules = append(rules, rows.Rule{Of: t.all.Machine.FP, Kind: rows.SameValue})
			slices.SortFunc(rules, func(a, b rows.Rule) int { return cmp.Compare(a.Of, b.Of) })
		}
		set.Rules = rules
		set.Flags |= rows.Partial
		b.Begin(r.Lo, t.all.Hi(i))
		b.Row(r.Lo, b.Intern(set))
	}
	t.orc = rows.Build(b)
	return nil
}

// function returns the function that contains v, or nil.
func (t *tabled) function(v arch.Vaddr) *function {
	lo, hi, ok := t.bounds(v)
	if !ok || v < lo || v >= hi {
		return nil
	}
	f := t.funcs[lo]
	if f == nil {
		f = &function{lo: lo, hi: hi}
		t.funcs[lo] = f
		t.read(f)
	}
	return f
}

// read finds the calls of a function, and what holds at them.
func (t *tabled) read(f *function) {
	code := t.text(f.lo, int(f.hi-f.lo))
	held := map[rows.SetID]arch.Vaddr{}
	allocates := false // sub $imm32,%rsp: Apple's form reads the size there
	for at := 0; at < len(code); {
		x, err := x86asm.Decode(code[at:], 64)
		if err != nil {
			x.Len = 1
		}
		v := f.lo + arch.Vaddr(at)
		if i := t.all.Find(v); i >= 0 {
			held[t.all.Rows[i].Set] += arch.Vaddr(x.Len)
		}
		switch {
		case err == nil && x.Op == x86asm.CALL:
			f.calls = append(f.calls, v+arch.Vaddr(x.Len)-1)
		case err == nil && x.Op == x86asm.SUB && x.Args[0] == x86asm.RSP:
			allocates = true
		}
		at += x.Len
	}
	best := arch.Vaddr(0)
	for id, n := range held {
		if n > best || n == best && f.body != nil && &t.all.Sets[id] != f.body && t.all.Sets[id].CFA.Off > f.body.CFA.Off {
			best, f.body = n, &t.all.Sets[id]
		}
	}
	compact := f.body
	for i, v := range f.calls {
		s := t.all.At(v)
		if i == 0 {
			compact = s
		} else if s != compact {
			compact = nil
			break
		}
	}
	if compact != nil && compactable(compact, t.all.Machine, allocates) {
		f.compact = compact
	}
}

// compactable says whether Apple's encoding for x86-64 can say a set (mach-o/compact_unwind_encoding.h): a frame of %rbp with up to five registers
// within 255 words, or a constant frame of up to 255 words, or of more where the code allocates them at once, with up to six registers on its top.
func compactable(s *rows.Set, m *arch.Machine, allocates bool) bool {
	if s.Gap() || s.Flags&(rows.Signal|rows.SyncOnly) != 0 || s.CFA.Kind != rows.CFAReg {
		return false
	}
	n, deepest := 0, int64(0)
	for _, r := range s.Rules {
		switch {
		case r.Kind != rows.Offset:
			return false
		case r.Of == m.RA:
			if r.Off != -8 {
				return false
			}
			continue
		case s.CFA.Reg == m.FP && r.Of == m.FP:
			if r.Off != -16 {
				return false
			}
			continue
		}
		n++
		deepest = min(deepest, r.Off)
	}
	switch s.CFA.Reg {
	case m.FP:
		return s.CFA.Off == 16 && n <= 5 && deepest >= -16-255*8
	case m.SP:
		return n <= 6 && (n == 0 || deepest == -8-8*int64(n)) && (s.CFA.Off <= 255*8 || allocates)
	}
	return false
}

// sync returns what tables say that are right at calls only. The innermost frame gets the rule of the next call, or of the last one behind which
// there is none, or of the body of a function that calls nobody.
func (t *tabled) sync(v arch.Vaddr, exact bool) *rows.Set {
	f := t.function(v)
	if !exact || f == nil {
		return t.all.At(v)
	}
	if len(f.calls) == 0 {
		return f.body
	}
	i, _ := slices.BinarySearch(f.calls, v)
	return t.all.At(f.calls[min(i, len(f.calls)-1)])
}

// apple returns what Apple's form says: the same everywhere in a function, or what DWARF says.
func (t *tabled) apple(v arch.Vaddr, exact bool) *rows.Set {
	if f := t.function(v); f != nil && f.compact != nil {
		return f.compact
	}
	return t.all.At(v)
}

// memory is what a walk may read.
func (s *sample) memory() rows.Memory { return rows.Memory{Lo: s.lo, Bytes: s.stack, Next: s.next} }

// begin puts a sample's registers into the state.
func (w *world) begin(s *sample) {
	w.chain = w.chain[:0]
	general := arch.AMD64.Slot(arch.AMD64.PC)
	w.state.Start(s.pc, 1<<(general+1)-1)
	w.state.Snap = s.regs
	w.state.Snap[general] = s.pc
}

// find returns the tables at an address, and the address in them. ok is false in no file, and where a stack ends.
func (w *world) find(s *sample, pc uint64, exact bool) (t *tabled, v arch.Vaddr, ok bool) {
	if !exact {
		pc--
	}
	m := s.space.Find(arch.Addr(pc))
	if m == nil {
		return nil, 0, false
	}
	if v, ok = m.Vaddr(arch.Addr(pc)); !ok {
		return nil, 0, false
	}
	if c := m.Module.Code(); c == nil || slices.ContainsFunc(c.Terminal, func(r unwind.Range) bool { return r.Lo <= v && v < r.Hi }) {
		return nil, 0, false
	}
	return w.file(m.Module), v, true
}

// tables walks by what at says of a file's addresses; exact are those that no call has led from.
func tables(at func(m *tabled, v arch.Vaddr, exact bool) *rows.Set) func(*world, *sample, int) []uint64 {
	return func(w *world, s *sample, max int) []uint64 {
		w.begin(s)
		mem := s.memory()
		for exact := true; len(w.chain) < max; {
			t, v, ok := w.find(s, w.state.PC, exact)
			if !ok {
				break
			}
			set := at(t, v, exact)
			if set == nil || set.Gap() || rows.Step(arch.AMD64, set, &w.state, &mem) != rows.OK {
				break
			}
			w.chain = append(w.chain, w.state.PC)
			exact = set.Flags&rows.Signal != 0
		}
		return w.chain
	}
}

// framePointers is what Linux's kernel does (arch/x86/events/core.c): the words at the frame pointer, for as long as they can be read.
func framePointers(w *world, s *sample, max int) []uint64 {
	w.chain = w.chain[:0]
	mem := s.memory()
	for fp := s.regs[arch.AMD64.Slot(arch.AMD64.FP)]; len(w.chain) < max; {
		if fp >= 1<<47 {
			break
		}
		up, ok := mem.Load(fp)
		ra, ok2 := mem.Load(fp + 8)
		if !ok || !ok2 {
			break
		}
		w.chain = append(w.chain, ra)
		fp = up
	}
	return w.chain
}

// framesThenTables follows a frame pointer where all says that it is one: it is on the stack, above the last frame, with a return address that is
// behind a call, and the next is above it or 0. Everywhere else it asks the tables.
func framesThenTables(w *world, s *sample, max int) []uint64 {
	w.begin(s)
	mem, st := s.memory(), &w.state
	m := arch.AMD64
	for exact := true; len(w.chain) < max; {
		fp, o := st.Get(m.Slot(m.FP), &mem)
		sp, o2 := st.Get(m.Slot(m.SP), &mem)
		if o == rows.OK && o2 == rows.OK && fp >= sp && fp&7 == 0 && fp-s.lo < uint64(len(s.stack)) {
			up, ok := mem.Load(fp)
			ra, ok2 := mem.Load(fp + 8)
			if ok && ok2 && (up > fp || up == 0) && w.behindCall(s, ra) {
				st.PC, st.CFA, st.Known, st.InMem, st.InReg = ra, fp+16, 1<<m.Slot(m.FP)|1<<m.Slot(m.SP), 0, 0
				st.Val[m.Slot(m.FP)], st.Val[m.Slot(m.SP)] = up, fp+16
				w.chain = append(w.chain, ra)
				exact = false
				continue
			}
		}
		t, v, ok := w.find(s, st.PC, exact)
		if !ok {
			break
		}
		set := t.all.At(v)
		if set.Gap() || rows.Step(m, set, st, &mem) != rows.OK {
			break
		}
		w.chain = append(w.chain, st.PC)
		exact = set.Flags&rows.Signal != 0
	}
	return w.chain
}

// behindCall says whether the instruction before an address is a call.
func (w *world) behindCall(s *sample, ra uint64) bool {
	m := s.space.Find(arch.Addr(ra - 1))
	if m == nil {
		return false
	}
	v, ok := m.Vaddr(arch.Addr(ra))
	if !ok {
		return false
	}
	c := m.Module.Code()
	var b [arch.MaxCall]byte
	if c == nil || c.Text == nil {
		return false
	}
	n := c.Text(v-arch.Vaddr(len(b)), b[:])
	return arch.AMD64.AfterCall(b[:n])
}

// framesOrTables is record --call-graph fp,cfi: the kernel's chain where it ends in code that nobody calls, else the tables.
func framesOrTables(w *world, s *sample, max int) []uint64 {
	chain := framePointers(w, s, max)
	if n := len(chain); n > 0 && n < max {
		if m := s.space.Find(arch.Addr(chain[n-1] - 1)); m != nil {
			if t, v, ok := w.find(s, chain[n-1], false); !ok || t.all.At(v).Outermost() {
				return chain
			}
		}
	}
	return ours(0)(w, s, max)
}

// ours is this project's walk, of a copy of so many bytes of the stack; 0: of all memory.
func ours(limit int) func(*world, *sample, int) []uint64 {
	return func(w *world, s *sample, max int) []uint64 {
		m := arch.AMD64
		snap := unwind.Snapshot{Machine: m, Space: s.space, PC: s.pc, Known: 1<<(m.Slot(m.PC)+1) - 1, Regs: s.regs, Mem: s.memory()}
		if limit > 0 {
			sp := s.regs[m.Slot(m.SP)]
			from := min(sp-s.lo, uint64(len(s.stack)))
			snap.Mem = rows.Memory{Lo: sp, Bytes: s.stack[from:min(int(from)+limit, len(s.stack))]}
		}
		w.frames, _ = w.walker.Walk(&snap, w.frames[:0])
		w.chain = w.chain[:0]
		for i := 1; i < len(w.frames) && i <= max; i++ {
			w.chain = append(w.chain, uint64(w.frames[i].PC))
		}
		return w.chain
	}
}

// A verdict is what a chain is, compared with the truth.
type verdict uint8

const (
	right verdict = iota // whole, and no frame is wrong
	wrong                // it has a caller that is not there
	lost                 // it leaves out a caller, and goes on behind it
	short                // it ends before the outermost frame
	verdicts
)

func (v verdict) String() string { return [verdicts]string{"right", "wrong", "lost", "short"}[v] }

// judge compares a chain with the true callers. What is behind the last whose caller is not known is not judged.
func judge(chain []uint64, truth []shadow.Caller, whole bool) verdict {
	skipped := false
	at := 0
	for _, pc := range chain {
		if at == len(truth) {
			if whole {
				return wrong
			}
			break
		}
		k := slices.IndexFunc(truth[at:], func(c shadow.Caller) bool { return c.PC == pc })
		switch {
		case k < 0 && !whole && skipped:
			return lost // it may be behind the last that is known
		case k < 0:
			return wrong
		case k > 0:
			skipped = true
		}
		at += k + 1
	}
	switch {
	case skipped:
		return lost
	case at < len(truth):
		return short
	}
	return right
}

// text is a chain with the functions' files, for messages.
func (s *sample) text(chain []uint64) string {
	var out []string
	for _, pc := range chain {
		name := fmt.Sprintf("%#x", pc)
		if m := s.space.Find(arch.Addr(pc)); m != nil {
			if v, ok := m.Vaddr(arch.Addr(pc)); ok {
				name = fmt.Sprintf("%s+%#x", m.Module.Path[strings.LastIndexByte(m.Module.Path, '/')+1:], uint64(v))
			}
		}
		out = append(out, name)
	}
	return strings.Join(out, " ")
}
