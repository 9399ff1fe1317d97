package sframe

import (
	"encoding/binary"
	"math"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A content is what a row of the format says of a set.
type content struct {
	reason string // why it cannot be said; "": it can

	info      uint8 // of its entry
	signed    bool
	outermost bool
	sp        bool // the CFA counts from the stack pointer
	flexOnly  bool // the default encoding cannot say it

	cfa, ra, fp place
	plt         bool  // a lazy linkage table: the CFA is 8 more from a place in each block on
	pushed      int64 // this place
}

// A place is a rule as the format writes it. ctl is a control word; 0 is the default.
type place struct {
	ctl uint32
	off int64
}

// same says whether two rows of an entry have the same bytes, but for their start.
func (s *content) same(o *content) bool {
	return s.cfa == o.cfa && s.ra == o.ra && s.fp == o.fp && s.signed == o.signed && s.outermost == o.outermost
}

// contentOf returns what the format says of a set.
func (e *emitter) contentOf(s *rows.Set) (out content) {
	no := func(reason string) content { return content{reason: reason} }
	m := e.m
	if s.RA != m.RA {
		return no("another return address column")
	}
	if s.Flags&rows.SyncOnly != 0 {
		return no("right at calls only")
	}
	if s.Flags&rows.Signal != 0 {
		if e.version == 2 {
			return no("a signal's frame")
		}
		out.info |= infoSignal
	}
	if s.Flags&rows.BKey != 0 {
		out.info |= infoKeyB
	}
	if s.Flags&rows.RASignPC != 0 {
		return no("a return address signed with the program counter")
	}
	out.signed = s.Flags&rows.RASigned != 0
	if s.Outermost() {
		out.outermost = true
		return out
	}
	if sp, ok := s.Rule(m.SP); ok && (sp.Kind != rows.ValOffset || sp.Off != 0) {
		return no("a rule for the stack pointer")
	}

	c := &s.CFA
	out.cfa, out.sp = place{ctlReg | uint32(c.Reg)<<ctlShift, c.Off}, c.Reg == m.SP
	switch {
	case c.Kind == rows.CFANone:
		return no("no CFA")
	case c.Kind == rows.CFAPLT:
		out.plt, out.pushed = true, c.Off2
		if c.Off2 < 0 {
			return no("an expression")
		}
	case c.Kind == rows.CFARegDeref && c.Off2 == 0:
		out.cfa.ctl |= ctlDeref
		out.flexOnly = true
	case c.Kind != rows.CFAReg:
		return no("an expression")
	}
	if c.Reg != m.SP && c.Reg != m.FP {
		out.flexOnly = true
	}

	var reason string
	if ra, ok := s.Rule(m.RA); ok && ra.Kind != rows.SameValue {
		out.ra, reason = ruleOf(&ra)
	} else if !m.RAInReg {
		return no("no return address")
	}
	if m.RAInReg && out.ra.ctl == ctlReg|uint32(m.RA)<<ctlShift && out.ra.off == 0 {
		out.ra = place{}
	}
	if reason != "" {
		return no(reason)
	}
	fixed := place{ctlDeref, e.fixedRA}
	switch {
	case e.fixedRA != 0 && out.ra == fixed:
		out.ra = place{}
	case e.fixedRA != 0, out.ra.ctl != 0 && (out.ra.ctl != ctlDeref || out.ra.off == 0):
		out.flexOnly = true
	}
	if fp, ok := s.Rule(m.FP); ok && fp.Kind != rows.SameValue {
		if fp.Kind == rows.Undefined {
			return no("a lost frame pointer")
		}
		if out.fp, reason = ruleOf(&fp); reason != "" {
			return no(reason)
		}
		if out.fp.ctl == ctlReg|uint32(m.FP)<<ctlShift && out.fp.off == 0 {
			out.fp = place{}
		}
	} else if !ok && s.Flags&rows.Partial != 0 {
		return no("a lost frame pointer")
	}
	switch {
	case out.fp.ctl == 0:
	case out.fp.ctl != ctlDeref || out.fp.off == 0, e.fixedRA == 0 && out.ra.ctl == 0:
		out.flexOnly = true
	}
	for _, p := range []place{out.cfa, out.ra, out.fp} {
		if p.off > math.MaxInt32-8 || p.off < math.MinInt32 {
			return no("an offset of more than 32 bits")
		}
	}
	switch {
	case out.flexOnly && e.version == 2:
		return no(notDefault(m, &out))
	case out.flexOnly && out.plt:
		return no("an expression")
	}
	return out
}

// notDefault says why version 2, which has default entries only, cannot say a row.
func notDefault(m *arch.Machine, s *content) string {
	switch {
	case s.cfa.ctl != ctlReg|uint32(m.SP)<<ctlShift && s.cfa.ctl != ctlReg|uint32(m.FP)<<ctlShift:
		return "a CFA by another register, or from memory"
	case s.ra.ctl != 0 && s.ra.ctl != ctlDeref, s.ra.ctl != 0 && !m.RAInReg:
		return "a return address in another place"
	case s.fp.ctl != 0 && s.fp.ctl != ctlDeref:
		return "a frame pointer in another place"
	}
	return "a frame pointer saved without the return address"
}

// ruleOf writes a rule of the return address or the frame pointer.
func ruleOf(r *rows.Rule) (p place, reason string) {
	reg := uint32(r.Reg) << ctlShift
	switch r.Kind {
	case rows.Offset:
		return place{ctlDeref, r.Off}, ""
	case rows.Register:
		return place{ctlReg | reg, 0}, ""
	case rows.RegOffset:
		return place{ctlReg | reg, r.Off}, ""
	case rows.RegDeref:
		return place{ctlReg | ctlDeref | reg, r.Off}, ""
	case rows.ValOffset:
		return p, "a value from the CFA" // its control word would be that of the default
	}
	return p, "an expression"
}

// encode appends the info byte and the words of a row. more is added to the CFA's offset.
func (s *content) encode(b []byte, flex bool, more int64) []byte {
	if s.outermost {
		return append(b, freSP)
	}
	var w []int64
	info := byte(0)
	cfa := s.cfa
	cfa.off += more
	if flex {
		ps := []place{cfa, s.ra, s.fp}
		for n := len(ps); ps[n-1].ctl == 0; n = len(ps) {
			ps = ps[:n-1]
		}
		for _, p := range ps {
			if w = append(w, int64(p.ctl)); p.ctl != 0 {
				w = append(w, p.off)
			}
		}
	} else {
		w = []int64{cfa.off}
		for _, p := range []place{s.ra, s.fp} {
			if p.ctl != 0 {
				w = append(w, p.off)
			}
		}
	}
	size := 0
	at := 0 // of a control word: they are unsigned
	for i, v := range w {
		ctl := flex && i == at
		if ctl {
			if at += 2; v == 0 {
				at--
			}
		}
		switch {
		case ctl && v > math.MaxUint16, !ctl && v != int64(int16(v)):
			size = 2
		case ctl && v > math.MaxUint8, !ctl && v != int64(int8(v)):
			size = max(size, 1)
		}
	}
	if s.sp {
		info |= freSP
	}
	if s.signed {
		info |= freSigned
	}
	b = append(b, info|byte(len(w))<<1|byte(size)<<5)
	for _, v := range w {
		switch size {
		case 0:
			b = append(b, byte(v))
		case 1:
			b = binary.LittleEndian.AppendUint16(b, uint16(v))
		default:
			b = binary.LittleEndian.AppendUint32(b, uint32(v))
		}
	}
	return b
}
