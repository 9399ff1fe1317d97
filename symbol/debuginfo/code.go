package debuginfo

import (
	"sort"
	"sync"

	"github.com/unspool/unspool/arch"
)

// A code is what is known of the functions and lines of one unit with addresses.
type code struct {
	in *Info
	u  *unit // with the lines: of a split unit, the skeleton

	mu     sync.Mutex
	d      *unit // with the functions
	lines  *lineTable
	funcs  []span // of functions; id is the DIE
	whole  bool   // every DIE was looked at
	trees  map[uint64]*tree
	size   int // of trees, in bytes
	names  map[die]*function
	loaded bool
}

// A die is a debugging information entry, by its unit and offset.
type die struct {
	u   *unit
	off uint64
}

// A function is what its DIE and those that it stands for say of it.
type function struct {
	name, linkage string
	decl          uint32
}

// A tree is a function and what was inlined into it.
type tree struct {
	nodes []node
	spans []span // id is an index of nodes
}

// A node is a function or an inlined call.
type node struct {
	die             uint64
	parent          int32 // -1: none
	inlined         bool
	file, line, col uint32 // of the call
}

const (
	// maxSpans bounds the ranges of the functions of a unit, and of the inlined calls of a function.
	maxSpans = 1 << 20

	// maxDepth bounds how deep DIEs are in each other.
	maxDepth = 1 << 14

	// maxTrees bounds the trees of a unit that are kept, in bytes: functions that are in each other could make many.
	maxTrees = 64 << 20
)

// load reads the line table, finds the split unit, and lists functions. The caller has c.mu.
func (c *code) load() {
	if c.loaded {
		return
	}
	c.loaded = true
	c.lines = c.u.readLines()
	c.d = c.u
	if c.u.root.dwoName.form != 0 && (c.u.version >= 5 || c.u.root.gnuDwoID.form != 0) {
		c.d = c.in.split(c.u)
	}
	if c.d != nil {
		c.funcs, c.whole = c.d.scan(false)
	}
	n := 32 * len(c.funcs)
	if c.lines != nil {
		n += c.lines.size
	}
	c.in.grow(n)
}

// A subroutine is what a DIE of a function or of an inlined call says.
type subroutine struct {
	low, high, ranges value
	sibling           uint64 // 0: unknown
	file, line, col   value
}

// subroutine reads a DIE's attributes.
func (u *unit) subroutine(c *cursor, a *abbrev) (s subroutine) {
	for i := range a.attrs {
		spec := &a.attrs[i]
		v := c.value(&u.encoding, spec.form, spec.implicit)
		switch spec.name {
		case DW_AT_low_pc:
			s.low = v
		case DW_AT_high_pc:
			s.high = v
		case DW_AT_ranges:
			s.ranges = v
		case DW_AT_call_file:
			s.file = v
		case DW_AT_call_line:
			s.line = v
		case DW_AT_call_column:
			s.col = v
		case DW_AT_sibling:
			s.sibling = u.sibling(v, c.off)
		}
	}
	return s
}

// sibling returns the offset of the next sibling, which is behind the DIE that ends at end, or 0.
func (u *unit) sibling(v value, end int) uint64 {
	if to, off := u.ref(v); to == u && off >= uint64(end) {
		return off
	}
	return 0
}

// scan lists the functions that have code. Where a DIE says where its next sibling is, what is inside is passed over, but for
// namespaces and modules, unless all is set: functions inside of functions and types are rare. It says whether
// everything was looked at.
func (u *unit) scan(all bool) (funcs []span, whole bool) {
	if !u.f.in.spend(int(u.end - u.dies)) {
		return nil, true
	}
	k := collector{room: maxSpans}
	whole = true
	c := u.cursor(u.dies)
	for depth := 0; c.more(); {
		off := uint64(c.off)
		codeNo := c.uleb()
		if codeNo == 0 {
			if depth--; depth <= 0 {
				break
			}
			continue
		}
		a := u.abbrevs.get(codeNo)
		if a == nil {
			c.fail()
			break
		}
		next := uint64(0)
		switch {
		case a.tag == DW_TAG_subprogram:
			s := u.subroutine(&c, a)
			u.collect(&k, s.low, s.high, s.ranges, off)
			next = s.sibling
		case !all && a.children && a.sibling && a.tag != DW_TAG_namespace && a.tag != DW_TAG_module && depth > 0:
			for i := range a.attrs {
				v := c.value(&u.encoding, a.attrs[i].form, a.attrs[i].implicit)
				if a.attrs[i].name == DW_AT_sibling {
					next = u.sibling(v, c.off)
				}
			}
		default:
			c.skipDIE(&u.encoding, a)
		}
		switch {
		case a.children && next != 0 && !all:
			whole = false
			c.skip(next - uint64(c.off))
		case a.children:
			depth++
		case depth == 0:
			c.off = len(c.b)
		}
	}
	u.note(&c, &k)
	u.f.in.spend(rangeWork * (maxSpans - k.room))
	return paint(k.spans), whole
}

// note tells what was wrong.
func (u *unit) note(c *cursor, k *collector) {
	if c.bad {
		u.f.in.note("%s: .debug_info+%#x: malformed unit", u.f.img.Name(), u.off)
	}
	if k.room <= 0 {
		u.f.in.note("%s: .debug_info+%#x: more ranges than are read", u.f.img.Name(), u.off)
	}
}

// tree reads the function at off and all that is inside.
func (u *unit) tree(off uint64) *tree {
	t := &tree{}
	if !u.f.in.spend(0) {
		return t
	}
	k := collector{room: maxSpans}
	c := u.cursor(off)
	parents := []int32{-1} // by depth
	for c.more() {
		at := uint64(c.off)
		codeNo := c.uleb()
		if codeNo == 0 {
			if parents = parents[:len(parents)-1]; len(parents) <= 1 {
				break
			}
			continue
		}
		a := u.abbrevs.get(codeNo)
		if a == nil || len(parents) > maxDepth || len(t.nodes) > maxSpans {
			c.fail()
			break
		}
		self := parents[len(parents)-1]
		if a.tag == DW_TAG_inlined_subroutine || a.tag == DW_TAG_subprogram {
			s := u.subroutine(&c, a)
			u.collect(&k, s.low, s.high, s.ranges, uint64(len(t.nodes)))
			t.nodes = append(t.nodes, node{at, self, a.tag == DW_TAG_inlined_subroutine, s.file.number32(), s.line.number32(), s.col.number32()})
			self = int32(len(t.nodes) - 1)
		} else {
			c.skipDIE(&u.encoding, a)
		}
		if a.children {
			parents = append(parents, self)
		} else if len(parents) == 1 {
			break
		}
	}
	u.note(&c, &k)
	u.f.in.spend(c.off - int(off) + rangeWork*(maxSpans-k.room))
	t.spans = paint(k.spans)
	return t
}

// maxOrigins bounds the DIEs that stand for one function.
const maxOrigins = 16

// function follows DW_AT_specification and DW_AT_abstract_origin from a DIE and takes of each thing what comes first.
func (c *code) function(d die) *function {
	if fn := c.names[d]; fn != nil {
		return fn
	}
	fn := &function{}
	var hasDecl bool
	var name, linkage []byte
	work := []die{d}
	for n := 0; n < maxOrigins && len(work) > 0; n++ {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		r := at.u.cursor(at.off)
		a := at.u.abbrevs.get(r.uleb())
		if a == nil {
			continue
		}
		var origin, spec value
		for i := range a.attrs {
			v := r.value(&at.u.encoding, a.attrs[i].form, a.attrs[i].implicit)
			switch a.attrs[i].name {
			case DW_AT_name:
				if name == nil {
					name = at.u.str(v)
				}
			case DW_AT_linkage_name, DW_AT_MIPS_linkage_name:
				if linkage == nil {
					linkage = at.u.str(v)
				}
			case DW_AT_decl_line:
				if !hasDecl {
					fn.decl, hasDecl = v.number32(), true
				}
			case DW_AT_abstract_origin:
				origin = v
			case DW_AT_specification:
				spec = v
			}
		}
		for _, v := range []value{origin, spec} {
			if v.form == 0 || name != nil && linkage != nil && hasDecl {
				continue
			}
			if u, off := at.u.ref(v); u != nil {
				work = append(work, die{u, off})
			}
		}
	}
	fn.name, fn.linkage = c.in.text(name), c.in.text(linkage)
	c.names[d] = fn
	c.in.grow(len(name) + len(linkage) + 100)
	return fn
}

// maxInlined bounds the places of one address.
const maxInlined = 256

// places appends the places of an address.
func (c *code) places(out []Place, a uint64) []Place {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.load()
	at := Place{}
	if c.lines != nil {
		if r := c.lines.find(a); r != nil {
			if p := c.lines.path(uint64(r.file)); p != "" {
				at.File, at.Line, at.Column = p, r.line, uint32(r.col)
			}
		}
	}
	t, i := c.node(a)
	if t == nil {
		if at != (Place{}) {
			out = append(out, at)
		}
		return out
	}
	for n := 0; ; n++ {
		nd := &t.nodes[i]
		fn := c.function(die{c.d, nd.die})
		at.Name, at.Linkage, at.Decl = fn.name, fn.linkage, fn.decl
		out = append(out, at)
		if !nd.inlined || nd.parent < 0 {
			return out
		}
		if n == maxInlined {
			c.in.note("%s: .debug_info+%#x: more than %d calls, one inlined into the other", c.d.f.img.Name(), nd.die, maxInlined)
			return out
		}
		at = Place{Line: nd.line, Column: nd.col}
		if c.lines != nil {
			at.File = c.lines.path(uint64(nd.file))
		}
		i = nd.parent
	}
}

// node returns the innermost call at an address, and the tree that it is in.
func (c *code) node(a uint64) (*tree, int32) {
	if c.d == nil {
		return nil, 0
	}
	s := find(c.funcs, a)
	if s == nil && !c.whole {
		c.funcs, _ = c.d.scan(true)
		c.whole = true
		s = find(c.funcs, a)
	}
	if s == nil {
		return nil, 0
	}
	t := c.trees[s.id]
	if t == nil {
		t = c.d.tree(s.id)
		n := 32*len(t.nodes) + 24*len(t.spans) + 100
		if c.size += n; c.size > maxTrees {
			clear(c.trees)
			c.size = n
		}
		c.trees[s.id] = t
		c.in.grow(n)
	}
	if s = find(t.spans, a); s == nil {
		return nil, 0
	}
	return t, int32(s.id)
}

// rows appends the rows of [lo, hi), with those of unknown places between them.
func (c *code) rows(out []Row, lo, hi uint64) []Row {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.load()
	if c.lines == nil {
		return appendRow(out, Row{Addr: arch.Vaddr(lo)})
	}
	for lo < hi {
		seqs := c.lines.seqs
		seqs = seqs[sort.Search(len(seqs), func(i int) bool { return seqs[i].hi > lo }):]
		if len(seqs) == 0 || seqs[0].lo > lo {
			out = appendRow(out, Row{Addr: arch.Vaddr(lo)})
			if len(seqs) == 0 {
				break
			}
			lo = min(seqs[0].lo, hi)
			continue
		}
		rows := seqs[0].rows
		end := min(seqs[0].hi, hi)
		j := max(sort.Search(len(rows), func(j int) bool { return rows[j].addr > lo }), 1)
		for _, r := range rows[j-1:] {
			if r.addr >= end {
				break
			}
			out = appendRow(out, Row{arch.Vaddr(max(r.addr, lo)), c.lines.path(uint64(r.file)), r.line})
		}
		lo = end
	}
	return out
}
