package module

import (
	"cmp"
	"slices"
	"sort"

	"github.com/unspool/unspool/arch"
)

// A Range is the addresses [Lo, Hi).
type Range struct{ Lo, Hi arch.Vaddr }

// Ranges are sorted by Lo.
type Ranges []Range

// Code returns where the image has code: the executable sections, or in a file without sections the executable segments.
func (img *Image) Code() (list Ranges) {
	secs := img.Sections()
	for i := range secs {
		if s := &secs[i]; s.Perm&Exec != 0 && s.Size > 0 {
			list = append(list, Range{s.Addr, s.Addr + arch.Vaddr(s.Size)})
		}
	}
	if len(secs) == 0 {
		for _, s := range img.Segments() {
			if s.Kind == Loaded && s.Perm&Exec != 0 {
				list = append(list, Range{s.Vaddr, s.Vaddr + arch.Vaddr(s.Size)})
			}
		}
	}
	slices.SortFunc(list, func(a, b Range) int { return cmp.Compare(a.Lo, b.Lo) })
	return list
}

// End returns where the range that has an address ends; 0 where none has it.
func (list Ranges) End(v arch.Vaddr) arch.Vaddr {
	i := sort.Search(len(list), func(i int) bool { return list[i].Hi > v })
	if i < len(list) && list[i].Lo <= v {
		return list[i].Hi
	}
	return 0
}
