package pe

import (
	"encoding/binary"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Registers of AArch64, by DWARF's numbers.
const (
	x19   = 19
	x29   = 29
	lr    = 30
	sp    = 31
	pc    = 32
	vg    = 46 // how many words of 64 bits a scalable vector has
	v0    = 64
	v8    = 72
	nReg8 = 96
)

// An op undoes an instruction of a prologue, or has the effect of one of an epilogue.
type op struct {
	kind     kind
	reg, two arch.Reg // that are saved; none: 0, which is x0, whose value nobody needs
	off, gap int64    // where the first is, from the stack pointer, and how far behind the second
	pop      int64    // by what the stack pointer rises then; of frame, how far below x29 it was
	vl       int64    // and by how many lengths of a scalable vector; of zreg and preg, where the register is, in its own lengths
}

// A kind is what an op does.
type kind uint8

const (
	save    kind = iota // saves, moves the stack pointer, or neither
	zreg                // saves the scalable vector register reg
	preg                // saves the predicate register reg
	pairs               // saves the pair of registers behind the next op's
	setFP               // sets the stack pointer from x29
	sign                // signs the return address
	machine             // none of the function's: the processor has pushed the stack pointer and the program counter
	whole               // none of the function's: a CONTEXT has all registers
	exact               // none of the function's: who comes next has not called
)

// A scaled place is so many lengths of a scalable vector further on.
type scaled struct {
	place
	vl int64
}

// expr returns the expression for a place: it depends on the vectors' length, as DWARF's do ("DWARF for the Arm 64-bit Architecture", VG).
func (s scaled) expr() string {
	b := sleb([]byte{rows.DW_OP_breg0 + byte(s.reg)}, s.off)
	b = append(b, rows.DW_OP_bregx, vg, 0, rows.DW_OP_constu)
	b = binary.AppendUvarint(b, uint64(8*s.vl))
	return string(append(b, rows.DW_OP_mul, rows.DW_OP_plus))
}

// sleb appends a signed LEB128 number.
func sleb(b []byte, v int64) []byte {
	for v < -64 || v > 63 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v)&0x7f)
}

// counts says whether an op is an instruction.
func (o *op) counts() bool { return o.kind < machine }

// armLength returns how many bytes the function has that the second word of an entry describes; at is where the entry is. Lengths are in units of bytes:
// two on 32-bit Arm, four on ARM64.
func (t *Table) armLength(r *reader, at, data, unit uint32) (uint32, error) {
	switch data & 3 {
	case 1, 2:
		return data >> 2 & 0x7ff * unit, nil
	case 3:
		return 0, t.wrong(at+4, ErrUnsupported, "packed unwind data of kind 3")
	}
	b := img32(r.tail(data))
	if len(b) < 4 {
		return 0, t.wrong(data, ErrTruncated, "unwind information")
	}
	return b.at(0) & 0x3ffff * unit, nil
}

// A record says what a full record (.xdata) has where. Positions are in bytes, from its beginning on.
type record struct {
	single bool // there is one epilogue, at the end; scopes is where its codes begin
	scopes int  // epilogues
	list   int  // where their scopes are, of 32 bits each
	codes  int
	end    int // of the codes; the handler comes next
}

// readRecord reads the header of the record that b begins with. It is the same for both of Arm's machines, but for where some fields are ("ARM64
// exception handling" and "ARM exception handling", ".xdata records").
func (t *Table) readRecord(rva uint32, b img32) (x record, err error) {
	if len(b) < 8 {
		return x, t.wrong(rva, ErrTruncated, "unwind information")
	}
	head := b.at(0)
	if v := head >> 18 & 3; v != 0 {
		return x, t.wrong(rva, ErrUnsupported, "version %d of unwind information", v)
	}
	first := 22
	if t.machine.WordSize() == 4 {
		first = 23
	}
	x.single, x.list = head>>21&1 != 0, 4
	words := int(head >> (first + 5))
	x.scopes = int(head >> first & 31)
	if head>>first == 0 {
		x.scopes, words, x.list = int(b.at(4)&0xffff), int(b.at(4)>>16&0xff), 8
	}
	if x.codes = x.list; !x.single {
		x.codes += 4 * x.scopes
	}
	if x.end = x.codes + 4*words; x.end > len(b) {
		return x, t.wrong(rva, ErrTruncated, "%d epilogue scopes and %d words of codes", x.scopes, words)
	}
	return x, nil
}

// A sequence is the codes of a prologue or of an epilogue.
type sequence struct {
	ops   []op
	n     int // how many instructions of it are the function's own
	whole int // and with the return behind it: a part that leads to another part of its function has none
}

// arm64Ops reads the codes from an index on ("ARM64 exception handling", "Unwind codes"), up to the end. Behind end_c follow the codes of the
// function that a part belongs to.
func (t *Table) arm64Ops(list []op, codes []byte, index int, rva uint32) (q sequence, err error) {
	own, n := -1, 0
	for i := index; ; {
		if i >= len(codes) {
			return q, t.wrong(rva+uint32(len(codes))-1, ErrTruncated, "unwind codes without an end")
		}
		c := codes[i]
		size := codeSize(c)
		if i+size > len(codes) {
			return q, t.wrong(rva+uint32(i), ErrTruncated, "unwind code %#x", c)
		}
		v := uint32(0) // the code as a number
		for _, x := range codes[i : i+size] {
			v = v<<8 | uint32(x)
		}
		z := int64(v & 0x3f * 8)
		x := arch.Reg(v >> 6 & 15)
		var o op
		switch {
		case c < 0x20: // alloc_s
			o.pop = int64(c) * 16
		case c < 0x40: // save_r19r20_x
			o = op{reg: x19, two: x19 + 1, pop: int64(c&0x1f) * 8}
		case c < 0x80: // save_fplr
			o = op{reg: x29, two: lr, off: z}
		case c < 0xc0: // save_fplr_x
			o = op{reg: x29, two: lr, pop: z + 8}
		case c < 0xc8: // alloc_m
			o.pop = int64(v&0x7ff) * 16
		case c < 0xcc: // save_regp
			o = op{reg: x19 + x, two: x19 + x + 1, off: z}
		case c < 0xd0: // save_regp_x
			o = op{reg: x19 + x, two: x19 + x + 1, pop: z + 8}
		case c < 0xd4: // save_reg
			o = op{reg: x19 + x, off: z}
		case c < 0xd6: // save_reg_x
			o = op{reg: x19 + arch.Reg(v>>5&15), pop: int64(v&0x1f)*8 + 8}
		case c < 0xd8: // save_lrpair
			o = op{reg: x19 + 2*(x&7), two: lr, off: z}
		case c < 0xda: // save_fregp
			o = op{reg: v8 + x&7, two: v8 + x&7 + 1, off: z}
		case c < 0xdc: // save_fregp_x
			o = op{reg: v8 + x&7, two: v8 + x&7 + 1, pop: z + 8}
		case c < 0xde: // save_freg
			o = op{reg: v8 + x&7, off: z}
		case c == 0xde: // save_freg_x
			o = op{reg: v8 + arch.Reg(v>>5&7), pop: int64(v&0x1f)*8 + 8}
		case c == 0xdf: // alloc_z
			o.vl = int64(v & 0xff)
		case c == 0xe0: // alloc_l
			o.pop = int64(v&0xffffff) * 16
		case c == 0xe1, c == 0xe2: // set_fp, add_fp
			o = op{kind: setFP}
			if c == 0xe2 {
				o.pop = int64(v&0xff) * 8
			}
		case c == 0xe3: // nop
		case c == 0xe4, c == 0xe5: // end, end_c
			if own < 0 {
				if own = n; c == 0xe4 {
					n++
				}
				q.n, q.whole = own, n
			}
			if c == 0xe4 {
				q.ops = list
				return q, nil
			}
			i++
			continue
		case c == 0xe6: // save_next
			o.kind = pairs
		case c == 0xe7: // save_any_reg
			if o, err = t.anyReg(v, rva+uint32(i)); err != nil {
				return q, err
			}
		case c == 0xe9:
			o.kind = machine
		case c == 0xea:
			o.kind = whole
		case c == 0xec: // clear_unwound_to_call
			o.kind = exact
		case c == 0xfc: // pac_sign_lr
			o.kind = sign
		default:
			name := map[byte]string{0xe8: "trap_frame", 0xeb: "ec_context"}[c]
			return q, t.wrong(rva+uint32(i), ErrUnsupported, "unwind code %#x %s", c, name)
		}
		if o.gap = 8; o.reg >= v0 && c == 0xe7 && v>>6&3 == 2 {
			o.gap = 16
		}
		if o.counts() {
			n++
		}
		list = append(list, o)
		i += size
	}
}

// anyReg reads save_any_reg, save_zreg and save_preg. The first says whether it is a pair, and moves the stack pointer first, the register, its kind, and the offset, which has a unit
// of 16 bytes where one of the first two is so, or the registers are whole vector registers.
func (t *Table) anyReg(v, rva uint32) (o op, err error) {
	pair, pre, reg, bank, n := v>>14&1 != 0, v>>13&1 != 0, arch.Reg(v>>8&31), v>>6&3, int64(v&0x3f)
	if v>>15&1 != 0 {
		return o, t.wrong(rva, ErrUnsupported, "unwind code %#x", v)
	}
	if bank == 3 { // save_zreg, save_preg: 0oo?rrrr, 11oooooo
		o = op{kind: zreg, reg: 8 + arch.Reg(v>>8&15), vl: int64(v>>13&3<<6 | v&0x3f)}
		if v>>12&1 != 0 {
			if o.kind, o.reg = preg, o.reg-8; o.reg < 4 {
				return o, t.wrong(rva, ErrUnsupported, "unwind code %#x saves a predicate that no call preserves", v)
			}
		}
		return o, nil
	}
	unit := int64(8)
	if pair || pre || bank == 2 {
		unit = 16
	}
	if bank > 0 {
		reg += v0
	}
	o.reg = reg
	if pair {
		o.two = reg + 1
	}
	if o.off = n * unit; pre {
		o.off, o.pop = 0, n*unit+unit
	}
	return o, nil
}

// codeSize is how many bytes a code has, by its first one.
func codeSize(c byte) int {
	switch {
	case c < 0xc0, c >= 0xe1 && c != 0xe2 && c != 0xe7 && c < 0xf8, c == 0xfc:
		return 1
	case c == 0xe0:
		return 4
	case c == 0xe7:
		return 3
	}
	return 2
}

// An arm64 makes the rows of functions, one after the other.
type arm64 struct {
	t    *Table
	b    *rows.Builder
	info *reader

	overlay
	pro, epi sequence                       // of the function at hand
	seen     func(start int64, q *sequence) // is told of each epilogue, for tests
	rules    []rows.Rule
	saved    [nReg8]scaled
	has      [nReg8]bool
}

func newARM64(t *Table, info *reader) *arm64 {
	return &arm64{t: t, b: rows.NewBuilder(t.machine), info: info}
}

// rows returns a function's rows. They are valid until the next call.
func (a *arm64) rows(e *entry) ([]rows.Row, error) {
	a.reset()
	if e.data&3 != 0 {
		return a.packed(e)
	}
	b := img32(a.info.tail(e.data))
	x, err := a.t.readRecord(e.data, b)
	if err != nil {
		return nil, err
	}
	scopes, list, codes, rva := x.scopes, b[x.list:], b[x.codes:x.end], e.data+uint32(x.codes)
	if err := a.info.spend(e.data, readCost+len(codes)); err != nil {
		return nil, err
	}
	if a.pro, err = a.t.arm64Ops(a.pro.ops[:0], codes, 0, rva); err != nil {
		return nil, err
	}
	if err := a.prologue(e, a.pro.n); err != nil {
		return nil, err
	}
	epilogue := func(start int64, index int) error {
		if err := a.info.spend(e.data, readCost+len(codes)); err != nil {
			return err
		}
		if a.epi, err = a.t.arm64Ops(a.epi.ops[:0], codes, index, rva); err != nil {
			return err
		}
		if start < 0 { // it is the function's last one
			start = int64(e.end-e.begin) - 4*int64(a.epi.whole)
		}
		return a.epilogue(e, start)
	}
	if x.single {
		if err := epilogue(-1, scopes); err != nil {
			return nil, err
		}
		scopes = 0
	}
	for i := range scopes {
		w := list.at(4 * i)
		if err := epilogue(int64(w&0x3ffff)*4, int(w>>22)); err != nil {
			return nil, err
		}
	}
	return a.merge(a.t.base + arch.Vaddr(e.end)), nil
}

// packed makes the rows of a function that an entry describes whole: it has the canonical prologue and epilogue ("Packed unwind data").
func (a *arm64) packed(e *entry) ([]rows.Row, error) {
	d := e.data
	floats, ints, homes, cr := int64(d>>13&7), int64(d>>16&15), d>>20&1 != 0, d>>21&3
	if floats > 0 {
		floats++
	}
	saved := 8*ints + 8*floats
	if cr == 1 {
		saved += 8
	}
	if homes {
		saved += 64
	}
	saved = (saved + 15) &^ 15
	local := int64(d>>23)*16 - saved
	if ints > 10 || local < 0 || cr >= 2 && local < 16 {
		return nil, a.t.wrong(e.at, ErrMalformed, "packed unwind data %#x", d)
	}
	ops := a.pro.ops[:0] // in the order of the prologue: turned around in the end
	store := func(o op) {
		o.gap = 8
		if len(ops) == 0 || len(ops) == 1 && ops[0].kind == sign { // the first one makes room for all
			o.off, o.pop = 0, saved
		}
		ops = append(ops, o)
	}
	if cr == 2 {
		ops = append(ops, op{kind: sign})
	}
	at := int64(0)
	for i := int64(0); i < ints; i += 2 {
		o := op{reg: x19 + arch.Reg(i), off: at}
		switch {
		case i+1 < ints:
			o.two = o.reg + 1
		case cr == 1:
			o.two = lr
			if i == 0 { // no instruction does both
				ops = append(ops, op{pop: saved})
			}
		}
		store(o)
		at += 16
	}
	if at = 8 * ints; cr == 1 {
		if ints%2 == 0 {
			store(op{reg: lr, off: at})
		}
		at += 8
	}
	for i := int64(0); i < floats; i += 2 {
		o := op{reg: v8 + arch.Reg(i), off: at}
		if i+1 < floats {
			o.two = o.reg + 1
		}
		store(o)
		at += 16
	}
	before := len(ops)
	if homes {
		for range 4 {
			store(op{})
		}
	}
	// Epilogues have no instructions that store arguments, unless one of these makes the room.
	tail := append(a.epi.ops[:0], ops[:before]...)
	if before < len(ops) && ops[before].pop > 0 {
		tail = append(tail, ops[before])
	}
	switch {
	case cr >= 2 && local <= 512:
		ops = append(ops, op{reg: x29, two: lr, gap: 8, pop: local}, op{kind: setFP})
		tail = append(tail, op{reg: x29, two: lr, gap: 8, pop: local})
	case cr >= 2 || local > 0:
		room := []op{{pop: local}}
		if local > 4080 {
			room = []op{{pop: 4080}, {pop: local - 4080}}
		}
		ops, tail = append(ops, room...), append(tail, room...)
		if cr >= 2 {
			ops = append(ops, op{reg: x29, two: lr, gap: 8}, op{kind: setFP})
			tail = append(tail, op{reg: x29, two: lr, gap: 8})
		}
	}
	slices.Reverse(ops)
	slices.Reverse(tail)
	n, m := len(ops), len(tail)
	a.pro, a.epi = sequence{ops, n, n + 1}, sequence{tail, m, m + 1}
	if d&3 == 2 { // a part without prologue and epilogue
		n = 0
	}
	if err := a.prologue(e, n); err != nil || n == 0 {
		return a.out, err
	}
	if err := a.epilogue(e, int64(e.end-e.begin)-4*int64(m+1)); err != nil {
		return nil, err
	}
	return a.merge(a.t.base + arch.Vaddr(e.end)), nil
}

// prologue adds the rows of a prologue with so many instructions, the last ones first in a.pro, and of what follows.
func (a *arm64) prologue(e *entry, n int) error {
	for i := 0; i <= n; i++ { // so many have run
		id, err := a.unwind(e, a.pro.ops, n-i)
		if err != nil {
			return err
		}
		if at := e.begin + 4*uint32(i); at < e.end {
			a.under(a.t.base+arch.Vaddr(at), id)
		}
	}
	return nil
}

// epilogue adds the rows of the epilogue in a.epi, which starts so far from the function's beginning. Its end may be in another part of the
// function.
func (a *arm64) epilogue(e *entry, start int64) error {
	size := int64(e.end - e.begin)
	if start < 0 || start >= size {
		return a.t.wrong(e.data&^3, ErrMalformed, "an epilogue of %d instructions at %#x of a function of %#x bytes", a.epi.n, start, size)
	}
	if a.seen != nil {
		a.seen(start, &a.epi)
	}
	at := a.t.base + arch.Vaddr(e.begin) + arch.Vaddr(start)
	if k := len(a.ends); k > 0 {
		if a.ends[k-1].Lo > at {
			return a.t.wrong(e.data&^3, ErrMalformed, "the epilogue at %#x overlaps another", start)
		}
		if a.ends[k-1].Lo == at {
			a.ends = a.ends[:k-1]
		}
	}
	for i := range min(a.epi.whole, int((size-start)/4)) {
		id, err := a.unwind(e, a.epi.ops, i)
		if err != nil {
			return err
		}
		a.ends = append(a.ends, rows.Row{Lo: at, Set: id})
		at += 4
	}
	a.ends = append(a.ends, rows.Row{Lo: at, Set: resume})
	return nil
}

// unwind returns the set of what ops come to, without the first ones, which have so many instructions.
func (a *arm64) unwind(e *entry, ops []op, skip int) (rows.SetID, error) {
	if err := a.info.spend(e.data&^3, readCost+len(ops)); err != nil {
		return 0, err
	}
	for ; skip > 0 && len(ops) > 0; ops = ops[1:] {
		if ops[0].counts() {
			skip--
		}
	}
	clear(a.has[:])
	put := func(r arch.Reg, reg arch.Reg, off, vl int64) {
		if r > 0 && r < nReg8 {
			a.has[r], a.saved[r] = true, scaled{place{reg, off}, vl}
		}
	}
	s := rows.Set{CFA: rows.CFA{Kind: rows.CFAReg}, RA: lr}
	at, more := scaled{place: place{reg: sp}}, arch.Reg(0)
	for i := range ops {
		o := &ops[i]
		if s.CFA.Kind == rows.CFARegDeref {
			return 0, a.t.wrong(e.data, ErrMalformed, "unwind codes behind those of the processor's frame")
		}
		switch o.kind {
		case pairs:
			more++
			continue
		case sign:
			s.Flags |= rows.RASigned | rows.BKey
		case exact:
			s.Flags |= rows.Signal
		case setFP:
			at = scaled{place: place{x29, -o.pop}}
		case machine:
			s.CFA = rows.CFA{Kind: rows.CFARegDeref, Reg: at.reg, Off: at.off}
			s.RA, s.Flags = pc, s.Flags|rows.Signal
			put(pc, at.reg, at.off+8, 0)
		case whole: // CONTEXT of winnt.h: Cpsr, x0 to x30, sp, pc, v0 to v31
			s.CFA = rows.CFA{Kind: rows.CFARegDeref, Reg: at.reg, Off: at.off + 0x100}
			s.RA, s.Flags = pc, s.Flags|rows.Signal
			a.has[0], a.saved[0] = true, scaled{place: place{at.reg, at.off + 8}}
			for r := arch.Reg(1); r < sp; r++ {
				put(r, at.reg, at.off+8+8*int64(r), 0)
			}
			for r := v8; r < v8+8; r++ {
				put(arch.Reg(r), at.reg, at.off+0x110+16*int64(r-v0), 0)
			}
			put(pc, at.reg, at.off+0x108, 0)
		case save:
			put(o.reg, at.reg, at.off+o.off, at.vl)
			put(o.two, at.reg, at.off+o.off+o.gap, at.vl)
			for k := arch.Reg(1); k <= more && o.two > 0; k++ {
				put(o.reg+2*k, at.reg, at.off+o.off+16*int64(k), at.vl)
				put(o.two+2*k, at.reg, at.off+o.off+16*int64(k)+8, at.vl)
			}
			at.off += o.pop
			at.vl += o.vl
		case zreg: // rows have the lowest words of d8 to d15, which all calls preserve; no call of other code preserves more
			if o.reg < 16 {
				put(v0+o.reg, at.reg, at.off, at.vl+o.vl)
			}
		}
		more = 0
	}
	plain := s.CFA.Kind == rows.CFAReg
	switch {
	case plain && at.vl > 0:
		s.CFA = rows.CFA{Kind: rows.CFAExpr, Expr: at.expr()}
	case plain:
		s.CFA.Reg, s.CFA.Off = at.reg, at.off
	case at.vl > 0:
		return 0, a.t.wrong(e.data, ErrUnsupported, "the processor's frame above scalable vectors")
	}
	list := a.rules[:0]
	for r := range arch.Reg(nReg8) {
		from := a.saved[r]
		switch {
		case !a.has[r] || r == sp:
			if s.Flags&rows.Signal != 0 && r < x19 {
				list = append(list, rows.Rule{Of: r, Kind: rows.Undefined})
			}
		case plain && from.reg == at.reg && from.vl == at.vl:
			list = append(list, rows.Rule{Of: r, Kind: rows.Offset, Off: from.off - at.off})
		case from.vl > 0:
			list = append(list, rows.Rule{Of: r, Kind: rows.Expr, Expr: from.expr()})
		default:
			list = append(list, rows.Rule{Of: r, Kind: rows.RegDeref, Reg: from.reg, Off: from.off})
		}
	}
	s.Rules, a.rules = list, list
	return a.b.Intern(s), nil
}
