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
// File systems of this machine's kernel are asked with more patience than others: this process may have to wait for a processor. But another file may
// be mapped there by now, so these questions have an end, too. So are layered ones, which containers have: but any user may mount one above FUSE.
type Asker struct {
	mu    sync.Mutex
	kinds map[device]kind // what is known of file systems
	late  map[device]int  // questions that others than local ones have not answered yet
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
	maxLate      = 2 // questions that go on without an answer, to file systems of a kind: no other of this kind is asked meanwhile
	slow         = 5 * time.Millisecond
	otherTime    = 20 * time.Millisecond  // for an answer
	ownTime      = 500 * time.Millisecond // of a layered or local one
	slowTime     = time.Second            // for all slow answers of slowPeriod
	slowPeriod   = 10 * time.Second
	maxDevices   = 1 << 10
	maxMountinfo = 1 << 20
)

// AskOf returns what ask does, or false if that takes too long. ask asks of the file that process pid has mapped at m.
func (a *Asker) AskOf(pid int, m *Mapping, ask func() (id []byte, ok bool)) (id []byte, ok bool) {
	dev := device{m.Maj, m.Min}
	return a.ask(dev, a.kind(pid, dev), ask)
}

// Ask is AskOf for a file on whatever file system: with the patience for local ones.
func (a *Asker) Ask(ask func() (id []byte, ok bool)) (id []byte, ok bool) {
	return a.ask(device{}, local, ask)
}

func (a *Asker) ask(dev device, is kind, ask func() (id []byte, ok bool)) (id []byte, ok bool) {
	p, wait := &a.by[is], ownTime
	if is == other {
		wait = otherTime
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
			if p.waiting--; is != local {
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
	if p.waiting++; is != local {
		if a.late == nil {
			a.late = map[device]int{}
		}
		a.late[dev]++
	}
	return nil, false
}

// kind says what the file system of a device is, as this process's mounts or those of process pid have it.
func (a *Asker) kind(pid int, dev device) kind {
	a.mu.Lock()
	is, ok := a.kinds[dev]
	a.mu.Unlock()
	if ok {
		return is
	}
	for _, proc := range []string{"self", strconv.Itoa(pid)} {
		if f, err := os.Open("/proc/" + proc + "/mountinfo"); err == nil {
			text, _ := io.ReadAll(io.LimitReader(f, maxMountinfo))
			f.Close()
			if is = kindIn(text, dev); is != other {
				break
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.kinds == nil || len(a.kinds) >= maxDevices {
		a.kinds = map[device]kind{}
	}
	a.kinds[dev] = is
	return is
}

// kindIn says what file system a text of /proc/PID/mountinfo (proc_pid_mountinfo(5)) has for a device.
func kindIn(mountinfo []byte, dev device) kind {
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
			return local
		case "overlay":
			return layered
		}
		return other
	}
	return other
}
