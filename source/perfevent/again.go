package perfevent

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
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
	wanted bool // records were lost since the last one began
	next   time.Time
	asked  time.Time // when the events were asked for what they have lost
	missed uint64    // and said

	pids    []int         // to be looked at: who their parents are, or with all processes recorded what they are
	parents map[int]int32 // of the processes that have been; nil: all are recorded
	found   []int         // of these to be read, parents first
	owned   map[uint32]int
	took    time.Duration
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
		return false
	default:
		p.asked = time.Time{}
		r.countMissed(now) // all that is read makes up for
		p.wanted, p.took, p.owned = false, 0, map[uint32]int{}
		p.pids, _ = procfs.Numbers("/proc")
		if p.parents = nil; !r.all {
			p.parents = map[int]int32{}
		}
	}
	s := synth{dec: r.dec, ids: &r.ids, owned: p.owned, ended: r.stop.Load, misc: source.MiscAgain}
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
		for len(s.b) > 0 {
			var raw []byte
			raw, s.b = cutRecord(s.b)
			copy(r.space(len(raw)), raw)
			r.unsettled = true
		}
	}
	r.flush()
	if p.took += time.Since(now); !p.busy() {
		p.next = time.Now().Add(max(againTime, againShare*p.took))
	}
	return p.busy()
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
