package main

import (
	"os"
	"path/filepath"
	"testing"

	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/internal/oracle"
)

// both runs for half a second and blocks for a second, in functions that say so.
const both = `
#include <time.h>
static struct timespec ms = {0, 20000000};
static double cpu(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
__attribute__((noipa)) static void spin(double s) { double end = cpu() + s; while (cpu() < end); }
__attribute__((noipa)) static void rest(void) { nanosleep(&ms, 0); }
int main(void) { for (int i = 0; i < 50; i++) { spin(0.01); rest(); } return 0; }
`

// TestAgentWaits: an agent with --off-cpu has profiles of CPU time, and others of waits, with the same labels; the directory of both is one recording of
// two events. Without it, there is CPU time only; by -e off-cpu, only waits.
func TestAgentWaits(t *testing.T) {
	oracle.Long(t)
	canWalk(t)
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	src, exe := filepath.Join(dir, "both.c"), filepath.Join(dir, "both")
	if err := os.WriteFile(src, []byte(both), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-O1", "-g", "-o", exe, src)
	for name, c := range map[string]struct {
		flags      []string
		run, waits bool
	}{"cpu": {nil, true, false}, "waits": {[]string{"-e", "off-cpu"}, false, true}, "both": {[]string{"--off-cpu"}, true, true}} {
		ring := filepath.Join(dir, "ring of "+name)
		args := append([]string{"agent", "--output", "files=" + ring, "--interval", "1s", "--listen", ""}, c.flags...)
		if c.run {
			args = append(args, "-F", "499")
		}
		runProgram(t, append(args, "--", exe)...).want(t, 0, "")
		files, err := filepath.Glob(filepath.Join(ring, "*"))
		if err != nil {
			t.Fatal(err)
		}
		ns := map[string]int64{}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			p, err := proto.ParseData(b)
			if err != nil {
				t.Fatal(err)
			}
			if len(p.SampleType) != 2 || p.SampleType[1].Unit != "nanoseconds" {
				t.Errorf("%s: %v", f, p.SampleType)
				continue
			}
			function := map[string]string{"cpu": "spin", "off-cpu": "rest"}[p.SampleType[1].Type]
			for _, s := range p.Sample {
				for _, l := range s.Location {
					for _, line := range l.Line {
						if line.Function.Name == function {
							ns[function] += s.Value[1]
						}
					}
				}
			}
		}
		if got := ns["spin"]; (got > 0) != c.run || c.run && (got < 400e6 || got > 700e6) {
			t.Errorf("%s: spin ran for %d ms of 500", name, got/1e6)
		}
		if got := ns["rest"]; (got > 0) != c.waits || c.waits && got < 950e6 {
			t.Errorf("%s: rest waited for %d ms of 1,000", name, got/1e6)
		}
		if c.run && c.waits {
			r := runProgram(t, "report", ring, "--format", "folded")
			r.want(t, 0, "")
		}
	}
	runProgram(t, "agent", "--output", "files="+dir, "--off-cpu", "--source", "perf", "-a").want(t, 2, "--off-cpu works only with --source ebpf")
}

// TestAgentMaxCPU: an agent that uses more than it may records less, says so, and the profile's time stays what the program ran for.
func TestAgentMaxCPU(t *testing.T) {
	oracle.Long(t)
	canWalk(t)
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	src, exe, ring := filepath.Join(dir, "spin.c"), filepath.Join(dir, "spin"), filepath.Join(dir, "ring")
	code := `#include <time.h>
static double cpu(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
__attribute__((noipa)) static void spin(double s) { while (cpu() < s); }
int main(void) { spin(14); return 0; }`
	if err := os.WriteFile(src, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-O1", "-g", "-o", exe, src)
	r := runProgram(t, "agent", "--output", "files="+ring, "--interval", "1s", "--listen", "", "--max-cpu", "0.01%", "-F", "997", "--", exe)
	r.want(t, 0, `msg="records at another pace" one-of=[48]\b.* max-cpu=0\.01%`)
	files, err := filepath.Glob(filepath.Join(ring, "*"))
	if err != nil {
		t.Fatal(err)
	}
	var samples, ns int64
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		p, err := proto.ParseData(b)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range p.Sample {
			samples, ns = samples+s.Value[0], ns+s.Value[1]
		}
	}
	if ns < 13e9 || ns > 15e9 || samples > 12000 {
		t.Errorf("%d samples of %.3f s, of 14", samples, float64(ns)/1e9)
	}
	t.Logf("%d samples of %.3f s", samples, float64(ns)/1e9)
	runProgram(t, "agent", "--output", "files="+dir, "--max-cpu", "1", "-a").want(t, 2, `--max-cpu takes a share such as 1%, not "1"`)
}
