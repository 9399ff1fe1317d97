package corefile

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"path/filepath"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// Bounds on what a hostile file can ask for. Linux has 65,530 mappings a process unless told otherwise, and a thread has four
// notes or five.
const (
	maxSegments = 1 << 20
	maxNote     = 1 << 20 // notes in all
	maxThreads  = 1 << 16
	maxFiles    = 1 << 20 // mapped files, in NT_FILE
	maxCode     = 1 << 13 // executable mappings
)

// compressions are how the beginning of a compressed file looks, and what undoes it.
var compressions = []struct{ magic, name, command string }{
	{"\x28\xb5\x2f\xfd", "zstd", "zstd -d"},
	{"\x1f\x8b", "gzip", "gunzip"},
	{"\xfd7zXZ\x00", "xz", "xz -d"},
	{"\x04\x22\x4d\x18", "lz4", "lz4 -d"},
	{"BZh", "bzip2", "bunzip2"},
}

// A noteRange is a PT_NOTE segment.
type noteRange struct{ off, size, align uint64 }

var le = binary.LittleEndian

// headers reads the ELF header and the program headers.
func (f *File) headers() (notes []noteRange, err error) {
	b := f.b
	for _, c := range compressions {
		if bytes.HasPrefix(b, []byte(c.magic)) {
			return nil, f.errorf(0, ErrCompressed, "the file is compressed with %s: decompress it first (%s %s)", c.name, c.command, filepath.Base(f.path))
		}
	}
	const ehsize, phsize, shsize = 64, 56, 64
	if !bytes.HasPrefix(b, []byte(elf.ELFMAG)) {
		return nil, f.errorf(0, ErrNotCore, "not a core file: no ELF header")
	}
	if len(b) < ehsize {
		return nil, f.errorf(0, module.ErrTruncated, "the ELF header is cut off")
	}
	if d := elf.Data(b[elf.EI_DATA]); d != elf.ELFDATA2LSB {
		return nil, f.errorf(elf.EI_DATA, module.ErrUnsupported, "cores of big-endian machines cannot be read")
	}
	f.Machine = arch.ByELF(le.Uint16(b[18:]))
	typ := elf.Type(le.Uint16(b[16:]))
	switch {
	case typ == elf.ET_EXEC || typ == elf.ET_DYN:
		return nil, f.errorf(16, ErrNotCore, "not a core file but an executable or a library: give the core file first, then the executable")
	case typ != elf.ET_CORE:
		return nil, f.errorf(16, ErrNotCore, "not a core file but an ELF file of type %v", typ)
	case elf.Class(b[elf.EI_CLASS]) != elf.ELFCLASS64:
		return nil, f.errorf(elf.EI_CLASS, module.ErrUnsupported, "the core of a 32-bit program (%s): only 64-bit ones can be read", f.Machine.Name)
	case !f.Machine.StepKnown:
		return nil, f.errorf(18, module.ErrUnsupported, "cores of %s cannot be read", f.Machine.Name)
	}
	phoff, shoff := le.Uint64(b[32:]), le.Uint64(b[40:])
	phentsize, phnum := uint64(le.Uint16(b[54:])), uint64(le.Uint16(b[56:]))
	size := uint64(len(b))
	if phnum == 0xffff { // PN_XNUM: the number is in the first section header, which the kernel writes last
		if shoff < size && size-shoff >= shsize {
			phnum = uint64(le.Uint32(b[shoff+44:]))
		} else {
			f.notes.add("the core is cut off before the number of its program headers: only the first %d are read", phnum)
		}
	}
	if phentsize < phsize || phoff > size {
		return nil, f.errorf(phoff, module.ErrMalformed, "program headers of %d bytes each in a file of %d", phentsize, size)
	}
	if room := (size - phoff) / phentsize; phnum > room {
		f.cut = true
		f.notes.add("the core is cut off in its program headers: %d of %d are there", room, phnum)
		phnum = room
	}
	if phnum > maxSegments {
		f.notes.add("the core has %d program headers: only the first %d are read", phnum, maxSegments)
		phnum = maxSegments
	}
	var want, have uint64
	for i := range phnum {
		p := b[phoff+i*phentsize:]
		typ, flags := elf.ProgType(le.Uint32(p)), le.Uint32(p[4:])
		off, vaddr, filesz, memsz, align := le.Uint64(p[8:]), le.Uint64(p[16:]), le.Uint64(p[32:]), le.Uint64(p[40:]), le.Uint64(p[48:])
		switch typ {
		case elf.PT_NOTE:
			notes = append(notes, noteRange{off, filesz, align})
		case elf.PT_LOAD:
			n := min(filesz, memsz)
			there := min(n, size-min(off, size))
			want, have = want+n, have+there
			f.mem.add(vaddr, memsz, b[min(off, size):][:there], flags)
		}
	}
	if dropped := f.mem.finish(); dropped > 0 {
		f.notes.add("%d of the core's memory segments overlap others, and are not used where they do", dropped)
	}
	if have < want {
		f.notes.add("the core is cut off: it has %s of %s of memory", byteSize(have), byteSize(want))
	}
	return notes, nil
}

func byteSize(n uint64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}
