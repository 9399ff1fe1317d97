package perfevent

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
)

// buildIDs are the build IDs of mapped files, looked up when a file is first seen. The kernel would give them with its
// records (attr.build_id), but as long as one event asks for them, Linux marks the records of all others as if they had
// them, too: another recorder's file is spoilt, and perf record crashes. It is safe for concurrent use: the drainer looks files
// up, and whoever reads /proc meanwhile. Nobody holds the lock while a file is read.
type buildIDs struct {
	mu sync.Mutex
	by map[inode][]byte
}

// An inode is a file, as an MMAP2 record has it. /proc does not say the generation.
type inode struct {
	maj, min uint32
	num, gen uint64
}

const maxBuildIDs = 1 << 16

// of returns the build ID of the file that process pid has mapped at m: what the kernel finds in it, if it can be asked, or else
// what the file has, if it is still there; nil if it has none, or if nobody can tell. maps is the process's open
// /proc/PID/maps; nil if it has none any more.
func (b *buildIDs) of(maps *os.File, pid int, m *procfs.Mapping, gen uint64) []byte {
	key := inode{m.Maj, m.Min, m.Inode, gen}
	id, ok := b.known(key)
	if ok || m.Inode == 0 {
		return id
	}
	if maps != nil {
		if id, ok = procfs.BuildID(maps, m); !ok {
			id, ok = procfs.FileBuildID(fmt.Sprintf("/proc/%d/root%s", pid, m.Name), m.Inode)
		}
	}
	if !ok {
		id, ok = procfs.FileBuildID(m.Name, m.Inode)
	}
	if ok {
		b.keep(key, id)
	}
	return id
}

func (b *buildIDs) known(file inode) (id []byte, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, ok = b.by[file]
	return id, ok
}

func (b *buildIDs) keep(file inode, id []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.by == nil || len(b.by) >= maxBuildIDs {
		b.by = map[inode][]byte{}
	}
	b.by[file] = id
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

// identify gives an executable MMAP2 record of the kernel's the build ID of its file, in place of the inode.
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
	gen := num(file[16:])
	id, ok := b.known(inode{m.Maj, m.Min, m.Inode, gen})
	if !ok && m.Inode != 0 {
		pid := int(binary.LittleEndian.Uint32(raw[mmapPID:]))
		maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
		if err != nil {
			maps = nil // it has exited
		} else {
			defer maps.Close()
		}
		id = b.of(maps, pid, &m, gen)
	}
	if len(id) == 0 {
		return
	}
	binary.LittleEndian.PutUint16(raw[4:], misc|source.MiscMmapBuildID)
	clear(file)
	file[0] = byte(copy(file[4:], id))
}
