package main

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/internal/oracle"
)

// TestAgentRestart: an agent that is ended and started again, as systemd restarts it, records with a gap of at most two seconds. A busy machine
// lengthens the gap, so one of ten counts.
func TestAgentRestart(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "sh")
	ring, cache := filepath.Join(t.TempDir(), "ring"), t.TempDir()
	spinner := exec.Command("sh", "-c", "while :; do :; done")
	if err := spinner.Start(); err != nil {
		t.Fatal(err)
	}
	defer spinner.Wait()
	defer spinner.Process.Kill()
	profiles := func() []string {
		files, err := filepath.Glob(filepath.Join(ring, "unspool-*-sh.pb.gz"))
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	type interval struct{ began, ended int64 }
	// intervals are those of the profiles, in order.
	intervals := func() (all []interval) {
		for _, name := range profiles() {
			f, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			p, err := proto.Parse(f)
			if f.Close(); err != nil {
				t.Fatal(err)
			}
			all = append(all, interval{p.TimeNanos, p.TimeNanos + p.DurationNanos})
		}
		slices.SortFunc(all, func(a, b interval) int { return cmp.Compare(a.began, b.began) })
		return slices.CompactFunc(all, func(a, b interval) bool { return a.began == b.began }) // others' shells live in other places
	}
	var gaps []time.Duration
	for range 10 {
		c := program(t, "agent", "--output", "files="+ring, "--interval", "1s", "--listen", "", "-F", "99")
		c.Env = append(c.Env, "UNSPOOL_CACHE="+cache)
		wait := begin(t, c)
		before := intervals()
		files := len(profiles())
		until(t, "a profile of the program", func() bool { return len(profiles()) > files })
		c.Process.Signal(syscall.SIGTERM)
		if r := wait(); r.status != 0 && r.status != 128+int(syscall.SIGTERM) {
			t.Fatalf("status %d\n%s", r.status, r.stderr)
		}
		all := intervals()
		for i, in := range all[1:] {
			if overlap := time.Duration(all[i].ended - in.began); overlap > time.Millisecond { // the clock may be slewed
				t.Errorf("an interval begins %v before the end of the one before", overlap)
			}
		}
		if n := len(before); n > 0 {
			gaps = append(gaps, time.Duration(all[n].began-all[n-1].ended))
			if gaps[len(gaps)-1] <= 2*time.Second {
				t.Logf("gaps of %v", gaps)
				return
			}
		}
	}
	t.Errorf("all restarts leave gaps: %v", gaps)
}
