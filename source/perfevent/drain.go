package perfevent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
)

// pollTime is how long a record may lie in a ring, ms. A ring that is a quarter full is read at once. soonTime is how long
// where the program wants to see more: what comes before it knows costs a copy of a stack, and looking costs, too.
const (
	pollTime = 100
	soonTime = 2
)

// leaveTime is how often to look whether processes that end have gone, ms.
const leaveTime = 10

// promptTime is how long at the beginning, when a command starts, records are looked at at once.
const promptTime = 300 * time.Millisecond

// What an epoll event's data says, other than the number of a target.
const (
	pollRing = -1
	pollWake = -2
)

func (r *Recorder) openPoll() (err error) {
	if r.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	if err = unix.SetNonblock(r.epoll, true); err != nil { // so that Go's poller takes it
		return fmt.Errorf("epoll: %w", err)
	}
	r.ready = os.NewFile(uintptr(r.epoll), "epoll")
	if r.readyConn, err = r.ready.SyscallConn(); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	if r.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: pollWake}
	err = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, r.wake, &ev)
	for _, g := range r.rings {
		err = errors.Join(err, r.pollFor(g.fd))
	}
	if r.program != nil {
		err = errors.Join(err, r.pollFor(r.program.Ready()))
	}
	if err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// pollFor has poll wait for records at a descriptor.
func (r *Recorder) pollFor(fd int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: pollRing}
	return unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, fd, &ev)
}

// drainAll empties the rings until the recording ends.
func (r *Recorder) drainAll() {
	defer close(r.drained)
	wait := pollTime
	began := time.Now()
	var leaving []int32 // processes that end, where no thread's events are live
	for hungUp, over := false, false; !r.stop.Load() && !over; {
		if r.poll(wait); r.program != nil && wait > soonTime && time.Since(began) > promptTime {
			time.Sleep(soonTime * time.Millisecond) // every record wakes, and seldom comes alone
		}
		r.queue.room(r.stop.Load)
		wait = pollTime
		if r.before != nil {
			r.before()
		}
		if r.round() {
			wait = soonTime
			if time.Since(began) < promptTime {
				wait = 1
			}
		}
		if r.again() {
			wait = 1
		}
		ended := r.ends && r.live == 0
		if ended && !hungUp {
			leaving = r.last() // this round had the beginnings of all
		}
		if hungUp = ended; ended {
			leaving = r.leaving(leaving)
			over, wait = len(leaving) == 0, leaveTime
		}
	}
	r.enable(false)
	if r.program != nil {
		r.program.End(r.space)
	}
	r.round()
	r.tellMissed()
	r.out.close()
	r.queue.close(r.fault)
}

// last returns the processes that may free their memory after their events have gone. Kernels since June 2025, stable ones too, take the
// events of a thread away before, openEnd's included. Programs and the events of processors still see it.
func (r *Recorder) last() []int32 {
	if !r.family || r.program == nil && r.tree == nil {
		return nil
	}
	return slices.Concat(r.scope.Processes(), r.kin.Processes())
}

// leaving returns those of some processes that have a thread which ends, and is no zombie yet. Others run without events: an execve that gains rights
// takes them away.
func (r *Recorder) leaving(pids []int32) []int32 {
	return slices.DeleteFunc(pids, func(pid int32) bool {
		is, ok := originOf(int(pid))
		if !ok || !r.member(int(pid), is.start) {
			return true
		}
		tids, _ := procfs.Threads(int(pid)) // the leader is a zombie until the other threads have gone
		return !slices.ContainsFunc(tids, func(tid int) bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
			return err == nil && procfs.Exiting(stat)
		})
	})
}

// tellMissed writes a record of what was lost and never said: the kernel writes a LOST record in front of the next record that finds room, and
// behind the last loss there may be none. Before it comes the code which the lost records may have told of.
func (r *Recorder) tellMissed() {
	r.flush()
	for _, t := range r.targets {
		r.missed += t.missed()
	}
	r.missed += (&target{fds: r.code}).missed()
	told := r.lost.Load() + r.unheard
	if max(told, r.missed) > 0 && !r.late.Load() {
		r.codeAgain()
	}
	if r.missed > told {
		lost := r.dec.Append(nil, 0, &source.Record{Type: source.RecordLostSamples, Time: monotonic(), Lost: r.missed - told})
		copy(r.space(len(lost)), lost)
		r.flush()
	}
}

// codeAgain tells again of the code that the kernel has made, where a record that told of some may be lost: nobody else names it in a recording.
// Code that has gone unheard stays nameless, or has the name of what was there before or after it. It is done once, at the end: it takes 50 ms and
// more.
func (r *Recorder) codeAgain() {
	if r.kallsyms == nil {
		return
	}
	s := synth{dec: r.dec, ids: &r.ids, code: true, time: monotonic()}
	for s.kallsyms(r.kallsyms); len(s.b) > 0; {
		var raw []byte
		if raw, s.b = cutRecord(s.b); binary.LittleEndian.Uint32(raw) == source.RecordKsymbol {
			copy(r.space(len(raw)), raw)
		}
	}
	r.flush()
}

// poll waits until there is something to read, to end, or until so many milliseconds are over. Waiting is Go's own poller's: a
// system call that blocks would keep its scheduler awake, which costs more than all else that a quiet recording does.
func (r *Recorder) poll(wait int) {
	var events [16]unix.EpollEvent
	n, woken := 0, false
	r.ready.SetReadDeadline(time.Now().Add(time.Duration(wait) * time.Millisecond))
	r.readyConn.Read(func(fd uintptr) bool {
		n, _ = unix.EpollWait(int(fd), events[:], 0)
		done := n > 0 || woken // a ring says once that it is ready, and has said so to the poller
		woken = true
		return done
	})
	for _, ev := range events[:max(n, 0)] {
		if ev.Fd < 0 || ev.Events&(unix.EPOLLHUP|unix.EPOLLERR) == 0 {
			continue
		}
		t := r.targets[ev.Fd]
		for _, fd := range t.fds {
			if fd >= 0 && unix.EpollCtl(r.epoll, unix.EPOLL_CTL_DEL, fd, nil) == nil {
				r.live--
			}
		}
		r.closeTarget(t)
	}
}

var finishedRound = func() []byte {
	b := binary.LittleEndian.AppendUint32(nil, source.RecordFinishedRound)
	return binary.LittleEndian.AppendUint32(b, recordHeader<<16)
}()

// round reads each ring once, up to where it is when its turn comes. What was written before the round began is
// then out of all rings, which is what a FINISHED_ROUND record says. It says whether the program wants another one soon.
func (r *Recorder) round() (again bool) {
	r.rounds.Add(1)
	began := monotonic()
	var n, shortened uint64
	for _, g := range r.rings {
		k, err := g.drain(r.shape.StackSize, r.copyLimit(), r.space)
		n += k
		shortened += g.shortened
		if err != nil && r.fault == nil {
			r.fault = err
		}
	}
	r.shorter.Store(shortened)
	if r.program != nil {
		r.flush() // it has seen all
		again = r.program.Samples(began, func(size int) []byte {
			n += uint64(size)
			if r.reading.Load() {
				return make([]byte, size) // as ring.drain does
			}
			return r.space(size)
		})
	}
	r.bytes.Add(n)
	if n > 0 || r.unsettled {
		// After a round with nothing in it all that came before is due.
		copy(r.space(len(finishedRound)), finishedRound)
		r.unsettled = n > 0
	}
	r.flush()
	return again
}

// copyLimit is how much of a copied stack to keep. Where the kernel walks stacks, copies wait for tables that are still made, and more of them
// come the longer this takes: so as their memory grows they get smaller: half a percent of a compiler's stacks have more than 32 KiB. Copies that
// this makes shorter are counted: Stats.Shortened. They are anybody's, whosever copies wait.
func (r *Recorder) copyLimit() uint32 {
	if r.program == nil || r.chosen {
		return r.shape.StackSize
	}
	wait := r.out.copies.Load()
	if wait >= r.memory.none {
		return emptyCopy
	}
	limit := r.shape.StackSize
	for full := r.memory.shrink; wait >= full && limit > leastCopy; full += r.memory.shrink {
		limit = max(limit/2&^7, leastCopy)
	}
	return limit
}

// From leastCopy on copies get no smaller, until too many wait: from then on a sample has its registers, and emptyCopy bytes. It counts, and its
// stack is cut off.
const (
	leastCopy = 4 << 10
	emptyCopy = 16

	shrinkCopies = 12 << 20 // bytes of samples with copies, until copies get half as large: memory.shrink at most
)

// space returns room for a record, when what came before it has been looked at.
func (r *Recorder) space(n int) []byte {
	if !r.out.fits(n) {
		r.flush()
	}
	return r.out.space(n)
}

// pastPeriod is where the period ends in a sample for a Program: behind identifier, address, thread, time and processor. At
// tracepoints it is the program that counts to it.
const pastPeriod = recordHeader + 6*8

// flush looks at the records that have been written and hands them on.
func (r *Recorder) flush() {
	for b := r.out.pending(); len(b) > 0; {
		var raw []byte
		raw, b = cutRecord(b)
		r.records.Add(1)
		made := binary.LittleEndian.Uint16(raw[4:])&source.MiscAgain != 0 // by a repair
		if !made {
			r.ids.identify(raw, r.dec, &r.rec)
		}
		if r.program != nil {
			r.program.Observe(raw)
		}
		switch binary.LittleEndian.Uint32(raw) {
		case source.RecordSample:
			if r.program != nil && len(raw) >= recordHeader+8 && !source.Walks(binary.LittleEndian.Uint64(raw[recordHeader:])) {
				r.out.copied(len(raw))
			}
			if r.trigger.Period > 1 && len(raw) > pastPeriod && !source.Walks(binary.LittleEndian.Uint64(raw[recordHeader:])) {
				binary.LittleEndian.PutUint64(raw[pastPeriod-8:], r.trigger.Period)
			}
		case source.RecordFork:
			if len(r.direct) > 0 && !made {
				r.forked(raw)
			}
			r.follow(raw)
		case source.RecordComm, source.RecordExit:
			r.follow(raw)
		case source.RecordLost:
			if len(raw) >= recordHeader+16 {
				n := binary.LittleEndian.Uint64(raw[recordHeader+8:])
				if r.lostEarly(raw) {
					r.unheard += n
					clear(raw[recordHeader+8 : recordHeader+16])
				} else {
					r.lost.Add(n)
				}
			}
			r.repair.lose()
		case source.RecordLostSamples: // of samples only: the kernel counts other records that it loses in LOST records
			if len(raw) >= recordHeader+8 {
				r.lostSmp.Add(binary.LittleEndian.Uint64(raw[8:]))
			}
		case source.RecordFinishedRound:
			r.records.Add(^uint64(0))
		}
	}
	r.out.flush()
}

// follow keeps up with which processes are recorded, where these are not all.
func (r *Recorder) follow(raw []byte) {
	if r.kin != nil && r.dec.Decode(raw, &r.rec) == nil {
		if r.mark(&r.rec); r.family {
			r.kin.Apply(&r.rec)
		}
	}
}

// cutRecord splits the first record off. b has whole records.
func cutRecord(b []byte) (raw, rest []byte) {
	n := binary.LittleEndian.Uint16(b[6:])
	return b[:n:n], b[n:]
}
