package native

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Verify proves c equal to ref, by running it, or by interpreting code for AArch64 on another machine: both ends of each row select its rule, neighbours with one rule being one row, and each rule
// does what rows.Step does on adversarial states of registers and memory, which come from seed. The error can be pasted into an issue.
func Verify(c *Code, ref *rows.Table, seed uint64) error {
	v := verifier{c, ref, rows.NewTrials(seed)}
	if c.Layout() == Inline {
		return v.inline()
	}
	_, err := rows.Prove(ref, v.find, v.try)
	return err
}

// find is c.Find for code of any machine. What cannot be interpreted is no rule that anybody has.
func (v *verifier) find(pc arch.Vaddr) (uint32, bool) {
	if v.c.host {
		return v.c.Find(pc)
	}
	id, err := v.c.interpret(v.c.in.Entries[entryFind], nil, nil, uint64(pc))
	if err != nil {
		return math.MaxUint32, true
	}
	return uint32(id), id != 0
}

type verifier struct {
	c      *Code
	ref    *rows.Table
	trials *rows.Trials
}

// try compares one rule with a set, through the entry point that C programs use.
func (v *verifier) try(s rows.SetID, id uint32) error {
	set := &v.ref.Sets[s]
	if got, want := v.c.Signal(id), set.Flags&rows.Signal != 0; got != want {
		return fmt.Errorf("Signal(%d)\n got  %v\n want %v (%s)", id, got, want, set.Text(v.ref.Machine))
	}
	return v.check(set, id, entryApply, uint64(id))
}

// inline steps from both ends of each row. A rule is there as often as there are rows: each gets the trials once in full.
func (v *verifier) inline() error {
	var none rows.Set
	if len(v.ref.Rows) == 0 || v.ref.Rows[0].Lo > 0 {
		if err := v.check(&none, 0, entryStep, 0); err != nil {
			return err
		}
	}
	for i, r := range v.ref.Rows {
		hi := v.ref.Hi(i)
		if i+1 < len(v.ref.Rows) {
			hi--
		}
		for _, pc := range [2]arch.Vaddr{r.Lo, hi} {
			if err := v.check(&v.ref.Sets[r.Set], uint32(i), entryStep, uint64(pc)); err != nil {
				return fmt.Errorf("%#x: %w", uint64(pc), err)
			}
		}
	}
	return nil
}

// check runs an entry point with an argument on states that suit the file's memory kind.
func (v *verifier) check(set *rows.Set, id uint32, entry int, arg uint64) (err error) {
	signal := uint64(0)
	if set.Flags&rows.Signal != 0 {
		signal = signalBit
	}
	var fault error
	defer func() {
		if fault != nil {
			err = fmt.Errorf("rule %d: %w (%s)", id, fault, set.Text(v.ref.Machine))
		}
	}()
	run := func(s *rows.State, mem *memory) rows.Outcome {
		r, err := v.c.call(v.c.in.Entries[entry], s, mem, arg)
		switch {
		case err != nil:
			fault = err
			return 255
		case r == uint64(rows.OK)|signal:
			return rows.OK
		case r == uint64(rows.OK) || r > uint64(needWord):
			return 255 // the signal bit is wrong
		default:
			return rows.Outcome(r)
		}
	}
	mach := v.ref.Machine
	if v.c.Deref() == Self {
		return checkSelf(mach, set, id, run)
	}
	return v.trials.Check(mach, set, id, func(_ uint32, s *rows.State, m *rows.Memory) rows.Outcome {
		// What the step reads outside of the window is known from the reference.
		rec := recorder{Reader: m.Next}
		probe := *s
		rows.Step(mach, set, &probe, &rows.Memory{Lo: m.Lo, Bytes: m.Bytes, Next: &rec})
		mem := &slice{lo: m.Lo, size: uint64(len(m.Bytes)), bytes: unsafe.SliceData(m.Bytes), words: unsafe.SliceData(rec.words), n: uint64(len(rec.words))}
		all := sliceMemory(mem, m.Bytes, rec.words)
		if v.c.Deref() == Slice {
			return run(s, all)
		}
		back := &reader{ctx: unsafe.Pointer(mem)}
		if v.c.host {
			back.read8 = readSlicePC()
		} else {
			back.read8 = callbackAt
		}
		all.arg = unsafe.Pointer(back)
		all.add(all.arg, int(unsafe.Sizeof(*back)))
		all.read8 = m.Load
		return run(s, all)
	})
}

// A recorder remembers the words that were read.
type recorder struct {
	rows.Reader
	words []word
}

func (r *recorder) Read8(addr uint64) (uint64, bool) {
	v, ok := r.Reader.Read8(addr)
	w := word{addr: addr, value: v}
	if ok {
		w.ok = 1
	}
	r.words = append(r.words, w)
	return v, ok
}

// A reader is unspool_reader: memory for code of kind Callback.
type reader struct {
	read8 uintptr
	ctx   unsafe.Pointer

	addresses uint64 // as a slice's
}

// Code of kind Self reads real memory. The arena is some, full of numbers that lead into its middle.
type arena struct {
	b      []byte
	states [4 * rows.NumTrials]rows.State // whose registers lead there, too
}

const arenaSize = 8 << 20

var theArena = sync.OnceValues(func() (*arena, error) {
	b, err := unix.Mmap(-1, 0, arenaSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("memory to verify machine code: %w", err)
	}
	a := &arena{b: b}
	mid := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) + arenaSize/2
	r := rand.New(rand.NewPCG(1, 2))
	number := func() uint64 {
		x := r.Uint64()
		if x&7 == 0 {
			return mid + x>>3&0xffff // not aligned
		}
		return mid + x>>3&0xfff8
	}
	// Only the middle is written: what lies around it is read, as zero, where offsets are large.
	for at := arenaSize/2 - 64<<10; at < arenaSize/2+128<<10; at += 8 {
		le.PutUint64(b[at:], number())
	}
	for k := range a.states {
		s := &a.states[k]
		*s = rows.State{PC: r.Uint64(), CFA: r.Uint64(), Fault: r.Uint64(), Known: ^uint64(0), InReg: r.Uint64()}
		if k&1 != 0 {
			s.Known = r.Uint64() | r.Uint64()
		}
		if k&2 == 0 {
			s.InMem = r.Uint64() & r.Uint64()
		}
		for i := range s.Val {
			s.Snap[i] = number()
			if s.Val[i] = number(); s.InMem>>i&1 == 0 && s.InReg>>i&1 != 0 {
				s.Val[i] = r.Uint64() & (arch.NumSlots - 1)
			}
		}
	}
	return a, nil
})

// An arenaReader reads the arena, and notes what lies outside of it.
type arenaReader struct {
	b       []byte
	outside bool
}

func (a *arenaReader) Read8(addr uint64) (uint64, bool) {
	off := addr - uint64(uintptr(unsafe.Pointer(unsafe.SliceData(a.b))))
	if off > arenaSize-8 {
		a.outside = true
		return 0, false
	}
	return le.Uint64(a.b[off:]), true
}

// checkSelf tries a rule on states whose registers lead into the arena, until enough of them did: a state from which the
// reference reads elsewhere is left out. A rule that reads at absurd addresses only, whatever the registers, cannot be
// tried here; its code differs from that of the other kinds in its loads alone.
func checkSelf(mach *arch.Machine, set *rows.Set, id uint32, run func(*rows.State, *memory) rows.Outcome) error {
	if !mach.RAInReg && mach.Slot(set.RA) == arch.NoSlot {
		return nil
	}
	mem, err := theArena()
	if err != nil {
		return err
	}
	all := new(memory)
	all.add(unsafe.Pointer(unsafe.SliceData(mem.b)), len(mem.b))
	// Large offsets are made up for in the registers.
	shifts := [4]uint64{0, uint64(set.CFA.Off), uint64(set.CFA.Off), uint64(set.CFA.Off)}
	if ra, ok := set.Rule(set.RA); ok {
		shifts[2] += uint64(ra.Off)
		shifts[3] = uint64(ra.Off)
	}
	tried := 0
	var c rows.Checker
	for k := 0; tried < rows.NumTrials && k < len(mem.states); k++ {
		s := mem.states[(k+int(id))%len(mem.states)]
		if shift := shifts[k&3]; shift != 0 {
			for i := range s.Val {
				s.Snap[i] -= shift
				if (s.InMem|s.InReg)>>i&1 == 0 {
					s.Val[i] -= shift
				}
			}
		}
		m := rows.Memory{Next: &arenaReader{b: mem.b}}
		probe := s
		if rows.Step(mach, set, &probe, &m); m.Next.(*arenaReader).outside {
			continue
		}
		if set.Flags&(rows.RASigned|rows.RASignPC) != 0 && mach.RAInReg {
			raw := s
			if rows.Step(mach, set, &raw, &rows.Memory{Next: m.Next, Addresses: ^uint64(0)}); raw.PC&^arch.AddressMask != 0 {
				continue // no address: what the processor makes of its high bits depends on the processor
			}
		}
		tried++
		if err := c.Check(mach, set, &s, &m, func(s *rows.State) rows.Outcome { return run(s, all) }); err != nil {
			return fmt.Errorf("Step(rule %d, state %d)%w", id, k, err)
		}
	}
	return nil
}
