package native

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Verify proves that c means what ref says, by running it: both ends of each row select its rule, neighbours with one
// rule being one row, and each rule does what rows.Step does on adversarial states of registers and memory,
// which come from seed. The error can be pasted into an issue.
func Verify(c *Code, ref *rows.Table, seed uint64) error {
	v := verifier{c: c, ref: ref, rule: make([]uint32, len(ref.Sets)), seen: make([]bool, len(ref.Sets))}
	v.set = make([]rows.SetID, c.in.NumRules)
	if c.Layout() == Inline {
		return v.inline(rows.NewTrials(seed))
	}
	if err := v.ends(); err != nil {
		return err
	}
	return v.rules(rows.NewTrials(seed))
}

type verifier struct {
	c    *Code
	ref  *rows.Table
	rule []uint32     // by set
	seen []bool       // by set
	set  []rows.SetID // one of a rule's sets
}

// ends looks up the first and the last address of each row.
func (v *verifier) ends() error {
	if len(v.ref.Rows) == 0 || v.ref.Rows[0].Lo > 0 {
		if id, ok := v.c.Find(0); ok {
			return fmt.Errorf("Find(0)\n got  rule %d\n want none", id)
		}
	}
	for i, r := range v.ref.Rows {
		hi := v.ref.Hi(i)
		if i+1 < len(v.ref.Rows) {
			hi--
		}
		for _, pc := range [2]arch.Vaddr{r.Lo, hi} {
			id, ok := v.c.Find(pc)
			switch {
			case ok != (r.Set != rows.GapID), ok && v.seen[r.Set] && id != v.rule[r.Set], int(id) >= len(v.set):
				return fmt.Errorf("Find(%#x)\n got  rule %d, %v\n want rule %d: %s (row %d, [%#x, %#x))", uint64(pc), id, ok, v.rule[r.Set],
					v.ref.Sets[r.Set].Text(v.ref.Machine), i, uint64(r.Lo), uint64(v.ref.Hi(i)))
			case ok && !v.seen[r.Set]:
				v.seen[r.Set], v.rule[r.Set], v.set[id] = true, id, r.Set
			}
		}
	}
	return nil
}

// rules tries all sets that are used, on all processors where there are many.
func (v *verifier) rules(trials *rows.Trials) error {
	var sets []rows.SetID
	for s, seen := range v.seen {
		if seen {
			sets = append(sets, rows.SetID(s))
		}
	}
	n := max(1, min(runtime.GOMAXPROCS(0), len(sets)/64))
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for _, s := range sets[len(sets)*i/n : len(sets)*(i+1)/n] {
				if errs[i] = v.try(trials, s); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// try compares one rule with a set, through the entry point that C programs use.
func (v *verifier) try(trials *rows.Trials, s rows.SetID) error {
	id, set := v.rule[s], &v.ref.Sets[s]
	if got, want := v.c.Signal(id), set.Flags&rows.Signal != 0; got != want {
		return fmt.Errorf("Signal(%d)\n got  %v\n want %v (%s)", id, got, want, set.Text(v.ref.Machine))
	}
	return v.check(trials, set, id, entryApply, uintptr(id))
}

// inline steps from both ends of each row. A rule is there as often as there are rows: each gets the trials once in full.
func (v *verifier) inline(trials *rows.Trials) error {
	var none rows.Set
	if len(v.ref.Rows) == 0 || v.ref.Rows[0].Lo > 0 {
		if err := v.check(trials, &none, 0, entryStep, 0); err != nil {
			return err
		}
	}
	for i, r := range v.ref.Rows {
		hi := v.ref.Hi(i)
		if i+1 < len(v.ref.Rows) {
			hi--
		}
		for _, pc := range [2]arch.Vaddr{r.Lo, hi} {
			if err := v.check(trials, &v.ref.Sets[r.Set], uint32(i), entryStep, uintptr(pc)); err != nil {
				return fmt.Errorf("%#x: %w", uint64(pc), err)
			}
		}
	}
	return nil
}

// check runs an entry point with an argument on states that suit the file's memory kind.
func (v *verifier) check(trials *rows.Trials, set *rows.Set, id uint32, entry int, arg uintptr) error {
	fn := v.c.base + uintptr(v.c.in.Entries[entry])
	signal := uintptr(0)
	if set.Flags&rows.Signal != 0 {
		signal = signalBit
	}
	run := func(s *rows.State, mem unsafe.Pointer) rows.Outcome {
		switch r := call(fn, unsafe.Pointer(s), mem, arg); {
		case r == uintptr(rows.OK)|signal:
			return rows.OK
		case r == uintptr(rows.OK) || r > uintptr(needWord):
			return 255 // the signal bit is wrong
		default:
			return rows.Outcome(r)
		}
	}
	mach := v.ref.Machine
	if v.c.Deref() == Self {
		return checkSelf(mach, set, id, func(s *rows.State) rows.Outcome { return run(s, nil) })
	}
	return trials.Check(mach, set, id, func(_ uint32, s *rows.State, m *rows.Memory) rows.Outcome {
		// What the step reads outside of the window is known from the reference.
		rec := recorder{Reader: m.Next}
		probe := *s
		rows.Step(mach, set, &probe, &rows.Memory{Lo: m.Lo, Bytes: m.Bytes, Next: &rec})
		mem := slice{lo: m.Lo, size: uint64(len(m.Bytes)), bytes: unsafe.SliceData(m.Bytes), words: unsafe.SliceData(rec.words), n: uint64(len(rec.words))}
		if v.c.Deref() == Slice {
			return run(s, unsafe.Pointer(&mem))
		}
		back := reader{read8: readSlicePC(), ctx: unsafe.Pointer(&mem)}
		return run(s, unsafe.Pointer(&back))
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
func checkSelf(mach *arch.Machine, set *rows.Set, id uint32, apply func(*rows.State) rows.Outcome) error {
	if mach.Slot(set.RA) == arch.NoSlot {
		return nil
	}
	mem, err := theArena()
	if err != nil {
		return err
	}
	// Large offsets are made up for in the registers.
	shifts := [4]uint64{0, uint64(set.CFA.Off), uint64(set.CFA.Off), uint64(set.CFA.Off)}
	if ra, ok := set.Rule(set.RA); ok {
		shifts[2] += uint64(ra.Off)
		shifts[3] = uint64(ra.Off)
	}
	tried := 0
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
		tried++
		if err := rows.Check(mach, set, &s, &m, apply); err != nil {
			return fmt.Errorf("Step(rule %d, state %d)%w", id, k, err)
		}
	}
	return nil
}
