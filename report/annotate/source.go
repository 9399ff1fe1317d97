package annotate

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxSource bounds the size of a source file.
const maxSource = 16 << 20

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
		b.note("its lines are not known")
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
		b.note("source: %d more files are missing", missing-3)
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
	t, err := b.Source(path)
	if err != nil {
		return nil, err
	}
	return bytes.Split(t, []byte{'\n'}), nil
}

// Sources find source files.
type Sources struct {
	Root  string      // a directory below which the paths are looked for first; may be ""
	Paths [][2]string // prefixes of paths and what they are replaced by; the first that fits holds
}

// Read returns the text of a source file. Only regular files of at most 16 MiB without NUL bytes are read.
func (s *Sources) Read(path string) ([]byte, error) {
	for _, p := range s.Paths {
		if rest, ok := strings.CutPrefix(path, p[0]); ok && (rest == "" || rest[0] == '/' || strings.HasSuffix(p[0], "/")) {
			path = p[1] + rest
			break
		}
	}
	if s.Root != "" {
		b, err := readText(filepath.Join(s.Root, filepath.Clean("/"+path)))
		if !errors.Is(err, os.ErrNotExist) {
			return b, err
		}
	}
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("%s: not an absolute path", path)
	}
	return readText(path)
}

func readText(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0) // a FIFO would block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSource+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxSource:
		return nil, fmt.Errorf("%s: more than %d MiB", path, maxSource>>20)
	case bytes.IndexByte(b, 0) >= 0:
		return nil, fmt.Errorf("%s: not text", path)
	}
	return b, nil
}
