package csource

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A body is the C statements of one rule, while they are written. First everything is read, in terms of
// this frame's registers; then the registers of the caller are written, all at once.
type body struct {
	*gen
	set    *rows.Set
	out    strings.Builder // the statements that read
	locals []string        // declarations
	writes []string        // the statements that write values
	puts   []string        // those that write copied locations, after all others

	keep, gone uint64 // slots that stay where they are, or are lost, whatever the default is
	mem, val   uint64 // slots that are in memory at val[], or whose value val[] is
	lossy      bool   // some slots are lost if their rule cannot be followed
	deferred   bool   // a failure to read the return address is in from
}

// rule returns the statements for a set, which end in a return. They are what rows.Step does.
func (g *gen) rule(set *rows.Set) code {
	b := &body{gen: g, set: set}
	switch {
	case !steps(g.mach):
		b.ret("NO_RULE")
	case set.CFA.Kind == rows.CFANone && set.Outermost():
		b.ret("OUTERMOST")
	case set.CFA.Kind == rows.CFANone:
		b.ret("NO_RULE")
	case b.cfa():
		b.rest()
	}
	slices.SortStableFunc(b.locals, func(x, y string) int { return rank(x) - rank(y) })
	return code{strings.Join(b.locals, ""), b.out.String()}
}

// rank puts declarations in order: the outcome is the last.
func rank(decl string) int {
	if decl == "\tint o;\n" {
		return 1
	}
	return 0
}

// A code is declarations, none of which reads the state, and statements.
type code struct{ locals, text string }

func (b *body) line(format string, args ...any) {
	fmt.Fprintf(&b.out, "\t"+format+"\n", args...)
}

// local declares a variable, unless that is done already.
func (b *body) local(format string, args ...any) bool {
	l := fmt.Sprintf("\t"+format+"\n", args...)
	if slices.Contains(b.locals, l) {
		return false
	}
	b.locals = append(b.locals, l)
	return true
}

// ret ends the rule with an outcome.
func (b *body) ret(outcome string) {
	b.line("return %s;", outcome)
}

// succeed ends the rule with what is OK, or gives it.
func (b *body) succeed(ok string) {
	if b.set.Flags&rows.Signal != 0 {
		ok += " | SIGNAL"
	}
	b.ret(ok)
}

// try ends the rule if call, which gives an outcome, does not give OK.
func (b *body) try(call string) {
	b.local("int o;")
	b.line("if ((o = %s) != OK)", call)
	b.out.WriteByte('\t')
	b.ret("o")
}

func (b *body) get(slot, to string) string {
	return fmt.Sprintf("%s(s, mem, %s, &%s)", b.use("get"), slot, to)
}

func (b *body) load(addr, to string) string {
	return fmt.Sprintf("%s(s, mem, %s, &%s)", b.use("load"), addr, to)
}

func (b *body) eval(expr string, pushCFA bool, to string) string {
	e := expression{expr, pushCFA}
	n, ok := b.exprs[e]
	if !ok {
		n = len(b.exprList)
		b.exprs[e] = n
		b.exprList = append(b.exprList, e)
	}
	if pushCFA {
		return fmt.Sprintf("expr_%d(s, mem, cfa, &%s)", n, to)
	}
	return fmt.Sprintf("expr_%d(s, mem, &%s)", n, to)
}

// cfa finds the canonical frame address. It returns false if there is no more to say.
func (b *body) cfa() bool {
	c := &b.set.CFA
	if c.Kind == rows.CFAExpr {
		b.local("uint64_t cfa;")
		b.try(b.eval(c.Expr, false, "cfa"))
		return true
	}
	slot, ok := b.slot(c.Reg)
	if !ok {
		b.ret("LOST")
		return false
	}
	b.local("uint64_t cfa;")
	b.try(b.get(slot, "cfa"))
	if c.Kind == rows.CFARegDeref {
		b.try(b.load(plus("cfa", c.Off), "cfa"))
		b.add("cfa", c.Off2)
		return true
	}
	b.add("cfa", c.Off)
	switch {
	case c.Kind != rows.CFAPLT || c.Off2 > 15:
	case c.Off2 <= 0:
		b.add("cfa", 8)
	default:
		b.line("if ((s->pc & 15) >= %d)", c.Off2)
		b.out.WriteByte('\t')
		b.add("cfa", 8)
	}
	return true
}

func (b *body) add(name string, off int64) {
	if off != 0 {
		b.line("%s = %s;", name, plus(name, off))
	}
}

// rest is all that follows the CFA.
func (b *body) rest() {
	ra, explicit := b.set.Rule(b.set.RA)
	_, raHasSlot := b.slot(b.set.RA)
	switch {
	case !explicit && !b.mach.RAInReg:
		b.ret("LOST")
		return
	case explicit && ra.Kind == rows.Undefined:
		b.ret("OUTERMOST")
		return
	case !explicit:
		ra = rows.Rule{Of: b.set.RA, Kind: rows.SameValue}
	}
	if ra.Kind == rows.SameValue {
		ra.Reg = ra.Of
	}
	switch ra.Kind {
	case rows.SameValue, rows.Register, rows.RegOffset, rows.RegDeref:
		if _, ok := b.slot(ra.Reg); !ok {
			b.ret("LOST")
			return
		}
	}
	if !explicit {
		b.returnAddress(&ra, false)
	}
	for i := range b.set.Rules {
		r := &b.set.Rules[i]
		slot, hasSlot := b.slot(r.Of)
		switch {
		case r.Of == b.set.RA:
			b.returnAddress(&ra, b.mach.RAInReg && hasSlot)
		case hasSlot:
			b.locate(r, slot)
		}
	}
	if b.deferred {
		b.line("if (from != OK)")
		b.out.WriteByte('\t')
		b.ret("from")
	}
	b.write(raHasSlot)
}

// returnAddress reads the return address into ra, and with place says where it lies.
func (b *body) returnAddress(r *rows.Rule, place bool) {
	slot, _ := b.slot(r.Of)
	from, _ := b.slot(r.Reg)
	// Where a later rule reads memory in vain, it is that address which a failed step reports.
	try, initial := b.try, ""
	if r.Kind != rows.ValOffset && b.faultsAfter(r.Of) {
		initial = " = 0"
		b.local("int from = OK; /* outcome of reading ra */")
		b.deferred = true
		try = func(call string) {
			b.line("if (from == OK)")
			b.line("\tfrom = %s;", call)
		}
	}
	b.local("uint64_t ra%s;", initial)
	bit := slotBit(b.gen, r.Of)
	switch r.Kind {
	case rows.SameValue:
		try(b.get(from, "ra"))
		if place {
			b.keep |= bit
		}
	case rows.Register:
		try(b.get(from, "ra"))
		if place {
			b.copyPlace(slot, from, bit)
		}
	case rows.Offset, rows.ValOffset, rows.RegOffset, rows.ValExpr:
		switch r.Kind {
		case rows.Offset:
			try(b.load(plus("cfa", r.Off), "ra"))
		case rows.ValOffset:
			b.line("ra = %s;", plus("cfa", r.Off))
		case rows.RegOffset:
			try(b.get(from, "ra"))
			b.add("ra", r.Off)
		case rows.ValExpr:
			try(b.eval(r.Expr, true, "ra"))
		}
		if place && r.Kind == rows.Offset {
			b.writeAt(slot, plus("cfa", r.Off), &b.mem, bit)
		} else if place {
			b.writeAt(slot, "ra", &b.val, bit)
		}
	case rows.RegDeref, rows.Expr:
		b.local("uint64_t at_ra%s;", initial)
		if r.Kind == rows.RegDeref {
			try(b.get(from, "at_ra"))
		} else {
			try(b.eval(r.Expr, true, "at_ra"))
		}
		addr := plus("at_ra", r.Off)
		if r.Kind == rows.Expr {
			addr = "at_ra"
		}
		try(b.load(addr, "ra"))
		if place {
			b.writeAt(slot, addr, &b.mem, bit)
		}
	}
}

// faultsAfter says whether a rule of a register above r can read memory in vain. A set without a rule for r
// has its return address read before all rules.
func (b *body) faultsAfter(r arch.Reg) bool {
	_, explicit := b.set.Rule(r)
	for i := range b.set.Rules {
		x := &b.set.Rules[i]
		if _, ok := b.slot(x.Of); !ok || explicit && x.Of <= r {
			continue
		}
		switch x.Kind {
		case rows.RegOffset, rows.RegDeref:
			if _, ok := b.slot(x.Reg); ok {
				return true
			}
		case rows.Expr, rows.ValExpr:
			return true
		}
	}
	return false
}

// locate says where rule r finds the value of a slot.
func (b *body) locate(r *rows.Rule, slot string) {
	bit := slotBit(b.gen, r.Of)
	reg, regOK := b.slot(r.Reg)
	to := "to_" + strings.ToLower(slot)
	lossy := func(call string) {
		b.local("uint64_t %s;", to)
		b.local("uint64_t lost = 0; /* registers whose rules cannot be followed */")
		b.lossy = true
		b.line("if (%s != OK)", call)
		b.line("\tlost |= BIT(%s);", slot)
	}
	switch r.Kind {
	case rows.Undefined:
		b.gone |= bit
	case rows.SameValue:
		b.keep |= bit
	case rows.Offset:
		b.writeAt(slot, plus("cfa", r.Off), &b.mem, bit)
	case rows.ValOffset:
		b.writeAt(slot, plus("cfa", r.Off), &b.val, bit)
	case rows.Register:
		switch {
		case !regOK:
			b.gone |= bit
		case reg == slot:
			b.keep |= bit
		default:
			b.copyPlace(slot, reg, bit)
		}
	case rows.RegOffset, rows.RegDeref:
		if !regOK {
			b.gone |= bit
			return
		}
		lossy(b.get(reg, to))
		if r.Kind == rows.RegDeref {
			b.writeAt(slot, plus(to, r.Off), &b.mem, bit)
		} else {
			b.writeAt(slot, plus(to, r.Off), &b.val, bit)
		}
	case rows.Expr:
		lossy(b.eval(r.Expr, true, to))
		b.writeAt(slot, to, &b.mem, bit)
	case rows.ValExpr:
		lossy(b.eval(r.Expr, true, to))
		b.writeAt(slot, to, &b.val, bit)
	}
}

// writeAt notes that the slot's location becomes the address or value, and adds its bit to a mask.
func (b *body) writeAt(slot, value string, mask *uint64, bit uint64) {
	b.writes = append(b.writes, fmt.Sprintf("s->val[%s] = %s;", slot, value))
	*mask |= bit
}

// copyPlace notes that a slot's location becomes what that of another is now.
func (b *body) copyPlace(slot, from string, bit uint64) {
	name := "was_" + strings.ToLower(from)
	if b.local("struct place %s;", name) {
		b.line("%s = %s(s, %s);", name, b.use("place"), from)
	}
	b.puts = append(b.puts, fmt.Sprintf("%s(s, %s, %s);", b.use("put"), slot, name))
	b.gone |= bit
}

func slotBit(g *gen, r arch.Reg) uint64 {
	if s := g.mach.Slot(r); s < arch.NumSlots {
		return 1 << s
	}
	return 0
}

// write ends a step that succeeds.
func (b *body) write(raHasSlot bool) {
	m := b.mach
	sp, set := slotBit(b.gen, m.SP), b.keep|b.gone|b.mem|b.val
	plain := true // the stack pointer is the CFA, and the program counter's slot, where there is one, is ra
	if set&sp == 0 {
		b.val |= sp
	} else {
		plain = false
	}
	ra := "ra"
	if b.set.Flags&(rows.RASigned|rows.RASignPC) != 0 {
		ra = "ra & ADDRESS"
	}
	raWrite := ""
	if !m.RAInReg {
		bit := slotBit(b.gen, b.set.RA)
		if b.set.RA != m.RA {
			plain = false
		}
		if bit&sp != 0 {
			plain = false
		}
		b.val |= bit
		if raHasSlot {
			name, _ := b.slot(b.set.RA)
			raWrite = fmt.Sprintf("s->val[%s] = %s;", name, ra)
		}
	}
	if !plain {
		if set&sp == 0 {
			spName, _ := b.slot(m.SP)
			b.writes = append(b.writes, fmt.Sprintf("s->val[%s] = cfa;", spName))
		}
		if raWrite != "" {
			b.writes = append(b.writes, raWrite)
		}
	}
	for _, w := range b.writes {
		b.line("%s", w)
	}

	base, name := b.set.Kept(m), "SAVED"
	switch {
	case b.set.Flags&rows.Partial != 0:
		name = b.mask(base)
	case b.set.Flags&rows.Signal != 0:
		name = "ALL"
	}
	keep := name
	if more := b.keep &^ base; more != 0 {
		keep = "(" + keep + " | " + b.mask(more) + ")"
	}
	if less := b.gone & (base | b.keep); less != 0 {
		keep += " & ~" + paren(b.mask(less))
	}
	mem, val := b.mask(b.mem), b.mask(b.val)
	if b.lossy {
		keep += " & ~lost"
		mem, val = paren(mem)+" & ~lost", paren(val)+" & ~lost"
	}
	f := "done"
	if !plain {
		f = "finish"
	}
	call := fmt.Sprintf("%s(s, cfa, %s, %s, %s, %s)", b.use(f), ra, keep, mem, val)
	if len(b.puts) == 0 {
		b.succeed(call)
		return
	}
	b.line("%s;", call)
	for _, p := range b.puts {
		b.line("%s", p)
	}
	b.succeed("OK")
}

// mask spells a set of slots.
func (b *body) mask(x uint64) string {
	if x == 0 {
		return "0"
	}
	var names []string
	for ; x != 0; x &= x - 1 {
		names = append(names, "BIT("+b.names[bits.TrailingZeros64(x)]+")")
	}
	return strings.Join(names, " | ")
}

func paren(x string) string {
	if strings.Contains(x, " ") {
		return "(" + x + ")"
	}
	return x
}
