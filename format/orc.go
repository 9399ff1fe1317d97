package format

import (
	"io"

	"github.com/unspool/unspool/format/orc"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// ORC is the name of the tables that Linux carries for itself.
const ORC = ".orc_unwind"

// orcSource returns the source that a kernel's or a module's ORC is; nil where there is none. It comes behind DWARF, which names all registers where
// the kernel was built with debug information: ORC names three. DWARF has gaps in assembly, where ORC has rows.
func orcSource(img *module.Image) (s *Source, sum func(io.Writer), err error) {
	t, err := orc.Open(img)
	if t == nil {
		return nil, nil, err
	}
	return &Source{Name: ORC, Size: t.Size(), Rows: func() (*rows.Table, []error) {
		x, damage := t.Rows()
		return x.From(rows.FromORC), damage
	}}, t.Sum, err
}
