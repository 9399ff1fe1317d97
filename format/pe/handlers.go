package pe

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// A Handler is what Windows calls for a function, or for a part of one, when an exception or an unwinding goes through it ("x64 exception
// handling", "Language-specific handler"; "ARM64 exception handling", ".xdata records").
type Handler struct {
	Lo, Hi    arch.Vaddr // of the entry
	Of        arch.Vaddr // where the function begins that the entry is a part of, and has its handler from; Lo where it has its own
	Addr      arch.Vaddr // of the handler
	Name      string     // of the handler, or of the import that it jumps to; "" where the image has none
	Exception bool       // x86-64: UNW_FLAG_EHANDLER
	Unwinding bool       // x86-64: UNW_FLAG_UHANDLER

	Data    arch.Vaddr // what the handler reads
	Section string     // that has it
	Off     uint64     // in the section
	Size    uint64     // of the handler's data, and of nothing that it leads to; 0 where the handler's name does not tell

	// LSDA says that the data is an exception table of GCC's and LLVM's personality routines, which is not read here.
	LSDA   bool
	Scopes []Scope // in the table's order
}

// A Scope is a range of code, and what is done about an exception from there. C++'s ranges are of return addresses.
type Scope struct {
	Lo, Hi  arch.Vaddr
	Actions []Action // in the order in which they are tried
}

// An Action is what is done about an exception.
type Action struct {
	Kind   ActionKind
	Pad    arch.Vaddr // where the exception goes on, or who is called
	Filter arch.Vaddr // of Except: who decides; 0: EXCEPTION_EXECUTE_HANDLER, all are taken
	Type   arch.Vaddr // of Catch: the type descriptor; 0: all are taken
	Name   string     // of the type, as its descriptor has it
}

// An ActionKind says which exceptions an action takes.
type ActionKind uint8

const (
	Except    ActionKind = iota // __except
	Finally                     // __finally: is called when the stack is unwound
	Catch                       // C++
	Cleanup                     // C++: destroys what a state has made
	Terminate                   // C++: nothing leaves a function that is noexcept
)

// String names a kind.
func (k ActionKind) String() string {
	return [...]string{"except", "finally", "catch", "cleanup", "terminate"}[k]
}

// A layout is how a handler's data is laid out.
type layout uint8

const (
	unknown layout = iota
	scopeTable
	funcInfo
	lsda
)

// layouts are the handlers whose data is known, by name. Those that check the stack's guard (/GS) have more data behind that of the handler
// that they call. __CxxFrameHandler4 has a packed form, which is not read.
var layouts = map[string]layout{
	"__C_specific_handler":   scopeTable,
	"__GSHandlerCheck_SEH":   scopeTable,
	"__CxxFrameHandler":      funcInfo,
	"__CxxFrameHandler2":     funcInfo,
	"__CxxFrameHandler3":     funcInfo,
	"__GSHandlerCheck_EH":    funcInfo,
	"__gxx_personality_seh0": lsda, "__gcc_personality_seh0": lsda, "__gnat_personality_seh0": lsda, "__gdc_personality_seh0": lsda,
	"__gccgo_personality_seh0": lsda, "__gnu_objc_personality_seh0": lsda, "rust_eh_personality": lsda,
}

// Handlers calls yield with the handler of each entry that has one, by address, until it returns false. It returns what could not be read; a
// damaged table costs itself only.
func (t *Table) Handlers(yield func(*Handler) bool) (errs []error) {
	errs = slices.Clone(t.errs)
	failed := 0
	fail := func(err error) {
		if failed++; failed <= maxErrors {
			errs = append(errs, err)
		}
	}
	r := t.reader()
	r.work = 1<<18 + 4*t.img.Reach()
	var list []*Handler
	for i := range t.entries {
		h, err := t.handler(r, t.entries[i])
		if err != nil {
			fail(err)
		} else if h != nil {
			list = append(list, h)
		}
	}
	names := t.handlerNames(r, list)
	for _, h := range list {
		h.Name = names[h.Addr]
		h.Section, h.Off = t.place(h.Data)
		if err := t.scopes(r, h); err != nil {
			fail(err)
			continue
		}
		if !yield(h) {
			break
		}
	}
	if failed > maxErrors {
		errs = append(errs, t.wrong(t.dirs[0].at, ErrMalformed, "%d more handlers", failed-maxErrors))
	}
	return errs
}

// handler returns the handler of an entry; nil where it has none.
func (t *Table) handler(r *reader, e entry) (*Handler, error) {
	if err := r.spend(e.data, readCost); err != nil {
		return nil, err
	}
	if e.err != nil {
		return nil, e.err
	}
	h := &Handler{Lo: t.base + arch.Vaddr(e.begin), Hi: t.base + arch.Vaddr(e.end)}
	var at uint32
	var ok bool
	var err error
	switch {
	case e.begin >= e.end:
		return nil, t.wrong(e.at, ErrMalformed, "function [%#x, %#x)", e.begin, e.end)
	case t.machine == arch.WindowsAMD64:
		at, ok, err = t.amd64Handler(r, e, h)
	default:
		h.Of = h.Lo
		at, ok, err = t.armHandler(r, e)
	}
	if err != nil || !ok {
		return nil, err
	}
	b := img32(r.tail(at))
	if len(b) < 4 {
		return nil, t.wrong(at, ErrTruncated, "exception handler")
	}
	h.Addr, h.Data = t.base+arch.Vaddr(b.at(0))&^t.thumb(), t.base+arch.Vaddr(at+4)
	return h, nil
}

// amd64Handler returns where the handler's address is: in the record of the function that a part belongs to.
func (t *Table) amd64Handler(r *reader, e entry, h *Handler) (at uint32, ok bool, err error) {
	for range maxChain {
		if e, err = t.resolve(r, e); err != nil {
			return 0, false, err
		}
		x, err := t.readInfo(r, e.data)
		if err != nil {
			return 0, false, err
		}
		if x.flags&UNW_FLAG_CHAININFO != 0 {
			e = x.chained
			continue
		}
		h.Of = t.base + arch.Vaddr(e.begin)
		h.Exception, h.Unwinding = x.flags&UNW_FLAG_EHANDLER != 0, x.flags&UNW_FLAG_UHANDLER != 0
		return x.at + 4 + uint32(len(x.codes)+3)&^3, h.Exception || h.Unwinding, nil
	}
	return 0, false, t.wrong(e.data, ErrMalformed, "a chain of more than %d entries", maxChain)
}

// armHandler returns where the handler's address is: behind the codes of a full record that says so.
func (t *Table) armHandler(r *reader, e entry) (at uint32, ok bool, err error) {
	if e.data&3 != 0 {
		return 0, false, nil
	}
	b := img32(r.tail(e.data))
	if len(b) < 4 {
		return 0, false, t.wrong(e.data, ErrTruncated, "unwind information")
	}
	if b.at(0)>>20&1 == 0 {
		return 0, false, nil
	}
	x, err := t.readRecord(e.data, b)
	return e.data + uint32(x.end), err == nil, err
}

// handlerNames names the handlers: by symbols, or by the import that the code at the handler's address jumps to.
func (t *Table) handlerNames(r *reader, list []*Handler) map[arch.Vaddr]string {
	names := map[arch.Vaddr]string{}
	slots := map[arch.Vaddr][]arch.Vaddr{} // of the import table, with the handlers that jump there
	for _, h := range list {
		names[h.Addr] = ""
	}
	for v := range names {
		if !t.img.Linked() {
			if name, off := t.img.Place(v); off == 0 && name != "" && t.img.Tail(v) == nil {
				names[v] = name
			}
		} else if slot, ok := t.machine.ImportThunk(r.tail(uint32(v-t.base)), v); ok {
			slots[slot] = append(slots[slot], v)
		}
	}
	t.img.Symbols(func(s module.Symbol) bool {
		// Of two names, the known one.
		v := s.Value &^ t.thumb()
		if old, ok := names[v]; ok && s.Name != "" && s.Section.Defined() && (old == "" || layouts[old] == unknown && layouts[s.Name] != unknown) {
			names[v] = strings.Clone(s.Name)
		}
		return true
	})
	if len(slots) > 0 {
		t.img.Imports(func(at arch.Vaddr, name func() string) bool {
			for _, v := range slots[at] {
				if names[v] == "" {
					names[v] = name()
				}
			}
			return true
		})
	}
	return names
}

// thumb is the bit that says, in the address of a function, that it is Thumb code.
func (t *Table) thumb() arch.Vaddr {
	if t.machine == arch.ARM {
		return 1
	}
	return 0
}

// place returns the section that has an address, and the offset there.
func (t *Table) place(v arch.Vaddr) (section string, off uint64) {
	if !t.img.Linked() {
		return t.img.Place(v)
	}
	secs := t.img.Sections()
	for i := range secs {
		if off := uint64(v - secs[i].Addr); secs[i].Perm != 0 && off < secs[i].Size {
			return secs[i].Name, off
		}
	}
	return "", uint64(v)
}

// scopes reads a handler's data, where it is known.
func (t *Table) scopes(r *reader, h *Handler) error {
	at := uint32(h.Data - t.base)
	switch layouts[h.Name] {
	case lsda:
		if h.LSDA = true; len(r.tail(at)) == 0 {
			return t.wrong(at-4, ErrTruncated, "exception table of function %#x", uint64(h.Lo))
		}
	case scopeTable:
		return t.scopeTable(r, h, at)
	case funcInfo:
		b := img32(r.tail(at))
		if len(b) < 4 {
			return t.wrong(at, ErrTruncated, "address of a FuncInfo")
		}
		h.Size = 4
		return t.funcInfo(r, h, b.at(0))
	}
	return nil
}

// scopeTable reads the data of __C_specific_handler: SCOPE_TABLE_AMD64 of winnt.h, which the other machines have, too. A part of a function
// has the scopes that reach into it.
func (t *Table) scopeTable(r *reader, h *Handler, at uint32) error {
	b := img32(r.tail(at))
	if len(b) < 4 {
		return t.wrong(at, ErrTruncated, "scope table")
	}
	n := uint64(b.at(0))
	if n > uint64(len(b)-4)/16 {
		return t.wrong(at, ErrTruncated, "a scope table with %d scopes", n)
	}
	if err := r.spend(at, 4*int(n)); err != nil {
		return err
	}
	h.Size = 4 + 16*n
	va := func(i int) arch.Vaddr { return t.base + arch.Vaddr(b.at(i))&^t.thumb() }
	for i := 4; i < 4+16*int(n); i += 16 {
		s := Scope{Lo: va(i), Hi: va(i + 4)}
		if s.Hi < s.Lo {
			return t.wrong(at+uint32(i), ErrMalformed, "a scope that ends %#x bytes before it begins", uint64(s.Lo-s.Hi))
		}
		a := Action{Kind: Except, Pad: va(i + 12)}
		switch filter := b.at(i + 8); {
		case b.at(i+12) == 0:
			a = Action{Kind: Finally, Pad: va(i + 8)}
		case filter != 1:
			a.Filter = va(i + 8)
		}
		if h.Of == h.Lo || s.Lo < h.Hi && s.Hi > h.Lo {
			s.Actions = []Action{a}
			h.Scopes = append(h.Scopes, s)
		}
	}
	return nil
}

// ehNoexcept, in EHFlags: the function is noexcept.
const ehNoexcept = 4

// A cxx has the tables of a FuncInfo.
type cxx struct {
	unwind   img32 // UnwindMapEntry: the state that comes then, and what is called before
	tries    img32 // TryBlockMapEntry: the first and the last state, the last of its handlers, the handlers' number and address
	ips      img32 // IPtoStateMapEntry: address and state
	handlers int   // bytes of a HandlerType
	noexcept bool
}

// funcInfo reads the data of __CxxFrameHandler3 (FuncInfo of ehdata.h, as Visual C++ has it, and as LLVM writes it): states, the ranges that
// are in them, and what is called to leave them. A function shares the data with its handlers, which are functions of their own: each has the
// ranges in it. Those of no state are left out.
func (t *Table) funcInfo(r *reader, h *Handler, at uint32) error {
	b := img32(r.tail(at))
	if len(b) < 28 {
		return t.wrong(at, ErrTruncated, "FuncInfo")
	}
	if magic := b.at(0) & 0x1fffffff; magic < 0x19930520 || magic > 0x19930522 {
		return t.wrong(at, ErrUnsupported, "FuncInfo %#x", b.at(0))
	}
	c := cxx{handlers: 20, noexcept: b.at(0)&0x1fffffff == 0x19930522 && len(b) >= 40 && b.at(36)&ehNoexcept != 0}
	if t.machine.WordSize() == 4 {
		c.handlers = 16 // no distance of the parent's frame
	}
	for _, x := range []struct {
		b     *img32
		n, at uint32
		size  int
		what  string
	}{{&c.unwind, b.at(4), b.at(8), 8, "states"}, {&c.tries, b.at(12), b.at(16), 20, "try blocks"}, {&c.ips, b.at(20), b.at(24), 8, "ranges"}} {
		if x.n == 0 {
			continue
		}
		m := img32(r.tail(x.at))
		if uint64(x.n) > uint64(len(m)/x.size) {
			return t.wrong(x.at, ErrTruncated, "%d %s", x.n, x.what)
		}
		*x.b = m[:int(x.n)*x.size]
	}
	if err := r.spend(at, readCost+(len(c.unwind)+len(c.tries)+len(c.ips))/16); err != nil {
		return err
	}
	memo := map[int32][]Action{}
	for i := 0; i < len(c.ips); i += 8 {
		lo, state := t.base+arch.Vaddr(c.ips.at(i))&^t.thumb(), int32(c.ips.at(i+4))
		if lo < h.Lo || lo >= h.Hi || state == -1 {
			continue
		}
		hi := h.Hi
		if i+8 < len(c.ips) {
			if next := t.base + arch.Vaddr(c.ips.at(i+8))&^t.thumb(); next >= lo {
				hi = min(hi, next)
			}
		}
		list, ok := memo[state]
		if !ok {
			var err error
			if list, err = t.stateActions(r, at, &c, state); err != nil {
				return err
			}
			memo[state] = list
		}
		if err := r.spend(at, 4+len(list)); err != nil {
			return err
		}
		h.Scopes = append(h.Scopes, Scope{Lo: lo, Hi: hi, Actions: list})
	}
	return nil
}

// stateActions returns what is done about an exception in a state: try blocks around it are asked in the order of their table, and before the
// handlers of one run, all is undone that was made in it.
func (t *Table) stateActions(r *reader, at uint32, c *cxx, state int32) (list []Action, err error) {
	if c.noexcept && len(c.unwind) == 0 { // it has nothing to undo, nor states
		return []Action{{Kind: Terminate}}, nil
	}
	if state < 0 || int(state) >= len(c.unwind)/8 {
		return nil, t.wrong(at, ErrMalformed, "state %d of %d", state, len(c.unwind)/8)
	}
	undo := func(to int32) error {
		for state > to {
			if err := r.spend(at, 4); err != nil {
				return err
			}
			next, action := int32(c.unwind.at(8*int(state))), c.unwind.at(8*int(state)+4)
			if next >= state || next < -1 {
				return t.wrong(at, ErrMalformed, "state %d comes after state %d", next, state)
			}
			if action != 0 {
				list = append(list, Action{Kind: Cleanup, Pad: t.base + arch.Vaddr(action)&^t.thumb()})
			}
			state = next
		}
		return nil
	}
	was := state
	for i := 0; i < len(c.tries); i += 20 {
		if err := r.spend(at, 1); err != nil {
			return nil, err
		}
		lo, hi, n, handlers := int32(c.tries.at(i)), int32(c.tries.at(i+4)), uint64(c.tries.at(i+12)), c.tries.at(i+16)
		if was < lo || was > hi {
			continue
		}
		if lo < 0 {
			return nil, t.wrong(at, ErrMalformed, "a try block of state %d", lo)
		}
		if err := undo(lo); err != nil {
			return nil, err
		}
		b := img32(r.tail(handlers))
		if n > uint64(len(b)/c.handlers) {
			return nil, t.wrong(handlers, ErrTruncated, "%d handlers", n)
		}
		if err := r.spend(handlers, 4*int(n)); err != nil {
			return nil, err
		}
		for k := 0; k < int(n)*c.handlers; k += c.handlers {
			a := Action{Kind: Catch, Pad: t.base + arch.Vaddr(b.at(k+12))&^t.thumb()}
			if typ := b.at(k + 4); typ != 0 {
				a.Type = t.base + arch.Vaddr(typ)
				a.Name = t.typeName(r, typ)
			}
			list = append(list, a)
		}
	}
	if c.noexcept {
		return append(list, Action{Kind: Terminate}), nil
	}
	return list, undo(-1)
}

// typeName returns the name in a type descriptor: two addresses come before it. It begins with a point; "" where there is none.
func (t *Table) typeName(r *reader, at uint32) string {
	skip := 16
	if t.machine.WordSize() == 4 {
		skip = 8
	}
	b := r.tail(at)
	if len(b) <= skip || b[skip] != '.' {
		return ""
	}
	b = b[skip:min(len(b), skip+4096)]
	n := bytes.IndexByte(b, 0)
	if r.spend(at, cmp.Or(max(n, 0), len(b))) != nil || n < 0 {
		return ""
	}
	return string(b[:n])
}
