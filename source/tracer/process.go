package tracer

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/ptrace"
	"github.com/unspool/unspool/source"
)

// A thread is one that is traced.
type thread struct {
	tid    int
	proc   *proc
	comm   string
	fresh  bool // it has not run yet: it stops before it does
	wanted bool // it has been asked to stop for a sample
	moved  bool // it had gone to another processor before that
	on     int  // the processor on which it was seen last
	state  byte // in which it was seen last
	seen   int  // the tick in which it was
	last   int  // the tick in which it was found to have run; 0: none

	stat, sched int           // descriptors of its files stat and schedstat; -1 if there is none
	ran         time.Duration // on a processor, when last looked at
	credit      time.Duration // for which it has run without being sampled
	counted     time.Duration // of ran, when missing samples were last counted
	resumed     time.Time     // when it was last let go on after a stop
}

// A proc is a process. Its files are opened at the first sample.
type proc struct {
	pid      int
	threads  map[int]*thread
	maps     *os.File
	statm    *os.File
	size     string             // what statm said when the mappings were read
	read     time.Time          // when that was
	reported map[mapping]string // executable mappings that have been reported, with their names

	stack    span   // of its first thread
	writable []span // mappings that belong to no file, in order
}

// A span is of addresses.
type span struct{ lo, hi uint64 }

// A mapping is what a MMAP2 record says of one, but for its name.
type mapping struct{ lo, hi, off, inode uint64 }

func now() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(ts.Nano())
}

// add appends a record, of now unless it has a time. Records at time 0 describe what was there before.
func (r *Recorder) add(rec *source.Record) { r.out = r.dec.Append(r.out, 0, rec) }

// insert makes a thread.
func (r *Recorder) insert(pid, tid int) *thread {
	p := r.procs[pid]
	if p == nil {
		p = &proc{pid: pid, threads: map[int]*thread{}, reported: map[mapping]string{}}
		r.procs[pid] = p
	}
	open := func(name string) int {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/task/%d/%s", pid, tid, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1
		}
		return fd
	}
	// The first sample is due at the first tick that finds it running: that is how often short lives have to be sampled.
	th := &thread{tid: tid, proc: p, stat: open("stat"), sched: open("schedstat"), credit: r.tick}
	th.ran = r.runtime(th)
	th.counted = th.ran
	r.threads[tid], p.threads[tid] = th, th
	return th
}

func (th *thread) close() {
	for _, fd := range []int{th.stat, th.sched} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// found reports a thread that was there before the recording.
func (r *Recorder) found(pid, tid int) {
	if r.threads[tid] != nil {
		return
	}
	fresh := r.procs[pid] == nil
	th := r.insert(pid, tid)
	if tid != pid {
		r.add(&source.Record{Type: source.RecordFork, PID: int32(pid), TID: int32(tid), PPID: int32(pid), PTID: int32(pid)})
	}
	r.rename(th, 0, 0)
	if fresh {
		r.remap(th.proc, 0)
	}
}

// started reports the command before its first instruction, and returns a thread that is not traced: see start.
func (r *Recorder) started(pid int) *thread {
	th := r.insert(pid, pid)
	r.rename(th, source.MiscCommExec, now())
	delete(r.threads, pid) // until it is seized
	delete(th.proc.threads, pid)
	return th
}

// known returns a thread that has something to tell. One that has not been heard of has been started by another.
func (r *Recorder) known(tid int) *thread {
	if th := r.threads[tid]; th != nil {
		return th
	}
	return r.addThread(tid, nil)
}

// addThread reports a new thread or process. parent may not be known yet: the child may be heard of first.
func (r *Recorder) addThread(tid int, parent *thread) *thread {
	if th := r.threads[tid]; th != nil {
		return th
	}
	pid := procfs.Leader(tid)
	rec := source.Record{Type: source.RecordFork, PID: int32(pid), TID: int32(tid), PPID: int32(pid), PTID: int32(pid), Time: now(), HasTime: true}
	if tid == pid {
		var ppid int
		if parent == nil {
			fmt.Sscan(procfs.Status(tid, "PPid"), &ppid)
			parent = r.threads[ppid]
		}
		if parent != nil {
			ppid = parent.proc.pid
		}
		rec.PPID, rec.PTID = int32(ppid), int32(ppid)
	}
	fresh := r.procs[pid] == nil
	th := r.insert(pid, tid)
	th.fresh = true
	r.ready = append(r.ready, th)
	if fresh && parent != nil {
		th.proc.reported = maps.Clone(parent.proc.reported) // as the child's address space is a copy
	}
	if tid != r.pid {
		r.add(&rec)
	}
	return th
}

// exec takes note that a process executes another program: of its threads, one is left, which has the number of the first.
func (r *Recorder) exec(th *thread, former int) {
	if former != th.tid {
		th.ran = r.runtime(th) // of another thread until now
		th.counted = th.ran
		if was := r.threads[former]; was != nil {
			r.spend(was, th.ran)
		}
		r.exit(former)
	}
	p := th.proc
	p.close()
	clear(p.reported)
	if th.wanted {
		th.wanted = false
		r.lose()
	}
	r.rename(th, source.MiscCommExec, now())
}

// exit takes note of a thread's end.
func (r *Recorder) exit(tid int) {
	th := r.threads[tid]
	if th == nil {
		return
	}
	if th.wanted { // it has not stopped before it ended
		r.lose()
	}
	delete(r.threads, tid)
	th.close()
	p := th.proc
	r.add(&source.Record{Type: source.RecordExit, PID: int32(p.pid), TID: int32(tid), PPID: int32(p.pid), PTID: int32(p.pid), Time: now(), HasTime: true})
	if delete(p.threads, tid); len(p.threads) == 0 {
		p.close()
		delete(r.procs, p.pid)
	}
}

// release closes what is open.
func (r *Recorder) release() {
	for _, th := range r.threads {
		th.close()
		th.proc.close()
	}
}

func (p *proc) close() {
	p.maps.Close()
	p.statm.Close()
	p.maps, p.statm, p.size = nil, nil, ""
}

// rename reports the name of a thread if it is new, or has just been given by execve.
func (r *Recorder) rename(th *thread, misc uint16, time uint64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/comm", th.proc.pid, th.tid))
	if err != nil {
		return
	}
	r.call(th, string(bytes.TrimSuffix(b, []byte("\n"))), misc, time)
}

func (r *Recorder) call(th *thread, name string, misc uint16, time uint64) {
	if name == th.comm && misc == 0 {
		return
	}
	th.comm = name
	r.add(&source.Record{Type: source.RecordComm, Misc: misc, PID: int32(th.proc.pid), TID: int32(th.tid), Comm: []byte(name), Time: time, HasTime: true})
}

// read reads one of a thread's files into r.text.
func (r *Recorder) read(fd int) []byte {
	n, err := unix.Pread(fd, r.text, 0)
	if err != nil {
		return nil
	}
	return r.text[:n]
}

// runtime returns how long a thread has run, as the scheduler counts it (Documentation/scheduler/sched-stats.rst).
func (r *Recorder) runtime(th *thread) time.Duration {
	b := r.read(th.sched)
	if len(b) == 0 && th.sched >= 0 {
		return th.ran // it has gone, and another has executed a program
	}
	ns, _, ok := bytes.Cut(b, []byte(" "))
	n, err := strconv.ParseInt(string(ns), 10, 64)
	if !ok || err != nil {
		return th.ran + r.tick // not told: then being ready to run has to do
	}
	return time.Duration(n)
}

// sample records a thread that has stopped.
func (r *Recorder) sample(th *thread) {
	if th.moved {
		r.lose() // it may have run on there
		return
	}
	th.credit -= r.tick
	regs, err := ptrace.Get(th.tid)
	if err != nil || r.queue.full() { // such as killed
		r.lose()
		return
	}
	r.remapIfChanged(th.proc, regs.PC)
	piece := []ptrace.Piece{{Addr: regs.SP, Bytes: r.stackBuf()}}
	if err = ptrace.Read(th.tid, piece); err != nil { // such as of a process that has had itself made not dumpable
		r.lose()
		return
	}
	stack := piece[0].Bytes[:len(piece[0].Bytes)&^7]
	rec := source.Record{
		Misc: source.MiscUser, IP: regs.PC, PID: int32(th.proc.pid), TID: int32(th.tid), Time: now(), Period: uint64(r.tick),
	}
	if own, ok := r.home(th, &regs, stack); ok {
		half := min(len(stack), int(r.o.StackSize)/2&^7)
		rec.StackDyn = uint64(half)
		stack = source.AppendOther(slices.Clip(stack[:half]), own)
	}
	r.counted++
	r.out = source.AppendCopy(r.out, &r.attr, &rec, nil, ptrace.Machine, regs.Regs[:], stack)
}

// home reads of the stack that a thread began with what it lies on, if it runs on another: a signal's, a coroutine's. See ptrace.Home.
func (r *Recorder) home(th *thread, regs *ptrace.Registers, stack []byte) (p source.Piece, ok bool) {
	where := regs.TLS
	if th.tid == th.proc.pid {
		where = th.proc.stack.lo
	}
	i, ok := slices.BinarySearchFunc(th.proc.writable, where, func(s span, a uint64) int {
		switch {
		case s.hi <= a:
			return -1
		case s.lo > a:
			return 1
		}
		return 0
	})
	if !ok || where == 0 {
		return p, false
	}
	own := th.proc.writable[i]
	if regs.SP >= own.lo && regs.SP < own.hi {
		return p, false
	}
	const trailer = 24
	lo := ptrace.Lowest(regs, stack, own.lo, own.hi)
	piece := []ptrace.Piece{{Addr: lo, Bytes: make([]byte, min(own.hi-lo, uint64(r.o.StackSize)/2-trailer))}}
	if ptrace.Read(th.tid, piece) != nil {
		return p, false
	}
	return source.Piece{Addr: lo, Bytes: piece[0].Bytes[:len(piece[0].Bytes)&^7]}, true
}

func (r *Recorder) lose() {
	r.lost.Add(1)
	r.unsaid++
	r.counted++
}

func (r *Recorder) stackBuf() []byte {
	if r.copied == nil {
		r.copied = make([]byte, r.o.StackSize)
	}
	return r.copied
}

// refresh is after what time mappings are read again, even if the size of the address space is the same.
const refresh = time.Second

// remapIfChanged reports what a process maps now, if that may have changed: the size of the address space has, or what lies at pc is not what was
// reported.
func (r *Recorder) remapIfChanged(p *proc, pc uint64) {
	if p.statm == nil {
		p.statm, _ = os.Open(fmt.Sprintf("/proc/%d/statm", p.pid))
	}
	var b [64]byte
	n, _ := p.statm.ReadAt(b[:], 0)
	size, _, _ := strings.Cut(string(b[:max(n, 0)]), " ")
	if size != "" && size == p.size && time.Since(p.read) < refresh && !p.replaced(pc) {
		return
	}
	p.size, p.read = size, time.Now()
	r.remap(p, now())
}

// replaced says whether other code lies at pc than was reported. It does not where the kernel cannot be asked.
func (p *proc) replaced(pc uint64) bool {
	m, ok := procfs.At(p.maps, pc)
	if !ok || m.Prot&procfs.Exec == 0 {
		return false
	}
	_, ok = p.reported[mapping{m.Lo, m.Hi, m.Off, m.Inode}]
	return !ok
}

// remap reports the executable mappings that have not been reported.
func (r *Recorder) remap(p *proc, time uint64) {
	if p.maps == nil {
		f, err := os.Open(fmt.Sprintf("/proc/%d/maps", p.pid))
		if err != nil {
			return
		}
		p.maps = f
	}
	list, err := procfs.Mappings(p.maps)
	if err != nil {
		return
	}
	there := make(map[mapping]string, len(p.reported))
	p.stack, p.writable = span{}, p.writable[:0]
	for i := range list {
		m := &list[i]
		if m.Inode == 0 && m.Prot&(procfs.Read|procfs.Write) == procfs.Read|procfs.Write {
			p.writable = append(p.writable, span{m.Lo, m.Hi})
			if m.Name == "[stack]" {
				p.stack = span{m.Lo, m.Hi}
			}
		}
		if m.Prot&procfs.Exec == 0 {
			continue
		}
		key := mapping{m.Lo, m.Hi, m.Off, m.Inode}
		there[key] = m.Name
		if name, ok := p.reported[key]; !ok || name != m.Name {
			r.mmap(p, m, time)
		}
	}
	p.reported = there
}

func (r *Recorder) mmap(p *proc, m *procfs.Mapping, time uint64) {
	rec := source.Record{
		Type: source.RecordMmap2, Misc: source.MiscUser, PID: int32(p.pid), TID: int32(p.pid), Time: time, HasTime: true, Addr: m.Lo, Len: m.Hi - m.Lo,
		Pgoff: m.Off, Maj: m.Maj, Min: m.Min, Inode: m.Inode, Prot: m.Prot, MapFlags: unix.MAP_PRIVATE, Filename: []byte(m.Name),
	}
	if m.Shared {
		rec.MapFlags = unix.MAP_SHARED
	}
	if m.Name == "" || strings.HasPrefix(m.Name, "[anon") {
		rec.Filename = []byte("//anon")
	}
	if m.Inode != 0 {
		maps, path := p.maps, fmt.Sprintf("/proc/%d/root%s", p.pid, m.Name)
		id, _ := procfs.AskOf(&r.asker, p.pid, m, func() (id []byte, ok bool) {
			if id, ok = procfs.BuildID(maps, m); !ok {
				id, ok = procfs.FileBuildID(path, m.Inode)
			}
			return id, ok
		})
		if len(id) > 0 {
			rec.Misc |= source.MiscMmapBuildID
			rec.BuildID = id
		} else {
			rec.InodeGen, _ = procfs.AskOf(&r.asker, p.pid, m, func() (stamp uint64, ok bool) {
				var st unix.Stat_t
				if ok = unix.Stat(path, &st) == nil && st.Ino == m.Inode; ok {
					stamp = procfs.Stamp(&st)
				}
				return stamp, ok
			})
		}
	}
	r.add(&rec)
}
