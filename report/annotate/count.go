package annotate

import "github.com/unspool/unspool/profile"

// A place is a line of a file.
type place struct {
	file string
	line uint32
}

// A weight is what was counted at one place. Each stack adds to total once.
type weight struct {
	self, total uint64
	last        int // 1 + the last stack that was added
}

func (w *weight) add(stack int, n uint64, leaf bool) {
	if leaf {
		w.self += n
	}
	if w.last != stack+1 {
		w.last = stack + 1
		w.total += n
	}
}

// sums are the weights of a function's parts.
type sums struct {
	offs  map[uint64]*weight // by offset in the file
	lines map[place]*weight
}

func at[K comparable](m map[K]*weight, k K) *weight {
	w := m[k]
	if w == nil {
		w = new(weight)
		m[k] = w
	}
	return w
}

// count goes through all stacks. A frame and the calls inlined into it are a group; a group counts if the function
// is in it: all of it where the frame is the function's, else what is inlined into the function.
func (b *builder) count() {
	p := b.p
	b.sums = sums{map[uint64]*weight{}, map[place]*weight{}}
	var whole weight
	for i := range p.Stacks {
		st := &p.Stacks[i]
		n := b.By.Of(st)
		b.a.All += n
		start := 0
		for j, f := range st.Frames {
			if p.Locs[f].Inlined && j+1 < len(st.Frames) {
				continue
			}
			group := st.Frames[start : j+1]
			leaf := start == 0
			start = j + 1
			last := -1
			for k, f := range group {
				if p.Locs[f].Func == b.fn {
					last = k
				}
			}
			if last < 0 {
				continue
			}
			whole.add(i, n, leaf)
			if frame := &p.Locs[f]; (last == len(group)-1 || b.hosted) && !frame.Inlined {
				at(b.sums.offs, frame.Off).add(i, n, leaf)
			}
			for k, f := range group[:last+1] {
				if pl, ok := b.place(&p.Locs[f]); ok {
					at(b.sums.lines, pl).add(i, n, leaf && k == 0)
				}
			}
		}
	}
	b.a.Self, b.a.Total = whole.self, whole.total
}

// place returns where a location is in the source: as the profile says, else by the function's lines.
func (b *builder) place(l *profile.Loc) (place, bool) {
	if l.File != 0 && int(l.File) < len(b.p.Files) && l.Line != 0 {
		return place{b.p.Files[l.File], l.Line}, true
	}
	if v, ok := b.addrs[l.Off]; ok && !l.Inlined {
		row := b.lineOf(v)
		return place{row.File, row.Line}, row.Line != 0
	}
	return place{}, false
}
