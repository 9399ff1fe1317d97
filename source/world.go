package source

import (
	"encoding/hex"
	"fmt"
	"maps"
	"strings"
	"weak"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/unwind"
)

// A World is the processes and threads of a recording over time, with their address spaces. Records go in in
// time order. It is for one goroutine.
//
// A process starts as a copy of its parent (FORK), loses its mappings and all threads but one when it executes another program (COMM with
// MiscCommExec), and keeps its mappings after it has exited until its number is used again: the kernel can still sample
// a thread that has reported its end. A new mapping replaces whatever lay there. The kernel reports no munmap, so
// an address can look mapped for longer than it was.
//
// Where records were lost, a recorder reads /proc again. It writes a COMM record with MiscAgain of the process's first thread, and behind it MMAP2
// records of all executable mappings: these are the process's mappings from then on, and no others.
type World struct {
	mods  func(path, buildID string) *unwind.Module
	files map[fileID]weak.Pointer[unwind.Module] // those that something else still has
	ids   map[weak.Pointer[unwind.Module]]fileID // the files that these are
	sweep int                                    // how many files may be known before those are forgotten that nothing has

	identify func(path string, maj, min uint32, inode, gen uint64) string // see Options.Identify; may be nil

	made    Maker             // see Options.Made; may be nil
	names   map[string]string // interned names of threads and files
	named   int               // about how many bytes names takes
	threads map[int32]*thread // by TID
	procs   map[int32]*proc   // by PID
	empty   *image
	owned   map[uint32]int         // mappings in all images, by user
	owner   func(pid int32) uint32 // nil: nobody asks
	total   int                    // mappings in all images

	gone    []int32 // TIDs that have exited, oldest first
	stale   int     // threads of processes that are no more
	dropped uint64
	repairs Repairs
}

// A fileID tells files apart: a path can name another file later.
type fileID struct {
	path, buildID string
	maj, min      uint32
	inode, gen    uint64
	pid           int32 // of memory that is no file's
}

type thread struct {
	comm string
	pid  int32
	proc *proc
	gone bool
}

// An image is a Space and how many processes have it.
type image struct {
	*unwind.Space
	procs int
	owner uint32 // the user that it counts for
}

// A proc is a process. Its image is made when somebody asks for it: until then, mappings gather in pending. The
// Space stays the same as long as the executable mappings do, because walkers recognise it.
type proc struct {
	pid     int32
	image   *image
	pending []mapping
	anew    bool // pending is all that there is, and image what there was
	threads int
	gone    int  // of them, that have exited
	orphan  bool // its beginning is not in the recording
}

// A mapping is an MMAP or MMAP2 record that matters. One that is not executable only hides what it covers.
type mapping struct {
	lo, hi, off uint64
	exec        bool
	file        fileID
}

// Bounds on what a hostile recording can make a World hold. Real ones stay far below: by default, Linux has
// 65,530 mappings a process at most, few of them executable, and 32,768 threads.
const (
	maxThreads  = 1 << 20
	MaxMappings = 1 << 13 // executable, a process
	maxTotal    = 1 << 21 // executable, in all images
	MaxOwned    = 1 << 17 // executable, in all images of one user: of those that run now, where a recorder knows them
	maxPending  = 1 << 10 // mappings that wait for a Space
	keepGone    = 1 << 10 // threads that have exited
	maxNames    = 4 << 20 // bytes of interned names
	nameCost    = 64      // beside its text
	minSweep    = 1 << 10 // files
)

// NewWorld returns an empty World. mods gives the module of an executable file or of a pseudo file such as
// "[vdso]"; memory that is no file's has a module for each process. buildID is in hex, and empty where the recording has none. It is called from Run's
// goroutine, for each distinct file once and again when nothing has had its module for a while, and should load nothing yet.
func NewWorld(mods func(path, buildID string) *unwind.Module) *World {
	return &World{
		mods: mods, files: map[fileID]weak.Pointer[unwind.Module]{}, ids: map[weak.Pointer[unwind.Module]]fileID{}, sweep: minSweep, names: map[string]string{}, empty: &image{Space: unwind.NewSpace(), procs: 1}, owned: map[uint32]int{},
		threads: map[int32]*thread{}, procs: map[int32]*proc{},
	}
}

// Identify has w ask for what stands for the build ID of a file that was recorded without one: see Options.Identify. It is called before the first record.
func (w *World) Identify(identify func(path string, maj, min uint32, inode, gen uint64) string) {
	w.identify = identify
}

// Owners has w ask for the user of each process, to bound its memory for each user: one user's flood of mappings costs that user's own
// stacks. It is called before the first record.
func (w *World) Owners(owner func(pid int32) uint32) { w.owner = owner }

// Apply brings w up to date with a record of type MMAP, MMAP2, COMM, FORK or EXIT; others change nothing.
func (w *World) Apply(r *Record) {
	switch r.Type {
	case RecordMmap, RecordMmap2:
		w.mmap(r)
	case RecordComm:
		w.comm(r)
	case RecordFork:
		w.fork(r)
	case RecordExit:
		w.exit(r)
	}
}

// Thread returns the name of a thread and its address space, which is never nil. An unknown thread is named ":TID",
// as perf does it.
func (w *World) Thread(pid, tid int32) (comm string, space *unwind.Space) {
	t, p := w.thread(pid, tid)
	if t == nil {
		return unnamed(tid), w.empty.Space
	}
	return t.comm, w.freeze(p).Space
}

// Known says whether the recording has the beginning of a process: a FORK, an execve, or what its recorder found
// when it started.
func (w *World) Known(pid int32) bool {
	p := w.procs[pid]
	return pid == 0 || p != nil && !p.orphan
}

// Process returns the address space of a process, nil if it is not known, and whether one of its threads has not exited.
func (w *World) Process(pid int32) (space *unwind.Space, alive bool) {
	p := w.procs[pid]
	if p == nil {
		return nil, false
	}
	return w.freeze(p).Space, p.threads > p.gone
}

// Redundant says whether r is a FORK with MiscAgain of a process that runs, and whose beginning is known: its own FORK was not lost, but lay in a ring when
// /proc was read. Such a record is to be left out.
func (w *World) Redundant(r *Record) bool {
	p := w.procs[r.PID]
	return r.Type == RecordFork && r.Misc&MiscAgain != 0 && p != nil && !p.orphan && p.threads > p.gone
}

// Repairs count what records with MiscAgain brought, and no record before them had told.
type Repairs struct {
	Mappings  uint64 // that were not known, or not as they are
	Gone      uint64 // mappings that were there no more
	Processes uint64 // of a Tree, whose start was not known
	Names     uint64 // of threads
}

func (r *Repairs) add(t *Repairs) {
	r.Mappings += t.Mappings
	r.Gone += t.Gone
	r.Processes += t.Processes
	r.Names += t.Names
}

// Dropped returns the number of mappings and threads beyond the World's limits.
func (w *World) Dropped() uint64 { return w.dropped }

func unnamed(tid int32) string {
	if tid == 0 {
		return "swapper"
	}
	return fmt.Sprintf(":%d", tid)
}

// thread returns a thread and its process, new where they are unknown; nil where there are too many.
func (w *World) thread(pid, tid int32) (*thread, *proc) {
	if t := w.threads[tid]; t != nil && t.pid == pid && t.proc == w.procs[pid] {
		return t, t.proc
	}
	comm := ""
	if leader := w.threads[pid]; leader != nil && leader.pid == pid && tid != pid {
		comm = leader.comm
	}
	t, p := w.add(pid, tid)
	if t != nil {
		t.comm = unnamed(tid)
		if comm != "" {
			t.comm = comm
		}
	}
	return t, p
}

// add makes a thread of a process that may be new.
func (w *World) add(pid, tid int32) (*thread, *proc) {
	w.remove(tid)
	if len(w.threads) >= maxThreads {
		w.dropped++
		return nil, nil
	}
	p := w.procs[pid]
	if p == nil {
		p = &proc{pid: pid, orphan: true}
		w.assign(p, w.empty)
		w.procs[pid] = p
	}
	p.threads++
	t := &thread{pid: pid, proc: p}
	w.threads[tid] = t
	return t, p
}

// remove forgets a thread, and its process with the last one.
func (w *World) remove(tid int32) {
	t := w.threads[tid]
	if t == nil {
		return
	}
	delete(w.threads, tid)
	if w.procs[t.pid] != t.proc {
		w.stale--
	}
	if t.gone {
		t.proc.gone--
	}
	if t.proc.threads--; t.proc.threads > 0 {
		return
	}
	w.assign(t.proc, nil)
	if w.procs[t.pid] == t.proc {
		delete(w.procs, t.pid)
	}
}

// end forgets a process, whose number another program gets. Not all of its threads need have said that they have exited: see exec.
func (w *World) end(pid int32) {
	p := w.procs[pid]
	if p == nil {
		return
	}
	delete(w.procs, pid)
	w.assign(p, w.empty)
	if w.stale += p.threads; w.stale < len(w.threads)/2+keepGone {
		return
	}
	for tid, t := range w.threads {
		if w.procs[t.pid] != t.proc {
			w.remove(tid)
		}
	}
}

// running returns the processes that have not said that they ended, each thread of them.
func (w *World) running() (pids []int32) {
	for pid, p := range w.procs {
		if pid > 0 && p.threads > p.gone {
			pids = append(pids, pid)
		}
	}
	return pids
}

// lost ends a process whose EXIT was lost, if its number is not another one's by now.
func (w *World) lost(p *proc) {
	if w.procs[p.pid] == p && p.threads > p.gone {
		w.end(p.pid)
	}
}

// Reap ends the processes that gone names of those that have not said that they ended. It returns them.
func (w *World) Reap(gone func(pids []int32) []int32) []int32 {
	pids := gone(w.running())
	for _, pid := range pids {
		w.end(pid)
	}
	return pids
}

// assign makes im the image of p, which drops its old one and what was pending.
func (w *World) assign(p *proc, im *image) {
	if im != nil {
		im.procs++
	}
	if p.image != nil {
		w.drop(p.image)
	}
	p.image, p.pending, p.anew = im, nil, false
}

func (w *World) drop(im *image) {
	if im.procs--; im.procs == 0 {
		w.total -= len(im.Mappings())
		if w.owned[im.owner] -= len(im.Mappings()); w.owned[im.owner] <= 0 {
			delete(w.owned, im.owner)
		}
	}
}

// intern returns name as a string, mostly the same one for the same name.
func (w *World) intern(name []byte) string {
	if s, ok := w.names[string(name)]; ok {
		return s
	}
	s := string(name)
	if w.named += len(s) + nameCost; w.named > maxNames {
		clear(w.names)
		w.named = len(s) + nameCost
	}
	w.names[s] = s
	return s
}

// exec starts the program that a process executes: it has one thread and no mappings. A thread other than the first that calls execve has
// the first one's number from then on, behind that one's EXIT, and none tells of the end of its own number.
func (w *World) exec(r *Record) {
	w.end(r.PID)
	if t, p := w.add(r.PID, r.TID); t != nil {
		t.comm, p.orphan = w.intern(r.Comm), false
	}
}

func (w *World) comm(r *Record) {
	if r.Exec() {
		w.exec(r)
		return
	}
	t, p := w.thread(r.PID, r.TID)
	if t == nil {
		return
	}
	known := t.comm
	t.comm = w.intern(r.Comm)
	if r.Misc&MiscAgain != 0 {
		if known != t.comm && known != unnamed(r.TID) {
			w.repairs.Names++
		}
		if t.gone && r.PID == r.TID { // it was another one of this number; a thread that ends still has its name in /proc
			t.gone = false
			p.gone--
		}
		if r.PID == r.TID {
			p.pending, p.anew, p.orphan = nil, true, false
		}
	}
	if r.Time == 0 {
		p.orphan = false // the recorder found it running
	}
}

func (w *World) fork(r *Record) {
	if r.PID == r.PPID && r.TID != r.PID {
		// A thread. Its process need not be known.
		comm := unnamed(r.TID)
		if parent := w.threads[r.PTID]; parent != nil && parent.pid == r.PID {
			comm = parent.comm
		} else if leader := w.threads[r.PID]; leader != nil && leader.pid == r.PID {
			comm = leader.comm
		}
		if t, _ := w.add(r.PID, r.TID); t != nil {
			t.comm = comm
		}
		return
	}
	// A process: nothing is left of an earlier one of its number.
	comm, im := unnamed(r.TID), w.empty
	var known bool
	if parent := w.threads[r.PTID]; parent != nil && parent.pid == r.PPID {
		comm = parent.comm
	}
	if p := w.procs[r.PPID]; p != nil && r.PPID != r.PID {
		known = !p.orphan
		if r.Misc&MiscForkExec == 0 && r.Time != 0 { // else the recorder found it, and its mappings follow
			im = w.freeze(p)
		}
	}
	known = known || r.PPID == 0 || r.Misc&MiscForkExec != 0
	im.procs++ // whatever end and add remove
	w.end(r.PID)
	if t, p := w.add(r.PID, r.TID); t != nil {
		w.assign(p, im)
		t.comm, p.orphan = comm, !known
	}
	w.drop(im)
}

func (w *World) exit(r *Record) {
	t := w.threads[r.TID]
	if t == nil || t.pid != r.PID || t.gone {
		return
	}
	t.gone = true
	t.proc.gone++
	w.gone = append(w.gone, r.TID)
	if len(w.gone) < 2*keepGone {
		return
	}
	for _, tid := range w.gone[:keepGone] {
		if t := w.threads[tid]; t != nil && t.gone {
			w.remove(tid)
		}
	}
	w.gone = append(w.gone[:0], w.gone[keepGone:]...)
}

func (w *World) mmap(r *Record) {
	if r.PID == -1 || r.Len == 0 || r.CPUMode() == MiscKernel || r.CPUMode() == MiscGuestKernel {
		return // the kernel's own
	}
	hi := r.Addr + r.Len
	if hi < r.Addr {
		return // around the end of the address space
	}
	t, p := w.thread(r.PID, r.TID)
	if t == nil {
		return
	}
	if r.Time == 0 {
		p.orphan = false
	}
	m := mapping{lo: r.Addr, hi: hi, off: r.Pgoff, exec: r.Executable()}
	if m.exec {
		m.file = fileID{path: w.intern(r.Filename), maj: r.Maj, min: r.Min, inode: r.Inode, gen: r.InodeGen}
		if len(r.BuildID) > 0 {
			m.file.buildID = hex.EncodeToString(r.BuildID)
		}
		if w.made != nil {
			w.made.Mapped(r.PID, m.file.path)
		}
		if anonymous(&m.file) {
			m.file, m.off = fileID{path: m.file.path, pid: r.PID}, m.lo
		} else if strings.HasPrefix(m.file.path, "[") {
			m.file.maj, m.file.min, m.file.inode, m.file.gen = 0, 0, 0, 0
		}
	} else if !p.hides(&m) {
		return
	}
	p.pending = append(p.pending, m)
	if len(p.pending) >= maxPending && (!p.anew || len(p.pending) >= MaxMappings) {
		w.freeze(p)
	}
}

// anonymous says whether a mapping's memory is its process's own, or is shared without being a program's file. A memfd may be one; then
// the recording knows its build ID.
func anonymous(f *fileID) bool {
	if strings.HasPrefix(f.path, "/memfd:") {
		return f.buildID == ""
	}
	for _, prefix := range []string{"//anon", "[anon", "[heap]", "[stack", "/anon_hugepage", "/dev/zero", "/SYSV"} {
		if strings.HasPrefix(f.path, prefix) {
			return true
		}
	}
	return false
}

// hides says whether m, which is not executable, covers anything that is.
func (p *proc) hides(m *mapping) bool {
	if p.image.Overlaps(arch.Addr(m.lo), arch.Addr(m.hi)) {
		return true
	}
	for i := range p.pending {
		if q := &p.pending[i]; q.exec && q.lo < m.hi && m.lo < q.hi {
			return true
		}
	}
	return false
}

// freeze returns p's image with all that is pending.
func (w *World) freeze(p *proc) *image {
	if len(p.pending) == 0 && !p.anew {
		return p.image
	}
	old, was := p.image.Space, p.image.Space
	if p.anew {
		old = w.empty.Space
	}
	owner, most := w.owns(p.pid)
	total, owned := w.total, w.owned[owner]
	if p.anew && p.image.procs == 1 { // the old image goes
		total -= len(was.Mappings())
		if p.image.owner == owner {
			owned -= len(was.Mappings())
		}
	}
	left := min(maxTotal-total, most-owned) - len(old.Mappings()) // where others have the old image, it stays
	room := min(left, MaxMappings-len(old.Mappings()))
	edits := make([]unwind.Mapping, 0, len(p.pending))
	for i := range p.pending {
		m := &p.pending[i]
		e := unwind.Mapping{Lo: arch.Addr(m.lo), Hi: arch.Addr(m.hi), Off: m.off}
		if !m.exec {
			if left > 0 {
				edits = append(edits, e)
			}
			continue
		}
		if room <= 0 {
			w.dropped++
			continue
		}
		if is := was.Find(e.Lo); p.anew && is != nil && is.Hi > e.Lo && is.FileOff(e.Lo) == e.Off && w.same(&m.file, is.Module) {
			e.Module = is.Module
		} else {
			e.Module = w.module(m.file)
		}
		e.Module.Mapped(p.pid)
		if len(edits) == 0 && !p.anew {
			if is := old.Find(e.Lo); is != nil && *is == e {
				continue
			}
		}
		edits = append(edits, e)
		room--
	}
	anew := p.anew
	p.pending, p.anew = nil, false
	if len(edits) > 0 || anew {
		next := old.Overlay(edits)
		if anew && !w.repaired(was, next) {
			return p.image
		}
		im := &image{Space: next, owner: owner}
		w.total += len(im.Mappings())
		w.owned[owner] += len(im.Mappings())
		w.assign(p, im)
	}
	return p.image
}

// same says whether m is the module of a mapped file, as far as /proc/PID/maps tells: there a deleted file's name ends otherwise, and no file
// has a generation, but perhaps a stamp in its place (see module.Inode). Some file systems have another device and inode there than in records; then the path decides.
func (w *World) same(f *fileID, m *unwind.Module) bool {
	const deleted = " (deleted)"
	id := m.BuildID
	is, ok := w.ids[weak.Make(m)]
	if ok {
		id = is.buildID // as recorded
	}
	if ok && f.gen != is.gen && f.gen&is.gen&stamped != 0 {
		return false
	}
	if f.buildID != id || strings.TrimSuffix(f.path, deleted) != strings.TrimSuffix(m.Path, deleted) {
		return false
	}
	return f.buildID != "" || !ok || is.maj != f.maj || is.min != f.min || is.inode == f.inode
}

// stamped is set in a stamp that stands in place of a generation: procfs.NoStamp.
const stamped = 1 << 63

// repaired counts how what there is differs from what was known, and says whether it does.
func (w *World) repaired(was, is *unwind.Space) bool {
	missing := func(of, in *unwind.Space) (n uint64) {
		for i := range of.Mappings() {
			m := &of.Mappings()[i]
			for at := m.Lo; at < m.Hi; {
				same := in.Find(at)
				if same == nil || same.Module != m.Module || same.FileOff(at) != m.FileOff(at) {
					n++
					break
				}
				at = same.Hi
			}
		}
		return n
	}
	found, gone := missing(is, was), missing(was, is)
	w.repairs.Mappings += found
	w.repairs.Gone += gone
	return found+gone > 0
}

// owns returns the user that a process runs as, and how many mappings are kept for one. Root's are bounded together with all others.
func (w *World) owns(pid int32) (owner uint32, most int) {
	if w.owner == nil {
		return 0, maxTotal
	}
	owner = w.owner(pid)
	if owner == 0 {
		return 0, maxTotal
	}
	return owner, MaxOwned
}

// module returns the module of a file: one for all processes that map it.
func (w *World) module(id fileID) *unwind.Module {
	m := w.files[id].Value()
	if m == nil {
		if id.pid != 0 && w.made != nil {
			m = w.made.Module(id.pid, id.path)
		} else if id.pid != 0 {
			m = &unwind.Module{Path: id.path, PID: id.pid}
		} else if w.mods != nil {
			buildID := id.buildID
			if buildID == "" && id.inode != 0 && w.identify != nil {
				buildID = w.identify(id.path, id.maj, id.min, id.inode, id.gen)
			}
			m = w.mods(id.path, buildID)
		}
		if m == nil {
			m = unwind.NewModule(id.path, id.buildID, nil)
		}
		if len(w.files) >= w.sweep {
			maps.DeleteFunc(w.files, func(_ fileID, m weak.Pointer[unwind.Module]) bool { return m.Value() == nil })
			maps.DeleteFunc(w.ids, func(m weak.Pointer[unwind.Module], _ fileID) bool { return m.Value() == nil })
			w.sweep = 2*len(w.files) + minSweep
		}
		w.files[id] = weak.Make(m)
		w.ids[weak.Make(m)] = id
	}
	return m
}
