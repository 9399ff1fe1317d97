package ebpf

import (
	"context"
	"os/exec"
	"testing"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfevent"
)

// TestShortProcesses: a command that starts many short processes has as many samples as they used processor time, whoever walks; and nobody
// else has any.
func TestShortProcesses(t *testing.T) {
	load(t, Options{}).Close()
	other := exec.Command("sh", "-c", "while :; do :; done")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	for _, walks := range []bool{false, true} {
		o := perfevent.Options{Event: "cpu-clock", Frequency: 1999, Command: []string{"sh", "-c", "i=0; while [ $i -lt 400 ]; do /bin/true; i=$((i+1)); done"}}
		if walks {
			o.Program = load(t, Options{})
		}
		r, err := perfevent.Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		comms := map[string]int{}
		st, err := source.Run(context.Background(), r, source.Options{Mods: modules.New().Module, Ours: walks, Sample: func(s *source.Sample) error {
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
		if err != nil {
			t.Fatal(err)
		}
		used := (state.UserTime() + state.SystemTime()).Seconds() * 1999
		t.Logf("in the kernel %v: %d samples of %.0f, %v", walks, st.Samples, used, comms)
		if n := float64(st.Samples + st.Lost + st.LostSamples); n < 0.75*used || n > 1.25*used {
			t.Errorf("in the kernel %v: %d samples and %d lost, for processor time of %.0f", walks, st.Samples, st.Lost+st.LostSamples, used)
		}
		if len(comms) > 2 || comms["true"] == 0 {
			t.Errorf("samples of %v", comms)
		}
	}
}
