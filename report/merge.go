package report

import (
	"slices"

	"github.com/unspool/unspool/profile"
)

// merge returns a profile of the stacks of two, those of the second from index split on. Functions of one name in modules of
// one path are one: builds differ, and so do addresses. Its totals are those of both.
func merge(a, b *profile.Profile) (p *profile.Profile, split int) {
	p = &profile.Profile{Info: b.Info, Files: []string{""}, Totals: a.Totals}
	modules, funcs := map[string]int32{}, map[mergedFunc]int32{}
	for _, in := range []*profile.Profile{a, b} {
		module, fn := make([]int32, len(in.Modules)), make([]int32, len(in.Funcs))
		for i, m := range in.Modules {
			id, ok := modules[m.Path]
			if !ok {
				id = int32(len(p.Modules))
				modules[m.Path] = id
				m.BuildID = ""
				p.Modules = append(p.Modules, m)
			}
			module[i] = id
		}
		for i, f := range in.Funcs {
			f.Module = module[f.Module]
			k := mergedFunc{f.Name, f.Module}
			id, ok := funcs[k]
			if !ok {
				id = int32(len(p.Funcs))
				funcs[k] = id
				p.Funcs = append(p.Funcs, f)
			}
			fn[i] = id
		}
		locs := uint32(len(p.Locs))
		for _, l := range in.Locs {
			l.Func, l.Module, l.Mapping, l.File = fn[l.Func], module[l.Module], -1, 0
			p.Locs = append(p.Locs, l)
		}
		split = len(p.Stacks)
		for _, s := range in.Stacks {
			s.Frames = slices.Clone(s.Frames)
			for i := range s.Frames {
				s.Frames[i] += locs
			}
			p.Stacks = append(p.Stacks, s)
		}
	}
	t := &p.Totals
	t.Samples += b.Totals.Samples
	t.Period += b.Totals.Period
	t.Frames += b.Totals.Frames
	for i, n := range b.Totals.Stops {
		t.Stops[i] += n
	}
	for i, n := range b.Totals.Hows {
		t.Hows[i] += n
	}
	t.NoStops = t.NoStops && b.Totals.NoStops
	return p, split
}

type mergedFunc struct {
	name   string
	module int32
}
