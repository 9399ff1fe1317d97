package random

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/shadow"
)

// version is the generator's: programs of the same seed differ between versions.
const version = 1

// An outcome is what became of a program: a line of the file of outcomes.
type outcome struct {
	Version  int
	Seed     uint64
	Program  string
	Lacks    string   `json:",omitempty"`
	Error    string   `json:",omitempty"`
	Steps    uint64   `json:",omitempty"`
	Compared uint64   `json:",omitempty"`
	Known    []string `json:",omitempty"` // names of what is permitted
	Rows     []string `json:",omitempty"` // that a permit of this package permits: its name, and the row
	Wrong    []string `json:",omitempty"`
}

// right says whether nothing is wrong, and what was permitted still is.
func (o *outcome) right() bool {
	listed := func(name string) bool {
		return slices.ContainsFunc(permits, func(k permit) bool { return k.name == name }) ||
			slices.ContainsFunc(shadow.Knowns(), func(k *shadow.Known) bool { return k.Name == name })
	}
	return len(o.Wrong) == 0 && o.Error == "" && o.Lacks == "" && !slices.ContainsFunc(o.Known, func(name string) bool { return !listed(name) })
}

// try makes, compiles and executes a seed's program in a directory of its own below dir.
func try(ctx context.Context, p *plan, dir string, steps uint64) *outcome {
	o := &outcome{Version: version, Seed: p.seed, Program: p.String()}
	dir, err := os.MkdirTemp(dir, "")
	if err != nil {
		o.Error = err.Error()
		return o
	}
	defer os.RemoveAll(dir)
	path, err := p.build(ctx, dir)
	var lacks errLacks
	if errors.As(err, &lacks) {
		o.Lacks = string(lacks)
		return o
	}
	if err != nil {
		o.Error = err.Error()
		return o
	}
	r, err := p.execute(ctx, path, steps)
	if err != nil {
		o.Error = err.Error()
	}
	o.Steps, o.Compared = r.Steps, r.Compared
	for _, f := range r.Findings {
		if f.Known != nil && !slices.Contains(o.Known, f.Known.Name) {
			o.Known = append(o.Known, f.Known.Name)
		}
	}
	text := func(f *shadow.Finding) string {
		one := *r
		one.Findings, one.Modules = []*shadow.Finding{f}, nil
		var b bytes.Buffer
		one.WriteText(&b)
		return b.String()
	}
	wrong := p.unlisted(r, func(k *permit, f *shadow.Finding) {
		if !slices.Contains(o.Known, k.name) {
			o.Known = append(o.Known, k.name)
		}
		o.Rows = append(o.Rows, k.name+": "+text(f))
	})
	for _, f := range wrong {
		o.Wrong = append(o.Wrong, text(f))
	}
	return o
}

// TestRandom executes programs of a fixed list of seeds: those whose compilers CI has.
func TestRandom(t *testing.T) {
	oracle.Long(t)
	if runtime.GOARCH != "amd64" {
		t.Skip("the flags are x86-64's")
	}
	oracle.Need(t, "csmith", "gcc-12", "g++-12", "clang-19")
	dir := t.TempDir()
	var mu sync.Mutex
	var steps uint64
	var wg sync.WaitGroup
	seeds := make(chan *plan)
	for range 2 {
		wg.Go(func() {
			for p := range seeds {
				o := try(t.Context(), p, dir, 25_000)
				mu.Lock()
				steps += o.Steps
				for _, s := range append(o.Wrong, o.Error, o.Lacks) {
					if s != "" {
						t.Errorf("%s:\n%s", o.Program, s)
					}
				}
				mu.Unlock()
			}
		})
	}
	for seed, n := uint64(1), 0; n < 40; seed++ {
		if p := newPlan(seed); p.compiler == "gcc-12" || p.compiler == "clang-19" {
			n++
			seeds <- p
		}
	}
	close(seeds)
	wg.Wait()
	t.Logf("%s instructions", profile.Comma(steps))
	if steps < 400_000 {
		t.Errorf("only %d instructions were executed", steps)
	}
}

// number returns an environment variable's number, or n.
func number(t testing.TB, name string, n uint64) uint64 {
	if s := os.Getenv(name); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return v
	}
	return n
}

// TestRandomLong executes RANDOM_PROGRAMS programs, from seed RANDOM_SEED on, for RANDOM_SECONDS at most, of RANDOM_STEPS instructions each at
// most; with RANDOM_ONLY, a regular expression, those whose plan matches. The outcomes are lines of the file RANDOM_OUTCOMES; what is there already,
// and is right, is not done again.
func TestRandomLong(t *testing.T) {
	file := os.Getenv("RANDOM_OUTCOMES")
	if file == "" {
		t.Skip("this test lacks RANDOM_OUTCOMES (make random)")
	}
	programs, first := number(t, "RANDOM_PROGRAMS", 1500), number(t, "RANDOM_SEED", 1)
	steps, seconds := number(t, "RANDOM_STEPS", 130_000), number(t, "RANDOM_SECONDS", 4*3600)
	only, err := regexp.Compile(os.Getenv("RANDOM_ONLY"))
	if err != nil {
		t.Fatal(err)
	}
	done := map[uint64]*outcome{}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var o outcome
		if json.Unmarshal([]byte(line), &o) == nil && o.Version == version && o.Program == newPlan(o.Seed).String() && o.right() {
			done[o.Seed] = &o
		}
	}
	out, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	dir := t.TempDir()
	start := time.Now()
	var mu sync.Mutex
	var wg sync.WaitGroup
	seeds := make(chan uint64)
	for range runtime.NumCPU() {
		wg.Go(func() {
			for seed := range seeds {
				o := try(t.Context(), newPlan(seed), dir, steps)
				line, err := json.Marshal(o)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				if _, err := out.Write(append(line, '\n')); err != nil {
					t.Error(err)
				}
				done[seed] = o
				if len(done)%20 == 0 {
					t.Logf("%v: %s", time.Since(start).Round(time.Second), summary(done, first, programs))
				}
				mu.Unlock()
			}
		})
	}
	end := start.Add(time.Duration(seconds) * time.Second)
	for seed := first; seed < first+programs && time.Now().Before(end); seed++ {
		mu.Lock()
		o := done[seed]
		mu.Unlock()
		if o == nil && only.MatchString(newPlan(seed).String()) {
			seeds <- seed
		}
	}
	close(seeds)
	wg.Wait()
	used, whole := map[string]bool{}, true
	for seed := first; seed < first+programs; seed++ {
		o := done[seed]
		if o == nil || o.Lacks != "" {
			whole = false
			continue
		}
		for _, s := range append(slices.Clone(o.Wrong), o.Error) {
			if s != "" {
				t.Errorf("%s:\n%s", o.Program, s)
			}
		}
		for _, name := range o.Known {
			used[name] = true
		}
	}
	for _, k := range permits {
		if !used[k.name] && programs >= 1000 && whole {
			t.Errorf("%s is permitted, but was not met", k.name)
		}
	}
	t.Log(summary(done, first, programs))
}

// summary counts outcomes.
func summary(done map[uint64]*outcome, first, n uint64) string {
	var programs, lacks, failed, wrong int
	var steps, compared uint64
	for seed, o := range done {
		switch {
		case seed < first || seed >= first+n:
		case o.Lacks != "":
			lacks++
		default:
			programs++
			steps, compared = steps+o.Steps, compared+o.Compared
			wrong += len(o.Wrong)
			if o.Error != "" {
				failed++
			}
		}
	}
	return fmt.Sprintf("%d programs, %s instructions, %s compared, %d wrong rows, %d programs failed, %d lack a compiler",
		programs, profile.Comma(steps), profile.Comma(compared), wrong, failed, lacks)
}

// TestReduce executes the program of RANDOM_ONE, a seed, and leaves out what is not needed for what is wrong. What is left is in RANDOM_DIR.
func TestReduce(t *testing.T) {
	if os.Getenv("RANDOM_ONE") == "" {
		t.Skip("this test lacks RANDOM_ONE, a seed")
	}
	steps := number(t, "RANDOM_STEPS", 130_000)
	p := newPlan(number(t, "RANDOM_ONE", 0))
	o := try(t.Context(), p, t.TempDir(), steps)
	t.Logf("%s\n%s%s%s", p, o.Lacks, o.Error, strings.Join(o.Wrong, "\n"))
	if len(o.Wrong) > 0 {
		p = p.reduce(func(q *plan) bool {
			return len(try(t.Context(), q, t.TempDir(), steps).Wrong) > 0
		})
		o = try(t.Context(), p, t.TempDir(), steps)
		t.Logf("reduced: %s, %d functions\n%s", p, p.funcs, strings.Join(o.Wrong, "\n"))
	}
	if dir := os.Getenv("RANDOM_DIR"); dir != "" {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		path, err := p.build(t.Context(), dir)
		t.Log(filepath.Join(dir, path), err)
	}
}
