package printable

import (
	"strings"
	"testing"
)

func TestEither(t *testing.T) {
	for _, want := range []string{"", "a", "a or b", "a, b or c", "a, b, c or d"} {
		words := strings.Fields(strings.NewReplacer(",", "", " or ", " ").Replace(want))
		if got := Either(words); got != want {
			t.Errorf("Either(%q): %q, want %q", words, got, want)
		}
	}
}
