package source

import (
	"slices"
	"testing"
)

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
		{Record{Type: RecordFork, Misc: MiscForkExec | MiscAgain, PID: 15, PPID: 14}, true},
		{Record{Type: RecordComm, Misc: MiscAgain, PID: 15}, true},
		{Record{Type: RecordComm, Misc: MiscAgain, PID: 16}, false},
	} {
		if has := m.Apply(&c.r); has != c.has {
			t.Errorf("record %d, %+v: %v", i, c.r, has)
		}
	}
	if !m.Has(10) || !m.Has(14) || m.Has(12) || m.Has(13) || m.Has(1) {
		t.Errorf("%v", m.pids)
	}
	if m = tree.Members(); !m.Apply(&Record{Type: RecordComm, Misc: MiscAgain, PID: 10}) { // its execve was lost
		t.Errorf("a command that was read again, process 10, is not in its tree: %v", m.pids)
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
		t.Errorf("without a tree, process 1 is recorded: %v, its name is kept: %v; want both", m.Has(1), m.Apply(&Record{Type: RecordComm, PID: 1}))
	}
}

// TestForgotten: processes that have ended are forgotten, 10 s later: those of the tree, and others. Those stay of which records may be missing, or a
// thread runs.
func TestForgotten(t *testing.T) {
	m := NewTree([]int32{10}).Members()
	const second = 1e9
	now := uint64(second)
	fork := func(pid, parent int32) {
		m.Apply(&Record{Type: RecordFork, PID: pid, TID: pid, PPID: parent, Time: now})
	}
	thread := func(pid, tid int32) {
		m.Apply(&Record{Type: RecordFork, PID: pid, TID: tid, PPID: pid, PTID: pid, Time: now})
	}
	exit := func(pid, tid int32) { m.Apply(&Record{Type: RecordExit, PID: pid, TID: tid, PPID: 10, Time: now}) }
	for pid := int32(100); pid < 100000; pid += 2 { // 200 processes a second
		now += second / 100
		fork(pid, 10)
		fork(pid+1, 1)
		exit(pid, pid)
		exit(pid+1, pid+1)
		if !m.Has(pid) || m.Uncertain(pid) || pid > 1000 && !m.Has(pid-100) {
			t.Fatalf("%d is forgotten too early", pid)
		}
	}
	if n, k, e := len(m.pids), len(m.others), len(m.ended); n > 1100 || k > 1100 || e > 2200 {
		t.Errorf("%d processes, %d others, %d that have ended are known after 500 s", n, k, e)
	}
	later := func(d uint64) {
		now += d
		fork(50, 1)
	}
	later(20 * second)
	if len(m.pids) != 1 || len(m.ended) > 0 {
		t.Errorf("%d processes are known 20 s later", len(m.pids))
	}
	fork(200, 10)
	thread(200, 201)
	exit(200, 200) // its first thread
	fork(210, 10)
	exit(210, 210)
	thread(210, 211) // comes late
	fork(220, 10)
	exit(220, 220)
	fork(220, 1) // another process
	fork(230, 10)
	m.Apply(&Record{Type: RecordFork, PID: 240, TID: 240, PPID: 10, Misc: MiscAgain, Time: now}) // read from /proc
	exit(240, 240)
	later(20 * second)
	for pid, want := range map[int32]bool{10: true, 200: true, 210: true, 220: false, 230: true, 240: true} {
		if m.Has(pid) != want {
			t.Errorf("%d is in the tree: %v", pid, !want)
		}
	}
	exit(200, 201)
	later(20 * second)
	if m.Has(200) {
		t.Errorf("process 200, whose last thread ended 20 s ago, is not forgotten: %+v, ended %v", m.pids[200], m.ended)
	}
	fork(250, 10)
	exit(250, 250)
	m.Apply(&Record{Type: RecordLost, Lost: 1, Time: now}) // the beginning of a thread, for one
	exit(230, 230)
	later(20 * second)
	if !m.Has(230) || !m.Has(250) {
		t.Errorf("processes of which a thread may run: 230 is known: %v, 250: %v, want both; %d records were lost", m.Has(230), m.Has(250), m.losses)
	}
}

// TestUncertain: after a record was lost, a process whose start nobody has seen may belong to the tree, and so may what it starts; those seen before,
// and what these start, do not.
func TestUncertain(t *testing.T) {
	m := NewTree([]int32{10}).Members()
	check := func(when string, want ...int32) {
		t.Helper()
		for pid := int32(0); pid < 60; pid++ {
			if has := m.Uncertain(pid); m.lossy && has != slices.Contains(want, pid) {
				t.Errorf("%s: process %d: uncertain is %v", when, pid, has)
			}
		}
	}
	m.Uncertain(1) // a sample
	m.Apply(&Record{Type: RecordFork, PID: 20, PPID: 10})
	m.Apply(&Record{Type: RecordFork, PID: 30, PPID: 1})
	m.Apply(&Record{Type: RecordLost, Lost: 0})
	if m.Uncertain(2) {
		t.Errorf("process 2 is uncertain, but nothing was lost: lossy is %v, losses %d", m.lossy, m.losses)
	}
	m.Apply(&Record{Type: RecordLost, Lost: 1}) // 21, which 20 started
	m.Apply(&Record{Type: RecordFork, PID: 22, PPID: 21})
	m.Apply(&Record{Type: RecordFork, PID: 31, PPID: 30})
	m.Apply(&Record{Type: RecordFork, PID: 23, PPID: 20})
	var want []int32
	for pid := int32(3); pid < 60; pid++ {
		if !slices.Contains([]int32{10, 20, 30, 31, 23}, pid) {
			want = append(want, pid)
		}
	}
	check("after a loss", want...)
	m.Apply(&Record{Type: RecordFork, PID: 22, PPID: 30}) // its number again
	check("a number that is used again", slices.DeleteFunc(want, func(pid int32) bool { return pid == 22 })...)
	var all *Members
	if all.Uncertain(1) {
		t.Error("without a tree, process 1 is uncertain")
	}
}

// A treeStream has the records of a command among those of all processes.
type treeStream struct {
	*fakeStream
	tree *Tree
}

func (s treeStream) Tree() *Tree { return s.tree }

// TestUncertainCounted: samples that a lost FORK leaves out are counted.
func TestUncertainCounted(t *testing.T) {
	s := treeStream{newFake(), NewTree([]int32{10})}
	for i, pid := range []uint32{10, 11} {
		s.records = append(s.records, sampleRecord(pid, pid, uint64(i+1), ContextUser, 1))
	}
	s.add(&Record{Type: RecordLost, PID: 10, TID: 10, Time: 3, Lost: 1})
	for i, pid := range []uint32{10, 11, 12, 12, 13} {
		s.records = append(s.records, sampleRecord(pid, pid, uint64(i+4), ContextUser, 1))
	}
	st, err := Run(t.Context(), s, Options{})
	if err != nil || st.Samples != 2 || st.Uncertain != 3 || st.Lost != 1 {
		t.Errorf("%d samples, %d uncertain, %d lost (%v), want 2, 3 and 1", st.Samples, st.Uncertain, st.Lost, err)
	}
}

// TestForkTold: a process whose FORK lay in a ring when /proc was read is told of twice, and begins once. If the FORK was lost, /proc makes up for it.
func TestForkTold(t *testing.T) {
	for _, lost := range []bool{false, true} {
		s := treeStream{newFake(), NewTree([]int32{10})}
		mmap := Record{Type: RecordMmap2, PID: 10, TID: 10, Addr: 0x1000, Len: 0x1000, Prot: 1 | ProtExec, Filename: []byte("/a")}
		s.add(&Record{Type: RecordComm, PID: 10, TID: 10, Comm: []byte("parent")})
		s.add(&mmap)
		if !lost {
			s.add(&Record{Type: RecordFork, PID: 11, TID: 11, PPID: 10, PTID: 10, Time: 1})
		}
		s.add(&Record{Type: RecordFork, Misc: MiscForkExec | MiscAgain, PID: 11, TID: 11, PPID: 10, PTID: 10, Time: 2})
		s.add(&Record{Type: RecordComm, Misc: MiscAgain, PID: 11, TID: 11, Time: 2, Comm: []byte("parent")})
		mmap.PID, mmap.TID, mmap.Misc, mmap.Time = 11, 11, MiscAgain, 2
		s.add(&mmap)
		s.records = append(s.records, sampleRecord(11, 11, 3, ContextUser, 1))
		forks, mappings := 0, 0
		st, err := Run(t.Context(), s, Options{
			Sample: func(s *Sample) error { mappings += len(s.Space.Mappings()); return nil },
			Record: func(r *Record) error {
				if r.Type == RecordFork {
					forks++
				}
				return nil
			},
		})
		var want Repairs
		if lost {
			want = Repairs{Processes: 1, Mappings: 1}
		}
		if err != nil || st.Samples != 1 || st.Repairs != want || forks != 1 || mappings != 1 {
			t.Errorf("lost %v: %d samples with %d mappings, %d forks, %+v, %v", lost, st.Samples, mappings, forks, st.Repairs, err)
		}
	}
}
