package source

import "testing"

// TestMembers: a command's process is in its tree from its execve on, what it and its children start as long as no other process has the
// number, and nobody else.
func TestMembers(t *testing.T) {
	tree := &Tree{}
	tree.Start(10)
	m := tree.Members()
	for i, c := range []struct {
		r   Record
		has bool
	}{
		{Record{Type: RecordFork, PID: 10, PPID: 1}, false},
		{Record{Type: RecordMmap2, PID: 10}, false},
		{Record{Type: RecordComm, PID: 10}, false},
		{Record{Type: RecordComm, PID: 11, Misc: MiscCommExec}, false},
		{Record{Type: RecordComm, PID: 10, Misc: MiscCommExec}, true},
		{Record{Type: RecordMmap2, PID: 10}, true},
		{Record{Type: RecordMmap2, PID: 11}, false},
		{Record{Type: RecordMmap, PID: -1}, true},
		{Record{Type: RecordFork, PID: 10, TID: 12, PPID: 10, PTID: 10}, true},
		{Record{Type: RecordFork, PID: 13, PPID: 10}, true},
		{Record{Type: RecordFork, PID: 14, PPID: 13}, true},
		{Record{Type: RecordExit, PID: 13, PPID: 10}, true},
		{Record{Type: RecordFork, PID: 13, PPID: 1}, false},
		{Record{Type: RecordExit, PID: 13, PPID: 1}, false},
		{Record{Type: RecordLost, PID: 13, Lost: 1}, true},
		{Record{Type: RecordExit, PID: 14, PPID: 1}, true},
	} {
		if has := m.Apply(&c.r); has != c.has {
			t.Errorf("record %d, %+v: %v", i, c.r, has)
		}
	}
	if !m.Has(10) || !m.Has(14) || m.Has(12) || m.Has(13) || m.Has(1) {
		t.Errorf("%v", m.pids)
	}
	m = NewTree([]int32{20, 21}).Members()
	for i, c := range []struct {
		r   Record
		has bool
	}{
		{Record{Type: RecordFork, PID: 20, TID: 22, PPID: 20, PTID: 20}, true}, // as it is synthesised
		{Record{Type: RecordComm, PID: 20}, true},
		{Record{Type: RecordMmap2, PID: 21}, true},
		{Record{Type: RecordComm, PID: 23, Misc: MiscCommExec}, false},
		{Record{Type: RecordFork, PID: 24, PPID: 20}, true},
		{Record{Type: RecordComm, PID: 24, Misc: MiscCommExec}, true},
		{Record{Type: RecordFork, PID: 25, PPID: 23}, false},
		{Record{Type: RecordExit, PID: 21}, true},
		{Record{Type: RecordFork, PID: 21, PPID: 23}, false},
	} {
		if has := m.Apply(&c.r); has != c.has {
			t.Errorf("of processes: record %d, %+v: %v", i, c.r, has)
		}
	}
	var all *Tree
	if m := all.Members(); !m.Has(1) || !m.Apply(&Record{Type: RecordComm, PID: 1}) {
		t.Error("somebody is not in no tree")
	}
}
