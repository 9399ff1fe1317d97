package pprof

import (
	"slices"

	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/profile"
)

// locations gives out the mappings, functions and locations of a profile. A frame and the calls that were inlined in
// it are one location with a line for each, the innermost first. Locations that differ only in how they were found are one,
// and so is a function whose code is from several files several.
type locations struct {
	p   *profile.Profile
	out *proto.Profile

	user, kernel []*proto.Mapping // by mapping, and by module
	unnamed      []bool           // by module: its locations have no lines
	place        []int32          // by location: the first that differs in nothing but how it was found
	funcs        map[funcFile]*proto.Function
	nodes        map[step]*node
	last         []group // by location: what it was when it was last the frame, so that it is looked up once
}

// A group is a frame, the last, and the calls inlined in it.
type group struct {
	frames []uint32
	loc    *proto.Location
}

type funcFile struct {
	fn   int32
	file uint32
}

// A node is a frame and some of the calls inlined in it, from the outside in.
type node struct {
	loc *proto.Location // nil: no stack has just these
}

// A step leads from a node, nil in front of the frame itself, to the next call within.
type step struct {
	outer *node
	place int32
}

// unname asks which modules' locations have no lines.
func (x *locations) unname(unnamed func(*profile.Module) bool) {
	x.unnamed = make([]bool, len(x.p.Modules))
	for i := range x.p.Modules {
		x.unnamed[i] = unnamed != nil && unnamed(&x.p.Modules[i])
	}
}

// mappings gives out the mappings of p, and one more for each module of the kernel. The first is the executable with
// the most samples, as pprof expects.
func (x *locations) mappings() {
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
	add := func(module int32, v *proto.Mapping) *proto.Mapping {
		v.ID = uint64(len(x.out.Mapping) + 1)
		v.HasFunctions = !x.unnamed[module]
		x.out.Mapping = append(x.out.Mapping, v)
		return v
	}
	x.user = make([]*proto.Mapping, len(p.Mappings))
	x.kernel = make([]*proto.Mapping, len(p.Modules))
	user := func(i int) {
		k := &p.Mappings[i]
		mod := &p.Modules[k.Module]
		x.user[i] = add(k.Module, &proto.Mapping{Start: k.Lo, Limit: k.Hi, Offset: k.Off, File: valid(mod.Path), BuildID: mod.BuildID})
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
			x.kernel[i] = add(int32(i), &proto.Mapping{Start: kernelStart, Limit: 1<<64 - 1, Offset: kernelStart, File: valid(mod.Path), BuildID: mod.BuildID})
		}
	}
}

// places finds the locations that are one to pprof.
func (x *locations) places() {
	seen := map[profile.Loc]int32{}
	x.place = make([]int32, len(x.p.Locs))
	x.last = make([]group, len(x.p.Locs))
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
func (x *locations) stack(frames []uint32) []*proto.Location {
	out := make([]*proto.Location, 0, len(frames))
	for len(frames) > 0 {
		n := 1
		for n < len(frames) && x.p.Locs[frames[n-1]].Inlined {
			n++
		}
		group := frames[:n]
		if x.unnamed[x.p.Locs[frames[n-1]].Module] {
			group = frames[n-1 : n]
		}
		out = append(out, x.location(group))
		frames = frames[n:]
	}
	return out
}

// location returns the location of a group.
func (x *locations) location(frames []uint32) *proto.Location {
	g := &x.last[frames[len(frames)-1]]
	if !slices.Equal(g.frames, frames) {
		*g = group{frames, x.find(frames)}
	}
	return g.loc
}

func (x *locations) find(group []uint32) *proto.Location {
	var at *node
	for _, f := range slices.Backward(group) {
		next := step{at, x.place[f]}
		if at = x.nodes[next]; at == nil {
			at = &node{}
			x.nodes[next] = at
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
	at.loc = &proto.Location{ID: uint64(len(x.out.Location) + 1), Mapping: m, Address: l.Addr}
	for _, f := range group {
		if x.unnamed[l.Module] {
			break
		}
		at.loc.Line = append(at.loc.Line, x.line(&x.p.Locs[f]))
	}
	if m != nil {
		m.HasFilenames = m.HasFilenames || l.File != 0 && m.HasFunctions
		m.HasLineNumbers = m.HasLineNumbers || l.Line != 0 && m.HasFunctions
		m.HasInlineFrames = m.HasInlineFrames || len(group) > 1
	}
	x.out.Location = append(x.out.Location, at.loc)
	return at.loc
}

func (x *locations) line(l *profile.Loc) proto.Line {
	k := funcFile{l.Func, l.File}
	fn := x.funcs[k]
	if fn == nil {
		f := &x.p.Funcs[l.Func]
		linkage := f.Linkage
		if linkage == "" {
			linkage = f.Name
		}
		fn = &proto.Function{ID: uint64(len(x.out.Function) + 1), Name: valid(f.Name), SystemName: valid(linkage), Filename: valid(x.p.File(l))}
		x.funcs[k] = fn
		x.out.Function = append(x.out.Function, fn)
	}
	return proto.Line{Function: fn, Line: int64(l.Line), Column: int64(l.Column)}
}
