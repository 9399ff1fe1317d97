package names

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/module"
)

// Identify returns what decides whether a file that was recorded without a build ID is the one that lies at its path here: it has the inode. Some
// file systems give a mapping another device and inode than stat(2); there, a file of this host that has not changed since the recording was
// written is taken for it. here says whether this host recorded; written is when, or zero where that is not known. It returns "" for the recorded
// file, and module.Another for any other (source.Options.Identify).
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
