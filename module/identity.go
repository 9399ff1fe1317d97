package module

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
)

// Another stands for the build ID of a file that was recorded without a build ID and is known to differ from the file at its path.
const Another = "another"

// Inode stands for the build ID of a file that was recorded without one on this machine, since it was started: the device and the inode of its mapping
// tell it from all files that there are. stamp is procfs.Stamp when it was mapped, which tells it from those that there were; 0: not known.
func Inode(maj, min uint32, inode, stamp uint64) string {
	return fmt.Sprintf("%s %x", numbered(maj, min, inode), stamp)
}

// numbered is an Inode without its stamp.
func numbered(maj, min uint32, inode uint64) string {
	return fmt.Sprintf("%s%x:%x:%d", inodePrefix, maj, min, inode)
}

const inodePrefix = "inode "

func isInode(buildID string) bool { return strings.HasPrefix(buildID, inodePrefix) }

// IsBuildID says whether what stands for a file's build ID is one: it is not "", Another or Inode.
func IsBuildID(buildID string) bool { return buildID != "" && buildID != Another && !isInode(buildID) }

// errLayered says that the inode does not tell whether an image is the recorded file.
var errLayered = errors.New("on its file system, a file can have several inodes")

// hasInode returns why img is not the file with an Inode that was recorded under a path. Most file systems give a mapping the same device and inode as stat(2);
// of others, a mapping of the same kernel has the same. Of a file on a layered file system, kernels record the upper device and inode or those of the
// layer below (Linux 6.8 changed /proc/PID/maps, and not perf's records), and stat(2) has the inode below with the device above, but not of every file.
func hasInode(path string, img *Image, want string) error {
	f := img.file
	if f == nil {
		return errUnknown
	}
	at := strings.LastIndexByte(want, ' ')
	want, stamp := want[:at], want[at+1:]
	if stamp != "0" && stamp != fmt.Sprintf("%x", procfs.Stamp(&f.Stat_t)) {
		return replaced(path, img, Another)
	}
	if numbered(unix.Major(f.Dev), unix.Minor(f.Dev), f.Ino) == want {
		return nil
	}
	if m, ok := mappingOf(img.b); ok && numbered(m.Maj, m.Min, m.Inode) == want {
		return nil
	}
	if !f.layered {
		return replaced(path, img, Another)
	}
	if strings.HasSuffix(want, fmt.Sprintf(":%d", f.Ino)) {
		return nil
	}
	return errLayered
}

// mappingOf returns what the kernel says of a mapping of this process.
func mappingOf(b []byte) (m procfs.Mapping, ok bool) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return m, false
	}
	defer f.Close()
	addr := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	if m, ok = procfs.At(f, addr); ok {
		return m, true
	}
	all, err := procfs.Mappings(f)
	for _, m := range all {
		if err == nil && m.Lo <= addr && addr < m.Hi {
			return m, true
		}
	}
	return m, false
}
