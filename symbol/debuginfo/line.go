package debuginfo

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strings"
)

// A row of the line number table (DWARF 5, section 6.2.2).
type row struct {
	addr      uint64
	line      uint32
	col, file uint16
}

// A sequence is a range of addresses, and its rows.
type sequence struct {
	lo, hi uint64
	rows   []row
}

// A fileEntry is a file or a directory of the header: its name, and the index of its directory. DW_FORM_string is in
// .debug_line. Names are read when somebody asks, because many entries can have the same long one.
type fileEntry struct {
	name value
	dir  uint64
}

// A lineTable is what the line number program of one unit says.
type lineTable struct {
	version uint16
	u       *unit
	dirs    []fileEntry
	files   []fileEntry
	paths   map[uint64]string
	seqs    []sequence // sorted by hi
	size    int        // bytes of rows
}

// A lineHeader is the part of the header that the program needs (section 6.2.4).
type lineHeader struct {
	encoding
	minInst    uint64
	lineBase   int8
	lineRange  uint8
	opcodeBase uint8
	lengths    []byte // of standard opcodes, from 1 on
}

// Opcodes (sections 6.2.5.2, 6.2.5.3) and content types (section 6.2.4.1).
const (
	DW_LNS_copy             = 1
	DW_LNS_advance_pc       = 2
	DW_LNS_advance_line     = 3
	DW_LNS_set_file         = 4
	DW_LNS_set_column       = 5
	DW_LNS_const_add_pc     = 8
	DW_LNS_fixed_advance_pc = 9

	DW_LNE_end_sequence = 1
	DW_LNE_set_address  = 2
	DW_LNE_define_file  = 3

	DW_LNCT_path            = 1
	DW_LNCT_directory_index = 2
)

// maxLines bounds the rows of one unit, in bytes.
const maxLines = 1 << 28

const rowSize = 16

// readLines reads a unit's line number table. What comes before damage stays good.
func (u *unit) readLines() *lineTable {
	off, ok := u.root.lines.offset()
	if !ok {
		return nil
	}
	c := u.f.at(secLine, off)
	n, offSize := c.length()
	if c.bad || n > uint64(len(c.b)-c.off) {
		u.f.in.note("%s: .debug_line+%#x: truncated", u.f.img.Name(), off)
		return nil
	}
	if c.b = c.b[:c.off+int(n)]; !u.f.in.spend(4 * int(n)) {
		return nil
	}
	h := lineHeader{encoding: encoding{offSize: offSize, addrSize: u.addrSize, version: uint16(c.uint(2))}}
	t := &lineTable{version: h.version, u: u, paths: map[uint64]string{}}
	if !t.header(&h, &c) {
		u.f.in.note("%s: .debug_line+%#x: malformed header", u.f.img.Name(), off)
		return nil
	}
	t.run(&h, &c)
	if c.bad {
		u.f.in.note("%s: .debug_line+%#x: malformed program", u.f.img.Name(), off)
	}
	slices.SortStableFunc(t.seqs, func(a, b sequence) int { return cmp.Compare(a.hi, b.hi) })
	return t
}

func (t *lineTable) header(h *lineHeader, c *cursor) bool {
	if h.version < 2 || h.version > 5 {
		return false
	}
	if h.version == 5 {
		h.addrSize = c.u8()
		c.u8() // size of a segment selector
	}
	n := c.uint(int(h.offSize))
	if c.bad || n > uint64(len(c.b)-c.off) {
		return false
	}
	program := c.off + int(n)
	whole := c.b
	c.b = c.b[:program]
	h.minInst = uint64(c.u8())
	if h.version >= 4 {
		c.u8() // operations an instruction: 1 but for VLIW
	}
	c.u8() // is_stmt
	h.lineBase, h.lineRange, h.opcodeBase = int8(c.u8()), c.u8(), c.u8()
	at := c.off
	c.skip(uint64(max(h.opcodeBase, 1) - 1))
	if c.bad {
		return false
	}
	h.lengths = c.b[at:c.off]
	if h.version == 5 {
		t.dirs = entries(h, c)
		t.files = entries(h, c)
	} else {
		for c.more() {
			name := c.value(&h.encoding, DW_FORM_string, 0)
			if c.off-int(name.u) == 1 {
				break
			}
			t.dirs = append(t.dirs, fileEntry{name: name})
		}
		for c.more() {
			name := c.value(&h.encoding, DW_FORM_string, 0)
			if c.off-int(name.u) == 1 {
				break
			}
			e := fileEntry{name, c.uleb()}
			c.uleb() // time
			c.uleb() // size
			t.files = append(t.files, e)
		}
	}
	bad := c.bad
	c.b, c.off, c.bad = whole, program, false
	return !bad
}

// entries reads the directories or the files of a DWARF 5 header.
func entries(h *lineHeader, c *cursor) (list []fileEntry) {
	type format struct{ content, form uint64 }
	var formats []format
	for range c.u8() {
		formats = append(formats, format{c.uleb(), c.uleb()})
	}
	n := c.uleb()
	for ; n > 0 && c.more(); n-- { // an entry has a byte at least
		var e fileEntry
		at := c.off
		for _, f := range formats {
			v := c.value(&h.encoding, uint16(min(f.form, math.MaxUint16)), 0)
			switch f.content {
			case DW_LNCT_path:
				e.name = v
			case DW_LNCT_directory_index:
				e.dir = v.u
			}
		}
		if c.off == at {
			c.fail()
		}
		if c.bad {
			break
		}
		list = append(list, e)
	}
	return list
}

// run runs the program (section 6.2.5). A row has a byte of it at least. Of several rows at one address the last stays: it
// is the only one that has instructions.
func (t *lineTable) run(h *lineHeader, c *cursor) {
	var (
		rows []row
		reg  row
		line = uint64(1)
		file = uint64(1)
		lo   uint64
		some bool // the sequence has rows
		dead bool // the linker left it out
	)
	reg.line = 1
	emit := func() {
		if dead {
			return
		}
		if !some {
			some, lo = true, reg.addr
		}
		reg.line, reg.file = uint32(line), uint16(file)
		if n := len(rows); n > 0 && rows[n-1].addr == reg.addr {
			rows[n-1] = reg
		} else if n == 0 || rows[n-1].line != reg.line || rows[n-1].col != reg.col || rows[n-1].file != reg.file {
			rows = append(rows, reg)
		}
	}
	tombstone := uint64(1)<<(8*min(uint(h.addrSize), 8)-1)<<1 - 1
	constAdd := uint64(0)
	if h.lineRange > 0 {
		constAdd = uint64((255-h.opcodeBase)/h.lineRange) * h.minInst
	}
	for c.more() {
		if t.size+rowSize*len(rows) > maxLines {
			t.u.f.in.note("%s: .debug_line+%#x: more rows than are read", t.u.f.img.Name(), c.off)
			return
		}
		op := c.u8()
		switch {
		case op >= h.opcodeBase:
			op -= h.opcodeBase
			if h.lineRange > 0 {
				reg.addr += uint64(op/h.lineRange) * h.minInst
				line += uint64(int64(h.lineBase) + int64(op%h.lineRange))
			} else {
				line += uint64(int64(h.lineBase))
			}
			emit()
		case op == 0:
			n := c.uleb()
			if n > uint64(len(c.b)-c.off) {
				c.fail()
				return
			}
			next := c.off + int(n)
			if n == 0 {
				continue
			}
			switch c.u8() {
			case DW_LNE_end_sequence:
				if !dead && some && lo < reg.addr {
					t.seqs = append(t.seqs, sequence{lo, reg.addr, slices.Clone(rows)})
					t.size += rowSize*len(rows) + 64
				}
				rows, reg, line, file, some, dead = rows[:0], row{line: 1}, 1, 1, false, false
			case DW_LNE_set_address:
				if n-1 <= 8 {
					reg.addr = c.uint(int(n - 1))
					dead = reg.addr == tombstone
				}
			case DW_LNE_define_file:
				t.files = append(t.files, fileEntry{c.value(&h.encoding, DW_FORM_string, 0), c.uleb()})
			}
			c.off = next
		case op == DW_LNS_copy:
			emit()
		case op == DW_LNS_advance_pc:
			reg.addr += c.uleb() * h.minInst
		case op == DW_LNS_advance_line:
			line += uint64(c.sleb())
		case op == DW_LNS_set_file:
			file = c.uleb()
		case op == DW_LNS_set_column:
			reg.col = uint16(c.uleb())
		case op == DW_LNS_const_add_pc:
			reg.addr += constAdd
		case op == DW_LNS_fixed_advance_pc:
			reg.addr += c.uint(2)
		default: // without effect here, or unknown
			for range h.lengths[op-1] {
				c.uleb()
			}
		}
	}
}

// find returns the row that holds at a, or nil: the last at or before a in the first sequence, by its end, that ends
// behind a.
func (t *lineTable) find(a uint64) *row {
	i := sort.Search(len(t.seqs), func(i int) bool { return t.seqs[i].hi > a })
	if i == len(t.seqs) || t.seqs[i].lo > a {
		return nil
	}
	rows := t.seqs[i].rows
	j := sort.Search(len(rows), func(j int) bool { return rows[j].addr > a })
	return &rows[max(j, 1)-1]
}

func (t *lineTable) name(e *fileEntry) string {
	if e.name.form == DW_FORM_string {
		c := t.u.f.at(secLine, e.name.u)
		return t.u.f.in.text(c.str())
	}
	return t.u.f.in.text(t.u.str(e.name))
}

// path returns the name of a file, as absolute as the unit says; "" where there is none.
func (t *lineTable) path(i uint64) string {
	if p, ok := t.paths[i]; ok {
		return p
	}
	at := i
	if t.version < 5 {
		at-- // they count from 1
	}
	if at >= uint64(len(t.files)) {
		return ""
	}
	e := &t.files[at]
	dir := e.dir
	if t.version < 5 {
		dir-- // 0 is the compilation directory
	}
	p := t.name(e)
	if !strings.HasPrefix(p, "/") {
		if dir < uint64(len(t.dirs)) {
			p = join(t.name(&t.dirs[dir]), p)
		}
		if !strings.HasPrefix(p, "/") && (t.version < 5 || e.dir != 0) {
			p = join(t.u.f.in.text(t.u.str(t.u.root.compDir)), p)
		}
	}
	t.paths[i] = p
	return p
}

// join puts a directory before a name.
func join(dir, name string) string {
	if dir == "" || name == "" {
		return dir + name
	}
	return strings.TrimSuffix(dir, "/") + "/" + strings.TrimPrefix(name, "/")
}
