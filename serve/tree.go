package serve

import (
	"cmp"
	"context"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/unspool/unspool/profile"
)

// A tree is all stacks from their outermost functions inward, merged where they begin alike. Node 0 is the root;
// callers come before their callees. It does not change, so a view of any filter is sums over its nodes.
type tree struct {
	labels []label // those of the functions first
	label  []int32 // by node
	parent []int32
	first  []int32 // the first callee of a node; 0: none
	next   []int32 // the callee of the same caller that follows; 0: none
	marks  []uint16
	leaf   []int32 // by stack
}

// The marks of a node are a bit set of profile.How, and two bits more.
const (
	markInlined = 1 << 14 // some calls were inlined
	markInner   = 1 << 15 // a caller has the same label
	markHows    = markInlined - 1
)

// A label is what a node shows.
type label struct {
	text   string
	kind   kind
	module int32 // -1: none
	note   string
}

type kind uint8

const (
	kindFunc   kind = iota
	kindKernel      // a function of the kernel
	kindNone        // code outside of all mappings
	kindGroup       // a thread, a process, all
	kindStop        // stands for callers that are not known
)

// groupings say what is between the root and the outermost functions.
var groupings = map[string]func(d *data, i int, s *profile.Stack) string{
	"comm":    func(_ *data, _ int, s *profile.Stack) string { return cmp.Or(s.Comm, profile.Unknown) },
	"none":    nil,
	"pod":     func(d *data, i int, _ *profile.Stack) string { return cmp.Or(d.place(i).Pod, "no pod") },
	"process": func(_ *data, _ int, s *profile.Stack) string { return "process " + strconv.Itoa(int(s.PID)) },
	"service": func(d *data, i int, _ *profile.Stack) string { return cmp.Or(d.place(i).Service, profile.Unknown) },
	"thread": func(_ *data, _ int, s *profile.Stack) string {
		return s.Comm + " (" + strconv.Itoa(int(s.PID)) + "/" + strconv.Itoa(int(s.TID)) + ")"
	},
}

// newTree merges the stacks of d. It returns nil if ctx ends before; progress is told the share that is done.
func newTree(ctx context.Context, d *data, group func(*data, int, *profile.Stack) string, progress func(float64)) *tree {
	p := d.p
	t := &tree{leaf: make([]int32, len(p.Stacks))}
	for i := range p.Funcs {
		f := &p.Funcs[i]
		l := label{text: clip(f.Name), module: f.Module}
		switch m := &p.Modules[f.Module]; {
		case m.Kernel:
			l.kind = kindKernel
		case m.Path == "":
			l.kind = kindNone
		}
		t.labels = append(t.labels, l)
	}
	extra := map[label]int32{}
	add := func(l label) int32 {
		l.text = clip(l.text)
		i, ok := extra[l]
		if !ok {
			i = int32(len(t.labels))
			extra[l] = i
			t.labels = append(t.labels, l)
		}
		return i
	}
	b := treeBuilder{t: t, slots: make([]uint32, 1<<12)}
	b.node(0, add(label{text: "all", kind: kindGroup, module: -1}))
	for i := range p.Stacks {
		if i&0xfff == 0 {
			if ctx.Err() != nil {
				return nil
			}
			progress(float64(i) / float64(len(p.Stacks)))
		}
		s := &p.Stacks[i]
		at := int32(0)
		if group != nil {
			at = b.down(at, add(label{text: group(d, i, s), kind: kindGroup, module: -1}))
		}
		if m := profile.Mark(s.Stop); m != "" && !p.Totals.NoStops {
			at = b.down(at, add(label{text: m, kind: kindStop, module: -1, note: profile.WhyRecorded(s.Stop)}))
		}
		for _, f := range slices.Backward(s.Frames) {
			l := &p.Locs[f]
			at = b.down(at, l.Func)
			m := uint16(1) << l.How
			if l.Inlined {
				m |= markInlined
			}
			t.marks[at] |= m
		}
		t.leaf[i] = at
	}
	t.markInner()
	return t
}

// maxText bounds the bytes of a name, so that hostile ones do not fill answers.
const maxText = 4096

func clip(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

// A treeBuilder finds nodes by their caller and label.
type treeBuilder struct {
	t     *tree
	slots []uint32 // the node; open addressing, a power of two; 0: free
}

func (b *treeBuilder) node(parent, label int32) int32 {
	t := b.t
	id := int32(len(t.label))
	t.label = append(t.label, label)
	t.parent = append(t.parent, parent)
	t.first = append(t.first, 0)
	t.next = append(t.next, 0)
	t.marks = append(t.marks, 0)
	if id > 0 {
		t.next[id], t.first[parent] = t.first[parent], id
	}
	return id
}

func hashNode(parent, label int32) uint64 {
	hi, lo := bits.Mul64(uint64(uint32(parent))<<32|uint64(uint32(label)), 0x9e3779b97f4a7c15)
	return hi ^ lo
}

func (b *treeBuilder) down(at, label int32) int32 {
	t, mask := b.t, uint64(len(b.slots)-1)
	for i := hashNode(at, label) & mask; ; i = (i + 1) & mask {
		n := b.slots[i]
		if n == 0 {
			id := b.node(at, label)
			b.slots[i] = uint32(id)
			if 2*len(t.label) > len(b.slots) {
				b.grow()
			}
			return id
		}
		if t.parent[n] == at && t.label[n] == label {
			return int32(n)
		}
	}
}

func (b *treeBuilder) grow() {
	b.slots = make([]uint32, 2*len(b.slots))
	mask := uint64(len(b.slots) - 1)
	for n := 1; n < len(b.t.label); n++ {
		i := hashNode(b.t.parent[n], b.t.label[n]) & mask
		for b.slots[i] != 0 {
			i = (i + 1) & mask
		}
		b.slots[i] = uint32(n)
	}
}

// markInner marks the nodes below one with their own label.
func (t *tree) markInner() {
	open := make([]int32, len(t.labels))
	n := int32(0)
	for {
		if open[t.label[n]] > 0 {
			t.marks[n] |= markInner
		}
		open[t.label[n]]++
		if c := t.first[n]; c != 0 {
			n = c
			continue
		}
		for {
			open[t.label[n]]--
			if n == 0 {
				return
			}
			if c := t.next[n]; c != 0 {
				n = c
				break
			}
			n = t.parent[n]
		}
	}
}

// matching returns which labels of functions re matches.
func (t *tree) matching(re interface{ MatchString(string) bool }) []bool {
	is := make([]bool, len(t.labels))
	for i := range t.labels {
		if k := t.labels[i].kind; k != kindGroup && k != kindStop {
			is[i] = re.MatchString(t.labels[i].text)
		}
	}
	return is
}
