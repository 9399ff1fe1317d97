// Package compactunwind reads Apple's compact unwind information, from a Mach-O image to rows: the section __TEXT,__unwind_info of linked files,
// and __LD,__compact_unwind of object files. It reads x86-64, i386 and arm64 (mach-o/compact_unwind_encoding.h; LLVM: libunwind's
// CompactUnwinder.hpp, lld's MachO/UnwindInfoSection.cpp).
//
// Each function has one number of 32 bits, its encoding. It tells where the CFA, the return address and the saved registers are once the
// prologue is over. So rows are right at call sites only, and have the flag rows.SyncOnly. A compiler that saves a register which an encoding
// cannot name leaves the function to DWARF, so a register without a rule keeps its value: rows are not rows.Partial. Functions left to DWARF
// have no rows here, nor have functions with the encoding 0, of which nothing is said.
//
// A damaged page or entry costs itself only. Bytes never cause a panic; the size of the section bounds work and memory.
package compactunwind

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// Sections that have compact unwind information.
const (
	UnwindInfo    = "__TEXT,__unwind_info"
	CompactUnwind = "__LD,__compact_unwind"
)

// A Table is the compact unwind information of an image, which must stay open as long as the Table is used. It is safe for concurrent use.
type Table struct {
	name    string
	b       []byte
	bad     module.RelocErrors // sorted by place
	base    arch.Vaddr         // what offsets of functions count from: the file's header
	machine *arch.Machine
	rules   func(t *Table, e *Entry) (rows.Set, error) // a gap where the encoding says nothing
	text    func(at arch.Vaddr, n int) ([]byte, bool)  // of the image
	order   binary.ByteOrder
	object  bool // it is not linked

	sections []module.Section // of the image
	is64     bool
	dwarf    uint32 // the mode of functions that are left to DWARF

	ranges func() []span // of all entries, sorted
}

// A span is the range of an entry.
type span struct{ lo, hi arch.Vaddr }

// An Entry is what the section says of a function.
type Entry struct {
	Lo, Hi   arch.Vaddr
	Encoding uint32

	// Personality is where the address of the function lies that handles exceptions; in an object file, that function. 0: there is none.
	Personality arch.Vaddr
	LSDA        arch.Vaddr
	HasLSDA     bool

	// Off is where the entry is in the section.
	Off uint64
}

// Bits of an encoding that all machines share.
const (
	hasLSDA          = 1 << 30
	personalityShift = 28
	personalityMask  = 3
	modeMask         = 0x0f000000
	rulesMask        = 0x0fffffff // what rows depend on
)

// Open returns the compact unwind information of an image; nil if it has none.
func Open(img *module.Image) (*Table, error) {
	name := UnwindInfo
	if !img.Linked() {
		name = CompactUnwind
	}
	s := img.Section(name)
	if s == nil || s.Empty {
		return nil, nil
	}
	b, bad, err := img.Relocate(s)
	if err != nil {
		return nil, err
	}
	t := &Table{name: s.Name, b: b, bad: bad, machine: img.Machine(), order: img.Order(), text: img.At, object: !img.Linked(), is64: img.Is64(), sections: img.Sections()}
	if !t.of(t.machine) {
		return nil, fmt.Errorf("%s: %s: compact unwind information of %s: %w", img.Name(), name, t.machine.Name, module.ErrUnsupported)
	}
	if !t.object {
		header, ok := img.OffToVaddr(0)
		if !ok {
			return nil, fmt.Errorf("%s: %s: no segment has the file's header: %w", img.Name(), name, module.ErrMalformed)
		}
		t.base = header
	}
	return t, nil
}

// of sets what depends on the machine; false if no machine has such information.
func (t *Table) of(m *arch.Machine) bool {
	switch {
	case m.CompactSaves != nil:
		t.rules, t.dwarf = x86Set, x86DWARF
	case m.CompactPairs != nil:
		t.rules, t.dwarf = arm64Set, arm64DWARF
	default:
		return false
	}
	t.ranges = sync.OnceValue(t.sort)
	return true
}

// Size returns the size of the section in bytes.
func (t *Table) Size() uint64 { return uint64(len(t.b)) }

// Sum writes all that rows are made of.
func (t *Table) Sum(w io.Writer) {
	fmt.Fprintln(w, t.name, t.machine.ELF, uint64(t.base), len(t.b))
	w.Write(t.b)
	for i := range t.bad {
		fmt.Fprintln(w, t.bad[i].Off)
	}
	// The sizes of large frames are in the code.
	t.Entries(func(e Entry) bool {
		if t.large(e.Encoding) {
			size, _ := t.largeSize(&e)
			fmt.Fprintln(w, e.Off, size)
		}
		return true
	})
}

// maxErrors bounds the errors of one section; the last one counts the others.
const maxErrors = 1000

// errors collects what is wrong with a section.
type errors struct {
	list []error
	more int
}

func (es *errors) add(t *Table, off uint64, format string, args ...any) {
	if len(es.list) == maxErrors {
		es.more++
		return
	}
	es.list = append(es.list, fmt.Errorf("%s+%#x: %w", t.name, off, fmt.Errorf(format, args...)))
}

func (es *errors) all() []error {
	if es.more > 0 {
		return append(es.list, fmt.Errorf("%w: and %d more like the one before", module.ErrMalformed, es.more))
	}
	return es.list
}

// Rows makes the table of all functions, anew with each call. What is damaged is missing, and an error.
func (t *Table) Rows() (*rows.Table, []error) {
	b := rows.NewBuilder(t.machine)
	var es errors
	sets := map[uint32]rows.SetID{} // by encoding, where that says all
	row := make([]rows.Row, 1)
	last, id := uint32(0), rows.GapID
	for e := range t.entries(&es, false) {
		code := e.Encoding & rulesMask
		if mode := code & modeMask; mode == 0 || mode == t.dwarf {
			continue
		}
		if known := code == last; !known {
			if id, known = sets[code]; !known {
				e := e // e itself stays on the stack
				set, err := t.rules(t, &e)
				if err != nil {
					es.add(t, e.Off, "function %#x, encoding %#08x: %w", uint64(e.Lo), e.Encoding, err)
					last = 0
					continue
				}
				if id = b.Intern(set); !t.large(code) {
					sets[code], known = id, true
				}
			}
			if last = code; !known {
				last = 0
			}
		}
		if id != rows.GapID {
			row[0] = rows.Row{Lo: e.Lo, Set: id}
			b.Range(e.Lo, e.Hi, row)
		}
	}
	return rows.Build(b), es.all()
}

// Entries calls yield with the entries that can be read, in the order of the section, until it returns false.
func (t *Table) Entries(yield func(Entry) bool) {
	var es errors
	t.entries(&es, true)(yield)
}

// sort returns the ranges of all entries, sorted; of several that begin at one place the first.
func (t *Table) sort() (list []span) {
	var es errors
	for e := range t.entries(&es, false) {
		if e.Lo < e.Hi {
			list = append(list, span{e.Lo, e.Hi})
		}
	}
	slices.SortStableFunc(list, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	return slices.CompactFunc(list, func(a, b span) bool { return a.lo == b.lo })
}

// Bounds returns the range of the entry that has an address. Of entries that overlap, it is the one that begins last.
func (t *Table) Bounds(pc arch.Vaddr) (lo, hi arch.Vaddr, ok bool) {
	list := t.ranges()
	i, found := slices.BinarySearchFunc(list, pc, func(s span, pc arch.Vaddr) int { return cmp.Compare(s.lo, pc) })
	if !found {
		i--
	}
	if i < 0 || pc >= list[i].hi {
		return 0, 0, false
	}
	return list[i].lo, list[i].hi, true
}
