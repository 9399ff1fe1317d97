package live

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/ptrace"
)

// Bounds on waiting for threads that have been asked to stop. One that does not run stops within microseconds, one that runs when
// it gets a processor, or leaves the kernel.
const (
	patience = 2 * time.Second
	uneasy   = time.Millisecond      // after that, those are looked at that have not stopped
	blocked  = 20 * time.Millisecond // for those that wait uninterruptibly, such as for a disk
)

// stop stops all threads, reads their registers and stacks, and releases them.
func (t *target) stop() (p Pause, err error) {
	if _, err := t.list(); err != nil {
		return p, ptrace.Refused(t.pid, err)
	}
	for _, th := range t.threads {
		t.name(th)
	}
	expected := t.expect()
	slab, r := newSlab(expected), newReaders(expected)
	defer r.close()
	ptrace.Do(func() {
		ptrace.Hurry()
		if err = t.seize(); err == nil {
			err = t.snapshot(slab, r)
		}
	})
	if err != nil {
		return p, err
	}
	var first, last time.Time
	for _, th := range t.threads {
		if !th.stopped || th.held {
			continue
		}
		if p.Threads == 0 || th.from.Before(first) {
			first = th.from
		}
		if th.to.After(last) {
			last = th.to
		}
		p.Longest = max(p.Longest, th.to.Sub(th.from))
		p.Threads++
	}
	if p.Threads > 0 {
		p.Total = last.Sub(first)
	}
	return p, nil
}

// seize begins to trace all threads, which run on. It fails if none can be traced.
func (t *target) seize() error {
	var refusal error
	seized := 0
	fresh := t.threads
	for len(fresh) > 0 {
		for _, th := range fresh {
			t.seizeOne(th)
			if th.seized {
				seized++
			} else if refusal == nil && !th.gone {
				refusal = th.err
			}
		}
		var err error
		if fresh, err = t.list(); err != nil {
			return ptrace.Refused(t.pid, err)
		}
	}
	if seized > 0 {
		return nil
	}
	if refusal == nil {
		refusal = unix.ESRCH
	}
	return ptrace.Refused(t.pid, refusal)
}

// seizeOne begins to trace a thread. Of those that have exited, the first stays in the list until all have.
func (t *target) seizeOne(th *thread) {
	switch err := ptrace.Seize(th.tid, 0); {
	case err == nil:
		th.seized = true
	case err == unix.ESRCH || strings.IndexByte("ZX", t.state(th)) >= 0:
		th.gone = true
		if th.tid == t.pid {
			th.err = errors.New("it has exited, but other threads of the process have not")
		}
	default:
		th.err = err
	}
}

// state returns the state of a thread, as proc(5) has it: 'X' if it has gone.
func (t *target) state(th *thread) byte {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", t.pid, th.tid))
	if err != nil {
		return 'X'
	}
	return procfs.State(b)
}

// snapshot stops what seize has seized, and what appears meanwhile, and reads it.
func (t *target) snapshot(slab []byte, r *readers) error {
	fresh := t.threads
	for len(fresh) > 0 {
		t.interrupt(fresh)
		t.wait(fresh)
		var err error
		// A thread that was not known yet may have started another before it was stopped.
		if fresh, err = t.list(); err != nil {
			break
		}
		for _, th := range fresh {
			t.seizeOne(th)
		}
	}
	err := t.readMaps()
	if err == nil && len(t.layout) == 0 {
		err = errReplaced // or it was killed
	}
	if err == nil {
		err = t.readStacks(t.threads, slab, r)
	}
	for _, th := range t.threads {
		if th.stopped {
			// It fails if the thread has been killed.
			_ = ptrace.Detach(th.tid, th.at.Inject())
			th.to = time.Now()
		}
	}
	switch {
	case err == errReplaced:
		return fmt.Errorf("process %d: %w", t.pid, err)
	case err != nil:
		return ptrace.Refused(t.pid, err)
	}
	return nil
}

func (t *target) interrupt(threads []*thread) {
	for _, th := range threads {
		if !th.seized {
			continue
		}
		th.from = time.Now()
		if ptrace.Interrupt(th.tid) != nil {
			th.gone = true
		}
	}
}

// wait waits until all of threads have stopped, or do not, and reads the registers of those that have.
func (t *target) wait(threads []*thread) {
	start := time.Now()
	looked := start
	for {
		pending, news := 0, false
		for _, th := range threads {
			if !th.seized || th.stopped || th.gone || th.err != nil || th.has {
				continue
			}
			stop, ok, err := ptrace.Next(th.tid)
			switch {
			case err != nil || ok && stop.Gone():
				th.gone, news = true, true
			case ok:
				th.stopped, th.at, news = true, stop, true
				th.held = stop.GroupStop()
				if th.regs, err = ptrace.Get(th.tid); err == unix.ESRCH {
					th.gone = true
				} else if err != nil {
					th.err = err
				} else {
					th.has, th.signs = true, ptrace.Signs(th.tid)
				}
			default:
				pending++
			}
		}
		if pending == 0 {
			return
		}
		if news {
			continue
		}
		now := time.Now()
		if now.Sub(looked) >= uneasy {
			t.giveUp(threads, now.Sub(start))
			looked = now
		}
		ptrace.Nap()
	}
}

// giveUp sorts out those that have not stopped and will not soon. What their system call tells of their registers is better than nothing: they
// do not run.
func (t *target) giveUp(threads []*thread, waited time.Duration) {
	for _, th := range threads {
		if !th.seized || th.stopped || th.gone || th.err != nil || th.has {
			continue
		}
		state := t.state(th)
		c, ok, err := ptrace.Blocked(t.pid, th.tid)
		ok = ok && err == nil
		switch {
		case state == 'D' && ok && (c.Starting() || waited >= blocked):
			th.regs, th.has, th.call = c.Registers, true, true
		case waited >= patience:
			th.err = fmt.Errorf("it did not stop within %v: state %c", patience, state)
		}
	}
}

const (
	window  = 32 << 10 // of each stack, which holds nearly all of them
	redZone = 128      // below the stack pointer that a function may use (AMD64 psABI, 3.2.2)

	// More of a stack is read if its mapping has more: of what is known to be a stack, and of other mappings, such as a heap with
	// the stacks of coroutines in it.
	maxStack = 16 << 20
	maxOther = 256 << 10
	maxAll   = 256 << 20
)

// newSlab returns n bytes, whose pages are there when they are wanted: to make them takes longer than to copy into them.
func newSlab(n int) []byte {
	slab := make([]byte, n)
	for i := 0; i < len(slab); i += os.Getpagesize() {
		slab[i] = 1
	}
	return slab
}

// expect returns about how much readStacks will read: of threads that are blocked, the kernel tells where their stack pointers are.
func (t *target) expect() int {
	n := 0
	for _, th := range t.threads {
		size := window + redZone
		if c, ok, err := ptrace.Blocked(t.pid, th.tid); ok && err == nil {
			if m := t.find(c.Registers.SP); m != nil {
				size = t.size(c.Registers.SP, m) + slack
			}
		}
		if n += size; n > maxAll {
			return maxAll
		}
	}
	return n
}

// slack is how much deeper a stack may be when it is read than when it was looked at.
const slack = 1 << 10

// size returns how much of the stack in m that sp points into to read, from the red zone on.
func (t *target) size(sp uint64, m *procfs.Mapping) int {
	lo := max(m.Lo, sp-redZone)
	most := uint64(window + redZone)
	if m.Hi-lo > most {
		most += uint64(t.rest(sp, lo+most))
	}
	return int(min(m.Hi-lo, most))
}

// readStacks reads all stacks in as few calls as possible. It needs slab, and more where that is too small.
func (t *target) readStacks(threads []*thread, slab []byte, r *readers) error {
	var owners []*thread
	var pieces []ptrace.Piece
	total := 0
	for _, th := range threads {
		m := t.find(th.regs.SP)
		if !th.has || m == nil || m.Prot&procfs.Read == 0 {
			continue
		}
		n := t.size(th.regs.SP, m)
		if n > window+redZone {
			n = max(min(n, maxAll-total), window+redZone)
		}
		total += n
		if n > len(slab) {
			slab = make([]byte, max(n, window))
		}
		owners = append(owners, th)
		pieces = append(pieces, ptrace.Piece{Addr: max(m.Lo, th.regs.SP-redZone), Bytes: slab[:n:n]})
		slab = slab[n:]
	}
	if err := r.read(t.via, pieces, total); err != nil {
		return err
	}
	for i, th := range owners {
		th.stack = pieces[i]
	}
	return t.readHomes(owners, max(maxAll-total, 0))
}

// Readers read stacks on other processors than the one that the tracer runs on: those that the threads ran on have nothing to do.
type readers struct {
	n    int
	jobs chan func()
}

// share is what one processor reads at least: that takes half a millisecond or so.
const share = 2 << 20

// newReaders starts as many as are worth it for so many bytes. They wait, with the priority of the tracer, until close.
func newReaders(bytes int) *readers {
	r := &readers{min(runtime.GOMAXPROCS(0), bytes/share) - 1, make(chan func())}
	for range r.n {
		go func() {
			runtime.LockOSThread() // and no Unlock: the thread ends
			ptrace.Hurry()
			for f := range r.jobs {
				f()
			}
		}()
	}
	return r
}

func (r *readers) close() { close(r.jobs) }

// read reads pieces of total bytes.
func (r *readers) read(pid int, pieces []ptrace.Piece, total int) error {
	n := 1 + min(r.n, total/share)
	var wg sync.WaitGroup
	errs := make([]error, max(n, 1))
	for i := range n - 1 {
		k, got := 0, 0
		for ; k < len(pieces) && got < total/n; k++ {
			got += len(pieces[k].Bytes)
		}
		part := pieces[:k]
		pieces = pieces[k:]
		wg.Add(1)
		r.jobs <- func() { errs[i] = ptrace.Read(pid, part); wg.Done() }
	}
	errs[max(n, 1)-1] = ptrace.Read(pid, pieces)
	wg.Wait()
	return errors.Join(errs...)
}

// readHomes reads the own stacks of threads that run on others: a signal's, a coroutine's, a segment of a split stack.
func (t *target) readHomes(threads []*thread, room int) error {
	for _, th := range threads {
		m := t.home(th)
		if m == nil || m == t.find(th.regs.SP) {
			continue
		}
		least := ptrace.Lowest(&th.regs, th.stack.Bytes[:min(len(th.stack.Bytes), maxOther)], m.Lo, m.Hi)
		n := int(min(m.Hi-least, maxStack, uint64(room)))
		p := []ptrace.Piece{{Addr: least, Bytes: make([]byte, n)}}
		if err := ptrace.Read(t.via, p); err != nil {
			return err
		}
		th.home = p[0]
		room -= n
	}
	return nil
}

// home returns the mapping of the stack that a thread was started with: the C libraries put the thread's own variables at its end. nil if
// that is not known.
func (t *target) home(th *thread) *procfs.Mapping {
	if th.tid == t.pid {
		i := slices.IndexFunc(t.layout, func(m procfs.Mapping) bool { return m.Name == "[stack]" })
		if i < 0 {
			return nil
		}
		return &t.layout[i]
	}
	m := t.find(th.regs.TLS)
	if m == nil || m.Inode != 0 || m.Prot&(procfs.Read|procfs.Write|procfs.Exec) != procfs.Read|procfs.Write {
		return nil
	}
	return m
}

// rest returns how much of the stack that sp points into to read from end on.
func (t *target) rest(sp, end uint64) int {
	m := t.find(sp)
	if m == nil || end >= m.Hi {
		return 0
	}
	most := uint64(maxOther)
	guard := t.find(m.Lo - 1)
	if m.Name == "[stack]" || m.Inode == 0 && guard != nil && guard.Prot == 0 && guard.Hi-guard.Lo <= maxGuard {
		most = maxStack
	}
	return int(min(m.Hi-end, most))
}

// maxGuard is the size of the largest guard below a thread's stack that is taken for one: a heap's reserve is larger.
const maxGuard = 1 << 20

// peek reads registers and stacks of threads that do not run, and leaves them alone.
func (t *target) peek() error {
	if _, err := t.list(); err != nil {
		return ptrace.Refused(t.pid, err)
	}
	var refusal error
	n := 0
	for _, th := range t.threads {
		t.name(th)
		// What was read while the thread stayed in the same call belongs together.
		for range 3 {
			c, ok, err := ptrace.Blocked(t.pid, th.tid)
			if err != nil || !ok {
				if th.err = err; err == nil {
					th.err = errors.New("it runs: only blocked threads have known registers")
				}
				break
			}
			th.regs, th.has, th.call, th.err = c.Registers, true, true, nil
			if t.find(th.regs.SP) == nil {
				_ = t.readMaps() // it may be new
			}
			if err := t.readStacks([]*thread{th}, nil, &readers{}); err != nil {
				th.err, th.has = err, false
				break
			}
			again, ok, err := ptrace.Blocked(t.pid, th.tid)
			if err == nil && ok && again == c {
				break
			}
			th.has, th.err = false, errors.New("it runs again and again: only blocked threads have known registers")
		}
		switch {
		case errors.Is(th.err, os.ErrNotExist), errors.Is(th.err, unix.ESRCH):
			th.gone, th.err = true, nil
		case errors.Is(th.err, os.ErrPermission):
			refusal = th.err
		default:
			n++
		}
	}
	if n == 0 && refusal != nil {
		return ptrace.Refused(t.pid, refusal)
	}
	return nil
}
