package module

import (
	"debug/elf"

	"github.com/unspool/unspool/internal/procfs"
)

// IsLinked says whether a file is an ELF executable or shared object, by its first bytes.
func IsLinked(path string) bool {
	f, err := procfs.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var h [18]byte
	if _, err := f.ReadAt(h[:], 0); err != nil || string(h[:4]) != elf.ELFMAG {
		return false
	}
	typ := elf.Type(h[16]) | elf.Type(h[17])<<8
	if elf.Data(h[elf.EI_DATA]) == elf.ELFDATA2MSB {
		typ = elf.Type(h[17]) | elf.Type(h[16])<<8
	}
	return typ == elf.ET_EXEC || typ == elf.ET_DYN
}
