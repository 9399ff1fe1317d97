package dwarf

import (
	"debug/elf"
	"encoding/binary"

	"github.com/unspool/unspool/arch"
)

// openELF finds a file's sections by the standard library.
func openELF(path string) (*Frames, error) {
	e, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	in := Sections{Machine: arch.ByELF(uint16(e.Machine)), Order: binary.ByteOrder(e.ByteOrder), AddrSize: 8}
	if e.Class == elf.ELFCLASS32 {
		in.AddrSize = 4
	}
	for _, s := range e.Sections {
		if s.Type == elf.SHT_NOBITS {
			continue
		}
		switch s.Name {
		case ".eh_frame", ".debug_frame", ".eh_frame_hdr", ".zdebug_frame":
			b, err := s.Data()
			if err != nil {
				return nil, err
			}
			x := Section{Name: s.Name, Addr: arch.Vaddr(s.Addr), Data: b}
			switch s.Name {
			case ".eh_frame":
				in.EHFrame = append(in.EHFrame, x)
			case ".eh_frame_hdr":
				in.Hdr = &x
			default:
				in.DebugFrame = append(in.DebugFrame, x)
			}
		case ".text":
			in.Text = arch.Vaddr(s.Addr)
		}
	}
	return New(in), nil
}
