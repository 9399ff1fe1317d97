package procfs

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"sync"
	"time"
)

// An Asker asks what tells a mapped file from others, such as its build ID. It has patience with file systems that do not answer: the kernel and
// FileBuildID read the file, and a file system that any user runs in a process (FUSE) can keep them waiting for ever. Each question has a goroutine, and
// a thread while it waits. The zero Asker is ready. It is safe for concurrent use.
//
// File systems of this machine's kernel are asked with more patience than others: this process may have to wait for a processor. But another file may
// be mapped there by now, so these questions have an end, too. So are layered ones, which containers have: but any user may mount one above FUSE.
type Asker struct {
	mu    sync.Mutex
	kinds map[device]kind // what is known of file systems
	since time.Time       // from when on: a device's number can become another one's
	late  map[int]bool    // processes with a question that goes on without an answer
	by    [local + 1]patience
}

// A kind is what a file system is like.
type kind uint8

const (
	other   kind = iota // its files may be a server's or a process's
	layered             // they may be another file system's
	local
)

type device struct{ maj, min uint32 }

// A patience is what waiting for answers may cost.
type patience struct {
	waiting int           // questions that are late, and go on
	since   time.Time     // when counting began
	spent   time.Duration // by slow questions since then
}

const (
	maxLate      = 16 // questions that go on without an answer, to file systems of a kind: no other of this kind is asked meanwhile
	slow         = 5 * time.Millisecond
	otherTime    = 20 * time.Millisecond  // for an answer
	ownTime      = 500 * time.Millisecond // of a layered or local one
	slowTime     = time.Second            // for all slow answers of slowPeriod; then others are not asked, and answers of layered and local ones have slow
	slowPeriod   = 10 * time.Second
	maxDevices   = 1 << 10
	maxMountinfo = 1 << 20
)

// AskOf returns what ask does, or false if that takes too long, or if another question of process pid goes on. ask asks of the file that the process has
// mapped at m.
func AskOf[T any](a *Asker, pid int, m *Mapping, ask func() (T, bool)) (answer T, ok bool) {
	return askOf(a, pid, a.kind(pid, device{m.Maj, m.Min}), ask)
}

func askOf[T any](a *Asker, pid int, is kind, ask func() (T, bool)) (none T, ok bool) {
	p, wait := &a.by[is], ownTime
	if is == other {
		wait = otherTime
	}
	began := time.Now()
	a.mu.Lock()
	if began.Sub(p.since) >= slowPeriod {
		p.since, p.spent = began, 0
	}
	left := slowTime - p.spent
	if is != other {
		left = max(left, slow)
	}
	wait = min(wait, left)
	refused := p.waiting >= maxLate || wait <= 0 || a.late[pid]
	a.mu.Unlock()
	if refused {
		return none, false
	}

	late := false
	answered := make(chan struct{})
	var answer T
	var good bool
	go func() {
		t, ok := ask()
		a.mu.Lock()
		defer a.mu.Unlock()
		if answer, good = t, ok; late {
			p.waiting--
			delete(a.late, pid)
		}
		close(answered)
	}()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-answered:
	case <-timer.C:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if took := time.Since(began); took >= slow {
		p.spent += took
	}
	select {
	case <-answered:
		return answer, good
	default:
	}
	late = true
	if p.waiting++; pid != 0 {
		if a.late == nil {
			a.late = map[int]bool{}
		}
		a.late[pid] = true
	}
	return none, false
}

// kind says what the file system of a device is, as this process's mounts or those of process pid have it.
func (a *Asker) kind(pid int, dev device) kind {
	now := time.Now()
	a.mu.Lock()
	if a.kinds == nil || len(a.kinds) >= maxDevices || now.Sub(a.since) >= slowPeriod {
		a.kinds, a.since = map[device]kind{}, now
	}
	is, ok := a.kinds[dev]
	a.mu.Unlock()
	if ok {
		return is
	}
	for _, proc := range []string{"self", strconv.Itoa(pid)} {
		if f, err := os.Open("/proc/" + proc + "/mountinfo"); err == nil {
			text, _ := io.ReadAll(io.LimitReader(f, maxMountinfo))
			f.Close()
			if is, ok = kindIn(text, dev); ok {
				break
			}
		}
	}
	if ok { // else the process has gone, and another one may tell
		a.mu.Lock()
		defer a.mu.Unlock()
		a.kinds[dev] = is
	}
	return is
}

// kindIn says what file system a text of /proc/PID/mountinfo (proc_pid_mountinfo(5)) has for a device; ok is false if it has none.
func kindIn(mountinfo []byte, dev device) (is kind, ok bool) {
	for line := range bytes.Lines(mountinfo) {
		f := bytes.Fields(line)
		sep := 0
		for sep < len(f) && string(f[sep]) != "-" {
			sep++
		}
		if sep < 6 || sep+1 >= len(f) {
			continue
		}
		maj, min, _ := bytes.Cut(f[2], []byte(":"))
		if string(maj) != strconv.FormatUint(uint64(dev.maj), 10) || string(min) != strconv.FormatUint(uint64(dev.min), 10) {
			continue
		}
		switch string(f[sep+1]) {
		case "ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "f2fs", "zfs", "jfs", "nilfs2", "squashfs", "erofs", "iso9660", "vfat", "exfat", "ubifs", "jffs2",
			"tmpfs", "ramfs", "rootfs", "hugetlbfs", "devtmpfs":
			return local, true
		case "overlay":
			return layered, true
		}
		return other, true
	}
	return other, false
}
