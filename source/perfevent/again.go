package perfevent

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
)

// againTime is how soon after each other /proc is read again. The rings wait for that until sliceTime is over at the end of a process. One process
// takes oneTime at most: what is not read by then stays as it is known. Reading takes a tenth of the drainer's time at most.
const (
	againTime  = time.Second
	sliceTime  = 5 * time.Millisecond
	oneTime    = 20 * time.Millisecond
	againShare = 10
	maxCounted = 1 << 10 // events of threads that are asked now and then how many records they have lost
)

// A repair makes up for lost records: it reads names and mappings of the processes concerned from /proc again, and who has started those that are
// not known. What its records say is of the time before it was read, so what the kernel writes after that replaces it.
type repair struct {
	wanted bool      // records were lost since the last one began
	next   time.Time // when the next may begin
	rest   time.Time // until when no single process is read
	asked  time.Time // when the events were asked for what they have lost
	missed uint64    // and said

	pids    []int          // to be looked at: where they come from, or with all processes recorded what they are
	origins map[int]origin // of the processes that have been; nil: all are recorded
	found   []int          // of these to be read, parents first
	owned   map[uint32]int
	took    time.Duration

	since uint64           // when the processes were attached to, in ticks: what they had started is not recorded; 0: a command is
	began map[int32]uint64 // when recorded processes began, or were found, in ticks: whoever began later with such a number is another one
	ended map[int32]uint64 // when they exited: the same, instead of began. One whose exit was lost is in began
	sweep int              // how many have ended when those are forgotten that kin has forgotten

	mu     sync.Mutex
	unread map[int32]debt // processes with stacks that lead to addresses in no known mapping: see Unmapped; and those whose reading took too long
	some   atomic.Bool    // there are some
	tried  map[int32]trial
}

// A debt says of a process that is to be read alone whether a repair owes that: then nobody asks for it again.
type debt struct {
	owed  bool
	start uint64 // of the process that is owed, in ticks, where it is known: whether it is recorded is not asked again
}

// An origin is what /proc/PID/stat says of how a process began. Times are in ticks of the boot clock, as there.
type origin struct {
	parent int32
	start  uint64
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
	r.repair.want(pid, debt{})
}

// want notes a process that is to be read alone.
func (p *repair) want(pid int32, d debt) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !d.owed && (p.unread[pid].owed || len(p.unread) >= maxUnmapped) {
		return
	}
	if p.unread == nil {
		p.unread = map[int32]debt{}
	}
	p.unread[pid] = d
	p.some.Store(true)
}

// due returns the processes of want that may be read now. Of the others, whoever is not owed asks again.
func (p *repair) due(now time.Time) (pids []int) {
	if !p.some.Load() || now.Before(p.rest) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for pid, d := range p.unread {
		if !now.Before(p.tried[pid].next) {
			pids = append(pids, int(pid))
		} else if !d.owed {
			delete(p.unread, pid)
		}
	}
	p.some.Store(len(p.unread) > 0)
	return pids
}

// take forgets a process of want, which is read now, and returns what was owed.
func (p *repair) take(pid int32) debt {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := p.unread[pid]
	delete(p.unread, pid)
	p.some.Store(len(p.unread) > 0)
	return d
}

// charge notes that a process is read because its stacks lead to addresses in no known mapping.
func (p *repair) charge(pid int32, now time.Time) {
	t := p.tried[pid]
	if p.tried == nil || len(p.tried) >= maxUnmapped {
		p.tried = map[int32]trial{}
	}
	if now.Sub(t.next) > maxTrial {
		t.wait = 0 // it is not the last one's recurrence
	}
	t.wait = min(max(2*t.wait, againTime), maxTrial)
	t.next = now.Add(t.wait)
	p.tried[pid] = t
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
		if p.origins = nil; !r.all {
			p.origins = map[int]origin{}
		}
	}
	s := r.repairing(p.owned)
	for p.busy() && !r.stop.Load() && time.Since(now) < sliceTime {
		switch {
		case len(p.pids) > 0 && p.origins != nil:
			pid := p.pids[0]
			if is, ok := originOf(pid); ok {
				p.origins[pid] = is
			}
			if p.pids = p.pids[1:]; len(p.pids) == 0 {
				p.found = r.concerned(p.origins)
				r.reportReused(&s, p.origins, p.found)
			}
		case len(p.pids) > 0:
			r.read(&s, p.pids[0], origin{})
			p.pids = p.pids[1:]
		default:
			pid := p.found[0]
			is := p.origins[pid]
			if r.member(pid, is.start) {
				is.parent = 0
			}
			r.read(&s, pid, is)
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

// read makes the records of a process: see synth.again. Where that takes too long, it is tried again: by then build IDs are known.
func (r *Recorder) read(s *synth, pid int, is origin) {
	if !s.again(pid, is) {
		r.repair.want(int32(pid), debt{true, is.start})
	}
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
		d := p.take(int32(pid))
		p.charge(int32(pid), now)
		if is, ok := originOf(pid); ok && (is.start == d.start || r.member(pid, is.start)) {
			r.read(&s, pid, origin{start: is.start})
		}
		r.write(&s)
		if time.Since(now) > sliceTime {
			break // the others are due
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
	if now.Sub(p.asked) < againTime {
		return
	}
	p.asked = now
	targets := r.targets
	if r.plug.target != nil {
		targets = []*target{r.plug.target} // the others count nothing: see openEnd
	}
	open := 0
	for _, t := range targets {
		open += t.open()
	}
	if open <= maxCounted || r.plug.target != nil {
		missed := r.missed
		for _, t := range targets {
			missed += t.missed()
		}
		if missed > p.missed {
			p.missed = missed
			p.lose()
		}
	}
	r.replug()
}

// mark notes what a record says of when recorded processes begin and end.
func (r *Recorder) mark(rec *source.Record) {
	p := &r.repair
	switch {
	case rec.Type == source.RecordFork && rec.PID != rec.PPID && r.family: // else what is told to have begun is never recorded
		delete(p.ended, rec.PID)
		delete(p.began, rec.PID)
		if r.kin.Has(rec.PPID) {
			p.start(rec.PID, bootTicks(rec.Time))
		}
	case rec.Type == source.RecordExit && rec.PID == rec.TID && r.kin.Has(rec.PID):
		if p.ended == nil {
			p.ended = map[int32]uint64{}
		}
		p.ended[rec.PID] = bootTicks(rec.Time)
		delete(p.began, rec.PID)
		if len(p.ended) > p.sweep {
			maps.DeleteFunc(p.ended, func(pid int32, _ uint64) bool { return !r.kin.Has(pid) })
			p.sweep = 2*len(p.ended) + 256
		}
	}
}

// start notes when a recorded process began, in ticks.
func (p *repair) start(pid int32, at uint64) {
	if p.began == nil {
		p.began = map[int32]uint64{}
	}
	p.began[pid] = at
}

// reportReused says of processes that have the numbers of recorded ones and are others that they have begun, by whom: their own FORK records were lost, and
// so may be the EXIT records of those before them.
func (r *Recorder) reportReused(s *synth, procs map[int]origin, concerned []int) {
	for pid, is := range procs {
		if r.kin.Has(int32(pid)) && !r.member(pid, is.start) && !slices.Contains(concerned, pid) {
			s.time = monotonic()
			s.add(&source.Record{Type: source.RecordFork, PID: int32(pid), TID: int32(pid), PPID: is.parent, PTID: is.parent})
		}
	}
}

// member says whether a process that began at start is known to be recorded. /proc rounds a start down to a tick, and so does bootTicks.
func (r *Recorder) member(pid int, start uint64) bool {
	if r.root != 0 && pid == r.root {
		return true // until the recording ends
	}
	end, ended := r.repair.ended[int32(pid)]
	begin, began := r.repair.began[int32(pid)]
	return r.kin.Has(int32(pid)) && !(ended && start > end) && !(began && start > begin+startSlack)
}

// startSlack is how many ticks /proc may say that a process began after the time in its FORK record. The kernel takes the start first, but the clocks
// are read one after another.
const startSlack = 2

// concerned returns the processes that are recorded, each behind its parent: those that are known, and whom these have started since they
// were attached to.
func (r *Recorder) concerned(procs map[int]origin) (pids []int) {
	verdict := map[int]bool{}
	var concerns func(pid int) bool
	concerns = func(pid int) bool {
		yes, ok := verdict[pid]
		if ok {
			return yes
		}
		verdict[pid] = false // numbers that were used again may lead in a circle
		is, lives := procs[pid]
		yes = r.member(pid, is.start) || r.family && is.parent > 0 && is.start > r.repair.since && concerns(int(is.parent))
		if verdict[pid] = yes; yes && lives {
			pids = append(pids, pid)
		}
		return yes
	}
	for pid := range procs {
		concerns(pid)
	}
	return pids
}

// tick is the unit of times in /proc/PID/stat, ns: USER_HZ is 100 on all machines that are recorded.
const tick = 1e9 / 100

// bootTicks returns the time in ticks of the boot clock that it was at a time of CLOCK_MONOTONIC, unless the machine has slept since.
func bootTicks(at uint64) uint64 {
	var boot unix.Timespec
	now := monotonic()
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil {
		return at / tick
	}
	return (at + uint64(boot.Nano()) - now) / tick
}

// originOf reads how a process began. ok is false if it has gone.
func originOf(pid int) (o origin, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return o, false
	}
	return parseOrigin(stat), true
}

// parseOrigin reads a text of /proc/PID/stat; what it does not say is 0.
func parseOrigin(stat []byte) (o origin) {
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name, in parentheses, may contain some; the state, field 3, follows
	if len(f) > 22-3 {
		parent, _ := strconv.ParseInt(string(f[4-3]), 10, 32)
		o.parent = int32(parent)
		o.start, _ = strconv.ParseUint(string(f[22-3]), 10, 64)
	}
	return o
}

// again makes the records of a process as it is now, if it is the one that began when is says; 0: whoever it is. Where its parent is given, nobody
// has told that it began. It says whether the time sufficed for all mappings: else what is known of the process stays.
func (s *synth) again(pid int, is origin) bool {
	s.time = monotonic()
	s.until = time.Now().Add(oneTime)
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || is.start != 0 && parseOrigin(stat).start != is.start {
		return true
	}
	if state := procfs.State(stat); state == 'Z' || state == 'X' {
		if tids, _ := procfs.ThreadsUntil(pid, s.stop); len(tids) < 2 {
			return true
		}
	}
	if is.parent != 0 {
		s.add(&source.Record{Type: source.RecordFork, Misc: source.MiscForkExec, PID: int32(pid), TID: int32(pid), PPID: is.parent, PTID: is.parent})
	}
	at := len(s.b)
	if s.comm(pid, pid); len(s.b) == at {
		return true // it has ended
	}
	n, whole := s.maps(pid)
	if !whole && s.stop() {
		s.b = s.b[:at] // a part would count as told of before
		return false
	}
	if n == 0 || !whole {
		// A thread of the kernel's, another user's process, or one with too many: what is known of it stays.
		binary.LittleEndian.PutUint16(s.b[at+4:], 0)
	}
	tids, _ := procfs.ThreadsUntil(pid, s.stop)
	for _, tid := range tids {
		if s.stop() {
			break // the names of the others stay
		}
		if tid != pid {
			s.comm(pid, tid)
		}
	}
	return true
}
