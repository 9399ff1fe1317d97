package pages

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
)

// ReleaseProgram gives back the pages of this program's own code and constants. Whatever is used again comes from the kernel's page cache, many
// pages a fault. A program of 30 MB uses half of that to start, and a tenth in a recording. It is safe for concurrent use.
func ReleaseProgram() {
	for _, m := range program() {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(m.Lo), uintptr(m.Hi-m.Lo), unix.MADV_DONTNEED)
	}
}

// program lists the mappings of the program's file that clean finds.
var program = sync.OnceValue(func() []procfs.Mapping {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil
	}
	defer f.Close()
	code, _, _, _ := runtime.Caller(0)
	return clean(f, uint64(code))
})

// clean lists the mappings in a process's smaps that cannot be written, of the file whose code is at an address. No page of these is the process's
// own, in memory or in swap: what a loader has changed would not come back. The file is known by its mapping: stat names another device on some
// file systems.
func clean(smaps io.Reader, code uint64) []procfs.Mapping {
	var found []procfs.Mapping
	var m, program procfs.Mapping
	own := true // m has pages of the process's own, or may have
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		if is, ok := procfs.ParseMapping(lines.Bytes()); ok {
			m, own = is, true
			if m.Lo <= code && code < m.Hi {
				program = m
			}
		} else if size, ok := bytes.CutPrefix(lines.Bytes(), []byte("Anonymous:")); ok {
			own = string(bytes.TrimSpace(size)) != "0 kB"
		} else if size, ok := bytes.CutPrefix(lines.Bytes(), []byte("Swap:")); ok && !own && string(bytes.TrimSpace(size)) == "0 kB" &&
			m.Prot&unix.PROT_WRITE == 0 && !m.Shared {
			found = append(found, m)
		}
	}
	return slices.DeleteFunc(found, func(m procfs.Mapping) bool {
		return m.Inode == 0 || m.Inode != program.Inode || m.Maj != program.Maj || m.Min != program.Min
	})
}
