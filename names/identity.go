package names

import (
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/module"
)

// An Identity decides whether the file at a path is the one that was recorded without a build ID. Identify is for one goroutine.
type Identity struct {
	Here    func() bool       // says whether this host recorded
	Written time.Time         // when the recording was; zero: nobody knows
	Doubt   func(path string) // is told of each file that is taken for the recorded one and may be another one; nil: nobody is

	booted time.Time              // zero: not asked for yet
	mapped map[string]fileNumbers // by path; zero: cannot be mapped
}

// fileNumbers tell the files of a running host apart.
type fileNumbers struct {
	maj, min uint32
	inode    uint64
}

// maxIdentified bounds the files that an Identity remembers.
const maxIdentified = 1 << 14

// Identify returns "" for the recorded file; for any other module.Another, or module.Inode where that still finds the recorded file
// (source.Options.Identify).
//
// Where this host has recorded since it was started, the file is mapped, as programs are: the kernel says the same device and inode of it as it did in the
// recording. Elsewhere, device numbers mean nothing, and the file has the recorded inode. Some file systems give a mapping other numbers than stat(2), or
// have another device when they are mounted anew, and of a layered one, kernels differ in which layer's numbers they record: there, a file of this host
// that has not changed since the recording was written counts as the recorded file, and Doubt is told.
func (id *Identity) Identify(path string, maj, min uint32, inode, gen uint64) string {
	if !module.OnDisk(path) {
		return ""
	}
	var st unix.Stat_t
	there := unix.Stat(path, &st) == nil
	recorded, here := fileNumbers{maj, min, inode}, id.Here() && !id.Written.IsZero()
	if here && there && gen&procfs.NoStamp != 0 && gen != procfs.Stamp(&st) { // a recording of this program's
		if id.Written.After(id.boot()) {
			return module.Inode(maj, min, inode, gen)
		}
		return module.Another
	}
	if here && maj|min != 0 && id.Written.After(id.boot()) {
		switch is, ok := id.mapping(path); {
		case ok && is == recorded:
			if !time.Unix(st.Mtim.Unix()).Before(id.Written) {
				return module.Another
			}
			return ""
		case ok && is.inode == inode: // a file system that was mounted anew since may have another device
			return id.unchanged(path, &st)
		case !there, ok && !layered(path): // a container may have it
			return module.Inode(maj, min, inode, gen&-(gen>>63))
		}
	}
	if !there {
		return ""
	}
	if st.Ino == inode {
		return ""
	}
	if here && (unix.Major(st.Dev) != maj || unix.Minor(st.Dev) != min) {
		return id.unchanged(path, &st)
	}
	return module.Another
}

// unchanged takes a file for the recorded one, in doubt, if it has not changed since the recording was written.
func (id *Identity) unchanged(path string, st *unix.Stat_t) string {
	if !time.Unix(st.Ctim.Unix()).Before(id.Written) {
		return module.Another
	}
	if id.Doubt != nil {
		id.Doubt(path)
	}
	return ""
}

// ByInode identifies files that this program records on this host now (source.Options.Identify): their generation is procfs.Stamp.
func ByInode(_ string, maj, min uint32, inode, stamp uint64) string {
	return module.Inode(maj, min, inode, stamp)
}

// Identify returns Identity.Identify for a recording, without anybody to tell of doubts.
func Identify(here func() bool, written time.Time) func(path string, maj, min uint32, inode, gen uint64) string {
	return (&Identity{Here: here, Written: written}).Identify
}

// boot returns when this host was started.
func (id *Identity) boot() time.Time {
	if id.booted.IsZero() {
		var since unix.Timespec
		if unix.ClockGettime(unix.CLOCK_BOOTTIME, &since) != nil {
			return time.Now()
		}
		id.booted = time.Now().Add(-time.Duration(since.Nano()))
	}
	return id.booted
}

// layered says whether a path is on a file system whose files are others'.
func layered(path string) bool {
	var on unix.Statfs_t
	return unix.Statfs(path, &on) != nil || on.Type == unix.OVERLAYFS_SUPER_MAGIC || on.Type == unix.FUSE_SUPER_MAGIC
}

// mapping returns what the kernel says of the file at a path where it is mapped. ok is false for what cannot be mapped.
func (id *Identity) mapping(path string) (is fileNumbers, ok bool) {
	if is, ok = id.mapped[path]; ok {
		return is, is != fileNumbers{}
	}
	is = mapFile(path)
	if id.mapped == nil || len(id.mapped) >= maxIdentified {
		id.mapped = map[string]fileNumbers{}
	}
	id.mapped[path] = is
	return is, is != fileNumbers{}
}

// mapFile maps the file at a path, and returns what /proc/self/maps has of it; nothing, if that fails.
func mapFile(path string) (is fileNumbers) {
	f, err := module.OpenFile(path)
	if err != nil {
		return is
	}
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return is
	}
	defer unix.Munmap(b)
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return is
	}
	defer maps.Close()
	all, err := procfs.Mappings(maps)
	at := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	for i := range all {
		if m := &all[i]; err == nil && m.Lo <= at && at < m.Hi {
			return fileNumbers{m.Maj, m.Min, m.Inode}
		}
	}
	return is
}
