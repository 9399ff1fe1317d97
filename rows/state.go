package rows

import (
	"encoding/binary"
	"math/bits"

	"github.com/unspool/unspool/arch"
)

// A Reader gives eight bytes of a process's memory, little-endian; ok is false where there is none.
type Reader interface {
	Read8(addr uint64) (v uint64, ok bool)
}

// WordsOf returns memory as a machine reads it: Read8 gives a word, of the machine's size and byte order, in place of eight bytes. A Memory without
// Bytes and with such a reader is that machine's.
func WordsOf(m *arch.Machine, r Reader) Reader {
	if m.Plain() {
		return r
	}
	return words{r, m.Word == 4, m.BigEndian}
}

type words struct {
	Reader
	small, big bool
}

func (w words) Read8(addr uint64) (uint64, bool) {
	v, ok := w.Reader.Read8(addr)
	if !ok && w.small { // the last word of a piece
		v, ok = w.Reader.Read8(addr - 4)
		v >>= 32
	}
	switch {
	case w.small && w.big:
		v = uint64(bits.ReverseBytes32(uint32(v)))
	case w.small:
		v = uint64(uint32(v))
	case w.big:
		v = bits.ReverseBytes64(v)
	}
	return v, ok
}

// A Memory is what a walker may read: a window that is looked at first, usually a captured piece of
// stack, and behind it a Reader, which may be nil.
type Memory struct {
	Lo    uint64 // address of Bytes[0]
	Bytes []byte
	Next  Reader

	Addresses uint64 // selects the address in a signed return address; 0 is arch.AddressMask
	Tags      bool   // the machine ignores the high byte of an address that it loads from
}

// Unsigned returns a signed return address without its signature.
func (m *Memory) Unsigned(ra uint64) uint64 {
	if m.Addresses != 0 {
		return ra & m.Addresses
	}
	return ra & arch.AddressMask
}

// Load reads a word at addr: eight bytes, but where Next is WordsOf another machine. It does not allocate.
func (m *Memory) Load(addr uint64) (uint64, bool) {
	off := addr - m.Lo
	if n := uint64(len(m.Bytes)); off < n && n-off >= 8 {
		return binary.LittleEndian.Uint64(m.Bytes[off:]), true
	}
	return m.loadNext(addr)
}

// untag selects what is left of an address whose high byte is ignored.
const untag = 1<<56 - 1

func (m *Memory) loadNext(addr uint64) (uint64, bool) {
	if m.Tags && addr > untag {
		return m.Load(addr & untag)
	}
	if m.Next == nil {
		return 0, false
	}
	return m.Next.Read8(addr)
}

// A State is a frame's registers, each with its location: lost, in a register of the snapshot, in
// memory, or a value. Memory is read only when a value is used.
//
// Location of slot i: lost if Known lacks bit i; else at address Val[i] if InMem has it; else in the
// snapshot's register Val[i] if InReg has it; else the value Val[i].
type State struct {
	PC    uint64
	CFA   uint64 // of the frame that was stepped out of; 0 before the first step
	Known uint64
	InMem uint64
	InReg uint64
	Val   [arch.NumSlots]uint64

	// Snap are the snapshot's registers by slot; Step does not change them.
	Snap [arch.NumSlots]uint64

	// Fault is the address that could not be read, after an Outcome of Unreadable.
	Fault uint64
}

// Start makes s the state of a snapshot's first frame: pc, and the registers whose bit is in known.
func (s *State) Start(pc uint64, known uint64) {
	s.PC, s.CFA, s.Known, s.InMem, s.InReg, s.Fault = pc, 0, known, 0, known, 0
	n := bits.Len64(known) // what lies behind is never looked at
	copy(s.Val[:n], identity[:])
}

var identity = func() (v [arch.NumSlots]uint64) {
	for i := range v {
		v[i] = uint64(i)
	}
	return v
}()

// Get returns the value of a slot. An Outcome of LostRegister or Unreadable says why there is none.
func (s *State) Get(slot arch.Slot, m *Memory) (uint64, Outcome) {
	if slot >= arch.NumSlots || s.Known>>slot&1 == 0 {
		return 0, LostRegister
	}
	v := s.Val[slot]
	if s.InMem>>slot&1 != 0 {
		x, ok := m.Load(v)
		if !ok {
			s.Fault = v
			return 0, Unreadable
		}
		return x, OK
	}
	if s.InReg>>slot&1 != 0 {
		v = s.Snap[v&(arch.NumSlots-1)]
	}
	return v, OK
}

// An Outcome is the result of a step.
type Outcome uint8

const (
	OK           Outcome = iota
	Outermost            // the return address is undefined by rule
	NoRule               // the row is a gap, or lacks a rule for the CFA
	LostRegister         // the CFA or the return address needs a register whose value is lost
	Unreadable           // memory that the CFA or the return address needs could not be read
	BadExpr              // an expression that the CFA or the return address needs is ill-formed or too long
)

var outcomeNames = [...]string{"ok", "outermost", "no rule", "lost register", "unreadable", "bad expression"}

func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "?"
}

// A Stepper finds and applies the rules of one module. rows.Interp is the reference; emitters provide
// faster ones. Implementations are safe for concurrent use.
type Stepper interface {
	// Find returns the rule that holds at pc. The id is stable for the life of the Stepper, and
	// equal ids mean equal rules. ok is false where there is no information.
	Find(pc arch.Vaddr) (id uint32, ok bool)

	// Apply turns s, the state of a frame, into the state of its caller. After any outcome but OK, s
	// is unchanged but for Fault. Apply does not allocate.
	Apply(id uint32, s *State, m *Memory) Outcome

	// Signal says whether rule id belongs to a signal frame.
	Signal(id uint32) bool

	// SyncOnly says whether rule id is right at call sites only: not for a frame that has called nobody.
	SyncOnly(id uint32) bool
}
