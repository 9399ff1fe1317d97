package procfs

import (
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// machineShare is the part of a machine's memory that a program lives by where no control group limits memory.
const machineShare = 4

// chosen is the limit that the user has set; 0: none.
var chosen atomic.Uint64

// LimitMemory sets a limit in bytes that MemoryLimit does not exceed. It is to be called before anything that asks for the limit.
func LimitMemory(bytes uint64) { chosen.Store(bytes) }

// MemoryLimit returns how many bytes this program lives by: the least of a quarter of the machine's memory (MemTotal), LimitMemory's, and what the
// control groups of this process let it and its neighbours take: memory.max (version 2) and memory.limit_in_bytes (version 1) from its own group up to
// the root. ok is false where nothing is known.
func MemoryLimit() (bytes uint64, ok bool) {
	least, ok := memoryLimit("/")
	if n := chosen.Load(); n > 0 && (!ok || n < least) {
		least, ok = n, true
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		if all := info.Totalram * uint64(info.Unit) / machineShare; all > 0 && (!ok || all < least) {
			return all, true
		}
	}
	return least, ok
}

func memoryLimit(root string) (least uint64, ok bool) {
	b, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3) // cgroups(7)
		if len(f) < 3 || f[1] != "" && !slices.Contains(strings.Split(f[1], ","), "memory") {
			continue
		}
		at, file := "sys/fs/cgroup", "memory.max"
		if f[1] != "" {
			at, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		// A container may see the path of its group, and have the group itself at the root.
		for group := path.Clean("/" + f[2]); ; group = path.Dir(group) {
			b, err := os.ReadFile(filepath.Join(root, at, group, file))
			const none = 1 << 62 // version 1 has a number for it
			if n, e := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil && e == nil && n < none && (!ok || n < least) {
				least, ok = n, true
			}
			if group == "/" {
				break
			}
		}
	}
	return least, ok
}
