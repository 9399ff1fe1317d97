package source

import "github.com/unspool/unspool/unwind"

// A World is the processes and threads of a recording over time, with their address spaces. Records go in in
// time order. It is for one goroutine.
type World struct {
	mods func(path, buildID string) *unwind.Module
}

// NewWorld returns an empty World. mods gives the module of an executable file or of a pseudo file such as
// "[vdso]" or "//anon"; buildID is in hex, and empty where the recording has none. It is called once for each
// distinct file, from Run's goroutine, and should load nothing yet.
func NewWorld(mods func(path, buildID string) *unwind.Module) *World { return &World{mods: mods} }

// Apply brings w up to date with a record of type MMAP, MMAP2, COMM, FORK or EXIT; others change nothing.
func (w *World) Apply(r *Record) {}

// Thread returns the name of a thread and its address space, which is never nil. An unknown thread is named ":TID",
// as perf does it.
func (w *World) Thread(pid, tid int32) (comm string, space *unwind.Space) { return "", nil }
