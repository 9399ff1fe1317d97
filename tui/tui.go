// Package tui has the shared parts of views on a terminal: styles, screens of a fixed number of lines, and an input line. The packages below are
// the views. They show foreign text; package printable makes it fit for a terminal.
package tui

import (
	"fmt"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	"github.com/unspool/unspool/internal/printable"
)

// A Style is how text looks.
type Style uint8

const (
	Plain Style = iota
	Strong
	Faint
	Chosen
)

// Unpainted leaves text as it is.
func Unpainted(_ Style, s string) string { return s }

// Paint returns the styles of text, with colours or without.
func Paint(colour bool) func(Style, string) string {
	styles := map[Style]lipgloss.Style{
		Strong: lipgloss.NewStyle().Bold(true),
		Faint:  lipgloss.NewStyle().Faint(true),
		Chosen: lipgloss.NewStyle().Reverse(true),
	}
	if colour {
		styles[Strong] = styles[Strong].Foreground(lipgloss.Cyan)
	}
	return func(st Style, s string) string {
		if st == Plain {
			return s
		}
		return styles[st].Render(s)
	}
}

// Edit returns a line after a key. It is bounded.
func Edit(line string, key tea.KeyPressMsg) string {
	switch key.String() {
	case "backspace":
		if r := []rune(line); len(r) > 0 {
			return string(r[:len(r)-1])
		}
	case "ctrl+u":
		return ""
	default:
		if len(line)+len(key.Text) <= 1000 {
			return line + key.Text
		}
	}
	return line
}

// Fill returns n lines, empty ones after those that there are.
func Fill(lines []string, n int) []string {
	for len(lines) < n {
		lines = append(lines, "")
	}
	return lines[:n]
}

// ClipAll cuts each line to a number of columns, or not at all if it is 0.
func ClipAll(lines []string, width int) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = printable.Clip(l, width)
	}
	return out
}

// Tabs returns the line of the names of views, numbered, the chosen one marked: as many as have room.
func Tabs(names []string, chosen, width int, paint func(Style, string) string) string {
	s, used := "", 0
	for i, name := range names {
		label := fmt.Sprintf(" %d %s ", i+1, name)
		if used += len(label); used > width {
			break
		}
		if i == chosen {
			label = paint(Chosen, label)
		}
		s += label
	}
	return s
}

// Steps returns by how many rows a key moves the selection, of which page are on the screen; 0: it is no such key.
func Steps(key string, page int) int {
	switch key {
	case "j", "down":
		return 1
	case "k", "up":
		return -1
	case "pgdown", "ctrl+f":
		return page
	case "pgup", "ctrl+b":
		return -page
	case "home", "g":
		return -1 << 30
	case "end", "G":
		return 1 << 30
	}
	return 0
}
