package jit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
	"syscall"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/procroot"
)

// A Code names the code that one process made, by the process's map and dumps so far. It is safe for concurrent use.
type Code struct {
	pid int

	mu    sync.Mutex
	files []file // dumps first, then the map
	asked time.Time
	note  string
}

// A file is a dump or a map.
type file struct {
	path string
	dump bool
	size int64 // as it was read
	time time.Time
	m    *Map // nil: not read
}

// between is how long what a process has written down since is not looked for.
const between = time.Second

// maxDumps is how many dumps of a process are read.
const maxDumps = 8

// Open returns the code of a process. dumps are the paths of the dumps that the process mapped: mapping a dump tells where it is. Files are
// read when somebody first asks for a name.
func Open(pid int, dumps []string) *Code {
	c := &Code{pid: pid}
	for _, d := range dumps[:min(len(dumps), maxDumps)] {
		c.files = append(c.files, file{path: d, dump: true})
	}
	c.files = append(c.files, file{path: fmt.Sprintf("/tmp/perf-%d.map", procroot.Inner(pid))})
	return c
}

// IsDump says whether a mapped file has the name of a dump.
func IsDump(file string) bool {
	ok, _ := path.Match("jit-[0-9]*.dump", path.Base(file))
	return ok
}

// Note says what is wrong with a file; "" if nothing is wrong, or if there is no file.
func (c *Code) Note() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.note
}

// Lookup returns the functions at addrs; the zero Func stands for an unknown one. See Map.Lookup for time; perf maps have no times.
func (c *Code) Lookup(addrs []arch.Addr, time uint64) []Func {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Func, len(addrs))
	if c.find(out, addrs, time) < len(addrs) && c.refresh() {
		c.find(out, addrs, time)
	}
	return out
}

func (c *Code) find(out []Func, addrs []arch.Addr, time uint64) (found int) {
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

// refresh reads the files that have changed.
func (c *Code) refresh() (changed bool) {
	if time.Since(c.asked) < between {
		return false
	}
	for i := range c.files {
		f := &c.files[i]
		ok, err := f.read(c.pid)
		changed = changed || ok
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			c.note = fmt.Sprintf("%s: %v", f.path, err)
		}
	}
	c.asked = time.Now()
	return changed
}

// read reads f, unless it is what it was.
func (f *file) read(pid int) (changed bool, err error) {
	in, err := openOwn(pid, f.path)
	if err != nil {
		return false, err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil || f.m != nil && st.Size() == f.size && st.ModTime().Equal(f.time) {
		return false, err
	}
	if err := trusted(pid, f.path, in, st); err != nil {
		return false, err
	}
	f.size, f.time = st.Size(), st.ModTime()
	from := io.LimitReader(in, f.size) // it may grow while it is read
	if f.dump {
		f.m, err = ReadDump(from)
	} else {
		f.m, err = ReadMap(from)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil // the process is writing, or was killed
	}
	return true, err
}

// openOwn opens a file of a process: through its root directory where that is another one.
func openOwn(pid int, name string) (*os.File, error) {
	if !procroot.Same(pid) {
		return procroot.Open(pid, name)
	}
	return procfs.Open(name)
}

// trusted says why a file is not to be believed: anybody can make one in /tmp. It must be root's, this user's, or the process's own. Nor is it
// where the process's user, or who made the link that led to it, could not read it: then it is not theirs to be shown.
func trusted(pid int, path string, f *os.File, st os.FileInfo) error {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	proc, alive := owner(os.Stat(fmt.Sprintf("/proc/%d", pid)))
	if own := uint32(os.Geteuid()); sys.Uid != 0 && sys.Uid != own && (!alive || proc.Uid != sys.Uid) {
		return fmt.Errorf("it belongs to user %d, who is neither root nor who runs this program nor the process", sys.Uid)
	}
	if alive && proc.Uid != sys.Uid && procroot.Same(pid) && !procfs.Readable(f, proc.Uid, proc.Gid) {
		return fmt.Errorf("the process's user %d may not read it", proc.Uid)
	}
	if l, ok := owner(os.Lstat(path)); ok && l.Mode&syscall.S_IFMT == syscall.S_IFLNK && !procfs.Readable(f, l.Uid, l.Gid) {
		return fmt.Errorf("user %d, who made the link, may not read it", l.Uid)
	}
	return nil
}

func owner(st os.FileInfo, err error) (*syscall.Stat_t, bool) {
	if err != nil {
		return nil, false
	}
	s, ok := st.Sys().(*syscall.Stat_t)
	return s, ok
}
