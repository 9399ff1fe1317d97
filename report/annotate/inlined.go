package annotate

import (
	"slices"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/profile"
)

// maxPieces bounds the ranges of a function that are shown in its callers.
const maxPieces = 512

// A host is a function that the annotated one was inlined into.
type host struct {
	name string
	offs []uint64 // in the file: code of the annotated function that was seen
}

// hosts returns the functions that all calls of fn were inlined into, the ones with the most samples first; nil if fn has code of its own, or
// is of another module.
func (b *builder) hosts() []host {
	p := b.p
	byFunc := map[int32]int{}
	var out []host
	var weight []uint64
	for i := range p.Stacks {
		st := &p.Stacks[i]
		in := false
		for j, f := range st.Frames {
			l := &p.Locs[f]
			in = in || l.Func == b.fn && l.Inlined
			if l.Inlined && j+1 < len(st.Frames) {
				continue
			}
			if in && !l.Inlined && l.Module == p.Funcs[b.fn].Module {
				k, ok := byFunc[l.Func]
				if !ok {
					k = len(out)
					byFunc[l.Func] = k
					out, weight = append(out, host{name: p.Funcs[l.Func].Name}), append(weight, 0)
				}
				out[k].offs = append(out[k].offs, l.Off)
				weight[k] += st.Count
			}
			in = false
		}
	}
	order := make([]int, len(out))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int {
		if weight[x] != weight[y] {
			return map[bool]int{true: -1, false: 1}[weight[x] > weight[y]]
		}
		return strings.Compare(out[x].name, out[y].name)
	})
	sorted := make([]host, len(out))
	for i, k := range order {
		sorted[i] = out[k]
		slices.Sort(sorted[i].offs)
		sorted[i].offs = slices.Compact(sorted[i].offs)
	}
	return sorted
}

// names are those of the first hosts, as a list.
func names(hosts []host) string {
	var s []string
	for _, h := range hosts {
		if len(s) == 5 {
			s = append(s, "others")
			break
		}
		s = append(s, h.name)
	}
	if n := len(s); n > 1 {
		return strings.Join(s[:n-1], ", ") + " and " + s[n-1]
	}
	return strings.Join(s, "")
}

// within returns what of the parts is code of a function that was inlined there, by their lines.
func within(parts []part, name string) (out []part, more bool) {
	for _, p := range parts {
		for i, l := range p.lines {
			if !slices.Contains(l.Inlined, name) {
				continue
			}
			lo, hi := max(l.Addr, p.lo), p.hi
			if i+1 < len(p.lines) {
				hi = min(hi, p.lines[i+1].Addr)
			}
			if lo >= hi {
				continue
			}
			if n := len(out); n > 0 && out[n-1].hi == lo && out[n-1].in == p.in {
				out[n-1].hi = hi
				continue
			}
			if len(out) == maxPieces {
				return out, true
			}
			out = append(out, part{lo: lo, hi: hi, lines: p.lines, in: p.in})
		}
	}
	return out, false
}

// inHosts finds the code of a function without any of its own in its callers.
func (b *builder) inHosts(m *profile.Module, hosts []host) {
	for _, h := range hosts {
		before := len(b.parts)
		for _, off := range h.offs {
			if v, ok := b.img.OffToVaddr(off); ok {
				b.addrs[off] = v
				b.addPart(m, v)
			}
		}
		for i := before; i < len(b.parts); i++ {
			b.parts[i].in = h.name
		}
	}
	room := arch.Vaddr(maxCode)
	for i := range b.parts {
		p := &b.parts[i]
		if p.hi-p.lo > room || b.Lines == nil {
			b.parts = b.parts[:i]
			break
		}
		room -= p.hi - p.lo
		p.lines = b.Lines(m, p.lo, p.hi)
	}
	var more bool
	if b.parts, more = within(b.parts, b.a.Func); more {
		b.note("only the first %d ranges of its code are shown", maxPieces)
	}
}
