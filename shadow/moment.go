package shadow

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/unwind"
)

// A Moment is a thread before an instruction, and the truth about its callers. It is valid until Options.Each returns.
type Moment struct {
	PC      uint64
	Regs    [arch.NumSlots]uint64 // the general registers, by slot
	Space   *unwind.Space         // of the process: the same until its mappings change
	Callers []Caller              // innermost first
	Whole   bool                  // the last caller has none; else the truth about its caller is not known

	pid int
}

// A Caller is an active function's caller, or code that a signal interrupted.
type Caller struct {
	PC  uint64 // where it goes on
	CFA uint64 // its stack pointer, when the call has returned
}

// Read reads the thread's memory from addr on, and returns how many bytes it could read. b must not be empty.
func (m *Moment) Read(addr uint64, b []byte) int { return readMemory(m.pid, addr, b) }

// Read8 implements rows.Reader.
func (m *Moment) Read8(addr uint64) (uint64, bool) { return reader(m.pid).Read8(addr) }

// observe tells Options.Each of the thread, if its callers are known: at least one of them, or that there is none.
func (th *thread) observe() {
	f, now := th.cur.top(), &th.regs
	if f == nil && !th.cur.root || f != nil && (f.kind != called || now.sp() > f.cfa) {
		return
	}
	if f != nil && link < 0 && !th.proc.holds(f.cfa-host.CallPush, f.ra) {
		return // it goes on elsewhere, or no function was called: call 1f; 1: pop
	}
	m := &th.t.moment
	m.PC, m.pid, m.Space, m.Callers = now.pc, th.proc.pid, th.proc.addressSpace(), m.Callers[:0]
	m.Whole = th.cur.root
	copy(m.Regs[:], now.r[:general])
	for i := len(th.cur.frames) - 1; i >= 0; i-- {
		f := &th.cur.frames[i]
		if f.kind == unknown {
			m.Whole = false
			break
		}
		m.Callers = append(m.Callers, Caller{f.ra, f.cfa})
		if f.kind == interrupted && f.intr.stack != th.cur.id {
			m.Whole = false
			break
		}
	}
	th.t.opt.Each(m)
}

// addressSpace returns the executable mappings as a walker wants them.
func (p *process) addressSpace() *unwind.Space {
	if p.space == nil {
		var maps []unwind.Mapping
		for i := range p.regions {
			if p.regions[i].mod != nil {
				maps = append(maps, p.regions[i].mapping)
			}
		}
		p.space = unwind.NewSpace(maps...)
	}
	return p.space
}
