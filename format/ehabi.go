package format

import (
	"io"

	"github.com/unspool/unspool/format/ehabi"
	"github.com/unspool/unspool/module"
)

// ARMExidx is the index of Arm's unwind tables for exceptions, which are loaded with the program.
const ARMExidx = ".ARM.exidx"

// ehabiSource returns the source that Arm's tables are; nil where there are none.
func ehabiSource(img *module.Image) (s *Source, sum func(io.Writer), err error) {
	x, err := ehabi.Open(img)
	if x == nil {
		return nil, nil, err
	}
	return &Source{Name: ARMExidx, Size: x.Size(), Rows: x.Rows, Bounds: x.Bounds}, x.Sum, err
}
