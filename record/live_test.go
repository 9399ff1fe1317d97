package record

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
)

// spinner builds a program that is always in spins_here, below outer_of_it.
func spinner(t *testing.T) string {
	t.Helper()
	oracle.Need(t, "gcc")
	prog := filepath.Join(t.TempDir(), "spinner")
	gcc := exec.Command("gcc", "-O1", "-fno-optimize-sibling-calls", "-o", prog, "-x", "c", "-")
	gcc.Stdin = strings.NewReader(`volatile unsigned long n;
__attribute__((noinline)) void spins_here(void) { for (;;) n++; }
__attribute__((noinline)) void outer_of_it(void) { spins_here(); n--; }
int main(void) { outer_of_it(); return n; }`)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return prog
}

// folded returns the stacks of a profile with their counts, innermost function first.
func folded(p *profile.Profile) map[string]uint64 {
	out := map[string]uint64{}
	for i := range p.Stacks {
		var fns []string
		for _, f := range p.Stacks[i].Frames {
			if l := &p.Locs[f]; !p.Modules[l.Module].Kernel {
				fns = append(fns, p.Funcs[l.Func].Name)
			}
		}
		out[strings.Join(fns, " ")] += p.Stacks[i].Count
	}
	return out
}

// TestSources: whoever walks the stacks, the recording has the same; written and read again, the samples are the same.
func TestSources(t *testing.T) {
	oracle.Long(t)
	prog := spinner(t)
	ran := 0
	for _, from := range []string{Ptrace, Perf, EBPF} {
		mods := modules.New()
		p := Plan{Source: from}
		p.Command, p.Duration, p.Frequency, p.User = []string{prog}, time.Second, 500, true
		l, err := p.Open(context.Background(), mods)
		if from != Ptrace && (errors.Is(err, os.ErrPermission) || errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.ENOENT)) {
			t.Logf("%s: %v", from, err)
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", from, err)
		}
		ran++
		n := names.New(names.Options{Mods: mods})
		s := l.Session(Options{Mods: mods, Names: n})
		path := filepath.Join(t.TempDir(), "x.data")
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		w, err := s.Write(context.Background(), out, true)
		if err != nil {
			t.Fatalf("%s: %v", from, err)
		}
		kept := w.file
		first, err := w.Named()
		if err := errors.Join(err, out.Close(), l.Close()); err != nil {
			t.Errorf("%s: %v", from, err)
		}
		if _, err := kept.Stat(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: the descriptor for names is still open: %v", from, err)
		}
		if notes := fmt.Sprint(l.Notes(), l.EndNotes()); from != Ptrace && len(l.Notes())+len(l.EndNotes()) > 1 {
			t.Errorf("%s: %q", from, notes)
		}
		if from == EBPF && (l.Kernel() == nil || l.Kernel().Tables == 0 || !strings.Contains(l.Summary(), "walking stacks in the kernel: ")) {
			t.Errorf("%s: %+v, %s", from, l.Kernel(), l.Summary())
		}
		inside := uint64(0)
		for stack, n := range folded(first) {
			if strings.HasPrefix(stack, "spins_here outer_of_it main ") {
				inside += n
			}
		}
		if total := first.Totals.Samples; total < 10 || inside*10 < total*8 || w.Dropped != 0 || s.Stats.Samples != total || first.Command != prog {
			t.Errorf("%s: %d of %d samples in spins_here, %d dropped, of %s: %v", from, inside, total, w.Dropped, first.Command, folded(first))
		}
		n.Close()

		f, err := Open(path, FileOptions{Mods: mods})
		if err != nil {
			t.Fatalf("%s: %v", from, err)
		}
		if len(f.data.Info().Names) == 0 || f.notes != nil {
			t.Errorf("%s: %d bytes of names, %v", from, len(f.data.Info().Names), f.notes)
		}
		again, err := f.Profile(context.Background(), nil)
		if err != nil || again.Summary() != first.Summary() {
			t.Errorf("%s: %v, read again: %s, was %s", from, err, again.Summary(), first.Summary())
		}
		was, is := folded(first), folded(again)
		for stack, n := range was {
			if is[stack] != n {
				t.Errorf("%s: %s: %d, was %d", from, stack, is[stack], n)
			}
		}
		f.Close()
	}
	if ran < 3 {
		oracle.Lacks(t, "perf events, or the permission to walk in the kernel")
	}
}

// TestWant: a session leaves out whom nobody wants, and says how many; it tells how far it is.
func TestWant(t *testing.T) {
	oracle.Long(t)
	prog := spinner(t)
	p := Plan{Source: Ptrace}
	p.Command, p.Duration, p.Frequency = []string{prog}, 3*time.Second, 500
	mods := modules.New()
	l, err := p.Open(context.Background(), mods)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n := names.New(names.Options{Mods: mods})
	defer n.Close()
	told := []uint64(nil)
	s := l.Session(Options{
		Mods: mods, Names: n, Prompt: true, Progress: func(n uint64) { told = append(told, n) },
	})
	s.want = func(_, _ int32, comm string, time uint64) bool { return comm == "spinner" && time%4 != 0 }
	got := uint64(0)
	if err := s.Run(context.Background(), func(*profile.Sample) error { got++; return nil }); err != nil {
		t.Fatal(err)
	}
	if got == 0 || s.Stats.Samples != got || s.Stats.Unwanted == 0 || uint64(len(told)) != got/256 || s.Info.Duration <= 0 {
		t.Errorf("%d samples of %d, %d unwanted, told %v, %v", got, s.Stats.Samples, s.Stats.Unwanted, told, s.Info.Duration)
	}
}

// TestFiles: a command has the standard files that it is given, whoever records it.
func TestFiles(t *testing.T) {
	ran := 0
	for _, from := range []string{Ptrace, Perf} {
		dir := t.TempDir()
		var files [3]*os.File
		for i, name := range []string{"in", "out", "err"} {
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE, 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			files[i] = f
		}
		if _, err := files[0].WriteAt([]byte("given\n"), 0); err != nil {
			t.Fatal(err)
		}
		p := Plan{Source: from}
		p.Files, p.Command = &files, []string{"sh", "-c", "read x; echo $x to out; echo $x to err >&2"}
		mods := modules.New()
		l, err := p.Open(context.Background(), mods)
		if refused(err) {
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", from, err)
		}
		ran++
		n := names.New(names.Options{Mods: mods})
		err = l.Session(Options{Mods: mods, Names: n}).Run(context.Background(), func(*profile.Sample) error { return nil })
		status, _, werr := l.ExitStatus(context.Background(), false)
		if err := errors.Join(err, werr, l.Close(), n.Close()); err != nil || status != 0 {
			t.Errorf("%s: status %d, %v", from, status, err)
		}
		for i, want := range []string{"given\n", "given to out\n", "given to err\n"} {
			if got, err := os.ReadFile(files[i].Name()); string(got) != want {
				t.Errorf("%s: standard file %d has %q, want %q (%v)", from, i, got, want, err)
			}
		}
	}
	if ran == 0 {
		oracle.Lacks(t, "ptrace and perf events")
	}
}

// TestTarget: a plan says what it records.
func TestTarget(t *testing.T) {
	var command, pids, all Plan
	command.Command, command.All, pids.PIDs, all.All = []string{"sleep", "1"}, true, []int{12, 34}, true
	for want, p := range map[string]*Plan{"sleep 1": &command, "pid 12 34": &pids, "whole machine": &all} {
		if got := p.Target(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestRefused: a plan says what it takes, and what it falls back from; a command that is not there is an error whoever is to record it.
func TestRefused(t *testing.T) {
	oracle.Long(t)
	for _, from := range []string{"", Auto, Perf, Ptrace} {
		p := Plan{Source: from, Fallback: true}
		p.Command = []string{"/nonexistent/program"}
		if l, err := p.Open(context.Background(), modules.New()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", from, err)
			if err == nil {
				l.Close()
			}
		}
	}
	for err, want := range map[error]bool{unix.EPERM: true, unix.ENOSYS: true, errors.ErrUnsupported: true, unix.EMFILE: false, context.Canceled: false} {
		if refused(err) != want {
			t.Errorf("refused(%v) = %v", err, !want)
		}
	}
}
