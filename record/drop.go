package record

import (
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/outfile"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/source"
)

// Drop gives up, in all threads, the capabilities that a recording needs only to begin. The file of the kernel's functions, whose addresses may
// take CAP_SYSLOG, is opened before. A program that was built with cgo keeps them, and has no error: doctor says so.
func (l *Live) Drop(n *names.Namer) error {
	if caps.CanDrop() != nil {
		return nil
	}
	if c, _ := caps.Own(); c.Has(unix.CAP_SYSLOG) && !l.Decoder().Events()[0].Attr.Has(source.FlagExcludeKernel) && kernelHides() {
		n.OpenKernel()
	}
	later := caps.Set(0)
	if outfile.Others() {
		later = caps.Outputs
	}
	return caps.Drop(caps.Recording, later)
}

// kernelHides says whether it takes CAP_SYSLOG to read the addresses of the kernel's functions (kallsyms_show_value in
// kernel/ksyms_common.c).
func kernelHides() bool {
	restrict, ok := procfs.Setting("kernel/kptr_restrict")
	level, known := procfs.Setting("kernel/perf_event_paranoid")
	return !ok || !known || restrict > 0 || level > 1
}
