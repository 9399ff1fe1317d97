package profile

// A Weight says what numbers mean.
type Weight uint8

const (
	Samples Weight = iota // numbers of samples
	Periods               // events: nanoseconds, cycles
)

// Of returns the weight of a stack's samples.
func (w Weight) Of(s *Stack) uint64 {
	if w == Periods {
		return s.Period
	}
	return s.Count
}

// All returns the weight of all samples.
func (w Weight) All(t *Totals) uint64 {
	if w == Periods {
		return t.Period
	}
	return t.Samples
}

// Sums are the weights of functions, by their index in Profile.Funcs.
type Sums struct {
	Self  []uint64 // of stacks whose innermost function it is
	Total []uint64 // of stacks that it is in, each once
}

// Sums adds up the stacks that keep, which is called with each index in order, says yes to; nil keeps all.
func (p *Profile) Sums(by Weight, keep func(stack int) bool) Sums {
	s := Sums{make([]uint64, len(p.Funcs)), make([]uint64, len(p.Funcs))}
	seen := make([]int, len(p.Funcs)) // 1 + the last stack that had the function
	for i := range p.Stacks {
		if keep != nil && !keep(i) {
			continue
		}
		st := &p.Stacks[i]
		n := by.Of(st)
		for j, f := range st.Frames {
			fn := p.Locs[f].Func
			if j == 0 {
				s.Self[fn] += n
			}
			if seen[fn] != i+1 {
				seen[fn] = i + 1
				s.Total[fn] += n
			}
		}
	}
	return s
}
