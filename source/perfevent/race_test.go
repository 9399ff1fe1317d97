package perfevent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source"
)

// TestRaceAll starts recordings of the whole machine while a process keeps many files mapped, maps others, and starts threads and processes:
// what is found in /proc and what the kernel reports meanwhile concern the same files. It is for -race.
func TestRaceAll(t *testing.T) {
	canRecord(t)
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root, to record the whole machine")
	}
	const files = 4000
	dir := t.TempDir()
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), make([]byte, 4096), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pid, finish := spawn(t, "maps", dir, fmt.Sprint(files))
	defer finish()
	for i := range 3 { // with small rings, which are read often
		o := Options{All: true, Frequency: 99, StackSize: 64, Duration: 200 * time.Millisecond}
		if i%3 == 2 {
			o.All, o.PIDs = false, []int{pid}
		}
		r := open(t, o)
		mapped := 0
		_, err := source.Run(context.Background(), r, source.Options{Record: func(rec *source.Record) error {
			if rec.Type == source.RecordMmap2 && filepath.Dir(string(rec.Filename)) == dir {
				mapped++
			}
			return nil
		}})
		if err != nil {
			t.Error(err)
		}
		r.Stats()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if mapped < files/2 {
			t.Errorf("%d mappings of %d files", mapped, files/2)
		}
	}
}

// TestRaceBuildIDs looks the files of this process up from two goroutines, as the drainer and whoever reads /proc do.
func TestRaceBuildIDs(t *testing.T) {
	var ids buildIDs
	processes := func(ids *buildIDs) []byte {
		s := synth{dec: source.NewDecoder(), ids: ids, owned: map[uint32]int{}}
		s.dec.AddAttr(&source.Attr{}, nil, "")
		s.process(os.Getpid(), nil)
		return s.b
	}
	records := processes(&buildIDs{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { processes(&ids) })
		wg.Go(func() {
			var rec source.Record
			dec := source.NewDecoder()
			dec.AddAttr(&source.Attr{}, nil, "")
			for b := bytes.Clone(records); len(b) > 0; {
				var raw []byte
				raw, b = cutRecord(b)
				ids.identify(raw, dec, &rec)
			}
		})
	}
	wg.Wait()
	if len(ids.by) == 0 {
		t.Errorf("no file was looked up in /proc or in %d bytes of records of process %d", len(records), os.Getpid())
	}
}
