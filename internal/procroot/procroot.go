// Package procroot opens files as another process sees them: below its root directory, in its mount namespace (proc(5), /proc/PID/root).
// Symbolic links cannot lead out of that root.
package procroot

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/unspool/unspool/internal/procfs"
	"golang.org/x/sys/unix"
)

// Open opens a regular file, read-only, by its absolute path in the process. What else may be there, such as a device whose opening does
// something, is left alone. It needs the right to trace the process, and Linux 5.6.
func Open(pid int, path string) (*os.File, error) {
	return In(fmt.Sprintf("/proc/%d/root", pid), path)
}

// In opens a regular file, read-only, by its absolute path below a root directory: links lead to nothing outside.
func In(dir, path string) (*os.File, error) {
	name := strings.TrimSuffix(dir, "/") + path
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(root)
	at, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(at)
	return procfs.Regular(at, name)
}

// ID distinguishes the views of processes: their root directories and mount namespaces. ok is false for a process that is gone, or into which
// this one may not look.
func ID(pid int) (id string, ok bool) {
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/root", pid), &st) != nil {
		return "", false
	}
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	return fmt.Sprint(st.Dev, " ", st.Ino, " ", ns), err == nil
}

// Same says whether a process's path leads to the same file as this process's. It is true also for a process of which that is not known.
func Same(pid int) bool {
	its, ok := ID(pid)
	own, _ := ID(os.Getpid())
	return !ok || its == own
}

// maxOthers bounds how many root directories are known at a time.
const maxOthers = 64

var others struct {
	sync.Mutex
	pids  []int
	stale time.Time
}

// Others returns a process for each root directory, 64 at most, that processes of this machine have and this one has not: those of containers
// that it may look into. It looks at all processes, and takes a twentieth of the time at most: what it returns may be that old.
func Others() []int {
	others.Lock()
	defer others.Unlock()
	began := time.Now()
	if began.Before(others.stale) {
		return others.pids
	}
	own, _ := ID(os.Getpid())
	seen := map[string]bool{own: true}
	others.pids = nil
	pids, _ := procfs.Numbers("/proc") // an error is no process
	for _, pid := range pids {
		if id, ok := ID(pid); ok && !seen[id] && len(others.pids) < maxOthers {
			seen[id] = true
			others.pids = append(others.pids, pid)
		}
	}
	now := time.Now()
	others.stale = now.Add(20 * now.Sub(began))
	return others.pids
}

// Inner returns the number that a process has in its own PID namespace; pid itself if that is not known.
func Inner(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return pid
	}
	for line := range bytes.Lines(b) {
		if rest, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			f := bytes.Fields(rest)
			if len(f) > 0 {
				if n, err := strconv.Atoi(string(f[len(f)-1])); err == nil && n > 0 {
					return n
				}
			}
		}
	}
	return pid
}
