package report

import (
	"fmt"
	"io"

	"github.com/unspool/unspool/profile"
)

// FlameDiff writes a flame graph of what has changed between two profiles: frames are as wide as they are after (or, at the
// reader's wish, before), red where they take more, blue where they take less, and grey where the difference can be chance.
// What is compared is each frame's part of all or, with Options.Absolute, its weight.
func FlameDiff(w io.Writer, before, after *profile.Profile, o Options) error {
	if a, b := title(before, &o), title(after, &o); a != b {
		o.Title = a + " → " + b
	}
	p, split := profile.Join(after, before)
	g := &flameGraph{p: p, o: &o, diff: &flameDiff{before: before, after: after, split: split}}
	g.build(g.paths())
	like := Change{Absolute: o.Absolute} // what changes have in common
	if list := Compare(before, after, o); len(list) > 0 {
		like = list[0].Total
	}
	root := g.nodes[0]
	if root.change == nil {
		root.change = &flameChange{}
	}
	for i := range g.nodes {
		g.nodes[i].grade(&root, like)
	}
	g.trim()
	for i := range g.nodes {
		if n := &g.nodes[i]; n.hidden {
			n.grade(&root, like)
		}
	}
	return g.writeTo(w)
}

// A flameDiff is what a flame graph of two profiles has besides.
type flameDiff struct {
	before, after *profile.Profile
	split         int // stacks from here on are before
}

// A flameChange is a node's weight before, and how it has changed.
type flameChange struct {
	total, self uint64
	samples     [2]uint64 // before and after: what significance is judged by
	level       int8      // -5 much less … 5 much more; 0: no change, or one that can be chance
}

// flameLevels are the changes, as parts of all, from which on a level holds.
var flameLevels = [...]float64{0.0005, 0.002, 0.01, 0.03, 0.1}

// add adds a stack to a node, and returns true if that is done: the stack is one before.
func (d *flameDiff) add(n *flameNode, f *flamePath, s *profile.Stack, leaf bool) bool {
	if n.change == nil {
		n.change = &flameChange{}
	}
	if f.stack < d.split {
		n.change.samples[1] += s.Count
		return false
	}
	n.change.samples[0] += s.Count
	n.change.total += f.n
	if leaf {
		n.change.self += f.n
	}
	return true
}

func (c *flameChange) hide(callee *flameChange) {
	c.total += callee.total
	c.self += callee.total
	c.samples[0] += callee.samples[0]
	c.samples[1] += callee.samples[1]
}

// grade sets a node's level, by the rules of d.
func (n *flameNode) grade(root *flameNode, d Change) {
	if n.change == nil {
		n.change = &flameChange{}
	}
	c, all := n.change, root.change
	d.Before, d.After, d.AllBefore, d.AllAfter = c.total, n.total, all.total, root.total
	d.Samples, d.AllSamples = c.samples, all.samples
	c.level = 0
	by := d.Share()
	if !d.Significant() {
		return
	}
	for _, least := range flameLevels {
		switch {
		case by >= least:
			c.level++
		case by <= -least:
			c.level--
		}
	}
}

func (c *flameChange) class() string {
	switch {
	case c.level > 0:
		return fmt.Sprint("more", c.level)
	case c.level < 0:
		return fmt.Sprint("less", -c.level)
	}
	return "even"
}

func (d *flameDiff) lines(g *flameGraph) []string {
	out := []string{"before: " + d.before.Headline(), "after: " + d.after.Headline()}
	what := "colours are changes of the part of all"
	if g.o.Absolute {
		what = "colours are changes of " + widths(g.o.unit(d.after))
	}
	last := what + "; grey: none, or one that can be chance"
	for _, s := range g.left() {
		last += " · " + s
	}
	return append(out, last)
}
