package report

import (
	"slices"

	pprof "github.com/google/pprof/profile"

	"github.com/unspool/unspool/profile"
)

// pprofLocations gives out the mappings, functions and locations of a profile. A frame and the calls that were inlined in
// it are one location with a line for each, the innermost first. Locations that differ only in how they were found are one,
// and so is a function whose code is from several files several.
type pprofLocations struct {
	p   *profile.Profile
	out *pprof.Profile

	user, kernel []*pprof.Mapping // by mapping, and by module
	place        []int32          // by location: the first that differs in nothing but how it was found
	funcs        map[funcFile]*pprof.Function
	nodes        map[pprofStep]*pprofNode
	last         []pprofGroup // by location: what it was when it was last the frame, so that it is looked up once
}

// A pprofGroup is a frame, the last, and the calls inlined in it.
type pprofGroup struct {
	frames []uint32
	loc    *pprof.Location
}

type funcFile struct {
	fn   int32
	file uint32
}

// A pprofNode is a frame and some of the calls inlined in it, from the outside in.
type pprofNode struct {
	loc *pprof.Location // nil: no stack has just these
}

// A pprofStep leads from a node, nil in front of the frame itself, to the next call within.
type pprofStep struct {
	outer *pprofNode
	place int32
}

// mappings gives out the mappings of p, and one more for each module of the kernel. The first is the executable with
// the most samples, as pprof expects.
func (x *pprofLocations) mappings() {
	p := x.p
	weight := make([]uint64, len(p.Mappings))
	used := make([]bool, len(p.Modules))
	for i := range p.Stacks {
		for _, f := range p.Stacks[i].Frames {
			l := &p.Locs[f]
			used[l.Module] = true
			if l.Mapping >= 0 {
				weight[l.Mapping] += p.Stacks[i].Count
			}
		}
	}
	main := -1
	for i := range p.Mappings {
		if isExecutable(&p.Modules[p.Mappings[i].Module]) && (main < 0 || weight[i] > weight[main]) {
			main = i
		}
	}
	add := func(v *pprof.Mapping) *pprof.Mapping {
		v.ID = uint64(len(x.out.Mapping) + 1)
		v.HasFunctions = true
		x.out.Mapping = append(x.out.Mapping, v)
		return v
	}
	x.user = make([]*pprof.Mapping, len(p.Mappings))
	x.kernel = make([]*pprof.Mapping, len(p.Modules))
	user := func(i int) {
		k := &p.Mappings[i]
		mod := &p.Modules[k.Module]
		x.user[i] = add(&pprof.Mapping{Start: k.Lo, Limit: k.Hi, Offset: k.Off, File: utf8Name(mod.Path), BuildID: mod.BuildID})
	}
	if main >= 0 {
		user(main)
	}
	for i := range p.Mappings {
		if i != main {
			user(i)
		}
	}
	for i := range p.Modules {
		if mod := &p.Modules[i]; mod.Kernel && used[i] {
			x.kernel[i] = add(&pprof.Mapping{Start: kernelStart, Limit: 1<<64 - 1, Offset: kernelStart, File: utf8Name(mod.Path), BuildID: mod.BuildID})
		}
	}
}

// places finds the locations that are one to pprof.
func (x *pprofLocations) places() {
	seen := map[profile.Loc]int32{}
	x.place = make([]int32, len(x.p.Locs))
	x.last = make([]pprofGroup, len(x.p.Locs))
	for i, l := range x.p.Locs {
		l.How = 0
		first, ok := seen[l]
		if !ok {
			first = int32(i)
			seen[l] = first
		}
		x.place[i] = first
	}
}

// stack returns a stack's locations.
func (x *pprofLocations) stack(frames []uint32) []*pprof.Location {
	out := make([]*pprof.Location, 0, len(frames))
	for len(frames) > 0 {
		n := 1
		for n < len(frames) && x.p.Locs[frames[n-1]].Inlined {
			n++
		}
		out = append(out, x.location(frames[:n]))
		frames = frames[n:]
	}
	return out
}

// location returns the location of a group.
func (x *pprofLocations) location(group []uint32) *pprof.Location {
	g := &x.last[group[len(group)-1]]
	if !slices.Equal(g.frames, group) {
		*g = pprofGroup{group, x.find(group)}
	}
	return g.loc
}

func (x *pprofLocations) find(group []uint32) *pprof.Location {
	var at *pprofNode
	for _, f := range slices.Backward(group) {
		step := pprofStep{at, x.place[f]}
		if at = x.nodes[step]; at == nil {
			at = &pprofNode{}
			x.nodes[step] = at
		}
	}
	if at.loc != nil {
		return at.loc
	}
	l := &x.p.Locs[group[len(group)-1]]
	m := x.kernel[l.Module]
	if l.Mapping >= 0 {
		m = x.user[l.Mapping]
	}
	at.loc = &pprof.Location{ID: uint64(len(x.out.Location) + 1), Mapping: m, Address: l.Addr}
	for _, f := range group {
		at.loc.Line = append(at.loc.Line, x.line(&x.p.Locs[f]))
	}
	if m != nil {
		m.HasFilenames = m.HasFilenames || l.File != 0
		m.HasLineNumbers = m.HasLineNumbers || l.Line != 0
		m.HasInlineFrames = m.HasInlineFrames || len(group) > 1
	}
	x.out.Location = append(x.out.Location, at.loc)
	return at.loc
}

func (x *pprofLocations) line(l *profile.Loc) pprof.Line {
	k := funcFile{l.Func, l.File}
	fn := x.funcs[k]
	if fn == nil {
		f := &x.p.Funcs[l.Func]
		linkage := f.Linkage
		if linkage == "" {
			linkage = f.Name
		}
		fn = &pprof.Function{ID: uint64(len(x.out.Function) + 1), Name: utf8Name(f.Name), SystemName: utf8Name(linkage), Filename: utf8Name(x.p.File(l))}
		x.funcs[k] = fn
		x.out.Function = append(x.out.Function, fn)
	}
	return pprof.Line{Function: fn, Line: int64(l.Line), Column: int64(l.Column)}
}
