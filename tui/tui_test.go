package tui

import (
	"slices"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
)

// TestEdit: keys write, the last character goes whole, and nobody fills memory.
func TestEdit(t *testing.T) {
	line := ""
	for _, k := range []struct {
		key  tea.KeyPressMsg
		want string
	}{
		{tea.KeyPressMsg{Text: "a", Code: 'a'}, "a"},
		{tea.KeyPressMsg{Text: "木", Code: '木'}, "a木"},
		{tea.KeyPressMsg{Code: tea.KeyDown}, "a木"},
		{tea.KeyPressMsg{Code: tea.KeyBackspace}, "a"},
		{tea.KeyPressMsg{Code: tea.KeyBackspace}, ""},
		{tea.KeyPressMsg{Code: tea.KeyBackspace}, ""},
		{tea.KeyPressMsg{Text: "(x)", Code: tea.KeyExtended}, "(x)"},
		{tea.KeyPressMsg{Code: 'u', Mod: tea.ModCtrl}, ""},
	} {
		if got := Edit(line, k.key); got != k.want {
			t.Errorf("Edit(%q, %s) = %q, want %q", line, k.key, got, k.want)
		}
		line = k.want
	}
	for range 50 {
		line = Edit(line, tea.KeyPressMsg{Text: strings.Repeat("y", 99), Code: tea.KeyExtended})
	}
	if len(line) != 990 {
		t.Errorf("%d bytes", len(line))
	}
}

func TestFill(t *testing.T) {
	for n, want := range [][]string{{}, {"a"}, {"a", "b"}, {"a", "b", ""}} {
		if got := Fill([]string{"a", "b"}, n); !slices.Equal(got, want) {
			t.Errorf("Fill(%d) = %q, want %q", n, got, want)
		}
	}
	if got := ClipAll([]string{"main", "日本"}, 3); !slices.Equal(got, []string{"ma…", "日…"}) {
		t.Errorf("ClipAll = %q", got)
	}
}

// TestPaint: without colours, no style is a colour.
func TestPaint(t *testing.T) {
	for _, s := range []Style{Plain, Strong, Faint, Chosen} {
		if got := Paint(false)(s, "x"); strings.Contains(got, "[3") || strings.Contains(got, ";3") || (got == "x") != (s == Plain) {
			t.Errorf("style %d without colours: %q", s, got)
		}
	}
	if got := Paint(true)(Strong, "x"); !strings.Contains(got, "3") {
		t.Errorf("with colours: %q", got)
	}
	if got := Unpainted(Chosen, "x"); got != "x" {
		t.Errorf("Unpainted: %q", got)
	}
}

// TestTabs: names are numbered, and one that has no room ends the line.
func TestTabs(t *testing.T) {
	mark := func(_ Style, s string) string { return "<" + s + ">" }
	for width, want := range map[int]string{0: "", 5: "", 6: " 1 ab ", 11: " 1 ab ", 12: " 1 ab < 2 cd >", 80: " 1 ab < 2 cd >"} {
		if got := Tabs([]string{"ab", "cd"}, 1, width, mark); got != want {
			t.Errorf("width %d: %q, want %q", width, got, want)
		}
	}
}

// TestSteps: each key that moves has one that moves back as far.
func TestSteps(t *testing.T) {
	for _, keys := range [][2]string{{"j", "k"}, {"down", "up"}, {"pgdown", "pgup"}, {"ctrl+f", "ctrl+b"}, {"end", "home"}, {"G", "g"}} {
		if on, back := Steps(keys[0], 20), Steps(keys[1], 20); on <= 0 || on != -back {
			t.Errorf("%s moves by %d, %s by %d", keys[0], on, keys[1], back)
		}
	}
	if Steps("pgdown", 20) != 20 || Steps("x", 20) != 0 || Steps("", 20) != 0 {
		t.Errorf("of pages of 20, pgdown moves by %d, want 20; x by %d and no key by %d, want 0", Steps("pgdown", 20), Steps("x", 20), Steps("", 20))
	}
}
