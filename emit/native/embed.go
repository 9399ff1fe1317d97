package native

import (
	"errors"

	"github.com/unspool/unspool/internal/elfcopy"
)

// ProgramType is the type of the program header that leads to an eh_elf file in a module (p_type, in the range PT_LOOS to PT_HIOS).
const ProgramType = 0x6568656c

// embedAlign is how an eh_elf file is aligned in memory: code for AArch64 counts pages of this size.
const embedAlign = 4096

// Embed returns a copy of an ELF program or library that has an eh_elf file as a section besides, loaded with the rest. The copy runs as the file does.
// code is what Emit returned for the module.
func Embed(file, code []byte) ([]byte, error) {
	f, err := elfcopy.Read(file)
	if err != nil {
		return nil, err
	}
	if f.Has(".eh_elf", ProgramType) {
		return nil, errors.New("the file has an eh_elf file in it")
	}
	return f.Add(1, func(uint64) ([]elfcopy.Section, error) {
		return []elfcopy.Section{{Name: ".eh_elf", Type: 1, Program: ProgramType, Exec: true, Align: embedAlign, Bytes: code}}, nil // SHT_PROGBITS
	})
}
