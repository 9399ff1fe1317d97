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

func TestCount(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 waits", 1: "1 wait", 999: "999 waits", 1000: "1,000 waits", 104231: "104,231 waits", 1<<64 - 1: "18,446,744,073,709,551,615 waits"} {
		if got := Count(n, "wait", "waits"); got != want {
			t.Errorf("Count(%d) = %q, want %q", n, got, want)
		}
	}
}
