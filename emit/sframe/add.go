package sframe

import (
	"errors"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/elfcopy"
	"github.com/unspool/unspool/rows"
)

// The types of the program header and of the section. Assemblers of version 2 make sections of program bits.
const (
	ptSFrame               = 0x6474e554
	shtProgbits, shtSFrame = 1, 0x6ffffff4
)

// Add returns a copy of an ELF file with an SFrame section of version 2 or 3 that says what t does: the rows of the file. The copy runs as the file
// does.
func Add(file []byte, t *rows.Table, version int, bounds rows.Bounds) ([]byte, *Section, error) {
	f, err := elfcopy.Read(file)
	if err != nil {
		return nil, nil, err
	}
	if f.Has(".sframe", ptSFrame) {
		return nil, nil, errors.New("the file has an SFrame section")
	}
	var s *Section
	out, err := f.Add(1, func(addr uint64) ([]elfcopy.Section, error) {
		var err error
		if s, err = Emit(t, version, arch.Vaddr(addr), bounds); err != nil {
			return nil, err
		}
		if len(s.Bytes) == headerSize {
			return nil, errors.New("the file has no rows that SFrame can say")
		}
		typ := uint32(shtProgbits)
		if version > 2 {
			typ = shtSFrame
		}
		return []elfcopy.Section{{Name: ".sframe", Type: typ, Program: ptSFrame, Align: 8, Bytes: s.Bytes}}, nil
	})
	return out, s, err
}
