// Package heap records what a program and its children allocate: it runs the program with libunspool_heap.so in front of its allocator, and makes
// a profile of the files that the library writes (package source/heap). docs/HEAP.md says how the library samples.
package heap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source/heap"
	"github.com/unspool/unspool/unwind"
)

// DefaultPeriod is how many bytes are allocated between samples, on average.
const DefaultPeriod = 512 << 10

// A Plan says what to record.
type Plan struct {
	Command  []string
	Preload  []string      // paths of libunspool_heap.so and what goes with it
	Period   uint64        // bytes between samples, on average; 0: all allocations are recorded
	Duration time.Duration // 0: as long as the command runs
}

// A Recording is a command that runs, or has run.
type Recording struct {
	plan  Plan
	start time.Time
	dir   string
	cmd   *exec.Cmd
	done  chan error
}

// Start starts the command.
func Start(p Plan) (*Recording, error) {
	path, err := exec.LookPath(p.Command[0])
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "unspool-heap-")
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	r := &Recording{plan: p, start: time.Now(), dir: dir, done: make(chan error, 1)}
	r.cmd = &exec.Cmd{Path: path, Args: p.Command, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	r.cmd.Env = append(os.Environ(), "LD_PRELOAD="+strings.TrimSuffix(strings.Join(p.Preload, ":")+":"+os.Getenv("LD_PRELOAD"), ":"),
		"UNSPOOL_HEAP="+dir, "UNSPOOL_HEAP_PERIOD="+strconv.FormatUint(p.Period, 10))
	if err := r.cmd.Start(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	go func() { r.done <- r.cmd.Wait() }()
	return r, nil
}

// Close removes the library's files. Processes that still run go on.
func (r *Recording) Close() error { return os.RemoveAll(r.dir) }

// patience is how long a command that was asked to end may go on.
const patience = 2 * time.Second

// Wait waits until the command has ended, and returns the status that a shell would give it, and a note for people where something is unusual.
// When ctx ends, or the plan's duration, the command is asked to end; one that does not is left running.
func (r *Recording) Wait(ctx context.Context) (status int, note string, err error) {
	over := ctx
	if r.plan.Duration > 0 {
		var stop func()
		over, stop = context.WithTimeout(ctx, r.plan.Duration)
		defer stop()
	}
	select {
	case err = <-r.done:
	case <-over.Done():
		r.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err = <-r.done:
			if ctx.Err() == nil {
				return 0, "", nil
			}
		case <-time.After(patience):
			return 0, "the command is still running", nil
		}
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, "", err
	}
	ws, _ := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case !ws.Signaled():
		return ws.ExitStatus(), "", nil
	case ctx.Err() == nil:
		note = fmt.Sprintf("a signal ended the command: %v", ws.Signal())
	}
	return 128 + int(ws.Signal()), note, nil
}

// WaitEvery is Wait, and calls snapshot after each interval, unless that is 0, and whenever something arrives from asked.
func (r *Recording) WaitEvery(ctx context.Context, interval time.Duration, asked <-chan os.Signal, snapshot func()) (status int, note string, err error) {
	var due <-chan time.Time
	if interval > 0 {
		t := time.NewTicker(interval)
		defer t.Stop()
		due = t.C
	}
	over := make(chan struct{})
	go func() {
		status, note, err = r.Wait(ctx)
		close(over)
	}()
	for {
		select {
		case <-over:
			return status, note, err
		case <-due:
		case <-asked:
		}
		snapshot()
	}
}

// Profile makes a profile of what has been recorded so far, with an event for each of profile.HeapEvents, and notes for people.
func (r *Recording) Profile(mods *modules.Set, n profile.Namer) (*profile.Profile, []string, error) {
	all, err := heap.Read(r.dir)
	if err != nil {
		return nil, nil, err
	}
	b := builder{Builder: profile.NewBuilder(), mods: mods, walker: unwind.NewWalker(0), stops: map[place]unwind.Stop{}}
	info := profile.Info{Every: r.plan.Period, Start: r.start, Duration: time.Since(r.start), Command: strings.Join(r.plan.Command, " ")}
	info.Host, _ = os.Hostname()
	for _, e := range profile.HeapEvents {
		info.Events = append(info.Events, profile.HeapEvent(e))
	}
	for _, p := range all {
		b.add(p)
		info.Loss.Samples += p.Lost + p.Nested
		info.Loss.Damaged += p.Damaged
	}
	out := b.Profile(n, info)
	begin(out)
	return out, notes(all, r.plan.Command[0]), nil
}

// begin lets stacks begin at what asked for memory, not in C++'s operator new.
func begin(p *profile.Profile) {
	for i := range p.Stacks {
		s := &p.Stacks[i]
		for len(s.Frames) > 1 && strings.HasPrefix(p.Funcs[p.Locs[s.Frames[0]].Func].Name, "operator new") {
			s.Frames = s.Frames[1:]
		}
	}
}

// notes says what is to be known of a recording's processes.
func notes(all []*heap.Process, command string) (out []string) {
	if len(all) == 0 {
		return []string{command + " did not load the library: it is linked statically, or gains privileges, or is for another machine"}
	}
	foreign := 0
	for _, p := range all {
		if p.Foreign {
			if foreign++; foreign == 1 {
				out = append(out, filepath.Base(p.Path)+" has an allocator of its own: only allocations that do not go through it are recorded")
			}
		}
	}
	return out
}

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
		x.Stop = b.stop(x.User, s.Cut)
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
func (b *builder) stop(frames []unwind.Frame, cut bool) unwind.Stop {
	if cut {
		return unwind.DepthLimit
	}
	if len(frames) == 0 {
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
