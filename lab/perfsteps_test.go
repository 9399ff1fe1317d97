package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/store"
)

// storedCode returns a cache that has the tables and the machine code of a recording's modules.
func storedCode(t testing.TB, file string) string {
	dir := storedTables(t, file)
	kept, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	for _, path := range modulesOf(t, file) {
		if img, err := module.OpenMapped(path); img != nil && err == nil {
			kept.Native(img, native.Options{Layout: native.Page, Deref: native.Callback})
			img.Close()
		}
	}
	return dir
}

// walks are what one run of perf script says of its walks: times are in ns.
type walks struct {
	steps, walks, errors, calls int
	all, program                float64 // in unw_init_remote and unw_step; of this, in perf's call-backs, where these are measured
}

// walksIn runs perf script on a recording with workload/steps.c.
func walksIn(t testing.TB, file string, env []string) (w walks) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "steps")
	cmd := exec.Command("perf", "script", "--no-inline", "-i", file)
	cmd.Env = append(env, "STEPS="+out)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(b), "steps %d %f walks %d errors %d calls %d %f", &w.steps, &w.all, &w.walks, &w.errors, &w.calls, &w.program); err != nil {
		t.Fatalf("%q: %v", b, err)
	}
	return w
}

// orNone writes a number of which 0 is an answer.
func orNone(n int) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprint(n)
}

// insidePerf measures the walks of stock perf with libunwind and with the drop-in, in turns: the report's own experiment. What others do on the
// machine only adds time, so the least of the rounds counts.
func insidePerf(t testing.TB, files []string, rounds int) (cells [][]string, chart, ratios []quantity) {
	lib := dropIn(t)
	shim, tuned := gcc(t, "steps.c", "-shared", "-fPIC", "-ldl"), gcc(t, "tuned.c", "-shared", "-fPIC", "-ldl")
	cells = [][]string{{"recording", "stepper", "frames", "errors", "µs in total", "ns a frame", "call-backs a frame", "ns in call-backs", "ns without them", "libunwind cached ÷ this", "the same without call-backs"}}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".data")
		cache := storedCode(t, file)
		by := func(stepper string, more ...string) []string {
			return plainEnv(append(more, "LD_PRELOAD="+shim, "LD_LIBRARY_PATH="+lib, "UNSPOOL_CACHE="+cache, "UNSPOOL_STEPPER="+stepper)...)
		}
		type row struct {
			name        string
			env         []string
			all, rest   float64 // the least, in ns: of both; without call-backs
			w           walks
			calls, prog float64
		}
		reads := filepath.Join(t.TempDir(), "reads")
		rows := []*row{
			{name: "libunwind cached", env: plainEnv("LD_PRELOAD=" + shim)},
			{name: "libunwind uncached", env: plainEnv("LD_PRELOAD="+shim, "STEPS_UNCACHED=1")},
			{name: "libunwind tuned", env: plainEnv("LD_PRELOAD=" + shim + " " + tuned)},
			{name: "rules", env: by("rules")},
			{name: "tables", env: by("table")},
			{name: "machine code", env: by("native")},
			{name: "machine code, strict", env: by("native", "UNSPOOL_STRICT=1")},
			{name: "machine code, uncached", env: by("native", "STEPS_UNCACHED=1")},
			{name: "the reads alone", env: plainEnv("LD_PRELOAD="+shim, "STEPS_REPLAY="+reads)},
		}
		walksIn(t, file, by("table", "STEPS_NOTE="+reads))
		for round := range rounds {
			for i := range rows {
				r := rows[(i+round)%len(rows)]
				w := walksIn(t, file, r.env)
				if round == 0 || w.all < r.all {
					r.all, r.w = w.all, w
				}
				if r.name == "the reads alone" {
					continue // nothing is without the call-backs
				}
				w = walksIn(t, file, append(slices.Clone(r.env), "STEPS_APART=1"))
				if rest := w.all - w.program; round == 0 || rest < r.rest {
					r.rest = rest
				}
				if round == 0 || w.program < r.prog {
					r.prog, r.calls = w.program, float64(w.calls)
				}
			}
		}
		per := func(r *row, v float64) float64 { return v / float64(max(r.w.steps, 1)) }
		base := rows[0]
		for _, r := range rows {
			ratio, rest := per(base, base.all)/per(r, r.all), per(base, base.rest)/per(r, r.rest)
			line := []string{name, r.name, fmt.Sprint(r.w.steps), orNone(r.w.errors), fmt.Sprintf("%.0f", r.all/1e3), fmt.Sprintf("%.1f", per(r, r.all)),
				fmt.Sprintf("%.2f", per(r, r.calls)), fmt.Sprintf("%.1f", per(r, r.prog)), fmt.Sprintf("%.1f", per(r, r.rest)), fmt.Sprintf("%.2f", ratio), fmt.Sprintf("%.2f", rest)}
			if r.rest == 0 {
				line[6], line[7], line[8], line[10] = "", "", "", ""
			}
			cells = append(cells, line)
			if file == files[0] {
				chart = append(chart, quantity{"in perf: " + r.name, per(r, r.all), false})
				ratios = append(ratios, quantity{"in perf: " + r.name, ratio, false})
			}
		}
	}
	return cells, chart, ratios
}

// perfFiles are the recordings that perf's own walks are measured on, the report's first.
func perfFiles(t testing.TB) (files []string) {
	for _, name := range []string{"hackbench", "gxx", "python", "openssl"} {
		for _, f := range recordings(t) {
			if filepath.Base(f) == name+".data" {
				files = append(files, f)
			}
		}
	}
	return files
}

// TestInsidePerf measures the walks of stock perf in one recording once, and finds no error and as many frames by machine code as by rules.
func TestInsidePerf(t *testing.T) {
	oracle.Full(t)
	oracle.Need(t, "perf", "gcc", "make")
	files := perfFiles(t)
	if len(files) == 0 {
		oracle.Lacks(t, "a recording of hackbench, gxx, python or openssl")
	}
	cells, _, _ := insidePerf(t, files[:1], 1)
	t.Logf("\n%s", table(cells))
	frames := map[string]string{}
	for _, c := range cells[1:] {
		if c[1] == "rules" {
			frames[c[0]] = c[2] + " frames, errors: " + c[3]
		}
	}
	for _, c := range cells[1:] {
		if got := c[2] + " frames, errors: " + c[3]; (c[1] == "tables" || c[1] == "machine code" || c[1] == "the reads alone") && got != frames[c[0]] {
			t.Errorf("%s, %s:\n got %s\nwant %s, as by rules", c[0], c[1], got, frames[c[0]])
		}
	}
}
