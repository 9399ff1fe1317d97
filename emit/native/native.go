// Package native compiles unwind tables to x86-64 machine code. Its output is an eh_elf file: a shared object that lies beside its module. The
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

	. "github.com/unspool/unspool/emit/native/amd64" // an assembler reads better without its name before every word
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

var layoutNames = [...]string{"page", "tree", "inline"}

func (l Layout) String() string { return layoutNames[l] }

// A Deref says how a file's code reads memory.
type Deref uint8

const (
	Self     Deref = iota // in its own process, with plain loads
	Callback              // through a function
	Slice                 // in a captured piece of stack, and a list of words beside it
	numDerefs
)

var derefNames = [...]string{"self", "callback", "slice"}

func (d Deref) String() string { return derefNames[d] }

// ParseLayout and ParseDeref are the inverses of String.
func ParseLayout(s string) (Layout, error) { return parse[Layout](s, layoutNames[:], "layout") }

// ParseDeref returns the Deref of a name.
func ParseDeref(s string) (Deref, error) { return parse[Deref](s, derefNames[:], "deref") }

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

// ErrMachine says that a table is for another machine than x86-64.
var ErrMachine = errors.New("machine code is made for x86-64 only")

// ErrSyncOnly says that some rules hold at call sites only, which the code does not know.
var ErrSyncOnly = errors.New("machine code: rules that hold at call sites only")

// ErrTooLarge says that the code would exceed 1 GiB.
var ErrTooLarge = errors.New("machine code: more than 1 GiB")

const maxSize = 1 << 30

// Emit compiles t: the same bytes for the same table and options.
func Emit(t *rows.Table, o Options) ([]byte, error) {
	if t.Machine != arch.AMD64 {
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
	g := generator{Asm: &Asm{}, t: ct, o: o, gets: map[getKey]Label{}, exprs: map[exprKey]Label{}, wides: map[wideKey]Label{}, bodies: map[string]*body{}}
	return g.file(t)
}

// A generator writes the code of one module.
type generator struct {
	*Asm
	t     *compact.Table
	o     Options
	start int64           // offset of the code in the file
	parts [numParts]int32 // offsets of the index's parts

	entries  [3]Label // find, apply, step
	ends     [3]Label // of their code
	find     Label    // rdx: address; eax becomes the number of its rule
	numbers  []Label  // leaves of a Tree, by rule
	rules    []Label  // code, by rule
	noRule   Label
	after    Label    // where a search goes on instead of returning; 0: it returns
	fail     Label    // returns the outcome in edx
	wideExit Label    // leaves a frame, and does so
	commit   [2]Label // of call frames, and of signal frames; 0 where there are none
	load     Label    // reads memory; not for Self
	loadRA   Label

	gets      map[getKey]Label
	getOrder  []getKey
	bodies    map[string]*body
	bodyOrder []*body
	wides     map[wideKey]Label
	wideOrder []wideKey
	exprs     map[exprKey]Label
	exprOrder []exprKey
	frames    []region
	size      int // of expressions so far, in bytes
}

// The registers that code keeps its values in. A step has the state in rdi and the memory in rsi throughout; rax
// is the CFA where it is known. Scratch are rcx, rdx and r8 to r11.
const (
	rState = RDI
	rMem   = RSI
)

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

// Slots that have a part of their own to play.
const (
	slotSP = 7
	slotRA = 16
)

// needWord is an outcome of Slice code behind rows.BadExpr: the word at fault is in neither the captured stack nor the
// list, and the list does not say that it cannot be read. The state is as it was: the step can be repeated with the
// word in the list.
const needWord = rows.BadExpr + 1

// signalBit is set in what a step returns when it left a signal frame.
const signalBit = 0x100

func field(off int32) Mem { return At(rState, off) }

func val(slot arch.Slot) Mem { return field(offVal + 8*int32(slot)) }

// bit returns the byte of a mask that has a slot's bit, and the bit.
func bit(mask int32, slot arch.Slot) (Mem, byte) {
	return field(mask + int32(slot/8)), 1 << (slot % 8)
}
