package debuginfo

import (
	"bytes"
	"path/filepath"
	"sort"
	"sync"

	"github.com/unspool/unspool/module"
)

type section int

const (
	secInfo section = iota
	secAbbrev
	secLine
	secStr
	secLineStr
	secStrOffsets
	secAddr
	secRanges
	secRnglists
	secAranges
	numSections
)

var sectionNames = [numSections]string{".debug_info", ".debug_abbrev", ".debug_line", ".debug_str", ".debug_line_str",
	".debug_str_offsets", ".debug_addr", ".debug_ranges", ".debug_rnglists", ".debug_aranges"}

// A file is an ELF file with debug information: the one that was asked for, a .dwo, a .dwp, or an alternate file.
type file struct {
	in    *Info
	img   *module.Image
	big   bool
	dwo   bool // sections are named .debug_info.dwo and so on
	heads func() []uint64
	alt   func() *file
	index func() *packageIndex

	secs [numSections]struct {
		once sync.Once
		b    []byte
	}
}

func newFile(in *Info, img *module.Image, dwo bool) *file {
	f := &file{in: in, img: img, big: img.Order().Uint16([]byte{1, 0}) != 1, dwo: dwo}
	f.heads = sync.OnceValue(f.findHeads)
	f.alt = sync.OnceValue(f.openAlt)
	f.index = sync.OnceValue(f.packageIndex)
	return f
}

// sec returns a section's contents; nil where it is missing or cannot be read.
func (f *file) sec(s section) []byte {
	e := &f.secs[s]
	e.once.Do(func() {
		name := sectionNames[s]
		if f.dwo {
			name += ".dwo"
		}
		if sec := f.img.Section(name); sec != nil {
			e.b = f.expand(sec)
		}
		f.in.spend(-byteWork * len(e.b))
	})
	return e.b
}

func (f *file) data(name string) []byte {
	if sec := f.img.Section(name); sec != nil {
		return f.stored(sec)
	}
	return nil
}

// stored returns a section's contents from the file itself.
func (f *file) stored(sec *module.Section) []byte {
	b, err := f.img.Data(sec)
	if err != nil {
		f.in.note("%v", err)
	}
	return b
}

// at reads a section from off on.
func (f *file) at(s section, off uint64) cursor {
	b := f.sec(s)
	return cursorAt(b, off, uint64(len(b)), f.big)
}

// findHeads returns where the units of .debug_info begin: linear in their number.
func (f *file) findHeads() []uint64 {
	var heads []uint64
	for c := f.at(secInfo, 0); c.more(); {
		off := uint64(c.off)
		n, _ := c.length()
		c.skip(n)
		if c.bad {
			f.in.note("%s: .debug_info+%#x: truncated unit", f.img.Name(), off)
			break
		}
		heads = append(heads, off)
	}
	return heads
}

// unitOf returns the unit that contains an offset of .debug_info, or nil. Split units do not refer to each other.
func (f *file) unitOf(off uint64) *unit {
	if f.dwo {
		return nil
	}
	heads := f.heads()
	i := sort.Search(len(heads), func(i int) bool { return heads[i] > off })
	if i == 0 {
		return nil
	}
	if u := f.in.unit(f, heads[i-1]); u != nil && off >= u.dies && off < u.end {
		return u
	}
	return nil
}

// openAlt opens the alternate file, which holds what dwz took out of several files: .gnu_debugaltlink has its name and
// build ID; in DWARF 5 it is .debug_sup (section 7.3.6).
func (f *file) openAlt() *file {
	var name, id []byte
	if c := cursorAt(f.data(".gnu_debugaltlink"), 0, 1<<16, f.big); c.more() {
		name = c.str()
		id = c.b[c.off:]
	} else if c := cursorAt(f.data(".debug_sup"), 0, 1<<16, f.big); c.more() {
		if version, sup := c.uint(2), c.u8(); version == 5 && sup == 0 {
			name = c.str()
			n := c.uleb()
			at := c.off
			if c.skip(n); !c.bad {
				id = c.b[at:c.off]
			}
		}
	}
	if len(name) == 0 {
		return nil
	}
	path := string(name)
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(f.img.Name()), path)
	}
	img := f.in.open(path, bytes.Clone(id), "alternate file")
	if img == nil {
		return nil
	}
	// The link of .debug_sup is a checksum of any kind, that of .gnu_debugaltlink a build ID.
	if have := img.BuildID(); have != nil && f.img.Section(".gnu_debugaltlink") != nil && !bytes.Equal(have, id) {
		f.in.note("%s: not the alternate file that %s names: its build ID is %x, not %x", path, f.img.Name(), have, id)
		return nil
	}
	return newFile(f.in, img, false)
}
