package main

import (
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/caps"
)

// parsing are those that a verb keeps that reads other people's bytes: to read its inputs and the files that they name, also those of other
// users and, by way of their processes, in containers; to read a process's registers and stacks; and the names of the kernel's functions.
const parsing = caps.Set(1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_SYSLOG)

// parsers are the verbs that give up all else before they begin. verify --run and run start programs; doctor tries everything.
var parsers = map[string]caps.Set{
	"report": parsing, "diff": parsing, "unwind": parsing, "serve": parsing | 1<<unix.CAP_NET_BIND_SERVICE, "stack": parsing,
	"dump": parsing, "compile": parsing, "verify": parsing, "stats": parsing,
}
