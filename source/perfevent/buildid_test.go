package perfevent

import (
	"context"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// TestOtherRecorder holds that while the whole machine is recorded, perf's recordings are what they are without: it crashes
// where its mapping records are marked as if they had build IDs.
func TestOtherRecorder(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "perf")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root, to record the whole machine")
	}
	w := work(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, err := Open(ctx, Options{All: true, Frequency: 99})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ended := make(chan error, 1)
	ids := map[string]string{} // build IDs that our records have
	go func() {
		_, err := source.Run(context.Background(), r, source.Options{
			Mods: func(path, id string) *unwind.Module { return unwind.NewModule(path, id, nil) },
			Record: func(rec *source.Record) error {
				if rec.Type == source.RecordMmap2 && len(rec.BuildID) > 0 {
					ids[string(rec.Filename)] = hex.EncodeToString(rec.BuildID)
				}
				return nil
			},
		})
		ended <- err
	}()
	file := filepath.Join(t.TempDir(), "perf.data")
	if out, err := exec.Command("perf", "record", "-q", "-e", "cpu-clock", "-o", file, "--", w, "spin", "0.2").CombinedOutput(); err != nil {
		t.Errorf("perf record: %v\n%s", err, out)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	out, err := exec.Command("perf", "script", "-i", file, "-F", "pid,time", "--show-mmap-events").Output()
	if err != nil {
		t.Error(err)
	}
	if !strings.Contains(string(out), filepath.Base(w)) {
		t.Errorf("perf has not seen the program's mapping:\n%.2000s", out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "PERF_RECORD_MMAP2") && strings.Contains(line, "<") {
			t.Errorf("a build ID in a record that perf did not ask for one in: %s", line)
		}
	}
	note, err := exec.Command("readelf", "-n", w).Output()
	if err != nil {
		t.Fatal(err)
	}
	if id := ids[w]; id == "" || !strings.Contains(string(note), id) {
		t.Errorf("%s: build ID %q in our records, in the file\n%s", w, id, note)
	}
}
