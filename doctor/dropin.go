package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The drop-in for libunwind is this library, and this is the directory below PREFIX/lib that make install-runtime puts it in.
const (
	Dropin    = "libunwind-x86_64.so.8"
	dropinDir = "lib/unspool"
)

// FindDropin returns the directory of the drop-in: dir, or else what UNSPOOL_RUNTIME says, or a place beside this program or below /usr/local.
func FindDropin(dir string) (string, error) {
	var dirs []string
	switch {
	case dir != "":
		dirs = []string{dir}
	case os.Getenv("UNSPOOL_RUNTIME") != "":
		dirs = []string{os.Getenv("UNSPOOL_RUNTIME")}
	default:
		if exe, err := os.Executable(); err == nil {
			at := filepath.Dir(exe)
			dirs = []string{filepath.Join(at, "..", dropinDir), filepath.Join(at, "runtime", "build")}
		}
		dirs = append(dirs, filepath.Join("/usr/local", dropinDir))
	}
	for _, d := range dirs {
		if _, err := os.Stat(filepath.Join(d, Dropin)); err == nil {
			return filepath.Abs(d)
		}
	}
	return "", fmt.Errorf("no %s in %s: make install-runtime builds it", Dropin, strings.Join(dirs, ", "))
}
