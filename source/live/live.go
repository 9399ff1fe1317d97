// Package live looks at all threads of a running process at one moment, with or without stopping them. A process comes in; a source.Process
// goes out, as from a core file.
//
// The only right it needs is to trace the process (ptrace(2), PTRACE_MODE_ATTACH). It changes nothing in the process: threads that were stopped
// before stay stopped. If this program is killed at any moment, the kernel releases all threads it has stopped.
package live

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/ptrace"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// Options say how to look at a process.
type Options struct {
	// Mods gives the module of a file by a path that opens it, which can lead through /proc/PID where the process has
	// another root or the file has been deleted, and by its hex build ID, which may be empty. It should load nothing yet.
	Mods func(path, buildID string) *unwind.Module

	// Made, if not nil, knows code that the process makes while it runs.
	Made source.Maker

	// Image returns the module of an image of code that the process has made and registered for debuggers (package gdbjit). The image needs not be
	// closed. nil: such code is not looked for.
	Image func(*module.Image) *unwind.Module

	// Files finds the mapped files, where Image is set. Mods should use the same Locator.
	Files *module.Locator

	// NoPause leaves the threads running. Only blocked threads have known registers, and not all registers: see ptrace.Blocked.
	NoPause bool
}

// A Pause says for how long threads were stopped. A thread counts from when it was asked to stop.
type Pause struct {
	Total   time.Duration // from the first that was asked to the last that was released
	Longest time.Duration // of one thread
	Threads int           // that were stopped, and had not been before
}

// Open looks at a process, or at that of a thread. Errors name the remedy.
func Open(pid int, o Options) (*source.Process, Pause, error) {
	if ptrace.Machine == nil {
		return nil, Pause{}, fmt.Errorf("process %d: %w on this machine", pid, source.ErrUnsupported)
	}
	for tries := 0; ; tries++ {
		p, pause, err := once(pid, o)
		if tries == maxTries || !errors.Is(err, errReplaced) {
			return p, pause, err
		}
		time.Sleep(time.Duration(tries) * time.Millisecond)
	}
}

// maxTries is how often a process is looked at again that has executed another program meanwhile.
const maxTries = 10

var (
	errReplaced = errors.New("it executes one program after another, or it is ending: try again")
	errNoMemory = errors.New("it has no address space") // a kernel thread, one that has exited, or one that executes another program just now
)

func once(pid int, o Options) (*source.Process, Pause, error) {
	t, err := newTarget(pid)
	if err != nil {
		return nil, Pause{}, err
	}
	defer t.maps.Close()
	var pause Pause
	if o.NoPause {
		err = t.peek()
	} else {
		pause, err = t.stop()
	}
	if err != nil {
		t.mem.Close()
		return nil, Pause{}, err
	}
	return t.process(&o), pause, nil
}

// A target is a process that is looked at.
type target struct {
	pid     int
	threads []*thread
	byTID   map[int]*thread
	via     int      // a thread that has the address space
	dir     string   // its files: /proc/PID, or /proc/PID/task/TID where the first thread has exited
	maps    *os.File // /proc/PID/maps
	mem     *os.File // /proc/PID/mem: it stays with the address space, whatever becomes of the process
	text    []byte   // of maps
	layout  []procfs.Mapping
	notes   []string
}

// A thread is one of a target's.
type thread struct {
	tid  int
	name string
	err  error
	regs ptrace.Registers
	call bool // regs are those that its system call tells
	has  bool // regs are set

	signs uint64 // the bits that signatures of its return addresses use

	stack ptrace.Piece // from below its pointer, upward
	home  ptrace.Piece // of its own stack, where it runs on another

	seized, stopped, held bool // held: it had been stopped before
	gone                  bool
	at                    ptrace.Stop
	from, to              time.Time // asked to stop, released
}

// newTarget opens what is needed of a process before it is stopped.
func newTarget(pid int) (*target, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("process %d: no such process", pid)
	}
	t := &target{pid: procfs.Leader(pid), byTID: map[int]*thread{}}
	t.via, t.dir = t.pid, fmt.Sprintf("/proc/%d", t.pid)
	if t.pid == os.Getpid() {
		return nil, fmt.Errorf("process %d: this is unspool itself", pid)
	}
	err := t.open()
	if tids, _ := procfs.Threads(t.pid); err != nil && len(tids) > 1 && strings.HasPrefix(procfs.Status(t.pid, "State"), "Z") {
		// The first thread has exited, others have not, and have the address space.
		for _, tid := range tids {
			if err != nil {
				t.via, t.dir = tid, fmt.Sprintf("/proc/%d/task/%d", t.pid, tid)
				err = t.open()
			}
		}
	}
	if errors.Is(err, errNoMemory) && !procfs.KernelThread(t.pid) && !strings.ContainsAny(procfs.Status(t.pid, "State"), "ZX") {
		return nil, fmt.Errorf("process %d: %w", pid, errReplaced)
	}
	if err != nil {
		return nil, ptrace.Refused(t.pid, err)
	}
	return t, nil
}

// open opens the files of the address space and reads the mappings.
func (t *target) open() (err error) {
	if t.maps, err = os.Open(t.dir + "/maps"); err != nil {
		return err
	}
	if t.mem, err = os.Open(t.dir + "/mem"); err != nil {
		t.maps.Close()
		return err
	}
	if err = t.readMaps(); err == nil && len(t.layout) == 0 {
		err = errNoMemory
	}
	if err != nil {
		t.maps.Close()
		t.mem.Close()
	}
	return err
}

// readMaps reads the mappings: none if the address space has gone.
func (t *target) readMaps() error {
	if cap(t.text) == 0 {
		t.text = make([]byte, 0, 64<<10)
	}
	t.text = t.text[:0]
	for {
		t.text = slices.Grow(t.text, 4096)
		n, err := t.maps.ReadAt(t.text[len(t.text):cap(t.text)], int64(len(t.text)))
		t.text = t.text[:len(t.text)+n]
		if n == 0 || len(t.text) > maxMaps {
			if len(t.text) == 0 && err != nil && err != io.EOF && !errors.Is(err, unix.ESRCH) {
				return err
			}
			break
		}
	}
	t.layout = procfs.ParseMappings(t.text)
	return nil
}

const maxMaps = 32 << 20

// find returns the mapping that a lies in, or nil.
func (t *target) find(a uint64) *procfs.Mapping {
	i, ok := slices.BinarySearchFunc(t.layout, a, func(m procfs.Mapping, a uint64) int {
		switch {
		case m.Hi <= a:
			return -1
		case m.Lo > a:
			return 1
		}
		return 0
	})
	if !ok {
		return nil
	}
	return &t.layout[i]
}

// list adds the threads that are new since the last call, and says whether there are any.
func (t *target) list() (fresh []*thread, err error) {
	tids, err := procfs.Threads(t.pid)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return nil, err
	}
	for _, tid := range tids {
		if t.byTID[tid] == nil {
			th := &thread{tid: tid}
			t.byTID[tid] = th
			t.threads = append(t.threads, th)
			fresh = append(fresh, th)
		}
	}
	return fresh, nil
}

// name fills in the name of a thread.
func (t *target) name(th *thread) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", t.pid, th.tid))
	if err == nil {
		th.name = string(bytes.TrimSuffix(b, []byte("\n")))
	}
}

// process makes the result.
func (t *target) process(o *Options) *source.Process {
	space := t.space(o)
	p := &source.Process{PID: t.pid, Machine: ptrace.Machine, Space: space, Notes: t.notes}
	p.Exe, _ = os.Readlink(t.dir + "/exe")
	if b, err := os.ReadFile(t.dir + "/cmdline"); err == nil && len(b) > 0 {
		p.Command = strings.Split(string(bytes.TrimSuffix(b, []byte{0})), "\x00")
	}
	for _, th := range t.threads {
		if th.gone && !th.has && th.err == nil {
			continue // it ended before it could be looked at
		}
		if th.name == "" {
			t.name(th)
		}
		x := source.Thread{TID: th.tid, Name: th.name, Err: th.err}
		if th.has {
			x.Snapshot = unwind.Snapshot{
				Machine: p.Machine, Space: p.Space, PC: th.regs.PC, Known: th.regs.Known, Regs: th.regs.Regs, Signs: th.signs,
			}
			late := &lateMemory{mem: t.mem, home: th.home}
			x.Snapshot.Mem.Next = late
			if len(th.stack.Bytes) > 0 {
				x.Snapshot.Mem.Lo, x.Snapshot.Mem.Bytes = th.stack.Addr, th.stack.Bytes
			}
			x.Late = late.words.Load
		}
		p.Threads = append(p.Threads, x)
	}
	slices.SortFunc(p.Threads, func(a, b source.Thread) int {
		if first := cmp.Compare(btoi(b.TID == t.pid), btoi(a.TID == t.pid)); first != 0 {
			return first
		}
		return cmp.Compare(a.TID, b.TID)
	})
	return p
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// A lateMemory has the thread's own stack, where it ran on another. What is still missing it reads from the process that runs again, and
// counts that. It is safe for concurrent use.
type lateMemory struct {
	home  ptrace.Piece
	mem   *os.File
	words atomic.Uint64
}

// Read8 implements rows.Reader.
func (l *lateMemory) Read8(addr uint64) (uint64, bool) {
	var b [8]byte
	if off, n := addr-l.home.Addr, uint64(len(l.home.Bytes)); off < n && n-off >= 8 {
		return binary.LittleEndian.Uint64(l.home.Bytes[off:]), true
	}
	if int64(addr) < 0 {
		return 0, false
	}
	if n, _ := l.mem.ReadAt(b[:], int64(addr)); n != len(b) {
		return 0, false
	}
	l.words.Add(1)
	return binary.LittleEndian.Uint64(b[:]), true
}
