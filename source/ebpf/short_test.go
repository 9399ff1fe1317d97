package ebpf

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

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

// TestShortProcesses: a command that starts many short processes has as many samples as all processors have of it, whoever walks, and so has a
// process that runs already where the kernel walks; and nobody else has any.
func TestShortProcesses(t *testing.T) {
	load(t, Options{}).Close()
	other := exec.Command("sh", "-c", "while :; do :; done")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	sh, run := called(t, "sh", "shortloop"), called(t, "true", "shortrun")
	loop := "i=0; while [ $i -lt 400 ]; do " + run + "; i=$((i+1)); done"
	for _, c := range []struct{ walks, runs bool }{{false, false}, {true, false}, {true, true}} {
		o := perfevent.Options{Event: "cpu-clock", Frequency: 1999}
		if c.walks {
			o.Program = load(t, Options{})
		}
		running := exec.Command(sh, "-c", "read go; "+loop)
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
			o.Command = []string{sh, "-c", loop}
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

// called copies a program to another name.
func called(t *testing.T, program, name string) (path string) {
	t.Helper()
	from, err := exec.LookPath(program)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLastMoments: a process has samples until it has freed its memory. Newer kernels (6.18) write the record of its end before.
func TestLastMoments(t *testing.T) {
	names := symbol.New(symbol.Options{})
	freed := func(kernel []uint64) bool {
		return slices.ContainsFunc(kernel, func(a uint64) bool { s, _, _ := names.Kernel(a); return s.Name == "exit_mmap" })
	}
	const frees = "exec dd if=/dev/zero of=/dev/null bs=512M count=1 status=none" // it leaves its buffer to the kernel
	for _, runs := range []bool{false, true} {
		o := perfevent.Options{Event: "cpu-clock", Frequency: 3999, Program: load(t, Options{Pass: true})}
		running := exec.Command("sh", "-c", "read go; "+frees)
		begin, err := running.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if runs {
			if err := running.Start(); err != nil {
				t.Fatal(err)
			}
			o.PIDs = []int{running.Process.Pid}
		} else {
			o.Command = []string{"sh", "-c", frees}
		}
		r, err := perfevent.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if runs {
			begin.Write([]byte("\n"))
		}
		walked, copied := 0, 0
		st, err := source.Run(t.Context(), r, source.Options{Mods: modules.New().Module, Ours: true, Sample: func(s *source.Sample) error {
			switch {
			case !freed(s.Kernel):
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
		if runs {
			running.Wait()
		}
		t.Logf("it runs already: %v; %d samples, of the memory's end %d from the kernel's walks and %d from copies", runs, st.Samples, walked, copied)
		if lost := int(st.Lost + st.LostSamples); copied < 10 || walked < copied-lost {
			t.Errorf("it runs already: %v; the kernel walked %d times while a process freed its memory, and copied %d times, %d lost: want as many, and 10 or more", runs, walked, copied, lost)
		}
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
