package source

import (
	"math/bits"

	"github.com/unspool/unspool/arch"
)

func archAddr[T int | uint64](v T) arch.Addr { return arch.Addr(v) }

func popcount(v uint64) int { return bits.OnesCount64(v) }
