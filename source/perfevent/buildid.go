package perfevent

import (
	"bytes"
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
	was, ok := b.known(key)
	id, answered := b.asker.AskOf(pid, m, func() (id []byte, good bool) {
		is := identity{at: stampOf(pid, m)}
		if ok && is.at == was.at && is.at != (stamp{}) {
			return was.id, true
		}
		if is.id, good = ask(maps, pid, m); good {
			b.keep(key, is)
		}
		return is.id, good
	})
	if !answered {
		return was
	}
	is, _ := b.known(key)
	is.id = id
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

// Where an MMAP2 record has what identify wants (struct perf_record_mmap2), from its beginning.
const (
	mmapPID  = 8
	mmapAddr = 16
	mmapOff  = 32
	mmapFile = 40 // device, inode and generation, or the build ID: 24 bytes
	mmapProt = 64
	mmapName = 72
)

// young is up to what age a file may be another one than a process that has ended had mapped: records are read much sooner.
const young = 2 * time.Second

// ended says whether a process's files are looked for as this process names them.
func ended(pid int) bool { return unix.Access("/proc/"+strconv.Itoa(pid)+"/root", unix.F_OK) != nil }

// identify gives an executable MMAP2 record of the kernel's the build ID of its file, in place of the inode, or the stamp, in place of the inode's generation.
func (b *buildIDs) identify(raw []byte) {
	if len(raw) <= mmapName || binary.LittleEndian.Uint32(raw) != source.RecordMmap2 {
		return
	}
	misc := binary.LittleEndian.Uint16(raw[4:]) &^ source.MiscMmapBuildID // see buildIDs: the mark may be another's
	binary.LittleEndian.PutUint16(raw[4:], misc)
	if binary.LittleEndian.Uint32(raw[mmapProt:])&source.ProtExec == 0 {
		return
	}
	file := raw[mmapFile:mmapProt]
	num := binary.LittleEndian.Uint64
	name, _, _ := bytes.Cut(raw[mmapName:], []byte{0})
	m := procfs.Mapping{
		Lo: num(raw[mmapAddr:]), Off: num(raw[mmapOff:]), Name: string(name),
		Maj: binary.LittleEndian.Uint32(file), Min: binary.LittleEndian.Uint32(file[4:]), Inode: num(file[8:]),
	}
	is := b.of(nil, int(binary.LittleEndian.Uint32(raw[mmapPID:])), &m, num(file[16:]))
	if len(is.id) == 0 {
		sum := is.at.sum()
		if sum != 0 && time.Since(time.Unix(is.at.ctime.Unix())) < young && ended(int(binary.LittleEndian.Uint32(raw[mmapPID:]))) {
			sum = procfs.NoStamp
		}
		binary.LittleEndian.PutUint64(file[16:], sum)
		return
	}
	binary.LittleEndian.PutUint16(raw[4:], misc|source.MiscMmapBuildID)
	clear(file)
	file[0] = byte(copy(file[4:], is.id))
}
