package native

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"

	. "github.com/unspool/unspool/emit/native/amd64"
)

// maxExprs bounds the expressions of a module, in bytes: an operation is a hundred bytes of code at most.
const maxExprs = maxSize / 256

// code writes all code of a module: the entry points, the search, what rules share, and the rules.
func (g *generator) code() error {
	n := g.t.NumRules()
	labels := func(n int) []Label {
		ls := make([]Label, n)
		for i := range ls {
			ls[i] = g.Label()
		}
		return ls
	}
	g.noRule, g.fail, g.wideExit, g.load, g.loadRA = g.Label(), g.Label(), g.Label(), g.Label(), g.Label()
	g.rules = labels(n)
	if g.o.Layout == Tree {
		g.numbers = labels(n)
	}
	g.frames = []region{{g.Here(), frameNone}}
	g.entryPoints()
	g.finder()
	if g.o.Layout == Tree {
		g.outlined()
	}
	if g.o.Deref != Self {
		g.loader()
	}
	g.exits()
	g.Set(g.rules[0])
	g.Jmp(g.noRule)
	tails := map[tailKey][]uint32{}
	var order []tailKey
	for id := uint32(1); id < uint32(n); id++ {
		s := g.t.Set(id)
		switch k, ok := simple(&s); {
		case ok && g.o.Layout == Inline:
			g.Set(g.rules[id]) // it is in the tree
		case ok && s.CFA.Kind == rows.CFAReg && !s.Outermost():
			if tails[k] == nil {
				order = append(order, k)
			}
			tails[k] = append(tails[k], id)
		default:
			g.Set(g.rules[id])
			g.rule(&s)
		}
		if g.size > maxExprs || g.Size() > maxSize {
			return ErrTooLarge
		}
	}
	for _, k := range order {
		g.tailRules(k, tails[k])
	}
	for _, b := range g.bodyOrder {
		g.wideBody(b)
	}
	g.frames = append(g.frames, region{g.Here(), frameBP})
	for _, k := range g.wideOrder {
		g.wideCommit(k)
	}
	for _, k := range g.exprOrder {
		g.evaluator(k)
	}
	g.frames = append(g.frames, region{g.Here(), frameNone})
	g.commits()
	for i := 0; i < len(g.getOrder); i++ {
		g.getter(g.getOrder[i])
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

// entryPoints writes what callers call, under the System V ABI.
func (g *generator) entryPoints() {
	g.find = g.Label()
	apply, found := g.Label(), g.Label()
	if g.o.has(entryFind) {
		g.entries[entryFind] = g.Here()
		g.Mov(RDX, RDI)
		g.Jmp(g.find)
		g.ends[entryFind] = g.Here()
	}
	g.entries[entryStep] = g.Here()
	if g.o.Layout == Inline {
		g.Jmp(g.find)
		g.ends[entryStep] = g.Here()
		return
	}
	if g.o.Layout == Page && g.t.NumRows() >= inlineRows {
		// The search once more, in line: that saves a call and a return. It leaves the start of the file in r11.
		g.after = found
		g.page()
		g.after = 0
	} else {
		g.Call(g.find)
		g.Jmp(apply)
	}
	g.ends[entryStep] = g.Here()
	g.entries[entryApply] = g.Here()
	g.Mov32(RDX, RDX) // the upper half of an argument may be anything
	g.RI32(CMP, RDX, int32(len(g.rules)))
	g.Jcc(AE, g.noRule)
	g.Mov32(RAX, RDX)
	g.Set(apply)
	g.LeaAbs(R11, -g.start)
	g.Set(found)
	g.Load32(RDX, Indexed(R11, RAX, 4, g.parts[partRules]))
	g.Btr32(RDX, 31)
	g.RR(ADD, RDX, R11)
	g.JmpReg(RDX)
	g.ends[entryApply] = g.Here()
}

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
	from Label
	kind frameKind
}

type frameKind uint8

const (
	frameNone   frameKind = iota // the CFA is rsp+8
	framePushed                  // rbp was pushed: the CFA is rsp+16
	frameBP                      // and rbp is the frame: the CFA is rbp+16
)

// unwind returns the code's own unwind information as a table.
func (g *generator) unwind(at []uint32, size int) *rows.Table {
	b := rows.NewBuilder(arch.AMD64)
	lo := arch.Vaddr(g.start)
	b.Begin(lo, lo+arch.Vaddr(size))
	ra := rows.Rule{Of: 16, Kind: rows.Offset, Off: -8}
	bp := rows.Rule{Of: 6, Kind: rows.Offset, Off: -16}
	sets := [...]rows.Set{
		frameNone:   {CFA: rows.CFA{Kind: rows.CFAReg, Reg: 7, Off: 8}, RA: 16, Rules: []rows.Rule{ra}},
		framePushed: {CFA: rows.CFA{Kind: rows.CFAReg, Reg: 7, Off: 16}, RA: 16, Rules: []rows.Rule{bp, ra}},
		frameBP:     {CFA: rows.CFA{Kind: rows.CFAReg, Reg: 6, Off: 16}, RA: 16, Rules: []rows.Rule{bp, ra}},
	}
	for _, r := range g.frames {
		b.Row(lo+arch.Vaddr(at[r.from]), b.Intern(sets[r.kind]))
	}
	return rows.Build(b)
}
