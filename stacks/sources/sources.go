// Package sources walks and names the stacks of a running process, a core file or a minidump, from its path or number to what package report writes.
package sources

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/corefile"
	"github.com/unspool/unspool/source/live"
	"github.com/unspool/unspool/source/minidump"
	"github.com/unspool/unspool/stacks"
	"github.com/unspool/unspool/unwind"
)

// Options say how stacks are walked, and what becomes of them. Mods, Namer and Write are needed.
type Options struct {
	stacks.Options
	Mods    *modules.Set // walk the stacks, and find the files
	Namer   *names.Namer // names the frames
	NoPause bool         // of a process: see live.Options
	Merge   bool         // threads with the same stack are one
	Raw     bool         // frames get no names

	Write func(*stacks.Process) error // gets the stacks, while the files are still open
}

// Of returns the walk of what name says: of a process if it is a PID, else of a minidump or a core file. exe replaces the path of a core's executable, and
// is "" for all others. Errors call settings by the names of the command's flags.
func Of(name, exe string, noPause bool) (walk func(Options) error, err error) {
	pid, err := strconv.Atoi(name)
	isPID := err == nil
	switch {
	case isPID && exe != "":
		return nil, fmt.Errorf("EXE needs a core file, and %d is a PID; the file with this name is ./%d", pid, pid)
	case isPID:
		return func(o Options) error { return Process(pid, o) }, nil
	case noPause:
		return nil, errors.New("--no-pause needs a PID")
	case !minidump.IsFile(name):
		return func(o Options) error { return Core(name, exe, o) }, nil
	case exe != "":
		return nil, errors.New("a minidump names its modules: it goes without EXE")
	}
	return func(o Options) error { return Minidump(name, o) }, nil
}

// Process walks a running process, which stops for as short a time as possible.
func Process(pid int, o Options) error {
	o.Mods.Files.Sysroot = "" // its files are not those of a process of this machine
	p, pause, err := live.Open(pid, live.Options{Mods: o.Mods.Module, Made: o.Mods.Made(arch.Host()), Image: o.Namer.Image, Files: o.Mods.Files, NoPause: o.NoPause})
	if err != nil {
		return err
	}
	paths := live.Paths(p)
	for _, m := range p.Space.Mappings() {
		o.Namer.Mapped(int32(p.PID), cmp.Or(paths[m.Module.Path], m.Module.Path))
	}
	return o.walk(p, func(s *stacks.Process) {
		s.Paths, s.Pause, s.Longest = paths, pause.Total, pause.Longest
	})
}

// Core walks the process of a core file. exe is the path of its executable, if the core's is not to be used; else "".
func Core(path, exe string, o Options) error {
	f, err := corefile.Open(path, corefile.Options{
		Mods: o.Mods.Module, Image: o.Namer.Image, Kept: o.Mods.Kept, Exe: exe, Files: o.Mods.Files,
	})
	if err != nil {
		return err
	}
	defer f.Close()
	return o.walk(&f.Process, func(s *stacks.Process) { s.Core = path })
}

// Minidump walks the process of a minidump. Notes name the missing files of modules that have frames.
func Minidump(path string, o Options) error {
	f, err := minidump.Open(path, minidump.Options{Mods: o.Mods.Module, Image: o.Namer.Image, Files: o.Mods.Files})
	if err != nil {
		return err
	}
	defer f.Close()
	return o.walk(&f.Process, func(s *stacks.Process) {
		s.Core = path
		shown := map[*unwind.Module]bool{}
		for _, t := range s.Threads {
			for _, f := range t.Frames {
				if f.Mapping != nil {
					shown[f.Mapping.Module] = true
				}
			}
		}
		s.Notes = append(s.Notes, f.Missing(func(m *unwind.Module) bool { return shown[m] })...)
	})
}

// walk walks the threads of p. add adds what else is known.
func (o *Options) walk(p *source.Process, add func(*stacks.Process)) error {
	s, err := stacks.Walk(p, o.Options)
	if err != nil {
		return err
	}
	add(s)
	if o.Merge {
		s.Merge()
	}
	if !o.Raw {
		s.Name(o.Namer)
	}
	return o.Write(s)
}
