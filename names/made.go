package names

import (
	"strings"
	"sync/atomic"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/symbol/jit"
)

// made names code that processes made.
type made struct {
	procs     *jit.Processes
	elsewhere bool        // they ran on another machine: files at their paths are not theirs
	asked     atomic.Bool // elsewhere, and somebody has asked for names
}

func newMade(elsewhere bool) *made { return &made{procs: jit.NewProcesses(), elsewhere: elsewhere} }

// Observe takes three facts from records: where a process describes the code it makes, where the kernel lay, and what code the kernel made. It
// must get every record of the stream, in order.
func (n *Namer) Observe(r *source.Record) {
	if r.Type == source.RecordKsymbol {
		n.code.observe(r)
		return
	}
	if r.Type != source.RecordMmap && r.Type != source.RecordMmap2 {
		return
	}
	switch {
	case r.PID > 0:
		n.Mapped(r.PID, string(r.Filename))
	case r.PID == -1:
		if name, ok := strings.CutPrefix(string(r.Filename), "[kernel.kallsyms]"); ok && (name == "_text" || name == "_stext") && r.Pgoff != 0 {
			n.symbols.KernelAt(r.Pgoff, name)
		}
	}
}

// Mapped tells of a file that a process has mapped, as Observe does: a dump says what code the process makes.
func (n *Namer) Mapped(pid int32, path string) { n.made.procs.Mapped(pid, path) }

// name names addresses of code that process pid made.
func (c *made) name(pid int32, addrs []uint64, names []profile.Name) {
	if c.elsewhere {
		c.asked.Store(true)
		return
	}
	as := make([]arch.Addr, len(addrs))
	for i, a := range addrs {
		as[i] = arch.Addr(a)
	}
	for i, f := range c.procs.Code(pid).Lookup(as, jit.Always) {
		if f.Name == "" {
			continue
		}
		names[i] = profile.Name{Func: f.Name, Linkage: f.Name, Start: uint64(f.Start)}
		if f.File != "" {
			names[i].Source = []profile.Source{{File: f.File, Line: f.Line}}
		}
	}
}

// notes says what was not read of what processes wrote down.
func (c *made) notes() []string {
	if c.asked.Load() {
		return []string{"perf maps and jitdump files of code that processes made are on the machine of the recording, which is another one"}
	}
	return c.procs.Notes()
}
