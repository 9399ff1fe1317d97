package printable

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// Columns are a terminal's: a wide character takes two, a combining one none, and none is cut in two.
func TestClip(t *testing.T) {
	for _, c := range []struct {
		in      string
		columns int
		want    string
	}{
		{"main", 0, "main"},
		{"main", -1, "main"},
		{"main", 4, "main"},
		{"main", 3, "ma…"},
		{"main", 1, "…"},
		{"日本語", 6, "日本語"},
		{"日本語", 5, "日本…"},
		{"日本語", 4, "日…"},
		{"e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"},
		{"e\u0301e\u0301e\u0301", 2, "e\u0301…"},
		{"❤\ufe0f❤\ufe0f", 3, "❤\ufe0f…"}, // two columns with the selector, one without
		{"größe", 4, "grö…"},
	} {
		got := Clip(c.in, c.columns)
		if got != c.want || c.columns > 0 && Width(got) > c.columns {
			t.Errorf("Clip(%q, %d) = %q, %d columns; want %q", c.in, c.columns, got, Width(got), c.want)
		}
	}
}

func TestPad(t *testing.T) {
	for _, c := range []struct {
		in      string
		columns int
		want    string
	}{{"", 2, "  "}, {"a", 3, "a  "}, {"日", 3, "日 "}, {"e\u0301", 2, "e\u0301 "}, {"main", 2, "main"}, {"x", -3, "x"}} {
		if got := Pad(c.in, c.columns); got != c.want {
			t.Errorf("Pad(%q, %d) = %q, want %q", c.in, c.columns, got, c.want)
		}
	}
}

func TestMarked(t *testing.T) {
	for in, want := range map[string]string{
		"plain":           "plain",
		"größe 大":         "größe 大",
		"sh\x1b[2J":       "sh?[2J",
		"a\nb\tc":         "a?b?c",
		"a\u202eb\u200bc": "a?b?c",
		"a\u00a0b":        "a?b",
		"\xffx\ufffd":     "?x?",
	} {
		if got := Marked(in); got != want {
			t.Errorf("Marked(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestLine(t *testing.T) {
	for in, want := range map[string]string{
		"":               "",
		"\tx":            "        x",
		"abc\tx\ty":      "abc     x       y",
		"12345678\tx":    "12345678        x",
		"日本\tx":          "日本    x",
		"e\u0301\tx":     "e\u0301       x",
		"a\x1b\tx\u202e": "a\ufffd      x\ufffd",
		"\xff\t":         "\ufffd       ",
	} {
		if got := Line(in); got != want {
			t.Errorf("Line(%q) = %q, want %q", in, got, want)
		}
	}
}

// FuzzClip: for any text and width, Clip returns a beginning of the text, and it fits. Only of valid UTF-8 are widths sums of parts.
func FuzzClip(f *testing.F) {
	for _, s := range []string{"main", "日本語", "❤\ufe0f", "🇩🇪🇫🇷", "\xff\xfe", "\x1b[31m", "👩‍👩‍👧x", "\u0301", "\u0604"} {
		f.Add(s, 3)
	}
	f.Fuzz(func(t *testing.T, s string, columns int) {
		got := Clip(s, columns)
		if columns > 0 && utf8.ValidString(s) && Width(got) > columns || got != s && !strings.HasPrefix(s, strings.TrimSuffix(got, "…")) || utf8.ValidString(s) && !utf8.ValidString(got) {
			t.Errorf("Clip(%q, %d) = %q, %d columns", s, columns, got, Width(got))
		}
		// A character that joins the next one, such as U+0604, joins a blank, too: their widths are measured apart.
		got = Pad(s, columns%1000)
		blanks, ok := strings.CutPrefix(got, s)
		if !ok || strings.Trim(blanks, " ") != "" || Width(s)+len(blanks) != max(Width(s), columns%1000) {
			t.Errorf("Pad(%q, %d) = %q, %d columns and %d blanks", s, columns%1000, got, Width(s), len(blanks))
		}
	})
}
