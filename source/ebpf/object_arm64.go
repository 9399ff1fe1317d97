package ebpf

import (
	_ "embed"

	"github.com/unspool/unspool/arch"
)

// Machine is the machine whose stacks the kernel's program walks: this one.
var Machine = arch.ARM64

//go:embed unspool_arm64.bpf.o
var object []byte

// The kernel has numRegs registers of a thread: c/walk.h.
const numRegs = 33
