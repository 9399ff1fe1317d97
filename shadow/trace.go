package shadow

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/internal/ptrace"
	image "github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/unwind"
)

// A tracer follows a command and all that it starts.
type tracer struct {
	opt     Options
	command int // the process that was started
	threads map[int]*thread
	early   map[int]bool // new threads that have stopped before their parent told of them
	res     Result

	byPath   map[string]*module
	modules  []*module // in the order of their first appearance
	nowhere  *module   // code in no file
	findings []*Finding
	byRow    map[rowKey]*Finding

	steps     uint64
	compared  uint64
	lastStack uint64 // id
	free      bool   // the limit is reached: programs run on by themselves

	state rows.State
	mem   rows.Memory

	moment Moment

	mu   sync.Mutex // for pids
	pids map[int]bool
}

// A module is a file that code was executed of.
type module struct {
	Module
	code *unwind.Module
	file bool // it is an ELF file
	isGo bool
	ref  *rows.Table // what the file says, for the first finding
}

func newTracer(o Options) *tracer {
	t := &tracer{opt: o, threads: map[int]*thread{}, early: map[int]bool{}, byPath: map[string]*module{}, byRow: map[rowKey]*Finding{}, pids: map[int]bool{}}
	t.nowhere = &module{Module: Module{Path: "[no file]"}}
	t.modules = append(t.modules, t.nowhere)
	return t
}

// module returns the module of a file, as a process sees it.
func (t *tracer) module(path string) *module {
	m := t.byPath[path]
	if m == nil {
		m = &module{Module: Module{Path: path}, code: t.opt.Modules.Module(path, "")}
		if img, err := image.OpenMapped(path); err == nil && img != nil {
			m.file = true
			_ = image.Guard(func() error {
				m.isGo = format.IsGo(img)
				return nil
			})
			if path != "[vdso]" {
				img.Close()
			}
		}
		t.byPath[path] = m
		t.modules = append(t.modules, m)
	}
	return m
}

// A thread is one of a program's, stopped or running.
type thread struct {
	t        *tracer
	tid      int
	number   int // in the order of beginning, from 1
	proc     *process
	cur      *stack
	regs     regs // as they were at the last stop
	site     *site
	sig      unix.Signal // that was delivered at the last stop
	new      bool        // its first stop has not come yet
	brk      *breakpoint // where it begins to be followed; nil: it is
	stepping bool        // it was let go for one instruction, or
	breaks   int         // hardware breakpoints of a thread that runs from an exclusive load to behind the store

	win    []byte // memory below the CFA; nil: not read
	winAt  uint64
	winBuf [window]byte
}

// add makes a thread known.
func (t *tracer) add(tid int, p *process) *thread {
	t.res.Threads++
	th := &thread{t: t, tid: tid, number: t.res.Threads, proc: p}
	t.threads[tid] = th
	if tid == p.pid {
		t.res.Processes++
		t.mu.Lock()
		t.pids[tid] = true
		t.mu.Unlock()
	}
	return th
}

// growth is how large a process's first stack can become, in bytes: the usual limit.
const growth = 8 << 20

// ownStack is how far from the end of its mapping a thread begins whose stack is all there is in that, in bytes: above are its
// thread-local variables. Go's threads begin anywhere among other stacks.
const ownStack = 1 << 16

// begin starts a thread's process anew, at the first instruction after exec.
func (th *thread) begin() error {
	p := th.proc
	p.sites, p.stacks, p.regions, p.foreign = map[uint64]*site{}, nil, nil, false
	if err := p.readMaps(); err != nil {
		return err
	}
	if err := getRegs(th.tid, &th.regs); err != nil {
		return err
	}
	th.cur = p.newStack(th.regs.sp())
	th.cur.root = true
	if r := p.region(th.regs.sp()); r != nil {
		th.cur.region = span{r.hi - growth, r.hi}
	}
	p.foreign, p.signs = th.regs.foreign, ptrace.Signs(th.tid)
	th.t.res.Foreign = th.t.res.Foreign || p.foreign
	if th.t.opt.Entry && !p.foreign && !th.t.free {
		if err := th.breakAtEntry(); err != nil || th.brk != nil {
			return err
		}
	}
	th.look()
	return nil
}

// look finds the instruction that comes next, and compares there.
func (th *thread) look() {
	t := th.t
	th.site = th.proc.site(th.regs.pc)
	t.steps++
	th.site.mod.Steps++
	if (t.opt.Thread == 0 || t.opt.Thread == th.number) && (t.opt.Every < 2 || t.steps%t.opt.Every == 0) {
		th.check()
		if t.opt.Each != nil {
			th.observe()
		}
	}
}

// resume lets the thread go on.
func (th *thread) resume(sig unix.Signal) error {
	th.sig = sig
	request := uintptr(ptraceSingleStep)
	th.stepping = !th.t.free && !th.proc.foreign && th.brk == nil
	if !th.stepping {
		request = ptraceCont
	} else if th.site.kind == exclusive && sig == 0 {
		switch ok, err := th.pass(); {
		case err != nil:
			return err
		case ok:
			request = ptraceCont
		}
	}
	return resume(request, th.tid, sig)
}

// loop runs until all threads are gone.
func (t *tracer) loop(ctx context.Context) error {
	defer context.AfterFunc(ctx, t.kill)()
	th := t.threads[t.command]
	for {
		// An instruction that does not enter the kernel is over soon.
		block := len(t.threads) > 1 || th == nil || !th.stepping || th.site.kind == kernel || th.breaks > 0 || th.sig != 0
		tid, ws, err := wait(block)
		if errors.Is(err, unix.ECHILD) {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("wait: %w", err)
		}
		if th == nil || th.tid != tid {
			th = t.threads[tid]
		}
		switch {
		case ws.Exited() || ws.Signaled():
			t.gone(tid, ws)
			th = nil
			err = t.adopt()
		case th == nil:
			t.early[tid] = true // its parent's stop comes soon, and lets it go
		default:
			if err = t.stopped(th, ws); err != nil && th.dead() {
				err = nil
			}
		}
		if err != nil {
			return fmt.Errorf("thread %d: %w", tid, err)
		}
		if ctx.Err() != nil {
			t.kill() // those that have begun since
		}
	}
}

// end kills what is left after an error.
func (t *tracer) end() {
	t.kill()
	for {
		tid, ws, err := wait(true)
		if err != nil {
			return
		}
		if ws.Stopped() {
			unix.RawSyscall(unix.SYS_TKILL, uintptr(tid), uintptr(unix.SIGKILL), 0)
		}
	}
}

// adopt lets new threads go whose parents may have been killed before they could tell of them.
func (t *tracer) adopt() error {
	for tid := range t.early {
		delete(t.early, tid)
		p := &process{t: t, pid: tid, mem: reader(tid), sites: map[uint64]*site{}, stale: true}
		th := t.add(tid, p)
		th.cur = p.newStack(0)
		if err := th.first(); err != nil {
			return err
		}
	}
	return nil
}

// first lets a new thread begin. That it has been killed meanwhile is no error.
func (th *thread) first() error {
	err := th.follow()
	if err == nil {
		err = th.resume(0)
	}
	if err != nil && th.dead() {
		return nil
	}
	return err
}

// dead says whether a thread that was stopped has been killed meanwhile. That is reported next.
func (th *thread) dead() bool {
	var r regs
	return errors.Is(getRegs(th.tid, &r), unix.ESRCH)
}

// gone forgets a thread that has ended.
func (t *tracer) gone(tid int, ws unix.WaitStatus) {
	if tid == t.command {
		t.res.Exit = ws
	}
	t.mu.Lock()
	delete(t.pids, tid)
	t.mu.Unlock()
	delete(t.threads, tid)
	delete(t.early, tid)
}

// kill ends all processes. Safe for concurrent use.
func (t *tracer) kill() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for pid := range t.pids {
		unix.Kill(pid, unix.SIGKILL)
	}
}

// stopped handles a stop and resumes the thread.
func (t *tracer) stopped(th *thread, ws unix.WaitStatus) error {
	sig := ws.StopSignal()
	if th.breaks > 0 {
		if err := th.setBreaks(nil); err != nil {
			return err
		}
	}
	switch event := int(ws) >> 16; {
	case event == unix.PTRACE_EVENT_EXEC:
		if err := t.exec(th); err != nil {
			return err
		}
		return th.resume(0)
	case event == unix.PTRACE_EVENT_CLONE, event == unix.PTRACE_EVENT_FORK, event == unix.PTRACE_EVENT_VFORK:
		if err := t.forked(th, event); err != nil {
			return err
		}
		return th.resume(0)
	case event != 0:
		return th.resume(0)
	case th.new:
		th.new = false
		if err := th.follow(); err != nil {
			return err
		}
		if sig == unix.SIGSTOP || sig == unix.SIGTRAP {
			sig = 0
		}
		return th.resume(sig)
	}
	if th.brk != nil {
		if begun, err := th.atEntry(sig); err != nil || !begun {
			return err
		}
		return th.resume(0)
	}
	if t.free || th.proc.foreign {
		if _, _, ok := stopCode(th.tid); !ok || sig == unix.SIGTRAP && th.stepping && !th.ownTrap() {
			sig = 0
		}
		return th.resume(sig)
	}
	var now regs
	if err := getRegs(th.tid, &now); err != nil {
		return err
	}
	if sig == unix.SIGTRAP && !th.ownTrap() {
		th.stepped(&now)
		return th.resume(0)
	}
	// A signal, before it is delivered. The step may have been made.
	if now.pc != th.regs.pc || now.sp() != th.regs.sp() {
		th.stepped(&now)
	}
	th.regs = now
	if isStop(sig) {
		if _, _, ok := stopCode(th.tid); !ok {
			return th.resume(0) // the group stop itself, after the signal's delivery
		}
	}
	return th.resume(sig)
}

func isStop(s unix.Signal) bool {
	return s == unix.SIGSTOP || s == unix.SIGTSTP || s == unix.SIGTTIN || s == unix.SIGTTOU
}

// ownTrap says whether a SIGTRAP is the program's own, not that of a step.
func (th *thread) ownTrap() bool {
	if th.site.kind != trap && th.site.kind != kernel {
		return false
	}
	const user, tkill = 0, -6 // SI_USER, SI_TKILL
	code, from, ok := stopCode(th.tid)
	// AArch64's kernels say SI_USER, of nobody, where a step has made a system call.
	return ok && (code == user && from != 0 || code == tkill || slices.Contains(host.Trap.Codes, code))
}

// stepped follows what the last step has done, and looks at what comes next.
func (th *thread) stepped(now *regs) {
	t := th.t
	if th.handles(now) {
		th.win = nil
		th.entered(&th.regs, now)
	} else {
		th.advance(now)
	}
	th.sig = 0
	th.regs = *now
	th.look()
	if t.steps%4096 == 0 && t.opt.Progress != nil {
		t.opt.Progress(t.steps, t.compared)
	}
	if !t.free && t.opt.Steps > 0 && t.steps >= t.opt.Steps {
		t.free, t.res.Stopped = true, true
		if t.opt.End {
			t.kill()
		}
	}
}

// handles says whether the first instruction of a handler of the signal that was delivered comes next: the signal is its first argument, and
// the kernel has saved the stack pointer of the thread.
func (th *thread) handles(now *regs) bool {
	if th.sig == 0 || now.r[host.Syscall.Args[0]] != uint64(th.sig) || now.sp() == th.regs.sp() {
		return false
	}
	return th.proc.holds(now.sp()+host.CallPush+uint64(host.Signal.Saved[stackPointer]), th.regs.sp())
}

// advance follows one instruction.
func (th *thread) advance(now *regs) {
	s, b := th.site, &th.regs
	if s.writes {
		th.win = nil
	}
	sp, was := now.sp(), b.sp()
	if now.pc == b.pc && sp == was {
		return // a string instruction goes on, or nothing has happened
	}
	switch s.kind {
	case plain:
		if sp > th.cur.base {
			th.cur.base = sp
		}
	case call:
		if sp == was-host.CallPush {
			th.called(b, &s.inst)
		}
	case ret:
		if link >= 0 {
			th.left(now)
		} else {
			th.cur.popTo(sp)
		}
		th.cur.base = max(th.cur.base, sp)
	case jump:
		if link >= 0 {
			th.left(now)
		} else {
			th.cur.popTo(sp) // out of all that is below: longjmp
		}
	case setSP:
		th.moved(was, sp)
	case kernel:
		switch {
		case b.call() == unix.SYS_RT_SIGRETURN:
			th.returned(b, now)
		case th.proc.changesMaps(b):
			th.proc.stale = true
		}
	case pushf:
		clearTrapFlag(th.proc.pid, sp)
	}
}

// forked makes the child of a fork, vfork or clone known. It has the same stack, if the same memory or a copy of it is there, or
// another.
func (t *tracer) forked(th *thread, event int) error {
	msg, err := unix.PtraceGetEventMsg(th.tid)
	if err != nil {
		return err
	}
	tid, p := int(msg), th.proc
	if t.threads[tid] != nil {
		return nil // adopted
	}
	if event != unix.PTRACE_EVENT_CLONE || !sameProcess(p.pid, tid) {
		c := *p
		c.pid, c.mem, c.stale = tid, reader(tid), true
		c.sites, c.stacks = map[uint64]*site{}, nil
		for _, s := range p.stacks {
			c.stacks = append(c.stacks, s.clone())
		}
		p = &c
	}
	child := t.add(tid, p)
	child.new = true
	child.cur = th.cur.clone()
	child.regs = th.regs
	if p != th.proc && th.brk != nil {
		b := *th.brk // it is in the copy of the memory, too
		child.brk = &b
	}
	if t.early[tid] {
		delete(t.early, tid)
		child.new = false
		return child.first()
	}
	return nil
}

// follow begins to follow a new thread, whose clone of its parent's stack may be the wrong one.
func (th *thread) follow() error {
	was := th.regs.sp()
	if err := getRegs(th.tid, &th.regs); err != nil {
		return err
	}
	if th.proc.foreign || th.t.free || th.brk != nil {
		return nil
	}
	if sp := th.regs.sp(); sp != was {
		th.cur = th.proc.newStack(sp)
		th.cur.push(frame{kind: unknown, cfa: sp})
		if r := th.proc.region(sp); r == nil {
			th.proc.readMaps()
		}
		if r := th.proc.region(sp); r != nil && r.hi-sp < ownStack && !th.proc.hasGo() {
			th.cur.region = r.span
		}
	}
	th.look()
	return nil
}

// exec begins anew: the process is another program now, and has one thread, which has taken the process's number.
func (t *tracer) exec(th *thread) error {
	if was, err := unix.PtraceGetEventMsg(th.tid); err == nil && int(was) != th.tid {
		delete(t.threads, int(was))
	}
	th.sig, th.brk = 0, nil
	return th.begin()
}

// sameProcess says whether tid is a thread of process pid.
func sameProcess(pid, tid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", pid, tid))
	return err == nil
}
