package rows

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"

	"github.com/unspool/unspool/arch"
)

// NumTrials is the number of states of registers and memory on which each rule is tried.
const NumTrials = 32

// Trials are adversarial states of registers and memory, on which an emitted rule is held against Step. They are not
// changed by use, and safe for concurrent use.
type Trials struct {
	seed uint64
	try  [NumTrials]*Trial

	mu    sync.Mutex
	right map[proof]bool // what CheckBytes has found to be right
}

// A Trial is one of them.
type Trial struct {
	Before State
	mem    trialMemory
}

// Memory returns the memory of t: a small window, and behind it numbers that look random, some of which cannot be read.
func (t *Trial) Memory() Memory { return t.mem.memory() }

// NewTrials returns the trials of a seed.
func NewTrials(seed uint64) *Trials {
	t := &Trials{seed: seed}
	for k := range t.try {
		t.try[k] = NewTrial(seed^uint64(k)<<56, k)
	}
	return t
}

var shared struct {
	sync.Mutex
	bySeed map[uint64]*Trials
}

// A proof is all that the result of Check depends on: a machine, and what appendProof writes of a rule and a set.
type proof struct {
	mach *arch.Machine
	text string
}

// SharedTrials returns the trials of a seed that all of this process share. They remember what CheckBytes has found to be right.
func SharedTrials(seed uint64) *Trials {
	shared.Lock()
	defer shared.Unlock()
	t := shared.bySeed[seed]
	if t == nil {
		if shared.bySeed == nil || len(shared.bySeed) >= maxSeeds {
			shared.bySeed = map[uint64]*Trials{}
		}
		t = NewTrials(seed)
		shared.bySeed[seed] = t
	}
	return t
}

// Bounds on what is remembered: seeds, rules of each that have been found to be right, and the text of one, which has some 100 bytes.
const (
	maxSeeds = 4
	maxRight = 1 << 14
	maxProof = 1 << 9
)

// CheckBytes is Check of a rule whose meaning is in its bytes alone: apply does nothing but what they and the machine say. Modules share
// most of their rules. So for the same bytes, set and machine the same trials have the same result, and are not made again.
func (t *Trials) CheckBytes(mach *arch.Machine, set *Set, id uint32, rule []byte, apply func(uint32, *State, *Memory) Outcome) error {
	key := proof{mach, string(appendProof(make([]byte, 0, 256), set, rule))}
	t.mu.Lock()
	right := t.right[key]
	t.mu.Unlock()
	if right {
		return nil
	}
	if err := t.Check(mach, set, id, apply); err != nil {
		return err
	}
	if len(key.text) > maxProof {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.right == nil || len(t.right) >= maxRight {
		t.right = map[proof]bool{}
	}
	t.right[key] = true
	return nil
}

// appendProof writes a set and a rule: different ones differently.
func appendProof(b []byte, set *Set, rule []byte) []byte {
	num := func(xs ...int64) {
		for _, x := range xs {
			b = binary.AppendVarint(b, x)
		}
	}
	text := func(s string) { num(int64(len(s))); b = append(b, s...) }
	text(string(rule))
	num(int64(set.CFA.Kind), int64(set.CFA.Reg), set.CFA.Off, set.CFA.Off2, int64(set.RA), int64(set.Flags), int64(len(set.Rules)))
	text(set.CFA.Expr)
	for i := range set.Rules {
		r := &set.Rules[i]
		num(int64(r.Of), int64(r.Kind), int64(r.Reg), r.Off)
		text(r.Expr)
	}
	return b
}

// Check says whether apply, which stands for the rule id of some emitted table, does what Step does with set: outcome,
// program counter, CFA, the location of each register, and the address at fault. The error can be pasted into an issue.
func (t *Trials) Check(mach *arch.Machine, set *Set, id uint32, apply func(uint32, *State, *Memory) Outcome) error {
	if !mach.StepKnown || !mach.RAInReg && mach.Slot(set.RA) == arch.NoSlot {
		return nil // Step does not know the machine, or the return address column
	}
	var c Checker
	for k, x := range t.try {
		am, bm := x.Memory(), x.Memory()
		if err := c.Check(mach, set, &x.Before, &am, func(s *State) Outcome { return apply(id, s, &bm) }); err != nil {
			return fmt.Errorf("Step(rule %d, seed %#x, state %d)%w", id, t.seed, k, err)
		}
	}
	return nil
}

// A Checker compares steps with Step. It has room for the states, which are large; one serves many checks, in turn.
type Checker struct{ a, b State }

// Check says whether apply does with one state what Step does with set and m, which is called first.
func (x *Checker) Check(mach *arch.Machine, set *Set, before *State, m *Memory, apply func(*State) Outcome) error {
	a, b := &x.a, &x.b
	*a, *b = *before, *before
	want, got := Step(mach, set, a, m), apply(b)
	bad := got != want
	switch {
	case bad:
	case want == OK:
		bad = !a.Equal(b) || a.Snap != b.Snap
	default:
		bad = want == Unreadable && a.Fault != b.Fault
		fault := b.Fault
		b.Fault = before.Fault
		bad = bad || *b != *before
		b.Fault = fault
	}
	if bad {
		return fmt.Errorf("\n in   %s\n got  %v %s\n want %v %s\n (%s)", before.Text(mach), got, b.Text(mach), want, a.Text(mach), set.Text(mach))
	}
	return nil
}

// Prove says whether an emitted table means what ref says: find selects one rule for each set, at the first and the last
// address of each of its rows, and none in gaps; and rule, which is called for each set that is used, from several
// goroutines, finds its rule to be right. It returns the rule of each set, 0 where it is not used.
func Prove(ref *Table, find func(arch.Vaddr) (uint32, bool), rule func(s SetID, id uint32) error) ([]uint32, error) {
	ids, seen := make([]uint32, len(ref.Sets)), make([]bool, len(ref.Sets))
	var used []SetID
	look := func(pc arch.Vaddr, row int, set SetID) error {
		id, ok := find(pc)
		switch {
		case ok != (set != GapID), ok && seen[set] && id != ids[set]:
			return fmt.Errorf("Find(%#x)\n got  rule %d, %v\n want rule %d: %s (row %d)", uint64(pc), id, ok, ids[set], ref.Sets[set].Text(ref.Machine), row)
		case ok && !seen[set]:
			seen[set], ids[set] = true, id
			used = append(used, set)
		}
		return nil
	}
	if len(ref.Rows) == 0 || ref.Rows[0].Lo > 0 {
		if err := look(0, -1, GapID); err != nil {
			return nil, err
		}
	}
	if len(ref.Rows) > 0 && ref.Rows[0].Lo > 0 {
		if err := look(ref.Rows[0].Lo-1, -1, GapID); err != nil {
			return nil, err
		}
	}
	for i, r := range ref.Rows {
		hi := ref.Hi(i)
		if i+1 < len(ref.Rows) {
			hi--
		}
		if err := look(r.Lo, i, r.Set); err != nil {
			return nil, err
		}
		if err := look(hi, i, r.Set); err != nil {
			return nil, err
		}
	}
	n := max(1, min(runtime.GOMAXPROCS(0), len(used)/64))
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for _, s := range used[len(used)*i/n : len(used)*(i+1)/n] {
				if errs[i] = rule(s, ids[s]); errs[i] != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// Text prints a state's program counter, CFA and locations.
func (s *State) Text(m *arch.Machine) string {
	out := fmt.Sprintf("pc=%#x cfa=%#x fault=%#x", s.PC, s.CFA, s.Fault)
	for r := range m.Regs() {
		slot := m.Slot(r)
		if slot == arch.NoSlot || s.Known>>slot&1 == 0 {
			continue
		}
		switch v := s.Val[slot]; {
		case s.InMem>>slot&1 != 0:
			out += fmt.Sprintf(" %s=*%#x", m.RegName(r), v)
		case s.InReg>>slot&1 != 0:
			out += fmt.Sprintf(" %s=<%d>%#x", m.RegName(r), v, s.Snap[v&(arch.NumSlots-1)])
		default:
			out += fmt.Sprintf(" %s=%#x", m.RegName(r), v)
		}
	}
	return out
}

// A trialMemory is memory made of numbers that look random: part of it a window, part of it unreadable.
type trialMemory struct {
	seed   uint64
	holes  bool // some addresses cannot be read
	lo     uint64
	window [256]byte
}

// Read8 implements Reader.
func (m *trialMemory) Read8(addr uint64) (uint64, bool) {
	h := mix(addr ^ m.seed)
	if m.holes && h>>60 < 3 {
		return 0, false
	}
	return m.number(h), true
}

// number makes a value that is likely to lead somewhere: into the window, near it, or to an edge.
func (m *trialMemory) number(h uint64) uint64 {
	small := int64(int8(h >> 8))
	switch h & 7 {
	case 0:
		return 1<<63 + uint64(small)
	case 1:
		return uint64(small)
	case 2:
		return mix(h)
	case 3:
		return m.lo + h>>16&0xff // misaligned
	default:
		return m.lo + h>>16&0xf8
	}
}

func (m *trialMemory) memory() Memory {
	return Memory{Lo: m.lo, Bytes: m.window[:], Next: m}
}

// NewTrial makes the k-th trial of a seed. The first ones are kind, so that every rule succeeds on some.
func NewTrial(seed uint64, k int) *Trial {
	t := &Trial{}
	s, m := &t.Before, &t.mem
	*m = trialMemory{seed: mix(seed), holes: k >= NumTrials/4}
	m.lo = mix(m.seed) &^ 7 >> (k & 16)
	for i := 0; i < len(m.window); i += 8 {
		binary.LittleEndian.PutUint64(m.window[i:], m.number(mix(m.seed+uint64(i))))
	}
	h := m.seed
	next := func() uint64 { h = mix(h + 1); return h }
	*s = State{PC: next(), CFA: next(), Fault: next()}
	for i := range s.Val {
		s.Snap[i] = m.number(next())
		switch s.Val[i] = m.number(next()); k & 3 {
		case 0:
			s.Val[i] = uint64(i)
		case 1:
			s.Val[i] = next() & (arch.NumSlots - 1)
		}
	}
	s.Known = ^uint64(0)
	switch k & 3 {
	case 0:
		s.InReg = ^uint64(0)
	case 1:
		s.InReg = next()
	case 2:
		s.InMem, s.InReg = next(), next()
	case 3:
		s.InMem, s.InReg = next(), next()
		s.Known = next()
		s.Known |= next()
	}
	return t
}

// mix is a bijection that spreads every bit (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
