package printable

import (
	"strings"
	"unicode"

	"github.com/clipperhouse/displaywidth"
)

// Width returns the number of a terminal's columns that s takes: wide characters take two, combining ones none. What Width, Clip and Pad are
// given is valid UTF-8 without control characters: see String and Marked.
func Width(s string) int { return displaywidth.String(s) }

// Clip cuts s to a number of columns, the last of them an ellipsis. It does not cut if the number is 0 or less.
func Clip(s string, columns int) string {
	if columns <= 0 || len(s) <= columns || Width(s) <= columns { // no character is wider than it is long
		return s
	}
	used, end := 0, 0
	for g := displaywidth.StringGraphemes(s); g.Next(); {
		if used += g.Width(); used > columns-1 {
			break
		}
		end += len(g.Value())
	}
	return s[:end] + "…"
}

// Pad fills s with blanks to a number of columns. Longer text stays as it is.
func Pad(s string, columns int) string {
	return s + strings.Repeat(" ", max(0, columns-Width(s)))
}

// Marked returns s with a question mark for each character that has no picture: control and format characters, blanks other than a space, and
// bytes that are not UTF-8. In a table, the reader sees where String would leave a blank or nothing.
func Marked(s string) string {
	odd := func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsPrint(r) }
	if strings.IndexFunc(s, odd) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		if odd(r) {
			return '?'
		}
		return r
	}, s)
}

// Line returns a line of source fit for a terminal: a tab becomes blanks up to the next multiple of eight columns, and what String makes a blank
// becomes U+FFFD: in source, a blank would be read as one.
func Line(s string) string {
	var b strings.Builder
	column := 0
	for i, part := range strings.Split(s, "\t") {
		if i > 0 {
			n := 8 - column%8
			b.WriteString(strings.Repeat(" ", n))
			column += n
		}
		part = strings.Map(func(r rune) rune {
			if control(r) {
				return unicode.ReplacementChar
			}
			return r
		}, part)
		b.WriteString(part)
		column += Width(part)
	}
	return b.String()
}
