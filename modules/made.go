package modules

import (
	"fmt"
	"runtime"

	"github.com/unspool/unspool/arch"
	rules "github.com/unspool/unspool/format/jit"
	"github.com/unspool/unspool/symbol/jit"
	"github.com/unspool/unspool/unwind"
)

// Made finds the rules of code that processes make while they run, where they write down its unwind information: in dumps for perf inject
// (package symbol/jit). It is safe for concurrent use.
type Made struct {
	set     *Set
	machine *arch.Machine
	procs   *jit.Processes
}

// Made returns a Made for processes of a machine.
func (s *Set) Made(m *arch.Machine) *Made {
	return &Made{set: s, machine: m, procs: jit.NewUnwindProcesses(s.failed)}
}

// Mapped tells of a file that a process has mapped: that of a dump tells where it is.
func (m *Made) Mapped(pid int32, path string) { m.procs.Mapped(pid, path) }

// Module returns the module of memory that is no file's. Each call makes a new one. Offsets in it are addresses.
func (m *Made) Module(pid int32, path string) *unwind.Module {
	mod := unwind.NewModule(path, "", func(*unwind.Module) *unwind.Code {
		process := jit.Seen(int(pid))
		charge := process.Charge()
		r := rules.New(m.machine, charge.Take, func(err error) { m.set.failed(fmt.Errorf("code made by process %d: %w", pid, err)) })
		runtime.AddCleanup(r, (*jit.Charge).Release, charge)
		return &unwind.Code{
			Machine: m.machine, Stepper: latest{r},
			Vaddr: func(off uint64) (arch.Vaddr, bool) { return arch.Vaddr(off), true },
			Made: func(v arch.Vaddr, time uint64) (uint32, bool) {
				code := m.procs.Code(pid)
				if code == nil {
					return 0, false
				}
				if time == 0 {
					time = jit.Always
				}
				u, ok := code.Unwinding(arch.Addr(v), time)
				if !ok {
					return 0, false
				}
				return r.Find(rules.Record{EHFrame: u.EHFrame, Size: u.Size, Big: u.Big}, u.Start, uint64(v)-uint64(u.Start))
			},
		}
	})
	mod.PID = pid
	return mod
}

// latest is the Stepper of code whose rules have times: they are found through unwind.Code.Made only.
type latest struct{ *rules.Rules }

// Find implements rows.Stepper.
func (latest) Find(arch.Vaddr) (uint32, bool) { return 0, false }
