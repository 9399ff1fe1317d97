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

// others are how dumps of other systems begin. The type of a Mach-O file, MH_CORE, is at 12 (mach-o/loader.h).
var others = []struct {
	magic, what string
	typ         uint32
}{
	{"\xcf\xfa\xed\xfe", "a core file of macOS", 4},
	{"\xce\xfa\xed\xfe", "a core file of macOS", 4},
	{"PAGEDU64", "a crash dump of Windows's kernel", 0},
	{"PAGEDUMP", "a crash dump of Windows's kernel", 0},
}

// systems are the systems whose core files have a number of their own as ABI.
var systems = map[elf.OSABI]string{elf.ELFOSABI_NETBSD: "NetBSD", elf.ELFOSABI_SOLARIS: "Solaris", elf.ELFOSABI_FREEBSD: "FreeBSD", elf.ELFOSABI_OPENBSD: "OpenBSD"}

// owners are the systems whose core files have none, by the owners of their notes.
var owners = []struct{ prefix, system string }{{"NetBSD-CORE", "NetBSD"}, {"OpenBSD", "OpenBSD"}, {"FreeBSD", "FreeBSD"}}

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
	for _, c := range others {
		if len(b) >= 16 && bytes.HasPrefix(b, []byte(c.magic)) && (c.typ == 0 || le.Uint32(b[12:]) == c.typ) {
			return nil, f.errorf(0, module.ErrUnsupported, "%s: only core files of Linux can be read, and minidumps", c.what)
		}
	}
	if !bytes.HasPrefix(b, []byte(elf.ELFMAG)) {
		return nil, f.errorf(0, ErrNotCore, "not a core file: no ELF header")
	}
	if len(b) < elf.EI_NIDENT {
		return nil, f.errorf(0, module.ErrTruncated, "the ELF header is cut off")
	}
	f.order, f.word = le, 8
	switch elf.Data(b[elf.EI_DATA]) {
	case elf.ELFDATA2LSB:
	case elf.ELFDATA2MSB:
		f.order = binary.BigEndian
	default:
		return nil, f.errorf(elf.EI_DATA, module.ErrUnsupported, "byte order %d", b[elf.EI_DATA])
	}
	ehsize, phsize, shsize := 64, uint64(56), uint64(64)
	if elf.Class(b[elf.EI_CLASS]) == elf.ELFCLASS32 {
		f.word, ehsize, phsize, shsize = 4, 52, 32, 40
	}
	if len(b) < ehsize {
		return nil, f.errorf(0, module.ErrTruncated, "the ELF header is cut off")
	}
	f.Machine = arch.ByELF(f.order.Uint16(b[18:]))
	if f.Machine.ELF == arch.EM_MIPS {
		f.Machine = arch.MIPSMachine(arch.MIPSConventionOf(f.word == 8, f.u32(b[24+3*f.word:])), f.order == binary.BigEndian)
	}
	typ := elf.Type(f.order.Uint16(b[16:]))
	switch {
	case typ == elf.ET_EXEC || typ == elf.ET_DYN:
		return nil, f.errorf(16, ErrNotCore, "not a core file but an executable or a library: give the core file first, then the executable")
	case typ == elf.ET_CORE && systems[elf.OSABI(b[elf.EI_OSABI])] != "":
		return nil, f.errorf(elf.EI_OSABI, module.ErrUnsupported, "a core file of %s: only those of Linux can be read", systems[elf.OSABI(b[elf.EI_OSABI])])
	case typ != elf.ET_CORE:
		return nil, f.errorf(16, ErrNotCore, "not a core file but an ELF file of type %v", typ)
	case !f.Machine.StepKnown || len(f.Machine.UserRegs.Slots) == 0: // of Windows, too, whose numbers are none of ELF
		return nil, f.errorf(18, module.ErrUnsupported, "cores of %s cannot be read", f.Machine.Name)
	case f.Machine.WordSize() != uint64(f.word):
		return nil, f.errorf(elf.EI_CLASS, module.ErrUnsupported, "the core of a %d-bit program of %s: only %d-bit ones can be read", 8*f.word, f.Machine.Name, 8*f.Machine.WordSize())
	case f.Machine.BigEndian != (f.order == binary.BigEndian):
		return nil, f.errorf(elf.EI_DATA, module.ErrUnsupported, "the core of a %s program of %s cannot be read", map[bool]string{true: "little-endian", false: "big-endian"}[f.Machine.BigEndian], f.Machine.Name)
	}
	// The word fields behind e_version: e_entry, e_phoff, e_shoff; then e_flags and e_ehsize.
	phoff, shoff := f.uword(b[24+f.word:]), f.uword(b[24+2*f.word:])
	rest := b[24+3*f.word+6:]
	phentsize, phnum := uint64(f.order.Uint16(rest)), uint64(f.order.Uint16(rest[2:]))
	size := uint64(len(b))
	if phnum == 0xffff { // PN_XNUM: the number is in the first section header, which the kernel writes last
		if shoff < size && size-shoff >= shsize {
			phnum = uint64(f.u32(b[shoff+map[int]uint64{4: 28, 8: 44}[f.word]:]))
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
		h := f.progHeader(p)
		switch h.typ {
		case elf.PT_NOTE:
			notes = append(notes, noteRange{h.off, h.filesz, h.align})
		case elf.PT_LOAD:
			n := min(h.filesz, h.memsz)
			there := min(n, size-min(h.off, size))
			want, have = want+n, have+there
			f.mem.add(h.vaddr, h.memsz, b[min(h.off, size):][:there], h.flags)
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

// A progHeader is a program header of either class.
type progHeader struct {
	typ                              elf.ProgType
	flags                            uint32
	off, vaddr, filesz, memsz, align uint64
}

// progHeaderSize returns how many bytes a program header has.
func (f *File) progHeaderSize() uint64 {
	if f.word == 4 {
		return 32
	}
	return 56
}

func (f *File) progHeader(p []byte) progHeader {
	h := progHeader{typ: elf.ProgType(f.u32(p))}
	words := p[8:]
	if f.word == 4 {
		words, h.flags = p[4:], f.u32(p[24:])
	} else {
		h.flags = f.u32(p[4:])
	}
	at := func(i int) uint64 { return f.uword(words[i*f.word:]) }
	h.off, h.vaddr, h.filesz, h.memsz, h.align = at(0), at(1), at(3), at(4), at(5)
	if f.word == 4 {
		h.align = uint64(f.u32(p[28:]))
	}
	return h
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
