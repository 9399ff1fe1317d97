package lab

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/unwind"
)

// A stepping is a form of unwind information that our walker can use.
type stepping struct {
	name string
	of   func(t *rows.Table) (rows.Stepper, error)
}

// steppings take part in table 3.
var steppings = []stepping{
	{"compact", func(t *rows.Table) (rows.Stepper, error) {
		b, err := compact.Emit(t)
		if err != nil {
			return nil, err
		}
		return compact.Load(b)
	}},
	{"native page", nativeStepper(native.Page)},
	{"native tree", nativeStepper(native.Tree)},
	{"rows", func(t *rows.Table) (rows.Stepper, error) { return rows.Interp{Table: t}, nil }},
}

func nativeStepper(l native.Layout) func(t *rows.Table) (rows.Stepper, error) {
	return func(t *rows.Table) (rows.Stepper, error) {
		b, err := native.Emit(t, native.Options{Layout: l, Deref: native.Slice})
		if err != nil {
			return nil, err
		}
		return native.Load(b)
	}
}

// allRegisters hides what a Stepper says of its rules: the walker then has it apply each of them to the whole state,
// as the peers do, instead of following the stack pointer, the frame pointer and the return address where that is
// enough.
type allRegisters struct{ rows.Stepper }

// steppingSpaces makes spaces whose modules are walked by s, and which are ready when a walk begins.
func steppingSpaces(t testing.TB, s stepping, all bool) *spaces {
	base := modules.Interpreted()
	ready := map[string]*unwind.Module{}
	return spacesOf(func(path, buildID string) *unwind.Module {
		if m := ready[path]; m != nil {
			return m
		}
		m := unwind.NewModule(path, buildID, func(*unwind.Module) *unwind.Code {
			of := base.Module(path, buildID).Code()
			if of == nil {
				return nil
			}
			c := *of
			if in, ok := c.Stepper.(rows.Interp); ok {
				var err error
				if c.Stepper, err = s.of(in.Table); err != nil {
					t.Errorf("%s: %v", path, err)
				}
				if all {
					c.Stepper = allRegisters{c.Stepper}
				}
			}
			return &c
		})
		m.Code()
		ready[path] = m
		return m
	})
}

// plain says whether the modules' steppers say what their rules are, so that the walker can follow plain ones itself.
func (k *spaces) plain() bool {
	c := k.module(libs+"libc.so.6", "").Code()
	if c == nil {
		return false
	}
	_, ok := c.Stepper.(interface{ Set(id uint32) rows.Set })
	return ok
}

// An entrant of table 3 is a walker that is started anew for each round.
type entrant struct {
	name  string
	start func() *contender

	first      []float64 // ns a frame, of each batch's first pass
	warm       []float64 // the same of later passes, of each round
	frames     int
	lost       int // stacks that do not reach the outermost frame
	complaints int // stacks that it says it could not finish
}

// table3 unwinds a recording, in rounds, by everything there is. The charts are of the time for a frame, and of
// libunwind's time, with its cache, over that of each in the same run. Stacks are in the
// processor's caches when they are unwound. In perf they are not: it maps the file, and a walk is the first to read a stack.
func table3(t testing.TB, file string, rounds int) (cells [][]string, chart, ratios []quantity) {
	var es []*entrant
	mine := func(s stepping, all bool, name string) {
		k := steppingSpaces(t, s, all)
		if !all && !k.plain() {
			return // the same as with all registers
		}
		e := &entrant{name: name, start: func() *contender { return walker(name, k) }}
		w := unwind.NewWalker(0)
		batches(t, file, 2000, func(snaps []oracle.Snapshot, in []*oracle.Space) {
			for i := range snaps {
				u := snapshot(&snaps[i], k.space(in[i]))
				if _, stop := w.Walk(&u, nil); stop != unwind.Outermost {
					e.lost++
					e.complaints++
				}
			}
		})
		es = append(es, e)
	}
	for _, s := range steppings {
		mine(s, true, s.name+", all registers")
		mine(s, false, s.name+", two registers")
	}
	ref := wholeChains(t, file)
	page, tree, c := ehElfs(t, file, emitNative(native.Page)), ehElfs(t, file, emitNative(native.Tree)), ehElfs(t, file, emitC("-O2"))
	for _, start := range []func(testing.TB) *oracle.Walker{
		func(t testing.TB) *oracle.Walker { return oracle.EhElf(t, "eh_elf page, from C", page) },
		func(t testing.TB) *oracle.Walker { return oracle.EhElf(t, "eh_elf tree, from C", tree) },
		func(t testing.TB) *oracle.Walker { return oracle.EhElf(t, "C source, gcc -O2", c) },
		oracle.Libunwind, oracle.LibunwindUncached, oracle.LibunwindTuned, oracle.Dwfl,
	} {
		w := start(t)
		e := &entrant{name: w.Name, start: func() *contender { return peer(t, start(t)) }}
		e.judge(t, file, w, ref)
		es = append(es, e)
	}
	for round := range rounds {
		var cs []*contender
		for i := range es {
			cs = append(cs, es[(i+round)%len(es)].start())
		}
		race(t, file, 3, true, cs)
		for i, c := range cs {
			e := es[(i+round)%len(es)]
			e.frames = c.frames
			e.first = append(e.first, c.perFrame...)
			e.warm = append(e.warm, float64(c.warm)/float64(max(c.warmFrames, 1)))
		}
	}
	cells = [][]string{{"walker", "frames", "µs in total", "ns a frame", "warm", "stacks not whole", "of these it reports", "libunwind cached ÷ this", "the same, warm"}}
	for _, r := range []struct {
		name                string
		frames, total, each int
		errors              string
	}{
		{"report: eh_elfs", 23506, 14837, 631, "1099"},
		{"report: libunwind cached", 27058, 441601, 16320, "885"},
		{"report: libunwind uncached", 27058, 671292, 24809, "885"},
	} {
		ratio := 16320 / float64(r.each)
		cells = append(cells, []string{r.name, fmt.Sprint(r.frames), fmt.Sprint(r.total), fmt.Sprint(r.each), "", r.errors, "", fmt.Sprintf("%.2f", ratio), ""})
		chart = append(chart, quantity{r.name, float64(r.each), true})
		ratios = append(ratios, quantity{r.name, ratio, true})
	}
	cached := es[slices.IndexFunc(es, func(e *entrant) bool { return e.name == "libunwind" })]
	for _, e := range es {
		each := median(e.first)
		ratio := median(cached.first) / each
		cells = append(cells, []string{e.name, fmt.Sprint(e.frames), fmt.Sprintf("%.0f", each*float64(e.frames)/1e3), fmt.Sprintf("%.1f", each), fmt.Sprintf("%.1f", median(e.warm)),
			fmt.Sprint(e.lost), fmt.Sprint(e.complaints), fmt.Sprintf("%.2f", ratio), fmt.Sprintf("%.2f", median(cached.warm)/median(e.warm))})
		chart = append(chart, quantity{e.name, each, false})
		ratios = append(ratios, quantity{e.name, ratio, false})
	}
	return cells, chart, ratios
}

// wholeChains returns, for each sample in order, the chain of the reference as perf prints addresses; nil where it is
// not whole.
func wholeChains(t testing.TB, file string) (out []*chain) {
	k := newSpaces(modules.Interpreted())
	w := unwind.NewWalker(0)
	batches(t, file, 2000, func(snaps []oracle.Snapshot, in []*oracle.Space) {
		for i := range snaps {
			u := snapshot(&snaps[i], k.space(in[i]))
			frames, stop := w.Walk(&u, nil)
			if stop != unwind.Outermost {
				out = append(out, nil)
				continue
			}
			c := &chain{}
			for n := range frames {
				c.add(uint64(frames[n].Addr()), frames[n].Mapping)
				c.tramp = append(c.tramp, n+1 < len(frames) && frames[n+1].How.Interrupted())
			}
			out = append(out, c)
		}
	})
	return out
}

// judge counts the stacks in which w does not find all frames of one that the reference finds whole, or which neither
// finds whole.
func (e *entrant) judge(t testing.TB, file string, w *oracle.Walker, ref []*chain) {
	known := told{}
	n := 0
	batches(t, file, 2000, func(snaps []oracle.Snapshot, in []*oracle.Space) {
		known.tell(t, w, in)
		chains, err := w.Walk(snaps)
		if err != nil {
			t.Fatal(err)
		}
		for i := range chains {
			if c := ref[n]; c == nil || c.prefix(chains[i].Addrs()) < len(c.addrs) {
				e.lost++
				if chains[i].Stop != "" {
					e.complaints++
				}
			}
			n++
		}
	})
}

// hackbench returns the recording of it among the others; "" where there is none.
func hackbench(t testing.TB) string {
	files := recordings(t)
	if i := slices.IndexFunc(files, func(f string) bool { return filepath.Base(f) == "hackbench.data" }); i >= 0 {
		return files[i]
	}
	return ""
}
