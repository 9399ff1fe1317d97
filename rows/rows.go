// Package rows holds the intermediate language: for each range of program counters, the rules that recover the caller's registers (DWARF 5,
// section 6.4.1). Formats build rows from their bytes; emitters read rows and never a format.
//
// A finished Table is sorted, its rows are disjoint, and gaps are explicit. Step defines the meaning of a row: every emitter, in any language,
// must equal it. docs/SEMANTICS.md has the same in prose.
package rows

import (
	"sort"

	"github.com/unspool/unspool/arch"
)

// A Kind says how a register's value in the caller is found. A register without a Rule is not the
// same as Undefined: the psABI's default applies (callee-saved: unchanged, other: lost).
type Kind uint8

const (
	Undefined Kind = iota // lost; of the return address: this frame is the outermost
	SameValue             // unchanged
	Offset                // *(CFA + Off)
	ValOffset             // CFA + Off
	Register              // the value of Reg in this frame
	RegOffset             // Reg + Off
	RegDeref              // *(Reg + Off)
	Expr                  // *(expression), evaluated with the CFA pushed
	ValExpr               // expression, evaluated with the CFA pushed
	NumKinds
)

// A Rule recovers one register.
type Rule struct {
	Of   arch.Reg // the register recovered
	Kind Kind
	Reg  arch.Reg // for Register, RegOffset, RegDeref
	Off  int64    // bytes; full width
	Expr string   // the expression's bytes, for Expr and ValExpr
}

// A CFAKind says how the canonical frame address is found.
type CFAKind uint8

const (
	CFANone     CFAKind = iota // no rule: a gap, or a damaged entry
	CFAReg                     // Reg + Off
	CFARegDeref                // *(Reg + Off) + Off2
	CFAPLT                     // Reg + Off + ((pc & 15) >= Off2 ? 8 : 0): a lazy PLT's stub
	CFAExpr                    // an expression, evaluated on an empty stack
	NumCFAKinds
)

// A CFA is the rule for the canonical frame address.
type CFA struct {
	Kind CFAKind
	Reg  arch.Reg
	Off  int64 // bytes; full width
	Off2 int64
	Expr string
}

// Flags are a row's attributes.
type Flags uint16

const (
	Signal   Flags = 1 << iota // the frame was interrupted: look up its exact PC (augmentation S)
	RASigned                   // AArch64: the return address carries a pointer authentication code
	RASignPC                   // AArch64: signed with SP and PC (DW_CFA_AARCH64_negate_ra_state_with_pc)
	BKey                       // AArch64: signed with the B key (augmentation B)
	Tagged                     // AArch64: the frame is MTE-tagged (augmentation G)
	SyncOnly                   // right at call sites only, such as rules from compact formats
	Partial                    // registers that no rule names are lost, but for the stack pointer and the return address
	endFlags

	NumFlags = iota - 1
	AllFlags = endFlags - 1
)

// A Set is everything that a row says: the rules of all registers. The zero Set is a gap: no
// information.
type Set struct {
	CFA   CFA
	RA    arch.Reg // the return address column
	Flags Flags
	Rules []Rule // sorted by Of, explicit rules only, the return address's included
}

// Gap says that s holds no information.
func (s *Set) Gap() bool { return s.CFA.Kind == CFANone && len(s.Rules) == 0 }

// Rule returns r's explicit rule.
func (s *Set) Rule(r arch.Reg) (Rule, bool) {
	i := sort.Search(len(s.Rules), func(i int) bool { return s.Rules[i].Of >= r })
	if i < len(s.Rules) && s.Rules[i].Of == r {
		return s.Rules[i], true
	}
	return Rule{}, false
}

// Kept is the set of slots that keep their values where s has no rule for them.
func (s *Set) Kept(m *arch.Machine) uint64 {
	switch {
	case s.Flags&Partial != 0 && m.RAInReg:
		return 1 << m.Slot(m.RA)
	case s.Flags&Partial != 0:
		return 0
	case s.Flags&Signal != 0:
		return ^uint64(0)
	}
	return m.SavedSlots()
}

// Outermost says that the return address is undefined by rule: there is no caller.
func (s *Set) Outermost() bool {
	r, ok := s.Rule(s.RA)
	return ok && r.Kind == Undefined && !s.Gap()
}

// A SetID is a Set's index in Table.Sets.
type SetID uint32

// GapID is the Set of every gap.
const GapID SetID = 0

// A Row says that from Lo on, until the next row, Set holds.
type Row struct {
	Lo  arch.Vaddr
	Set SetID
}

// A Table is the unwind information of one module. It is immutable and safe for concurrent use.
//
// Rows are sorted by Lo, strictly; neighbours differ; the first row is not a gap and the last one is.
// Sets[0] is the gap, and all Sets are distinct and used.
type Table struct {
	Machine *arch.Machine
	Rows    []Row
	Sets    []Set

	// Origins say what the rows were made from: sorted by Lo, strictly, neighbours differ, and the first starts with the first row. Without any,
	// it is Unknown.
	Origins []OriginRange

	// Sections are those of a file that is not linked, sorted by Lo, strictly. They only matter to WriteText and WriteJSON.
	Sections []SectionStart
}

// Find returns the index of the row that holds at pc, or -1 if pc lies before all rows. It does not
// allocate.
func (t *Table) Find(pc arch.Vaddr) int {
	lo, hi := 0, len(t.Rows)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if t.Rows[mid].Lo <= pc {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}

// At returns the Set that holds at pc; the gap where there is no information.
func (t *Table) At(pc arch.Vaddr) *Set {
	if i := t.Find(pc); i >= 0 {
		return &t.Sets[t.Rows[i].Set]
	}
	return &gapSet
}

var gapSet Set

// Hi returns where row i ends. The last row of a table, a gap, ends at the top of the address space.
func (t *Table) Hi(i int) arch.Vaddr {
	if i+1 < len(t.Rows) {
		return t.Rows[i+1].Lo
	}
	return ^arch.Vaddr(0)
}
