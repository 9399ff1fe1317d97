// Package printable makes foreign text fit for a line on a terminal and for its columns: the paths, names and commands of other programs can
// hold anything.
package printable

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// String returns s fit for a line of text: what would end the line, turn it around, or tell a terminal to do something becomes
// a space, and bytes that are not UTF-8 become U+FFFD.
func String(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r == utf8.RuneError || control(r) }) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		if control(r) {
			return ' '
		}
		return r
	}, s)
}

func control(r rune) bool {
	return unicode.IsControl(r) || r > unicode.MaxLatin1 && unicode.In(r, unicode.Zl, unicode.Zp, unicode.Bidi_Control)
}

// A Writer writes messages: each Write is one message, whose newline at the end stays. All else is as String has it.
type Writer struct{ W io.Writer }

// Write writes one message. It returns len(b), or the error of the writer below.
func (w Writer) Write(b []byte) (int, error) {
	s, newline := strings.CutSuffix(string(b), "\n")
	if s = String(s); newline {
		s += "\n"
	}
	if _, err := io.WriteString(w.W, s); err != nil {
		return 0, err
	}
	return len(b), nil
}
