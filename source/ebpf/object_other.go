//go:build !amd64 && !arm64

package ebpf

import "github.com/unspool/unspool/arch"

// Machine is no machine: there is no program for this one.
var Machine = &arch.Machine{}

var object []byte

const numRegs = 0
