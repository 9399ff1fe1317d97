package procfs

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A procmapQuery is struct procmap_query of linux/fs.h.
type procmapQuery struct {
	size, flags, addr                             uint64
	start, end, vmaFlags, pageSize, offset, inode uint64
	major, minor, nameSize, buildIDSize           uint32
	nameAddr, buildIDAddr                         uint64
}

const procmapQueryIoctl = 3<<30 | 104<<16 | 'f'<<8 | 17 // PROCMAP_QUERY

// BuildID asks the kernel for the build ID of the file that a process has mapped at m, since Linux 6.11. maps is /proc/PID/maps. ok is
// false if the kernel does not answer, or if something else is there by now. Some file systems give a record of perf's another inode
// than /proc; there the path decides.
func BuildID(maps *os.File, m *Mapping) (id []byte, ok bool) {
	// The kernel gets addresses as numbers: what is there must not be on a stack, which moves when it grows.
	var buf [20]byte
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

// FileBuildID reads the NT_GNU_BUILD_ID note of an ELF file; nil if there is none. ok is false if the file cannot be read, or if
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
	return elfBuildID(f), true
}

// KernelBuildID returns the build ID of the kernel that runs; nil if it does not say.
func KernelBuildID() []byte {
	b, err := os.ReadFile("/sys/kernel/notes")
	if err != nil {
		return nil
	}
	return noteBuildID(b, binary.NativeEndian)
}

// maxNotes bounds what is read of an ELF file's notes.
const maxNotes = 1 << 20

// elfBuildID finds the build ID in the note segments of an ELF file. It reads no sections: a sparse file can claim any size for them.
func elfBuildID(f io.ReaderAt) []byte {
	var h [64]byte // Elf64_Ehdr
	if n, _ := f.ReadAt(h[:], 0); n < len(h) || string(h[:4]) != elf.ELFMAG {
		return nil
	}
	var order binary.ByteOrder = binary.LittleEndian
	if h[elf.EI_DATA] == byte(elf.ELFDATA2MSB) {
		order = binary.BigEndian
	}
	is64 := h[elf.EI_CLASS] == byte(elf.ELFCLASS64)
	at, size, count := order.Uint64(h[32:]), order.Uint16(h[54:]), order.Uint16(h[56:])
	if !is64 {
		at, size, count = uint64(order.Uint32(h[28:])), order.Uint16(h[42:]), order.Uint16(h[44:])
	}
	room := uint64(maxNotes)
	for i := range uint64(count) {
		var p [56]byte // Elf64_Phdr
		if n, _ := f.ReadAt(p[:min(int(size), len(p))], int64(at+i*uint64(size))); n < int(size) && n < len(p) {
			return nil
		}
		off, n := order.Uint64(p[8:]), order.Uint64(p[32:])
		if !is64 {
			off, n = uint64(order.Uint32(p[4:])), uint64(order.Uint32(p[16:]))
		}
		if elf.ProgType(order.Uint32(p[:])) != elf.PT_NOTE || n > room {
			continue
		}
		room -= n
		b := make([]byte, n)
		if _, err := f.ReadAt(b, int64(off)); err != nil {
			continue
		}
		if id := noteBuildID(b, order); id != nil {
			return id
		}
	}
	return nil
}

// noteBuildID finds the build ID in a segment of notes.
func noteBuildID(b []byte, order binary.ByteOrder) []byte {
	for len(b) >= 12 {
		name, desc, typ := uint64(order.Uint32(b)), uint64(order.Uint32(b[4:])), order.Uint32(b[8:])
		at := 12 + (name+3)&^3
		end := at + (desc+3)&^3
		if at+desc > uint64(len(b)) {
			return nil
		}
		if typ == 3 && string(b[12:12+name]) == "GNU\x00" && desc > 0 && desc <= 20 {
			return b[at : at+desc]
		}
		b = b[min(end, uint64(len(b))):]
	}
	return nil
}
