package names

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/module"
)

// Identify returns a function that decides whether the file at a path is the one that was recorded without a build ID: it has the same inode.
// Some file systems give a mapping another device and inode than stat(2); there, a file of this host that has not changed since the recording
// was written counts as the recorded file. here says whether this host recorded. written is the recording's time, or zero if unknown. The
// function returns "" for the recorded file, and module.Another for any other (source.Options.Identify).
func Identify(here func() bool, written time.Time) func(path string, maj, min uint32, inode uint64) string {
	return func(path string, maj, min uint32, inode uint64) string {
		var st unix.Stat_t
		if !module.OnDisk(path) || unix.Stat(path, &st) != nil || st.Ino == inode {
			return ""
		}
		elsewhere := unix.Major(st.Dev) != maj || unix.Minor(st.Dev) != min
		if elsewhere && here() && !written.IsZero() && time.Unix(st.Ctim.Unix()).Before(written) {
			return ""
		}
		return module.Another
	}
}
