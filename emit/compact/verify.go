package compact

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// states is how many states of registers and memory each rule is tried on.
const states = 32

// A trial is one of them.
type trial struct {
	before rows.State
	mem    trialMemory
}

// Verify proves that t means what ref says: the same rows; both ends of each row select its rule; each
// rule is the set's, and does what rows.Step does on adversarial states of registers and memory, which
// come from seed. The error can be pasted into an issue.
func Verify(t *Table, ref *rows.Table, seed uint64) error {
	v := &verifier{t: t, ref: ref, ids: make([]uint32, len(ref.Sets)), seen: make([]bool, len(ref.Sets)), seed: seed}
	if t.machine != ref.Machine {
		return fmt.Errorf("compact table: for %s, not %s", t.machine.Name, ref.Machine.Name)
	}
	if err := v.ends(); err != nil {
		return err
	}
	if err := v.rows(); err != nil {
		return err
	}
	for k := range v.try {
		v.try[k].setUp(seed^uint64(k)<<56, k)
	}
	return v.sets()
}

// sets compares all rules, on all processors where there are many.
func (v *verifier) sets() error {
	var ids []rows.SetID
	for id, seen := range v.seen {
		if seen {
			ids = append(ids, rows.SetID(id))
		}
	}
	n := max(1, min(runtime.GOMAXPROCS(0), len(ids)/64))
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		part := ids[len(ids)*i/n : len(ids)*(i+1)/n]
		run := func() {
			for _, id := range part {
				if errs[i] = v.set(id); errs[i] != nil {
					return
				}
			}
		}
		if i == n-1 {
			run()
		} else {
			wg.Go(run)
		}
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

type verifier struct {
	t    *Table
	ref  *rows.Table
	ids  []uint32 // the rule of each set
	seen []bool
	seed uint64
	try  [states]trial
}

// ends looks up the first and the last address of each row.
func (v *verifier) ends() error {
	if len(v.ref.Rows) == 0 || v.ref.Rows[0].Lo > 0 {
		if id, ok := v.t.Find(0); ok {
			return fmt.Errorf("Find(0)\n got  rule %d\n want none", id)
		}
	}
	for i, r := range v.ref.Rows {
		hi := v.ref.Hi(i)
		if i+1 < len(v.ref.Rows) {
			hi--
		}
		if i == 0 && r.Lo > 0 {
			if id, ok := v.t.Find(r.Lo - 1); ok {
				return fmt.Errorf("Find(%#x)\n got  rule %d\n want none (before the first row)", uint64(r.Lo-1), id)
			}
		}
		for _, pc := range [2]arch.Vaddr{r.Lo, hi} {
			id, ok := v.t.Find(pc)
			switch {
			case ok != (r.Set != rows.GapID), ok && v.seen[r.Set] && id != v.ids[r.Set]:
				return v.mismatch(pc, id, ok, i)
			case ok && !v.seen[r.Set]:
				v.seen[r.Set], v.ids[r.Set] = true, id
			}
		}
	}
	return nil
}

func (v *verifier) mismatch(pc arch.Vaddr, id uint32, ok bool, row int) error {
	got := v.t.Set(id)
	r := v.ref.Rows[row]
	return fmt.Errorf("Find(%#x)\n got  rule %d, %v: %s\n want %s (row %d, [%#x, %#x))", uint64(pc), id, ok, got.Text(v.ref.Machine),
		v.ref.Sets[r.Set].Text(v.ref.Machine), row, uint64(r.Lo), uint64(v.ref.Hi(row)))
}

// rows compares the two lists. Neighbours that have one rule are one row.
func (v *verifier) rows() (err error) {
	i, last := 0, uint32(0)
	next := func() (rows.Row, bool) {
		for ; i < len(v.ref.Rows); i++ {
			r := v.ref.Rows[i]
			if id := v.ids[r.Set]; id != last {
				last = id
				i++
				return r, true
			}
		}
		return rows.Row{}, false
	}
	v.t.Rows(func(lo arch.Vaddr, id uint32, gap bool) bool {
		r, ok := next()
		if !ok || r.Lo != lo || v.ids[r.Set] != id || gap != (r.Set == rows.GapID) {
			err = fmt.Errorf("row %d\n got  %#x rule %d, gap %v\n want %#x rule %d, %v", i-1, uint64(lo), id, gap, uint64(r.Lo), v.ids[r.Set], ok)
			return false
		}
		return true
	})
	if r, ok := next(); ok && err == nil {
		err = fmt.Errorf("row %d\n got  none\n want %#x rule %d", i-1, uint64(r.Lo), v.ids[r.Set])
	}
	return err
}

// set compares the rule for a set with it, by content and by what it does.
func (v *verifier) set(sid rows.SetID) error {
	id := v.ids[sid]
	mach := v.ref.Machine
	ref := &v.ref.Sets[sid]
	got, want := v.t.Set(id), v.t.sh.normal(ref, nil)
	if !equalSets(&got, &want) {
		return fmt.Errorf("rule %d\n got  %s\n want %s\n (%#v, not %#v)", id, got.Text(mach), want.Text(mach), got, want)
	}
	if g, w := v.t.Signal(id), ref.Flags&rows.Signal != 0; g != w {
		return fmt.Errorf("Signal(%d)\n got  %v\n want %v (%s)", id, g, w, ref.Text(mach))
	}
	if !mach.StepKnown || !mach.RAInReg && mach.Slot(ref.RA) == arch.NoSlot {
		return nil // Step does not know the machine, or the return address column
	}
	var a, b rows.State
	for k := range v.try {
		before, m := &v.try[k].before, &v.try[k].mem
		a = *before
		b = *before
		am, bm := m.memory(), m.memory()
		ga, gb := rows.Step(mach, ref, &a, &am), v.t.Apply(id, &b, &bm)
		bad := ga != gb
		switch {
		case bad:
		case ga == rows.OK:
			bad = !a.Equal(&b) || a.Snap != b.Snap
		default:
			bad = ga == rows.Unreadable && a.Fault != b.Fault
			c := b
			c.Fault = before.Fault
			bad = bad || c != *before
		}
		if bad {
			return fmt.Errorf("Step(rule %d, seed %#x, state %d)\n in   %s\n got  %v %s\n want %v %s\n (%s)", id, v.seed, k,
				stateText(mach, before), gb, stateText(mach, &b), ga, stateText(mach, &a), ref.Text(mach))
		}
	}
	return nil
}

func equalSets(a, b *rows.Set) bool {
	return a.CFA == b.CFA && a.RA == b.RA && a.Flags == b.Flags &&
		(slices.Equal(a.Rules, b.Rules))
}

// stateText prints a state's program counter, CFA and locations.
func stateText(m *arch.Machine, s *rows.State) string {
	out := fmt.Sprintf("pc=%#x cfa=%#x fault=%#x", s.PC, s.CFA, s.Fault)
	for r := range arch.Reg(128) {
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

// Read8 implements rows.Reader.
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

func (m *trialMemory) memory() rows.Memory {
	return rows.Memory{Lo: m.lo, Bytes: m.window[:], Next: m}
}

// setUp makes the k-th trial. The first ones are kind, so that every rule succeeds on some.
func (t *trial) setUp(seed uint64, k int) {
	s, m := &t.before, &t.mem
	*m = trialMemory{seed: mix(seed), holes: k >= states/4}
	m.lo = mix(m.seed) &^ 7 >> (k & 16)
	for i := 0; i < len(m.window); i += 8 {
		le.PutUint64(m.window[i:], m.number(mix(m.seed+uint64(i))))
	}
	h := m.seed
	next := func() uint64 { h = mix(h + 1); return h }
	*s = rows.State{PC: next(), CFA: next(), Fault: next()}
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
}

// mix is a bijection that spreads every bit (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
