package procfs

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Setting reads a number below /proc/sys, such as "kernel/kptr_restrict". ok is false if it is not there, or not this user's to read.
func Setting(path string) (n int, ok bool) {
	b, err := os.ReadFile("/proc/sys/" + path)
	n, nerr := strconv.Atoi(strings.TrimSpace(string(b)))
	return n, err == nil && nerr == nil
}

// FirstPIDs says whether this process is in the machine's first PID namespace, as far as it can tell. Elsewhere, processes outside have no numbers.
func FirstPIDs() bool {
	const first = 0xeffffffc // PROC_PID_INIT_INO in include/linux/proc_ns.h
	var st unix.Stat_t
	return unix.Stat("/proc/self/ns/pid", &st) != nil || st.Ino == first
}

// Mounted returns where a file system of a type is mounted first; "" if nowhere (proc_pid_mountinfo(5)).
func Mounted(fstype string) string {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		left, right, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if ok && len(f) > 4 && len(g) > 0 && g[0] == fstype {
			return f[4]
		}
	}
	return ""
}
