package source

import (
	"maps"
	"slices"
	"sync/atomic"
)

// A Tree is a command, or running processes, and all processes they start. A recording of a Tree can read the events of all processes: an
// event of a processor samples at every moment alike, one of a short process begins anew with each. The zero Tree has no command yet.
type Tree struct {
	root atomic.Int32
	pids []int32
}

// NewTree returns the Tree of processes that run already.
func NewTree(pids []int32) *Tree { return &Tree{pids: pids} }

// Processes are the processes running at the start.
func (t *Tree) Processes() []int32 { return t.pids }

// Start says which process the command is, before any of its records is used.
func (t *Tree) Start(pid int) { t.root.Store(int32(pid)) }

// Members returns the processes in t before the first record: who ran already. That of a nil Tree has everybody.
func (t *Tree) Members() *Members {
	if t == nil {
		return nil
	}
	m := &Members{tree: t, pids: map[int32]member{}, others: map[int32]member{0: {}}}
	for _, pid := range t.pids {
		m.pids[pid] = member{}
	}
	return m
}

// Members are the processes of a Tree over time, the command from its execve on. Of those that have ended, it forgets the ones whose beginning it has
// seen, afterlife later. They are for one goroutine.
type Members struct {
	tree   *Tree
	pids   map[int32]member
	others map[int32]member // processes that are not in the tree: seen before a record was lost, or started by another one of these
	lossy  bool             // a record was lost: the start of a process may have been
	losses uint32           // how often
	ended  []ended          // by the times when they have told of it
}

// A member is what is known of a process.
type member struct {
	threads int32  // that run; 0: not known; over: none does
	losses  uint32 // of Members when the process began: later, threads may have come and gone unseen
	end     uint64 // when the last one ended
}

const over = -1

// An ended is a process that has ended.
type ended struct {
	pid  int32
	time uint64
}

// afterlife is how long after its end something may come of a process, ns: the kernel writes the last samples of a thread after its EXIT record, and
// a recorder reads the rings of other processors later.
const afterlife = 10e9

// Uncertain says whether a process that is not in m may belong there: since records were lost, nothing has said where it comes from. So may be
// processes that slept until then; what is uncertain is an upper bound.
func (m *Members) Uncertain(pid int32) bool {
	if m == nil || has(m.pids, pid) || has(m.others, pid) {
		return false
	}
	if !m.lossy {
		m.exclude(pid, member{})
	}
	return m.lossy
}

func has(in map[int32]member, pid int32) bool {
	_, ok := in[pid]
	return ok
}

func (m *Members) exclude(pid int32, p member) {
	if len(m.others) < maxThreads {
		m.others[pid] = p
	}
}

// Has says whether a process is in m, or was until it ended.
func (m *Members) Has(pid int32) bool { return m == nil || has(m.pids, pid) }

// Processes returns the processes in m: those of which Has is true.
func (m *Members) Processes() []int32 { return slices.Collect(maps.Keys(m.pids)) }

// Apply brings m up to date with a record, in time order, and says whether the record concerns m: one of a process in it, or of none.
func (m *Members) Apply(r *Record) bool {
	if m == nil {
		return true
	}
	switch r.Type {
	case RecordComm:
		if (r.Exec() || r.Misc&MiscAgain != 0) && r.PID == m.tree.root.Load() && !m.Has(r.PID) {
			m.pids[r.PID] = member{}
		}
	case RecordFork:
		m.forget(r.Time)
		if r.PID == r.PPID {
			m.count(r, 1)
			break
		}
		uncertain := m.Uncertain(r.PPID)
		delete(m.pids, r.PID)
		delete(m.others, r.PID)
		p := member{losses: m.losses}
		if r.Misc&MiscAgain == 0 {
			p.threads = 1
		}
		if m.Has(r.PPID) && len(m.pids) < maxThreads {
			m.pids[r.PID] = p
		} else if !uncertain {
			m.exclude(r.PID, p)
		}
	case RecordLost:
		if r.Lost > 0 {
			m.lossy = true
			m.losses++
		}
		return true
	case RecordExit:
		m.forget(r.Time)
		m.count(r, -1)
	case RecordRead:
	case RecordMmap, RecordMmap2:
		if r.PID == -1 { // the kernel's
			return true
		}
	default:
		return true
	}
	return m.Has(r.PID)
}

// count counts a thread that begins or ends.
func (m *Members) count(r *Record, n int32) {
	in := m.pids
	p, ok := in[r.PID]
	if !ok {
		in = m.others
		p, ok = in[r.PID]
	}
	switch {
	case !ok || p.threads == 0:
		return
	case p.threads == over || p.losses != m.losses: // no end: the beginning of another thread comes late
		p.threads, p.end = 0, 0
	default:
		if p.threads += n; p.threads == 0 {
			p.threads, p.end = over, r.Time
			m.ended = append(m.ended, ended{r.PID, r.Time})
		}
	}
	in[r.PID] = p
}

// forget forgets processes that had ended well before now.
func (m *Members) forget(now uint64) {
	n := 0
	for ; n < len(m.ended) && m.ended[n].time+afterlife < now; n++ {
		e := m.ended[n]
		for _, in := range []map[int32]member{m.pids, m.others} {
			if p, ok := in[e.pid]; ok && p.threads == over && p.end == e.time && p.losses == m.losses {
				delete(in, e.pid)
			}
		}
	}
	m.ended = m.ended[n:]
}
