package ehframe

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/elfcopy"
	"github.com/unspool/unspool/rows"
)

// Constants of ELF (System V ABI, chapters 4 and 5).
const (
	ehsize, phentsize, shentsize = 64, 56, 64
	etDyn                        = 3
	ptLoad                       = 1
	pfRead                       = 4
	shtStrtab, shtNobits         = 3, 8
	shfAlloc, shfExec            = 2, 4
	maxRanges                    = 1 << 10
)

// A Range is of link-time addresses, from Lo to the one before Hi.
type Range struct{ Lo, Hi arch.Vaddr }

// File returns an ELF file that has the section and its index, and of the code only where it is, as separate debug files do: for images of other formats,
// PE and Mach-O. code is sorted and disjoint. The sections lie behind it. Debuggers load the file at the image's bias.
func File(t *rows.Table, code []Range, bounds rows.Bounds) ([]byte, *Section, error) {
	if len(code) == 0 || len(code) > maxRanges {
		return nil, nil, fmt.Errorf("%d ranges of code", len(code))
	}
	m := target(t.Machine)
	off := uint64(ehsize + 2*phentsize)
	end := code[len(code)-1].Hi
	if end > 1<<62 {
		return nil, nil, fmt.Errorf("code up to %#x", uint64(end))
	}
	at := (end+0xffff)&^0xffff + arch.Vaddr(off) // no page is larger
	s, err := Emit(t, at, bounds)
	if err != nil {
		return nil, nil, err
	}
	if s.Functions == 0 {
		return nil, nil, errors.New("the file has no rows that .eh_frame can say")
	}
	le := binary.LittleEndian
	hdrOff, frameOff := off, off+uint64(s.Addr-s.At)
	size := frameOff + uint64(len(s.Bytes))
	names := []byte{0}
	var headers []byte
	header := func(name string, typ uint32, flags uint64, addr arch.Vaddr, off, size, align uint64) {
		headers = le.AppendUint32(le.AppendUint32(headers, uint32(len(names))), typ)
		for _, x := range []uint64{flags, uint64(addr), off, size, 0, align, 0} {
			headers = le.AppendUint64(headers, x)
		}
		names = append(append(names, name...), 0)
	}
	headers = append(headers, make([]byte, shentsize)...)
	for i, r := range code {
		name := ".text"
		if i > 0 {
			name = fmt.Sprintf(".text.%d", i)
		}
		header(name, shtNobits, shfAlloc|shfExec, r.Lo, off, uint64(r.Hi-r.Lo), 1)
	}
	header(".eh_frame_hdr", shtProgbits, shfAlloc, s.At, hdrOff, uint64(len(s.Index)), 4)
	header(".eh_frame", shtProgbits, shfAlloc, s.Addr, frameOff, uint64(len(s.Bytes)), align)
	strtab := size
	header(".shstrtab", shtStrtab, 0, 0, strtab, uint64(len(names)+len(".shstrtab")+1), 1)
	shoff := (strtab + uint64(len(names)) + 7) &^ 7
	shnum := uint16(len(headers) / shentsize)

	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	b = le.AppendUint16(le.AppendUint16(b, etDyn), m.ELF)
	b = le.AppendUint32(b, 1)
	for _, x := range []uint64{0, ehsize, shoff} {
		b = le.AppendUint64(b, x)
	}
	b = le.AppendUint32(b, 0)
	for _, x := range []uint16{ehsize, phentsize, 2, shentsize, shnum, shnum - 1} {
		b = le.AppendUint16(b, x)
	}
	for _, p := range []struct {
		typ        uint32
		off        uint64
		addr       arch.Vaddr
		size, unit uint64
	}{{ptLoad, 0, at - arch.Vaddr(off), size, 0x10000}, {ptGNUEHFrame, hdrOff, s.At, uint64(len(s.Index)), 4}} {
		b = le.AppendUint32(le.AppendUint32(b, p.typ), pfRead)
		for _, x := range []uint64{p.off, uint64(p.addr), uint64(p.addr), p.size, p.size, p.unit} {
			b = le.AppendUint64(b, x)
		}
	}
	b = append(b, s.Index...)
	b = append(append(b, make([]byte, frameOff-uint64(len(b)))...), s.Bytes...)
	b = append(b, names...)
	b = append(append(b, make([]byte, shoff-uint64(len(b)))...), headers...)
	return b, s, nil
}

// target returns the machine as ELF numbers it.
func target(m *arch.Machine) *arch.Machine {
	switch m {
	case arch.WindowsAMD64:
		return arch.AMD64
	case arch.WindowsARM64:
		return arch.ARM64
	}
	return m
}

// Add returns a copy of an ELF file with the section and its index: the rows of the file. The copy runs as the file does.
func Add(file []byte, t *rows.Table, bounds rows.Bounds) ([]byte, *Section, error) {
	f, err := elfcopy.Read(file)
	if err != nil {
		return nil, nil, err
	}
	if f.Has(".eh_frame", ptGNUEHFrame) {
		return nil, nil, errors.New("the file has .eh_frame")
	}
	var s *Section
	out, err := f.Add(1, func(addr uint64) ([]elfcopy.Section, error) {
		var err error
		if s, err = Emit(t, arch.Vaddr((addr+3)&^3), bounds); err != nil {
			return nil, err
		}
		if s.Functions == 0 {
			return nil, errors.New("the file has no rows that .eh_frame can say")
		}
		return []elfcopy.Section{
			{Name: ".eh_frame_hdr", Type: shtProgbits, Program: ptGNUEHFrame, Align: 4, Bytes: s.Index},
			{Name: ".eh_frame", Type: shtProgbits, Align: align, Bytes: s.Bytes},
		}, nil
	})
	return out, s, err
}
