package main

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfdata"
)

// identify returns what decides whether a file that was recorded without a build ID is the one that lies at its path here: it has the inode. Some
// file systems give a mapping another device and inode than stat(2); there, a file of this host that has not changed since the recording was
// written is taken for it.
func identify(about func() perfdata.Info, written time.Time) func(path string, maj, min uint32, inode uint64) string {
	return func(path string, maj, min uint32, inode uint64) string {
		var st unix.Stat_t
		if !module.OnDisk(path) || unix.Stat(path, &st) != nil || st.Ino == inode {
			return ""
		}
		info := about() // that of a stream is not there at its beginning
		ours := info.Hostname != "" && info.Hostname == perfdata.Host().Hostname
		elsewhere := unix.Major(st.Dev) != maj || unix.Minor(st.Dev) != min
		if elsewhere && ours && !written.IsZero() && time.Unix(st.Ctim.Unix()).Before(written) {
			return ""
		}
		return module.Another
	}
}

// writtenAt returns when a recording was written; zero where that is not known.
func writtenAt(f *os.File) time.Time {
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
		return st.ModTime()
	}
	return time.Time{}
}

// sawKernel looks whether a record tells where the kernel lay.
func (n *namer) sawKernel(r *source.Record) {
	if r.Type != source.RecordMmap && r.Type != source.RecordMmap2 || r.PID != -1 {
		return
	}
	if name, ok := strings.CutPrefix(string(r.Filename), "[kernel.kallsyms]"); ok && (name == "_text" || name == "_stext") && r.Pgoff != 0 {
		n.symbols.KernelAt(r.Pgoff, name)
	}
}
