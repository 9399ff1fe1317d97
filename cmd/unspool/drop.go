package main

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/outfile"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
)

// parsing are those that a verb keeps that reads other people's bytes: to read its inputs and the files that they name, also those of other
// users and, by way of their processes, in containers; to read a process's registers and stacks; and the names of the kernel's functions.
const parsing = caps.Set(1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_SYSLOG)

// parsers are the verbs that give up all else before they begin. verify --run and run start programs; doctor tries everything.
var parsers = map[string]caps.Set{
	"report": parsing, "diff": parsing, "unwind": parsing, "serve": parsing | 1<<unix.CAP_NET_BIND_SERVICE, "stack": parsing,
	"dump": parsing, "compile": parsing, "verify": parsing, "stats": parsing,
}

// drop gives up the capabilities that a recording needs only to begin. The names of the kernel's functions, which may take
// CAP_SYSLOG, are read before.
func (l *live) drop(s *session) {
	if caps.CanDrop() != nil {
		return // doctor says so
	}
	if c, _ := caps.Own(); c.Has(unix.CAP_SYSLOG) && !l.Decoder().Events()[0].Attr.Has(source.FlagExcludeKernel) && kernelHides() {
		s.names.LoadKernel()
	}
	later := caps.Set(0)
	if outfile.Others() {
		later = caps.Outputs
	}
	if err := caps.Drop(caps.Recording, later); err != nil {
		fmt.Fprintf(stderr, "unspool: %v\n", err)
	}
}

// kernelHides says whether it takes CAP_SYSLOG to read the addresses of the kernel's functions (kallsyms_show_value in
// kernel/ksyms_common.c).
func kernelHides() bool {
	restrict, ok := procfs.Setting("kernel/kptr_restrict")
	level, known := procfs.Setting("kernel/perf_event_paranoid")
	return !ok || !known || restrict > 0 || level > 1
}
