package report

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/profile"
)

// longProfile returns a profile whose folded stacks are many times as long as what is written at once, and the lines.
func longProfile() (*profile.Profile, []string) {
	p := &profile.Profile{Modules: []profile.Module{{Path: "/bin/x"}}, Files: []string{""}}
	var lines []string
	for i := range 300 {
		p.Funcs = append(p.Funcs, profile.Func{Name: fmt.Sprintf("function %03d %s", i, strings.Repeat("x", i)), Named: true})
		p.Locs = append(p.Locs, profile.Loc{Func: int32(i)})
	}
	for i := range 10_000 {
		s := profile.Stack{Comm: "x", Count: uint64(i % 7)} // those of no weight have no line
		line := "x"
		for f := i; f > 0; f /= 7 {
			s.Frames = append(s.Frames, uint32(f%300))
		}
		for _, f := range slices.Backward(s.Frames) {
			line += ";" + p.Funcs[f].Name
		}
		p.Stacks = append(p.Stacks, s)
		if s.Count > 0 {
			lines = append(lines, fmt.Sprintf("%s %d", line, s.Count))
		}
	}
	return p, lines
}

// TestFoldedLong: a text of many buffers is that of its lines.
func TestFoldedLong(t *testing.T) {
	p, want := longProfile()
	var b bytes.Buffer
	if err := Folded(&b, p, Options{}); err != nil {
		t.Fatal(err)
	}
	if b.Len() < 8*behindSize {
		t.Fatalf("%d bytes: too short to test anything", b.Len())
	}
	got := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if last := got[len(got)-1]; !strings.HasPrefix(last, "# ") {
		t.Errorf("the last line is %q", last)
	}
	got = got[:len(got)-1]
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d lines differ from the %d wanted", len(got), len(want))
	}
}

// A failing fails with the n-th Write.
type failing struct{ n int }

var errFull = errors.New("disk full")

func (f *failing) Write(b []byte) (int, error) {
	if f.n--; f.n < 0 {
		return 0, errFull
	}
	return len(b), nil
}

// TestFoldedError: an error of any Write is returned, and nothing is written after it.
func TestFoldedError(t *testing.T) {
	p, _ := longProfile()
	for n := range 5 {
		w := &failing{n}
		if err := Folded(w, p, Options{}); err != errFull || w.n != -1 {
			t.Errorf("Write %d fails: %v after %d more writes, want %v after none", n, err, -1-w.n, errFull)
		}
	}
	p.Stacks = nil
	if err := Folded(&failing{}, p, Options{}); err != errFull {
		t.Errorf("the only Write fails: %v, want %v", err, errFull)
	}
}
