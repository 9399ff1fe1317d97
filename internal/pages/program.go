package pages

import (
	"bufio"
	"bytes"
	"io"
	"os"
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

// program lists the mappings of the program's segments that clean finds. They stay as long as the process.
var program = sync.OnceValue(func() []procfs.Mapping {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return nil
	}
	lo, hi := procfs.Segments(stat)
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return nil
	}
	defer f.Close()
	return clean(f, lo, hi)
})

// clean lists the mappings of files in a process's smaps that cannot be written and are between two addresses, those of its program's segments: the
// process may map the program's file elsewhere, too, and something else there later. No page of these is the process's own, in memory or in swap: what
// a loader has changed would not come back.
func clean(smaps io.Reader, lo, hi uint64) (found []procfs.Mapping) {
	page := uint64(os.Getpagesize())
	lo, hi = lo&-page, (hi+page-1)&-page
	var m procfs.Mapping
	own := true // m has pages of the process's own, or may have
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		if is, ok := procfs.ParseMapping(lines.Bytes()); ok {
			m, own = is, true
		} else if size, ok := bytes.CutPrefix(lines.Bytes(), []byte("Anonymous:")); ok {
			own = string(bytes.TrimSpace(size)) != "0 kB"
		} else if size, ok := bytes.CutPrefix(lines.Bytes(), []byte("Swap:")); ok && !own && string(bytes.TrimSpace(size)) == "0 kB" &&
			m.Prot&unix.PROT_WRITE == 0 && !m.Shared && m.Inode != 0 && lo <= m.Lo && m.Hi <= hi {
			found = append(found, m)
		}
	}
	return found
}
