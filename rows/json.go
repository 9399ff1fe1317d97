package rows

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
)

// A jsonRow is one row; its spelling is part of the program's interface.
type jsonRow struct {
	Section string            `json:"section,omitempty"` // of a file that is not linked: Lo and Hi are offsets there
	Lo      string            `json:"lo"`
	Hi      string            `json:"hi"`
	CFA     string            `json:"cfa"`
	RA      string            `json:"ra"`
	Rules   map[string]string `json:"rules"`
	Signal  bool              `json:"signal"`
	Origin  string            `json:"origin"` // of its first address
}

// WriteJSON writes an object a row, spelled as WriteText does; gaps are what lies between them.
func (t *Table) WriteJSON(w io.Writer) error {
	bw := bufio.NewWriter(w)
	enc := json.NewEncoder(bw)
	enc.SetEscapeHTML(false)
	for i, r := range t.Rows {
		if r.Set == GapID {
			continue
		}
		s := &t.Sets[r.Set]
		in := SectionStart{}
		if s := t.section(r.Lo); s != nil {
			in = *s
		}
		row := jsonRow{
			Section: in.Name, Lo: fmt.Sprintf("%#x", uint64(r.Lo-in.Lo)), Hi: fmt.Sprintf("%#x", uint64(t.Hi(i)-in.Lo)),
			CFA: s.CFACell(t.Machine), RA: "", Rules: map[string]string{}, Signal: s.Flags&Signal != 0, Origin: t.Origin(r.Lo).String(),
		}
		for j := range s.Rules {
			rule := &s.Rules[j]
			if rule.Of == s.RA {
				row.RA = rule.Cell(t.Machine)
			} else {
				row.Rules[t.Machine.RegName(rule.Of)] = rule.Cell(t.Machine)
			}
		}
		if err := enc.Encode(&row); err != nil {
			return err
		}
	}
	return bw.Flush()
}
