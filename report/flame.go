package report

import (
	"bufio"
	"bytes"
	"cmp"
	_ "embed"
	"encoding/xml"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

//go:embed flame.js
var flameJS string

// Names is a script's function fit, which shortens the names of functions, and what it needs.
//
//go:embed names.js
var Names string

//go:embed flame.css
var flameCSS string

const (
	maxFlame  = 50_000 // frames that are kept where Options.MinShare does not say
	maxName   = 4096   // bytes of a name that are kept
	flameHues = 8      // of flame.css, three shades each
)

// flameScript is flame.js with what it shares.
func flameScript() string { return strings.Replace(flameJS, "// names.js is put here.\n", Names, 1) }

// Flame writes a flame graph: one SVG file that needs nothing else. A script in it draws the graph, zooms
// and searches; where scripts do not run, a picture of the whole is shown.
//
// Below all functions is the name of the thread, and between them, for a stack that is not whole, a
// frame "[truncated]" or "[broken]" in the place of the callers that are not known.
//
// Of a large profile only about the heaviest 50,000 frames are kept (100,000 at most) or, with Options.MinShare, those with at least that
// part of all. All other frames become one frame above each caller, so all numbers stay exact. The graph gives their number and their weight.
func Flame(w io.Writer, p *profile.Profile, o Options) error {
	g := &flameGraph{p: p, o: &o}
	g.build(g.paths())
	g.trim()
	return g.writeTo(w)
}

func (g *flameGraph) writeTo(w io.Writer) error {
	bw := bufio.NewWriterSize(w, 1<<16)
	g.write(bw)
	return bw.Flush()
}

// A flameName is what a frame shows: a function, a thread, or what stands for missing functions.
type flameName struct {
	text   string
	module int32  // -1: none
	class  string // of flame.css
	note   string
}

// A flameNode is a frame. Nodes are in preorder: callers come before their callees, which are sorted by
// name.
type flameNode struct {
	name        int32
	depth       int32
	hows        uint16 // bit set of profile.How, and flameInlined and flameCalled
	hidden      bool   // stands for callees that are not kept
	total, self uint64

	change *flameChange // nil unless two profiles are compared
}

// Bits of flameNode.hows besides those of profile.How.
const (
	flameInlined = 1 << 14 // at least once as an inlined call
	flameCalled  = 1 << 15 // at least once as a frame
)

// inlined is 1 for a node that was inlined wherever it was seen, 2 for one that was so in part, else 0.
func (n *flameNode) inlined() int {
	switch n.hows & (flameInlined | flameCalled) {
	case flameInlined:
		return 1
	case flameInlined | flameCalled:
		return 2
	}
	return 0
}

type flameGraph struct {
	p     *profile.Profile
	o     *Options
	names []flameName // sorted by text
	nodes []flameNode

	cut          uint64 // nodes with less are hidden
	hidden       int    // how many
	hiddenWeight uint64

	diff *flameDiff // nil unless two profiles are compared
}

// A flamePath is a stack from the outside in, as indices of names.
type flamePath struct {
	names []int32
	hows  []uint16 // of the last len(hows) names, as a node's
	n     uint64
	stack int // index in Profile.Stacks
}

// paths names everything and returns the stacks, sorted.
func (g *flameGraph) paths() []flamePath {
	p := g.p
	classes := g.classes()
	g.names = []flameName{{text: "all", module: -1, class: "g"}}
	if g.diff == nil {
		g.names[0].note = p.Headline()
	}
	for i := range p.Funcs {
		f := &p.Funcs[i]
		g.names = append(g.names, flameName{text: f.Name, module: f.Module, class: classes[i]})
	}
	extra := map[flameName]int32{}
	add := func(n flameName) int32 {
		i, ok := extra[n]
		if !ok {
			i = int32(len(g.names))
			extra[n] = i
			g.names = append(g.names, n)
		}
		return i
	}
	var out []flamePath
	for i := range p.Stacks {
		s := &p.Stacks[i]
		n := g.o.weight(s)
		if n == 0 {
			continue
		}
		comm := s.Comm
		if comm == "" {
			comm = profile.Unknown
		}
		f := flamePath{n: n, stack: i, names: []int32{0, add(flameName{text: comm, module: -1, class: "g", note: "the thread’s name"})}}
		if !p.Totals.NoStops {
			if m := profile.Mark(s.Stop); m != "" {
				f.names = append(f.names, add(flameName{text: m, module: -1, class: "m", note: "the callers are not known: " + profile.WhyRecorded(s.Stop)}))
			}
		}
		for _, id := range slices.Backward(s.Frames) {
			l := &p.Locs[id]
			how := uint16(1<<l.How | flameCalled)
			if l.Inlined {
				how = 1<<l.How | flameInlined
			}
			f.names, f.hows = append(f.names, 1+l.Func), append(f.hows, how)
		}
		out = append(out, f)
	}
	// Number the names anew, in their order, so that sorted paths are in preorder.
	order := make([]int32, len(g.names))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortFunc(order[1:], func(a, b int32) int {
		x, y := &g.names[a], &g.names[b]
		return cmp.Or(cmp.Compare(x.text, y.text), cmp.Compare(g.module(x), g.module(y)), cmp.Compare(x.note, y.note), cmp.Compare(a, b))
	})
	rank := make([]int32, len(order))
	sorted := make([]flameName, len(order))
	for r, i := range order {
		rank[i] = int32(r)
		sorted[r] = g.names[i]
	}
	g.names = sorted
	for i := range out {
		for k, n := range out[i].names {
			out[i].names[k] = rank[n]
		}
	}
	slices.SortFunc(out, func(a, b flamePath) int { return slices.Compare(a.names, b.names) })
	return out
}

func (g *flameGraph) module(n *flameName) string {
	if n.module < 0 {
		return ""
	}
	return g.p.Modules[n.module].Path
}

// build merges sorted paths that begin alike.
func (g *flameGraph) build(paths []flamePath) {
	g.nodes = []flameNode{{}}
	at := []int32{0} // the path before, as nodes
	for i := range paths {
		f := &paths[i]
		same := 1
		for same < len(f.names) && same < len(at) && g.nodes[at[same]].name == f.names[same] {
			same++
		}
		at = at[:same]
		for d := same; d < len(f.names); d++ {
			at = append(at, int32(len(g.nodes)))
			g.nodes = append(g.nodes, flameNode{name: f.names[d], depth: int32(d)})
		}
		for d, id := range at {
			n := &g.nodes[id]
			if k := d - (len(at) - len(f.hows)); k >= 0 {
				n.hows |= f.hows[k]
			}
			g.add(n, f, d == len(at)-1)
		}
	}
}

// add adds a stack's weight to a node in it, the last of which is its leaf.
func (g *flameGraph) add(n *flameNode, f *flamePath, leaf bool) {
	if g.diff != nil && g.diff.add(n, f, &g.p.Stacks[f.stack], leaf) {
		return
	}
	n.total += f.n
	if leaf {
		n.self += f.n
	}
}

// trim puts the callees that are not kept together, for each caller.
func (g *flameGraph) trim() {
	switch all := g.nodes[0].most(); {
	case g.o.MinShare > 0:
		g.cut = uint64(math.Ceil(min(g.o.MinShare, 1) * float64(all)))
	case g.o.MinShare == 0 && len(g.nodes) > maxFlame:
		totals := make([]uint64, len(g.nodes))
		for i := range g.nodes {
			totals[i] = g.nodes[i].most()
		}
		slices.Sort(totals)
		g.cut = totals[len(totals)-maxFlame]
		if first, _ := slices.BinarySearch(totals, g.cut); len(totals)-first > 2*maxFlame {
			g.cut++ // too many have just that much
		}
	}
	if g.cut <= 1 {
		return
	}
	var out []flameNode
	less := int32(len(g.names))
	g.names = append(g.names, flameName{
		text: "[less than " + g.share(g.cut) + " each]", module: -1, class: "t",
		note: "callees that are too small to be kept in this file, taken together",
	})
	rest := []flameNode{} // by depth of the caller: the hidden callees of those that are open
	leave := func(depth int32) {
		for int32(len(rest)) > depth {
			if n := rest[len(rest)-1]; n.most() > 0 {
				n.name, n.depth, n.hidden = less, int32(len(rest)), true
				out = append(out, n)
				g.hiddenWeight += n.total
			}
			rest = rest[:len(rest)-1]
		}
	}
	for i := 0; i < len(g.nodes); {
		n := &g.nodes[i]
		leave(n.depth)
		if n.most() >= g.cut || i == 0 {
			out = append(out, *n)
			rest = append(rest, flameNode{})
			i++
			continue
		}
		rest[n.depth-1].hide(n)
		for i++; i < len(g.nodes) && g.nodes[i].depth > n.depth; i++ {
			g.hidden++
		}
		g.hidden++
	}
	leave(0)
	g.nodes = out
}

// most is the greater weight of two profiles.
func (n *flameNode) most() uint64 {
	if n.change == nil {
		return n.total
	}
	return max(n.total, n.change.total)
}

// hide adds a callee that is not kept.
func (n *flameNode) hide(callee *flameNode) {
	n.total += callee.total
	n.self += callee.total
	if c := callee.change; c != nil {
		if n.change == nil {
			n.change = &flameChange{}
		}
		n.change.hide(c)
	}
}

// share writes a weight as a part of all with two significant digits: "0.0012 %".
func (g *flameGraph) share(n uint64) string {
	f := 100 * float64(n) / float64(max(g.nodes[0].most(), 1))
	digits := 0
	if f > 0 {
		digits = max(0, 1-int(math.Floor(math.Log10(f))))
	}
	return strconv.FormatFloat(f, 'f', min(digits, 9), 64) + " %"
}

// classes gives each function a colour: the hue by the module's name, unless a heavier module has the
// same, the shade by its own.
func (g *flameGraph) classes() []string {
	p := g.p
	s := p.Sums(g.o.By, nil)
	weight := make([]uint64, len(p.Modules))
	for i := range p.Funcs {
		weight[p.Funcs[i].Module] += s.Self[i]
	}
	order := make([]int, len(p.Modules))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(weight[b], weight[a]), cmp.Compare(p.Modules[a].Path, p.Modules[b].Path), cmp.Compare(a, b))
	})
	hue := make([]uint32, len(p.Modules))
	var taken, used uint32
	for _, i := range order {
		m := &p.Modules[i]
		if m.Kernel || m.Path == "" {
			continue
		}
		h := hash(m.Base()) % flameHues
		for used < flameHues && taken>>h&1 != 0 {
			h = (h + 1) % flameHues
		}
		taken |= 1 << h
		used++
		hue[i] = h
	}
	out := make([]string, len(p.Funcs))
	for i := range p.Funcs {
		f := &p.Funcs[i]
		switch m := &p.Modules[f.Module]; {
		case m.Kernel:
			out[i] = "k" + strconv.Itoa(int(hash(f.Name)%3))
		case m.Path == "":
			out[i] = "u"
		default:
			out[i] = "c" + strconv.Itoa(int(3*hue[f.Module]+hash(f.Name)%3))
		}
	}
	return out
}

func hash(s string) uint32 {
	h := fnv.New32a()
	io.WriteString(h, s)
	return h.Sum32()
}

// title is Options.Title, or the command, or the busiest thread's name.
func title(p *profile.Profile, o *Options) string {
	switch {
	case o.Title != "":
		return o.Title
	case p.Command != "":
		return p.Command
	}
	best, name, others := uint64(0), "", 0
	comms := map[string]uint64{}
	for i := range p.Stacks {
		s := &p.Stacks[i]
		comms[s.Comm] += o.weight(s)
	}
	for c, n := range comms {
		if n > best || n == best && c < name {
			best, name = n, c
		}
		others++
	}
	switch {
	case name == "":
		return "Profile"
	case others > 1:
		return fmt.Sprintf("%s and %s more", name, profile.Comma(uint64(others-1)))
	}
	return name
}

// lines are the text below the title.
func (g *flameGraph) lines() []string {
	if g.diff != nil {
		return g.diff.lines(g)
	}
	out := []string{g.p.Headline()}
	var about []string
	if g.p.Duration > 0 {
		about = append(about, seconds(g.p.Duration))
	}
	if !g.p.Start.IsZero() {
		about = append(about, g.p.Start.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	if g.p.Host != "" {
		about = append(about, g.p.Host)
	}
	if g.o.By == Periods {
		about = append(about, "widths are "+widths(g.o.unit(g.p)))
	}
	about = append(about, g.left()...)
	if len(about) > 0 {
		out = append(out, strings.Join(about, " · "))
	}
	return out
}

// left says what is not shown, if anything.
func (g *flameGraph) left() []string {
	if g.hidden == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s of less than %s each, %s of all, not shown one by one",
		profile.Quantity(uint64(g.hidden), "frames"), g.share(g.cut), profile.Percent(g.hiddenWeight, g.nodes[0].total))}
}

// seconds writes a duration in seconds with three significant digits: "2.00 s", "1,234 s".
func seconds(d time.Duration) string {
	s := d.Seconds()
	switch {
	case s < 1:
		return strconv.FormatFloat(s*1000, 'g', 3, 64) + " ms"
	case s < 100:
		return strconv.FormatFloat(s, 'f', 2-int(math.Log10(s)), 64) + " s"
	}
	return profile.Comma(uint64(s+.5)) + " s"
}

// howTexts describe each profile.How.
var howTexts = map[profile.How]string{
	profile.How(unwind.HowStart):        "the sample’s own registers",
	profile.How(unwind.HowCFI):          "call frame information",
	profile.How(unwind.HowSignal):       "a signal frame",
	profile.How(unwind.HowPLT):          "the shape of a linkage table",
	profile.How(unwind.HowFramePointer): "the frame pointer",
	profile.How(unwind.HowSigReturn):    "what the kernel saved for a signal handler",
	profile.How(unwind.HowCall):         "the call that led there",
	profile.How(unwind.HowSync):         "rules that hold at calls only",
	profile.HowKernel:                   "the kernel",
	profile.HowUnknown:                  "means that were not recorded",
}

// data appends the graph as JSON:
//
//	{"title": …, "lines": […], "unit": "samples", "icicle": false,
//	 "hows": ["…"],                       by bit
//	 "modules": ["path"],
//	 "names": [["text", module, "class", "note"]],
//	 "frames": [[name, hows]],            and, of calls that were inlined, 1, or 2 if they were so in part
//	 "nodes": [frame, depth, self, …]}    in preorder; a node's total is its self and its callees' totals
//
// Where two profiles are compared, there is "diff": ["before", "after"], and a node is five numbers: after its self that in the
// profile before, and its level of change; see flameChange.
//
// It has no character that means anything to XML or HTML, wherever it is put.
func (g *flameGraph) data() []byte {
	b := []byte(`{"title":`)
	b = appendQuoted(b, title(g.p, g.o))
	strs := func(key string, list []string) {
		b = append(b, ",\n\""...)
		b = append(append(b, key...), `":[`...)
		for i, s := range list {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendQuoted(b, s)
		}
		b = append(b, ']')
	}
	strs("lines", g.lines())
	b = appendQuoted(append(b, ",\n\"unit\":"...), g.o.unit(g.p))
	b = strconv.AppendBool(append(b, ",\n\"icicle\":"...), g.o.Icicle)
	var hows []string
	for h := profile.How(0); h <= profile.HowUnknown; h++ {
		hows = append(hows, howTexts[h])
	}
	strs("hows", hows)
	if g.diff != nil {
		strs("diff", []string{"before", "after"})
	}

	// Only the names that are left, numbered as they come.
	type frame struct {
		name int32
		hows uint16
		in   int
	}
	var names, frames, nodes []byte
	var modules []string
	nameID, moduleID, frameID := map[int32]int{}, map[int32]int{-1: -1}, map[frame]int{}
	for i := range g.nodes {
		n := &g.nodes[i]
		f := frame{n.name, n.hows & (flameInlined - 1), n.inlined()}
		id, ok := frameID[f]
		if !ok {
			id = len(frameID)
			frameID[f] = id
			nid, ok := nameID[n.name]
			if !ok {
				nid = len(nameID)
				nameID[n.name] = nid
				fn := &g.names[n.name]
				if _, ok := moduleID[fn.module]; !ok {
					moduleID[fn.module] = len(modules)
					modules = append(modules, g.p.Modules[fn.module].Path)
				}
				names = appendQuoted(append(names, ",\n["...), clipBytes(fn.text, maxName))
				names = strconv.AppendInt(append(names, ','), int64(moduleID[fn.module]), 10)
				names = appendQuoted(append(names, ','), fn.class)
				if fn.note != "" {
					names = appendQuoted(append(names, ','), fn.note)
				}
				names = append(names, ']')
			}
			frames = fmt.Appendf(frames, ",[%d,%d", nid, f.hows)
			if f.in > 0 {
				frames = strconv.AppendInt(append(frames, ','), int64(f.in), 10)
			}
			frames = append(frames, ']')
		}
		nodes = append(nodes, ',')
		if i%16 == 0 {
			nodes = append(nodes, '\n')
		}
		nodes = strconv.AppendInt(nodes, int64(id), 10)
		nodes = strconv.AppendInt(append(nodes, ','), int64(n.depth), 10)
		nodes = strconv.AppendUint(append(nodes, ','), n.self, 10)
		if n.change != nil {
			nodes = fmt.Appendf(nodes, ",%d,%d", n.change.self, n.change.level)
		}
	}
	strs("modules", modules)
	b = append(append(b, ",\n\"names\":["...), names[1:]...)
	b = append(append(b, "],\n\"frames\":["...), frames[1:]...)
	b = append(append(b, "],\n\"nodes\":["...), nodes[1:]...)
	b = append(b, "]}"...)
	return safe(b)
}

// safe escapes what JSON may have in its strings but XML or HTML may not.
func safe(b []byte) []byte {
	for _, r := range []struct{ from, to string }{
		{"<", `\u003c`}, {">", `\u003e`}, {"&", `\u0026`}, {"\x7f", `\u007f`}, {"\ufffe", `\ufffe`}, {"\uffff", `\uffff`},
	} {
		b = bytes.ReplaceAll(b, []byte(r.from), []byte(r.to))
	}
	return b
}

// clipBytes cuts s to n bytes.
func clipBytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// The measures of the picture that is shown without scripts.
const (
	flameWidth = 1200
	flamePad   = 10
	flameRow   = 18
	flameChar  = 7.23 // of the font
)

func (g *flameGraph) write(w *bufio.Writer) {
	title, lines := title(g.p, g.o), g.lines()
	deepest := int32(0)
	scale := float64(flameWidth-2*flamePad) / float64(max(g.nodes[0].total, 1))
	for i := range g.nodes {
		if n := &g.nodes[i]; float64(n.total)*scale >= flameLeast {
			deepest = max(deepest, n.depth)
		}
	}
	top := 40 + 17*len(lines)
	height := top + (int(deepest)+1)*flameRow + flamePad
	fmt.Fprintf(w, `<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="group" aria-labelledby="title desc">
<title id="title">%s</title>
<desc id="desc">%s</desc>
<style><![CDATA[
%s]]></style>
<defs><pattern id="hatch" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="hatch-a" width="8" height="8"/><rect class="hatch-b" width="3" height="8"/></pattern></defs>
<g id="static">
<rect class="paper" width="100%%" height="100%%"/>
<text class="title" x="%d" y="27">%s</text>
`, flameWidth, height, flameWidth, height, xmlText(title), xmlText("Flame graph. "+strings.Join(lines, ". ")), flameCSS, flamePad, xmlText(printable.Clip(title, 120)))
	for i, l := range lines {
		fmt.Fprintf(w, "<text class=\"line\" x=\"%d\" y=\"%d\">%s</text>\n", flamePad, 46+17*i, xmlText(l))
	}
	g.picture(w, scale, top, int(deepest))
	w.WriteString("</g>\n<script type=\"application/json\" id=\"data\">\n")
	w.Write(g.data())
	w.WriteString("\n</script>\n<script><![CDATA[\n")
	w.WriteString(flameScript())
	w.WriteString("]]></script>\n</svg>\n")
}

// flameLeast is the width of the narrowest frame in the picture without scripts.
const flameLeast = 0.5

// picture draws the whole graph: wide frames with their name and a title, narrow ones as parts of one path
// for each colour.
func (g *flameGraph) picture(w *bufio.Writer, scale float64, top, deepest int) {
	narrow := map[string][]byte{}
	left := []float64{flamePad} // by depth: where the next frame begins
	for i := range g.nodes {
		n := &g.nodes[i]
		d := int(n.depth)
		x, width := left[d], float64(n.total)*scale
		left = append(append(left[:d], x+width), x)
		if width < flameLeast {
			continue
		}
		y := top + (deepest-d)*flameRow
		if g.o.Icicle {
			y = top + d*flameRow
		}
		name := g.names[n.name]
		if n.change != nil {
			name.class = n.change.class()
		}
		label := ""
		if n.inlined() == 1 {
			label = ` class="in"`
		}
		chars := int((width - 6) / flameChar)
		if chars < 3 {
			narrow[name.class] = fmt.Appendf(narrow[name.class], "M%.1f %dh%.2fv%dH%.1fz", x, y, max(width-.5, .3), flameRow-1, x)
			continue
		}
		fmt.Fprintf(w, "<g><title>%s (%s, %s)</title><rect class=\"%s\" x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\"/><text%s x=\"%.1f\" y=\"%d\">%s</text></g>\n",
			xmlText(printable.Clip(name.text, 400)), xmlText(profile.Quantity(n.total, g.o.unit(g.p))), profile.Percent(n.total, g.nodes[0].total),
			name.class, x, y, width-.5, flameRow-1, label, x+3, y+13, xmlText(printable.Clip(name.text, chars)))
	}
	for _, class := range slices.Sorted(maps.Keys(narrow)) {
		fmt.Fprintf(w, "<path class=\"%s\" d=\"%s\"/>\n", class, narrow[class])
	}
}

// widths says what widths stand for.
func widths(unit string) string {
	if unit == "ns" {
		return "time"
	}
	return unit
}

// xmlText escapes s for XML; what XML cannot have becomes U+FFFD.
func xmlText(s string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(printable.String(s)))
	return b.String()
}
