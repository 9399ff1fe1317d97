package cli

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
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
	for s, want := range map[string]string{
		"127.0.0.1:0": "", "[::1]:80": "", ":80": `--listen ":80": name the address, too: 127.0.0.1:80, or 0.0.0.0:80 for all`, "host": "--listen: address host: missing port in address",
		"": "--listen: missing port in address",
	} {
		if got, err := Address("--listen", s); (err != nil || got != s) && (err == nil || err.Error() != want || err.(*Exit).Status != 2) || (err == nil) != (want == "") {
			t.Errorf("%q: %q, %v; want %q", s, got, err, want)
		}
	}
	if got, err := AddressOrNone("--listen", ""); got != "" || err != nil {
		t.Errorf("no address: %q, %v", got, err)
	}
	if got, err := AddressOrNone("--listen", ":80"); err == nil {
		t.Errorf("no host: %q", got)
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
		t.Errorf("Quoted(%q) = %s, want it to begin with a '' 'it'\\''s' 'a b' k=v", words, line)
	}
}

// TestVar: such a flag has its value at once, keeps it after an error, and says what is wrong in the words of its parser.
func TestVar(t *testing.T) {
	var d time.Duration
	root := &cobra.Command{Use: "tool"}
	sub := &cobra.Command{Use: "wait", Run: func(c *cobra.Command, _ []string) { c.Print(d) }}
	Var(sub, &d, "for", "10s", "how long", Duration)
	root.AddCommand(sub)
	Setup(root, nil, nil)
	for _, c := range []struct {
		args         string
		status       int
		out, message string
	}{
		{"wait", 0, "10s", ""}, {"wait --for 1m", 0, "1m0s", ""},
		{"wait --for 5", 2, "", "tool: --for is a time with its unit: 5s or 5m\nRun 'tool wait --help' for usage.\n"},
		{"wait --for x", 2, "", "tool: --for takes a time such as 10s, not \"x\"\nRun 'tool wait --help' for usage.\n"},
	} {
		var out, err bytes.Buffer
		if status := Run(context.Background(), root, strings.Fields(c.args), &Writer{W: &out}, &err); status != c.status || out.String() != c.out || err.String() != c.message {
			t.Errorf("%s: %d, %q, %q; want %d, %q, %q", c.args, status, out.String(), err.String(), c.status, c.out, c.message)
		}
	}
	if f := sub.Flags().Lookup("for"); d != time.Minute || f.Value.String() != "1m" || f.DefValue != "10s" {
		t.Errorf("%v, %q, default %q", d, f.Value, f.DefValue)
	}
}

func TestPercent(t *testing.T) {
	for text, want := range map[string]float64{"": 0, "1%": 0.01, "0.5%": 0.005, "100%": 1} {
		if got, err := Percent("--max-cpu", text); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"1", "%", "0%", "-1%", "101%", "NaN%", "Inf%", "1%%", "x%"} {
		if got, err := Percent("--max-cpu", text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}
