package native

import "github.com/unspool/unspool/rows"

// maxExprs bounds the expressions of a module, in bytes: an operation is a hundred bytes of code at most.
const maxExprs = maxSize / 256

// code writes all code of a module: the entry points, the search, what rules share, and the rules.
func (g *generator) code() error {
	m, n := g.m, g.t.NumRules()
	labels := func(n int) []label {
		ls := make([]label, n)
		for i := range ls {
			ls[i] = m.Label()
		}
		return ls
	}
	g.noRule, g.fail, g.wideExit, g.load, g.loadRA = m.Label(), m.Label(), m.Label(), m.Label(), m.Label()
	g.rules = labels(n)
	if g.o.Layout == Tree {
		g.numbers = labels(n)
	}
	g.region(frameNone)
	m.entryPoints()
	g.finder()
	if g.o.Layout == Tree {
		g.outlined()
	}
	if g.o.Deref != Self {
		m.loader()
	}
	m.exits()
	m.Set(g.rules[0])
	m.Jmp(g.noRule)
	tails := map[any][]uint32{}
	var order []any
	for id := uint32(1); id < uint32(n); id++ {
		s := g.t.Set(id)
		switch k, ok := m.shape(&s); {
		case ok && g.o.Layout == Inline:
			m.Set(g.rules[id]) // it is in the tree
		case ok && s.CFA.Kind == rows.CFAReg && !s.Outermost():
			if tails[k] == nil {
				order = append(order, k)
			}
			tails[k] = append(tails[k], id)
		default:
			m.Set(g.rules[id])
			m.rule(&s)
		}
		if g.size > maxExprs || m.Size() > m.maxSize() {
			return ErrTooLarge
		}
	}
	for _, k := range order {
		m.tailRules(k, tails[k])
	}
	for _, b := range g.bodyOrder {
		m.wideBody(b)
	}
	g.region(frameBP)
	for _, k := range g.wideOrder {
		m.wideCommit(k)
	}
	for _, k := range g.exprOrder {
		m.expression(k)
	}
	g.region(frameNone)
	m.commits()
	m.getters()
	if m.Size() > m.maxSize() {
		return ErrTooLarge
	}
	return nil
}

// Entry points, in the order in which the file names them.
const (
	entryFind = iota
	entryApply
	entryStep
)

var entryNames = [...]string{"eh_elf_find", "eh_elf_apply", "eh_elf_step"}

// has says whether a file has an entry point.
func (o *Options) has(entry int) bool { return o.Layout != Inline || entry == entryStep }

// inlineRows is from how many rows on a step has a search of its own: in small modules 200 bytes count.
const inlineRows = 4096

// directory returns the offsets of the rules' code in the file, with bit 31 for signal frames.
func (g *generator) directory(at []uint32) []byte {
	var b []byte
	for id, l := range g.rules {
		v := uint32(g.start) + at[l]
		if g.t.Signal(uint32(id)) {
			v |= 1 << 31
		}
		b = le.AppendUint32(b, v)
	}
	return b
}

// A region is where the code's own unwind information changes.
type region struct {
	from label
	kind frameKind
}

type frameKind uint8

const (
	frameNone   frameKind = iota // the stack pointer is as it was at the entry
	framePushed                  // the frame pointer was pushed
	frameBP                      // and is the frame
	frameEntry                   // as frameNone, but the return address is where the call left it
	numFrames
)

// region says how the code is unwound from here on.
func (g *generator) region(k frameKind) {
	g.frames = append(g.frames, region{g.m.Here(), k})
}
