package doctor

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// The drop-in for libunwind is this library. make runtime puts it in dropinBuild, and make install-runtime in dropinDir below PREFIX.
var Dropin, dropinBuild = "libunwind-x86_64.so.8", "runtime/build"

const dropinDir = "lib/unspool"

func init() {
	if runtime.GOARCH == "arm64" {
		Dropin, dropinBuild = "libunwind-aarch64.so.8", "runtime/build/aarch64"
	}
}

// FindDropin returns the directory of the drop-in: dir, or else what UNSPOOL_RUNTIME says, or a place beside this program or below /usr/local.
// The program that is run loads the library, with all that its user may do. So what nobody has named must be root's or this user's:
// beside a program in /tmp/x is /tmp/lib, which anybody can make.
func FindDropin(dir string) (string, error) {
	var dirs []string
	named := true
	switch {
	case dir != "":
		dirs = []string{dir}
	case os.Getenv("UNSPOOL_RUNTIME") != "":
		dirs = []string{os.Getenv("UNSPOOL_RUNTIME")}
	default:
		named = false
		if exe, err := os.Executable(); err == nil {
			at := filepath.Dir(exe)
			dirs = []string{filepath.Join(at, "..", dropinDir), filepath.Join(at, dropinBuild)}
		}
		dirs = append(dirs, filepath.Join("/usr/local", dropinDir))
	}
	for _, d := range dirs {
		at, err := filepath.EvalSymlinks(d)
		if err == nil {
			at, err = filepath.Abs(at)
		}
		if err != nil {
			continue
		}
		lib, err := filepath.EvalSymlinks(filepath.Join(at, Dropin))
		if err != nil {
			continue
		}
		if by := cmp.Or(changeable(at), changeable(lib)); by != "" && !named {
			return "", fmt.Errorf("%s is not used: others can change %s; set UNSPOOL_RUNTIME=%s if you trust them", lib, by, at)
		}
		return at, nil
	}
	return "", fmt.Errorf("no %s in %s: make install-runtime builds it", Dropin, strings.Join(dirs, ", "))
}

// changeable returns the file or directory on an absolute path without links that somebody else than root and this user can change, "" if there is
// none. In a sticky directory, others can add names, and not change those that are there.
func changeable(path string) string {
	for {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return path
		}
		others := uint32(0o002)
		if int(st.Gid) != os.Getegid() { // a group that is a user's own has nobody else in it
			others = 0o022
		}
		if st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&others != 0 && st.Mode&unix.S_ISVTX == 0 {
			return path
		}
		up := filepath.Dir(path)
		if up == path {
			return ""
		}
		path = up
	}
}
