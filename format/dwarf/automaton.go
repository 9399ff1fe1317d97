package dwarf

import (
	"math/bits"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Call frame instructions are a walk over a finite automaton. A state is all that an instruction can
// see: the rules of the row being built, and what its CIE fixes. An instruction, by its bytes, leads from
// state to state. An edge is computed once, exactly, on a rows.Set; then it is a probe of a hash table.
// Real files have few states (libLLVM: some 1,400 for 1.2 million rows).

// A state is an automaton state: above stateShift its number, below it the rows.SetID of its rules.
type state uint64

func (s state) set() rows.SetID { return rows.SetID(s) }
func (s state) number() uint64  { return uint64(s) >> stateShift }

// A stateKey is what tells states apart.
type stateKey struct {
	set     rows.SetID
	context uint32
	behind  behind
}

// behind is the last offset of a CFA that is an expression now. Nothing but def_cfa_register sees it: see
// docs/SEMANTICS.md.
type behind struct {
	off   int64
	valid bool
}

// A context is what an instruction can see of its CIE.
type context struct {
	daf     int64
	initial rows.SetID // after the CIE's instructions; what restore restores to
	inCIE   bool       // those are running: nothing can be restored
	word    uint8      // address size
}

// An edge is a slot of the hash table. Its key is the bytes of an instruction, or of the two of a push (build.go), at most maxKey of them,
// and above stateShift the number of the state that it leaves.
type edge struct {
	key uint64
	to  state
}

const (
	maxKey     = 5 // bytes of instructions in an edge's key
	stateShift = 8 * maxKey
	maxStates  = 1 << (64 - stateShift)
	maxEdges   = 1 << 20            // then the table is emptied
	maxLong    = 1 << 22            // bytes of longEdges; then they are forgotten
	hashMul    = 0x9e3779b97f4a7c15 // 2⁶⁴ over the golden ratio
)

// opReg0 is DW_OP_reg0, the first of 32 locations of a register (DWARF 5, section 2.6.1.1.3). A value has none, but GCC's stubs for MIPS16 are
// written so, and unwinders take the register's value.
const opReg0 = 0x50

// key returns an edge's key.
func key(ins uint64, from state) uint64 { return ins | uint64(from)>>stateShift<<stateShift }

// slot is where the search for an edge begins, modulo the table's size. Only those bytes are hashed:
// what a probe has to wait for is the state, which is the result of the probe before.
func slot(ins uint64, from state) uint64 { return ins*hashMul>>stateShift ^ from.number() }

// A longEdge is the key of an instruction of more than maxKey bytes.
type longEdge struct {
	from  state
	bytes string
}

// An automaton grows as it is walked. It is for one goroutine.
type automaton struct {
	mach *arch.Machine
	sets *rows.Builder // interns them

	contexts []context
	ctxIndex map[context]uint32
	keys     []stateKey // by a state's number
	index    map[stateKey]state

	table     []edge // a power of two long, at most a quarter full
	edges     int
	long      map[longEdge]state
	longBytes int

	lost    bool // some state has lost its CFA: see apply
	work    int  // bytes of sets that may still be looked at
	space   int  // bytes of sets that may still be kept
	scratch []rows.Rule
}

// newAutomaton returns an automaton without states, of 2^size slots. Hostile input can make a new large set with every
// instruction: sets beyond the budgets are refused.
func newAutomaton(sets *rows.Builder, size uint, work, space int) *automaton {
	return &automaton{
		mach: sets.Machine, sets: sets,
		ctxIndex: map[context]uint32{}, index: map[stateKey]state{}, long: map[longEdge]state{},
		table: make([]edge, 1<<size), work: work, space: space,
	}
}

// stateCost is what a state takes besides its set, in bytes, roughly: its key, its place in three tables, an edge.
const stateCost = 256

// cost is the size of a set, in bytes, roughly.
func cost(s *rows.Set) int {
	n := 64 + len(s.CFA.Expr)
	for i := range s.Rules {
		n += 32 + len(s.Rules[i].Expr)
	}
	return n
}

// noRegisterAndOffset is what is wrong with an instruction that changes an offset which the CFA does not have.
const noRegisterAndOffset = "the CFA is no register and offset"

// context returns the number of c.
func (a *automaton) context(c context) uint32 {
	n, ok := a.ctxIndex[c]
	if !ok {
		n = uint32(len(a.contexts))
		a.contexts = append(a.contexts, c)
		a.ctxIndex[c] = n
	}
	return n
}

// state returns the state of k.
func (a *automaton) state(k stateKey) state {
	s, ok := a.index[k]
	if !ok {
		id := k.set
		if a.sets.Set(id).Gap() {
			id = rows.GapID
		}
		s = state(len(a.keys))<<stateShift | state(id)
		a.space -= stateCost + cost(a.sets.Set(k.set))
		a.keys = append(a.keys, k)
		a.index[k] = s
	}
	return s
}

// find returns where an edge leads.
func (a *automaton) find(ins uint64, from state) (to state, ok bool) {
	mask := uint64(len(a.table) - 1)
	for i := slot(ins, from); ; i++ {
		switch e := &a.table[i&mask]; e.key {
		case key(ins, from):
			return e.to, true
		case 0:
			return 0, false
		}
	}
}

// insert adds an edge that find does not find.
func (a *automaton) insert(ins uint64, from, to state) {
	if a.edges*4 >= len(a.table) {
		old := a.table
		if a.edges >= maxEdges {
			old = nil
			clear(a.table)
		} else {
			a.table = make([]edge, 2*len(old))
		}
		a.edges = 0
		for _, e := range old {
			if e.key != 0 {
				a.insert(e.key&(1<<stateShift-1), state(e.key), e.to)
			}
		}
	}
	a.edges++
	mask := uint64(len(a.table) - 1)
	i := slot(ins, from) & mask
	for a.table[i].key != 0 {
		i = (i + 1) & mask
	}
	a.table[i] = edge{key(ins, from), to}
}

// step follows instruction i, whose bytes are raw, from a state, computing the edge if it is new.
func (a *automaton) step(from state, raw []byte, i *Instruction) (to state, err error) {
	if len(raw) > maxKey {
		to, ok := a.long[longEdge{from, string(raw)}]
		if !ok {
			if to, err = a.apply(from, i); err != nil {
				return 0, err
			}
			if a.longBytes += len(raw); a.longBytes > maxLong {
				clear(a.long)
				a.longBytes = len(raw)
			}
			a.long[longEdge{from, string(raw)}] = to
		}
		return to, nil
	}
	ins := uint64(0)
	for k, c := range raw {
		ins |= uint64(c) << (8 * k)
	}
	to, ok := a.find(ins, from)
	if !ok {
		if to, err = a.apply(from, i); err != nil {
			return 0, err
		}
		a.insert(ins, from, to)
	}
	return to, nil
}

// apply computes an edge: what instruction i makes of a state's rules.
func (a *automaton) apply(from state, i *Instruction) (state, error) {
	k := a.keys[from.number()]
	ctx := &a.contexts[k.context]
	set := *a.sets.Set(k.set)
	if a.work -= cost(&set) + len(i.Expr); a.work < 0 || a.space < 0 || len(a.keys) >= maxStates-1 {
		return 0, in(i.Name(a.mach), unsupported(int(i.Off), "too many distinct rows"))
	}
	set.Rules = append(a.scratch[:0], set.Rules...)
	at := int(i.Off)
	fail := func(err error) (state, error) { return 0, in(i.Name(a.mach), err) }
	reg := arch.Reg(i.Args[0])

	switch i.Op {
	case DW_CFA_offset, DW_CFA_offset_extended, DW_CFA_offset_extended_sf:
		setRule(&set, rows.Rule{Of: reg, Kind: rows.Offset, Off: i.Args[1]})
	case DW_CFA_GNU_negative_offset_extended:
		if i.Args[1] == -i.Args[1] && i.Args[1] != 0 {
			return fail(malformed(at, "offset %d is too large", i.Args[1]))
		}
		setRule(&set, rows.Rule{Of: reg, Kind: rows.Offset, Off: -i.Args[1]})
	case DW_CFA_val_offset, DW_CFA_val_offset_sf:
		setRule(&set, rows.Rule{Of: reg, Kind: rows.ValOffset, Off: i.Args[1]})
	case DW_CFA_undefined:
		setRule(&set, rows.Rule{Of: reg, Kind: rows.Undefined})
	case DW_CFA_same_value:
		setRule(&set, rows.Rule{Of: reg, Kind: rows.SameValue})
	case DW_CFA_register:
		setRule(&set, rows.Rule{Of: reg, Kind: rows.Register, Reg: arch.Reg(i.Args[1])})
	case DW_CFA_expression:
		setRule(&set, rows.LowerRule(rows.Rule{Of: reg, Kind: rows.Expr, Expr: i.Expr}))
	case DW_CFA_val_expression:
		r := rows.LowerRule(rows.Rule{Of: reg, Kind: rows.ValExpr, Expr: i.Expr})
		if e := i.Expr; len(e) == 1 && e[0] >= opReg0 && e[0] < opReg0+32 {
			r = rows.Rule{Of: reg, Kind: rows.Register, Reg: arch.Reg(e[0] - opReg0)}
		}
		setRule(&set, r)

	case DW_CFA_restore, DW_CFA_restore_extended:
		if ctx.inCIE {
			return fail(malformed(at, "in a CIE, which has nothing to restore to"))
		}
		if r, ok := a.sets.Set(ctx.initial).Rule(reg); ok {
			setRule(&set, r)
		} else if n, ok := findRule(&set, reg); ok {
			set.Rules = slices.Delete(set.Rules, n, n+1)
		}

	case DW_CFA_def_cfa, DW_CFA_def_cfa_sf, DW_CFA_LLVM_def_aspace_cfa, DW_CFA_LLVM_def_aspace_cfa_sf:
		// Only one address space holds stacks: its number adds nothing.
		set.CFA = rows.CFA{Kind: rows.CFAReg, Reg: reg, Off: i.Args[1]}
	case DW_CFA_def_cfa_register, DW_CFA_def_cfa_offset, DW_CFA_def_cfa_offset_sf:
		if k.behind.valid && i.Op == DW_CFA_def_cfa_register {
			set.CFA = rows.CFA{Kind: rows.CFAReg, Off: k.behind.off}
		}
		if set.CFA.Kind == rows.CFANone && i.Op == DW_CFA_def_cfa_register {
			// LLVM begins so on MIPS, GNU's assembler on RISC-V and LoongArch; libgcc, readelf and llvm-dwarfdump take 0 for the offset.
			set.CFA = rows.CFA{Kind: rows.CFAReg}
		}
		switch {
		case set.CFA.Kind == rows.CFAReg && i.Op == DW_CFA_def_cfa_register:
			set.CFA.Reg = reg
		case set.CFA.Kind == rows.CFAReg:
			set.CFA.Off = i.Args[0]
		case k.behind.valid:
			// GCC 12 writes this in the epilogues of functions with SVE registers: there is no CFA up to the next definition.
			set.CFA = rows.CFA{}
			k.behind.off = i.Args[0]
			a.lost = true
		default:
			return fail(malformed(at, noRegisterAndOffset))
		}
	case DW_CFA_def_cfa_expression:
		if set.CFA.Kind == rows.CFAReg {
			k.behind = behind{set.CFA.Off, true}
		}
		set.CFA = rows.LowerCFA(i.Expr, a.mach)

	case DW_CFA_GNU_args_size, DW_CFA_nop:
	case DW_CFA_AARCH64_negate_ra_state: // and DW_CFA_GNU_window_save
		switch a.mach.ELF {
		case arch.EM_AARCH64:
			set.Flags ^= rows.RASigned
		case emSPARC, emSPARC32PLUS, emSPARCV9:
			// The window's registers, %l0 to %i7, lie at the start of the frame.
			for n := range 16 {
				setRule(&set, rows.Rule{Of: arch.Reg(16 + n), Kind: rows.Offset, Off: int64(n) * int64(ctx.word)})
			}
		default:
			return fail(unsupported(at, "on machine %s", a.mach.Name))
		}
	case DW_CFA_AARCH64_negate_ra_state_with_pc:
		set.Flags ^= rows.RASigned | rows.RASignPC
	case DW_CFA_AARCH64_set_ra_state:
		set.Flags &^= rows.RASigned | rows.RASignPC
		switch i.Args[0] {
		case 0:
		case 1:
			set.Flags |= rows.RASigned
		case 2:
			set.Flags |= rows.RASigned | rows.RASignPC
		default:
			return fail(malformed(at, "state %d", i.Args[0]))
		}
	default:
		panic("BUG: an instruction that makes no row: " + i.Name(a.mach))
	}
	a.scratch = set.Rules
	if set.CFA.Kind == rows.CFAReg {
		k.behind = behind{}
	}
	k.set = a.sets.Intern(set)
	return a.state(k), nil
}

// e_machine values of SPARC.
const (
	emSPARC       = 2
	emSPARC32PLUS = 18
	emSPARCV9     = 43
)

func findRule(s *rows.Set, r arch.Reg) (int, bool) {
	return slices.BinarySearchFunc(s.Rules, r, func(x rows.Rule, r arch.Reg) int { return int(x.Of) - int(r) })
}

func setRule(s *rows.Set, r rows.Rule) {
	i, ok := findRule(s, r.Of)
	if ok {
		s.Rules[i] = r
	} else {
		s.Rules = slices.Insert(s.Rules, i, r)
	}
}

// A plan says how run treats an opcode.
type plan struct {
	kind planKind
	args uint8 // of planStep: LEB128 operands
}

type planKind uint8

const (
	planNone planKind = iota
	planStep          // an edge, if the instruction is short enough for a key
	planLong          // an edge, but the instruction has a block
	planAdvance
	planNop
	planPush
	planPop
)

var plans = func() (t [256]plan) {
	for b := range t {
		op := primary(byte(b))
		p := &t[b]
		switch op {
		case DW_CFA_advance_loc, DW_CFA_advance_loc1, DW_CFA_advance_loc2, DW_CFA_advance_loc4, DW_CFA_MIPS_advance_loc8, DW_CFA_set_loc:
			p.kind = planAdvance
		case DW_CFA_nop:
			p.kind = planNop
		case DW_CFA_remember_state:
			p.kind = planPush
		case DW_CFA_restore_state:
			p.kind = planPop
		case DW_CFA_def_cfa_expression, DW_CFA_expression, DW_CFA_val_expression:
			p.kind = planLong
		default:
			if opcodes[op].name == "" {
				continue
			}
			p.kind = planStep
			for k, arg := range opcodes[op].args {
				if arg != opEnd && !(k == 0 && op >= DW_CFA_advance_loc) {
					p.args++
				}
			}
		}
	}
	return t
}()

// lebEnd returns how many bytes an opcode and n LEB128 operands take, at most three of them, if that is no
// more than the eight in w, little-endian.
func lebEnd(w uint64, n uint8) uint {
	stops := (^w | 0x80) & 0x8080808080808080 // the last byte of each
	for ; n > 0; n-- {
		stops &= stops - 1
	}
	return uint(bits.TrailingZeros64(stops))>>3 + 1
}

// insMask keeps an instruction's bytes out of eight.
var insMask = [8]uint64{1: 1<<8 - 1, 2: 1<<16 - 1, 3: 1<<24 - 1, 4: 1<<32 - 1, 5: 1<<40 - 1}
