package format

import (
	"io"

	"github.com/unspool/unspool/format/sframe"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// SFrame is unwind information of few registers, which is loaded with the program.
const SFrame = ".sframe"

// sframeSource returns the source that SFrame sections are; nil where there are none. It comes behind DWARF, which says where all registers are: the
// assembler made both of the same directives.
func sframeSource(img *module.Image) (s *Source, sum func(io.Writer), err error) {
	t, err := sframe.Open(img)
	if t == nil {
		return nil, nil, err
	}
	return &Source{Name: SFrame, Size: t.Size(), Rows: func() (*rows.Table, []error) {
		x, damage := t.Rows()
		return x.From(rows.FromSFrame), damage
	}, Bounds: t.Bounds}, t.Sum, err
}
