package top

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/unwind"
)

// A window is the last intervals of a recording.
type window struct {
	size  int
	by    profile.Weight    // periods: such as the ns that a thread was blocked
	total bool              // functions come in the order of their total weight, not of their own
	parts []record.Interval // oldest first
}

// push adds an interval. The oldest goes where there are too many.
func (w *window) push(p record.Interval) {
	w.parts = append(w.parts, p)
	if n := len(w.parts) - w.size; n > 0 {
		w.parts = slices.Delete(w.parts, 0, n)
	}
}

func (w *window) reset() { w.parts = nil }

// A ranking is what a window holds, added up. Functions, stacks and processes are numbered; the orders are by falling weight.
type ranking struct {
	dur    time.Duration
	weight uint64 // of all
	totals profile.Totals
	idle   uint64
	lost   uint64

	funcs  []rankedFunc
	sums   profile.Sums // of funcs
	stacks []rankedStack
	procs  []rankedProc
	shares []share

	byFunc, byStack, byProc []int32
}

type rankedFunc struct{ name, module string }

type rankedStack struct {
	frames []int32 // functions, innermost first
	stop   unwind.Stop
	n      uint64
}

type rankedProc struct {
	pid            int32
	comm           string
	n              uint64
	samples, whole uint64
}

// A share is how often a process had a stack.
type share struct {
	stack, proc int32
	n           uint64
}

// rank adds up. Numbers are the ranking's own: nothing grows from one to the next.
func (w *window) rank() *ranking {
	r := &ranking{}
	fns, stacks, procs, shares := map[rankedFunc]int32{}, map[string]int32{}, map[int32]int32{}, map[[2]int32]int32{}
	var key []byte
	for i := range w.parts {
		part := &w.parts[i]
		p := part.Profile
		r.dur += part.Duration
		r.idle += part.Idle
		r.lost += part.Lost
		r.totals.Merge(&p.Totals)
		of := make([]int32, len(p.Funcs))
		for j := range p.Funcs {
			f := &p.Funcs[j]
			k := rankedFunc{f.Name, p.Modules[f.Module].Base()}
			id, ok := fns[k]
			if !ok {
				id = int32(len(r.funcs))
				fns[k] = id
				r.funcs = append(r.funcs, k)
			}
			of[j] = id
		}
		r.sums.Add(p, w.by, of, nil)
		for j := range p.Stacks {
			s := &p.Stacks[j]
			weight := w.by.Of(s)
			r.weight += weight
			key = append(key[:0], byte(s.Stop))
			for _, loc := range s.Frames {
				key = binary.LittleEndian.AppendUint32(key, uint32(of[p.Locs[loc].Func]))
			}
			stack, ok := stacks[string(key)]
			if !ok {
				stack = int32(len(r.stacks))
				stacks[string(key)] = stack
				frames := make([]int32, len(s.Frames))
				for k, loc := range s.Frames {
					frames[k] = of[p.Locs[loc].Func]
				}
				r.stacks = append(r.stacks, rankedStack{frames: frames, stop: s.Stop})
			}
			r.stacks[stack].n += weight
			proc, ok := procs[s.PID]
			if !ok {
				proc = int32(len(r.procs))
				procs[s.PID] = proc
				r.procs = append(r.procs, rankedProc{pid: s.PID, comm: s.Comm})
			}
			q := &r.procs[proc]
			if s.TID == s.PID {
				q.comm = s.Comm // threads may have names of their own
			}
			q.n += weight
			q.samples += s.Count
			if s.Stop == unwind.Outermost {
				q.whole += s.Count
			}
			sh, ok := shares[[2]int32{stack, proc}]
			if !ok {
				sh = int32(len(r.shares))
				shares[[2]int32{stack, proc}] = sh
				r.shares = append(r.shares, share{stack: stack, proc: proc})
			}
			r.shares[sh].n += weight
		}
	}
	r.byFunc = order(len(r.funcs), func(a, b int32) int {
		x, y, first, second := &r.funcs[a], &r.funcs[b], r.sums.Self, r.sums.Total
		if w.total {
			first, second = second, first
		}
		return cmp.Or(cmp.Compare(first[b], first[a]), cmp.Compare(second[b], second[a]), cmp.Compare(x.name, y.name), cmp.Compare(x.module, y.module))
	})
	r.byStack = order(len(r.stacks), func(a, b int32) int {
		return cmp.Or(cmp.Compare(r.stacks[b].n, r.stacks[a].n), cmp.Compare(a, b)) // of equals, the one that was seen first
	})
	r.byProc = order(len(r.procs), func(a, b int32) int {
		x, y := &r.procs[a], &r.procs[b]
		return cmp.Or(cmp.Compare(y.n, x.n), cmp.Compare(x.pid, y.pid))
	})
	return r
}

// order returns 0…n-1 sorted.
func order(n int, compare func(a, b int32) int) []int32 {
	s := make([]int32, n)
	for i := range s {
		s[i] = int32(i)
	}
	slices.SortFunc(s, compare)
	return s
}

// callers returns the functions that call one, with how many samples they did so in, in falling order. In a stack that has the
// function several times the innermost one's caller counts, if it is another function.
func (r *ranking) callers(fn int32) []weighted {
	n := map[int32]uint64{}
	for i := range r.stacks {
		s := &r.stacks[i]
		k := slices.Index(s.frames, fn)
		for k >= 0 && k < len(s.frames) && s.frames[k] == fn {
			k++
		}
		if k > 0 && k < len(s.frames) {
			n[s.frames[k]] += s.n
		}
	}
	return r.sorted(n)
}

// inside returns the functions that a process was in, by their own weight.
func (r *ranking) inside(proc int32) []weighted {
	n := map[int32]uint64{}
	for _, sh := range r.shares {
		if f := r.stacks[sh.stack].frames; sh.proc == proc && len(f) > 0 {
			n[f[0]] += sh.n
		}
	}
	return r.sorted(n)
}

type weighted struct {
	fn int32
	n  uint64
}

func (r *ranking) sorted(n map[int32]uint64) []weighted {
	var out []weighted
	for f, k := range n {
		out = append(out, weighted{f, k})
	}
	slices.SortFunc(out, func(a, b weighted) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(r.funcs[a.fn].name, r.funcs[b.fn].name), cmp.Compare(a.fn, b.fn))
	})
	return out
}
