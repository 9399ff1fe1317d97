package jit

import (
	"slices"
	"sync"
)

// Processes has the processes that make code, by PID. It is safe for concurrent use.
type Processes struct {
	unwind bool
	notify func(error)

	mu    sync.Mutex
	procs map[int32]*maker
	clock uint64 // counts the uses
}

// A maker is a process that has mapped a dump, or whose code has been asked for.
type maker struct {
	process Process
	dumps   []string
	code    *Code // nil: nobody has asked for it
	used    uint64
}

// maxProcesses is how many processes are known: the one that nobody has asked for longest is forgotten.
const maxProcesses = 1 << 12

// NewProcesses returns the processes of a recording, or of a machine.
func NewProcesses() *Processes { return &Processes{procs: map[int32]*maker{}} }

// NewUnwindProcesses is NewProcesses, with code that OpenUnwind opens.
func NewUnwindProcesses(notify func(error)) *Processes {
	return &Processes{procs: map[int32]*maker{}, unwind: true, notify: notify}
}

// maker returns the process of a PID, which is new if none is known. It needs mu.
func (p *Processes) maker(pid int32) *maker {
	m := p.procs[pid]
	if m == nil {
		if len(p.procs) >= maxProcesses {
			p.forget()
		}
		m = &maker{process: Seen(int(pid))}
		p.procs[pid] = m
	}
	p.clock++
	m.used = p.clock
	return m
}

// forget forgets the process that was not used for the longest time.
func (p *Processes) forget() {
	var last int32
	oldest := uint64(Always)
	for pid, m := range p.procs {
		if m.used < oldest {
			last, oldest = pid, m.used
		}
	}
	p.procs[last].close()
	delete(p.procs, last)
}

// close forgets what was read.
func (m *maker) close() {
	if m.code != nil {
		m.code.Close()
		m.code = nil
	}
}

// Mapped tells of a file that a process has mapped: that of a dump tells where it is.
func (p *Processes) Mapped(pid int32, path string) {
	if !IsDump(path) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.maker(pid)
	if !slices.Contains(m.dumps, path) && len(m.dumps) < maxDumps {
		m.dumps = append(m.dumps, path)
		m.close() // it knows no more dumps than there were
	}
}

// Has says whether a process has mapped a dump.
func (p *Processes) Has(pid int32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.procs[pid]
	return m != nil && len(m.dumps) > 0
}

// Code returns the code of a process; nil where that is for unwinding, and the process has mapped no dump.
func (p *Processes) Code(pid int32) *Code {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.procs[pid]; p.unwind && (m == nil || len(m.dumps) == 0) {
		return nil
	}
	m := p.maker(pid)
	if m.code == nil && p.unwind {
		m.code = OpenUnwind(m.process, m.dumps, p.notify)
	} else if m.code == nil {
		m.code = Open(m.process, m.dumps)
	}
	return m.code
}

// Notes says what is wrong with files.
func (p *Processes) Notes() (out []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.procs {
		if m.code == nil {
			continue
		}
		if note := m.code.Note(); note != "" {
			out = append(out, note)
		}
	}
	return out
}
