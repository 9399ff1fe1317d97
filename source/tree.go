package source

import "sync/atomic"

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
	m := &Members{tree: t, pids: map[int32]bool{}, others: map[int32]bool{0: true}}
	for _, pid := range t.pids {
		m.pids[pid] = true
	}
	return m
}

// Members are the processes of a Tree over time, the command from its execve on. They are for one goroutine.
type Members struct {
	tree   *Tree
	pids   map[int32]bool
	others map[int32]bool // processes that are not in the tree: seen before a record was lost, or started by another one of these
	lossy  bool           // a record was lost: the start of a process may have been
}

// Adrift says whether a process that is not in m may belong there: since records were lost, nothing has said where it comes from. So may be
// processes that slept until then; what is adrift is an upper bound.
func (m *Members) Adrift(pid int32) bool {
	if m == nil || m.pids[pid] || m.others[pid] {
		return false
	}
	if !m.lossy {
		m.exclude(pid)
	}
	return m.lossy
}

func (m *Members) exclude(pid int32) {
	if len(m.others) < maxThreads {
		m.others[pid] = true
	}
}

// Has says whether a process is in m, or was until it ended.
func (m *Members) Has(pid int32) bool { return m == nil || m.pids[pid] }

// Apply brings m up to date with a record, in time order, and says whether the record concerns m: one of a process in it, or of none.
func (m *Members) Apply(r *Record) bool {
	if m == nil {
		return true
	}
	switch r.Type {
	case RecordComm:
		if (r.Exec() || r.Misc&MiscAgain != 0) && r.PID == m.tree.root.Load() {
			m.pids[r.PID] = true
		}
	case RecordFork:
		if r.PID != r.PPID { // else a thread
			adrift := m.Adrift(r.PPID)
			delete(m.pids, r.PID)
			delete(m.others, r.PID)
			if m.pids[r.PPID] && len(m.pids) < maxThreads {
				m.pids[r.PID] = true
			} else if !adrift {
				m.exclude(r.PID)
			}
		}
	case RecordLost:
		m.lossy = m.lossy || r.Lost > 0
		return true
	case RecordExit, RecordRead:
	case RecordMmap, RecordMmap2:
		if r.PID == -1 { // the kernel's
			return true
		}
	default:
		return true
	}
	return m.pids[r.PID]
}
