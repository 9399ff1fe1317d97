package perfevent

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
)

// buildIDs are the build IDs of mapped files. The kernel would give them with its records (attr.build_id), but as long as one event asks for them,
// Linux marks the records of all others as if they had them, too: another recorder's file is spoilt, and perf record crashes. A file can be replaced
// in place, by cp or scp, and keeps its inode: so what is known of it counts only while its stamp is the same, or if nobody answers any more. It is
// safe for concurrent use: the drainer looks files up, and whoever reads /proc meanwhile. Nobody holds the lock while a file is read.
type buildIDs struct {
	asker procfs.Asker
	mu    sync.Mutex
	by    map[inode]identity
}

// An inode is a file, as an MMAP2 record has it. /proc does not say the generation.
type inode struct {
	maj, min uint32
	num, gen uint64
}

// An identity is a file's build ID, and what the file was like before it was asked for; no stamp: nobody could tell.
type identity struct {
	id []byte
	at stamp
}

// A stamp changes when what is in a file does.
type stamp struct {
	inode        uint64
	size         int64
	mtime, ctime unix.Timespec
}

// sum is what records have of a stamp: procfs.Stamp; 0 of none.
func (s stamp) sum() uint64 {
	if s == (stamp{}) {
		return 0
	}
	return procfs.Stamp(&unix.Stat_t{Size: s.size, Mtim: s.mtime})
}

// stampOf returns the stamp of the file that process pid has mapped at m: zero if it has no name any more, or another file has it. Asking for it takes
// a tenth of the time that the build ID does.
func stampOf(pid int, m *procfs.Mapping) stamp {
	var st unix.Stat_t
	if unix.Stat(inside(pid, m.Name), &st) != nil && unix.Stat(m.Name, &st) != nil || st.Ino != m.Inode {
		return stamp{}
	}
	return stamp{st.Ino, st.Size, st.Mtim, st.Ctim}
}

// inside returns the path that leads to a file as a process names it.
func inside(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/root" + name }

const maxBuildIDs = 1 << 16

// of returns the build ID and the stamp of the file that process pid has mapped at m. The build ID is what the kernel finds in it, if it can be asked, or
// else what the file has, if it is still there; nil if it has none, or if nobody can tell in time. maps is the process's open
// /proc/PID/maps; nil: it is opened if it is needed.
func (b *buildIDs) of(maps *os.File, pid int, m *procfs.Mapping, gen uint64) identity {
	if m.Inode == 0 {
		return identity{}
	}
	key := inode{m.Maj, m.Min, m.Inode, gen}
	was, there := b.known(key)
	is, ok := procfs.AskOf(&b.asker, pid, m, func() (is identity, ok bool) {
		is.at = stampOf(pid, m)
		if there && is.at == was.at && is.at != (stamp{}) {
			return was, true
		}
		if is.id, ok = ask(maps, pid, m); !ok {
			return is, false
		}
		switch now := stampOf(pid, m); now {
		case is.at:
		case stamp{}: // it has ended meanwhile, perhaps
			return is, true
		default: // what was asked may have been either of two
			return identity{at: now}, true
		}
		b.keep(key, is)
		return is, true
	})
	if !ok {
		return was
	}
	return is
}

// ask is buildIDs.of for a file that nothing is known of. ok is false if nobody can tell.
func ask(maps *os.File, pid int, m *procfs.Mapping) (id []byte, ok bool) {
	if maps == nil {
		if f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid)); err == nil { // else it has exited
			defer f.Close()
			maps = f
		}
	}
	if maps != nil {
		if id, ok = procfs.BuildID(maps, m); !ok {
			id, ok = procfs.FileBuildID(inside(pid, m.Name), m.Inode)
		}
	}
	if !ok {
		id, ok = procfs.FileBuildID(m.Name, m.Inode)
	}
	return id, ok
}

func (b *buildIDs) known(file inode) (is identity, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	is, ok = b.by[file]
	return is, ok
}

func (b *buildIDs) keep(file inode, is identity) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.by == nil || len(b.by) >= maxBuildIDs {
		b.by = map[inode]identity{}
	}
	b.by[file] = is
}

// mmapFile is where an MMAP2 record has its file (struct perf_record_mmap2): device, inode and generation, or the build ID: 24 bytes.
const mmapFile = 40

// identify gives an executable MMAP2 record of the kernel's the build ID of its file, in place of the inode, or the stamp, in place of the inode's
// generation. Of a process that has ended, the path may lead to a file that was written since, even with the same inode: then nobody can tell.
func (b *buildIDs) identify(raw []byte, dec *source.Decoder, rec *source.Record) {
	le := binary.LittleEndian
	if le.Uint32(raw) != source.RecordMmap2 {
		return
	}
	misc := le.Uint16(raw[4:]) &^ source.MiscMmapBuildID // see buildIDs: the mark may be another's
	le.PutUint16(raw[4:], misc)
	if dec.Decode(raw, rec) != nil || rec.Prot&source.ProtExec == 0 {
		return
	}
	m := procfs.Mapping{Lo: rec.Addr, Off: rec.Pgoff, Maj: rec.Maj, Min: rec.Min, Inode: rec.Inode, Name: string(rec.Filename)}
	is := b.of(nil, int(rec.PID), &m, rec.InodeGen)
	file := raw[mmapFile : mmapFile+24]
	switch {
	case is.at != (stamp{}) && !is.at.before(rec.Time) && ended(rec.PID):
		le.PutUint64(file[16:], procfs.NoStamp)
	case len(is.id) == 0:
		le.PutUint64(file[16:], is.at.sum())
	default:
		le.PutUint16(raw[4:], misc|source.MiscMmapBuildID)
		clear(file)
		file[0] = byte(copy(file[4:], is.id))
	}
}

// ended says whether nobody can be asked any more which files a process names.
func ended(pid int32) bool { return unix.Access(inside(int(pid), "/"), unix.F_OK) != nil }

// coarse is up to how much file systems without nanoseconds round down times: a second, and two with FAT.
const coarse = 2 * time.Second

// before says whether a file was last changed before a time of CLOCK_MONOTONIC. Most file systems round down to a tick of the coarse clock, which is not
// allowed for: a program that is made and executed within a tick is frequent, and one that ends within the tick, and is written to, is not.
func (s stamp) before(at uint64) bool {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_REALTIME, &now) != nil {
		return false
	}
	changed := s.ctime.Nano()
	if s.ctime.Nsec == 0 {
		changed += int64(coarse)
	}
	return changed <= now.Nano()-int64(monotonic()-at)
}
