package perfevent

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
)

// againTime is how soon after each other /proc is read again, sliceTime how long the rings wait for that at a time: but for one process, whose
// mappings are read at once. Reading takes a tenth of the drainer's time at most.
const (
	againTime  = time.Second
	sliceTime  = 5 * time.Millisecond
	againShare = 10
	maxCounted = 1 << 10 // events that are asked now and then how many records they have lost
)

// A repair makes up for lost records: it reads names and mappings of the processes concerned from /proc again, and who has started those that are
// not known. What its records say is of the time before it was read, so what the kernel writes after that replaces it.
type repair struct {
	wanted bool      // records were lost since the last one began
	next   time.Time // when the next may begin
	rest   time.Time // until when no single process is read
	asked  time.Time // when the events were asked for what they have lost
	missed uint64    // and said

	pids    []int         // to be looked at: who their parents are, or with all processes recorded what they are
	parents map[int]int32 // of the processes that have been; nil: all are recorded
	found   []int         // of these to be read, parents first
	owned   map[uint32]int
	took    time.Duration

	mu       sync.Mutex
	unmapped map[int32]bool // processes with stacks that lead to addresses in no known mapping: see Unmapped
	some     atomic.Bool    // there are some
	tried    map[int32]trial
}

// A trial says when a process was read whose stack led to an address in no known mapping. If that recurs, it may be read again after a second, then
// two, four, up to maxTrial: some stacks lead to addresses where nothing is.
type trial struct {
	next time.Time
	wait time.Duration
}

const (
	maxTrial    = time.Minute
	maxUnmapped = 1 << 10 // processes
)

// Unmapped says that a stack of a process leads to an address in no known mapping: mremap(2) writes no record. See source.RecordStream.
func (r *Recorder) Unmapped(pid int32) {
	p := &r.repair
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.unmapped) < maxUnmapped {
		if p.unmapped == nil {
			p.unmapped = map[int32]bool{}
		}
		p.unmapped[pid] = true
		p.some.Store(true)
	}
}

// due returns the processes of Unmapped that may be read now.
func (p *repair) due(now time.Time) (pids []int) {
	if !p.some.Load() || now.Before(p.rest) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for pid := range p.unmapped {
		if t := p.tried[pid]; !now.Before(t.next) {
			if p.tried == nil || len(p.tried) >= maxUnmapped {
				p.tried = map[int32]trial{}
			}
			t.wait = min(max(2*t.wait, againTime), maxTrial)
			t.next = now.Add(t.wait)
			p.tried[pid] = t
			pids = append(pids, int(pid))
		}
	}
	clear(p.unmapped) // who is not due asks again
	p.some.Store(false)
	return pids
}

// lose notes that records were lost.
func (p *repair) lose() { p.wanted = true }

// busy says whether a repair is under way.
func (p *repair) busy() bool { return len(p.pids)+len(p.found) > 0 }

// again goes on with a repair or begins one that is due, and says whether it has more to do.
func (r *Recorder) again() bool {
	p := &r.repair
	now := time.Now()
	r.countMissed(now)
	switch {
	case p.busy():
	case !p.wanted || now.Before(p.next):
		return r.single(now)
	default:
		p.asked = time.Time{}
		r.countMissed(now) // all that is read makes up for
		p.wanted, p.took, p.owned = false, 0, map[uint32]int{}
		p.pids, _ = procfs.Numbers("/proc")
		if p.parents = nil; !r.all {
			p.parents = map[int]int32{}
		}
	}
	s := r.repairing(p.owned)
	for p.busy() && !r.stop.Load() && time.Since(now) < sliceTime {
		switch {
		case len(p.pids) > 0 && p.parents != nil:
			pid := p.pids[0]
			if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
				p.parents[pid] = parentOf(stat)
			}
			if p.pids = p.pids[1:]; len(p.pids) == 0 {
				p.found = r.concerned(p.parents)
			}
		case len(p.pids) > 0:
			s.again(p.pids[0], 0)
			p.pids = p.pids[1:]
		default:
			pid, parent := p.found[0], int32(0)
			if !r.kin.Has(int32(pid)) && pid != r.root {
				parent = p.parents[pid]
			}
			s.again(pid, parent)
			p.found = p.found[1:]
		}
		r.write(&s)
	}
	r.flush()
	if p.took += time.Since(now); !p.busy() {
		p.next = time.Now().Add(max(againTime, againShare*p.took))
	}
	return p.busy()
}

func (r *Recorder) repairing(owned map[uint32]int) synth {
	return synth{dec: r.dec, ids: &r.ids, owned: owned, ended: r.stop.Load, misc: source.MiscAgain}
}

// write hands on what s has made.
func (r *Recorder) write(s *synth) {
	for len(s.b) > 0 {
		var raw []byte
		raw, s.b = cutRecord(s.b)
		copy(r.space(len(raw)), raw)
		r.unsettled = true
	}
}

// single reads the processes again whose stacks lead to addresses in no known mapping, and that are due. It says whether it has read any.
func (r *Recorder) single(now time.Time) bool {
	p := &r.repair
	pids := p.due(now)
	if len(pids) == 0 {
		return false
	}
	s := r.repairing(map[uint32]int{})
	for _, pid := range pids {
		if r.kin.Has(int32(pid)) || pid == r.root {
			s.again(pid, 0)
		}
		r.write(&s)
		if time.Since(now) > sliceTime {
			break // the others ask again
		}
	}
	r.flush()
	p.rest = time.Now().Add(againShare * time.Since(now))
	return true
}

// countMissed asks the events whether records were lost that no record has told of: the kernel writes a LOST record in front of the next one that
// finds room.
func (r *Recorder) countMissed(now time.Time) {
	p := &r.repair
	if now.Sub(p.asked) < againTime || len(r.targets)*len(r.cpus) > maxCounted {
		return
	}
	p.asked = now
	missed := r.missed
	for _, t := range r.targets {
		missed += t.missed()
	}
	if missed > p.missed {
		p.missed = missed
		p.lose()
	}
}

// concerned returns the processes that are recorded, each behind its parent.
func (r *Recorder) concerned(parents map[int]int32) (pids []int) {
	const unknown, no, yes = 0, 1, 2
	verdict := map[int]int{}
	for pid := range parents {
		var chain []int
		at := pid
		for verdict[at] == unknown && !r.kin.Has(int32(at)) && at != r.root {
			parent, ok := parents[at]
			verdict[at] = no // as long as nothing else is known; numbers that were used again may lead in a circle
			if chain = append(chain, at); !ok || parent <= 0 || !r.family {
				break
			}
			at = int(parent)
		}
		in := verdict[at] == yes || r.kin.Has(int32(at)) || at == r.root && r.root != 0
		if in && verdict[at] != yes {
			if _, lives := parents[at]; lives {
				pids = append(pids, at)
			}
			verdict[at] = yes
		}
		for i := len(chain) - 1; i >= 0 && in; i-- {
			if verdict[chain[i]] = yes; chain[i] != at {
				pids = append(pids, chain[i])
			}
		}
	}
	return pids
}

// parentOf returns the process that a text of /proc/PID/stat names as the parent; 0 if it names none.
func parentOf(stat []byte) int32 {
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name, in parentheses, may contain some
	if len(f) < 2 {
		return 0
	}
	n, _ := strconv.ParseInt(string(f[1]), 10, 32)
	return int32(n)
}

// again makes the records of a process as it is now. Where its parent is given, nobody has told that it began.
func (s *synth) again(pid int, parent int32) {
	s.time = monotonic()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return
	}
	tids, _ := procfs.Threads(pid)
	if state := procfs.State(stat); (state == 'Z' || state == 'X') && len(tids) < 2 {
		return
	}
	if parent != 0 {
		s.add(&source.Record{Type: source.RecordFork, Misc: source.MiscForkExec, PID: int32(pid), TID: int32(pid), PPID: parent, PTID: parent})
	}
	at := len(s.b)
	if s.comm(pid, pid); len(s.b) == at {
		return // it has ended
	}
	if n, whole := s.maps(pid); n == 0 || !whole {
		// A thread of the kernel's, another user's process, or one with too many: what is known of it stays.
		binary.LittleEndian.PutUint16(s.b[at+4:], 0)
	}
	for _, tid := range tids {
		if tid != pid {
			s.comm(pid, tid)
		}
	}
}
