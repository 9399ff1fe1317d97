package ebpf

import (
	"context"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/symbol"
)

// TestShortProcesses: a command that starts many short processes has as many samples as they used processor time, whoever walks, and so has a
// process that runs already where the kernel walks; and nobody else has any.
func TestShortProcesses(t *testing.T) {
	load(t, Options{}).Close()
	other := exec.Command("sh", "-c", "while :; do :; done")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	for _, c := range []struct{ walks, runs bool }{{false, false}, {true, false}, {true, true}} {
		const loop = "i=0; while [ $i -lt 400 ]; do /bin/true; i=$((i+1)); done"
		o := perfevent.Options{Event: "cpu-clock", Frequency: 1999}
		if c.walks {
			o.Program = load(t, Options{})
		}
		running := exec.Command("sh", "-c", "read go; "+loop)
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
			o.Command = []string{"sh", "-c", loop}
		}
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
		state, err := r.Wait()
		if c.runs {
			err = <-ended
			state = running.ProcessState
		}
		if err != nil {
			t.Fatal(err)
		}
		used := (state.UserTime() + state.SystemTime()).Seconds() * 1999
		t.Logf("%+v: %d samples of %.0f, %v", c, st.Samples, used, comms)
		// Of records that the kernel lost, it says how many, not which: in copies, each process also has those of its mappings, and more of them.
		lost := st.Lost + st.LostSamples
		if float64(st.Samples) > 1.25*used || float64(st.Samples+lost) < 0.75*used {
			t.Errorf("%+v: %d samples and %d lost, for processor time of %.0f", c, st.Samples, lost, used)
		}
		if len(comms) > 2 || comms["true"] == 0 {
			t.Errorf("samples of %v", comms)
		}
	}
}

// TestLastMoments: a process has samples until it has freed its memory. Newer kernels (6.18) write the record of its end before.
func TestLastMoments(t *testing.T) {
	names := symbol.New(symbol.Options{})
	freed := func(kernel []uint64) bool {
		return slices.ContainsFunc(kernel, func(a uint64) bool { s, _, _ := names.Kernel(a); return s.Name == "exit_mmap" })
	}
	r, err := perfevent.Open(t.Context(), perfevent.Options{Event: "cpu-clock", Frequency: 3999, Program: load(t, Options{Pass: true}),
		Command: []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=512M", "count=1", "status=none"}}) // which leaves its buffer to the kernel
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	walked, copied := 0, 0
	st, err := source.Run(t.Context(), r, source.Options{Mods: modules.New().Module, Ours: true, Sample: func(s *source.Sample) error {
		if !freed(s.Kernel) {
			return nil
		}
		if s.Record.ID == source.WalkedID {
			walked++
		} else {
			copied++
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d samples, of the memory's end %d from the kernel's walks and %d from copies", st.Samples, walked, copied)
	if lost := int(st.Lost + st.LostSamples); copied < 10 || walked < copied-lost {
		t.Errorf("the kernel walked %d times while a process freed its memory, and copied %d times, %d lost: want as many, and 10 or more", walked, copied, lost)
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
