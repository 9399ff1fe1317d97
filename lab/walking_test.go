package lab

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/symbol"
	"github.com/unspool/unspool/unwind"
)

// TestWalking records programs whose stacks are hard at one place, by the kernel's walk and by copies of stacks. Their true chains
// are known: what they call is in workload/shapes.c.
func TestWalking(t *testing.T) {
	const start = "(__libc_start_call_main;__libc_start_main[^;]*;_start)"
	c := func(cc, name string, flags ...string) func(*testing.T) []string {
		return func(t *testing.T) []string {
			oracle.Need(t, cc)
			return []string{compiled(t, cc, "shapes.c", append([]string{"-O2", "-pthread"}, flags...)...), name}
		}
	}
	for _, s := range []struct {
		name   string
		cmd    func(*testing.T) []string
		of     string // the samples that count have this
		chain  string
		copies bool // a copy has all that is needed
	}{
		// A leaf of frame pointers is mostly a pop and a ret.
		{"frame pointers, clang", c("clang-19", "", "-fno-omit-frame-pointer"), "leaf", "leaf;work;main;" + start, true},
		{"frame pointers, gcc", c("gcc", "", "-fno-omit-frame-pointer"), "leaf", "leaf;work;main;" + start, true},
		{"frame pointers only", c("clang-19", "", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables"), "leaf", "leaf;work;main;" + start, true},
		// Where the system call returns, once in the thread that has called, and once in the new one.
		{"threads", c("gcc", "threads"), "(__)?clone3?", "(__)?clone3?(;__clone_internal;create_thread;pthread_create[^;]*;threads;main;" + start + ")?", true},
		{"makecontext", c("gcc", "coroutine"), "work", "(.*;)?work;coroutine;__start_context", true},
		// What lies before the place is not in memory: a copy is walked instead.
		{"makecontext, cold", c("gcc", "cold", "-fno-omit-frame-pointer"), "work", "(.*;)?work;coroutine;__start_context", true},
		{"a handler", c("gcc", "signal"), "work", "(.*;)?work;handler;__restore_rt;(.*;)?raise;signals;main;" + start, true},
		{"stacks of one's own", c("gcc", "stacks"), "work", "(.*;)?work;inner;on_stack;middle;on_stack;main;" + start, false},
		{"Go in the vDSO", func(t *testing.T) []string { return []string{goBuildFile(t, "workload/testdata/now/now.go")} }, "main.now",
			"(.*;)?main.now;main.main;runtime.main;runtime.goexit", false},
	} {
		t.Run(s.name, func(t *testing.T) {
			cmd := s.cmd(t)
			of, chain := regexp.MustCompile("^("+s.of+")$"), regexp.MustCompile("^"+s.chain+"$")
			for _, kernel := range []bool{true, false} {
				if !kernel && !s.copies {
					continue
				}
				n, right, wrong := 0, 0, map[string]int{}
				files := symbol.New(symbol.Options{})
				defer files.Close()
				event := ""
				if s.name == "threads" {
					event = "syscalls:sys_exit_clone3"
				}
				for try := 0; n < 50 && try < 10; try++ { // how often a sample is in so short a function depends on the processor
					record(t, kernel, event, cmd, func(x *source.Sample) {
						names := chainOf(files, x)
						if kernel && s.name != "makecontext, cold" && x.Record.ID != source.WalkedID || !slices.ContainsFunc(names, of.MatchString) {
							return
						}
						n++
						if text := strings.Join(names, ";"); x.Stop == unwind.Outermost && chain.MatchString(text) {
							right++
						} else {
							wrong[fmt.Sprint(text, " ", x.Stop)]++
						}
					})
				}
				t.Logf("kernel %v: %d of %d chains are right", kernel, right, n)
				if n < 50 {
					t.Errorf("kernel %v: %d samples", kernel, n)
				}
				if right < n {
					for w, k := range wrong {
						t.Errorf("kernel %v: %d × %s", kernel, k, w)
					}
				}
			}
		})
	}
}

// chainOf returns the names of a sample's frames, innermost first.
func chainOf(files *symbol.Resolver, s *source.Sample) (names []string) {
	for i := range s.User {
		f, name := &s.User[i], "?"
		if f.Mapping != nil {
			table := files.Module(f.Mapping.Module.Path, "")
			if v, ok := table.OffToVaddr(f.Mapping.FileOff(f.Addr())); ok {
				if sym, ok := table.Lookup(v); ok {
					name = strings.TrimSuffix(sym.Name, ".abi0")
				}
			}
		}
		names = append(names, name)
	}
	return names
}

// record records an event of a command, by the kernel's walk or by copies.
func record(t *testing.T, kernel bool, event string, cmd []string, each func(*source.Sample)) {
	t.Helper()
	mods := modules.New()
	o := perfevent.Options{Command: cmd, Event: event, Duration: 10 * time.Second}
	if event == "" {
		o.Frequency = 997
	}
	if kernel {
		p := loadKernel(t, ebpf.Options{Mods: mods.Module})
		defer p.Close()
		o.Program = p
	}
	rec, err := quietly(func() (*perfevent.Recorder, error) { return perfevent.Open(t.Context(), o) })
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Close()
	if _, err := source.Run(t.Context(), rec, source.Options{Mods: mods.Module, Ours: kernel, Sample: func(s *source.Sample) error {
		each(s)
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
}
