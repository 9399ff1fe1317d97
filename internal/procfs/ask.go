package procfs

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"sync"
	"time"
)

// An Asker asks for build IDs of mapped files, and has patience with file systems that do not answer: the kernel and FileBuildID read the file, and a
// file system that any user runs in a process (FUSE) can keep them waiting for ever. Each question has a goroutine, and a thread while it waits.
// Where no answer comes, the file has no build ID. The zero Asker is ready. It is safe for concurrent use.
//
// What a mapping is of is asked of file systems of this machine's kernel with more patience than of others: this process may have to wait for a
// processor. But another file may be mapped there by now, so these questions have an end, too.
type Asker struct {
	mu     sync.Mutex
	local  map[device]bool // what is known of file systems
	late   map[device]int  // questions that others than local ones have not answered yet
	others patience
	own    patience // with local ones
}

type device struct{ maj, min uint32 }

// A patience is what waiting for answers may cost.
type patience struct {
	waiting int           // questions that are late, and go on
	since   time.Time     // when counting began
	spent   time.Duration // by slow questions since then
}

const (
	maxLate      = 2 // questions that go on without an answer, to file systems of either kind: nobody is asked meanwhile
	slow         = 5 * time.Millisecond
	otherTime    = 20 * time.Millisecond // for an answer
	localTime    = 500 * time.Millisecond
	slowTime     = time.Second // for all slow answers of slowPeriod
	slowPeriod   = 10 * time.Second
	maxDevices   = 1 << 10
	maxMountinfo = 1 << 20
)

// AskOf returns what ask does, or false if that takes too long. ask asks of the file that process pid has mapped at m.
func (a *Asker) AskOf(pid int, m *Mapping, ask func() (id []byte, ok bool)) (id []byte, ok bool) {
	dev := device{m.Maj, m.Min}
	return a.ask(dev, a.isLocal(pid, dev), ask)
}

// Ask is AskOf for a file on whatever file system: with the patience for local ones.
func (a *Asker) Ask(ask func() (id []byte, ok bool)) (id []byte, ok bool) {
	return a.ask(device{}, true, ask)
}

func (a *Asker) ask(dev device, local bool, ask func() (id []byte, ok bool)) (id []byte, ok bool) {
	p, wait := &a.others, otherTime
	if local {
		p, wait = &a.own, localTime
	}
	began := time.Now()
	a.mu.Lock()
	if began.Sub(p.since) >= slowPeriod {
		p.since, p.spent = began, 0
	}
	wait = min(wait, slowTime-p.spent)
	refused := p.waiting >= maxLate || wait <= 0 || a.late[dev] > 0
	a.mu.Unlock()
	if refused {
		return nil, false
	}

	late := false
	answered := make(chan struct{})
	var answer []byte
	var good bool
	go func() {
		b, ok := ask()
		a.mu.Lock()
		defer a.mu.Unlock()
		if answer, good = b, ok; late {
			if p.waiting--; !local {
				if a.late[dev]--; a.late[dev] == 0 {
					delete(a.late, dev)
				}
			}
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
	if p.waiting++; !local {
		if a.late == nil {
			a.late = map[device]int{}
		}
		a.late[dev]++
	}
	return nil, false
}

// isLocal says whether the file system of a device is the kernel's own, as this process's mounts or those of process pid have it.
func (a *Asker) isLocal(pid int, dev device) bool {
	a.mu.Lock()
	local, ok := a.local[dev]
	a.mu.Unlock()
	if ok {
		return local
	}
	for _, proc := range []string{"self", strconv.Itoa(pid)} {
		if f, err := os.Open("/proc/" + proc + "/mountinfo"); err == nil {
			text, _ := io.ReadAll(io.LimitReader(f, maxMountinfo))
			f.Close()
			if local = localIn(text, dev); local {
				break
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.local == nil || len(a.local) >= maxDevices {
		a.local = map[device]bool{}
	}
	a.local[dev] = local
	return local
}

// localIn says whether a text of /proc/PID/mountinfo (proc_pid_mountinfo(5)) has a device with a file system that the kernel answers for itself. Others
// may wait for a server, a process, or a file system below them.
func localIn(mountinfo []byte, dev device) bool {
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
			return true
		}
		return false
	}
	return false
}
