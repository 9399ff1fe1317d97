package shadow

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format"
	image "github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// A Finding is a row that recovers a wrong value at one of its instructions.
type Finding struct {
	Module   string
	Function string     // "" if it has no name
	Addr     arch.Vaddr // of the instruction where it was found first
	Start    arch.Vaddr // of the function; 0 if it has no name
	Lo, Hi   arch.Vaddr // where the row holds
	Row      string     // as rows.Set.Text has it
	Should   string     // what the row should be here, as far as that can be said
	Wrong    []Difference
	Outcome  string // why the row gives no caller; "" if it gives one
	Ours     bool   // the unwind information in the file is right, but what was made of it is not
	Times    uint64 // instructions executed at which it was wrong
	Thread   int    // the thread that was the first
	Code     []Line // around Addr
	Known    *Known // why it is no surprise; nil if it is one

	wrong uint64 // the registers in Wrong
	code  []byte // that the row begins with
	first []byte // from Addr on: a row can begin in the function before, where that ends with the same row
}

// A Difference is a register that is recovered wrongly.
type Difference struct {
	Register  string // "ra", "cfa", "rbx"
	Got, Want uint64
}

// What returns the names of the wrong values, sorted: "cfa", "ra", "rbx".
func (f *Finding) What() (out []string) {
	for _, d := range f.Wrong {
		out = append(out, d.Register)
	}
	slices.Sort(out)
	return out
}

// A rowKey is a row of a function: neighbours whose rows are equal share one.
type rowKey struct {
	mod       *module
	lo, start arch.Vaddr
}

// wants says whether the filters let a site be compared.
func (t *tracer) wants(s *site) bool {
	match := func(re *regexp.Regexp, text func() string) bool { return re == nil || re.MatchString(text()) }
	return match(t.opt.Module, func() string { return s.mod.Path }) && match(t.opt.Function, func() string {
		sym, _ := t.opt.Names.Module(s.mod.Path, "").Lookup(s.vaddr)
		return sym.Name
	})
}

// wrong notes that the row at a thread's site is wrong in d.
func (t *tracer) wrong(th *thread, f *frame, o rows.Outcome, d uint64) {
	s := th.site
	if s.found == nil {
		s.found = t.finding(th)
	}
	if d&^s.found.wrong != 0 {
		s.found.add(th, f, o, d&^s.found.wrong)
	}
	s.found.Times++
}

// finding returns the finding of the row at a thread's site, which may be new.
func (t *tracer) finding(th *thread) *Finding {
	s := th.site
	n := &Finding{Module: s.mod.Path, Addr: s.vaddr, Lo: s.vaddr, Hi: s.vaddr + 1, Thread: th.number}
	var code []byte
	base := s.vaddr - around
	image.Guard(func() error { // what cannot be read is left out of the finding
		img, err := image.OpenMapped(s.mod.Path)
		if err != nil || img == nil {
			return err
		}
		if s.mod.Path != "[vdso]" {
			defer img.Close()
		}
		if s.mod.ref == nil {
			fr, err := format.Open(img)
			if err != nil {
				return err
			}
			s.mod.ref, _ = fr.Rows()
		}
		ref := s.mod.ref
		if i := ref.Find(s.vaddr); i >= 0 {
			n.Lo, n.Hi = ref.Rows[i].Lo, ref.Hi(i)
			n.Row = ref.At(s.vaddr).Text(ref.Machine)
		}
		bytesAt := func(v arch.Vaddr, most int) []byte {
			b := img.Tail(v)
			return bytes.Clone(b[:min(len(b), most)])
		}
		if code = bytesAt(base, 2*around+maxInst); code == nil {
			base = s.vaddr // at the beginning of a segment
			code = bytesAt(base, around+maxInst)
		}
		n.code, n.first = bytesAt(n.Lo, maxInst), bytesAt(n.Addr, maxInst)
		return nil
	})
	if sym, ok := t.opt.Names.Module(s.mod.Path, "").Lookup(s.vaddr); ok {
		n.Function, n.Start = sym.Name, sym.Start
	}
	key := rowKey{s.mod, n.Lo, n.Start}
	if old := t.byRow[key]; old != nil {
		return old
	}
	t.byRow[key] = n
	t.findings = append(t.findings, n)
	var starts []arch.Vaddr
	for v := base; v < s.vaddr; v++ {
		// Where instructions begin is known of the function, of the row, and of those that were executed.
		if v == n.Start || v == n.Lo || th.proc.sites[th.regs.pc-uint64(s.vaddr-v)] != nil {
			starts = append(starts, v)
		}
	}
	n.Code = disassemble(code, base, s.vaddr, starts)
	s.mod.Wrong++
	return n
}

// add notes what is wrong, d, in a thread's frame f. It is the first time that this is wrong with the row.
func (n *Finding) add(th *thread, f *frame, o rows.Outcome, d uint64) {
	n.Wrong = append(n.Wrong, th.differences(f, o, d)...)
	if n.wrong == 0 {
		n.Should = th.should(f)
		if o != rows.OK {
			n.Outcome = o.String()
		}
	}
	n.wrong |= d
	if ref := th.site.mod.ref; ref != nil {
		var st rows.State
		st.Start(th.regs.pc, allSlots)
		st.Snap = th.t.state.Snap
		got := rows.Step(ref.Machine, ref.At(th.site.vaddr), &st, &th.t.mem)
		n.Ours = n.Ours || got != o || o == rows.OK && !st.Equal(&th.t.state)
	}
}

// differences spells out what is wrong.
func (th *thread) differences(f *frame, o rows.Outcome, d uint64) (out []Difference) {
	st, m := &th.t.state, &th.t.mem
	add := func(name string, bit int, got, want uint64) {
		if d>>bit&1 != 0 {
			out = append(out, Difference{name, got, want})
		}
	}
	if f == nil {
		return []Difference{{"ra", st.PC, 0}}
	}
	if o != rows.OK {
		return []Difference{{"ra", 0, f.ra}}
	}
	want := regs{pc: f.ra}
	want.r[stackPointer] = f.cfa
	for i, r := range saved {
		want.r[r] = f.saved[i]
	}
	if f.kind == interrupted {
		want, _ = f.intr.context(th.proc)
	}
	add("ra", general, st.PC, want.pc)
	value := func(i int) uint64 { v, _ := st.Get(arch.Slot(i), m); return v }
	add("cfa", stackPointer, value(stackPointer), want.sp())
	for i, v := range want.r[:general] {
		if i != stackPointer {
			add(host.RegName(arch.Reg(i)), i, value(i), v)
		}
	}
	return out
}

// should says what the row should be at the thread's instruction: where the truth lies now.
func (th *thread) should(f *frame) string {
	if f == nil {
		return "ra=u"
	}
	if f.kind != called {
		return ""
	}
	now := &th.regs
	cells := []string{fmt.Sprintf("cfa=%s%+d", host.RegName(host.SP), int64(f.cfa-now.sp())), "ra=" + th.place(f, f.ra)}
	for i, r := range saved {
		if now.r[r] != f.saved[i] {
			cells = append(cells, host.RegName(arch.Reg(r))+"="+th.place(f, f.saved[i]))
		}
	}
	return strings.Join(cells, "  ")
}

// place says where v is: in the frame, as near to the CFA as there is one; in a register; where a register points to; in the red zone.
func (th *thread) place(f *frame, v uint64) string {
	now := &th.regs
	sp := now.sp()
	find := func(lo, n uint64) (off uint64, ok bool) {
		b := make([]byte, min(n, maxDepth)&^7)
		if len(b) == 0 || readMemory(th.proc.pid, lo, b) < len(b) {
			return 0, false
		}
		for i := len(b) - 8; i >= 0; i -= 8 {
			if x := binary.LittleEndian.Uint64(b[i:]); x == v || v == f.ra && th.proc.unsigned(x) == v {
				return uint64(i), true
			}
		}
		return 0, false
	}
	if off, ok := find(sp, f.cfa-sp); ok {
		return fmt.Sprintf("c-%d", f.cfa-sp-off)
	}
	for i, x := range now.r[:general] {
		if x == v || i == link && th.proc.unsigned(x) == v {
			return host.RegName(arch.Reg(i))
		}
	}
	const reach = 256
	for i, x := range now.r[:general] {
		if off, ok := find(x, reach); ok && i != stackPointer {
			return fmt.Sprintf("[%s+%d]", host.RegName(arch.Reg(i)), off)
		}
	}
	if off, ok := find(sp-host.RedZone, host.RedZone); ok {
		return fmt.Sprintf("c-%d", f.cfa-sp+host.RedZone-off)
	}
	return "?"
}

// maxDepth bounds how much of a frame is searched, in bytes.
const maxDepth = 1 << 16
