package procfs

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/elfnote"
)

// A procmapQuery is struct procmap_query of linux/fs.h.
type procmapQuery struct {
	size, flags, addr                             uint64
	start, end, vmaFlags, pageSize, offset, inode uint64
	major, minor, nameSize, buildIDSize           uint32
	nameAddr, buildIDAddr                         uint64
}

const procmapQueryIoctl = 3<<30 | 104<<16 | 'f'<<8 | 17 // PROCMAP_QUERY

// At asks the kernel what a process has mapped at an address, without its name, since Linux 6.11. maps is /proc/PID/maps. ok is false if the kernel does
// not answer, or if nothing is there.
func At(maps *os.File, addr uint64) (m Mapping, ok bool) {
	q := procmapQuery{addr: addr}
	q.size = uint64(unsafe.Sizeof(q))
	conn, err := maps.SyscallConn()
	if err != nil {
		return m, false
	}
	var errno unix.Errno
	conn.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, procmapQueryIoctl, uintptr(unsafe.Pointer(&q)))
	})
	if errno != 0 {
		return m, false
	}
	const shared = 8 // PROCMAP_QUERY_VMA_SHARED; those before it are as Mapping.Prot
	return Mapping{
		Lo: q.start, Hi: q.end, Off: q.offset, Prot: uint32(q.vmaFlags & (Read | Write | Exec)), Shared: q.vmaFlags&shared != 0,
		Maj: q.major, Min: q.minor, Inode: q.inode,
	}, true
}

// BuildID asks the kernel for the build ID of the file that a process has mapped at m, since Linux 6.11. maps is /proc/PID/maps. ok is
// false if the kernel does not answer, or if something else is there by now. Some file systems give a record of perf's another inode
// than /proc; there the path decides.
func BuildID(maps *os.File, m *Mapping) (id []byte, ok bool) {
	// The kernel gets addresses as numbers: what is there must not be on a stack, which moves when it grows.
	var buf [maxBuildID]byte
	var name [unix.PathMax]byte
	var pin runtime.Pinner
	pin.Pin(&buf)
	pin.Pin(&name)
	defer pin.Unpin()
	q := procmapQuery{addr: m.Lo, buildIDSize: uint32(len(buf)), nameSize: uint32(len(name))}
	q.size = uint64(unsafe.Sizeof(q))
	q.buildIDAddr = uint64(uintptr(unsafe.Pointer(&buf)))
	q.nameAddr = uint64(uintptr(unsafe.Pointer(&name)))
	conn, err := maps.SyscallConn()
	if err != nil {
		return nil, false
	}
	var errno unix.Errno
	conn.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, procmapQueryIoctl, uintptr(unsafe.Pointer(&q)))
	})
	if errno != 0 || q.buildIDSize > uint32(len(buf)) || q.offset+(m.Lo-q.start) != m.Off {
		return nil, false
	}
	if q.inode != m.Inode || q.major != m.Maj || q.minor != m.Min {
		if is, _, _ := bytes.Cut(name[:], []byte{0}); string(is) != m.Name {
			return nil, false
		}
	}
	return bytes.Clone(buf[:q.buildIDSize]), true
}

// FileBuildID reads the NT_GNU_BUILD_ID note of an ELF file; nil if there is none that the kernel would find. ok is false if the file cannot be read, or if
// inode is not 0 and not that of the file.
func FileBuildID(path string, inode uint64) (id []byte, ok bool) {
	f, err := Open(path)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, false
	}
	// Device numbers differ between stat and maps on some file systems.
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && inode != 0 && sys.Ino != inode {
		return nil, false
	}
	return short(elfnote.BuildID.In(f)), true
}

// KernelBuildID returns the build ID of the kernel that runs; nil if it does not say.
func KernelBuildID() []byte {
	b, err := os.ReadFile("/sys/kernel/notes")
	if err != nil {
		return nil
	}
	return short(elfnote.BuildID.Find(b, binary.NativeEndian, 4))
}

// maxBuildID is how long a build ID the kernel takes for one (linux/buildid.h: BUILD_ID_SIZE_MAX), and has room for in its records, in bytes.
const maxBuildID = 20

// short returns a build ID, or nil if the kernel would find none.
func short(id []byte) []byte {
	if len(id) > maxBuildID {
		return nil
	}
	return id
}

// NoStamp is the stamp of no file. Stamps have its bit set: no generation of an inode does, which has 32 bits.
const NoStamp = 1 << 63

// Stamp sums up a file's size and the time of its last change, which tell one from another with the same inode.
func Stamp(st *unix.Stat_t) uint64 {
	h := fnv.New64a()
	binary.Write(h, binary.LittleEndian, []int64{st.Size, int64(st.Mtim.Sec), int64(st.Mtim.Nsec)})
	return max(h.Sum64()|NoStamp, NoStamp+1)
}
