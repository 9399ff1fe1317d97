package module

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/unspool/unspool/arch"
)

// relocated are how the names begin of the sections whose relocations are applied: those that unwinding reads.
var relocated = []string{".eh_frame", ".debug_frame", ".zdebug_frame", ".sframe", ".orc_unwind", ".gcc_except_tab", ".compact_unwind", ".ARM.exidx", ".ARM.extab", ".gnu_extab"}

// A RelocError is a relocation that could not be applied: its field is as the file has it.
type RelocError struct {
	Section string
	Off     uint64 // in the section
	Type    string
	Msg     string
	Err     error // ErrMalformed, ErrUnsupported
}

func (e *RelocError) Error() string {
	return fmt.Sprintf("%s+%#x: relocation %s: %s: %v", e.Section, e.Off, e.Type, e.Msg, e.Err)
}

func (e *RelocError) Unwrap() error { return e.Err }

// RelocErrors are those of a section, sorted by place.
type RelocErrors []RelocError

// In returns the first one in [lo, hi) of the section; nil where there is none.
func (list RelocErrors) In(lo, hi uint64) *RelocError {
	i := sort.Search(len(list), func(i int) bool { return list[i].Off >= lo })
	if i < len(list) && list[i].Off < hi {
		return &list[i]
	}
	return nil
}

// relocationName spells a type as the machine's ABI does.
func relocationName(machine uint16, typ uint32) string {
	switch machine {
	case arch.EM_X86_64:
		return elf.R_X86_64(typ).String()
	case arch.EM_AARCH64:
		return elf.R_AARCH64(typ).String()
	case arch.EM_386:
		return elf.R_386(typ).String()
	case arch.EM_ARM:
		return elf.R_ARM(typ).String()
	case arch.EM_RISCV:
		return elf.R_RISCV(typ).String()
	case arch.EM_LOONG:
		return elf.R_LARCH(typ).String()
	case arch.EM_S390:
		return elf.R_390(typ).String()
	case arch.EM_MIPS:
		return elf.R_MIPS(typ).String()
	case arch.EM_PPC64:
		return elf.R_PPC64(typ).String()
	}
	return fmt.Sprint(typ)
}

// An operation says what a relocation writes: S is the address of its symbol, A the addend, P the field's address, V what the field has.
type operation uint8

const (
	opNone   operation = iota
	opSet              // S + A
	opPC               // S + A - P
	opAdd              // V + S + A
	opSub              // V - S - A
	opPrel31           // S + A - P in the low 31 bits; the top bit stays
)

// A limit says which values fit a field.
type limit uint8

const (
	wraps    limit = iota // all: what is cut off does not matter
	signed                // as a signed number
	unsigned              // as an unsigned one
	either
)

// A relocation is what a type does.
type relocation struct {
	op    operation
	size  uint8 // bytes of the field; sixBits and leb128 are no numbers of bytes
	limit limit
}

const (
	sixBits = 6  // the low six bits of a byte, as in DW_CFA_advance_loc
	leb128  = 10 // an unsigned LEB128 number, which keeps its length
)

// relocations are, for each machine, the types that assemblers put into unwind information: data, never instructions. Sources are the psABIs'
// tables of relocation types.
var relocations = map[uint16]map[uint32]relocation{
	arch.EM_X86_64: {
		0: {}, 1: {opSet, 8, wraps}, 2: {opPC, 4, signed}, 4: {opPC, 4, signed}, 10: {opSet, 4, unsigned}, 11: {opSet, 4, signed},
		12: {opSet, 2, either}, 13: {opPC, 2, signed}, 14: {opSet, 1, either}, 15: {opPC, 1, signed}, 24: {opPC, 8, wraps},
	},
	arch.EM_AARCH64: {
		0: {}, 256: {}, 257: {opSet, 8, wraps}, 258: {opSet, 4, either}, 259: {opSet, 2, either},
		260: {opPC, 8, wraps}, 261: {opPC, 4, either}, 262: {opPC, 2, either}, 314: {opPC, 4, signed},
	},
	arch.EM_386: {
		0: {}, 1: {opSet, 4, wraps}, 2: {opPC, 4, wraps}, 4: {opPC, 4, wraps}, 20: {opSet, 2, either}, 21: {opPC, 2, signed}, 22: {opSet, 1, either}, 23: {opPC, 1, signed},
	},
	arch.EM_ARM: {
		0: {}, 2: {opSet, 4, wraps}, 3: {opPC, 4, wraps}, 5: {opSet, 2, either}, 8: {opSet, 1, either}, 38: {opSet, 4, wraps}, 42: {opPrel31, 4, wraps},
	},
	arch.EM_RISCV: {
		0: {}, 1: {opSet, 4, either}, 2: {opSet, 8, wraps}, 33: {opAdd, 1, wraps}, 34: {opAdd, 2, wraps}, 35: {opAdd, 4, wraps}, 36: {opAdd, 8, wraps},
		37: {opSub, 1, wraps}, 38: {opSub, 2, wraps}, 39: {opSub, 4, wraps}, 40: {opSub, 8, wraps}, 51: {}, 52: {opSub, sixBits, wraps}, 53: {opSet, sixBits, wraps},
		54: {opSet, 1, wraps}, 55: {opSet, 2, wraps}, 56: {opSet, 4, wraps}, 57: {opPC, 4, signed}, 59: {opPC, 4, signed}, 60: {opSet, leb128, wraps}, 61: {opSub, leb128, wraps},
	},
	arch.EM_LOONG: {
		0: {}, 1: {opSet, 4, either}, 2: {opSet, 8, wraps}, 47: {opAdd, 1, wraps}, 48: {opAdd, 2, wraps}, 49: {opAdd, 3, wraps}, 50: {opAdd, 4, wraps}, 51: {opAdd, 8, wraps},
		52: {opSub, 1, wraps}, 53: {opSub, 2, wraps}, 54: {opSub, 3, wraps}, 55: {opSub, 4, wraps}, 56: {opSub, 8, wraps}, 99: {opPC, 4, signed}, 100: {},
		105: {opAdd, sixBits, wraps}, 106: {opSub, sixBits, wraps}, 107: {opAdd, leb128, wraps}, 108: {opSub, leb128, wraps}, 109: {opPC, 8, wraps},
	},
	arch.EM_S390: {
		0: {}, 1: {opSet, 1, either}, 3: {opSet, 2, either}, 4: {opSet, 4, either}, 5: {opPC, 4, signed}, 8: {opPC, 4, signed}, 16: {opPC, 2, signed}, 22: {opSet, 8, wraps}, 23: {opPC, 8, wraps},
	},
	arch.EM_MIPS:  {0: {}, 2: {opSet, 4, either}, 18: {opSet, 8, wraps}, 248: {opPC, 4, signed}, mipsPC64: {opPC, 8, wraps}},
	arch.EM_PPC64: {0: {}, 1: {opSet, 4, either}, 26: {opPC, 4, signed}, 38: {opSet, 8, wraps}, 44: {opPC, 8, wraps}},
}

// mipsPC64 is R_MIPS_PC32 with R_MIPS_64 behind it, of a 64-bit file, where a relocation has up to three types.
const mipsPC64 = 248 | 18<<8

// shtCREL is the type of a section of compact relocations, which LLVM writes where told to (--experimental-crel).
const shtCREL = 0x40000014

// Relocate returns the contents of a section, decompressed. In a file that is not linked, the relocations of sections that unwinding reads are
// applied: then addresses in them are those of Section.Addr, and of Place. bad has the relocations that could not be, sorted by place; each of
// these fields is as the file has it. Of an image that a program has made in its memory, debug information is relocated, too. The caller must not
// change the results.
func (img *Image) Relocate(s *Section) (b []byte, bad RelocErrors, err error) {
	is := func(name string) bool { return strings.HasPrefix(s.Common(), name) }
	unwinding := !s.Empty && (slices.ContainsFunc(relocated, is) || img.layout != nil && img.layout.all && s.Perm != 0 || img.inMemory && is(".debug_"))
	if b, err = img.contents(s); err == nil && unwinding {
		err = img.count(s)
	}
	if err != nil || !unwinding || img.layout == nil {
		return b, nil, err
	}
	img.relocating.Lock()
	defer img.relocating.Unlock()
	key := -1 - s.index // contents has the other half
	img.mu.Lock()
	got, ok := img.inflate[key]
	img.mu.Unlock()
	if ok {
		return got.b, got.bad, got.err
	}
	b, bad, err = img.apply(s, b)
	img.mu.Lock()
	defer img.mu.Unlock()
	img.inflate[key] = inflated{b: b, err: err, bad: bad}
	return b, bad, err
}

// count counts a section that unwinding reads, once. All these sections together are no larger than the file: headers that point again and
// again at the same bytes would multiply the work of each reader.
func (img *Image) count(s *Section) error {
	img.mu.Lock()
	defer img.mu.Unlock()
	if img.counted[s.index] {
		return nil
	}
	if s.Size > img.unread {
		return img.errorf(s.Off, ErrMalformed, "section %d %s: sections of unwind information overlap", s.index, s.Name)
	}
	img.counted[s.index] = true
	img.unread -= s.Size
	return nil
}

// maxRefused bounds the relocations of an image that are listed as not applied. A section with more than are left is refused.
const maxRefused = 1 << 16

// apply returns the contents of s, of which b are those in the file, with the relocations applied.
func (img *Image) apply(s *Section, b []byte) ([]byte, RelocErrors, error) {
	l := img.layout
	b, err := l.relocate(s, b)
	bad := l.refused
	l.refused = nil
	if l.noted += len(bad); l.noted > maxRefused && err == nil {
		last := bad[len(bad)-1]
		err = img.errorf(s.Off, last.Err, "section %d %s: more than %d relocations cannot be applied, the last one at %#x: %s", s.index, s.Name, maxRefused, last.Off, last.Msg)
	}
	if err != nil {
		return b, nil, err
	}
	slices.SortStableFunc(bad, func(a, b RelocError) int { return cmp.Compare(a.Off, b.Off) })
	return b, bad, nil
}

// refuse lists a relocation that cannot be applied, while there is room: apply refuses the section then.
func (l *layout) refuse(s *Section, off uint64, typ string, cause error, what string, args ...any) {
	if l.noted+len(l.refused) <= maxRefused {
		l.refused = append(l.refused, RelocError{s.Name, off, typ, fmt.Sprintf(what, args...), cause})
	}
}

// An elfRelocator applies the relocations of an ELF file. It is used under a lock.
type elfRelocator struct {
	*Image
	tables map[int][]int          // by target: the sections that have its relocations; nil before the first use
	shndx  map[uint32]int         // by symbol table: the first section of type SHT_SYMTAB_SHNDX that belongs to it
	syms   map[uint32]*elfSymbols // by section
	room   uint64                 // bytes that copies of sections may still take
	left   uint64                 // bytes of relocations that may still be read: their sections do not overlap
}

// elfSymbols are what relocations refer to.
type elfSymbols struct {
	SymbolTable
	ok       bool
	extended []byte // SHT_SYMTAB_SHNDX: a number of 4 bytes for each symbol
}

func (img *Image) newRelocator() *elfRelocator {
	size := min(uint64(len(img.b)), img.reach)
	return &elfRelocator{Image: img, room: size + maxGrowth, left: size, syms: map[uint32]*elfSymbols{}}
}

// relocate returns a copy of b, the contents of s, with the relocations applied; b itself where there are none.
func (r *elfRelocator) relocate(s *Section, b []byte) (out []byte, err error) {
	if r.tables == nil {
		r.tables, r.shndx = map[int][]int{}, map[uint32]int{}
		for i := range r.secs {
			switch h := &r.secs[i].elf; h.typ {
			case elf.SHT_REL, elf.SHT_RELA, shtCREL:
				r.tables[int(h.info)] = append(r.tables[int(h.info)], i)
			case elf.SHT_SYMTAB_SHNDX:
				if _, ok := r.shndx[h.link]; !ok {
					r.shndx[h.link] = i
				}
			}
		}
	}
	tables := r.tables[s.index]
	if len(tables) == 0 {
		return b, nil
	}
	types := relocations[r.machine.ELF]
	if types == nil {
		return b, r.errorf(s.Off, ErrUnsupported, "section %d %s: relocations of machine %d", s.index, s.Name, r.machine.ELF)
	}
	if uint64(len(b)) > r.room {
		return b, r.errorf(s.Off, ErrMalformed, "section %d %s: the sections with relocations overlap", s.index, s.Name)
	}
	r.room -= uint64(len(b))
	out = slices.Clone(b)
	for _, i := range tables {
		t := &r.secs[i]
		if t.elf.typ == shtCREL {
			return out, r.errorf(t.Off, ErrUnsupported, "section %d %s: compact relocations", i, t.Name)
		}
		entries, ok := r.bytes(t.Off, t.Size)
		if !ok {
			return out, r.errorf(t.Off, ErrTruncated, "section %d %s of %#x bytes", i, t.Name, t.Size)
		}
		if t.Size > r.left || t.Compressed {
			return out, r.errorf(t.Off, ErrMalformed, "section %d %s: relocations overlap, or are compressed", i, t.Name)
		}
		r.left -= t.Size
		syms := r.symbols(t.elf.link)
		if !syms.ok {
			return out, r.errorf(t.Off, ErrMalformed, "section %d %s: its symbols are in section %d", i, t.Name, t.elf.link)
		}
		r.table(s, out, entries, t.elf.typ == elf.SHT_RELA, types, syms)
	}
	return out, nil
}

// symbols returns the symbol table in section i.
func (r *elfRelocator) symbols(i uint32) *elfSymbols {
	if t := r.syms[i]; t != nil {
		return t
	}
	t := &elfSymbols{}
	t.SymbolTable, t.ok = r.symbolTable(i)
	if k, ok := r.shndx[i]; ok {
		t.extended, _ = r.bytes(r.secs[k].Off, r.secs[k].Size)
	}
	r.syms[i] = t
	return t
}

// table applies a table of relocations to out, the contents of s.
func (r *elfRelocator) table(s *Section, out, entries []byte, rela bool, types map[uint32]relocation, syms *elfSymbols) {
	word := 4
	if r.is64 {
		word = 8
	}
	size := 2 * word
	if rela {
		size += word
	}
	for ; len(entries) >= size; entries = entries[size:] {
		f := r.fields(entries)
		off := f.word()
		typ, sym := r.info(entries[word : 2*word])
		f.word()
		fail := func(cause error, what string, args ...any) {
			r.layout.refuse(s, off, relocationName(r.machine.ELF, typ), cause, what, args...)
		}
		do, known := types[typ]
		if !known {
			fail(ErrUnsupported, "not known here")
			continue
		}
		if do.op == opNone {
			continue
		}
		if off >= uint64(len(out)) {
			fail(ErrMalformed, "%s has %#x bytes", s.Name, len(out))
			continue
		}
		field := out[off:]
		width, ok := do.width(field)
		if !ok {
			fail(ErrMalformed, "%s has %#x bytes", s.Name, len(out))
			continue
		}
		field = field[:width]
		v, ok := r.value(sym, syms)
		if !ok {
			fail(ErrMalformed, "symbol %d is in no section", sym)
			continue
		}
		if rela {
			v += f.signed()
		} else if do.op == opSet || do.op == opPC || do.op == opPrel31 {
			v += do.addend(field, r.order)
		}
		if do.op == opPC || do.op == opPrel31 {
			v -= uint64(s.Addr) + off
		}
		if !do.put(field, v, r.order) {
			fail(ErrMalformed, "%#x does not fit", v)
		}
	}
}

// signed reads a word as a signed number.
func (f *fields) signed() uint64 {
	v := f.word()
	if !f.is {
		v = uint64(int64(int32(v)))
	}
	return v
}

// info splits what a relocation says of its type and symbol.
func (r *elfRelocator) info(b []byte) (typ, symbol uint32) {
	switch {
	case !r.is64:
		v := r.order.Uint32(b)
		return v & 0xff, v >> 8
	case r.machine.ELF == arch.EM_MIPS: // a symbol, a special symbol, and the third, second and first type
		return uint32(b[7]) | uint32(b[6])<<8 | uint32(b[5])<<16 | uint32(b[4])<<24, r.order.Uint32(b)
	}
	v := r.order.Uint64(b)
	return uint32(v), uint32(v >> 32)
}

// value returns the address of a symbol. What another file defines, or the linker, has an address of its own.
func (r *elfRelocator) value(symbol uint32, t *elfSymbols) (uint64, bool) {
	if symbol == 0 {
		return 0, true // nothing: what was there was discarded
	}
	if uint64(symbol) >= uint64(t.Len()) {
		return 0, false
	}
	e := t.At(int(symbol))
	section := uint64(e.Section)
	switch elf.SectionIndex(e.Section) {
	case elf.SHN_XINDEX:
		at := 4 * uint64(symbol)
		if at+4 > uint64(len(t.extended)) {
			return 0, false
		}
		section = uint64(r.order.Uint32(t.extended[at:]))
	case elf.SHN_ABS:
		return e.Value, true
	default:
		if !e.Section.Defined() {
			return r.layout.undefined(int(symbol)), true
		}
	}
	if section >= uint64(len(r.secs)) {
		return 0, false
	}
	return uint64(r.secs[section].Addr) + e.Value, true
}

// width returns how many bytes a field has at the beginning of b.
func (x relocation) width(b []byte) (int, bool) {
	switch x.size {
	case sixBits:
		return 1, len(b) >= 1
	case leb128:
		for i := range min(len(b), 10) {
			if b[i] < 0x80 {
				return i + 1, true
			}
		}
		return 0, false
	}
	return int(x.size), len(b) >= int(x.size)
}

// addend reads what a field has, where the relocation has no addend of its own.
func (x relocation) addend(b []byte, order binary.ByteOrder) uint64 {
	v := number(b, order)
	bits := 8 * uint(len(b))
	if x.op == opPrel31 {
		bits = 31
	}
	return uint64(int64(v<<(64-bits)) >> (64 - bits))
}

// put does to a field what the relocation says, with S + A, or S + A - P. It returns false, and does nothing, if the value does not fit.
func (x relocation) put(b []byte, v uint64, order binary.ByteOrder) bool {
	switch x.size {
	case sixBits:
		switch x.op {
		case opAdd:
			v = uint64(b[0]) + v
		case opSub:
			v = uint64(b[0]) - v
		}
		b[0] = b[0]&0xc0 | byte(v)&0x3f
		return true
	case leb128: // the difference of two addresses fits, these themselves may not
		old := uint64(0)
		for i, c := range b {
			old |= uint64(c&0x7f) << (7 * i)
		}
		switch x.op {
		case opAdd:
			v = old + v
		case opSub:
			v = old - v
		}
		for i := range b {
			b[i] = b[i]&0x80 | byte(v>>(7*i))&0x7f
		}
		return true
	}
	bits := 8 * uint(len(b))
	fits := bits == 64
	switch x.limit {
	case wraps:
		fits = true
	case signed:
		fits = fits || int64(v)>>(bits-1) == 0 || int64(v)>>(bits-1) == -1
	case unsigned:
		fits = fits || v>>bits == 0
	case either:
		fits = fits || v>>bits == 0 || int64(v)>>(bits-1) == -1
	}
	if !fits {
		return false
	}
	switch x.op {
	case opAdd:
		v += number(b, order)
	case opSub:
		v = number(b, order) - v
	case opPrel31:
		v = v&(1<<31-1) | number(b, order)&(1<<31)
	}
	putNumber(b, v, order)
	return true
}

// number reads a number of any length up to eight bytes.
func number(b []byte, order binary.ByteOrder) (v uint64) {
	for i := range b {
		if order == binary.BigEndian {
			v = v<<8 | uint64(b[i])
		} else {
			v |= uint64(b[i]) << (8 * i)
		}
	}
	return v
}

func putNumber(b []byte, v uint64, order binary.ByteOrder) {
	for i := range b {
		if order == binary.BigEndian {
			b[len(b)-1-i] = byte(v >> (8 * i))
		} else {
			b[i] = byte(v >> (8 * i))
		}
	}
}
