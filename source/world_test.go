package source

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/unwind"
)

// A model is a World that knows of each page of each process which page of which file it holds.
type model struct {
	procs   map[int32]*[modelPages]string
	threads map[int32]modelThread
}

type modelThread struct {
	pid  int32
	comm string
}

const modelPages = 48

func (m *model) pages(pid int32) *[modelPages]string {
	if m.procs[pid] == nil {
		m.procs[pid] = new([modelPages]string)
	}
	return m.procs[pid]
}

func (m *model) apply(r *Record) {
	switch r.Type {
	case RecordMmap2:
		p := m.pages(r.PID)
		for a := r.Addr; a < r.Addr+r.Len; a += 4096 {
			p[a/4096] = ""
			if r.Prot&ProtExec != 0 {
				p[a/4096] = fmt.Sprintf("%s+%#x", r.Filename, r.Pgoff+a-r.Addr)
			}
		}
	case RecordComm:
		if r.Exec() || r.Misc&MiscAgain != 0 {
			m.procs[r.PID] = new([modelPages]string)
		}
		m.threads[r.TID] = modelThread{r.PID, string(r.Comm)}
	case RecordFork:
		m.threads[r.TID] = modelThread{r.PID, m.threads[r.PTID].comm}
		if r.PID == r.PPID {
			return
		}
		p := *m.pages(r.PPID)
		m.procs[r.PID] = &p
	}
}

// TestWorld applies random histories of a few processes, with pages mapped over others and in part, and holds what
// each process has where against the model.
func TestWorld(t *testing.T) {
	oracle.Long(t)
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		m := &model{map[int32]*[modelPages]string{}, map[int32]modelThread{}}
		w := NewWorld(nil)
		var log []string
		leaders := []int32{1}
		apply := func(r *Record) {
			m.apply(r)
			w.Apply(r)
			log = append(log, fmt.Sprintf("%+v", *r))
		}
		apply(&Record{Type: RecordComm, PID: 1, TID: 1, Time: 1, Comm: []byte("init")})
		for step := range 120 {
			pid := leaders[rnd.IntN(len(leaders))]
			time := uint64(step + 2)
			switch k := rnd.IntN(21); {
			case k == 20: // read again: what there is, or something else
				_, was := w.Thread(pid, pid)
				has, same := *m.pages(pid), rnd.IntN(2) == 0
				apply(&Record{Type: RecordComm, Misc: MiscAgain, PID: pid, TID: pid, Time: time, Comm: fmt.Append(nil, "again", step)})
				for i, page := range has {
					if !same && rnd.IntN(4) == 0 {
						page = []string{"", "/d+0x0", "/a+0x1000"}[rnd.IntN(3)]
					}
					name, off, _ := strings.Cut(page, "+")
					at, _ := strconv.ParseUint(off, 0, 64)
					if name != "" {
						apply(&Record{Type: RecordMmap2, Misc: MiscAgain, PID: pid, TID: pid, Time: time, Addr: uint64(i) * 4096, Len: 4096, Pgoff: at,
							Prot: 1 | ProtExec, Filename: []byte(name)})
					}
				}
				before := w.repairs
				if _, is := w.Thread(pid, pid); same && (is != was || w.repairs != before) {
					t.Fatalf("seed %d: %d has other mappings, and is the same: %+v\n%s", seed, pid, w.repairs, strings.Join(log, "\n"))
				}
			case k < 11:
				lo := uint64(rnd.IntN(modelPages))
				n := min(uint64(1+rnd.IntN(8)), modelPages-lo)
				prot := uint32(1)
				if rnd.IntN(3) > 0 {
					prot |= ProtExec
				}
				apply(&Record{Type: RecordMmap2, PID: pid, TID: pid, Time: time, Addr: lo * 4096, Len: n * 4096, Pgoff: uint64(rnd.IntN(4)) * 4096,
					Prot: prot, Filename: []byte{'/', "abc"[rnd.IntN(3)]}})
			case k < 13:
				child := int32(2 + rnd.IntN(8)) // numbers are used again
				if child != pid {
					apply(&Record{Type: RecordFork, PID: child, TID: child, PPID: pid, PTID: pid, Time: time})
					if !slices.Contains(leaders, child) {
						leaders = append(leaders, child)
					}
				}
			case k < 14:
				tid := int32(100 + rnd.IntN(5))
				apply(&Record{Type: RecordFork, PID: pid, TID: tid, PPID: pid, PTID: pid, Time: time})
			case k < 15:
				apply(&Record{Type: RecordComm, Misc: MiscCommExec, PID: pid, TID: pid, Time: time, Comm: fmt.Append(nil, "prog", step)})
			case k < 16:
				apply(&Record{Type: RecordComm, PID: pid, TID: pid, Time: time, Comm: fmt.Append(nil, "name", step)})
			case k < 17:
				apply(&Record{Type: RecordExit, PID: pid, TID: pid, PPID: 1, PTID: 1, Time: time})
			default:
				comm, space := w.Thread(pid, pid)
				if want := m.threads[pid].comm; comm != want {
					t.Fatalf("seed %d: %d is %q, want %q\n%s", seed, pid, comm, want, strings.Join(log, "\n"))
				}
				checkPages(t, seed, pid, space, m.pages(pid), log)
			}
			checkTotal(t, w)
		}
		for _, pid := range leaders {
			_, space := w.Thread(pid, pid)
			checkPages(t, seed, pid, space, m.pages(pid), log)
		}
	}
}

func checkPages(t *testing.T, seed uint64, pid int32, space *unwind.Space, want *[modelPages]string, log []string) {
	t.Helper()
	for i, w := range want {
		for _, a := range []arch.Addr{arch.Addr(i * 4096), arch.Addr(i*4096 + 4095)} {
			got := ""
			if m := space.Find(a); m != nil {
				got = fmt.Sprintf("%s+%#x", m.Module.Path, m.FileOff(a)&^4095)
			}
			if got != w {
				t.Fatalf("seed %d: process %d has %q at %#x, want %q\n%s", seed, pid, got, uint64(a), w, strings.Join(log, "\n"))
			}
		}
	}
}

// checkTotal counts mappings the slow way.
func checkTotal(t *testing.T, w *World) {
	t.Helper()
	seen, users := map[*image]int{w.empty: 1}, map[*proc]bool{}
	stale := 0
	for _, th := range w.threads {
		users[th.proc] = true
		if w.procs[th.pid] != th.proc {
			stale++
		}
	}
	if stale != w.stale {
		t.Fatalf("%d threads of processes that are no more, counted %d", stale, w.stale)
	}
	for p := range users {
		seen[p.image]++
	}
	total := 0
	for im, n := range seen {
		total += len(im.Mappings())
		if im.procs != n {
			t.Fatalf("an image of %d processes counts %d", n, im.procs)
		}
	}
	if total != w.total {
		t.Fatalf("%d mappings, counted %d", total, w.total)
	}
}

// TestWorldExecOfThread: a thread other than the first calls execve. The kernel writes the first one's EXIT, a COMM with the first one's number, and
// later one more EXIT of this number; none comes of the thread's old number. The process ends nevertheless, and nothing is kept of it.
func TestWorldExecOfThread(t *testing.T) {
	w := NewWorld(nil)
	w.Owners(func(int32) uint32 { return 1 })
	at := uint64(0)
	do := func(r Record) {
		at++
		r.Time = at
		w.Apply(&r)
	}
	for i := range int32(2 * keepGone) {
		pid, tid := 2*i+100, 2*i+101
		do(Record{Type: RecordFork, PID: pid, TID: pid, PPID: 1, PTID: 1})
		do(Record{Type: RecordFork, PID: pid, TID: tid, PPID: pid, PTID: pid})
		do(Record{Type: RecordMmap2, PID: pid, TID: tid, Addr: 0x1000, Len: 0x1000, Prot: ProtExec, Filename: []byte("/before")})
		if _, s := w.Thread(pid, tid); len(s.Mappings()) != 1 || w.owned[1] != 1 {
			t.Fatalf("%d mappings, %v", len(s.Mappings()), w.owned)
		}
		do(Record{Type: RecordExit, PID: pid, TID: pid, PPID: 1, PTID: 1})
		if _, alive := w.Process(pid); !alive {
			t.Fatal("a process whose first thread has exited has ended")
		}
		do(Record{Type: RecordComm, Misc: MiscCommExec, PID: pid, TID: pid, Comm: []byte("after")})
		comm, s := w.Thread(pid, pid)
		if _, alive := w.Process(pid); !alive || comm != "after" || len(s.Mappings()) > 0 || len(w.owned) > 0 || !w.Known(pid) {
			t.Fatalf("%q runs: %v; it has %d mappings, %v", comm, alive, len(s.Mappings()), w.owned)
		}
		do(Record{Type: RecordExit, PID: pid, TID: pid, PPID: 1, PTID: 1})
		if _, alive := w.Process(pid); alive {
			t.Fatal("its only thread has exited, and it has not ended")
		}
		checkTotal(t, w)
	}
	if n := len(w.threads); n > 5*keepGone {
		t.Errorf("%d threads are kept", n)
	}
}

// TestWorldNames covers what names a thread has, from its beginning to after its end.
func TestWorldNames(t *testing.T) {
	w := NewWorld(nil)
	name := func(pid, tid int32, want string) {
		t.Helper()
		if got, space := w.Thread(pid, tid); got != want || space == nil {
			t.Errorf("thread %d/%d is %q, want %q", pid, tid, got, want)
		}
	}
	name(7, 7, ":7")
	name(0, 0, "swapper")
	w.Apply(&Record{Type: RecordComm, PID: 7, TID: 7, Time: 1, Comm: []byte("main")})
	name(7, 7, "main")
	name(7, 8, "main") // its FORK is missing
	w.Apply(&Record{Type: RecordFork, PID: 7, TID: 9, PPID: 7, PTID: 7, Time: 2})
	w.Apply(&Record{Type: RecordComm, PID: 7, TID: 9, Time: 3, Comm: []byte("worker")})
	name(7, 9, "worker")
	w.Apply(&Record{Type: RecordFork, PID: 20, TID: 20, PPID: 7, PTID: 9, Time: 4})
	name(20, 20, "worker")
	w.Apply(&Record{Type: RecordExit, PID: 7, TID: 9, PPID: 7, PTID: 7, Time: 5})
	name(7, 9, "worker")
	w.Apply(&Record{Type: RecordFork, PID: 9, TID: 9, PPID: 20, PTID: 20, Time: 6}) // the number again
	w.Apply(&Record{Type: RecordComm, Misc: MiscCommExec, PID: 9, TID: 9, Time: 7, Comm: []byte("sh")})
	name(9, 9, "sh")
	if w.Known(7) {
		t.Error("process 7 is known, but its beginning is not recorded")
	}
	if !w.Known(9) {
		t.Errorf("process 9 is not known, but executed a program; processes are %v", slices.Sorted(maps.Keys(w.procs)))
	}
	w.Apply(&Record{Type: RecordComm, PID: 30, TID: 30, Comm: []byte("old")}) // time 0: found by the recorder
	if !w.Known(30) {
		t.Errorf("process 30 is not known, but the recorder described it; processes are %v", slices.Sorted(maps.Keys(w.procs)))
	}
}

// TestWorldIdentity holds that a Space stays the same one as long as nothing executable changes: walkers remember what
// they found by it.
func TestWorldIdentity(t *testing.T) {
	w := NewWorld(nil)
	mmap := func(addr, n uint64, prot uint32, file string) {
		w.Apply(&Record{Type: RecordMmap2, PID: 1, TID: 1, Time: 1, Addr: addr, Len: n, Prot: prot, Filename: []byte(file)})
	}
	mmap(0x1000, 0x1000, ProtExec, "/a")
	_, before := w.Thread(1, 1)
	mmap(0x9000, 0x1000, 1, "/data")
	mmap(0x1000, 0x1000, ProtExec, "/a") // mprotect reports a mapping again
	w.Apply(&Record{Type: RecordFork, PID: 1, TID: 2, PPID: 1, PTID: 1, Time: 2})
	w.Apply(&Record{Type: RecordFork, PID: 3, TID: 3, PPID: 1, PTID: 1, Time: 2})
	for _, x := range [][2]int32{{1, 1}, {1, 2}, {3, 3}} {
		if _, s := w.Thread(x[0], x[1]); s != before {
			t.Errorf("thread %d/%d has another Space", x[0], x[1])
		}
	}
	mmap(0x1800, 0x100, 1, "/data")
	if _, s := w.Thread(3, 3); s != before {
		t.Errorf("the child's Space changes with its parent's: from %p to %p, with %d mappings", before, s, len(s.Mappings()))
	}
	if _, s := w.Thread(1, 1); s == before || s.Find(0x1850) != nil || s.Find(0x1900) == nil {
		t.Errorf("after a mapping over a part of another: the Space has changed: %v, 0x1850 is mapped: %v, 0x1900: %v; want true, false, true", s != before, s.Find(0x1850) != nil, s.Find(0x1900) != nil)
	}
}

// TestWorldBounds has a recording map and fork without end.
func TestWorldBounds(t *testing.T) {
	oracle.Long(t)
	w := NewWorld(nil)
	for i := range uint64(MaxMappings + 4096) {
		w.Apply(&Record{Type: RecordMmap2, PID: 1, TID: 1, Time: 1, Addr: i << 13, Len: 4096, Prot: ProtExec, Filename: []byte("/x")})
	}
	if _, s := w.Thread(1, 1); len(s.Mappings()) != MaxMappings || w.Dropped() != 4096 {
		t.Errorf("%d mappings, %d dropped", len(s.Mappings()), w.Dropped())
	}
	for i := range int32(300) { // each child has a Space of its own
		pid := 10 + i
		w.Apply(&Record{Type: RecordFork, PID: pid, TID: pid, PPID: 1, PTID: 1, Time: 2})
		w.Apply(&Record{Type: RecordMmap2, PID: pid, TID: pid, Time: 3, Addr: 0, Len: 4096, Prot: 1, Filename: []byte("/y")})
		w.Thread(pid, pid)
		w.Apply(&Record{Type: RecordMmap2, PID: pid, TID: pid, Time: 3, Addr: 0, Len: 4096, Prot: ProtExec, Filename: []byte("/y")})
		w.Thread(pid, pid)
	}
	if w.total > maxTotal || w.total < maxTotal/2 {
		t.Errorf("%d mappings in all", w.total)
	}
	checkTotal(t, w)
	for i := range int32(4 * keepGone) {
		w.Apply(&Record{Type: RecordFork, PID: 1, TID: 1000 + i, PPID: 1, PTID: 1, Time: 4})
		w.Apply(&Record{Type: RecordExit, PID: 1, TID: 1000 + i, PPID: 1, PTID: 1, Time: 4})
	}
	if n := len(w.threads); n > 2*keepGone+1000 {
		t.Errorf("%d threads, of which %d have exited", n, 4*keepGone)
	}
}

// TestWorldNamesBound: names that are too many are forgotten, and what is known by them is not.
func TestWorldNamesBound(t *testing.T) {
	w := NewWorld(func(path, _ string) *unwind.Module { return unwind.NewModule(path, "", nil) })
	long := strings.Repeat("x", 4000)
	for i := range 3 * maxNames / len(long) {
		w.Apply(&Record{Type: RecordMmap2, PID: 1, TID: 1, Time: 1, Addr: 0x1000, Len: 4096, Prot: ProtExec, Filename: fmt.Appendf(nil, "/%s%d", long, i)})
		if w.named > maxNames {
			t.Fatalf("after %d names, %d bytes are kept", i, w.named)
		}
	}
	last := fmt.Sprintf("/%s%d", long, 3*maxNames/len(long)-1)
	if _, s := w.Thread(1, 1); len(s.Mappings()) != 1 || s.Mappings()[0].Module.Path != last {
		t.Errorf("mappings %v", s.Mappings())
	}
	if len(w.names) == 0 || len(w.names) > maxNames/len(long) {
		t.Errorf("%d names are kept", len(w.names))
	}
}

// TestWorldForgets: files of processes that came and went are forgotten; a file that a process has is one module, however many others there were meanwhile.
func TestWorldForgets(t *testing.T) {
	const processes, stays = 20_000, 7
	w := NewWorld(func(path, buildID string) *unwind.Module { return unwind.NewModule(path, buildID, nil) })
	start := func(pid int32, path string) *unwind.Space {
		w.Apply(&Record{Type: RecordFork, PID: pid, TID: pid, PPID: 1, PTID: 1, Time: 1})
		w.Apply(&Record{Type: RecordComm, PID: pid, TID: pid, Misc: MiscCommExec, Comm: []byte("prog"), Time: 1})
		w.Apply(&Record{Type: RecordMmap2, PID: pid, TID: pid, Addr: 0x1000, Len: 0x1000, Prot: ProtExec, Filename: []byte(path), Inode: uint64(pid), Time: 1})
		space, alive := w.Process(pid)
		if !alive || len(space.Mappings()) != 1 {
			t.Fatalf("process %d: %v, alive %v", pid, space, alive)
		}
		return space
	}
	module := start(stays, "/stays").Mappings()[0].Module
	for i := range processes {
		pid := int32(i + 100)
		start(pid, fmt.Sprint("/prog", i))
		w.Apply(&Record{Type: RecordExit, PID: pid, TID: pid, Time: 1})
		if i%1000 == 0 {
			runtime.GC()
		}
	}
	// Threads that have exited are kept for a while, with their files.
	if n, most := len(w.files), 3*(2*keepGone+minSweep); n > most {
		t.Errorf("%d files are known after %d processes, of which %d have their memory; at most %d should be", n, processes, len(w.procs), most)
	}
	if again := w.module(fileID{path: "/stays", inode: stays}); again != module {
		t.Errorf("%s, which a process has, is another module than before: %p, not %p; %d files are known", again.Path, again, module, len(w.files))
	}
	runtime.KeepAlive(w)
}

// TestWorldEnded: a thread that has exited has a name in /proc for a moment longer, which does not bring the thread back. A process that is read
// again lives.
func TestWorldEnded(t *testing.T) {
	w := NewWorld(nil)
	alive := func(when string, want bool) {
		t.Helper()
		if _, is := w.Process(7); is != want {
			t.Errorf("%s: alive is %v", when, is)
		}
	}
	w.Apply(&Record{Type: RecordComm, PID: 7, TID: 7, Time: 1, Comm: []byte("main")})
	w.Apply(&Record{Type: RecordFork, PID: 7, TID: 8, PPID: 7, PTID: 7, Time: 2})
	w.Apply(&Record{Type: RecordExit, PID: 7, TID: 8, PPID: 7, PTID: 7, Time: 3})
	w.Apply(&Record{Type: RecordComm, Misc: MiscAgain, PID: 7, TID: 8, Time: 4, Comm: []byte("main")})
	alive("with a thread", true)
	w.Apply(&Record{Type: RecordExit, PID: 7, TID: 7, PPID: 1, PTID: 1, Time: 5})
	alive("with none", false)
	w.Apply(&Record{Type: RecordComm, Misc: MiscAgain, PID: 7, TID: 7, Time: 6, Comm: []byte("main")})
	alive("read again", true)
}

// TestWorldSameFile: without a build ID, another inode on the same device is another file, also where something stands for the build ID; /proc has no
// generations.
func TestWorldSameFile(t *testing.T) {
	for _, identified := range []bool{false, true} {
		t.Run(fmt.Sprint("identified ", identified), func(t *testing.T) { sameFile(t, identified) })
	}
}

func sameFile(t *testing.T, identified bool) {
	w := NewWorld(func(path, buildID string) *unwind.Module { return unwind.NewModule(path, buildID, nil) })
	if identified {
		w.Identify(func(_ string, maj, min uint32, inode, _ uint64) string { return fmt.Sprint("inode ", maj, min, inode) })
	}
	mmap := func(misc uint16, major uint32, inode, gen uint64) {
		w.Apply(&Record{Type: RecordMmap2, Misc: misc, PID: 1, TID: 1, Time: 1, Addr: 0x1000, Len: 0x1000, Prot: ProtExec, Filename: []byte("/a"), Maj: major, Inode: inode, InodeGen: gen})
	}
	mmap(0, 8, 5, 3)
	_, was := w.Thread(1, 1)
	for _, c := range []struct {
		what  string
		major uint32
		inode uint64
		want  Repairs
	}{
		{"the same", 8, 5, Repairs{}}, {"another inode", 8, 6, Repairs{Mappings: 1, Gone: 1}}, {"the same again", 8, 6, Repairs{Mappings: 1, Gone: 1}},
		{"another device", 9, 7, Repairs{Mappings: 1, Gone: 1}},
	} {
		w.Apply(&Record{Type: RecordComm, Misc: MiscAgain, PID: 1, TID: 1, Time: 2, Comm: []byte("x")})
		mmap(MiscAgain, c.major, c.inode, 0)
		if _, is := w.Thread(1, 1); w.repairs != c.want || (is == was) != (c.want == Repairs{}) {
			t.Errorf("%s: %+v; the same Space: %v", c.what, w.repairs, is == was)
		}
	}
}
