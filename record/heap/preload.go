package heap

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/unspool/unspool/doctor"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source/heap"
	"github.com/unspool/unspool/unwind"
)

// preload records a command and its children.
func preload(ctx context.Context, p Plan, o Options) (*Result, error) {
	libraries, err := libraries(p.Target.Command[0])
	if err != nil {
		return nil, err
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2) // before there is a process that can be sent it
	defer signal.Stop(asked)
	r, err := start(p, libraries)
	if err != nil {
		return nil, err
	}
	defer r.close()
	status, note, err := r.waitEvery(ctx, p.Every, asked, func() {
		snapshot, _, err := r.profile(o.Mods, o.Names)
		if err == nil {
			err = o.Snapshot(snapshot)
		}
		if err != nil {
			o.Notify(fmt.Sprintf("a snapshot: %v", err))
		}
	})
	if err != nil {
		return nil, err
	}
	out := &Result{Status: status}
	if note != "" {
		out.EndNotes = []string{note}
	}
	if out.Profile, out.Notes, err = r.profile(o.Mods, o.Names); err != nil {
		return nil, err
	}
	out.Notes = append(out.Notes, o.Names.Notes()...)
	return out, nil
}

// libraries finds what is to be in front of a program's allocator.
func libraries(program string) ([]string, error) {
	library, err := doctor.FindHeap("")
	if err != nil {
		return nil, err
	}
	out := []string{library}
	if doctor.HasOperators(program) {
		out = append(out, filepath.Join(filepath.Dir(library), doctor.HeapNew))
	}
	return out, nil
}

// A command runs with the library, or has run.
type command struct {
	plan  Plan
	start time.Time
	dir   string
	cmd   *exec.Cmd
	done  chan error
}

// start starts the command with libraries in front of its allocator.
func start(p Plan, libraries []string) (*command, error) {
	path, err := exec.LookPath(p.Target.Command[0])
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
	inUse.Store(dir, nil)
	r := &command{plan: p, start: time.Now(), dir: dir, done: make(chan error, 1)}
	r.cmd = &exec.Cmd{Path: path, Args: p.Target.Command, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	r.cmd.Env = append(os.Environ(), "LD_PRELOAD="+strings.TrimSuffix(strings.Join(libraries, ":")+":"+os.Getenv("LD_PRELOAD"), ":"),
		"UNSPOOL_HEAP="+dir, "UNSPOOL_HEAP_PERIOD="+strconv.FormatUint(p.Period, 10))
	if p.Maps {
		r.cmd.Env = append(r.cmd.Env, "UNSPOOL_HEAP_MAPS=1")
	}
	if err := r.cmd.Start(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	go func() { r.done <- r.cmd.Wait() }()
	return r, nil
}

// close removes the library's files. Processes that still run go on.
func (r *command) close() error {
	inUse.Delete(r.dir)
	return os.RemoveAll(r.dir)
}

// inUse has the directories of the library's files.
var inUse sync.Map

// DiscardAll removes the library's files of all recordings that go on: the program ends at once.
func DiscardAll() {
	inUse.Range(func(dir, _ any) bool {
		os.RemoveAll(dir.(string))
		return true
	})
}

// patience is how long a command that was asked to end may go on.
const patience = 2 * time.Second

// wait waits until the command has ended, and returns the status that a shell would give it, and a note for people where something is unusual.
// When ctx ends, or the plan's duration, the command is asked to end; one that does not is left running.
func (r *command) wait(ctx context.Context) (status int, note string, err error) {
	over := ctx
	if r.plan.Target.Duration > 0 {
		var stop func()
		over, stop = context.WithTimeout(ctx, r.plan.Target.Duration)
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

// waitEvery is wait, and calls snapshot after each interval, unless that is 0, and whenever something arrives from asked.
func (r *command) waitEvery(ctx context.Context, interval time.Duration, asked <-chan os.Signal, snapshot func()) (status int, note string, err error) {
	var due <-chan time.Time
	if interval > 0 {
		t := time.NewTicker(interval)
		defer t.Stop()
		due = t.C
	}
	over := make(chan struct{})
	go func() {
		status, note, err = r.wait(ctx)
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

// profile makes a profile of what has been recorded so far, with an event for each of profile.HeapEvents, and notes for people.
func (r *command) profile(mods *modules.Set, n profile.Namer) (*profile.Profile, []string, error) {
	all, err := heap.Read(r.dir)
	if err != nil {
		return nil, nil, err
	}
	b := builder{Builder: profile.NewBuilder(), mods: mods, walker: unwind.NewWalker(0), stops: map[place]unwind.Stop{}}
	info := profile.Info{Every: r.plan.Period, Start: r.start, Duration: time.Since(r.start), Command: strings.Join(r.plan.Target.Command, " ")}
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
	return out, notes(all, r.plan.Target.Command[0]), nil
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
	if slices.ContainsFunc(all, func(p *heap.Process) bool { return p.Full }) {
		out = append(out, os.TempDir()+" had no room for all that the library records, and what came then is lost: TMPDIR names another directory")
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
