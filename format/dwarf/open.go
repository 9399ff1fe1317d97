package dwarf

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// Open returns the call frame information of an image, which must stay open as long as it is used. An image
// without any gives empty Frames. In a file that is not linked, addresses are those of module.Image.Place.
//
// Where there are no section headers, the program header PT_GNU_EH_FRAME leads to .eh_frame_hdr, and that to
// .eh_frame, whose end is then not known. What lies outside of a truncated file is an error, and so are section headers
// that do: unwind information may be lost with them. With an error, which has the offset in the file, come the Frames
// of what could be read.
func Open(img *module.Image) (*Frames, error) {
	in := Sections{Machine: img.Machine(), Order: img.Order(), AddrSize: 8, Memory: img.At}
	if !img.Is64() {
		in.AddrSize = 4
	}
	if img.Starts() != nil {
		in.Place = img.Place
	}
	first := img.SectionsErr()
	contents := func(s *module.Section) (Section, bool) {
		b, bad, err := img.Relocate(s)
		if n := len(bad); err == nil && n > 0 && bad[n-1].Off >= uint64(len(b)) { // of no entry
			first = cmp.Or(first, fmt.Errorf("%s: %w", img.Name(), error(&bad[n-1])))
		}
		first = cmp.Or(first, err)
		return Section{Name: s.Name, Addr: s.Addr, Data: b, Unapplied: bad}, err == nil && len(b) > 0
	}
	secs := img.Sections()
	named := false // one of the two that PT_GNU_EH_FRAME leads to
	for i := range secs {
		s := &secs[i]
		name := s.Common()
		named = named || name == ".eh_frame" || name == ".eh_frame_hdr"
		if strings.HasPrefix(name, ".gcc_except_tab") {
			if b, bad, err := img.Relocate(s); err == nil && len(b) > 0 { // rows do not need it
				in.Exceptions = append(in.Exceptions, Section{Name: s.Name, Addr: s.Addr, Data: b, Unapplied: bad})
			}
		}
		switch name {
		case ".eh_frame":
			if x, ok := contents(s); ok {
				in.EHFrame = append(in.EHFrame, x)
			}
		case ".debug_frame", ".zdebug_frame":
			if x, ok := contents(s); ok {
				in.DebugFrame = append(in.DebugFrame, x)
			}
		case ".eh_frame_hdr":
			if x, ok := contents(s); ok && !compact(img, x.Data) {
				in.Hdr = &x
			}
		case ".text":
			in.Text = s.Addr
		case ".got":
			in.GOT = s.Addr
		}
	}
	if !named { // a separate debug file has the sections, without contents, and segments that lie
		first = cmp.Or(first, in.bySegment(img))
	}
	return New(in), first
}

// compact says whether .eh_frame_hdr is the index of MIPS's compact tables: its version is 2. format/mips reads it.
func compact(img *module.Image, hdr []byte) bool {
	return img.Machine().ELF == arch.EM_MIPS && len(hdr) > 0 && hdr[0] == 2
}

// bySegment finds .eh_frame_hdr and .eh_frame by the program headers. It finds nothing where there is no
// PT_GNU_EH_FRAME; with an error, it has what the file has of them.
func (in *Sections) bySegment(img *module.Image) error {
	segs := img.Segments()
	i := slices.IndexFunc(segs, func(s module.Segment) bool { return s.Kind == module.UnwindIndex && s.Size > 0 })
	if i < 0 {
		return nil
	}
	b, err := img.Contents(&segs[i])
	if compact(img, b) { // it has no pointer to .eh_frame
		return err
	}
	in.Hdr = &Section{Name: ".eh_frame_hdr", Addr: segs[i].Vaddr, Data: b}
	f := New(*in)
	if f.hdr == nil {
		if err == nil {
			err = fmt.Errorf("%s: %w", img.Name(), f.hdrErr)
		}
		return err
	}
	at := arch.Vaddr(f.hdr.ehAddr)
	i = slices.IndexFunc(segs, func(s module.Segment) bool { return s.Kind == module.Loaded && uint64(at-s.Vaddr) <= s.Size })
	if i < 0 {
		if err == nil {
			d := Damage{Section: ".eh_frame_hdr", Off: 4, Err: wrapf(ErrMalformed, "no segment has .eh_frame, at %#x", uint64(at))}
			err = fmt.Errorf("%s: %w", img.Name(), d)
		}
		return err
	}
	b, cut := img.Contents(&segs[i])
	if b = b[min(uint64(at-segs[i].Vaddr), uint64(len(b))):]; len(b) > 0 {
		in.EHFrame = append(in.EHFrame, Section{Name: ".eh_frame", Addr: at, Data: b, Open: true})
	}
	return cmp.Or(err, cut)
}
