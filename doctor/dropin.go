package doctor

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/module"
)

// The drop-in for libunwind is this library. make runtime puts it in dropinBuild, and make install-runtime in dropinDir below PREFIX.
var Dropin, dropinBuild = "libunwind-x86_64.so.8", "runtime/build"

const dropinDir = "lib/unspool"

// Exceptions is the library in front of libgcc's unwinder; it is beside the drop-in.
const Exceptions = "libunspool_eh.so"

// Heap is the library in front of a program's allocator; it is beside the drop-in. HeapNew goes with it, for allocators that have C++ operators of
// their own.
const (
	Heap    = "libunspool_heap.so"
	HeapNew = "libunspool_heap_new.so"
)

func init() {
	if runtime.GOARCH == "arm64" {
		Dropin, dropinBuild = "libunwind-aarch64.so.8", "runtime/build/aarch64"
	}
}

// FindDropin returns the directory of the drop-in: dir, or else what UNSPOOL_RUNTIME says, or a place beside this program or below /usr/local.
// The program that is run loads the library, with all that its user may do. So what nobody has named must be root's or this user's:
// beside a program in /tmp/x is /tmp/lib, which anybody can make.
func FindDropin(dir string) (string, error) {
	at, reason, change := findDropin(dir, programDir())
	if reason != "" {
		return "", fmt.Errorf("%s: %s", reason, change)
	}
	return at, nil
}

// FindExceptions returns the path of the library in front of libgcc's unwinder, in the directory that FindDropin returns for dir.
func FindExceptions(dir string) (string, error) {
	path, reason, change := findExceptions(dir, programDir())
	if reason != "" {
		return "", fmt.Errorf("%s: %s", reason, change)
	}
	return path, nil
}

// FindHeap returns the path of the library in front of a program's allocator, in the directory that FindDropin returns for dir.
func FindHeap(dir string) (string, error) {
	path, reason, change := findPreload(dir, programDir(), Heap)
	if reason != "" {
		return "", fmt.Errorf("%s: %s", reason, change)
	}
	return path, nil
}

// HasOperators says whether a program is linked with an allocator whose operators new and delete do not call malloc and free, or LD_PRELOAD names one:
// then HeapNew is wanted, too.
func HasOperators(program string) bool {
	some := func(name string) bool {
		for _, known := range []string{"libtcmalloc", "libjemalloc", "libmimalloc"} {
			if strings.HasPrefix(name, known) {
				return true
			}
		}
		return false
	}
	for _, path := range strings.FieldsFunc(os.Getenv("LD_PRELOAD"), func(r rune) bool { return r == ':' || r == ' ' }) {
		if some(filepath.Base(path)) {
			return true
		}
	}
	path, err := exec.LookPath(program)
	return err == nil && len(module.Libraries(path, some)) > 0
}

func findExceptions(dir, program string) (path, reason, change string) {
	return findPreload(dir, program, Exceptions)
}

// findPreload looks for a library that programs can preload.
func findPreload(dir, program, name string) (path, reason, change string) {
	at, reason, change := findLibrary(dir, program, name)
	if reason != "" {
		return "", reason, change
	}
	if path = filepath.Join(at, name); strings.ContainsAny(path, ": ") {
		return "", path + ": LD_PRELOAD cannot have a path with blanks or colons", "move the directory"
	}
	return path, "", ""
}

// programDir returns the directory of this program, "" if it is not known.
func programDir() string {
	exe, err := os.Executable()
	if err != nil {
		return ""
	}
	return filepath.Dir(exe)
}

// findDropin looks for the directory of the drop-in.
func findDropin(dir, program string) (at, reason, change string) {
	return findLibrary(dir, program, Dropin)
}

// findLibrary looks for a library in the directory, or where installations and builds of this program have it, and returns its directory. It also says
// why there is none, and what to change.
func findLibrary(dir, program, name string) (at, reason, change string) {
	var dirs []string
	change = "install all of a release: the library is in its lib/unspool; or, in unspool's sources, make install-runtime"
	named := true
	switch {
	case dir != "":
		dirs = []string{dir}
	case os.Getenv("UNSPOOL_RUNTIME") != "":
		dirs = []string{os.Getenv("UNSPOOL_RUNTIME")}
	default:
		named = false
		if program != "" {
			dirs = []string{filepath.Join(program, "..", dropinDir), filepath.Join(program, dropinBuild)}
			if _, err := os.Stat(filepath.Join(program, "runtime/Makefile")); err == nil {
				change = "make runtime"
			}
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
		lib, err := filepath.EvalSymlinks(filepath.Join(at, name))
		if err != nil {
			continue
		}
		if by := cmp.Or(changeable(at), changeable(lib)); by != "" && !named {
			return "", fmt.Sprintf("%s is not used: others can change %s", lib, by), fmt.Sprintf("set UNSPOOL_RUNTIME=%s if you trust them", at)
		}
		return at, "", ""
	}
	return "", fmt.Sprintf("no %s in %s", name, strings.Join(dirs, ", ")), change
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
