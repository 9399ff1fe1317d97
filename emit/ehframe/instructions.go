package ehframe

import (
	"encoding/binary"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Call frame instructions (DWARF 5, section 7.24; Linux Standard Base; DWARF for the Arm 64-bit Architecture).
const (
	cfaAdvanceLoc1      = 0x02
	cfaAdvanceLoc2      = 0x03
	cfaAdvanceLoc4      = 0x04
	cfaOffsetExtended   = 0x05
	cfaRestoreExtended  = 0x06
	cfaUndefined        = 0x07
	cfaSameValue        = 0x08
	cfaRegister         = 0x09
	cfaRememberState    = 0x0a
	cfaRestoreState     = 0x0b
	cfaDefCFA           = 0x0c
	cfaDefCFARegister   = 0x0d
	cfaDefCFAOffset     = 0x0e
	cfaDefCFAExpression = 0x0f
	cfaExpression       = 0x10
	cfaOffsetExtendedSf = 0x11
	cfaDefCFASf         = 0x12
	cfaDefCFAOffsetSf   = 0x13
	cfaValOffset        = 0x14
	cfaValOffsetSf      = 0x15
	cfaValExpression    = 0x16
	cfaNegateRAState    = 0x2d
	cfaAdvanceLoc       = 0x40
	cfaOffset           = 0x80
	cfaRestore          = 0xc0
)

// A writer writes instructions.
type writer struct {
	e     *emitter
	begin *rows.Set // what DW_CFA_restore leads to
	b     []byte
}

// advance writes how far the next row is, in units of the code alignment factor.
func advance(b []byte, n uint64) []byte {
	switch le := binary.LittleEndian; {
	case n < 0x40:
		return append(b, cfaAdvanceLoc|byte(n))
	case n <= 0xff:
		return append(b, cfaAdvanceLoc1, byte(n))
	case n <= 0xffff:
		return le.AppendUint16(append(b, cfaAdvanceLoc2), uint16(n))
	default:
		return le.AppendUint32(append(b, cfaAdvanceLoc4), uint32(n))
	}
}

// from writes what leads from one set to another. Registers without a rule have that of begin.
func (w *writer) from(old, set *rows.Set) {
	if set.CFA.Kind != rows.CFANone && old.CFA != set.CFA { // of an outermost frame, the CFA does not matter
		w.cfa(&old.CFA, &set.CFA)
	}
	if (old.Flags^set.Flags)&rows.RASigned != 0 {
		w.b = append(w.b, cfaNegateRAState)
	}
	i, k, n := 0, 0, 0
	for i < len(old.Rules) || k < len(set.Rules) || n < len(w.begin.Rules) {
		r := arch.Reg(0xffff) // the least of the three lists
		for _, l := range [][]rows.Rule{old.Rules[i:], set.Rules[k:], w.begin.Rules[n:]} {
			if len(l) > 0 {
				r = min(r, l[0].Of)
			}
		}
		var was, is, begin rows.Rule
		var some, to, own bool // whether these have a rule
		if n < len(w.begin.Rules) && w.begin.Rules[n].Of == r {
			begin, own = w.begin.Rules[n], true
			n++
		}
		was, some, is, to = begin, own, begin, own
		if i < len(old.Rules) && old.Rules[i].Of == r {
			was, some = old.Rules[i], true
			i++
		}
		if k < len(set.Rules) && set.Rules[k].Of == r {
			is, to = set.Rules[k], true
			k++
		}
		switch {
		case some == to && was == is:
		case to == own && is == begin:
			if r < 0x40 {
				w.b = append(w.b, cfaRestore|byte(r))
			} else {
				w.op(cfaRestoreExtended, uint64(r))
			}
		default:
			w.rule(&is)
		}
	}
}

// cfa writes a rule of the CFA.
func (w *writer) cfa(old, c *rows.CFA) {
	switch {
	case c.Kind != rows.CFAReg:
		w.block(cfaDefCFAExpression, 0, c.Expression(w.e.m))
	case old.Kind == rows.CFAReg && old.Off == c.Off:
		w.op(cfaDefCFARegister, uint64(c.Reg))
	case old.Kind == rows.CFAReg && old.Reg == c.Reg && c.Off >= 0:
		w.op(cfaDefCFAOffset, uint64(c.Off))
	case old.Kind == rows.CFAReg && old.Reg == c.Reg:
		w.b = appendSleb(append(w.b, cfaDefCFAOffsetSf), -(c.Off / w.e.data))
	case c.Off >= 0:
		w.op(cfaDefCFA, uint64(c.Reg), uint64(c.Off))
	default:
		w.op(cfaDefCFASf, uint64(c.Reg))
		w.b = appendSleb(w.b, -(c.Off / w.e.data))
	}
}

// rule writes a register's rule.
func (w *writer) rule(r *rows.Rule) {
	reg := uint64(r.Of)
	n := -(r.Off / w.e.data) // in units of the data alignment factor
	switch r.Kind {
	case rows.Undefined:
		w.op(cfaUndefined, reg)
	case rows.SameValue:
		w.op(cfaSameValue, reg)
	case rows.Offset:
		switch {
		case n < 0:
			w.op(cfaOffsetExtendedSf, reg)
			w.b = appendSleb(w.b, n)
		case reg < 0x40:
			w.op(cfaOffset|byte(reg), uint64(n))
		default:
			w.op(cfaOffsetExtended, reg, uint64(n))
		}
	case rows.ValOffset:
		if n < 0 {
			w.op(cfaValOffsetSf, reg)
			w.b = appendSleb(w.b, n)
		} else {
			w.op(cfaValOffset, reg, uint64(n))
		}
	case rows.Register:
		w.op(cfaRegister, reg, uint64(r.Reg))
	case rows.RegOffset:
		w.block(cfaValExpression, reg, r.Expression())
	case rows.RegDeref, rows.Expr:
		w.block(cfaExpression, reg, r.Expression())
	case rows.ValExpr:
		w.block(cfaValExpression, reg, r.Expression())
	}
}

// op writes an instruction with unsigned operands.
func (w *writer) op(op byte, args ...uint64) {
	w.b = append(w.b, op)
	for _, a := range args {
		w.b = binary.AppendUvarint(w.b, a)
	}
}

// block writes an instruction with an expression; that of the CFA has no register.
func (w *writer) block(op byte, reg uint64, expr string) {
	w.b = append(w.b, op)
	if op != cfaDefCFAExpression {
		w.b = binary.AppendUvarint(w.b, reg)
	}
	w.b = append(binary.AppendUvarint(w.b, uint64(len(expr))), expr...)
}

// appendSleb appends a signed LEB128 number.
func appendSleb(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		if v >>= 7; v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}
