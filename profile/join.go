package profile

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// Join returns a profile with the stacks of now and, from index split on, those of before, for a comparison. A function of before is one of
// now if it has the same name and their modules match: builds differ, and so do directories and versions (see matchModules), and versions of
// commands (see matchComms). The other facts about the recording are now's; totals are those of both.
func Join(now, before *Profile) (p *Profile, split int) {
	q := *now
	p, split = &q, len(now.Stacks)
	p.Modules = slices.Clip(now.Modules)
	p.Mappings = slices.Clip(now.Mappings)
	p.Funcs = slices.Clip(now.Funcs)
	p.Files = slices.Clip(now.Files)
	p.Locs = slices.Clip(now.Locs)
	p.Stacks = slices.Clip(now.Stacks)
	p.Events = slices.Clone(now.Events)

	module := matchModules(now.Modules, before.Modules)
	for i, m := range before.Modules {
		if module[i] < 0 {
			module[i] = int32(len(p.Modules))
			p.Modules = append(p.Modules, m)
		}
	}

	first := map[string]int32{} // of the modules of a path: a file can be replaced while it is recorded
	for i := range p.Modules {
		if _, ok := first[p.Modules[i].Path]; !ok {
			first[p.Modules[i].Path] = int32(i)
		}
	}
	key := func(f *Func) funcKey { return funcKey{f.Name, first[p.Modules[f.Module].Path]} }
	funcs := make(map[funcKey]int32, len(now.Funcs))
	for i := range now.Funcs {
		k := key(&now.Funcs[i])
		if _, ok := funcs[k]; !ok {
			funcs[k] = int32(i)
		}
	}
	function := make([]int32, len(before.Funcs))
	for i, f := range before.Funcs {
		old := &before.Modules[f.Module]
		f.Module = module[f.Module]
		if !f.Named { // it is called after its module: "[libx.so.1]", "[libx.so.1+0x1230]"
			if rest, ok := strings.CutPrefix(f.Name, strings.TrimSuffix(bracket(old.Base(), ""), "]")); ok && (rest == "]" || strings.HasPrefix(rest, "+")) {
				f.Name = strings.TrimSuffix(bracket(p.Modules[f.Module].Base(), ""), "]") + rest
			}
		}
		k := key(&f)
		id, ok := funcs[k]
		if !ok {
			id = int32(len(p.Funcs))
			funcs[k] = id
			p.Funcs = append(p.Funcs, f)
		}
		function[i] = id
	}

	events := make([]int32, len(before.Events))
	for i, e := range before.Events {
		at := slices.IndexFunc(p.Events, func(x Event) bool { return x.Name == e.Name })
		if at < 0 {
			at = len(p.Events)
			p.Events = append(p.Events, e)
		}
		events[i] = int32(at)
	}

	mappings, files, locs := int32(len(p.Mappings)), uint32(len(p.Files)), uint32(len(p.Locs))
	for _, m := range before.Mappings {
		m.Module = module[m.Module]
		p.Mappings = append(p.Mappings, m)
	}
	p.Files = append(p.Files, before.Files...)
	for _, l := range before.Locs {
		l.Func, l.Module = function[l.Func], module[l.Module]
		if l.Mapping >= 0 {
			l.Mapping += mappings
		}
		if l.File != 0 {
			l.File += files
		}
		p.Locs = append(p.Locs, l)
	}
	comm := matchComms(now.Stacks, before.Stacks)
	for _, s := range before.Stacks {
		if c, ok := comm[s.Comm]; ok {
			s.Comm = c
		}
		frames := make([]uint32, len(s.Frames))
		for k, f := range s.Frames {
			frames[k] = f + locs
		}
		s.Frames = frames
		if int(s.Event) < len(events) {
			s.Event = events[s.Event]
		}
		p.Stacks = append(p.Stacks, s)
	}

	p.Totals.Merge(&before.Totals)
	return p, split
}

// matchModules returns for each module of before the one of now that it is, or -1: that of the same path; of those that are left, that of
// the same file name, where there are several the one with more of the path in common; and of those that are left still, that of the same
// name without its version, if either side has only one.
func matchModules(now, before []Module) []int32 {
	to := make([]int32, len(before))
	for i := range to {
		to[i] = -1
	}
	taken := make([]bool, len(now))
	match := func(i, j int) { to[i], taken[j] = int32(j), true }
	// by returns the modules that are left, by a name.
	by := func(name func(*Module) string) (olds, news map[string][]int) {
		olds, news = map[string][]int{}, map[string][]int{}
		for i := range before {
			if n := name(&before[i]); to[i] < 0 && n != "" {
				olds[n] = append(olds[n], i)
			}
		}
		for j := range now {
			if n := name(&now[j]); !taken[j] && n != "" {
				news[n] = append(news[n], j)
			}
		}
		return olds, news
	}

	paths := map[string]int{}
	for j := range now {
		if _, ok := paths[now[j].place()]; !ok {
			paths[now[j].place()] = j
		}
	}
	for i := range before { // a path can be there twice: builds of one recording
		if j, ok := paths[before[i].place()]; ok {
			match(i, j)
		}
	}

	olds, news := by((*Module).fileName)
	for name, is := range olds {
		type pair struct{ i, j, common int }
		var pairs []pair
		for _, i := range is {
			for _, j := range news[name] {
				if len(pairs) < 1<<16 {
					pairs = append(pairs, pair{i, j, commonEnd(before[i].Path, now[j].Path)})
				}
			}
		}
		slices.SortFunc(pairs, func(a, b pair) int {
			return cmp.Or(cmp.Compare(b.common, a.common), cmp.Compare(a.i, b.i), cmp.Compare(a.j, b.j))
		})
		for _, x := range pairs {
			if to[x.i] < 0 && !taken[x.j] {
				match(x.i, x.j)
			}
		}
	}

	olds, news = by(func(m *Module) string { return unversioned(m.fileName()) })
	for name, is := range olds {
		if js := news[name]; len(is) == 1 && len(js) == 1 {
			match(is[0], js[0])
		}
	}
	return to
}

// matchComms returns for commands of before, which are called after their programs, what they are now: of those that only one side has, that of
// the same name without its version, if either side has only one.
func matchComms(now, before []Stack) map[string]string {
	is, was, to := map[string]bool{}, map[string]bool{}, map[string]string{}
	for i := range now {
		is[now[i].Comm] = true
	}
	for i := range before {
		was[before[i].Comm] = true
	}
	by := func(names, others map[string]bool) map[string][]string {
		out := map[string][]string{}
		for n := range names {
			if !others[n] && n != "" {
				out[unversioned(n)] = append(out[unversioned(n)], n)
			}
		}
		return out
	}
	news := by(is, was)
	for name, olds := range by(was, is) {
		if n := news[name]; len(olds) == 1 && len(n) == 1 {
			to[olds[0]] = n[0]
		}
	}
	return to
}

// place is the module's path; the kernel has two.
func (m *Module) place() string {
	if m.Kernel && m.Path == "[kernel.kallsyms]" {
		return kernelPath
	}
	return m.Path
}

// fileName is the name of a module that is a file of a program; "" for others.
func (m *Module) fileName() string {
	if m.Kernel || m.Path == "" || m.Path[0] == '[' {
		return ""
	}
	return strings.TrimSuffix(m.Base(), " (deleted)")
}

// commonEnd counts the elements at the end of two paths that are the same.
func commonEnd(a, b string) (n int) {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	for n < len(x) && n < len(y) && x[len(x)-1-n] == y[len(y)-1-n] {
		n++
	}
	return n
}

// version is what names end with: "-1.2", "_v3", "-2.0rc1", and without a sign before it "3.11" of python3.11.
var version = regexp.MustCompile(`(?:[-_]v?[0-9][0-9A-Za-z.+~]*|[0-9]+(?:\.[0-9]+)+)$`)

// unversioned returns the name of a file without its version: "libfoo.so" of libfoo.so.1.2 and of libfoo-1.2.so.
func unversioned(name string) string {
	stem, more, so := strings.Cut(name, ".so")
	if so = so && (more == "" || more[0] == '.'); !so {
		stem = name
	}
	if at := version.FindStringIndex(stem); at != nil && at[0] > 0 {
		stem = stem[:at[0]]
	}
	if so {
		stem += ".so"
	}
	return stem
}
