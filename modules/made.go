package modules

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format"
	rules "github.com/unspool/unspool/format/jit"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/symbol/jit"
	"github.com/unspool/unspool/unwind"
)

// Registered reads the code that a process of this machine has registered now: images, and rows.
type Registered func(pid int) ([]*module.Image, []*rows.Table)

// Made finds the rules of code that processes make while they run, where they write down its unwind information: in dumps for perf inject
// (package symbol/jit), or, of running processes, where they register code. It is safe for concurrent use.
type Made struct {
	// Registered, if not nil, is asked for code without records. Set it before the first use.
	Registered Registered

	set     *Set
	machine *arch.Machine
	procs   *jit.Processes
	reading atomic.Bool  // what a process has registered
	next    atomic.Int64 // not before then, in ns since began, is that done again
}

// Made returns a Made for processes of a machine.
func (s *Set) Made(m *arch.Machine) *Made {
	return &Made{set: s, machine: m, procs: jit.NewUnwindProcesses(s.failed)}
}

// Mapped tells of a file that a process has mapped: that of a dump tells where it is.
func (m *Made) Mapped(pid int32, path string) { m.procs.Mapped(pid, path) }

// Module returns the module of memory that is no file's. Each call makes a new one. Offsets in it are addresses.
func (m *Made) Module(pid int32, path string) *unwind.Module {
	mod := unwind.NewModule(path, "", func(*unwind.Module) *unwind.Code {
		process := jit.Seen(int(pid))
		charge := process.Charge()
		r := rules.New(m.machine, charge.Take, func(err error) { m.set.failed(fmt.Errorf("code made by process %d: %w", pid, err)) })
		runtime.AddCleanup(r, (*jit.Charge).Release, charge)
		g := &registry{made: m, pid: int(pid), rules: r}
		return &unwind.Code{
			Machine: m.machine, Stepper: latest{r},
			Vaddr: func(off uint64) (arch.Vaddr, bool) { return arch.Vaddr(off), true },
			Made: func(v arch.Vaddr, time uint64) (uint32, bool) {
				if code := m.procs.Code(pid); code != nil {
					if time == 0 {
						time = jit.Always
					}
					if u, ok := code.Unwinding(arch.Addr(v), time); ok {
						return r.Find(rules.Record{EHFrame: u.EHFrame, Size: u.Size, Big: u.Big}, u.Start, uint64(v)-uint64(u.Start))
					}
				}
				return g.find(v)
			},
		}
	})
	mod.PID = pid
	return mod
}

// latest is the Stepper of code whose rules have times: they are found through unwind.Code.Made only.
type latest struct{ *rules.Rules }

// Find implements rows.Stepper.
func (latest) Find(arch.Vaddr) (uint32, bool) { return 0, false }

// A registry has the code that one process has registered. It is read when a stack leads to code without a rule.
type registry struct {
	made  *Made
	pid   int
	rules *rules.Rules

	mu    sync.Mutex
	done  chan struct{} // closed at the end of the reading that began since began at start; nil: it is not read now
	start time.Duration
	next  time.Duration // not before then, since began, is it read
	wait  time.Duration
	rows  int // that were found last
}

// One process is read at a time, and that takes at most a part in pace of all time. A walk waits for the end no longer than patience: other stacks
// come after it. A process is read again after firstWait, and after twice the time if there was nothing new, up to longWait.
const (
	pace      = 10
	patience  = 50 * time.Millisecond
	firstWait = 100 * time.Millisecond
	longWait  = 10 * time.Second
)

var began = time.Now()

// find returns the rule of registered code.
func (g *registry) find(v arch.Vaddr) (id uint32, ok bool) {
	if g.made.Registered == nil {
		return 0, false
	}
	if id, ok = g.rules.Registered(v); !ok && g.again() {
		id, ok = g.rules.Registered(v)
	}
	return id, ok
}

// again has the process read, if it is time, and says whether that was done.
func (g *registry) again() bool {
	now := time.Since(began)
	g.mu.Lock()
	if g.done == nil {
		if now < g.next || int64(now) < g.made.next.Load() || !g.made.reading.CompareAndSwap(false, true) {
			g.mu.Unlock()
			return false
		}
		g.done, g.start = make(chan struct{}), now
		go g.read()
	}
	done, start := g.done, g.start
	g.mu.Unlock()
	timer := time.NewTimer(start + patience - now)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// read reads what the process has registered.
func (g *registry) read() {
	images, tables := g.made.Registered(g.pid)
	for _, img := range images {
		_ = module.Guard(func() error {
			u, err := format.Open(img)
			if err == nil {
				t, _ := u.Rows()
				tables = append(tables, t)
			}
			return nil
		})
	}
	n := 0
	for _, t := range tables {
		n += len(t.Rows)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wait = min(2*g.wait, longWait); n != g.rows || g.wait == 0 {
		g.wait = firstWait
	}
	if n != 0 || g.rows != 0 {
		g.rules.Register(tables)
	}
	end := time.Since(began)
	g.rows, g.next = n, end+g.wait
	g.made.next.Store(int64(end + pace*(end-g.start)))
	g.made.reading.Store(false)
	close(g.done)
	g.done = nil
}
