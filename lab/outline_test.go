package lab

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// How much smaller does DWARF's own data get when what repeats is outlined? This file takes an .eh_frame section
// apart and writes it again in other forms, each of which can be read back: unpack makes a standard section of it,
// whose rows are compared with the original's.
//
// A form keeps the section's frame, as any tool lists it: CIEs, and the heads of FDEs with their addresses and
// exception tables. It replaces the FDEs' programs, and adds dictionaries, one for a module.

// A step is what an FDE's program does at one address: the way there, and instructions that move no further.
type step struct {
	advance uint64 // in units of the code alignment factor
	text    uint32 // the instructions' bytes, interned
	rule    uint32 // all that holds from there on, as instructions, interned
}

// An entry is a CIE or an FDE of a section.
type entry struct {
	dwarf.Entry
	head    []byte // up to its program
	program []byte // without padding
	steps   []step // of an FDE; at least one
}

// A takenApart is a section of call frame information.
type takenApart struct {
	frames  *dwarf.Frames
	in      dwarf.Sections
	entries []entry
	fdes    int
	texts   interned // instructions of a step
	rules   interned // instructions that make a whole rule
}

// An interned is a set of strings, numbered.
type interned struct {
	index map[string]uint32
	list  []string
}

func (n *interned) number(b []byte) uint32 {
	if id, ok := n.index[string(b)]; ok {
		return id
	}
	if n.index == nil {
		n.index = map[string]uint32{}
	}
	id, s := uint32(len(n.list)), string(b)
	n.index[s], n.list = id, append(n.list, s)
	return id
}

// takeApart reads the .eh_frame section of an x86-64 file. It returns nil where there is none.
func takeApart(img *module.Image) (*takenApart, error) {
	s := img.Section(".eh_frame")
	if s == nil || s.Size == 0 {
		return nil, nil
	}
	data, err := img.Data(s)
	if err != nil {
		return nil, err
	}
	x := &takenApart{in: dwarf.Sections{Machine: img.Machine(), Order: img.Order(), AddrSize: 8,
		EHFrame: []dwarf.Section{{Name: ".eh_frame", Addr: s.Addr, Data: data}}}}
	return x, x.read()
}

func (x *takenApart) read() (err error) {
	x.frames = dwarf.New(x.in)
	data := x.in.EHFrame[0].Data
	initial := map[uint64]*ruleText{}
	damage := x.frames.Entries(dwarf.EHFrame, func(e dwarf.Entry) bool {
		if e.DWARF64 || e.CIE.FDEEncoding&0x60 != 0 || e.CIE.LSDAEncoding != dwarf.DW_EH_PE_omit && e.CIE.LSDAEncoding&0x60 != 0 {
			err = fmt.Errorf("entry %#x: pointers of an encoding that this measurement does not relocate", e.Off)
			return false
		}
		n := entry{Entry: e, head: data[e.Off : e.Off+e.Size-uint64(len(e.Raw()))]}
		if !e.IsFDE {
			r := &ruleText{}
			if n.program, err = r.run(x, &e, data, nil); err != nil {
				return false
			}
			initial[e.Off] = r
		} else {
			r := initial[e.CIE.Off].clone()
			r.initial = initial[e.CIE.Off]
			var odd error
			if n.program, odd = r.run(x, &e, data, &n.steps); odd != nil {
				n.program = e.Raw()
				n.steps = []step{{text: x.texts.number(n.program), rule: x.rules.number(n.program)}}
			}
			x.fdes++
		}
		x.entries = append(x.entries, n)
		return true
	})
	if err == nil && len(damage) > 0 {
		err = damage[0]
	}
	return err
}

// A ruleText is a rule as instructions: what each register's last one was, and the CFA's.
type ruleText struct {
	reg      int64
	off      int64
	expr     string // the instruction of a CFA that is an expression
	args     string // DW_CFA_GNU_args_size
	rules    []regText
	stack    []ruleText
	initial  *ruleText
	dataUnit int64
}

type regText struct {
	reg  int64
	text string
}

func (r *ruleText) clone() *ruleText {
	c := *r
	c.rules, c.stack = slices.Clone(r.rules), nil
	return &c
}

func (r *ruleText) find(reg int64) (int, bool) {
	return slices.BinarySearchFunc(r.rules, reg, func(a regText, b int64) int { return cmp.Compare(a.reg, b) })
}

func (r *ruleText) set(reg int64, text string) {
	if i, ok := r.find(reg); ok {
		r.rules[i].text = text
	} else {
		r.rules = slices.Insert(r.rules, i, regText{reg, text})
	}
}

// bytes are instructions that make r of any rule without others than r's.
func (r *ruleText) bytes(b []byte) []byte {
	switch {
	case r.expr != "":
		b = append(b, r.expr...)
	case r.off >= 0:
		b = binary.AppendUvarint(append(b, dwarf.DW_CFA_def_cfa), uint64(r.reg))
		b = binary.AppendUvarint(b, uint64(r.off))
	default:
		b = binary.AppendUvarint(append(b, dwarf.DW_CFA_def_cfa_sf), uint64(r.reg))
		b = appendSLEB(b, r.off/r.dataUnit)
	}
	for i := range r.rules {
		b = append(b, r.rules[i].text...)
	}
	return append(b, r.args...)
}

func appendSLEB(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

// run follows the program of e and appends its steps. It returns the program without what pads it.
func (r *ruleText) run(x *takenApart, e *dwarf.Entry, data []byte, steps *[]step) ([]byte, error) {
	r.dataUnit = e.CIE.DataAlign
	var text, rule []byte
	var last dwarf.Instruction // its bytes end where the next instruction starts
	last.Op = dwarf.DW_CFA_nop
	begin := e.Off + e.Size - uint64(len(e.Raw()))
	used := begin // where the last instruction ends that is no nop
	moves := false
	loc, advance := uint64(e.FDE.Lo), uint64(0)
	var bad error
	finish := func(end uint64) {
		if last.Op == dwarf.DW_CFA_nop {
			return
		}
		if used = end; moves {
			return
		}
		raw := data[last.Off:end]
		text = append(text, raw...)
		if err := r.apply(&last, string(raw)); err != nil {
			bad = err
		}
	}
	flush := func() {
		if steps != nil {
			rule = r.bytes(rule[:0])
			*steps = append(*steps, step{advance, x.texts.number(text), x.rules.number(rule)})
		}
		text = text[:0]
	}
	err := e.Instructions(func(i *dwarf.Instruction) bool {
		finish(i.Off)
		last, moves = *i, true
		to := loc
		switch i.Op {
		case dwarf.DW_CFA_advance_loc, dwarf.DW_CFA_advance_loc1, dwarf.DW_CFA_advance_loc2, dwarf.DW_CFA_advance_loc4, dwarf.DW_CFA_MIPS_advance_loc8:
			to += uint64(i.Args[0])
		case dwarf.DW_CFA_set_loc:
			to = uint64(i.Args[0])
		default:
			moves = false
			return bad == nil
		}
		flush()
		if e.CIE.CodeAlign == 0 || to < loc || (to-loc)%e.CIE.CodeAlign != 0 {
			bad = fmt.Errorf("a move to %#x", to)
			return false
		}
		advance, loc = (to-loc)/e.CIE.CodeAlign, to
		return bad == nil
	})
	finish(e.Off + e.Size)
	flush()
	return data[begin:used], cmp.Or(err, bad)
}

// apply follows one instruction.
func (r *ruleText) apply(i *dwarf.Instruction, raw string) error {
	switch i.Op {
	case dwarf.DW_CFA_offset, dwarf.DW_CFA_offset_extended, dwarf.DW_CFA_offset_extended_sf, dwarf.DW_CFA_GNU_negative_offset_extended,
		dwarf.DW_CFA_val_offset, dwarf.DW_CFA_val_offset_sf, dwarf.DW_CFA_undefined, dwarf.DW_CFA_same_value, dwarf.DW_CFA_register,
		dwarf.DW_CFA_expression, dwarf.DW_CFA_val_expression:
		r.set(i.Args[0], raw)
	case dwarf.DW_CFA_restore, dwarf.DW_CFA_restore_extended:
		if r.initial == nil {
			return fmt.Errorf("restore in a CIE")
		}
		if n, ok := r.initial.find(i.Args[0]); ok {
			r.set(i.Args[0], r.initial.rules[n].text)
		} else if n, ok := r.find(i.Args[0]); ok {
			r.rules = slices.Delete(r.rules, n, n+1)
		}
	case dwarf.DW_CFA_def_cfa, dwarf.DW_CFA_def_cfa_sf:
		r.reg, r.off, r.expr = i.Args[0], i.Args[1], ""
	case dwarf.DW_CFA_def_cfa_register:
		r.reg, r.expr = i.Args[0], ""
	case dwarf.DW_CFA_def_cfa_offset, dwarf.DW_CFA_def_cfa_offset_sf:
		r.off = i.Args[0]
		if r.expr != "" {
			return fmt.Errorf("an offset of an expression")
		}
	case dwarf.DW_CFA_def_cfa_expression:
		r.expr = raw
	case dwarf.DW_CFA_GNU_args_size:
		r.args = raw
	case dwarf.DW_CFA_remember_state:
		r.stack = append(r.stack, *r.clone())
	case dwarf.DW_CFA_restore_state:
		if len(r.stack) == 0 {
			return fmt.Errorf("nothing to restore")
		}
		top := r.stack[len(r.stack)-1]
		r.stack = r.stack[:len(r.stack)-1]
		r.reg, r.off, r.expr, r.rules = top.reg, top.off, top.expr, top.rules
	default:
		return fmt.Errorf("instruction %#x", i.Op)
	}
	return nil
}

// write lays out the entries with other programs: without padding, and with the pointers as they have to be where
// they now are. What a CIE's personality pointer would be is left as it is; it takes the same bytes.
func (x *takenApart) write(program func(e *entry) []byte) []byte {
	out := make([]byte, 0, len(x.in.EHFrame[0].Data))
	cies := map[uint64]int{}
	for i := range x.entries {
		e := &x.entries[i]
		at := len(out)
		out = append(out, e.head...)
		if e.IsFDE {
			out = append(out, program(e)...)
			binary.LittleEndian.PutUint32(out[at+4:], uint32(at+4-cies[e.CIE.Off]))
			w := relocate(out[at+8:], e.CIE.FDEEncoding, int64(e.Off)-int64(at))
			if e.CIE.LSDAEncoding != dwarf.DW_EH_PE_omit {
				aug := at + 8 + 2*w
				_, n := binary.Uvarint(out[aug:])
				relocate(out[aug+n:], e.CIE.LSDAEncoding, int64(e.Off)-int64(at))
			}
		} else {
			out = append(out, e.program...)
			cies[e.Off] = at
		}
		binary.LittleEndian.PutUint32(out[at:], uint32(len(out)-at-4))
	}
	return append(out, 0, 0, 0, 0)
}

// relocate adds by to the pointer at b, if it is one relative to its place. It returns its width.
func relocate(b []byte, enc byte, by int64) int {
	relative := enc&0x70 == dwarf.DW_EH_PE_pcrel
	switch enc & 0x0f {
	case dwarf.DW_EH_PE_sdata4, dwarf.DW_EH_PE_udata4:
		if v := binary.LittleEndian.Uint32(b); relative && v != 0 {
			binary.LittleEndian.PutUint32(b, v+uint32(by))
		}
		return 4
	case dwarf.DW_EH_PE_absptr, dwarf.DW_EH_PE_udata8, dwarf.DW_EH_PE_sdata8:
		if v := binary.LittleEndian.Uint64(b); relative && v != 0 {
			binary.LittleEndian.PutUint64(b, v+uint64(by))
		}
		return 8
	}
	panic("BUG: a pointer encoding that no file here has")
}

// program returns the standard program of steps, in as few bytes as they take.
func (x *takenApart) program(steps []step) []byte {
	var b []byte
	for i, s := range steps {
		if i > 0 {
			b = appendAdvance(b, s.advance)
		}
		b = append(b, x.texts.list[s.text]...)
	}
	return b
}

func appendAdvance(b []byte, n uint64) []byte {
	le := binary.LittleEndian
	switch {
	case n < 1<<6:
		return append(b, dwarf.DW_CFA_advance_loc|byte(n))
	case n < 1<<8:
		return append(b, dwarf.DW_CFA_advance_loc1, byte(n))
	case n < 1<<16:
		return le.AppendUint16(append(b, dwarf.DW_CFA_advance_loc2), uint16(n))
	case n < 1<<32:
		return le.AppendUint32(append(b, dwarf.DW_CFA_advance_loc4), uint32(n))
	}
	return le.AppendUint64(append(b, dwarf.DW_CFA_MIPS_advance_loc8), n)
}

// A dictionary holds strings that occur often. A use of one is its number, from 1 on, as ULEB128; 0, a length and the
// bytes stand for a string that is not worth a place.
type dictionary struct {
	number map[string]int
	list   []string
}

func ulebSize(n uint64) int { return len(binary.AppendUvarint(nil, n)) }

// newDictionary keeps the strings that save bytes, the most frequent first.
func newDictionary(uses map[string]int) *dictionary {
	d := &dictionary{number: map[string]int{}}
	for _, s := range slices.SortedFunc(maps.Keys(uses), func(a, b string) int {
		return cmp.Or(cmp.Compare(uses[b], uses[a]), cmp.Compare(a, b))
	}) {
		n := ulebSize(uint64(len(s))) + len(s)
		if k := uses[s]; k*(1+n) > n+k*ulebSize(uint64(len(d.list)+1)) {
			d.list = append(d.list, s)
			d.number[s] = len(d.list)
		}
	}
	return d
}

func (d *dictionary) use(b []byte, s string) []byte {
	if n, ok := d.number[s]; ok {
		return binary.AppendUvarint(b, uint64(n))
	}
	return append(binary.AppendUvarint(append(b, 0), uint64(len(s))), s...)
}

func (d *dictionary) bytes() []byte {
	b := binary.AppendUvarint(nil, uint64(len(d.list)))
	for _, s := range d.list {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	return b
}

// A cursor reads what a form wrote. It panics where the bytes end: they are this file's own.
type cursor struct{ b []byte }

func (c *cursor) uleb() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		panic("BUG: a number is cut short")
	}
	c.b = c.b[n:]
	return v
}

func (c *cursor) string() string {
	n := c.uleb()
	s := string(c.b[:n])
	c.b = c.b[n:]
	return s
}

func (c *cursor) dictionary() (list []string) {
	for range c.uleb() {
		list = append(list, c.string())
	}
	return list
}

// item reads a use of a dictionary's string.
func (c *cursor) item(list []string) string {
	if n := c.uleb(); n > 0 {
		return list[n-1]
	}
	return c.string()
}

// A form is a way to write call frame information.
type form struct {
	name, what string

	// pack returns dictionaries and a section with other programs.
	pack func(x *takenApart) (dicts, section []byte)

	// unpack returns the standard program of one that pack wrote. A form without it is no section; unpackHeads
	// makes one of it.
	unpack func(dicts [][]string, program []byte) []byte
	dicts  int
}

var forms = []form{
	{"unpadded", "standard, without padding between entries", packPlain, func(_ [][]string, p []byte) []byte { return p }, 0},
	{"rules", "a row is an advance and the number of a whole rule", packRules, unpackRules, 1},
	{"steps", "a row is an advance and the number of a sequence of instructions", packSteps, unpackSteps, 1},
	{"programs", "an FDE is the number of a whole program", packPrograms, unpackPrograms, 1},
	{"shapes", "an FDE is the number of a sequence of steps, and its advances", packShapes, unpackShapes, 2},
	{"shapes, short heads", "the same, and of the head only size, CIE and exception table, as short numbers; its start is in .eh_frame_hdr", packHeads, nil, 2},
}

func packPlain(x *takenApart) (_, section []byte) {
	return nil, x.write(func(e *entry) []byte { return x.program(e.steps) })
}

func packRules(x *takenApart) (_, section []byte) {
	return packItems(x, x.rules.list, func(s *step) uint32 { return s.rule })
}

func packSteps(x *takenApart) (_, section []byte) {
	return packItems(x, x.texts.list, func(s *step) uint32 { return s.text })
}

// packItems writes each step as an advance, which the first one lacks, and an item.
func packItems(x *takenApart, list []string, item func(s *step) uint32) (dict, section []byte) {
	d := x.dictionaryOf(list, item)
	section = x.write(func(e *entry) (b []byte) {
		for i := range e.steps {
			if i > 0 {
				b = binary.AppendUvarint(b, e.steps[i].advance)
			}
			b = d.use(b, list[item(&e.steps[i])])
		}
		return b
	})
	return d.bytes(), section
}

func (x *takenApart) dictionaryOf(list []string, item func(s *step) uint32) *dictionary {
	count := make([]int, len(list))
	for i := range x.entries {
		for k := range x.entries[i].steps {
			count[item(&x.entries[i].steps[k])]++
		}
	}
	uses := map[string]int{}
	for id, n := range count {
		if n > 0 {
			uses[list[id]] += n
		}
	}
	return newDictionary(uses)
}

func unpackSteps(dicts [][]string, program []byte) (out []byte) {
	c := cursor{program}
	out = append(out, c.item(dicts[0])...)
	for len(c.b) > 0 {
		out = appendAdvance(out, c.uleb())
		out = append(out, c.item(dicts[0])...)
	}
	return out
}

// unpackRules makes each rule anew of the CIE's, which it keeps remembered.
func unpackRules(dicts [][]string, program []byte) (out []byte) {
	c := cursor{program}
	out = append(out, dwarf.DW_CFA_remember_state)
	out = append(out, c.item(dicts[0])...)
	for len(c.b) > 0 {
		out = append(appendAdvance(out, c.uleb()), dwarf.DW_CFA_restore_state, dwarf.DW_CFA_remember_state)
		out = append(out, c.item(dicts[0])...)
	}
	return out
}

func packPrograms(x *takenApart) (dict, section []byte) {
	uses := map[string]int{}
	for i := range x.entries {
		if e := &x.entries[i]; e.IsFDE {
			uses[string(x.program(e.steps))]++
		}
	}
	d := newDictionary(uses)
	return d.bytes(), x.write(func(e *entry) []byte { return d.use(nil, string(x.program(e.steps))) })
}

func unpackPrograms(dicts [][]string, program []byte) []byte {
	c := cursor{program}
	return []byte(c.item(dicts[0]))
}

// shapes returns the dictionaries of steps and of their sequences, and what writes a program by them.
func (x *takenApart) shapes() (steps, shapes *dictionary, write func(b []byte, e *entry) []byte) {
	steps = x.dictionaryOf(x.texts.list, func(s *step) uint32 { return s.text })
	shape := func(e *entry) string {
		b := binary.AppendUvarint(nil, uint64(len(e.steps)))
		for i := range e.steps {
			b = steps.use(b, x.texts.list[e.steps[i].text])
		}
		return string(b)
	}
	uses := map[string]int{}
	for i := range x.entries {
		if e := &x.entries[i]; e.IsFDE {
			uses[shape(e)]++
		}
	}
	shapes = newDictionary(uses)
	return steps, shapes, func(b []byte, e *entry) []byte {
		b = shapes.use(b, shape(e))
		for i := 1; i < len(e.steps); i++ {
			b = binary.AppendUvarint(b, e.steps[i].advance)
		}
		return b
	}
}

func packShapes(x *takenApart) (dicts, section []byte) {
	steps, shapes, write := x.shapes()
	section = x.write(func(e *entry) []byte { return write(nil, e) })
	return append(steps.bytes(), shapes.bytes()...), section
}

func unpackShapes(dicts [][]string, program []byte) []byte {
	c := cursor{program}
	return c.shape(dicts)
}

func (c *cursor) shape(dicts [][]string) (out []byte) {
	steps := cursor{[]byte(c.item(dicts[1]))}
	for i := range steps.uleb() {
		if i > 0 {
			out = appendAdvance(out, c.uleb())
		}
		out = append(out, steps.item(dicts[0])...)
	}
	return out
}

// short says whether the heads of e's FDEs hold what packHeads writes and nothing else.
func (e *entry) short() bool {
	c := &e.CIE
	lsda := c.LSDAEncoding == dwarf.DW_EH_PE_pcrel|dwarf.DW_EH_PE_sdata4
	n := 4 + 4 + 4 + 4
	if strings.HasPrefix(c.Augmentation, "z") {
		if n++; lsda {
			n += 4
		}
	}
	return !e.IsFDE || strings.Contains(c.Augmentation, "L") == lsda && c.FDEEncoding == dwarf.DW_EH_PE_pcrel|dwarf.DW_EH_PE_sdata4 && (lsda || c.LSDAEncoding == dwarf.DW_EH_PE_omit) && len(e.head) == n
}

// packHeads writes entries in their order: 0 and a CIE, or the number of a CIE and an FDE of its.
func packHeads(x *takenApart) (dicts, section []byte) {
	steps, shapes, write := x.shapes()
	base := ^uint64(0) // of exception tables
	for i := range x.entries {
		e := &x.entries[i]
		if !e.short() {
			return nil, nil
		}
		if e.FDE.HasLSDA {
			base = min(base, uint64(e.FDE.LSDA))
		}
	}
	b := binary.AppendUvarint(nil, base)
	cies := map[uint64]uint64{}
	for i := range x.entries {
		e := &x.entries[i]
		if !e.IsFDE {
			cies[e.Off] = uint64(len(cies) + 1)
			b = binary.AppendUvarint(append(b, 0), uint64(len(e.head)+len(e.program)))
			b = append(append(b, e.head...), e.program...)
			continue
		}
		b = binary.AppendUvarint(b, cies[e.CIE.Off])
		b = binary.AppendUvarint(b, uint64(e.FDE.Hi-e.FDE.Lo))
		if e.CIE.LSDAEncoding != dwarf.DW_EH_PE_omit {
			n := uint64(0)
			if e.FDE.HasLSDA {
				n = uint64(e.FDE.LSDA) - base + 1
			}
			b = binary.AppendUvarint(b, n)
		}
		b = write(b, e)
	}
	return append(steps.bytes(), shapes.bytes()...), b
}

// unpackHeads makes a standard section. x gives only where the functions start, as .eh_frame_hdr does.
func (x *takenApart) unpackHeads(dicts [][]string, b []byte) (out []byte) {
	c := cursor{b}
	base := c.uleb()
	var cies []int
	le := binary.LittleEndian
	pcrel := func(v uint64) {
		if v != 0 {
			v -= uint64(x.in.EHFrame[0].Addr) + uint64(len(out))
		}
		out = le.AppendUint32(out, uint32(v))
	}
	for i := 0; len(c.b) > 0; i++ {
		at := len(out)
		if k := c.uleb(); k == 0 {
			cies = append(cies, at)
			out = append(out, c.string()...)
		} else {
			head := out[cies[k-1]+8:] // version, augmentation
			aug := string(head[1 : 1+bytes.IndexByte(head[1:], 0)])
			out = le.AppendUint32(out, 0)
			out = le.AppendUint32(out, uint32(len(out)-cies[k-1]))
			pcrel(uint64(x.entries[i].FDE.Lo))
			out = le.AppendUint32(out, uint32(c.uleb()))
			switch {
			case strings.HasPrefix(aug, "z") && strings.Contains(aug, "L"):
				out = append(out, 4)
				if n := c.uleb(); n == 0 {
					pcrel(0)
				} else {
					pcrel(base + n - 1)
				}
			case strings.HasPrefix(aug, "z"):
				out = append(out, 0)
			}
			out = append(out, c.shape(dicts)...)
		}
		le.PutUint32(out[at:], uint32(len(out)-at-4))
	}
	return append(out, 0, 0, 0, 0)
}

// unpackForm makes a standard section of what f packed.
func (x *takenApart) unpackForm(f *form, dicts, section []byte) (*takenApart, error) {
	c := cursor{dicts}
	var lists [][]string
	for range f.dicts {
		lists = append(lists, c.dictionary())
	}
	if len(c.b) > 0 {
		return nil, fmt.Errorf("%d bytes behind the dictionaries", len(c.b))
	}
	in := x.in
	if f.unpack == nil {
		in.EHFrame = []dwarf.Section{{Name: ".eh_frame", Addr: x.in.EHFrame[0].Addr, Data: x.unpackHeads(lists, section)}}
		return &takenApart{in: in, frames: dwarf.New(in)}, nil
	}
	in.EHFrame = []dwarf.Section{{Name: ".eh_frame", Addr: x.in.EHFrame[0].Addr, Data: section}}
	y := &takenApart{in: in, frames: dwarf.New(in)}
	if ds := y.frames.Entries(dwarf.EHFrame, func(e dwarf.Entry) bool {
		y.entries = append(y.entries, entry{Entry: e, head: section[e.Off : e.Off+e.Size-uint64(len(e.Raw()))], program: e.Raw()})
		return true
	}); len(ds) > 0 {
		return nil, ds[0]
	}
	in.EHFrame = []dwarf.Section{{Name: ".eh_frame", Addr: x.in.EHFrame[0].Addr, Data: y.write(func(e *entry) []byte {
		return f.unpack(lists, e.Raw())
	})}}
	return &takenApart{in: in, frames: dwarf.New(in)}, nil
}

// same says whether y has x's functions, exception tables and rows.
func (x *takenApart) same(y *takenApart, ref *rows.Table) error {
	i := 0
	var err error
	y.frames.Entries(dwarf.EHFrame, func(e dwarf.Entry) bool {
		if i < len(x.entries) {
			if o := &x.entries[i]; e.IsFDE != o.IsFDE || e.FDE != o.FDE {
				err = fmt.Errorf("entry %d is %+v, was %+v", i, e.FDE, o.FDE)
			}
		}
		i++
		return err == nil
	})
	if err == nil && i != len(x.entries) {
		err = fmt.Errorf("%d entries, were %d", i, len(x.entries))
	}
	if err != nil {
		return err
	}
	return equalTables(y.frames, ref)
}

func equalTables(f *dwarf.Frames, ref *rows.Table) error {
	t, damage := f.Build(dwarf.EHFrame)
	if len(damage) > 0 {
		return damage[0]
	}
	if len(t.Rows) != len(ref.Rows) {
		return fmt.Errorf("%d rows, were %d", len(t.Rows), len(ref.Rows))
	}
	equal := map[[2]rows.SetID]bool{}
	for i, r := range t.Rows {
		o := ref.Rows[i]
		if r.Lo != o.Lo {
			return fmt.Errorf("row %d at %#x, was at %#x", i, r.Lo, o.Lo)
		}
		key := [2]rows.SetID{r.Set, o.Set}
		if equal[key] {
			continue
		}
		a, b := &t.Sets[r.Set], &ref.Sets[o.Set]
		if a.CFA != b.CFA || a.RA != b.RA || a.Flags != b.Flags || !slices.Equal(a.Rules, b.Rules) {
			return fmt.Errorf("row %d at %#x\n got %+v\nwant %+v", i, r.Lo, *a, *b)
		}
		equal[key] = true
	}
	return nil
}
