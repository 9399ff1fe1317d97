package printable

import (
	"fmt"
	"strings"
	"testing"
)

func TestString(t *testing.T) {
	for in, want := range map[string]string{
		"plain":            "plain",
		"größe 大":          "größe 大",
		"a\x1b[31mb":       "a [31mb",
		"a\nunspool: lie":  "a unspool: lie",
		"a\u202eb":         "a b",
		"a\u0085b\u2028c":  "a b c",
		"\xffx":            "\ufffdx",
		"tab\there\r\x07.": "tab here  .",
	} {
		if got := String(in); got != want {
			t.Errorf("String(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestWriter(t *testing.T) {
	var b strings.Builder
	n, err := fmt.Fprintf(Writer{&b}, "unspool: %s: gone\n", "/tmp/a\x1b]0;x\x07\nunspool: all is well")
	if want := "unspool: /tmp/a ]0;x  unspool: all is well: gone\n"; b.String() != want || err != nil || n != len(want) {
		t.Errorf("wrote %q, %d bytes, %v; want %q", b.String(), n, err, want)
	}
}
