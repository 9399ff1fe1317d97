// Package procfs reads what Linux says of a process below /proc (proc(5)): its mappings, its threads, and the build IDs of its mapped files.
package procfs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Bits of Mapping.Prot, as in mmap(2).
const (
	Read  = unix.PROT_READ
	Write = unix.PROT_WRITE
	Exec  = unix.PROT_EXEC
)

// A Mapping is a line of /proc/PID/maps.
type Mapping struct {
	Lo, Hi, Off uint64
	Prot        uint32
	Shared      bool
	Maj, Min    uint32
	Inode       uint64 // 0: not of a file
	Name        string // "" where there is none; with " (deleted)" where the file is
}

// ParseMapping reads a line of /proc/PID/maps, without its end.
func ParseMapping(line []byte) (m Mapping, ok bool) {
	f := strings.SplitN(string(line), " ", 6)
	if len(f) < 5 || len(f[1]) < 4 {
		return m, false
	}
	var bad bool
	num := func(s string, base, size int) uint64 {
		v, err := strconv.ParseUint(s, base, size)
		bad = bad || err != nil
		return v
	}
	lo, hi, _ := strings.Cut(f[0], "-")
	maj, min, _ := strings.Cut(f[3], ":")
	m = Mapping{
		Lo: num(lo, 16, 64), Hi: num(hi, 16, 64), Off: num(f[2], 16, 64), Shared: f[1][3] == 's',
		Maj: uint32(num(maj, 16, 32)), Min: uint32(num(min, 16, 32)), Inode: num(f[4], 10, 64),
	}
	for i, c := range "rwx" {
		if f[1][i] == byte(c) {
			m.Prot |= 1 << i
		}
	}
	if len(f) == 6 {
		m.Name = strings.ReplaceAll(strings.TrimLeft(f[5], " "), `\012`, "\n")
	}
	return m, !bad && m.Lo < m.Hi && int64(m.Hi-m.Lo) > 0
}

// maxMaps bounds what is read of a process's mappings: the most that Linux allows by default is 65,530.
const maxMaps = 32 << 20

// Mappings reads the text of /proc/PID/maps from its beginning. Unreadable lines are left out.
func Mappings(f *os.File) ([]Mapping, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxMaps))
	if err != nil {
		return nil, err
	}
	return ParseMappings(b), nil
}

// ParseMappings reads the text of /proc/PID/maps.
func ParseMappings(text []byte) []Mapping {
	var maps []Mapping
	for line := range bytes.Lines(text) {
		if m, ok := ParseMapping(bytes.TrimSuffix(line, []byte("\n"))); ok {
			maps = append(maps, m)
		}
	}
	return maps
}

// Owner returns the user that a process runs as, as /proc has it: root, where other users may not look into it. It is the last number there
// is if the process has gone.
func Owner(pid int32) uint32 {
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d", pid), &st) != nil {
		return 1<<32 - 1
	}
	return st.Uid
}

// Threads lists the threads of a process.
func Threads(pid int) ([]int, error) { return Numbers(fmt.Sprintf("/proc/%d/task", pid)) }

// ThreadsUntil lists threads of a process until stop says that these are enough.
func ThreadsUntil(pid int, stop func() bool) ([]int, error) {
	return numbers(fmt.Sprintf("/proc/%d/task", pid), stop)
}

// Numbers lists the names in a directory that are numbers.
func Numbers(dir string) (nums []int, err error) {
	return numbers(dir, func() bool { return false })
}

func numbers(dir string, stop func() bool) (nums []int, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	for !stop() {
		names, err := d.Readdirnames(256)
		for _, name := range names {
			if n, e := strconv.Atoi(name); e == nil {
				nums = append(nums, n)
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nums, err
		}
	}
	return nums, nil
}

// Status returns a line of /proc/TID/status, such as "Tgid"; "" if there is none.
func Status(tid int, key string) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// KernelThread says whether a thread has never had an address space of its own. Since Linux 6.11 its status says so, and before a flag
// in proc_pid_stat(5).
func KernelThread(tid int) bool {
	if v := Status(tid, "Kthread"); v != "" {
		return v == "1"
	}
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", tid))
	_, b, _ = bytes.Cut(b[max(0, bytes.LastIndexByte(b, ')')):], []byte(" ")) // names may have parentheses
	f := bytes.Fields(b)
	if len(f) < 7 {
		return false
	}
	flags, _ := strconv.ParseUint(string(f[6]), 10, 64)
	const kthread = 0x00200000 // PF_KTHREAD
	return flags&kthread != 0
}

// Leader returns the process of a thread; tid itself if that is not known.
func Leader(tid int) int {
	if pid, err := strconv.Atoi(Status(tid, "Tgid")); err == nil {
		return pid
	}
	return tid
}

// State returns the state of a thread from the text of /proc/PID/task/TID/stat: 'R', 'S', 'D', 'T', 't', 'Z', 'X' and others;
// 0 if the text has none.
func State(stat []byte) byte {
	// The name, in parentheses, may contain some.
	if i := bytes.LastIndexByte(stat, ')'); i >= 0 && i+2 < len(stat) {
		return stat[i+2]
	}
	return 0
}

// fields returns the fields of a text of /proc/PID/stat from the third one, the state, on; none if the text has no name.
func fields(stat []byte) [][]byte {
	i := bytes.LastIndexByte(stat, ')') // the name, in parentheses, may contain some
	if i < 0 {
		return nil
	}
	return bytes.Fields(stat[i+1:])
}

// Exiting says whether a thread is about to end, and is no zombie yet, from the text of /proc/PID/task/TID/stat.
func Exiting(stat []byte) bool {
	const flags, pfExiting = 9 - 3, 4 // proc_pid_stat(5); include/linux/sched.h
	f := fields(stat)
	if len(f) <= flags || f[0][0] == 'Z' || f[0][0] == 'X' {
		return false
	}
	n, err := strconv.ParseUint(string(f[flags]), 10, 64)
	return err == nil && n&pfExiting != 0
}

// Segments returns where the segments of a process's program begin and end in its memory, from the text of /proc/PID/stat (proc_pid_stat(5), startcode
// and end_data, in the file: without .bss); zeros if the text does not say so, as where this process may not know.
func Segments(stat []byte) (lo, hi uint64) {
	f := fields(stat)
	const startCode, endData = 26 - 3, 46 - 3
	if len(f) <= endData {
		return 0, 0
	}
	lo, err := strconv.ParseUint(string(f[startCode]), 10, 64)
	hi, err2 := strconv.ParseUint(string(f[endData]), 10, 64)
	if err != nil || err2 != nil || lo >= hi {
		return 0, 0
	}
	return lo, hi
}

// Gone returns those of some processes that there are no more. One that has ended and is waited for is still there.
func Gone(pids []int32) (gone []int32) {
	for _, pid := range pids {
		if unix.Kill(int(pid), 0) == unix.ESRCH {
			gone = append(gone, pid)
		}
	}
	return gone
}
