package module

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"github.com/unspool/unspool/arch"
)

// Of Microsoft's "PE Format": sizes of headers, in bytes, and the data directories that are read.
const (
	dosHeader     = 64
	coffHeader    = 20
	peSection     = 40
	coffSymbol    = 18
	peOptional32  = 96 // before the data directories
	peOptional64  = 112
	dirExport     = 0
	dirImport     = 1
	dirException  = 3
	dirDebug      = 6
	debugEntry    = 28
	debugCodeView = 2 // IMAGE_DEBUG_TYPE_CODEVIEW

	scnUninitialized = 0x80
	scnExecute       = 0x20000000
	scnRead          = 0x40000000
	scnWrite         = 0x80000000

	symExternal = 2    // IMAGE_SYM_CLASS_EXTERNAL
	symStatic   = 3    // IMAGE_SYM_CLASS_STATIC
	symFunction = 0x20 // IMAGE_SYM_DTYPE_FUNCTION, as it is in Type
)

// A portable is what a PE image, or an object file, has besides sections.
type portable struct {
	base    arch.Vaddr // what relative addresses count from
	headers uint32     // bytes in the file
	stamp   uint32     // when it was linked, or a hash
	size    uint32     // bytes in memory
	dirs    [16]struct{ rva, size uint32 }
	symtab  uint64 // file offset of the COFF symbols, and their number
	nsyms   uint64
	symbol  uint64   // bytes of a COFF symbol
	relocs  []relocs // of an object file's sections
}

var peFormat = format{
	name:    "PE",
	has:     func(b []byte) bool { return b[0] == 'M' && b[1] == 'Z' },
	kind:    kindPE,
	read:    (*Image).readPE,
	buildID: (*Image).codeView,
	headers: func(img *Image, h io.Writer) {
		b, _ := img.bytes(0, uint64(img.pe.headers))
		fmt.Fprint(h, len(img.b), len(b))
		h.Write(b)
	},
	hashed: []string{".text", ".rdata", ".pdata", ".xdata", ".eh_frame", ".debug_frame", ".edata"},
	symbolTable: func(img *Image, dynamic bool) (SymbolTable, bool) {
		t, _ := img.peSymbols(dynamic)
		return t, t.Len() > 1
	},
	symbols: func(img *Image, yield func(Symbol) bool) (first error) {
		for _, dynamic := range []bool{false, true} {
			t, err := img.peSymbols(dynamic)
			first = cmp.Or(first, err)
			if !t.each(dynamic, yield) {
				break
			}
		}
		return first
	},
}

// each yields all symbols of a table but the first, which names nothing; it returns false if yield wanted no more.
func (t *SymbolTable) each(dynamic bool, yield func(Symbol) bool) bool {
	for i := 1; i < t.Len(); i++ {
		e := t.At(i)
		if !yield(Symbol{Name: alias(t.Names[e.Name:]), Value: arch.Vaddr(e.Value), Kind: e.Kind, Bind: e.Bind, Section: e.Section, Dynamic: dynamic}) {
			return false
		}
	}
	return true
}

// linkedPE says whether a DOS header leads to a PE header: an executable or a DLL.
func kindPE(f io.ReaderAt) FileKind {
	var b [4]byte
	if _, err := f.ReadAt(b[:], 60); err != nil {
		return UnknownFile
	}
	if _, err := f.ReadAt(b[:], int64(binary.LittleEndian.Uint32(b[:]))); err != nil || string(b[:]) != "PE\x00\x00" {
		return UnknownFile
	}
	return LinkedFile
}

// Stamp returns the time and the size in memory, in bytes, of a PE file's headers: symbol servers name the file by them. ok is false for other images.
func (img *Image) Stamp() (time, size uint32, ok bool) {
	if img.pe == nil || !img.linked {
		return 0, 0, false
	}
	return img.pe.stamp, img.pe.size, true
}

// LoadedPE reads a PE image from the memory of a process, which b has from its base to its end: each section's offset is that of its address. COFF symbols
// are in the file only. LoadedPE changes b's headers; b must not change afterwards.
func LoadedPE(name string, b []byte) (*Image, error) {
	le, size := binary.LittleEndian, uint64(len(b))
	if size < dosHeader || !peFormat.has(b) {
		return nil, &Error{name, 0, "header", ErrFormat}
	}
	at := uint64(le.Uint32(b[60:]))
	if at+4+coffHeader > size {
		return nil, &Error{name, at, "PE header", ErrTruncated}
	}
	h := b[at+4:]
	clear(h[8:16]) // where the symbols are, and their number
	n := uint64(le.Uint16(h[2:]))
	if at += 4 + coffHeader + uint64(le.Uint16(h[16:])); at+n*peSection > size {
		return nil, &Error{name, at, fmt.Sprintf("%d section headers", n), ErrTruncated}
	}
	for i := range n {
		s := b[at+i*peSection:]
		virtual, addr := uint64(le.Uint32(s[8:])), uint64(le.Uint32(s[12:]))
		if addr >= size {
			return nil, &Error{name, at + i*peSection, fmt.Sprintf("section %d at %#x", i, addr), ErrTruncated}
		}
		le.PutUint32(s[16:], uint32(min(virtual, size-addr)))
		le.PutUint32(s[20:], uint32(addr))
	}
	return New(name, b)
}

// readPE reads the headers of an executable or a DLL.
func (img *Image) readPE() error {
	le := binary.LittleEndian
	img.order = le
	h, ok := img.bytes(0, dosHeader)
	if !ok {
		return img.errorf(0, ErrTruncated, "header")
	}
	at := uint64(le.Uint32(h[60:]))
	if h, ok = img.bytes(at, 4+coffHeader); !ok {
		return img.errorf(at, ErrTruncated, "PE header")
	}
	if string(h[:4]) != "PE\x00\x00" {
		return img.errorf(at, ErrFormat, "a program for DOS")
	}
	h = h[4:]
	p := &portable{stamp: le.Uint32(h[4:]), symtab: uint64(le.Uint32(h[8:])), nsyms: uint64(le.Uint32(h[12:])), symbol: coffSymbol}
	img.pe, img.linked = p, true
	img.machine = arch.ByCOFF(le.Uint16(h))
	nsecs, optional := uint64(le.Uint16(h[2:])), uint64(le.Uint16(h[16:]))
	at += 4 + coffHeader
	o, ok := img.bytes(at, optional)
	if !ok {
		return img.errorf(at, ErrTruncated, "optional header of %d bytes", optional)
	}
	magic := uint16(0)
	if len(o) >= 2 {
		magic = le.Uint16(o)
	}
	fixed := peOptional32
	switch magic {
	case 0x10b:
	case 0x20b:
		img.is64, fixed = true, peOptional64
	default:
		return img.errorf(at, ErrUnsupported, "optional header %#x", magic)
	}
	if len(o) < fixed {
		return img.errorf(at, ErrTruncated, "optional header of %d bytes", optional)
	}
	if img.is64 {
		p.base = arch.Vaddr(le.Uint64(o[24:]))
	} else {
		p.base = arch.Vaddr(le.Uint32(o[28:]))
	}
	img.entry = p.base + arch.Vaddr(le.Uint32(o[16:]))
	p.size, p.headers = le.Uint32(o[56:]), le.Uint32(o[60:])
	n := min(uint64(le.Uint32(o[fixed-4:])), uint64(len(p.dirs)), uint64(len(o)-fixed)/8)
	for i := range n {
		d := o[uint64(fixed)+8*i:]
		p.dirs[i].rva, p.dirs[i].size = le.Uint32(d), le.Uint32(d[4:])
	}
	p.headers = uint32(min(uint64(p.headers), uint64(len(img.b))))
	img.addLoaded(Segment{Kind: Headers, Perm: Read, Vaddr: p.base, Size: uint64(p.headers), MemSize: uint64(p.headers)})
	img.addLoaded(Segment{Kind: Loaded, Perm: Read, Vaddr: p.base, Size: uint64(p.headers), MemSize: uint64(p.headers)})
	img.readPESections(at+optional, nsecs)
	if x := p.dirs[dirException]; x.size > 0 {
		off, ok := img.VaddrToOff(p.base + arch.Vaddr(x.rva))
		if !ok {
			off = uint64(len(img.b)) // its contents are truncated
		}
		img.addLoaded(Segment{Kind: Functions, Perm: Read, Off: off, Vaddr: p.base + arch.Vaddr(x.rva), Size: uint64(x.size), MemSize: uint64(x.size)})
	}
	return nil
}

// addLoaded appends a segment.
func (img *Image) addLoaded(s Segment) {
	img.segs = append(img.segs, s)
	if s.Kind == Loaded && s.Size > 0 {
		img.load = append(img.load, s)
	}
}

// maxPESections is how many sections Windows loads of an image.
const maxPESections = 96

// readPESections reads the section headers that are there.
func (img *Image) readPESections(off, num uint64) {
	le := binary.LittleEndian
	if num > maxPESections {
		img.secsErr = img.errorf(off, ErrUnsupported, "%d sections", num)
		num = maxPESections
	}
	if room := (uint64(len(img.b)) - min(off, uint64(len(img.b)))) / peSection; num > room {
		img.secsErr = img.errorf(off, ErrTruncated, "%d section headers", num)
		num = room
	}
	all, ok := img.bytes(off, num*peSection)
	if !ok {
		img.secsErr = img.errorf(off, ErrTruncated, "%d section headers", num)
		return
	}
	names := img.coffStrings()
	room := min(uint64(len(img.b)), img.reach)
	for i := 0; len(all) > 0; i, all = i+1, all[peSection:] {
		virtual, raw, flags := uint64(le.Uint32(all[8:])), uint64(le.Uint32(all[16:])), le.Uint32(all[36:])
		s := Section{Addr: img.pe.base + arch.Vaddr(le.Uint32(all[12:])), Off: uint64(le.Uint32(all[20:])), Size: raw, index: i}
		if virtual != 0 {
			s.Size = min(raw, virtual) // the rest of raw fills a block of the file
		}
		s.Name = coffName(all, names, &room)
		s.Empty = raw == 0 || flags&scnUninitialized != 0 && s.Off == 0
		s.Perm = pePerm(flags)
		img.secs = append(img.secs, s)
		g := Segment{Kind: Loaded, Perm: s.Perm, Off: s.Off, Vaddr: s.Addr, Size: s.Size, MemSize: cmp.Or(virtual, raw)}
		if s.Empty {
			g.Off, g.Size = 0, 0
		}
		img.addLoaded(g)
	}
}

// pePerm translates a section's flags.
func pePerm(flags uint32) (p Perm) {
	for _, f := range []struct {
		flag uint32
		perm Perm
	}{{scnRead, Read}, {scnWrite, Write}, {scnExecute, Exec}} {
		if flags&f.flag != 0 {
			p |= f.perm
		}
	}
	return p
}

// coffStrings returns the string table, its size included; nil where there is none.
func (img *Image) coffStrings() []byte {
	if img.pe.symtab == 0 {
		return nil
	}
	at := img.pe.symtab + img.pe.symbol*img.pe.nsyms
	h, ok := img.bytes(at, 4)
	if !ok {
		return nil
	}
	b, _ := img.bytes(at, uint64(binary.LittleEndian.Uint32(h)))
	return b
}

// peSymbols makes the table of exports, which other files see, or that of COFF symbols.
func (img *Image) peSymbols(dynamic bool) (SymbolTable, error) {
	if dynamic {
		return img.exports()
	}
	return img.coffSymbols()
}

// coffSymbols makes a table of the functions and data that COFF symbols name. Names together are no longer than the file.
func (img *Image) coffSymbols() (t SymbolTable, err error) {
	t = SymbolTable{Order: binary.LittleEndian, Is64: true}
	p, le := img.pe, binary.LittleEndian
	if p.symtab == 0 || p.nsyms == 0 {
		return t, nil
	}
	all, ok := img.bytes(p.symtab, p.symbol*p.nsyms)
	if !ok {
		n := (uint64(len(img.b)) - min(p.symtab, uint64(len(img.b)))) / p.symbol
		all, _ = img.bytes(p.symtab, p.symbol*n)
		err = img.errorf(p.symtab, ErrTruncated, "%d COFF symbols", p.nsyms)
	}
	names := img.coffStrings()
	t.Add("", SymbolEntry{}) // symbol 0 names nothing
	for len(all) >= int(p.symbol) {
		s := p.symbolAt(all)
		all = all[min(int(p.symbol)*(1+s.aux), len(all)):]
		sec, class, aux := s.section, s.class, s.aux
		if sec == 0 || uint64(sec) > uint64(len(img.secs)) || class != symExternal && class != symStatic {
			continue
		}
		var name string
		if le.Uint32(s.name) == 0 {
			if at := le.Uint32(s.name[4:]); at >= 4 && uint64(at) < uint64(len(names)) {
				name = alias(names[at:])
			}
		} else {
			name = string(bytes.TrimRight(s.name, "\x00"))
		}
		in := &img.secs[sec-1]
		own, _, _ := strings.Cut(in.Name, "#")
		if name == "" || class == symStatic && (name == in.Name || aux > 0 && name == own) || img.layout != nil && in.Perm == 0 {
			continue
		}
		if int64(len(t.Names)+len(name)) > img.Reach() {
			return t, img.errorf(p.symtab, ErrMalformed, "names of COFF symbols overlap")
		}
		e := SymbolEntry{Kind: Object, Bind: Global, Section: s.index(), Value: uint64(in.Addr) + uint64(s.value)}
		if class == symStatic {
			e.Bind = Local
		}
		if s.typ&0xf0 == symFunction || in.Perm&Exec != 0 {
			e.Kind = Func
		}
		t.Add(name, e)
	}
	return t, err
}

// exports makes a table of what the export directory names: functions, where they are in executable sections. What is forwarded to another
// DLL is left out. Names together are no longer than the file.
func (img *Image) exports() (t SymbolTable, err error) {
	t = SymbolTable{Order: binary.LittleEndian, Is64: true}
	p, le := img.pe, binary.LittleEndian
	dir := p.dirs[dirExport]
	if dir.size == 0 {
		return t, nil
	}
	table := func(rva uint32, n uint64) []byte {
		b := img.Tail(p.base + arch.Vaddr(rva))
		if n > uint64(len(b)) {
			off, _ := img.VaddrToOff(p.base + arch.Vaddr(dir.rva))
			err = img.errorf(off, ErrTruncated, "export directory")
		}
		return b[:min(n, uint64(len(b)))]
	}
	h := table(dir.rva, 40)
	if len(h) < 40 {
		return t, err
	}
	nfuncs, nnames := uint64(le.Uint32(h[20:])), uint64(le.Uint32(h[24:]))
	funcs, names, ordinals := table(le.Uint32(h[28:]), 4*nfuncs), table(le.Uint32(h[32:]), 4*nnames), table(le.Uint32(h[36:]), 2*nnames)
	t.Add("", SymbolEntry{})
	for i := 0; 4*i+4 <= len(names) && 2*i+2 <= len(ordinals); i++ {
		k := int(le.Uint16(ordinals[2*i:]))
		if 4*k+4 > len(funcs) {
			continue
		}
		rva := le.Uint32(funcs[4*k:])
		name := alias(img.Tail(p.base + arch.Vaddr(le.Uint32(names[4*i:]))))
		if name == "" || rva == 0 || rva-dir.rva < dir.size {
			continue
		}
		if int64(len(t.Names)+len(name)) > img.Reach() {
			off, _ := img.VaddrToOff(p.base + arch.Vaddr(dir.rva))
			return t, img.errorf(off, ErrMalformed, "names of exports overlap")
		}
		e := SymbolEntry{Kind: Object, Bind: Global, Section: 1, Value: uint64(p.base) + uint64(rva)}
		for j := range img.secs {
			if s := &img.secs[j]; e.Value-uint64(s.Addr) < s.Size {
				e.Section = SectionIndex(j + 1)
				if s.Perm&Exec != 0 {
					e.Kind = Func
				}
			}
		}
		t.Add(name, e)
	}
	return t, err
}

// Imports calls yield with the slots of the import address table: the loader writes addresses of functions of other DLLs there. name reads the
// function's name, which is "" for one that is imported by number. Reading stops where yield returns false, or at damage.
func (img *Image) Imports(yield func(at arch.Vaddr, name func() string) bool) {
	p, le := img.pe, binary.LittleEndian
	if p == nil || p.dirs[dirImport].size == 0 {
		return
	}
	const descriptor = 20
	size := arch.Vaddr(4)
	if img.is64 {
		size = 8
	}
	left, named := img.Reach()/int64(size), img.Reach()
	for d := img.Tail(p.base + arch.Vaddr(p.dirs[dirImport].rva)); len(d) >= descriptor && le.Uint32(d[16:]) != 0; d = d[descriptor:] {
		at := p.base + arch.Vaddr(le.Uint32(d[16:]))
		names := img.Tail(p.base + arch.Vaddr(cmp.Or(le.Uint32(d), le.Uint32(d[16:]))))
		if left--; left < 0 {
			return
		}
		for ; len(names) >= int(size); names, at = names[size:], at+size {
			v, ordinal := uint64(le.Uint32(names)), uint64(1)<<31
			if img.is64 {
				v, ordinal = le.Uint64(names), 1<<63
			}
			if left--; v == 0 || left < 0 {
				break
			}
			name := func() string {
				b := img.Tail(p.base + arch.Vaddr(v) + 2) // behind the number that the linker guessed
				if v&ordinal != 0 || named <= 0 {
					return ""
				}
				s := cstring(b[:min(int64(len(b)), named, maxName)])
				named -= int64(len(s))
				return s
			}
			if !yield(at, name) {
				return
			}
		}
	}
}

// codeView names the PDB that was written with the image: its GUID, the first byte of its text form first, and its age, the high byte first.
// It is nil where the image names none.
func (img *Image) codeView() []byte {
	p, le := img.pe, binary.LittleEndian
	dir := p.dirs[dirDebug]
	b, _ := img.At(p.base+arch.Vaddr(dir.rva), int(min(dir.size, 64*debugEntry)))
	for ; len(b) >= debugEntry; b = b[debugEntry:] {
		if le.Uint32(b[12:]) != debugCodeView {
			continue
		}
		x, ok := img.bytes(uint64(le.Uint32(b[24:])), 24)
		if !ok || string(x[:4]) != "RSDS" { // tools that move sections leave the place in the file behind
			x, ok = img.At(p.base+arch.Vaddr(le.Uint32(b[20:])), 24)
		}
		if ok && string(x[:4]) == "RSDS" {
			be := binary.BigEndian
			id := be.AppendUint32(nil, le.Uint32(x[4:]))
			id = be.AppendUint16(be.AppendUint16(id, le.Uint16(x[8:])), le.Uint16(x[10:]))
			return be.AppendUint32(append(id, x[12:20]...), le.Uint32(x[20:]))
		}
	}
	return nil
}
