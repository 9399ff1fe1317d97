// Package shadow executes a program step by step under ptrace(2), and keeps a shadow stack of its calls, returns, signals and jumps out of
// functions. At each instruction, it compares the registers recovered by the unwind tables with the truth: the return address, the CFA, and the
// callee-saved registers at the call.
//
// A command goes in; counts by module come out, and findings: rows that recover something else. The truth comes from the program's instructions
// and registers alone, never from tables. Where it is not known, nothing is compared, and that is counted: for instance the caller of a function
// that was active on a stack before that stack was first seen. A register that a row declares lost is not wrong. Code without a row is only
// counted, and so is code where every walk ends, whatever its row.
//
// The program is for x86-64 or AArch64, as this one is. It runs on one core together with the tracer, ten thousand times slower than by itself.
// Otherwise it behaves as usual, with four exceptions: time, its affinity, its own handlers of SIGTRAP, and stops by job control, which it does
// not obey. Vector registers are not compared, and on AArch64 nothing is within a loop of exclusive loads and stores, which runs as a whole.
package shadow

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/ptrace"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/symbol"
)

// Options say what to compare, and for how long. The zero value compares everything.
type Options struct {
	Modules *modules.Set // where tables come from; nil: modules.New()
	Names   *symbol.Resolver

	Module   *regexp.Regexp // compare only where the module's path matches
	Function *regexp.Regexp // compare only where the function's name matches
	Thread   int            // compare only this one, counted from 1 in the order in which threads of all processes start

	Entry bool   // begin at a program's entry point: the dynamic linker has done its work then, by itself
	Every uint64 // compare at every n-th instruction only
	Steps uint64 // after so many instructions let the program run on by itself; 0: never
	End   bool   // with Steps: kill it instead, and all that it has started

	// Each is called at every instruction whose callers are known, of those that Every and Thread select; may be nil.
	Each func(*Moment)

	Progress func(steps, compared uint64) // called every few thousand steps; may be nil
}

// A Result is the outcome of an execution.
type Result struct {
	Steps     uint64 // instructions executed
	Compared  uint64
	Threads   int
	Processes int
	Modules   []*Module  // in the order of their first execution
	Findings  []*Finding // in the order in which they were found
	Exit      unix.WaitStatus
	Stopped   bool    // the limit of steps was reached
	Cut       bool    // the context was done before the command was
	Foreign   bool    // some process had 32-bit code, and was not followed
	Errors    []error // tables that could not be read, or not whole
}

// A Module has the counts for the code of one file.
type Module struct {
	Path     string
	Steps    uint64 // instructions executed
	Compared uint64
	NoInfo   uint64 // without a row
	Unknown  uint64 // with a row, but the truth is not known
	Wrong    int    // rows
}

// Run executes the command, which is not started yet, and waits until it and all that it has started have ended. When ctx is done, it kills
// them, and returns the results so far with ctx's error. Nothing that it starts outlives this process. The Result is never nil. Safe for
// concurrent use.
func Run(ctx context.Context, cmd *exec.Cmd, o Options) (*Result, error) {
	if host == nil {
		return &Result{}, errors.New("execution step by step is for x86-64 and AArch64")
	}
	if o.Modules == nil {
		o.Modules = modules.New()
		defer o.Modules.Close()
	}
	if o.Names == nil {
		o.Names = symbol.New(symbol.Options{})
		defer o.Names.Close()
	}
	var r *Result
	var err error
	ptrace.Do(func() { // on a thread that is pinned, and waits for all its children
		t := newTracer(o)
		if err = t.start(cmd); err == nil {
			err = t.loop(ctx)
		}
		if err != nil {
			t.end()
		}
		if cmd.Process != nil {
			cmd.Wait() // only for what copies its output: the process itself has been waited for
		}
		r = t.result()
	})
	r.Cut = err != nil && ctx.Err() != nil
	return r, err
}

// start starts the command, stopped at its first instruction, on the core that this thread runs on.
func (t *tracer) start(cmd *exec.Cmd) error {
	pin()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Ptrace = true
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	var ws unix.WaitStatus
	if _, err := unix.Wait4(pid, &ws, unix.WALL, nil); err != nil {
		return fmt.Errorf("wait for %s: %w", cmd.Path, err)
	}
	if !ws.Stopped() {
		return fmt.Errorf("%s ended before its first instruction", cmd.Path)
	}
	const options = optExitKill | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC
	if err := unix.PtraceSetOptions(pid, options); err != nil {
		cmd.Process.Kill()
		return fmt.Errorf("ptrace %s: %w", cmd.Path, err)
	}
	t.command = pid
	th := t.add(pid, &process{t: t, pid: pid, mem: reader(pid)})
	if err := th.begin(); err != nil {
		return fmt.Errorf("%s: %w", cmd.Path, err)
	}
	return th.resume(0)
}

// runs counts executions, so that those at one time are on different cores.
var runs atomic.Uint32

// pin makes this thread, and what it starts, stay on one core: a step costs a third then. Where that is refused it takes longer.
func pin() {
	var may unix.CPUSet
	if unix.SchedGetaffinity(0, &may) != nil || may.Count() == 0 {
		return
	}
	n := (int(runs.Add(1)) + os.Getpid()) % may.Count()
	for cpu := range 64 * len(may) {
		if !may.IsSet(cpu) {
			continue
		}
		if n == 0 {
			var one unix.CPUSet
			one.Set(cpu)
			unix.SchedSetaffinity(0, &one)
			return
		}
		n--
	}
}

// result gathers what was found.
func (t *tracer) result() *Result {
	r := &t.res
	r.Steps, r.Compared, r.Findings = t.steps, t.compared, t.findings
	for _, m := range t.modules {
		if m.Steps > 0 {
			r.Modules = append(r.Modules, &m.Module)
		}
	}
	for _, f := range r.Findings {
		f.Known = known(f)
	}
	r.Errors = append(r.Errors, t.opt.Modules.Errors()...)
	return r
}
