package printable

import (
	"fmt"
	"strconv"
	"strings"
)

// Either joins alternatives: "a", "a or b", "a, b or c".
func Either(words []string) string {
	n := len(words) - 1
	if n < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:n], ", ") + " or " + words[n]
}

// Count returns a number with its noun: "1 wait", "2,000 waits".
func Count(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return Comma(n) + " " + many
}

// Comma returns n with its digits in groups of three: "104,231".
func Comma(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Bytes returns a number of bytes for people: "12 B", "3.4 KiB", "5.6 MiB", "7.8 GiB".
func Bytes(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f := float64(n) / 1024
	for _, unit := range []string{"KiB", "MiB"} {
		if f < 1024 {
			return fmt.Sprintf("%.1f %s", f, unit)
		}
		f /= 1024
	}
	return fmt.Sprintf("%.1f GiB", f)
}
