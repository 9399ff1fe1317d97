// Package csource writes the rules of a module as C11: one self-contained translation unit that turns a frame's state into its caller's. The
// code is meant to be read, and to be a witness: it states the meaning of every kind of rule in a language with other compilers. The fast
// emitters are elsewhere.
//
// The file declares struct unspool_state, with the members of rows.State in their order. A program that declares the struct itself defines
// UNSPOOL_STATE_DEFINED. The file exports
//
//	uint32_t PREFIX_find(uint64_t pc);                                           // rule number; 0: no information
//	int PREFIX_apply(struct unspool_state *s, const void *mem, uint32_t rule);
//	int PREFIX_step(struct unspool_state *s, const void *mem, uint64_t pc);      // find and apply
//
// Rules are numbered by their rows.SetID. apply and step return the rows.Outcome, plus 0x100 if it is OK and the rule is a signal frame's. They
// leave the state that rows.Step leaves. The code keeps nothing, and calls nothing but the caller's reader of memory.
//
// It needs <stdint.h>, <string.h>, and 64-bit integers whose signed form is two's complement. Layout Tree compiles without warnings in standard
// C11; Switch uses GNU case ranges. The output is deterministic. The size of the table bounds its length: a hostile table makes long C, not
// endless C.
package csource

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A Deref says how the code reads the memory of the process that is unwound.
type Deref uint8

const (
	Self     Deref = iota // plain loads in the own process; mem is not used
	Callback              // mem is a struct unspool_reader
	Slice                 // mem is a struct unspool_slice: a copy of a piece of memory, and single words
	numDerefs
)

var derefNames = [numDerefs]string{"self", "callback", "slice"}

func (d Deref) String() string {
	if d < numDerefs {
		return derefNames[d]
	}
	return "?"
}

// A Layout is a shape of the code.
type Layout uint8

const (
	// Tree is a binary search on the program counter in code, whose leaves go to the rules; each
	// distinct rule is there once.
	Tree Layout = iota

	// Switch is one case range with its own code for each row. It exports PREFIX_step only. For small
	// modules.
	Switch
	numLayouts
)

var layoutNames = [numLayouts]string{"tree", "switch"}

func (l Layout) String() string {
	if l < numLayouts {
		return layoutNames[l]
	}
	return "?"
}

// Options control the output. The zero Options are Tree, Self, and the prefix "eh_elf".
type Options struct {
	Layout Layout
	Deref  Deref
	Prefix string // a C identifier
}

var identifier = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,63}$`) })

// Emit writes t as C. It reports options and tables that do not have the form that their types promise,
// and errors of w.
func Emit(w io.Writer, t *rows.Table, o Options) error {
	if o.Prefix == "" {
		o.Prefix = "eh_elf"
	}
	if o.Layout >= numLayouts || o.Deref >= numDerefs || !identifier().MatchString(o.Prefix) {
		return fmt.Errorf("csource: layout %d, deref %d, prefix %q: no such option", o.Layout, o.Deref, o.Prefix)
	}
	if err := check(t); err != nil {
		return err
	}
	g := &gen{t: t, mach: t.Machine, opt: o, used: map[string]bool{}, exprs: map[expression]int{}}
	g.names = slotNames(t.Machine)

	// What the rules use is known when they have been written: expressions, helpers.
	bodies := make([]code, len(t.Sets))
	for id := 1; id < len(t.Sets); id++ {
		bodies[id] = g.rule(&t.Sets[id])
	}
	var exprs bytes.Buffer
	for i, e := range g.exprList {
		g.expr(&exprs, i, e)
	}
	bw := bufio.NewWriterSize(w, 1<<16)
	g.prelude(bw)
	bw.Write(exprs.Bytes())
	if o.Layout == Switch {
		g.monolith(bw, bodies)
	} else {
		g.tree(bw, bodies)
	}
	return bw.Flush()
}

// check reports a table that is not as rows promises.
func check(t *rows.Table) error {
	if len(t.Sets) == 0 || len(t.Sets) > 1<<31-1 {
		return fmt.Errorf("csource: a table of %d sets", len(t.Sets))
	}
	for i := range t.Rows {
		if int64(t.Rows[i].Set) >= int64(len(t.Sets)) || i > 0 && t.Rows[i].Lo <= t.Rows[i-1].Lo {
			return fmt.Errorf("csource: row %d at %#x: not in order, or of an unknown set", i, uint64(t.Rows[i].Lo))
		}
	}
	for id := range t.Sets {
		s := &t.Sets[id]
		if s.CFA.Kind >= rows.NumCFAKinds {
			return fmt.Errorf("csource: set %d: CFA rule of unknown kind %d", id, s.CFA.Kind)
		}
		for i := range s.Rules {
			if r := &s.Rules[i]; r.Kind >= rows.NumKinds || i > 0 && r.Of <= s.Rules[i-1].Of {
				return fmt.Errorf("csource: set %d, rule of register %d: not in order, or of unknown kind %d", id, r.Of, r.Kind)
			}
		}
	}
	return nil
}

// A gen holds what is known of the file that is written.
type gen struct {
	t        *rows.Table
	mach     *arch.Machine
	opt      Options
	names    []string        // of the slots
	used     map[string]bool // helpers
	exprs    map[expression]int
	exprList []expression
}

// use notes that a helper is called, and returns its name.
func (g *gen) use(name string) string {
	g.used[name] = true
	return name
}

// slotNames gives each slot of a walker's state a name in C: RBX, X19.
func slotNames(m *arch.Machine) []string {
	var names []string
	for r := range arch.Reg(256) {
		if s := int(m.Slot(r)); s < arch.NumSlots {
			for len(names) <= s {
				names = append(names, fmt.Sprintf("SLOT_%d", len(names)))
			}
			names[s] = strings.ToUpper(m.RegName(r))
		}
	}
	return names
}

// slot returns the name of register r's slot; ok is false if it has none.
func (g *gen) slot(r arch.Reg) (name string, ok bool) {
	s := g.mach.Slot(r)
	if s >= arch.NumSlots {
		return "", false
	}
	return g.names[s], true
}

// plus returns C for the unsigned expression x plus a constant.
func plus(x string, off int64) string {
	switch {
	case off == 0:
		return x
	case off > 0 && off < 1<<31:
		return fmt.Sprintf("%s + %d", x, off)
	case off < 0 && off > -1<<31:
		return fmt.Sprintf("%s - %d", x, -off)
	}
	return fmt.Sprintf("%s + %#x", x, uint64(off))
}

// comment returns the text of a rule for a comment, or less of it where it is long.
func (g *gen) comment(id int) string {
	const most = 300
	s := &g.t.Sets[id]
	size := len(s.CFA.Expr)
	for i := range s.Rules {
		if size += 8 + len(s.Rules[i].Expr); size > most {
			return fmt.Sprintf("%d rules", len(s.Rules))
		}
	}
	return clean(s.Text(g.mach))
}

// clean keeps text from ending the comment that it stands in.
func clean(s string) string {
	return strings.NewReplacer("*/", "* /", "/*", "/ *", "\n", " ", "\\", "/").Replace(s)
}
