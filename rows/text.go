package rows

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/unspool/unspool/arch"
)

// The text form of a table is a line for the machine and then a line a row: the address in hex, and
// cells set apart by two spaces.
//
//	machine x86_64
//	1000  cfa=rsp+8  ra=c-8
//	1001  cfa=rsp+16  ra=c-8  rbp=c-16
//	1040  gap
//
// A line "origin 1000 .eh_frame" in front of a row says what the rows from an address on were made from. In a file that is not linked, a line
// "section 1000 .text" is in front of the first row of each section, with an address that the file itself does not have, and the addresses of
// the section are .text+0, .text+1c.
//
// Cells are spelled as readelf -wF spells them: u undefined, s same value, c-16 at CFA-16, v-16 is
// CFA-16, rdx is the value of a register. Expressions are spelled as llvm-dwarfdump spells them, in
// brackets where they give the address of the value.

// CFACell returns the text of a CFA rule; "none" where there is none.
func (s *Set) CFACell(m *arch.Machine) string {
	switch c := &s.CFA; c.Kind {
	case CFANone:
		return "none"
	case CFAReg:
		return fmt.Sprintf("%s%+d", m.RegName(c.Reg), c.Off)
	default:
		return ExprString(c.Expression(m), m)
	}
}

// Cell returns the text of a register's rule.
func (r *Rule) Cell(m *arch.Machine) string {
	switch r.Kind {
	case Undefined:
		return "u"
	case SameValue:
		return "s"
	case Offset:
		return fmt.Sprintf("c%+d", r.Off)
	case ValOffset:
		return fmt.Sprintf("v%+d", r.Off)
	case Register:
		return m.RegName(r.Reg)
	case RegDeref, Expr:
		return "[" + ExprString(r.Expression(), m) + "]"
	}
	return ExprString(r.Expression(), m)
}

var flagNames = []struct {
	flag Flags
	name string
}{
	{Signal, "signal"}, {RASigned, "ra-signed"}, {RASignPC, "ra-signed-pc"}, {BKey, "b-key"},
	{Tagged, "tagged"}, {SyncOnly, "sync-only"}, {Partial, "partial"},
}

// Text returns the cells of s in one line; "gap" for a set without information.
func (s *Set) Text(m *arch.Machine) string {
	if s.Gap() && s.Flags == 0 {
		return "gap"
	}
	cells := []string{"cfa=" + s.CFACell(m)}
	if s.RA != m.RA {
		cells = append(cells, "ra-column="+m.RegName(s.RA))
	}
	for i := range s.Rules {
		r := &s.Rules[i]
		name := m.RegName(r.Of)
		if r.Of == s.RA {
			name = "ra"
		}
		cells = append(cells, name+"="+r.Cell(m))
	}
	for _, f := range flagNames {
		if s.Flags&f.flag != 0 {
			cells = append(cells, f.name)
		}
	}
	return strings.Join(cells, "  ")
}

// WriteText writes t's text form.
func (t *Table) WriteText(w io.Writer) error {
	bw := bufio.NewWriter(w)
	fmt.Fprintf(bw, "machine %s\n", t.Machine.Name)
	text := make([]string, len(t.Sets))
	for i := range t.Sets {
		text[i] = t.Sets[i].Text(t.Machine)
	}
	origins := t.Origins
	var in *SectionStart
	for _, r := range t.Rows {
		if s := t.section(r.Lo); s != in {
			for ; len(origins) > 0 && origins[0].Lo < s.Lo; origins = origins[1:] {
				fmt.Fprintf(bw, "origin %s %s\n", in.addrCell(origins[0].Lo), origins[0].Origin)
			}
			in = s
			fmt.Fprintf(bw, "section %x %s\n", uint64(s.Lo), nameCell(s.Name))
		}
		for ; len(origins) > 0 && origins[0].Lo <= r.Lo; origins = origins[1:] {
			fmt.Fprintf(bw, "origin %s %s\n", in.addrCell(origins[0].Lo), origins[0].Origin)
		}
		if in == nil {
			fmt.Fprintf(bw, "%x  %s\n", uint64(r.Lo), text[r.Set])
		} else {
			fmt.Fprintf(bw, "%s  %s\n", in.addrCell(r.Lo), text[r.Set])
		}
	}
	return bw.Flush()
}

// ParseText reads the text that WriteText writes. Empty lines and lines that start with # are passed over. Errors name the line.
func ParseText(r io.Reader) (*Table, error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	var b *Builder
	var last arch.Vaddr
	var origins []OriginRange
	var sections []SectionStart
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if b == nil {
			name, ok := strings.CutPrefix(line, "machine ")
			m := arch.Named(name)
			if !ok || m == nil {
				return nil, fmt.Errorf("line %d: want \"machine NAME\", have %q", n, line)
			}
			b = NewBuilder(m)
			b.Begin(0, ^arch.Vaddr(0))
			continue
		}
		if cell, ok := strings.CutPrefix(line, "section "); ok {
			addr, name, _ := strings.Cut(cell, " ")
			lo, err := strconv.ParseUint(addr, 16, 64)
			if strings.HasPrefix(name, `"`) && err == nil {
				name, err = strconv.Unquote(name)
			}
			k := len(sections)
			if err != nil || k > 0 && arch.Vaddr(lo) <= sections[k-1].Lo {
				return nil, fmt.Errorf("line %d: %q is no section at an address above the one before", n, cell)
			}
			sections = append(sections, SectionStart{arch.Vaddr(lo), name})
			continue
		}
		if cell, ok := strings.CutPrefix(line, "origin "); ok {
			addr, name, _ := strings.Cut(cell, " ")
			lo, isAddr := parseAddr(addr, sections)
			o, ok := originByName(name)
			k := len(origins)
			if !isAddr || !ok || k > 0 && (lo <= origins[k-1].Lo || o == origins[k-1].Origin) {
				return nil, fmt.Errorf("line %d: %q is no origin from an address on, above and unlike the one before", n, cell)
			}
			origins = append(origins, OriginRange{lo, o})
			continue
		}
		addr, rest, _ := strings.Cut(line, "  ")
		lo, ok := parseAddr(addr, sections)
		if !ok || len(b.rows) > 0 && lo <= last {
			return nil, fmt.Errorf("line %d: %q is no address above the one before", n, addr)
		}
		last = lo
		set, err := ParseSet(rest, b.Machine)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		b.Row(last, b.Intern(set))
	}
	if err := sc.Err(); err != nil {
		return nil, err
	}
	if b == nil {
		return nil, errors.New("no machine line")
	}
	if n := len(b.rows); n > 0 && b.rows[n-1].Set != GapID {
		return nil, errors.New("the last row must be a gap")
	}
	t := Build(b)
	if k := len(origins); k > 0 && (len(t.Rows) == 0 || origins[0].Lo != t.Rows[0].Lo || origins[k-1].Lo >= last) {
		return nil, errors.New("origins do not start with the first row, or go on behind the last")
	}
	t.Origins, t.Sections = origins, sections
	return t, nil
}

// ParseSet reads the text that Text writes.
func ParseSet(text string, m *arch.Machine) (Set, error) {
	if text == "gap" {
		return Set{}, nil
	}
	s := Set{RA: m.RA}
cells:
	for cell := range strings.SplitSeq(text, "  ") {
		for _, f := range flagNames {
			if cell == f.name {
				s.Flags |= f.flag
				continue cells
			}
		}
		name, val, ok := strings.Cut(cell, "=")
		if !ok {
			return s, fmt.Errorf("%q is no cell", cell)
		}
		switch name {
		case "cfa":
			c, err := parseCFA(val, m)
			if err != nil {
				return s, err
			}
			s.CFA = c
			continue
		case "ra-column":
			r, ok := m.RegByName(val)
			if !ok {
				return s, fmt.Errorf("%q is no register", val)
			}
			s.RA = r
			continue
		}
		of := s.RA
		if name != "ra" {
			if of, ok = m.RegByName(name); !ok {
				return s, fmt.Errorf("%q is no register", name)
			}
		}
		r, err := parseRule(of, val, m)
		if err != nil {
			return s, err
		}
		if n := len(s.Rules); n > 0 && s.Rules[n-1].Of >= of {
			return s, fmt.Errorf("%q is out of order", cell)
		}
		s.Rules = append(s.Rules, r)
	}
	return s, nil
}

func parseCFA(val string, m *arch.Machine) (CFA, error) {
	if val == "none" {
		return CFA{}, nil
	}
	if val == "" || strings.HasPrefix(val, "DW_OP_") {
		e, err := ParseExpr(val, m)
		return LowerCFA(e, m), err
	}
	r, off, err := parseRegOff(val, m)
	return CFA{Kind: CFAReg, Reg: r, Off: off}, err
}

func parseRule(of arch.Reg, val string, m *arch.Machine) (Rule, error) {
	r := Rule{Of: of}
	var err error
	switch {
	case val == "u":
		r.Kind = Undefined
	case val == "s":
		r.Kind = SameValue
	case strings.HasPrefix(val, "c+"), strings.HasPrefix(val, "c-"):
		r.Kind = Offset
		r.Off, err = strconv.ParseInt(val[1:], 10, 64)
	case strings.HasPrefix(val, "v+"), strings.HasPrefix(val, "v-"):
		r.Kind = ValOffset
		r.Off, err = strconv.ParseInt(val[1:], 10, 64)
	case strings.HasPrefix(val, "["):
		r.Kind = Expr
		r.Expr, err = ParseExpr(strings.TrimSuffix(val[1:], "]"), m)
		r = LowerRule(r)
	case val == "" || strings.HasPrefix(val, "DW_OP_"):
		r.Kind = ValExpr
		r.Expr, err = ParseExpr(val, m)
		r = LowerRule(r)
	default:
		ok := false
		r.Kind = Register
		if r.Reg, ok = m.RegByName(val); !ok {
			err = fmt.Errorf("%q is no rule", val)
		}
	}
	return r, err
}

// parseRegOff reads "rsp+8".
func parseRegOff(s string, m *arch.Machine) (arch.Reg, int64, error) {
	i := strings.LastIndexAny(s, "+-")
	if i < 0 {
		return 0, 0, fmt.Errorf("%q is no register and offset", s)
	}
	r, ok := m.RegByName(strings.ToLower(s[:i]))
	off, err := strconv.ParseInt(s[i:], 10, 64)
	if !ok || err != nil {
		return 0, 0, fmt.Errorf("%q is no register and offset", s)
	}
	return r, off, nil
}

// ParseExpr reads the text of ExprString. Numbers get their shortest form.
func ParseExpr(text string, m *arch.Machine) (string, error) {
	if text == "" {
		return "", nil
	}
	var b []byte
	for part := range strings.SplitSeq(text, ", ") {
		name, arg, _ := strings.Cut(part, " ")
		name, ok := strings.CutPrefix(name, "DW_OP_")
		if !ok {
			return "", fmt.Errorf("%q is no operation", part)
		}
		if reg, isBreg := strings.CutPrefix(name, "breg"); isBreg {
			r, off, err := parseRegOff(arg, m)
			if err != nil {
				return "", err
			}
			if reg == "x" {
				b = appendSLEB(appendULEB(append(b, DW_OP_bregx), uint64(r)), off)
			} else {
				b = appendBreg(b, r, off)
			}
			continue
		}
		if lit, isLit := strings.CutPrefix(name, "lit"); isLit {
			n, err := strconv.ParseUint(lit, 10, 5)
			if err != nil {
				return "", fmt.Errorf("%q is no operation", part)
			}
			b = append(b, DW_OP_lit0+byte(n))
			continue
		}
		code, ok := opCodes[name]
		if !ok {
			return "", fmt.Errorf("%q is no operation", part)
		}
		b = append(b, code)
		kind := opTable[code].arg
		if kind == opNone {
			continue
		}
		v, err := strconv.ParseInt(strings.TrimPrefix(arg, "+"), 0, 64)
		if err != nil {
			u, err := strconv.ParseUint(arg, 0, 64)
			if err != nil {
				return "", fmt.Errorf("%q has no operand", part)
			}
			v = int64(u)
		}
		switch kind {
		case opULEB:
			b = appendULEB(b, uint64(v))
		case opSLEB:
			b = appendSLEB(b, v)
		default:
			for range opSizes[kind] {
				b = append(b, byte(v))
				v >>= 8
			}
		}
	}
	return string(b), nil
}

var opSizes = map[operandKind]int{opU8: 1, opS8: 1, opU16: 2, opS16: 2, opU32: 4, opS32: 4, opU64: 8, opS64: 8, opAddr: 8}

var opCodes = func() map[string]byte {
	m := make(map[string]byte, len(opTable))
	for c, d := range opTable {
		m[d.name] = c
	}
	return m
}()
