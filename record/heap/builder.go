package heap

import (
	"path/filepath"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source/heap"
	"github.com/unspool/unspool/unwind"
)

// A builder adds processes to a profile.
type builder struct {
	*profile.Builder
	mods   *modules.Set
	walker *unwind.Walker
	stops  map[place]unwind.Stop
}

// A place is in a module.
type place struct {
	m   *unwind.Module
	off uint64
}

// notRecorded is how frames were found: the library does not say.
const notRecorded = unwind.How(255)

func (b *builder) add(p *heap.Process) {
	maps := make([][]unwind.Mapping, len(p.Modules))
	for i, m := range p.Modules {
		path := m.Path
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		mod := b.mods.Module(path, m.BuildID)
		for _, s := range m.Segments {
			maps[i] = append(maps[i], unwind.Mapping{Lo: arch.Addr(s.Lo), Hi: arch.Addr(s.Hi), Off: s.Off, Module: mod})
		}
	}
	for i := range p.Stacks {
		s := &p.Stacks[i]
		x := profile.Sample{PID: p.PID, Comm: p.Comm, CPU: profile.NoCPU, HasUser: true, User: make([]unwind.Frame, len(s.Frames))}
		for k, f := range s.Frames {
			u := unwind.Frame{PC: arch.Addr(f.PC), How: notRecorded}
			if f.Module >= 0 {
				u.Mapping = find(maps[f.Module], u.Addr())
			}
			x.User[k] = u
		}
		x.Stop = b.stop(x.User, s)
		for event, a := range []heap.Amount{s.Alloc, s.InUse, s.Peak, s.Brief} { // in the order of profile.HeapEvents
			if a.Objects == 0 {
				continue
			}
			x.Event, x.Count, x.Period = event, a.Objects, a.Bytes
			b.Add(&x)
		}
	}
}

func find(maps []unwind.Mapping, a arch.Addr) *unwind.Mapping {
	for i := range maps {
		if m := &maps[i]; a >= m.Lo && a < m.Hi {
			return m
		}
	}
	return nil
}

// stop says why a stack ends: the rules of its last frame say whether there is a caller.
func (b *builder) stop(frames []unwind.Frame, s *heap.Stack) unwind.Stop {
	switch {
	case s.Lacks:
		return unwind.BadMemory
	case s.Cut:
		return unwind.DepthLimit
	case len(frames) == 0:
		return unwind.NoUserStack
	}
	last := &frames[len(frames)-1]
	if last.Mapping == nil {
		return unwind.NoInfo
	}
	at := place{last.Mapping.Module, last.Mapping.FileOff(last.Addr())}
	stop, ok := b.stops[at]
	if !ok {
		stop = b.ends(last)
		b.stops[at] = stop
	}
	return stop
}

// ends says whether the rules of the last frame's module say that it has no caller.
func (b *builder) ends(last *unwind.Frame) unwind.Stop {
	c := last.Mapping.Module.Code()
	if c == nil || c.Machine == nil {
		return unwind.NoInfo
	}
	return b.walker.End(c.Machine, unwind.NewSpace(*last.Mapping), last.Addr())
}
