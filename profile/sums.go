package profile

import "slices"

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

// Sums are the weights of functions, by their index in Profile.Funcs; of several profiles, by the numbers that Add was given.
type Sums struct {
	Self  []uint64 // of stacks whose innermost function it is
	Total []uint64 // of stacks that it is in, each once

	seen   []int // by function: the last stack that had it; stacks are numbered from 1
	stacks int
}

// Sums adds up the stacks that keep, which is called with each index in order, says yes to; nil keeps all.
func (p *Profile) Sums(by Weight, keep func(stack int) bool) Sums {
	numbers := make([]int32, len(p.Funcs))
	for i := range numbers {
		numbers[i] = int32(i)
	}
	var s Sums
	s.Add(p, by, numbers, keep)
	return s
}

// Add adds a profile. numbers says by which number s knows each function of p. Functions of one number are one function.
func (s *Sums) Add(p *Profile, by Weight, numbers []int32, keep func(stack int) bool) {
	if len(numbers) > 0 {
		more := max(0, int(slices.Max(numbers))+1-len(s.Self))
		s.Self, s.Total, s.seen = append(s.Self, make([]uint64, more)...), append(s.Total, make([]uint64, more)...), append(s.seen, make([]int, more)...)
	}
	for i := range p.Stacks {
		if keep != nil && !keep(i) {
			continue
		}
		s.stacks++
		st := &p.Stacks[i]
		n := by.Of(st)
		for j, f := range st.Frames {
			fn := numbers[p.Locs[f].Func]
			if j == 0 {
				s.Self[fn] += n
			}
			if s.seen[fn] != s.stacks {
				s.seen[fn] = s.stacks
				s.Total[fn] += n
			}
		}
	}
}
