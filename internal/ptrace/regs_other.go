//go:build !amd64 && !arm64

package ptrace

import (
	"errors"

	"github.com/unspool/unspool/arch"
)

// Machine is what this process runs on; nil where threads cannot be read.
var Machine *arch.Machine

// Get reads the registers of a thread that has stopped.
func Get(int) (Registers, error) { return Registers{}, errors.ErrUnsupported }

var (
	arguments [6]arch.Slot
	starters  [0]int
)
