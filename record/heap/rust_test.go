package heap

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/source/perfevent"
)

// library builds the library for heap profiles, and returns its path.
func library(t *testing.T) string {
	t.Helper()
	oracle.Need(t, "make", "gcc")
	dir := t.TempDir()
	if out, err := exec.Command("make", "-C", "../../runtime", "BUILD="+dir, "heap").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(dir, "libunspool_heap.so")
}

// profiled runs a command, records all that it allocates, and returns what it prints and its profile.
func profiled(t *testing.T, command ...string) (string, *profile.Profile) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	stdout := os.Stdout
	os.Stdout = out // the command's, too
	r, err := start(Plan{Target: record.Plan{Options: perfevent.Options{Command: command}}}, []string{library(t)})
	os.Stdout = stdout
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if status, note, err := r.waitEvery(t.Context(), 0, nil, nil); status != 0 || note != "" || err != nil {
		t.Fatalf("%q ends with status %d, note %q, %v, want 0 and no note", command, status, note, err)
	}
	mods := modules.New()
	defer mods.Close()
	n := names.New(names.Options{Mods: mods})
	n.Lines = true
	defer n.Close()
	p, notes, err := r.profile(mods, n)
	if err != nil || len(notes) > 0 {
		t.Fatalf("profile of %q has the notes %q, %v, want none", command, notes, err)
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text), p
}

// chain names a stack's functions, outermost first; an inlined call follows a plus.
func chain(p *profile.Profile, s *profile.Stack) string {
	var b bytes.Buffer
	for _, l := range slices.Backward(s.Frames) {
		if b.WriteByte(' '); p.Locs[l].Inlined {
			b.WriteByte('+')
		}
		b.WriteString(strings.ReplaceAll(p.Funcs[p.Locs[l].Func].Name, " ", ""))
	}
	return b.String()
}

// TestRust: what a Rust program allocates, and has in use at its end, is what its own global allocator counts; functions and inlined calls have
// Rust's names.
func TestRust(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "rustc")
	prog := filepath.Join(t.TempDir(), "counted")
	if out, err := exec.Command("rustc", "-O", "-g", "--edition", "2021", "-o", prog, "testdata/counted.rs").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, p := profiled(t, prog)
	var want, got [4]uint64
	if n, err := fmt.Sscan(out, &want[0], &want[1], &want[2], &want[3]); n != 4 || err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	sums := map[string][4]uint64{}
	wants := map[string][4]uint64{
		" counted::outer +counted::inlined":     {7, 7 * 12345, 7, 7 * 12345},
		" counted::Holder<T>::generic":          {10, 9*24 + 9*14, 10, 9*24 + 9*14},
		" counted::aligned +alloc::boxed::Box<": {10, 2560, 5, 1280},
	}
	for i := range p.Stacks {
		s := &p.Stacks[i]
		at := map[string]int{profile.HeapAlloc: 0, profile.HeapInUse: 2}
		k, ok := at[p.Events[s.Event].Name]
		names := chain(p, s)
		if !ok || !strings.Contains(names, "counted::Countingas") {
			continue // the C library's own
		}
		got[k], got[k+1] = got[k]+s.Count, got[k+1]+s.Period
		for name := range wants {
			if sum := sums[name]; strings.Contains(names, name) {
				sum[k], sum[k+1] = sum[k]+s.Count, sum[k+1]+s.Period
				sums[name] = sum
			}
		}
	}
	if got != want || want[0] < 10_000 {
		t.Errorf("recorded %d, counted %d", got, want)
	}
	for name, want := range wants {
		if sums[name] != want {
			t.Errorf("%s: %d, want %d", name, sums[name], want)
		}
	}
}
