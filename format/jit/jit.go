// Package jit makes rows of the unwind records of code that processes make while they run: .eh_frame of single functions, which no file has. A
// dump has one in front of each function (Linux: tools/perf/Documentation/jitdump-specification.txt, JIT_CODE_UNWINDING_INFO); package symbol/jit
// reads dumps.
//
// Makers write many functions of the same size with the same record: they share their rows, which count from the function's start.
package jit

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/rows"
)

// A Record is .eh_frame of one function.
type Record struct {
	EHFrame string
	Size    uint64 // of the function, in bytes
	Big     bool   // the record is big-endian
}

// Rules are the rules of the functions of one process. They are a rows.Stepper but for Find, which takes the function's record. They are safe for
// concurrent use.
type Rules struct {
	machine *arch.Machine
	take    func(bytes int64) bool
	damaged func(error)

	mu     sync.RWMutex
	tables map[key][]rows.Row // with numbers of sets; from 0 on, in order; the last row is a gap
	sets   *rows.Builder
	known  rows.SetID // how many sets there are

	registered []piece // sorted, disjoint
	held       int64   // bytes taken for the most of them that there were
}

// A piece is code with one rule.
type piece struct {
	lo, hi uint64
	set    rows.SetID
}

const pieceBytes = 24

// A key is a record, and where its function is if the record has its address; else 0.
type key struct {
	Record
	at arch.Addr
}

// What a record takes beside its bytes, and a row, a set and a rule of a set, in bytes.
const (
	keyBytes  = 128
	rowBytes  = 16
	setBytes  = 192
	ruleBytes = 32
)

var errFull = errors.New("its unwind information would take more memory than what is granted")

// base is where functions are while their records are read, unless these have addresses of their own.
const base = 1 << 32

// New returns the rules of a process that has made no function yet. take says whether there is memory for so many bytes more; damaged is called with
// what is wrong with records. Both may be nil.
func New(m *arch.Machine, take func(bytes int64) bool, damaged func(error)) *Rules {
	if take == nil {
		take = func(int64) bool { return true }
	}
	if damaged == nil {
		damaged = func(error) {}
	}
	return &Rules{machine: m, take: take, damaged: damaged, tables: map[key][]rows.Row{}, sets: rows.NewBuilder(m)}
}

// Find returns the rule at off bytes behind the start of a function that is at start.
func (r *Rules) Find(rec Record, start arch.Addr, off uint64) (id uint32, ok bool) {
	t := r.table(rec, start)
	i := sort.Search(len(t), func(i int) bool { return uint64(t[i].Lo) > off }) - 1
	if i < 0 || t[i].Set == rows.GapID {
		return 0, false
	}
	return uint32(t[i].Set), true
}

// table returns the rows of a function.
func (r *Rules) table(rec Record, start arch.Addr) []rows.Row {
	r.mu.RLock()
	t, known := r.tables[key{rec, 0}]
	if known && t == nil {
		t, known = r.tables[key{rec, start}]
	}
	r.mu.RUnlock()
	if known {
		return t
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := key{rec, 0}
	if t, known = r.tables[k]; !known {
		t = r.add(k, base)
	}
	if k.at = start; t == nil {
		if t, known = r.tables[k]; !known {
			t = r.add(k, uint64(start))
		}
	}
	return t
}

// add reads a record, and remembers its rows, or that it has none.
func (r *Rules) add(k key, at uint64) []rows.Row {
	if !r.take(int64(keyBytes + len(k.EHFrame))) {
		r.damaged(errFull)
		return nil
	}
	t := r.read(k.Record, at)
	r.tables[k] = t
	return t
}

// read makes the rows of a function at an address; nil where its record has none for it. The record is mapped behind the function, at the next
// multiple of eight bytes: relative pointers count from there. What it says of other code does not count.
func (r *Rules) read(rec Record, at uint64) []rows.Row {
	var order binary.ByteOrder = binary.LittleEndian
	if rec.Big {
		order = binary.BigEndian
	}
	hi := at + rec.Size
	if hi < at || hi+7 < hi {
		return nil
	}
	f := dwarf.New(dwarf.Sections{Machine: r.machine, Order: order, AddrSize: 8, EHFrame: []dwarf.Section{{Name: ".eh_frame", Addr: arch.Vaddr(hi+7) &^ 7, Data: []byte(rec.EHFrame)}}})
	t, damage := f.Build(dwarf.EHFrame)
	if len(damage) > 0 {
		r.damaged(fmt.Errorf("function of %d bytes: %w", rec.Size, damage[0]))
	}
	var out []rows.Row
	for i := max(0, t.Find(arch.Vaddr(at))); i < len(t.Rows) && uint64(t.Rows[i].Lo) < hi; i++ {
		x := t.Rows[i]
		cost := int64(rowBytes)
		if x.Set != rows.GapID {
			set := t.Sets[x.Set]
			if x.Set = r.sets.Intern(set); x.Set >= r.known {
				r.known = x.Set + 1
				cost += setBytes + ruleBytes*int64(len(set.Rules))
			}
		}
		if !r.take(cost) {
			r.damaged(errFull)
			return nil
		}
		x.Lo = max(x.Lo, arch.Vaddr(at)) - arch.Vaddr(at)
		if x.Set != rows.GapID || len(out) > 0 {
			out = append(out, x)
		}
	}
	if n := len(out); n > 0 && out[n-1].Set != rows.GapID {
		out = append(out, rows.Row{Lo: arch.Vaddr(rec.Size), Set: rows.GapID})
	}
	return out
}

// Register makes tables the rules of code that has no records, in place of those that were given before. Of two rules for an address, the first counts.
func (r *Rules) Register(tables []*rows.Table) {
	type found struct {
		piece
		set rows.Set
	}
	var all []found
	for _, t := range tables {
		for i := 0; i+1 < len(t.Rows); i++ {
			if x := t.Rows[i]; x.Set != rows.GapID {
				all = append(all, found{piece{lo: uint64(x.Lo), hi: uint64(t.Rows[i+1].Lo)}, t.Sets[x.Set]})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(a.lo, b.lo) })
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]piece, 0, len(all))
	cost := max(0, pieceBytes*int64(len(all))-r.held)
	end := uint64(0)
	for _, x := range all {
		if x.lo = max(x.lo, end); x.lo >= x.hi {
			continue
		}
		if end, x.piece.set = x.hi, r.sets.Intern(x.set); x.piece.set >= r.known {
			r.known = x.piece.set + 1
			cost += setBytes + ruleBytes*int64(len(x.set.Rules))
		}
		out = append(out, x.piece)
	}
	if !r.take(cost) {
		r.damaged(errFull)
		out = nil
	}
	r.held = max(r.held, pieceBytes*int64(len(out)))
	r.registered = out
}

// Registered returns the rule of registered code.
func (r *Rules) Registered(v arch.Vaddr) (id uint32, ok bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	i := sort.Search(len(r.registered), func(i int) bool { return r.registered[i].hi > uint64(v) })
	if i == len(r.registered) || r.registered[i].lo > uint64(v) {
		return 0, false
	}
	return uint32(r.registered[i].set), true
}

// set returns a rule, which does not change.
func (r *Rules) set(id uint32) *rows.Set {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.sets.Set(rows.SetID(id))
}

// Apply implements rows.Stepper.
func (r *Rules) Apply(id uint32, s *rows.State, m *rows.Memory) rows.Outcome {
	return rows.Step(r.machine, r.set(id), s, m)
}

// Signal implements rows.Stepper.
func (r *Rules) Signal(id uint32) bool { return r.set(id).Flags&rows.Signal != 0 }

// SyncOnly implements rows.Stepper.
func (r *Rules) SyncOnly(id uint32) bool { return r.set(id).Flags&rows.SyncOnly != 0 }
