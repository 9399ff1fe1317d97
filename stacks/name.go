package stacks

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// Merge merges the threads that have the same stack into the first of them.
func (p *Process) Merge() {
	same := func(a, b *Thread) bool {
		return a.Stop == b.Stop && a.Left == b.Left && a.Return == b.Return && (a.Err == nil) == (b.Err == nil) && slices.EqualFunc(a.Frames, b.Frames, func(x, y Frame) bool {
			return x.Frame == y.Frame
		})
	}
	var out []Thread
	byPC := map[string][]int{}
	for i := range p.Threads {
		t := &p.Threads[i]
		var key []byte
		for j := range t.Frames {
			key = fmt.Appendf(key, "%x ", uint64(t.Frames[j].PC))
		}
		k := string(key)
		j := slices.IndexFunc(byPC[k], func(j int) bool { return same(&out[j], t) })
		if j >= 0 {
			first := &out[byPC[k][j]]
			first.Same = append(first.Same, t.TID)
			continue
		}
		byPC[k] = append(byPC[k], len(out))
		out = append(out, *t)
	}
	p.Threads = out
}

// Name finds the names of all frames, of each module at once.
func (p *Process) Name(n profile.Namer) {
	p.Raw = false
	of := map[*unwind.Module][]*Frame{}
	for i := range p.Threads {
		for j := range p.Threads[i].Frames {
			if f := &p.Threads[i].Frames[j]; f.Mapping != nil {
				of[f.Mapping.Module] = append(of[f.Mapping.Module], f)
			}
		}
	}
	off := func(f *Frame) uint64 { return f.Mapping.FileOff(f.Place()) }
	for m, frames := range of {
		slices.SortFunc(frames, func(a, b *Frame) int { return cmp.Compare(off(a), off(b)) })
		var offs []uint64
		for _, f := range frames {
			if o := off(f); len(offs) == 0 || o != offs[len(offs)-1] {
				offs = append(offs, o)
			}
		}
		names := make([]profile.Name, len(offs))
		n.User(m, offs, names)
		k := 0
		for _, f := range frames {
			for offs[k] != off(f) {
				k++
			}
			f.Name = names[k]
		}
	}
}
