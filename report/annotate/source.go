package annotate

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/unspool/unspool/profile"
)

// context is how many lines without code may lie between two that have some and are shown all the same.
const context = 6

// source makes the lines: those with code or weight, and what lies between them.
func (b *builder) source() {
	lines := map[place]*SourceLine{}
	line := func(pl place) *SourceLine {
		l := lines[pl]
		if l == nil {
			l = &SourceLine{File: pl.file, Line: pl.line}
			lines[pl] = l
		}
		return l
	}
	for pl, w := range b.sums.lines {
		l := line(pl)
		l.Self, l.Total = w.self, w.total
	}
	for i := range b.a.Insts {
		if x := &b.a.Insts[i]; x.Line != 0 {
			l := line(place{x.File, x.Line})
			l.Insts = append(l.Insts, i)
		}
	}
	if len(lines) == 0 {
		b.note("the function's lines are not known")
		return
	}
	byFile := map[string][]*SourceLine{}
	for pl, l := range lines {
		byFile[pl.file] = append(byFile[pl.file], l)
	}
	// A file weighs what its lines weigh.
	type file struct {
		name  string
		total uint64
		lines []*SourceLine
	}
	var files []file
	for name, ls := range byFile {
		f := file{name: name, lines: ls}
		for _, l := range ls {
			f.total += l.Total
		}
		slices.SortFunc(ls, func(x, y *SourceLine) int { return cmp.Compare(x.Line, y.Line) })
		files = append(files, f)
	}
	first := b.mainFile()
	slices.SortFunc(files, func(x, y file) int {
		if c := cmp.Compare(y.total, x.total); (x.name == first) == (y.name == first) {
			return cmp.Or(c, cmp.Compare(x.name, y.name))
		}
		if x.name == first {
			return -1
		}
		return 1
	})
	missing := 0
	for _, f := range files {
		text, err := b.text(f.name)
		if err != nil {
			if missing++; missing <= 3 {
				b.note("source: %v", err)
			}
		}
		before := uint32(0)
		for _, l := range f.lines {
			if text != nil && before != 0 && l.Line-before <= context {
				for n := before + 1; n < l.Line; n++ {
					b.addLine(SourceLine{File: f.name, Line: n}, text)
				}
			}
			b.addLine(*l, text)
			before = l.Line
		}
	}
	if missing > 3 {
		b.note("source: %s missing", profile.Count(uint64(missing-3), "more file is", "more files are"))
	}
	if len(b.a.Lines) >= maxLines {
		b.note("only the first %d lines are shown", maxLines)
	}
}

// mainFile returns the file that the function itself is in, as far as can be told: that of its first instruction,
// else that of the line with the most samples.
func (b *builder) mainFile() string {
	for i := range b.a.Insts {
		if f := b.a.Insts[i].File; f != "" {
			return f
		}
	}
	best, file := uint64(0), ""
	for i := range b.p.Locs {
		l := &b.p.Locs[i]
		if pl, ok := b.place(l); ok && l.Func == b.fn {
			if w := b.sums.lines[pl]; w != nil && (w.total > best || w.total == best && pl.file < file) {
				best, file = w.total, pl.file
			}
		}
	}
	return file
}

func (b *builder) addLine(l SourceLine, text [][]byte) {
	if len(b.a.Lines) >= maxLines {
		return
	}
	if i := uint64(l.Line) - 1; i < uint64(len(text)) {
		l.Text = strings.ToValidUTF8(string(bytes.TrimRight(text[i], "\r")), "\ufffd")
	}
	b.a.Lines = append(b.a.Lines, l)
}

// text returns the lines of a file; nil if it is not there.
func (b *builder) text(path string) ([][]byte, error) {
	if b.Source == nil {
		return nil, nil
	}
	t, err := b.Source(&b.p.Modules[b.p.Funcs[b.fn].Module], path)
	if err != nil {
		return nil, err
	}
	return bytes.Split(t, []byte{'\n'}), nil
}
