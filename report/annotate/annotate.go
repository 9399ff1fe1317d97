// Package annotate puts a profile's samples on the lines and instructions of a function. A profile and the number of a function come in; source
// lines and instructions with their samples go out.
//
// Function opens no files and finds no names by itself: Options provide code, lines, names and text. Sources reads source text, and decides who
// may see it. If an input is missing, the parts that depend on it are left out, with a note. Bytes of code, lines and text may be hostile.
package annotate

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/symbol"
)

// A Line is a row of a line table: it holds from Addr up to the next row.
type Line struct {
	Addr arch.Vaddr
	File string // absolute, or as the debug information spells it; "": no source
	Line uint32 // from 1; 0: no source

	Inlined []string // functions whose calls were inlined there
}

// LinesOf returns what makes rows of a line table of the places of addresses: a row begins where they change.
func LinesOf(places func(m *profile.Module, addrs []arch.Vaddr) [][]symbol.Place) func(m *profile.Module, lo, hi arch.Vaddr) []Line {
	return func(m *profile.Module, lo, hi arch.Vaddr) (out []Line) {
		var addrs [1 << 12]arch.Vaddr
		for lo < hi {
			n := int(min(hi-lo, arch.Vaddr(len(addrs))))
			for i := range n {
				addrs[i] = lo + arch.Vaddr(i)
			}
			for i, at := range places(m, addrs[:n]) {
				l := Line{Addr: addrs[i]}
				if len(at) > 0 {
					l.File, l.Line = at[0].File, at[0].Line
					for _, p := range at[:len(at)-1] {
						l.Inlined = append(l.Inlined, p.Name)
					}
				}
				if k := len(out); k == 0 || out[k-1].File != l.File || out[k-1].Line != l.Line || !slices.Equal(out[k-1].Inlined, l.Inlined) {
					out = append(out, l)
				}
			}
			lo += arch.Vaddr(n)
		}
		return out
	}
}

// Options provide what a profile lacks: code, lines, names and text. A nil function knows nothing.
type Options struct {
	// Open returns the file of a module. The image must stay open while Function runs, which does not close it.
	// It does not have to compare build IDs.
	Open func(m *profile.Module) (*module.Image, error)

	// Bounds returns the range of the function that has code at v.
	Bounds func(m *profile.Module, v arch.Vaddr) (lo, hi arch.Vaddr, ok bool)

	// Lines returns the rows of the line table in [lo, hi), sorted by address; the first may begin before lo.
	Lines func(m *profile.Module, lo, hi arch.Vaddr) []Line

	// Symbol returns the name of what lies at v and the distance from its start; "" if there is none.
	Symbol func(m *profile.Module, v arch.Vaddr) (name string, off uint64)

	// Source returns the text of a source file that a module's lines name.
	Source func(m *profile.Module, path string) ([]byte, error)

	Syntax string         // of instructions: "intel", "gnu" (AT&T on x86-64) or "go"; "": intel. Other machines have one for both.
	By     profile.Weight // what stacks count
}

// A Code knows the binaries of a profile, as *names.Namer does: see Options, whose functions its methods are. Places returns where the code at
// addresses comes from, the innermost call first.
type Code interface {
	Open(m *profile.Module) (*module.Image, error)
	Bounds(m *profile.Module, v arch.Vaddr) (lo, hi arch.Vaddr, ok bool)
	Symbol(m *profile.Module, v arch.Vaddr) (name string, off uint64)
	Places(m *profile.Module, addrs []arch.Vaddr) [][]symbol.Place
}

// OptionsOf returns options with what c knows, and s finds.
func OptionsOf(c Code, s Sources) Options {
	s.Open = c.Open
	return Options{Open: c.Open, Bounds: c.Bounds, Symbol: c.Symbol, Lines: LinesOf(c.Places), Source: s.Read}
}

// An Annotator annotates functions for a page: it is a serve.Annotator.
type Annotator struct {
	Code    Code
	Sources Sources
}

// Annotate returns an *Annotation of a function.
func (a *Annotator) Annotate(p *profile.Profile, fn int32, by profile.Weight) (any, error) {
	o := OptionsOf(a.Code, a.Sources)
	o.By = by
	return Function(p, fn, o)
}

// An Annotation is a function with the weight of its parts. Weights count each stack once, and inlined calls belong to
// the instructions that they became.
type Annotation struct {
	Func    string   `json:"func"`
	Module  string   `json:"module"` // path
	BuildID string   `json:"buildID,omitempty"`
	Syntax  string   `json:"syntax,omitempty"`
	Notes   []string `json:"notes,omitempty"` // what a reader should know: what is missing, and why
	Self    uint64   `json:"self"`            // of stacks that end in the function
	Total   uint64   `json:"total"`           // of stacks that contain it
	All     uint64   `json:"all"`             // of all stacks of the profile

	// Lines are those of the function's main file first, in order; then those of other files that it has code of.
	Lines []SourceLine `json:"lines,omitempty"`

	// Insts are in order of addresses. Where one does not follow the other, another part of the function begins.
	Insts   []Inst `json:"insts,omitempty"`
	Unknown int    `json:"unknown,omitempty"` // instructions that could not be decoded
}

// A SourceLine is a line of source. Its weight is that of all code of the line in this function, calls inlined there
// included in Total.
type SourceLine struct {
	File  string `json:"file"`
	Line  uint32 `json:"line"`
	Text  string `json:"text"` // without the line's end; "" if the source is not there
	Self  uint64 `json:"self"`
	Total uint64 `json:"total"`
	Insts []int  `json:"insts,omitempty"` // indices in Annotation.Insts, in order
}

// An Inst is an instruction, or bytes that are none that is known.
type Inst struct {
	Addr  arch.Vaddr `json:"addr"`
	Off   uint64     `json:"off"` // from the start of its part of the function
	Bytes string     `json:"bytes"`
	Text  string     `json:"text"`
	Self  uint64     `json:"self"`
	Total uint64     `json:"total"`

	// Target is where a direct branch or call leads, or what an operand relative to the program counter refers to; HasTarget says whether
	// Target is set. TargetName is "memcpy", "main+0x10", or "". Jump says that it is a branch which stays in the function.
	Target     arch.Vaddr `json:"target,omitempty"`
	HasTarget  bool       `json:"hasTarget,omitempty"`
	TargetName string     `json:"targetName,omitempty"`
	Jump       bool       `json:"jump,omitempty"`

	File string `json:"file,omitempty"`
	Line uint32 `json:"line,omitempty"`

	Unknown bool `json:"unknown,omitempty"` // the bytes are not decoded

	In string `json:"in,omitempty"` // of the first of a range that was inlined: the function that it is in
}

// Bounds of what is read for one function.
const (
	maxCode  = 1 << 19 // bytes
	maxParts = 64
	maxLines = 1 << 16
)

// A part is a range of code of a function.
type part struct {
	lo, hi arch.Vaddr
	lines  []Line
	in     string // the function that it was inlined into; "": none
}

// A builder makes one Annotation.
type builder struct {
	Options
	p     *profile.Profile
	fn    int32
	a     *Annotation
	img   *module.Image
	parts []part
	addrs map[uint64]arch.Vaddr // of offsets in the file: code of fn that was seen
	sums  sums

	hosted bool // all calls were inlined: instructions are those of callers
}

// Function annotates function fn of p. There is an error only if p has no such function.
func Function(p *profile.Profile, fn int32, o Options) (*Annotation, error) {
	if fn < 0 || int(fn) >= len(p.Funcs) {
		return nil, fmt.Errorf("there is no function %d", fn)
	}
	m := &p.Modules[p.Funcs[fn].Module]
	b := &builder{Options: o, p: p, fn: fn, addrs: map[uint64]arch.Vaddr{}}
	b.a = &Annotation{Func: p.Funcs[fn].Name, Module: m.Path, BuildID: m.BuildID}
	err := module.Guard(func() error {
		b.code(m)
		b.count()
		b.disassemble(m)
		return nil
	})
	if err != nil {
		b.note("%v", err)
	}
	b.source()
	return b.a, nil
}

func (b *builder) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(b.a.Notes, n) {
		b.a.Notes = append(b.a.Notes, n)
	}
}

// code opens the module's file and finds the parts of the function and their lines.
func (b *builder) code(m *profile.Module) {
	var offs []uint64
	inlined := false
	var hosts []host
	for i := range b.p.Locs {
		if l := &b.p.Locs[i]; l.Func == b.fn {
			if l.Inlined {
				inlined = true
			} else {
				offs = append(offs, l.Off)
			}
		}
	}
	if b.hosted = len(offs) == 0 && inlined; b.hosted {
		if hosts = b.hosts(); len(hosts) == 0 {
			b.note("all calls of the function were inlined: its instructions are those of its callers")
			return
		}
		b.note("all calls of the function were inlined: its instructions are shown in %s", names(hosts))
	}
	switch {
	case m.Kernel:
		b.note("the kernel's code is not read")
		return
	case b.Open == nil || m.Path == "":
		b.note("no file has the function's code")
		return
	}
	if inlined && !b.hosted {
		b.note("some calls of the function were inlined: their instructions are those of its callers")
	}
	img, err := b.Open(m)
	if err != nil {
		b.note("%v", err)
		return
	}
	if img == nil {
		b.note("%s: no file has this code", m.Path)
		return
	}
	have := hex.EncodeToString(img.BuildID())
	switch {
	case m.BuildID != "" && have != "" && !module.SameBuildID(have, m.BuildID):
		b.note("%s: the file was replaced: build ID %s, recorded %s", m.Path, have, m.BuildID)
		return
	case m.BuildID == "" || have == "":
		b.note("%s: without a build ID, nothing shows whether this file ran", m.Path)
	}
	b.img = img
	if b.hosted {
		b.inHosts(m, hosts)
		return
	}
	slices.Sort(offs)
	for _, off := range slices.Compact(offs) {
		if v, ok := img.OffToVaddr(off); ok {
			b.addrs[off] = v
			b.addPart(m, v)
		} else {
			b.note("%s: there is no code at %#x in the file", m.Path, off)
		}
	}
	slices.SortFunc(b.parts, func(x, y part) int { return cmp.Compare(x.lo, y.lo) })
	room := arch.Vaddr(maxCode)
	for i := range b.parts {
		p := &b.parts[i]
		if i+1 < len(b.parts) { // aliases of different lengths
			p.hi = min(p.hi, b.parts[i+1].lo)
		}
		if p.hi-p.lo > room {
			b.note("only parts of the function are shown: it has more than %d bytes", maxCode)
			b.parts = b.parts[:i]
			break
		}
		room -= p.hi - p.lo
		if b.Lines != nil {
			p.lines = b.Lines(m, p.lo, p.hi)
		}
	}
}

// addPart enters the part that has v.
func (b *builder) addPart(m *profile.Module, v arch.Vaddr) {
	for i := range b.parts {
		if v >= b.parts[i].lo && v < b.parts[i].hi {
			return
		}
	}
	if b.Bounds == nil || len(b.parts) == maxParts {
		return
	}
	lo, hi, ok := b.Bounds(m, v)
	switch {
	case !ok || v < lo || v >= hi:
		b.note("the bounds of the function at %#x are not known", uint64(v))
		return
	case hi-lo > maxCode:
		b.note("the function has %d bytes; the first %d are shown", uint64(hi-lo), maxCode)
		hi = lo + maxCode
		if v >= hi {
			return
		}
	}
	b.parts = append(b.parts, part{lo: lo, hi: hi})
}

// line returns the row that holds at v.
func (p *part) line(v arch.Vaddr) Line {
	i, ok := slices.BinarySearchFunc(p.lines, v, func(l Line, v arch.Vaddr) int { return cmp.Compare(l.Addr, v) })
	if !ok {
		i--
	}
	for ok && i+1 < len(p.lines) && p.lines[i+1].Addr == v { // the last of several rows for an address holds
		i++
	}
	if i < 0 || p.lines[i].File == "" || p.lines[i].Line == 0 {
		return Line{}
	}
	return p.lines[i]
}

// lineOf returns the row that holds at v in the function.
func (b *builder) lineOf(v arch.Vaddr) Line {
	for i := range b.parts {
		if p := &b.parts[i]; v >= p.lo && v < p.hi {
			return p.line(v)
		}
	}
	return Line{}
}
