package module

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"slices"

	"github.com/unspool/unspool/arch"
)

// machoFormat is Mach-O: one program, or a universal file of several (Mac OS X ABI Mach-O File Format Reference; mach-o/loader.h, fat.h, nlist.h).
//
// A section is named by its segment and itself, with a comma between: "__TEXT,__eh_frame". Number 0 is an empty one, so that sections have the
// numbers that symbols give them. In an object file (MH_OBJECT), sections have addresses of their own already, from 0 on.
var machoFormat = format{
	name:        "Mach-O",
	has:         func(b []byte) bool { return machoMagic(b[:4]) != 0 || fatMagic(b[:4]) != 0 },
	kind:        kindMachO,
	read:        (*Image).readMachO,
	buildID:     func(img *Image) []byte { return img.macho.uuid },
	headers:     (*Image).sumMachO,
	hashed:      []string{"__TEXT,__text", "__TEXT,__unwind_info", "__TEXT,__eh_frame", "__LD,__compact_unwind", "__DWARF,__debug_frame", "__TEXT,__gopclntab"},
	symbolTable: (*Image).machoSymbolTable,
	symbols:     (*Image).machoSymbols,
}

// A machoHeader is what a Mach-O file says besides the neutral parts of an Image.
type machoHeader struct {
	typ, subtype uint32
	commands     []byte
	uuid         []byte
	symtab       [4]uint32 // of LC_SYMTAB: offset and number of the symbols, offset and size of the names
	whole        []byte    // the universal file around this program; nil where there is none
	slices       []Slice
}

// File types, load commands and numbers of processors (mach-o/loader.h, mach/machine.h).
const (
	mhObject, mhExecute, mhDylib, mhDylinker, mhBundle, mhKext = 1, 2, 6, 7, 8, 11

	lcSegment, lcSymtab, lcSegment64, lcUUID, lcMain = 0x1, 0x2, 0x19, 0x1b, 0x80000028

	cpu64, cpu64on32 = 1 << 24, 2 << 24
	cpuX86, cpuARM   = 7, 12
	arm64e           = 2 // of the subtype, whose high byte has flags
)

// machoMachine returns the ELF number of a processor, which is how arch knows machines; 0 if it has none here.
func machoMachine(cpu uint32) uint16 {
	switch cpu {
	case cpuX86:
		return arch.EM_386
	case cpuX86 | cpu64:
		return arch.EM_X86_64
	case cpuARM:
		return arch.EM_ARM
	case cpuARM | cpu64, cpuARM | cpu64on32:
		return arch.EM_AARCH64
	}
	return 0
}

// cpuName is what Apple's tools call a processor.
func cpuName(cpu, subtype uint32) string {
	switch cpu {
	case cpuX86:
		return "i386"
	case cpuX86 | cpu64:
		if subtype&0xff == 8 {
			return "x86_64h"
		}
		return "x86_64"
	case cpuARM:
		if n, ok := map[uint32]string{6: "armv6", 9: "armv7", 11: "armv7s", 12: "armv7k"}[subtype&0xff]; ok {
			return n
		}
		return "arm"
	case cpuARM | cpu64:
		if subtype&0xff == arm64e {
			return "arm64e"
		}
		return "arm64"
	case cpuARM | cpu64on32:
		return "arm64_32"
	}
	return fmt.Sprintf("cpu-%#x", cpu)
}

// machoMagic returns 4 or 8, the bytes of an address, for the beginning of a program; otherwise 0.
func machoMagic(b []byte) int {
	switch string(b) {
	case "\xce\xfa\xed\xfe", "\xfe\xed\xfa\xce":
		return 4
	case "\xcf\xfa\xed\xfe", "\xfe\xed\xfa\xcf":
		return 8
	}
	return 0
}

// fatMagic returns the bytes that a universal file's header has for each program; 0 for other files.
func fatMagic(b []byte) uint64 {
	switch string(b) {
	case "\xca\xfe\xba\xbe":
		return 20
	case "\xca\xfe\xba\xbf":
		return 32
	}
	return 0
}

// maxSlices bounds the programs of a universal file. The classes of Java begin as such files do, and have a version of 45 or more in the place of
// the number.
const maxSlices = 40

// isUniversal says whether a file begins like a universal one, and has not too many programs.
func isUniversal(b []byte) bool {
	if len(b) < 8 || fatMagic(b[:4]) == 0 {
		return false
	}
	n := binary.BigEndian.Uint32(b[4:])
	return n > 0 && n <= maxSlices
}

// A Slice is a program in a universal file.
type Slice struct {
	Name      string // "x86_64", "arm64", "arm64e"
	Off, Size uint64 // in the file
	Taken     bool   // it is what the Image shows

	machine uint16
}

// Slices returns the programs in a universal Mach-O file; none for another file. The Image shows the one for the machine that it is opened on, and
// where there is none, the first that can be read.
func (img *Image) Slices() []Slice { return slices.Clone(img.macho.slices) }

// Slice returns another program of a universal file, as an image in memory: it is valid as long as img is open.
func (img *Image) Slice(s Slice) (*Image, error) {
	whole := img.macho.whole
	if s.Off > uint64(len(whole)) || s.Size > uint64(len(whole))-s.Off {
		return nil, img.errorf(0, ErrTruncated, "program %s at %#x, of %#x bytes", s.Name, s.Off, s.Size)
	}
	x, err := newImage(img.name, whole[s.Off:s.Off+s.Size:s.Off+s.Size], min(s.Size, img.reach), false)
	if err == nil {
		x.base = s.Off
	}
	return x, err
}

// fat reads a universal file's header.
func fat(b []byte, entry uint64) (list []Slice, err error) {
	n := uint64(0)
	if len(b) >= 8 {
		n = uint64(binary.BigEndian.Uint32(b[4:]))
	}
	if n == 0 || n > maxSlices {
		return nil, ErrFormat
	}
	if uint64(len(b)) < 8+n*entry {
		return nil, ErrTruncated
	}
	for at := b[8 : 8+n*entry]; len(at) > 0; at = at[entry:] {
		f := fields{at, binary.BigEndian, entry == 32}
		cpu, subtype := f.u32(), f.u32()
		list = append(list, Slice{Name: cpuName(cpu, subtype), Off: f.word(), Size: f.word(), machine: machoMachine(cpu)})
	}
	return list, nil
}

// readMachO reads the headers of a Mach-O file; of a universal one, those of the program that it takes.
func (img *Image) readMachO() error {
	if entry := fatMagic(img.b[:4]); entry != 0 {
		list, err := fat(img.b, entry)
		if err != nil {
			return img.errorf(0, err, "universal header")
		}
		host := map[string]uint16{"amd64": arch.EM_X86_64, "arm64": arch.EM_AARCH64}[runtime.GOARCH]
		inside := func(s Slice) bool {
			size := uint64(len(img.b))
			return s.Off <= size && s.Size <= size-s.Off && s.Size >= 4 && machoMagic(img.b[s.Off:s.Off+4]) != 0
		}
		take := slices.IndexFunc(list, func(s Slice) bool { return s.machine == host && inside(s) })
		if take < 0 {
			take = slices.IndexFunc(list, inside)
		}
		if take < 0 {
			return img.errorf(8, ErrMalformed, "none of %d programs is there", len(list))
		}
		list[take].Taken = true
		s := list[take]
		img.macho.slices, img.macho.whole = list, img.b
		img.b, img.base = img.b[s.Off:s.Off+s.Size:s.Off+s.Size], s.Off
	}
	return img.machoHeaders()
}

// machoHeaders reads the header and the load commands.
func (img *Image) machoHeaders() error {
	size := uint64(28)
	if img.is64 = machoMagic(img.b[:4]) == 8; img.is64 {
		size = 32
	}
	img.order = binary.LittleEndian
	if img.b[0] == 0xfe {
		img.order = binary.BigEndian
	}
	h, ok := img.bytes(0, size)
	if !ok {
		return img.errorf(0, ErrTruncated, "header")
	}
	f := img.fields(h[4:])
	cpu := f.u32()
	img.macho.subtype, img.macho.typ = f.u32(), f.u32()
	n, bytes := f.u32(), uint64(f.u32())
	img.linked = img.macho.typ != mhObject
	if img.machine = arch.ByELF(machoMachine(cpu)); machoMachine(cpu) == 0 {
		return img.errorf(4, ErrUnsupported, "processor %#x", cpu)
	}
	all, ok := img.bytes(size, bytes)
	if !ok {
		return img.errorf(size, ErrTruncated, "load commands of %#x bytes", bytes)
	}
	img.macho.commands = all
	img.secs = []Section{{}}
	entry := uint64(0)
	for i, at := uint32(0), size; i < n; i++ {
		if len(all) < 8 {
			img.secsErr = img.errorf(at, ErrTruncated, "load command %d of %d", i, n)
			break
		}
		f := img.fields(all)
		cmd, length := f.u32(), uint64(f.u32())
		if length < 8 || length > uint64(len(all)) {
			img.secsErr = img.errorf(at, ErrMalformed, "load command %d of %d bytes", i, length)
			break
		}
		body := all[8:length]
		switch {
		case cmd == lcSegment64 && img.is64, cmd == lcSegment && !img.is64:
			if err := img.machoSegment(body, at); err != nil && img.secsErr == nil {
				img.secsErr = err
			}
		case cmd == lcSymtab && len(body) >= 16:
			f := img.fields(body)
			img.macho.symtab = [4]uint32{f.u32(), f.u32(), f.u32(), f.u32()}
		case cmd == lcUUID && len(body) >= 16:
			img.macho.uuid = slices.Clone(body[:16])
		case cmd == lcMain && len(body) >= 8:
			entry = img.order.Uint64(body)
		}
		all, at = all[length:], at+length
	}
	if img.macho.typ == mhObject {
		img.placeMachO()
	}
	if entry != 0 {
		img.entry, _ = img.OffToVaddr(entry)
	}
	return nil
}

// machoPerm is what VM_PROT_ flags (mach/vm_prot.h) allow.
func machoPerm(prot uint32) (p Perm) {
	if prot&1 != 0 {
		p |= Read
	}
	if prot&2 != 0 {
		p |= Write
	}
	if prot&4 != 0 {
		p |= Exec
	}
	return p
}

// machoSegment reads the rest of a segment's load command, which is at an offset, and its sections.
func (img *Image) machoSegment(b []byte, at uint64) error {
	head, size := 48, 68
	if img.is64 {
		head, size = 64, 80
	}
	if len(b) < head {
		return img.errorf(at, ErrTruncated, "segment")
	}
	name := cutZeros(b[:16])
	f := img.fields(b[16:])
	s := Segment{macho: name}
	s.Vaddr, s.MemSize = arch.Vaddr(f.word()), f.word()
	s.Off, s.Size = f.word(), f.word()
	f.u32() // the most that it may become
	s.Perm = machoPerm(f.u32())
	n := int(f.u32())
	// What no process maps has a place in a file that only debuggers read.
	if debug := name == "__DWARF"; !debug && s.Perm != 0 {
		if s.Kind = Loaded; s.Size > 0 {
			img.load = append(img.load, s)
		}
	}
	img.segs = append(img.segs, s)
	var err error
	if room := (len(b) - head) / size; n > room {
		n, err = room, img.errorf(at, ErrTruncated, "%d sections of segment %s", n, name)
	}
	for i := range n {
		img.secs = append(img.secs, img.machoSection(b[head+i*size:], s))
	}
	return err
}

// Flags of sections (mach-o/loader.h).
const (
	sTypeMask                             = 0xff
	sZerofill, sGBZerofill, sThreadZeroed = 0x1, 0xc, 0x12
	sInstructions                         = 0x80000400 // S_ATTR_PURE_INSTRUCTIONS, S_ATTR_SOME_INSTRUCTIONS
)

func (img *Image) machoSection(b []byte, in Segment) Section {
	segment := cutZeros(b[16:32])
	s := Section{Name: segment + "," + cutZeros(b[:16]), index: len(img.secs)}
	f := img.fields(b[32:])
	s.Addr, s.Size = arch.Vaddr(f.word()), f.word()
	s.Off = uint64(f.u32())
	f.u32() // alignment
	s.macho.relocs, s.macho.nrelocs = f.u32(), f.u32()
	flags := f.u32()
	switch flags & sTypeMask {
	case sZerofill, sGBZerofill, sThreadZeroed:
		s.Empty = true
	}
	if s.Off == 0 && in.Off != 0 { // the other file of a program and its debug information has the bytes
		s.Empty = true
	}
	switch {
	case in.Kind != Loaded:
	case img.linked:
		s.Perm = in.Perm
	case segment == "__TEXT":
		s.Perm = Read | Exec
	case segment != "__LD" && segment != "__DWARF":
		s.Perm = Read | Write
	}
	if flags&sInstructions == 0 {
		s.Perm &^= Exec
	}
	return s
}

// A machoSectionHeader is what a section's header says besides a Section.
type machoSectionHeader struct{ relocs, nrelocs uint32 }

// cutZeros returns a name in a field of fixed size.
func cutZeros(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

func (img *Image) sumMachO(h io.Writer) {
	fmt.Fprint(h, len(img.b), img.macho.typ, img.machine.ELF)
	h.Write(img.macho.commands)
}

func kindMachO(f io.ReaderAt) FileKind {
	var b [16]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return UnknownFile
	}
	if entry := fatMagic(b[:4]); entry != 0 { // programs are never in one file with objects
		head := make([]byte, 8+maxSlices*entry)
		n, _ := f.ReadAt(head, 0)
		list, err := fat(head[:n], entry)
		if err != nil || list[0].Off > 1<<62 {
			return UnknownFile
		}
		_, err = f.ReadAt(b[:], int64(list[0].Off))
		if err == nil && isArchive(b[:]) {
			return ArchiveFile
		}
		if err != nil || machoMagic(b[:4]) == 0 {
			return UnknownFile
		}
	}
	typ := binary.LittleEndian.Uint32(b[12:])
	if b[0] == 0xfe {
		typ = binary.BigEndian.Uint32(b[12:])
	}
	switch typ {
	case mhExecute, mhDylib, mhDylinker, mhBundle, mhKext:
		return LinkedFile
	case mhObject:
		return ObjectFile
	}
	return UnknownFile
}

// Types of symbols (mach-o/nlist.h).
const (
	nStab, nType, nExt, nPrivate = 0xe0, 0x0e, 0x01, 0x10
	nAbs, nSect                  = 0x2, 0xe

	nWeakDef = 0x80 // of the description
)

// machoSymbolTable makes a table as ELF has it, of the functions and data that the file defines and names. The compiler puts an underscore before
// the names of the source; it is left out.
func (img *Image) machoSymbolTable(dynamic bool) (SymbolTable, bool) {
	le := binary.LittleEndian
	t := SymbolTable{Order: le, Is64: true, Thumb: false}
	if dynamic {
		return t, false
	}
	syms, names, err := img.machoSymtab()
	if err != nil || names == nil {
		return t, false
	}
	// ELF's first symbol is none.
	t.Names, t.Entries = names, make([]byte, 24, 24+24*(len(syms)/img.nlist()))
	for ; len(syms) > 0; syms = syms[img.nlist():] {
		e, ok := img.machoSymbol(syms)
		if !ok || uint64(e.Name) >= uint64(len(names)) {
			continue
		}
		if names[e.Name] == '_' {
			e.Name++
		}
		b := le.AppendUint32(t.Entries, e.Name)
		b = append(b, byte(e.Bind)<<4|byte(e.Kind), 0)
		b = le.AppendUint16(b, uint16(e.Section))
		t.Entries = le.AppendUint64(le.AppendUint64(b, e.Value), e.Size)
	}
	return t, t.Len() > 1
}

// nlist is the size of a symbol.
func (img *Image) nlist() int {
	if img.is64 {
		return 16
	}
	return 12
}

// machoSymtab returns the symbols and the names.
func (img *Image) machoSymtab() (syms, names []byte, err error) {
	at := img.macho.symtab
	syms, ok := img.bytes(uint64(at[0]), uint64(at[1])*uint64(img.nlist()))
	if !ok {
		return nil, nil, img.errorf(uint64(at[0]), ErrTruncated, "%d symbols", at[1])
	}
	names, ok = img.bytes(uint64(at[2]), uint64(at[3]))
	if !ok {
		return nil, nil, img.errorf(uint64(at[2]), ErrTruncated, "names of symbols, %#x bytes", at[3])
	}
	return syms, names, nil
}

// machoSymbol reads a symbol; ok is false for those that debuggers use, and for those that the file does not define.
func (img *Image) machoSymbol(b []byte) (e SymbolEntry, ok bool) {
	f := img.fields(b)
	e.Name = f.u32()
	typ, section := f.b[0], f.b[1]
	f.b = f.b[2:]
	desc := f.u16()
	e.Value = f.word()
	if img.layout != nil && typ&nType == nSect {
		e.Value += firstPlace
	}
	if typ&nStab != 0 || typ&nType != nSect && typ&nType != nAbs {
		return e, false
	}
	e.Section = 0xfff1 // SHN_ABS
	if typ&nType == nSect {
		e.Section, e.Kind = SectionIndex(section), Object
		if int(section) < len(img.secs) && img.secs[section].Perm&Exec != 0 {
			e.Kind = Func
		}
	}
	switch {
	case typ&nExt == 0 || typ&nPrivate != 0:
		e.Bind = Local
	case desc&nWeakDef != 0:
		e.Bind = Weak
	default:
		e.Bind = Global
	}
	return e, true
}

func (img *Image) machoSymbols(yield func(Symbol) bool) error {
	syms, names, err := img.machoSymtab()
	for ; err == nil && len(syms) > 0; syms = syms[img.nlist():] {
		e, ok := img.machoSymbol(syms)
		if !ok {
			continue
		}
		s := Symbol{Value: arch.Vaddr(e.Value), Kind: e.Kind, Bind: e.Bind, Section: e.Section}
		if uint64(e.Name) < uint64(len(names)) {
			if s.Name = alias(names[e.Name:]); s.Name != "" && s.Name[0] == '_' {
				s.Name = s.Name[1:]
			}
		}
		if !yield(s) {
			break
		}
	}
	return err
}
