package ebpf

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/symbol"
)

// everywhere counts the samples that all processors have of commands of some names, until the function that it returns is called. What a
// process says of its processor time is no judge: on virtual machines, samples between two processes are mostly the second one's.
func everywhere(t *testing.T, comms ...string) (count func() (samples, lost int)) {
	t.Helper()
	r, err := perfevent.Open(t.Context(), perfevent.Options{Event: "cpu-clock", Frequency: 1999, All: true, CallGraph: perfevent.FramePointer})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	var st source.Stats
	done := make(chan struct{})
	go func() {
		defer close(done)
		var err error
		if st, err = source.Run(context.Background(), r, source.Options{Mods: modules.New().Module, Sample: func(s *source.Sample) error {
			if slices.Contains(comms, s.Comm) {
				n++
			}
			return nil
		}}); err != nil {
			t.Error(err)
		}
	}()
	return func() (samples, lost int) {
		t.Helper()
		r.Stop()
		<-done
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		return n, int(st.Lost + st.LostSamples)
	}
}

// TestShortProcesses: a command of many short processes has as many samples as all processors count of it, whoever walks. So has a process that
// runs already, where the kernel walks. Nobody else has any.
func TestShortProcesses(t *testing.T) {
	load(t, Options{}).Close()
	other := exec.Command("sh", "-c", "while :; do :; done")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	dir := t.TempDir()
	build := func(name, code string) string {
		path := filepath.Join(dir, name)
		if err := os.Rename(compile(t, code), path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	run := build("shortrun", "int main(void) { for (volatile int i = 0; i < 100000; i++); return 0; }")
	loop := build("shortloop", `#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
int main(int argc, char **argv) {
	pid_t p;
	if (argc > 2) getchar();
	for (int i = 0; i < 400; i++) if (posix_spawn(&p, argv[1], 0, 0, argv + 1, 0) || waitpid(p, 0, 0) < 0) return 1;
	return 0;
}`)
	for _, c := range []struct{ walks, runs bool }{{false, false}, {true, false}, {true, true}} {
		o := perfevent.Options{Event: "cpu-clock", Frequency: 1999}
		if c.walks {
			o.Program = load(t, Options{})
		}
		running := exec.Command(loop, run, "waits")
		begin, err := running.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if c.runs {
			if err := running.Start(); err != nil {
				t.Fatal(err)
			}
			o.PIDs = []int{running.Process.Pid}
		} else {
			o.Command = []string{loop, run}
		}
		count := everywhere(t, "shortloop", "shortrun")
		r, err := perfevent.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		ended := make(chan error, 1)
		if c.runs { // the recording ends with it
			go func() { begin.Write([]byte("\n")); ended <- running.Wait() }()
		}
		comms := map[string]int{}
		st, err := source.Run(context.Background(), r, source.Options{Mods: modules.New().Module, Ours: c.walks, Sample: func(s *source.Sample) error {
			comms[s.Comm]++
			if int(s.PID) == other.Process.Pid {
				t.Errorf("a sample of process %d", s.PID)
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = r.Wait(); c.runs {
			err = <-ended
		}
		if err != nil {
			t.Fatal(err)
		}
		all, allLost := count()
		t.Logf("%+v: %d samples; %d on all processors, %v", c, st.Samples, all, comms)
		// Of records that the kernel lost, it says how many, not which: in copies, each process also has those of its mappings, and more of them.
		lost := int(st.Lost + st.LostSamples)
		if n := int(st.Samples); 4*n > 5*(all+allLost) || 4*(n+lost) < 3*all {
			t.Errorf("%+v: %d samples and %d lost; on all processors, %d and %d", c, n, lost, all, allLost)
		}
		if len(comms) > 2 || comms["shortrun"] == 0 {
			t.Errorf("samples of %v", comms)
		}
	}
}

// TestLastMoments: a process has samples until it has freed its memory. Kernels since June 2025, stable ones too, write its EXIT record before.
func TestLastMoments(t *testing.T) {
	if os.Getpagesize() > 4096 {
		oracle.Lacks(t, "pages of 4 KiB: few others are freed too fast")
	}
	names := symbol.New(symbol.Options{})
	frees := func(kernel []uint64) bool {
		return slices.ContainsFunc(kernel, func(a uint64) bool { s, _, _ := names.Kernel(a); return s.Name == "exit_mmap" })
	}
	maps := compile(t, `#include <sys/mman.h>
int main(void) {
	char *p = mmap(0, 512 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) return 1;
	madvise(p, 512 << 20, MADV_NOHUGEPAGE); // if there are any
	for (int i = 0; i < 512 << 20; i += 4096) p[i] = 1;
	return 0;
}`)
	for _, c := range []struct {
		name, script string
		runs         bool // before it is recorded
	}{
		{"a command", "exec " + maps, false},
		{"a process", "read go; exec " + maps, true},
		{"its child, when it has gone", "read go; " + maps + " & exit 0", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := perfevent.Options{Event: "cpu-clock", Frequency: 3999, Program: load(t, Options{Pass: true})}
			begin := func() {}
			if c.runs {
				running := exec.Command("sh", "-c", c.script)
				in, err := running.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := running.Start(); err != nil {
					t.Fatal(err)
				}
				begin = func() { in.Write([]byte("\n")) }
				defer running.Wait()
				defer running.Process.Kill()
				o.PIDs = []int{running.Process.Pid}
			} else {
				o.Command = []string{"sh", "-c", c.script}
			}
			r, err := perfevent.Open(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			begin()
			walked, copied := 0, 0
			st, err := source.Run(t.Context(), r, source.Options{Mods: modules.New().Module, Ours: true, Sample: func(s *source.Sample) error {
				switch {
				case !frees(s.Kernel):
				case s.Record.ID == source.WalkedID:
					walked++
				default:
					copied++
				}
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d samples, of the memory's end %d from the kernel's walks and %d from copies", st.Samples, walked, copied)
			if lost := int(st.Lost + st.LostSamples); copied < 10 || walked < copied-lost {
				t.Errorf("while memory was freed, there were %d walks and %d copies; %d were lost: want as many, and 10 or more", walked, copied, lost)
			}
		})
	}
}

// TestGoneProcesses: the recording of a process that ends at any time ends, too.
func TestGoneProcesses(t *testing.T) {
	for i := range 8 {
		c := exec.Command("/bin/sh", "-c", "/bin/true; /bin/true")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * time.Millisecond)
		r, err := perfevent.Open(t.Context(), perfevent.Options{Event: "cpu-clock", PIDs: []int{c.Process.Pid}, Program: load(t, Options{})})
		if err != nil { // nobody has waited for it: it is there
			t.Fatal(err)
		}
		if _, err := source.Run(t.Context(), r, source.Options{Mods: modules.New().Module, Ours: true}); err != nil {
			t.Error(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		c.Wait()
	}
}
