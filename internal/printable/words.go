package printable

import "strings"

// Either joins alternatives: "a", "a or b", "a, b or c".
func Either(words []string) string {
	n := len(words) - 1
	if n < 1 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:n], ", ") + " or " + words[n]
}
