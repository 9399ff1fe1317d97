package compact

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/bits"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// An Error describes a fault in a table, and its place.
type Error struct {
	Off int
	Msg string
}

func (e *Error) Error() string { return fmt.Sprintf("compact table+%#x: %s", e.Off, e.Msg) }

func bad(off int, format string, args ...any) error {
	return &Error{off, fmt.Sprintf(format, args...)}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the CRC-32C of b without the checksum itself.
func checksum(b []byte) uint32 {
	return crc32.Update(crc32.Checksum(b[:hdrChecksum], castagnoli), castagnoli, b[hdrChecksum+4:])
}

// Load checks a table, the checksum first, and returns it. b is not decoded and must not change. Bytes behind the table are ignored. An
// *Error describes the fault and its place.
func Load(b []byte) (*Table, error) { return loadFor(b, arch.ByELF) }

// LoadProven is Load for a table that was checked before it was kept. The checksum says that it is still the same, so its rows are not looked at
// again, which takes most of the time of Load. Bytes of which that is not true give wrong answers at worst, as Find and Apply check what they read.
func LoadProven(b []byte) (*Table, error) { return layOut(b, arch.ByELF) }

// loadFor is Load, with the machines that there are.
func loadFor(b []byte, machine func(uint16) *arch.Machine) (*Table, error) {
	t, err := layOut(b, machine)
	if err == nil {
		err = t.checkIndex()
	}
	if err == nil {
		err = t.checkRows()
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// layOut finds the parts of a table, and checks all but the numbers of rows in the index, and the rows.
func layOut(b []byte, machine func(uint16) *arch.Machine) (*Table, error) {
	if len(b) < headerSize {
		return nil, bad(0, "truncated: %d bytes", len(b))
	}
	if string(b[:len(Magic)]) != Magic {
		return nil, bad(0, "not a compact table")
	}
	if v := le.Uint16(b[hdrVersion:]); v != Version {
		return nil, bad(hdrVersion, "version %d, not %d", v, Version)
	}
	u32 := func(at int) uint64 { return uint64(le.Uint32(b[at:])) }
	if n := u32(hdrSize); n > uint64(len(b)) {
		return nil, bad(hdrSize, "truncated: %d of %d bytes", len(b), n)
	} else {
		b = b[:n:n]
	}
	if len(b) < headerSize {
		return nil, bad(hdrSize, "truncated: %d bytes", len(b))
	}
	if want, got := le.Uint32(b[hdrChecksum:]), checksum(b); got != want {
		return nil, bad(hdrChecksum, "checksum %#x, not %#x", got, want)
	}
	m := machine(le.Uint16(b[hdrMachine:]))
	for _, v := range m.Variants() { // machines that share a number differ in their registers, or in the byte order
		if sh := shapeOf(v); b[hdrTraits] == sh.traits() && int64(b[hdrSaveScale]) == sh.scale && bytes.HasPrefix(b[headerSize:], sh.slots) {
			m = v
		}
	}
	t := &Table{b: b, machine: m, sh: shapeOf(m), wideEscs: b[hdrEscSize] == 4, inReg: m.RAInReg, sp: uint8(m.Slot(m.SP)), ra: uint8(m.Slot(m.RA)),
		nrules: uint32(u32(hdrNRules)), saved: m.SavedSlots(), nrows: int(u32(hdrNRows)), nspans: int(u32(hdrNSpans)), ngran: int(u32(hdrNGranules))}
	t.ruleBits = uint8(bits.TrailingZeros(uint(t.sh.size)))
	t.six = string(t.sh.slots) == sixSlots && t.sp == sixSP && !m.RAInReg && t.sh.scale == 8
	if n := len(t.sh.slots); int(b[hdrRuleSize]) != t.sh.size || int(b[hdrNSaves]) != n || int64(b[hdrSaveScale]) != t.sh.scale || headerSize+n > len(b) {
		return nil, bad(hdrRuleSize, "rules of %d bytes with %d saves of %d bytes on %s", b[hdrRuleSize], b[hdrNSaves], b[hdrSaveScale], m.Name)
	}
	if b[hdrSP] != t.sp || b[hdrTraits] != t.sh.traits() || int(b[hdrNRun]) != t.sh.run {
		return nil, bad(hdrSP, "the stack pointer is slot %d, traits %#x, on %s", b[hdrSP], b[hdrTraits], m.Name)
	}
	for i, slot := range t.sh.slots {
		if b[headerSize+i] != slot {
			return nil, bad(headerSize+i, "save %d is slot %d, not %s", i, b[headerSize+i], m.RegName(t.sh.saves[i]))
		}
	}
	escSize := uint64(b[hdrEscSize])
	if escSize != 2 && escSize != 4 {
		return nil, bad(hdrEscSize, "escapes of %d bytes", escSize)
	}
	ngran, ndir, nesc := u32(hdrNGranules), uint64(0), u32(hdrNEscapes)
	if ngran > 0 {
		ngran++
	}
	if nesc > 0 {
		ndir = u32(hdrNRows)>>escapeBits + 2
	}
	for _, p := range []struct {
		at   int
		size uint64
		to   *[]byte
	}{
		{hdrSpans, u32(hdrNSpans) * spanSize, &t.spans},
		{hdrRegions, u32(hdrNRegions) * 4, &t.regions},
		{hdrGranules, ngran * 2, &t.granules},
		{hdrRows, u32(hdrNRows)*2 + rowsPad, &t.body},
		{hdrEscDir, ndir * 4, &t.dir},
		{hdrEscKeys, nesc * 2, &t.keys},
		{hdrEscRules, nesc * escSize, &t.escs},
		{hdrWides, u32(hdrWideSize), &t.wides},
		{hdrExprs, u32(hdrExprSize), &t.exprs},
	} {
		off := u32(p.at)
		if off%align != 0 || off < headerSize || off > uint64(len(b)) || p.size > uint64(len(b))-off {
			return nil, bad(p.at, "part of %d bytes at %#x of %#x", p.size, off, len(b))
		}
		*p.to = b[off : off+p.size : off+p.size]
	}
	if err := t.loadRules(); err != nil {
		return nil, err
	}
	for _, check := range []func() error{t.checkSpans, t.checkRules, t.loadOrigins} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	if t.nspans > 0 {
		t.first = t.span(0)
	}
	return t, nil
}

// loadRules finds the rules: the header has the offset of rule 0, the gap, which has no bytes.
func (t *Table) loadRules() error {
	if t.nrules == 0 {
		return bad(hdrNRules, "no rules")
	}
	size := uint64(t.sh.size)
	off, n := uint64(le.Uint32(t.b[hdrRules:]))+size, uint64(t.nrules-1)*size
	if off%align != 0 || off < headerSize || off > uint64(len(t.b)) || n > uint64(len(t.b))-off {
		return bad(hdrRules, "rules of %d bytes at %#x of %#x", n, off, len(t.b))
	}
	t.rules = t.b[off : off+n : off+n]
	return nil
}

// off returns the offset of part in the table.
func (t *Table) off(field int) int { return int(le.Uint32(t.b[field:])) }

// checkSpans checks the spans: they ascend, and share out the granules and the regions in order.
func (t *Table) checkSpans() error {
	at := t.off(hdrSpans)
	end := uint64(0)
	granule, region := uint64(0), uint64(0)
	for i := range t.nspans {
		s := t.span(i)
		hi := s.lo + s.size
		if hi <= s.lo || i > 0 && s.lo < end || le.Uint64(t.spans[i*spanSize+spanShift:]) > maxShift {
			return bad(at+i*spanSize, "span [%#x, %#x)", s.lo, hi)
		}
		end = hi
		if uint64(s.granule) != granule || uint64(s.region) != region {
			return bad(at+i*spanSize, "span starts at granule %d, region %d", s.granule, s.region)
		}
		n := s.lastGranule() + 1
		if n > uint64(t.ngran)-granule {
			return bad(at+i*spanSize, "span of %d granules, %d are left", n, uint64(t.ngran)-granule)
		}
		nr := (n-1)>>(regionBits-granuleBits) + 1
		if nr > uint64(len(t.regions)/4)-region {
			return bad(at+i*spanSize, "span of %d regions", nr)
		}
		granule, region = granule+n, region+nr
	}
	if granule != uint64(t.ngran) || region != uint64(len(t.regions)/4) {
		return bad(at, "spans hold %d granules, %d regions", granule, region)
	}
	return nil
}

// checkIndex checks the regions and granules of spans that checkSpans has checked: each leads to the next part's items, in order.
func (t *Table) checkIndex() error {
	region, row := uint64(0), uint32(0)
	for i := range t.nspans {
		s := t.span(i)
		for k := range s.lastGranule() + 1 {
			if k%(1<<(regionBits-granuleBits)) == 0 {
				if x := le.Uint32(t.regions[4*region:]); x != row {
					return bad(t.off(hdrRegions)+int(4*region), "region starts at row %d, not %d", x, row)
				}
				region++
			}
			granule := uint64(s.granule) + k
			a, e := le.Uint16(t.granules[2*granule:]), le.Uint16(t.granules[2*granule+2:])
			if a != uint16(row) || e-a > 1<<granuleBits {
				return bad(t.off(hdrGranules)+int(2*granule), "granule starts at row %d, not %d", a, row)
			}
			row += uint32(e - a)
			if uint64(row) > uint64(t.nrows) {
				return bad(t.off(hdrGranules)+int(2*granule), "row %d of %d", row, t.nrows)
			}
		}
	}
	if uint64(row) != uint64(t.nrows) {
		return bad(t.off(hdrSpans), "spans hold %d rows", row)
	}
	return nil
}

// checkRows checks that rows ascend, that a span starts with its first row, and that rules exist. The granules have been checked. It takes most
// of the time of Load: so eight rows are looked at at once, and only granules with escapes, or with an error, row by row.
func (t *Table) checkRows() error {
	nesc := 0
	at := 0 // in the body, which has rowsPad bytes behind the last row
	body := t.off(hdrRows)
	limit := ones * uint64(min(t.nrules, escapeID)) // an id from there on is an escape, or wrong
	for i := range t.nspans {
		s := t.span(i)
		first, n := uint64(s.granule), 0
		if t.count(first) == 0 || t.body[at] != uint8(s.lo>>s.shift) {
			return bad(body+at, "the first row of the span at %#x", s.lo)
		}
		for g := range s.lastGranule() + 1 {
			at += 2 * n
			n = t.count(first + g)
			// Eight at a time, but for the last ones; bytes behind them are shifted out.
			b, k, wrong := t.body[at:at+2*n+rowsPad], 0, uint64(0)
			for ; n-k > 8; k += 8 {
				wrong |= notBelow(le.Uint64(b[k:]), le.Uint64(b[k+1:])) | notBelow(le.Uint64(b[n+k:]), limit)
			}
			x, rest := le.Uint64(b[k:]), 64-8*uint(n-k)
			wrong |= notBelow(x, x>>8)<<8<<rest | notBelow(le.Uint64(b[n+k:]), limit)<<rest
			if wrong == 0 {
				continue
			}
			if err := t.checkGranule(at, n, &nesc); err != nil {
				return err
			}
		}
		if n > 0 && t.body[at+n-1] > uint8((s.lo+s.size-1)>>s.shift) {
			return bad(body+at+n-1, "a row behind the span's end %#x", s.lo+s.size)
		}
		at += 2 * n
	}
	if nesc != len(t.keys)/2 {
		return bad(t.off(hdrEscKeys), "%d escapes for %d rows", len(t.keys)/2, nesc)
	}
	for i := 4; i < len(t.dir); i += 4 {
		if le.Uint32(t.dir[i:]) < le.Uint32(t.dir[i-4:]) || uint64(le.Uint32(t.dir[i:])) > uint64(nesc) {
			return bad(t.off(hdrEscDir)+i, "directory of escapes does not ascend")
		}
	}
	return nil
}

// count returns how many rows granule g has.
func (t *Table) count(g uint64) int {
	w := le.Uint32(t.granules[2*g:])
	return int(uint16(w>>16) - uint16(w))
}

// checkGranule checks the n rows of the granule whose lows begin at an offset of the body. nesc counts escapes.
func (t *Table) checkGranule(at, n int, nesc *int) error {
	body := t.off(hdrRows)
	last := -1
	for k, lo := range t.body[at : at+n] {
		if int(lo) <= last {
			return bad(body+at+k, "rows do not ascend")
		}
		last = int(lo)
	}
	for k, id := range t.body[at+n : at+2*n] {
		if id != escapeID {
			if uint32(id) >= t.nrules {
				return bad(body+at+n+k, "rule %d of %d", id, t.nrules)
			}
			continue
		}
		row := uint32(at/2) + uint32(k)
		if *nesc >= len(t.keys)/2 || uint32(le.Uint16(t.keys[2**nesc:])) != row&(1<<escapeBits-1) {
			return bad(t.off(hdrEscKeys)+2**nesc, "row %d has no escape", row)
		}
		if d := row >> escapeBits; uint32(*nesc) < le.Uint32(t.dir[4*d:]) || uint32(*nesc) >= le.Uint32(t.dir[4*d+4:]) {
			return bad(t.off(hdrEscDir)+int(4*d), "escape %d is not in its place", *nesc)
		}
		if x := t.escape(*nesc); x >= t.nrules {
			return bad(t.off(hdrEscRules), "escape %d has rule %d of %d", *nesc, x, t.nrules)
		}
		*nesc++
	}
	return nil
}

// notBelow returns a word with the high bit of each byte set that is in x not below its like in y.
func notBelow(x, y uint64) uint64 {
	d := (x | highs) - y&^highs // the high bits keep borrows inside their bytes
	return (x&^y | ^(x^y)&d) & highs
}

// checkRules checks each rule, and what wide ones point to.
func (t *Table) checkRules() error {
	starts, err := t.checkWides()
	if err != nil {
		return err
	}
	for id := uint32(1); id < t.nrules; id++ {
		if msg := t.checkRule(t.rule(id), starts); msg != "" {
			return bad(t.off(hdrRules)+int(id)<<t.ruleBits, "rule %d: %s", id, msg)
		}
	}
	return nil
}

// checkRule returns what is wrong with a rule. starts has a bit for each eighth byte at which a wide starts.
func (t *Table) checkRule(r []byte, starts []uint64) string {
	kind, slot, flags := parts(r)
	switch {
	case flags&^(outermostFlag|uint16(rows.AllFlags)) != 0:
		return fmt.Sprintf("flags %#x", flags)
	case kind == kindWide:
		off := le.Uint32(r[ruleOff:])
		if off%align != 0 || int(off) >= len(t.wides) || starts[off/align/64]>>(off/align%64)&1 == 0 {
			return fmt.Sprintf("no wide starts at %#x", off)
		}
		if le.Uint16(t.wides[off+wideFlags:]) != flags {
			return "flags are not those of its wide"
		}
		return ""
	case !t.machine.StepKnown:
		return "a fixed rule on " + t.machine.Name
	case !t.inReg && rows.Flags(flags)&(rows.RASigned|rows.RASignPC) != 0:
		return "a signed return address"
	}
	if kind == kindNone {
		return ""
	}
	if t.sh.run > 0 {
		if kind != kindReg {
			return fmt.Sprintf("a packed rule of kind %d", kind)
		}
		if msg := t.sh.checkPacked(r); msg != "" {
			return msg
		}
	}
	if t.sh.reg(slot) == noReg {
		return fmt.Sprintf("slot %d", slot)
	}
	mask, n := t.sh.present(r), len(t.sh.saves)
	if mask>>n != 0 || !t.inReg && flags&outermostFlag == 0 && mask>>(n-1) == 0 {
		return fmt.Sprintf("saves %#x", mask)
	}
	return ""
}

// checkWides checks that the wides lie one behind the other, and each of them. It returns where they start.
func (t *Table) checkWides() (starts []uint64, err error) {
	starts = make([]uint64, len(t.wides)/align/64+1)
	for off := 0; off < len(t.wides); {
		at := t.off(hdrWides) + off
		w, ok := t.wide(uint32(off))
		if !ok {
			return nil, bad(at, "a wide rule that is cut off")
		}
		if msg := t.checkWide(&w); msg != "" {
			return nil, bad(at, "%s", msg)
		}
		starts[off/align/64] |= 1 << (off / align % 64)
		off += wideHead + w.n*wruleSize
	}
	return starts, nil
}

func (t *Table) checkWide(w *wide) string {
	if k := rows.CFAKind(w.head[wideCFAKind]); k >= rows.NumCFAKinds {
		return fmt.Sprintf("CFA kind %d", k)
	} else if k == rows.CFAExpr {
		if _, ok := t.expr(le.Uint64(w.head[wideOff:])); !ok {
			return "an expression that is cut off"
		}
	}
	ra, last := arch.Reg(le.Uint16(w.head[wideRA:])), -1
	for i := range w.n {
		r := w.rules[i*wruleSize:]
		of := arch.Reg(le.Uint16(r[wruleOf:]))
		if int(of) <= last {
			return "registers do not ascend"
		}
		last = int(of)
		if t.machine.StepKnown && t.machine.Slot(of) == arch.NoSlot && of != ra {
			return fmt.Sprintf("a rule of %s", t.machine.RegName(of)) // a bound on the work of Apply
		}
		switch k := rows.Kind(r[wruleKind]); {
		case k >= rows.NumKinds:
			return fmt.Sprintf("rule kind %d", k)
		case k == rows.Expr || k == rows.ValExpr:
			if _, ok := t.expr(le.Uint64(r[wruleOff:])); !ok {
				return "an expression that is cut off"
			}
		}
	}
	return ""
}
