package names

import (
	"slices"
	"strings"
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/symbol/jit"
)

// maxProcesses limits of how many processes dumps are remembered; maxDumps, how many of one process.
const (
	maxProcesses = 1 << 12
	maxDumps     = 8
)

// made names code that processes made.
type made struct {
	mu    sync.Mutex
	dumps map[int32][]string // paths, by PID
	code  map[int32]*jit.Code
}

func newMade() made { return made{dumps: map[int32][]string{}, code: map[int32]*jit.Code{}} }

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
	case r.PID > 0 && jit.IsDump(string(r.Filename)):
		n.made.addDump(r.PID, string(r.Filename))
	case r.PID == -1:
		if name, ok := strings.CutPrefix(string(r.Filename), "[kernel.kallsyms]"); ok && (name == "_text" || name == "_stext") && r.Pgoff != 0 {
			n.symbols.KernelAt(r.Pgoff, name)
		}
	}
}

func (c *made) addDump(pid int32, path string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d := c.dumps[pid]; !slices.Contains(d, path) && len(c.dumps) < maxProcesses && len(d) < maxDumps {
		c.dumps[pid] = append(d, path)
		delete(c.code, pid) // which knows no more dumps than there were
	}
}

// name names addresses of code that process pid made.
func (c *made) name(pid int32, addrs []uint64, names []profile.Name) {
	c.mu.Lock()
	code := c.code[pid]
	if code == nil {
		if len(c.code) >= maxProcesses {
			clear(c.code) // it is read again when it is wanted
		}
		code = jit.Open(int(pid), c.dumps[pid])
		c.code[pid] = code
	}
	c.mu.Unlock()
	as := make([]arch.Addr, len(addrs))
	for i, a := range addrs {
		as[i] = arch.Addr(a)
	}
	for i, f := range code.Lookup(as, jit.Always) {
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
func (c *made) notes() (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, code := range c.code {
		if note := code.Note(); note != "" {
			out = append(out, note)
		}
	}
	return out
}
