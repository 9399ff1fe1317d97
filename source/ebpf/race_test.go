package ebpf

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfevent"
)

// TestRaceAll starts recordings of the whole machine while a process keeps many files mapped, maps others, and starts threads, processes
// and programs. It is for -race; without, the runtime may notice, too.
func TestRaceAll(t *testing.T) {
	oracle.Need(t, "gcc")
	load(t, Options{}).Close()
	const files = 4000
	dir := t.TempDir()
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, 4096), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	work := filepath.Join(t.TempDir(), "work")
	oracle.Run(t, "gcc", "-O1", "-pthread", "-o", work, "../perfevent/testdata/work.c")
	cmd := exec.Command(work, "maps", dir, fmt.Sprint(files))
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		p := load(t, Options{Comm: func(comm string) bool { return comm != "nobody" }})
		st := record(t, p, perfevent.Options{All: true, Duration: 300 * time.Millisecond}, func(s *source.Sample) { p.Stats() })
		if st.Samples == 0 {
			t.Errorf("0 samples: %+v", st)
		}
		p.Close()
	}
}
