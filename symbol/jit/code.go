package jit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/procroot"
)

// A Process is one that makes code: whose files are believed depends on its user, also after it has gone.
type Process struct {
	pid, inner int    // inner: in its own PID namespace
	uid, gid   uint32 // where it was seen
	seen       bool   // it was alive
}

// Seen returns what is to be known of a process that is alive.
func Seen(pid int) Process {
	p := Process{pid: pid, inner: procroot.Inner(pid)}
	p.look()
	return p
}

// look says whether p is alive, and whose it is.
func (p *Process) look() (alive bool) {
	st, alive := owner(os.Stat(fmt.Sprintf("/proc/%d", p.pid)))
	if alive {
		p.uid, p.gid, p.seen = st.Uid, st.Gid, true
	}
	return alive
}

// A Code names the code that one process made, by the process's map and dumps so far. It is safe for concurrent use.
type Code struct {
	process Process // under reading
	notify  func(error)
	unwind  bool // unwind information only

	reading sync.Mutex   // held while files are read
	next    atomic.Int64 // not before then are files looked at again: in ns since began
	version atomic.Int64 // counts the times that one had changed
	looks   atomic.Int64 // counts the times that files were looked at
	alike   alike

	mu    sync.RWMutex // of what has been read
	files []file       // dumps first, then the map
	note  string
}

// A file is a dump or a map.
type file struct {
	path string
	dump bool
	size int64 // as it was read
	time time.Time
	read bool
	m    *Map // nil: there is nothing
}

// Files are not looked at again within between, nor within idle times the time that reading them took. As long as there is nothing in them, between
// is soon. So often it is asked, too, whether the process has ended.
const (
	between = time.Second
	soon    = 50 * time.Millisecond
	idle    = 20
)

var began = time.Now()

// maxDumps is how many dumps of a process are read.
const maxDumps = 8

// Open returns the code of a process. dumps are the paths of the dumps that the process mapped: mapping a dump tells where it is. Files are
// read when somebody first asks for a name.
func Open(p Process, dumps []string) *Code {
	c := open(p, dumps)
	c.files = append(c.files, file{path: fmt.Sprintf("/tmp/perf-%d.map", p.inner)})
	return c
}

// OpenUnwind is Open for Unwinding alone: names, lines and the map are not read. Whoever is done with it closes it. All that are open share 128 MiB, of
// which a user takes no more than is left for the others: a dump that would take more is not read. notify, if not nil, gets what is wrong with files.
func OpenUnwind(p Process, dumps []string, notify func(error)) *Code {
	c := open(p, dumps)
	c.unwind, c.notify = true, notify
	return c
}

func open(p Process, dumps []string) *Code {
	c := &Code{process: p}
	for _, d := range dumps[:min(len(dumps), maxDumps)] {
		c.files = append(c.files, file{path: d, dump: true})
	}
	return c
}

// Close gives up what has been read. After it, nothing is known.
func (c *Code) Close() {
	c.reading.Lock()
	defer c.reading.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.files {
		c.files[i].m.release()
	}
	c.files = nil
}

// IsDump says whether a mapped file has the name of a dump.
func IsDump(file string) bool {
	ok, _ := path.Match("jit-[0-9]*.dump", path.Base(file))
	return ok
}

// Note says what is wrong with a file; "" if nothing is wrong, or if there is no file.
func (c *Code) Note() string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.note
}

// Lookup returns the functions at addrs; the zero Func stands for an unknown one. See Map.Lookup for time; perf maps have no times.
func (c *Code) Lookup(addrs []arch.Addr, time uint64) []Func {
	out := make([]Func, len(addrs))
	for {
		version := c.version.Load()
		if c.find(out, addrs, time) == len(addrs) || !c.refresh(version) {
			return out
		}
	}
}

func (c *Code) find(out []Func, addrs []arch.Addr, time uint64) (found int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for i, a := range addrs {
		for k := range c.files {
			if m := c.files[k].m; m != nil {
				var ok bool
				if out[i], ok = m.Lookup(a, time); ok {
					found++
					break
				}
			}
		}
	}
	return found
}

// An Unwinding is the unwind information of a piece of code, as its maker wrote it down: .eh_frame, mapped behind the code at the next multiple of eight
// bytes.
type Unwinding struct {
	Start   arch.Addr
	Size    uint64 // bytes
	EHFrame string
	Big     bool // big-endian
}

// Unwinding returns the unwind information of the code at addr at a time; false where no dump has any. See Map.Lookup for time. Code of a live
// process that has no record yet has that of equal code.
func (c *Code) Unwinding(addr arch.Addr, time uint64) (u Unwinding, ok bool) {
	for {
		version := c.version.Load()
		if u, ok = c.unwinding(addr, time); ok {
			return u, true
		}
		if c.refresh(version) {
			continue
		}
		again := false
		if u, ok, again = c.like(addr); !again {
			return u, ok
		}
	}
}

func (c *Code) unwinding(addr arch.Addr, time uint64) (u Unwinding, ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for i := range c.files {
		if m := c.files[i].m; m != nil && c.files[i].dump {
			if u, ok = m.unwinding(addr, time); ok {
				break
			}
		}
	}
	return u, ok
}

// Again has files looked at by the next who misses something, however recently that was done.
func (c *Code) Again() { c.next.Store(0) }

// refresh reads the files that have changed. It says whether there is more than in a version. Others that know what they ask for go on meanwhile.
func (c *Code) refresh(version int64) (changed bool) {
	if int64(time.Since(began)) < c.next.Load() {
		return c.version.Load() != version
	}
	c.reading.Lock()
	defer c.reading.Unlock()
	now := time.Since(began)
	if c.version.Load() != version || int64(now) < c.next.Load() {
		return c.version.Load() != version
	}
	for i := range c.files { // nobody else changes them while reading is held
		f := c.files[i]
		old := f.m
		err := f.refresh(&c.process, c.unwind)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%s: %w", f.path, err)
			if c.notify != nil {
				c.notify(err)
			}
		} else {
			err = nil
		}
		c.mu.Lock()
		if c.files[i] = f; err != nil {
			c.note = err.Error()
		}
		c.mu.Unlock()
		if f.m != old {
			old.release()
			changed = true
		}
	}
	if changed {
		c.version.Add(1)
	}
	c.looks.Add(1)
	done := time.Since(began)
	least := between
	if !slices.ContainsFunc(c.files, func(f file) bool { return f.m != nil && f.m.Len() > 0 }) {
		least = soon
	}
	c.next.Store(int64(done + max(least, idle*(done-now))))
	return changed
}

// refresh reads f, unless it is what it was. Where it cannot be read, what was read before stays.
func (f *file) refresh(p *Process, unwind bool) error {
	in, err := p.open(f.path)
	if err != nil {
		return err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil || f.read && st.Size() == f.size && st.ModTime().Equal(f.time) {
		return err
	}
	pid, err := p.trusts(f.path, in, st)
	if err != nil {
		return err
	}
	f.size, f.time, f.read = st.Size(), st.ModTime(), true
	from := io.LimitReader(in, f.size) // it may grow while it is read
	var m *Map
	if unwind {
		m, err = readDump(from, pid, p.Charge())
	} else if f.dump {
		m, err = readDump(from, pid, nil)
	} else {
		m, err = ReadMap(from)
	}
	if m != nil {
		f.m = m
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil // the process is writing, or was killed
	}
	return err
}

// release gives back what m takes.
func (m *Map) release() {
	if m != nil {
		m.charge.Release()
	}
}

// open opens a file of a process: through its root directory where that is another one.
func (p *Process) open(name string) (*os.File, error) {
	if !procroot.Same(p.pid) {
		return procroot.Open(p.pid, name)
	}
	return procfs.Open(name)
}

// trusts says why a file is not to be believed: anybody can make one in /tmp. It must be root's, this user's, or the process's own. Nor is it
// where the process's user, or who made the link that led to it, could not read it: then it is not theirs to be shown. Of a process that has gone before
// it was seen, the user is not known: its dump must have its number, pid, and be root's or this user's.
func (p *Process) trusts(path string, f *os.File, st os.FileInfo) (pid int, err error) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, nil
	}
	p.look()
	if own := uint32(os.Geteuid()); sys.Uid != 0 && sys.Uid != own && (!p.seen || p.uid != sys.Uid) {
		return 0, fmt.Errorf("it belongs to user %d, who is neither root nor who runs this program nor the process", sys.Uid)
	}
	if p.seen && p.uid != sys.Uid && !procfs.Readable(f, p.uid, p.gid) {
		return 0, fmt.Errorf("the process's user %d may not read it", p.uid)
	}
	if l, ok := owner(os.Lstat(path)); ok && l.Mode&syscall.S_IFMT == syscall.S_IFLNK && !procfs.Readable(f, l.Uid, l.Gid) {
		return 0, fmt.Errorf("user %d, who made the link, may not read it", l.Uid)
	}
	if !p.seen {
		pid = p.pid
	}
	return pid, nil
}

func owner(st os.FileInfo, err error) (*syscall.Stat_t, bool) {
	if err != nil {
		return nil, false
	}
	s, ok := st.Sys().(*syscall.Stat_t)
	return s, ok
}
