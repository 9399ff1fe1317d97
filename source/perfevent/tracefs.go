package perfevent

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// mountTracefs mounts tracefs for this process alone, at no path but that of a descriptor: fsopen(2), fsmount(2). It takes root.
var mountTracefs = sync.OnceValues(func() (string, error) {
	fs, err := unix.Fsopen("tracefs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return "", os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return "", os.NewSyscallError("fsconfig", err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return "", os.NewSyscallError("fsmount", err)
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd), nil // open as long as the process
})

// Tracefs returns the directory of the kernel's tracepoints: where it is mounted, or a mount of this process's own. The error names the
// obstacle.
func Tracefs() (events string, err error) { return kernelPlaces.events() }
