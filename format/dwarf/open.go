package dwarf

import (
	"debug/elf"
	"fmt"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// Open returns the call frame information of an image, which must stay open as long as it is used. An image
// without any gives empty Frames.
//
// Where there are no section headers, the program header PT_GNU_EH_FRAME leads to .eh_frame_hdr, and that to
// .eh_frame, whose end is then not known. With an error, which has the offset in the file, come the Frames of
// what could be read; nil only for an image whose sections cannot be had at all.
func Open(img *module.Image) (*Frames, error) {
	in := Sections{Machine: img.Machine(), Order: img.Order(), AddrSize: 8, Memory: img.At}
	if !img.Is64() {
		in.AddrSize = 4
	}
	var first error
	contents := func(s *module.Section) (Section, bool) {
		b, err := img.Data(s)
		if err != nil && first == nil {
			first = err
		}
		return Section{Name: s.Name, Addr: s.Addr, Data: b}, err == nil && len(b) > 0
	}
	secs := img.Sections()
	for i := range secs {
		s := &secs[i]
		switch s.Name {
		case ".eh_frame":
			if x, ok := contents(s); ok {
				in.EHFrame = append(in.EHFrame, x)
			}
		case ".debug_frame", ".zdebug_frame":
			if x, ok := contents(s); ok {
				in.DebugFrame = append(in.DebugFrame, x)
			}
		case ".eh_frame_hdr":
			if x, ok := contents(s); ok {
				in.Hdr = &x
			}
		case ".text":
			in.Text = s.Addr
		case ".got":
			in.GOT = s.Addr
		}
	}
	if len(in.EHFrame) == 0 && in.Hdr == nil {
		in.bySegment(img)
	}
	if img.Type() == elf.ET_REL && len(in.EHFrame) > 0 {
		return New(in), fmt.Errorf("%s: %w: the file is not linked: the addresses in its .eh_frame are not known yet", img.Name(), ErrUnsupported)
	}
	return New(in), first
}

// bySegment finds .eh_frame_hdr and .eh_frame by the program headers.
func (in *Sections) bySegment(img *module.Image) {
	for _, s := range img.Segments() {
		if s.Type != elf.PT_GNU_EH_FRAME {
			continue
		}
		tail := img.Tail(s.Vaddr)
		if s.Filesz < uint64(len(tail)) {
			tail = tail[:s.Filesz]
		}
		in.Hdr = &Section{Name: ".eh_frame_hdr", Addr: s.Vaddr, Data: tail}
		if h := New(*in).hdr; h != nil {
			at := arch.Vaddr(h.ehAddr)
			if b := img.Tail(at); len(b) > 0 {
				in.EHFrame = append(in.EHFrame, Section{Name: ".eh_frame", Addr: at, Data: b, Open: true})
			}
		}
		return
	}
}
