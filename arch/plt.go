package arch

// A PLT is the shape of a lazy procedure linkage table (".plt"): its first entry, which calls the dynamic linker, and the others, which
// jump to a function, or push and jump to the first entry. Linkers often give it no unwind information.
type PLT struct {
	First, Entry Stub
	Last         Stub // of tables that end with it; Size is 0 where none do

	// RAPushed says that a push is of the return address, whose register is used for something else from there on.
	RAPushed bool

	// Jumps finds the entries of any such table that jump to a function; nil where their form is not known. code is the table, which lies at addr; entsize is what its
	// section says of an entry's size.
	Jumps func(code []byte, addr, entsize uint64) []Jump
}

// A Jump is an entry [Lo, Hi) that jumps to where the word at Slot says.
type Jump struct{ Lo, Hi, Slot uint64 }

// A Stub is an entry of such a table, as far as it uses the stack.
type Stub struct {
	Size    uint64 // in bytes; where entries of one table differ in size, those that push have this one
	Entered uint64 // how many bytes lie on the stack already when it begins
	Push    []Push // one of these, at most, is in it
}

// A Push is an instruction of a stub that pushes Bytes bytes. It begins At bytes behind the stub's beginning, with Code, and has Size bytes.
type Push struct {
	At, Size, Bytes uint64
	Code            string
}

// Pushed returns how many bytes lie on the stack above what the table was called with, off bytes behind the table's beginning; the table
// has size bytes. text reads code off bytes behind that beginning, and returns how much there is. Where there is none, the stub is taken for the
// usual one.
func (p *PLT) Pushed(off, size uint64, text func(off uint64, to []byte) int) uint64 {
	var b [MaxPush]byte
	if last := size - p.Last.Size; p.Last.Size > 0 && size >= p.Last.Size && off >= last {
		if code := b[:text(last, b[:])]; len(code) > 0 {
			if _, ok := p.Last.push(code); ok {
				return p.Last.pushed(off-last, code)
			}
		}
	}
	s, at := &p.First, off
	if off >= p.First.Size {
		s, at = &p.Entry, 0
		if s.Size > 0 {
			at = (off - p.First.Size) % s.Size
		}
	}
	return s.pushed(at, b[:text(off-at, b[:])])
}

// Lazy says whether a table that begins with code has a first entry. A table without one, as in a static program, only jumps.
func (p *PLT) Lazy(code []byte) bool {
	_, ok := p.First.push(code)
	return ok
}

// pushed returns how many bytes lie there at an offset in the stub, which begins with code. Where that is not at hand, the first of Push is
// taken for granted.
func (s *Stub) pushed(at uint64, code []byte) uint64 {
	if p, ok := s.push(code); ok && at >= p.At+p.Size {
		return s.Entered + p.Bytes
	}
	return s.Entered
}

// push returns the instruction of a stub that pushes.
func (s *Stub) push(code []byte) (p Push, ok bool) {
	for _, p := range s.Push {
		if len(code) == 0 || p.At < uint64(len(code)) && hasPrefix(code[p.At:], p.Code) {
			return p, true
		}
	}
	return Push{}, false
}

func hasPrefix(b []byte, s string) bool { return len(b) >= len(s) && string(b[:len(s)]) == s }

// MaxPush is how much of a stub's beginning Pushed and Lazy look at.
const MaxPush = 8
