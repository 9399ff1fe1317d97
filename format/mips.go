package format

import (
	"io"

	"github.com/unspool/unspool/format/mips"
	"github.com/unspool/unspool/module"
)

// MIPSCompact is the name of MIPS's compact exception tables, which are loaded with the program, in .eh_frame_hdr and .gnu_extab.
const MIPSCompact = "mips-compact"

// mipsSource returns the source that MIPS's compact tables are; nil where there are none.
func mipsSource(img *module.Image) (s *Source, sum func(io.Writer), err error) {
	x, err := mips.Open(img)
	if x == nil {
		return nil, nil, err
	}
	return &Source{Name: MIPSCompact, Size: x.Size(), Rows: x.Rows, Bounds: x.Bounds}, x.Sum, err
}
