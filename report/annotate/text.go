package annotate

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
)

// hottest returns the functions that have samples and whose names match says yes to, those with the most of their own first; of equal ones, those
// that are in the heavier stacks.
func hottest(p *profile.Profile, match func(name string) bool, by profile.Weight) []int32 {
	s := p.Sums(by, nil)
	var fns []int32
	for i := range p.Funcs {
		if s.Total[i] > 0 && match(p.Funcs[i].Name) {
			fns = append(fns, int32(i))
		}
	}
	slices.SortStableFunc(fns, func(a, b int32) int {
		return cmp.Or(cmp.Compare(s.Self[b], s.Self[a]), cmp.Compare(s.Total[b], s.Total[a]))
	})
	return fns
}

// Write writes the summary of p and its functions that match says yes to, at most limit of them, those with the most of their own first. It
// returns the number of matches; where none does, nothing is written. The unit is p's, whatever o says.
func Write(w io.Writer, p *profile.Profile, match func(name string) bool, code Options, o TextOptions, limit int) (int, error) {
	o.Unit = "samples"
	if code.By == profile.Periods {
		o.Unit = "events"
		if len(p.Events) == 1 && p.Events[0].Unit == "nanoseconds" {
			o.Unit = "ns"
		}
	}
	fns := hottest(p, match, code.By)
	if len(fns) == 0 {
		return 0, nil
	}
	if _, err := fmt.Fprintln(w, p.Summary()); err != nil {
		return len(fns), err
	}
	for _, fn := range fns[:min(limit, len(fns))] {
		a, err := Function(p, fn, code)
		if err != nil {
			return len(fns), err
		}
		fmt.Fprintln(w)
		if err := a.Text(w, o); err != nil {
			return len(fns), err
		}
	}
	if n := len(fns) - limit; n > 0 {
		fmt.Fprintf(w, "\n%s: raise --limit, or narrow --function\n", profile.Count(uint64(n), "more function matches", "more functions match"))
	}
	return len(fns), nil
}

// TextOptions shape the text of an Annotation.
type TextOptions struct {
	Source bool   // lines of source, and the instructions of each under it; else instructions only, by address
	Width  int    // columns; 0: lines are not cut
	Unit   string // of weights: "samples"
}

// digits is how wide the column of numbers must be.
func digits(a *Annotation, unit string) int {
	if unit == "ns" {
		return len("999.9 ms")
	}
	return max(len(profile.Comma(a.Self)), 4)
}

// Text writes the annotation as text. Percentages are shares of what the function has, calls of others included.
func (a *Annotation) Text(w io.Writer, o TextOptions) error {
	t := &text{w: bufio.NewWriterSize(w, 1<<16), o: o, a: a, digits: digits(a, o.Unit)}
	t.line("%s (%s)", printable.String(a.Func), printable.String(a.Module))
	t.line("%s: %s, %s of its own and of calls inlined in it", share(a.Total, a.All), profile.Quantity(a.Total, o.Unit), profile.Number(a.Self, o.Unit))
	for _, n := range a.Notes {
		t.line("note: %s", printable.String(n))
	}
	if len(a.Lines)+len(a.Insts) > 0 {
		t.line("\n%7s %*s %7s", "self", t.digits, "", "total")
	}
	for _, x := range a.Insts {
		t.address = max(t.address, len(fmt.Sprintf("%x", uint64(x.Addr))))
	}
	if o.Source && len(a.Lines) > 0 {
		t.source()
	} else {
		t.insts()
	}
	return t.w.Flush()
}

type text struct {
	w       *bufio.Writer
	o       TextOptions
	a       *Annotation
	digits  int // columns of a weight
	address int
}

// line writes a line, cut to the width; a newline before it stays.
func (t *text) line(format string, args ...any) {
	s, blank := strings.CutPrefix(fmt.Sprintf(format, args...), "\n")
	if blank {
		fmt.Fprintln(t.w)
	}
	fmt.Fprintln(t.w, printable.Clip(s, t.o.Width))
}

// weights are the columns to the left of a line.
func (t *text) weights(self, total uint64) string {
	blank := func(n uint64, s string) string {
		if n == 0 {
			return ""
		}
		return s
	}
	return fmt.Sprintf("%7s %*s %7s", blank(self, share(self, t.a.Total)), t.digits, blank(self, profile.Number(self, t.o.Unit)), blank(total, share(total, t.a.Total)))
}

// source writes the lines, each with its instructions.
func (t *text) source() {
	digits := 1
	for _, l := range t.a.Lines {
		digits = max(digits, len(fmt.Sprint(l.Line)))
	}
	file, last := "", uint32(0)
	for _, l := range t.a.Lines {
		switch {
		case l.File != file:
			t.line("\n%s", printable.String(l.File))
		case l.Line != last+1:
			t.line("%s │ %*s", t.weights(0, 0), digits, "…")
		}
		file, last = l.File, l.Line
		t.line("%s │ %*d  %s", t.weights(l.Self, l.Total), digits, l.Line, printable.Line(l.Text))
		for _, i := range l.Insts {
			t.inst(&t.a.Insts[i], fmt.Sprintf("%*s    ", digits, ""), "")
		}
	}
	header := false
	for i := range t.a.Insts {
		if x := &t.a.Insts[i]; x.Line == 0 {
			if !header {
				header = true
				t.line("\ninstructions without a line")
			}
			t.inst(x, "", "")
		}
	}
}

// insts writes the instructions in order of addresses.
func (t *text) insts() {
	for i := range t.a.Insts {
		x := &t.a.Insts[i]
		where := ""
		if i == 0 || x.Off == 0 {
			t.line("")
		}
		if x.In != "" {
			t.line("in %s", printable.String(x.In))
		}
		if x.Line != 0 && (i == 0 || t.a.Insts[i-1].Line != x.Line || t.a.Insts[i-1].File != x.File) {
			where = fmt.Sprintf("%s:%d", x.File[strings.LastIndexByte(x.File, '/')+1:], x.Line)
		}
		t.inst(x, "", where)
	}
}

// inst writes an instruction, with what its operand leads to, and a remark.
func (t *text) inst(x *Inst, indent, remark string) {
	s := x.Text
	if name := x.TargetName; name != "" {
		mark := " <%s>"
		if !strings.Contains(s, fmt.Sprintf("%#x", uint64(x.Target))) {
			mark = "  # <%s>"
		}
		s += fmt.Sprintf(mark, name)
	}
	s = printable.Line(s)
	if remark != "" {
		s = printable.Pad(s, 48) + " ; " + printable.String(remark)
	}
	t.line("%s │ %s%*x:  %s", t.weights(x.Self, x.Total), indent, t.address, uint64(x.Addr), s)
}

// share is profile.Percent without a space.
func share(n, total uint64) string { return strings.ReplaceAll(profile.Percent(n, total), " ", "") }
