// Package native compiles unwind tables to machine code, for x86-64 and AArch64. Its output is an eh_elf file: a shared object that lies beside its module. The
// file has an index from addresses to rules, each distinct rule once as straight-line code, and entry points to find and apply rules. It needs
// no C compiler and no relocation. It is mapped as one piece, and called by Go (Load), by C (runtime/eh_elf.h), or through dlopen.
//
// docs/EH_ELF.md has the layout, the entry points, and the memory and registers they may touch. rows.Step defines the meaning of rules; Verify
// proves a file equal to it.
package native

import (
	"errors"
	"fmt"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/rows"
)

// Version is the version of the layout and of the entry points. A reader takes its own version only.
const Version = 1

// A Layout says how a file gets from an address to a rule.
type Layout uint8

const (
	Page   Layout = iota // by the compact table's index
	Tree                 // by a binary search in code, whose leaves are numbers of rules
	Inline               // by a binary search in code, whose leaves are the rules themselves: the largest
	numLayouts
)

// Layouts are the names of layouts, as ParseLayout takes them.
var Layouts = []string{"page", "tree", "inline"}

func (l Layout) String() string { return Layouts[l] }

// A Deref says how a file's code reads memory.
type Deref uint8

const (
	Self     Deref = iota // in its own process, with plain loads
	Callback              // through a function
	Slice                 // in a captured piece of stack, and a list of words beside it
	numDerefs
)

// Derefs are the names that ParseDeref takes.
var Derefs = []string{"self", "callback", "slice"}

func (d Deref) String() string { return Derefs[d] }

// ParseLayout and ParseDeref are the inverses of String.
func ParseLayout(s string) (Layout, error) { return parse[Layout](s, Layouts, "layout") }

// ParseDeref returns the Deref of a name.
func ParseDeref(s string) (Deref, error) { return parse[Deref](s, Derefs, "deref") }

func parse[T ~uint8](s string, names []string, what string) (T, error) {
	for i, n := range names {
		if n == s {
			return T(i), nil
		}
	}
	return 0, fmt.Errorf("%s is %s, not %q", what, printable.Either(names), s)
}

// Options control Emit.
type Options struct {
	Layout Layout
	Deref  Deref
	ID     string // of the module, as module.Image.ID has it
}

// ErrMachine says that a table is for another machine than x86-64 or AArch64.
var ErrMachine = errors.New("machine code is made for x86-64 and AArch64 only")

// ErrSyncOnly says that some rules hold at call sites only, which the code does not know.
var ErrSyncOnly = errors.New("machine code: rules that hold at call sites only")

// ErrTooLarge says that the code would exceed 1 GiB, or for AArch64 64 MiB.
var ErrTooLarge = errors.New("machine code: more than 1 GiB, or for AArch64 64 MiB")

const maxSize = 1 << 30

// A target is a machine that code is written for.
type target struct {
	lower       func(*generator) lowering
	page        int  // the size of its kernels' largest pages: ld.so maps no file whose segments are not aligned to its pages
	interpreted bool // on other machines, to prove it
}

var targets = map[*arch.Machine]target{
	arch.AMD64: {lower: func(g *generator) lowering { return newX86(g) }, page: 4 << 10},
	arch.ARM64: {lower: func(g *generator) lowering { return newArm(g) }, page: 64 << 10, interpreted: true},
}

// Emit compiles t: the same bytes for the same table and options.
func Emit(t *rows.Table, o Options) ([]byte, error) {
	lower := targets[t.Machine].lower
	if lower == nil {
		return nil, ErrMachine
	}
	for i := range t.Sets {
		if t.Sets[i].Flags&rows.SyncOnly != 0 {
			return nil, ErrSyncOnly
		}
	}
	b, err := compact.Emit(t)
	if err != nil {
		return nil, err
	}
	ct, err := compact.Load(b)
	if err != nil {
		return nil, fmt.Errorf("BUG: %w", err)
	}
	if len(b) > maxSize || o.Layout == Tree && len(t.Rows) > maxSize/16 || o.Layout == Inline && len(t.Rows) > maxSize/256 {
		return nil, ErrTooLarge
	}
	g := &generator{mach: t.Machine, t: ct, o: o, lost: lost(t), exprs: map[exprKey]label{}, wides: map[wideKey]label{}, bodies: map[string]*body{}}
	g.m = lower(g)
	return g.file(t)
}

// lost returns the slots that calls preserve, but each rule of a call frame says to be undefined: such a table is of some registers only.
func lost(t *rows.Table) uint64 {
	all := t.Machine.SavedSlots()
	for i := range t.Sets {
		s := &t.Sets[i]
		if s.Gap() || s.Outermost() || s.Flags&(rows.Signal|rows.Partial) != 0 {
			continue
		}
		var set uint64
		for _, r := range s.Rules {
			if slot := t.Machine.Slot(r.Of); r.Kind == rows.Undefined && slot != arch.NoSlot {
				set |= 1 << slot
			}
		}
		all &= set
	}
	if all == t.Machine.SavedSlots() {
		return 0 // there are none
	}
	return all
}

// A generator writes the code of one module: what is the same for all machines.
type generator struct {
	m     lowering
	mach  *arch.Machine
	t     *compact.Table
	o     Options
	lost  uint64          // slots that calls preserve, but all rules of call frames lose
	start int64           // offset of the code in the file
	parts [numParts]int32 // offsets of the index's parts

	entries  [3]label // find, apply, step
	ends     [3]label // of their code
	find     label    // finds the number of a rule
	numbers  []label  // leaves of a Tree, by rule
	rules    []label  // code, by rule
	noRule   label
	after    label    // where a search goes on instead of returning; 0: it returns
	fail     label    // returns an outcome
	wideExit label    // leaves a frame, and does so
	commit   [2]label // of call frames, and of signal frames; 0 where there are none
	load     label    // reads memory; not for Self
	loadRA   label

	bodies    map[string]*body
	bodyOrder []*body
	wides     map[wideKey]label
	wideOrder []wideKey
	exprs     map[exprKey]label
	exprOrder []exprKey
	frames    []region
	size      int // of expressions so far, in bytes
}

// A label is a place in code, as the assemblers have them.
type label = int32

// A lowering writes code for one machine, with the registers it keeps values in.
type lowering interface {
	Label() label
	Set(label)
	Here() label
	Jmp(label)
	Size() int
	assemble() (code []byte, at []uint32) // at has the offset of each label
	maxSize() int

	entryPoints() // what callers call
	page()        // the search in the compact table's index
	address()     // a tree's search: begins with the address; sub and cmp take numbers of any size, cmp32 those of 31 bits
	sub(uint64)
	cmp(uint64)
	cmp32(uint64)
	below(label)
	atLeast(label)
	number(id uint32) // a search ends with it

	shape(*rows.Set) (shape any, ok bool) // of a simple rule: what it shares with those of other sizes of frames
	rule(*rows.Set)                       // is entered by a jump, and returns an outcome to who called the entry point
	tailRules(shape any, ids []uint32)    // simple rules of a shape
	wideBody(*body)                       // what other rules do with a CFA
	wideCommit(wideKey)                   // their ends
	loader()                              // routines that read memory
	exits()                               // what all rules share
	commits()                             // the ends of simple rules
	getters()                             // routines that read registers

	expression(exprKey) // the routine of an expression
	op(*expression, rows.Op)
	count(n int)                 // operations that may follow
	countDown(bad label)         // counts one
	jumpIf(label)                // DW_OP_bra
	depthBelow(n int, bad label) // leaves where the stack has fewer values
	depthAbove(n int, bad label) // or more

	cie() []byte                   // initial instructions of the code's own unwind information, and what comes before them
	cfi(was, now frameKind) []byte // instructions between two regions
}

// Offsets in rows.State, which is unspool_state in C. A test holds them against Go's.
const (
	offPC    = 0
	offCFA   = 8
	offKnown = 16
	offInMem = 24
	offInReg = 32
	offVal   = 40
	offSnap  = offVal + 8*arch.NumSlots
	offFault = offSnap + 8*arch.NumSlots
)

// Offsets in unspool_slice and unspool_word.
const (
	sliceLo         = 0
	sliceSize       = 8
	sliceBytes      = 16
	sliceWords      = 24
	sliceN          = 32
	sliceMore       = 40
	sliceAddresses  = 48 // for AArch64 only
	readerAddresses = 16
	wordAddr        = 0
	wordValue       = 8
	wordOK          = 16
	wordSize        = 24
)

// needWord is an outcome of Slice code behind rows.BadExpr: the word at fault is in neither the captured stack nor the
// list, and the list does not say that it cannot be read. The state is as it was: the step can be repeated with the
// word in the list.
const needWord = rows.BadExpr + 1

// signalBit is set in what a step returns when it left a signal frame.
const signalBit = 0x100
