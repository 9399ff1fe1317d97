package cli

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestValues(t *testing.T) {
	for s, want := range map[string]time.Duration{"": 0, "10s": 10 * time.Second, "1m30s": 90 * time.Second, "5": -1, "0s": -1, "-1s": -1, "x": -1} {
		if got, err := Duration("--duration", s); err == nil && got != want || (err != nil) != (want < 0) {
			t.Errorf("%q: %v, %v; want %v", s, got, err, want)
		}
	}
	for s, want := range map[string]int64{"": 0, "100": 100, "8K": 8 << 10, "512M": 512 << 20, "3G": 3 << 30, "0": -1, "M": -1, "1T": -1, "-1M": -1, "99999999999G": -1} {
		if got, err := Size("--memory", s); err == nil && int64(got) != want || (err != nil) != (want < 0) {
			t.Errorf("%q: %d, %v; want %d", s, got, err, want)
		}
	}
	dir := t.TempDir()
	for path, want := range map[string]string{"": "", dir: "", filepath.Join(dir, "x"): "--sysroot " + filepath.Join(dir, "x") + ": no such directory", "/dev/null": "--sysroot /dev/null: not a directory"} {
		got := ""
		if err := Directories("--sysroot", dir, path); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}

// TestQuoted: a shell takes the line apart into the words.
func TestQuoted(t *testing.T) {
	words := []string{"a", "", "it's", "a b", "k=v", "$HOME", "x\ny", "*", "-o", "http://h:1/?q=1&r"}
	line := Quoted(words)
	out, err := exec.Command("sh", "-c", `printf '%s\0' `+line).Output()
	if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); err != nil || !slices.Equal(got, words) {
		t.Errorf("Quoted(%q) = %s, which a shell reads as %q, %v", words, line, got, err)
	}
	if !strings.HasPrefix(line, "a '' 'it'\\''s' 'a b' k=v ") {
		t.Error(line)
	}
}
