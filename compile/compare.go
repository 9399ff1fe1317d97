package compile

import (
	"slices"

	"golang.org/x/arch/x86/x86asm"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// A Comparison says how far two sources of unwind information of a file agree. It counts addresses that both describe; where one of them is right
// at call sites only, it counts call sites.
type Comparison struct {
	First, Second string // the sources' names, in order of precedence

	Equal     uint64 // addresses where each rule that both have is the same
	OtherBase uint64 // addresses where the rules count from different registers: only execution can tell whether they agree
	Differ    uint64 // addresses where they contradict each other
	Padding   uint64 // addresses where they do, too, but of instructions between functions' parts that nothing reaches

	// Differences are the ranges of addresses of Differ, in ascending order.
	Differences []Difference
}

// A Difference is a range of addresses where two sources contradict each other.
type Difference struct {
	Section string // of a file that is not linked: Lo and Hi count from its beginning
	Lo, Hi  arch.Vaddr
	Rules   []Disagreement
}

// A Disagreement is a register, "cfa", "signed" (the return address has a signature) or "signal" (the caller was interrupted), with the texts of
// its two rules (rows.Rule.Cell).
type Disagreement struct{ Of, First, Second string }

// Compare holds all sources of a file against each other, two at a time. damage has what could not be read.
func Compare(img *module.Image, u *format.Unwind) (list []Comparison, damage []error) {
	if len(u.Sources) < 2 {
		return nil, nil
	}
	tables := make([]*rows.Table, len(u.Sources))
	for i, s := range u.Sources {
		var d []error
		tables[i], d = s.Rows()
		damage = append(damage, d...)
	}
	for j := range tables {
		for i := range tables[:j] {
			c := Comparison{First: u.Sources[i].Name, Second: u.Sources[j].Name}
			if c.add(img, tables[i], tables[j]); c.Equal+c.OtherBase+c.Differ+c.Padding == 0 {
				continue
			}
			for k := range c.Differences {
				d := &c.Differences[k]
				if section, off := img.Place(d.Lo); section != "" {
					d.Section, d.Lo, d.Hi = section, arch.Vaddr(off), d.Hi-d.Lo+arch.Vaddr(off)
				}
			}
			list = append(list, c)
		}
	}
	return list, damage
}

// A verdict is what two sets of rules come to.
type verdict struct {
	otherBase bool
	rules     []Disagreement
}

// add compares two tables of an image, address by address.
func (c *Comparison) add(img *module.Image, a, b *rows.Table) {
	verdicts := map[[2]rows.SetID]*verdict{}
	open := false                // the last difference goes on
	var before, until arch.Vaddr // what was compared last
	for i, j := 0, 0; i < len(a.Rows) && j < len(b.Rows); {
		ra, rb := a.Rows[i], b.Rows[j]
		lo, hi := max(ra.Lo, rb.Lo), min(a.Hi(i), b.Hi(j))
		if a.Hi(i) == hi {
			i++
		}
		if b.Hi(j) == hi {
			j++
		}
		if lo >= hi || ra.Set == rows.GapID || rb.Set == rows.GapID {
			open = false
			continue
		}
		key := [2]rows.SetID{ra.Set, rb.Set}
		v := verdicts[key]
		if v == nil {
			v = judge(a.Machine, &a.Sets[ra.Set], &b.Sets[rb.Set])
			verdicts[key] = v
		}
		from := lo
		if until == lo {
			from = before
		}
		before, until = lo, hi
		n := uint64(hi - lo)
		if (a.Sets[ra.Set].Flags|b.Sets[rb.Set].Flags)&rows.SyncOnly != 0 {
			n = callSites(img, lo, hi)
		}
		switch {
		case n == 0:
		case len(v.rules) > 0 && padding(img, from, lo, hi):
			c.Padding += n
			open = false
			continue
		case len(v.rules) > 0:
			c.Differ += n
			if k := len(c.Differences); open && c.Differences[k-1].Hi == lo && slices.Equal(c.Differences[k-1].Rules, v.rules) {
				c.Differences[k-1].Hi = hi
			} else {
				c.Differences = append(c.Differences, Difference{"", lo, hi, v.rules})
			}
		case v.otherBase:
			c.OtherBase += n
		default:
			c.Equal += n
		}
		open = n > 0 && len(v.rules) > 0
	}
}

// judge compares two sets of rules. Registers that a call does not preserve are left out, and those of which a partial set says nothing.
func judge(m *arch.Machine, a, b *rows.Set) *verdict {
	v := &verdict{}
	if a.Outermost() || b.Outermost() {
		if a.Outermost() != b.Outermost() {
			v.rules = append(v.rules, Disagreement{"ra", returnCell(m, a), returnCell(m, b)})
		}
		return v
	}
	if (a.Flags|b.Flags)&rows.SyncOnly == 0 {
		differ := func(name string, flags rows.Flags) {
			if x, y := a.Flags&flags != 0, b.Flags&flags != 0; x != y {
				v.rules = append(v.rules, Disagreement{name, yes[x], yes[y]})
			}
		}
		differ("signed", rows.RASigned|rows.RASignPC)
		differ("signal", rows.Signal)
	}
	switch x, y := a.CFA, b.CFA; {
	case x == y:
	case x.Kind == rows.CFAReg && y.Kind == rows.CFAReg && x.Reg == y.Reg:
		v.rules = append(v.rules, Disagreement{"cfa", a.CFACell(m), b.CFACell(m)})
	default:
		v.otherBase = true
	}
	for _, r := range append(slices.Clone(m.CalleeSaved), m.RA) {
		x, saysX := ruleFor(m, a, r)
		y, saysY := ruleFor(m, b, r)
		if !saysX || !saysY || x == y {
			continue
		}
		if absolute(x) && absolute(y) {
			name := m.RegName(r)
			if r == m.RA {
				name = "ra"
			}
			v.rules = append(v.rules, Disagreement{name, x.Cell(m), y.Cell(m)})
		} else {
			v.otherBase = true
		}
	}
	return v
}

var yes = map[bool]string{false: "no", true: "yes"}

func returnCell(m *arch.Machine, s *rows.Set) string {
	r, _ := ruleFor(m, s, m.RA)
	return r.Cell(m)
}

// ruleFor returns what a set says of a register that a call preserves, or of the return address.
func ruleFor(m *arch.Machine, s *rows.Set, r arch.Reg) (rows.Rule, bool) {
	column := r
	if r == m.RA {
		column = s.RA
	}
	if rule, ok := s.Rule(column); ok {
		rule.Of = r
		return rule, true
	}
	return rows.Rule{Of: r, Kind: rows.SameValue}, s.Flags&rows.Partial == 0 || r == m.RA
}

// absolute says whether a rule counts from the CFA, or from nothing.
func absolute(r rows.Rule) bool {
	return r.Kind == rows.Offset || r.Kind == rows.ValOffset || r.Kind == rows.Undefined || r.Kind == rows.SameValue
}

// padding says whether [lo, hi) has instructions of x86 that do nothing, behind one that goes elsewhere: compilers align what follows a return so.
// An instruction begins at from, and the one in front of lo is behind it.
func padding(img *module.Image, from, lo, hi arch.Vaddr) bool {
	bits, code := x86[img.Machine().ELF], img.Tail(from)
	if bits == 0 || uint64(len(code)) < uint64(hi-from) {
		return false
	}
	left := false // for elsewhere
	for at := 0; at < int(hi-from); {
		inst, err := x86asm.Decode(code[at:], bits)
		if err != nil || inst.Len == 0 {
			return false
		}
		if at < int(lo-from) && at+inst.Len > int(lo-from) {
			return false
		}
		if at < int(lo-from) {
			left = inst.Op == x86asm.RET || inst.Op == x86asm.JMP
		} else if !left || inst.Op != x86asm.NOP && inst.Op != x86asm.INT && !(inst.Op == x86asm.XCHG && inst.Args[0] == inst.Args[1]) {
			return false
		}
		at += inst.Len
	}
	return left
}

// x86 are the machines whose instructions x86asm decodes, with the size of their words in bits.
var x86 = map[uint16]int{arch.EM_X86_64: 64, arch.EM_386: 32, arch.IMAGE_FILE_MACHINE_AMD64: 64}

// callSites counts the calls with a last byte in [lo, hi): that byte is where a caller's rules are looked up. lo is where an instruction begins.
func callSites(img *module.Image, lo, hi arch.Vaddr) (n uint64) {
	m := img.Machine()
	code := img.Tail(lo)
	code = code[:min(uint64(len(code)), uint64(hi-lo))]
	if bits := x86[m.ELF]; bits != 0 {
		for at := 0; at < len(code); {
			inst, err := x86asm.Decode(code[at:], bits)
			if err != nil || inst.Len == 0 {
				at++
				continue
			}
			if at += inst.Len; inst.Op == x86asm.CALL {
				n++
			}
		}
		return n
	}
	size := 4
	if m.ELF == arch.EM_ARM || m.ELF == arch.EM_RISCV { // instructions of two bytes
		size = 2
	}
	for at := size; at <= len(code); at += size {
		if m.AfterCall(code[:at]) {
			n++
		}
	}
	return n
}
