package compile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/rows"
)

// Stats are one file's figures, or the sums of many. Its JSON is part of the program's interface.
type Stats struct {
	File        string         `json:"file,omitempty"`
	Files       int            `json:"files,omitempty"`
	Size        int64          `json:"size"`
	EHFrame     int64          `json:"eh_frame"`
	EHFrameHdr  int64          `json:"eh_frame_hdr"`
	DebugFrame  int64          `json:"debug_frame"`
	Sources     map[string]int `json:"sources"` // bytes of each source, by name, spare ones too
	CIEs        int            `json:"cies"`
	FDEs        int            `json:"fdes"`
	Damaged     int            `json:"damaged"`
	Rows        int            `json:"rows"`
	Rules       int            `json:"rules"`
	Table       int64          `json:"table"`
	Ratio       float64        `json:"table_to_eh_frame,omitempty"`
	MedianRatio float64        `json:"median_table_to_eh_frame,omitempty"`
	Opcodes     map[string]int `json:"opcodes"`
	Expressions map[string]int `json:"expressions"`
	CFAKinds    map[string]int `json:"cfa_by_kind"`       // once for each row
	RuleKinds   map[string]int `json:"registers_by_kind"` // the same
	RowsPerFDE  map[string]int `json:"rows_per_fde"`
	Origins     map[string]int `json:"rows_by_origin"` // gaps are not counted
}

func newStats() *Stats {
	return &Stats{Sources: map[string]int{}, Opcodes: map[string]int{}, Expressions: map[string]int{}, CFAKinds: map[string]int{}, RuleKinds: map[string]int{}, RowsPerFDE: map[string]int{}, Origins: map[string]int{}}
}

// Measure measures one file. The error of a file without unwind information is ErrNoRows.
func Measure(path string) (*Stats, error) {
	img, f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer img.Close()
	s := newStats()
	s.File, s.Size = path, img.Size()
	s.EHFrame, s.EHFrameHdr, s.DebugFrame = int64(f.Size(format.EHFrame)), int64(f.IndexSize()), int64(f.Size(format.DebugFrame))
	for _, src := range f.Sources {
		s.Sources[src.Name] += int(src.Size)
	}
	ref, damage := f.Rows()
	if len(ref.Rows) == 0 {
		return nil, ErrNoRows
	}
	s.Damaged = len(damage)
	s.Rows, s.Rules = len(ref.Rows), len(ref.Sets)
	b, err := compact.Emit(ref)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s.Table = int64(len(b))
	if s.EHFrame > 0 {
		s.Ratio = float64(s.Table) / float64(s.EHFrame)
	}
	s.countInstructions(f, img.Machine())
	s.countRules(ref)
	return s, nil
}

// kindNames are the instructions that rules come from: rows keeps the plainest expressions as rules of their own.
var kindNames = [rows.NumKinds]string{
	rows.Undefined: "undefined", rows.SameValue: "same_value", rows.Offset: "offset", rows.ValOffset: "val_offset",
	rows.Register: "register", rows.RegDeref: "expression", rows.Expr: "expression", rows.RegOffset: "val_expression", rows.ValExpr: "val_expression",
}

// countRules counts the rules of all rows by their kind.
func (s *Stats) countRules(t *rows.Table) {
	uses := make([]int, len(t.Sets))
	for _, r := range t.Rows {
		uses[r.Set]++
		if r.Set != rows.GapID {
			s.Origins[t.Origin(r.Lo).String()]++
		}
	}
	for id, n := range uses {
		switch set := &t.Sets[id]; set.CFA.Kind {
		case rows.CFANone:
		case rows.CFAReg:
			s.CFAKinds["register"] += n
		default:
			s.CFAKinds["expression"] += n
		}
		for _, r := range t.Sets[id].Rules {
			s.RuleKinds[kindNames[r.Kind]] += n
		}
	}
}

// countInstructions counts opcodes, expressions by shape, and rows by FDE.
func (s *Stats) countInstructions(f *format.Unwind, m *arch.Machine) {
	names := map[byte]string{}
	f.Entries(func(e format.Entry) bool {
		n := 1
		if e.IsFDE {
			s.FDEs++
		} else {
			s.CIEs++
		}
		e.Instructions(func(i *format.Instruction) bool {
			name := names[i.Op]
			if name == "" {
				name = i.Name(m)
				names[i.Op] = name
			}
			s.Opcodes[name]++
			if strings.Contains(name, "advance_loc") || strings.HasSuffix(name, "set_loc") {
				n++
			}
			if i.Expr != "" {
				s.Expressions[shape(i.Expr, m)]++
			}
			return true
		})
		if e.IsFDE {
			lo := 1 // powers of two
			for lo*2 <= n {
				lo *= 2
			}
			s.RowsPerFDE[fmt.Sprintf("%6d-%d", lo, lo*2-1)]++
		}
		return true
	})
}

// shape is an expression with its numbers left out: "breg+N, deref".
func shape(e string, m *arch.Machine) string {
	var out []string
	for at := 0; at < len(e); {
		op, err := rows.DecodeOp(e, at)
		if err != nil {
			return "damaged"
		}
		at = op.Next
		name, _, _ := strings.Cut(strings.TrimPrefix(op.String(m), "DW_OP_"), " ")
		switch {
		case strings.HasPrefix(name, "breg"):
			name = "breg+N"
		case strings.HasPrefix(name, "const"):
			name = "const"
		}
		out = append(out, name)
	}
	return strings.Join(out, ", ")
}

// Sum adds the figures up. The ratio is that of the sums; the median is over the files.
func Sum(all []*Stats) *Stats {
	t := newStats()
	t.Files = len(all)
	add := func(to, from map[string]int) {
		for k, v := range from {
			to[k] += v
		}
	}
	var ratios []float64
	table := int64(0) // of files that have .eh_frame
	for _, s := range all {
		t.Size += s.Size
		t.EHFrame += s.EHFrame
		t.EHFrameHdr += s.EHFrameHdr
		t.DebugFrame += s.DebugFrame
		t.CIEs += s.CIEs
		t.FDEs += s.FDEs
		t.Damaged += s.Damaged
		t.Rows += s.Rows
		t.Rules += s.Rules
		t.Table += s.Table
		if s.EHFrame > 0 {
			ratios = append(ratios, s.Ratio)
			table += s.Table
		}
		add(t.Sources, s.Sources)
		add(t.Opcodes, s.Opcodes)
		add(t.Expressions, s.Expressions)
		add(t.CFAKinds, s.CFAKinds)
		add(t.RuleKinds, s.RuleKinds)
		add(t.RowsPerFDE, s.RowsPerFDE)
		add(t.Origins, s.Origins)
	}
	if len(ratios) > 0 {
		slices.Sort(ratios)
		t.MedianRatio = ratios[len(ratios)/2]
		t.Ratio = float64(table) / float64(t.EHFrame)
	}
	return t
}

// WriteText writes the figures for people.
func (s *Stats) WriteText(out io.Writer) error {
	b := bufio.NewWriter(out)
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, v int64, note string) { fmt.Fprintf(w, "%s\t%d\t%s\t\n", name, v, note) }
	all := int64(0)
	for _, size := range s.Sources {
		all += int64(size)
	}
	of := func(part int64) string {
		switch {
		case all == 0:
			return ""
		case s.EHFrame < all/2:
			return fmt.Sprintf("%.2f × all sources", float64(part)/float64(all))
		}
		return fmt.Sprintf("%.2f × .eh_frame", float64(part)/float64(s.EHFrame))
	}
	if s.Files > 0 {
		row("files", int64(s.Files), "")
	}
	row("file size", s.Size, "")
	row(".eh_frame", s.EHFrame, "")
	row(".eh_frame_hdr", s.EHFrameHdr, of(s.EHFrameHdr))
	row(".debug_frame", s.DebugFrame, "")
	for _, name := range slices.Sorted(maps.Keys(s.Sources)) {
		if name != format.EHFrame && name != format.DebugFrame {
			row(name, int64(s.Sources[name]), of(int64(s.Sources[name])))
		}
	}
	note := of(s.Table)
	if s.Files > 0 && s.EHFrame >= all/2 {
		note = fmt.Sprintf("%.2f × .eh_frame; median of files %.2f", s.Ratio, s.MedianRatio)
	}
	row("compact table", s.Table, note)
	row("CIEs", int64(s.CIEs), "")
	row("FDEs", int64(s.FDEs), "")
	row("damaged entries", int64(s.Damaged), "")
	row("rows", int64(s.Rows), fmt.Sprintf("%.2f table bytes a row", float64(s.Table)/float64(s.Rows)))
	row("distinct rules", int64(s.Rules), "")
	w.Flush()
	for _, part := range []struct {
		title string
		m     map[string]int
		byKey bool
	}{{"instructions", s.Opcodes, false}, {"expressions", s.Expressions, false}, {"rules of the CFA, of all rows", s.CFAKinds, false}, {"rules of registers, of all rows", s.RuleKinds, false}, {"rows an FDE", s.RowsPerFDE, true}, {"rows by origin", s.Origins, false}} {
		if len(part.m) == 0 {
			continue
		}
		fmt.Fprintf(b, "\n%s\n", part.title)
		keys := slices.SortedFunc(maps.Keys(part.m), func(a, b string) int {
			if !part.byKey && part.m[a] != part.m[b] {
				return part.m[b] - part.m[a]
			}
			return strings.Compare(a, b)
		})
		for _, k := range keys {
			fmt.Fprintf(b, "%10d  %s\n", part.m[k], k)
		}
	}
	return b.Flush()
}

// WriteStats writes the measures of files, sorted by name: as text their sum, or as JSON an object each and, of several, one more with the sum.
func WriteStats(w io.Writer, all []*Stats, asJSON bool) error {
	slices.SortFunc(all, func(a, b *Stats) int { return strings.Compare(a.File, b.File) })
	sum := all[0]
	if len(all) > 1 {
		sum = Sum(all)
	}
	if !asJSON {
		return sum.WriteText(w)
	}
	enc := json.NewEncoder(w)
	for _, s := range all {
		if err := enc.Encode(s); err != nil {
			return err
		}
	}
	if len(all) == 1 {
		return nil
	}
	return enc.Encode(sum)
}
