package orc

import (
	"encoding/hex"
	"fmt"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// A Base is what an entry adds an offset to.
type Base uint8

const (
	Undefined Base = iota // of the stack pointer: nothing is known; of others: unchanged
	PrevSP                // the caller's stack pointer
	SP                    // registers, by Linux's names
	FP                    // rbp, on x86-64
	AX
	DX
	DI
	R10
	R13
	SPIndirect // the word at the stack pointer
	FPIndirect // the word at FP plus the offset, to which nothing is added
	unknownBase
)

// A Type says where the caller's registers are.
type Type uint8

const (
	None    Type = iota // nothing is known
	End                 // there is no caller
	Call                // a call has left the return address
	Regs                // all registers are in a struct pt_regs
	Partial             // some are there: those that the processor saves
	unknownType
)

// A layout says what the bits of an entry mean. Entries are little-endian: an offset of 16 bits for the stack pointer, the frame pointer and, on
// LoongArch, the return address; a base of 4 bits for each; then what the fields of the layout say.
type layout struct {
	name   string // the versions of Linux that write it
	size   int    // bytes of an entry
	ra     bool   // the return address has an offset and a base
	bases  []Base // by number
	types  []Type // by number
	bits   int    // of the type
	signal int    // the bit, of those behind the bases, that says that the caller was interrupted; -1: types say so
	end    int    // the bit that says that there is no caller; -1: types say so

	// before is how Linux read SPIndirect before 5.12: it added the offset to the stack pointer, not to the word there.
	before bool

	// lenient: an entry without a stack pointer ends the stack without complaint, because no other entry can.
	lenient bool
}

// Numbers of bases (arch/x86/include/asm/orc_types.h, ORC_REG_*).
var (
	bases414   = []Base{Undefined, PrevSP, DX, DI, FP, SP, R10, R13, FPIndirect, SPIndirect}
	bases71    = []Base{Undefined, AX, DX, SP, FP, DI, R10, R13, PrevSP, SPIndirect, FPIndirect}
	basesLoong = []Base{Undefined, PrevSP, SP, FP}
)

// Numbers of types (ORC_TYPE_*).
var (
	types414 = []Type{Call, Regs, Partial}
	types64  = []Type{None, End, Call, Regs, Partial}
)

// The layouts of x86-64's entries, in the order of versions, and LoongArch's.
var (
	layout414   = layout{name: "4.14 to 4.18", size: 6, bases: bases414, types: types414, bits: 2, signal: -1, end: -1, before: true, lenient: true}
	layout419   = layout{name: "4.19 to 5.11", size: 6, bases: bases414, types: types414, bits: 2, signal: -1, end: 2, before: true}
	layout512   = layout{name: "5.12 to 6.2", size: 6, bases: bases414, types: types414, bits: 2, signal: -1, end: 2}
	layout63    = layout{name: "6.3", size: 6, bases: bases414, types: types414, bits: 2, signal: 2, end: 3}
	layout64    = layout{name: "6.4 to 7.0", size: 6, bases: bases414, types: types64, bits: 3, signal: 3, end: -1}
	layout71    = layout{name: "7.1 and later", size: 6, bases: bases71, types: types64, bits: 3, signal: 3, end: -1}
	layoutLoong = layout{name: "LoongArch", size: 8, ra: true, bases: basesLoong, types: types64, bits: 3, signal: 3, end: -1}
)

// headers are the layouts by the contents of .orc_header: the SHA-1 sum of the definitions in orc_types.h (scripts/orc_hash.sh).
var headers = map[string]struct {
	elf    uint16
	layout *layout
}{
	"fe5d32bf581bd63b2ca9a5c65ba5a625eab3fe24": {arch.EM_X86_64, &layout64},
	"137c36ad7627c4dd55932176bb0ecdbd5041fc82": {arch.EM_X86_64, &layout71},
	"d9f45aafc6d2a2889d601ec9e3fe1092dac249dc": {arch.EM_LOONG, &layoutLoong},
}

// versions are the layouts of x86-64 by the first version of Linux that writes them, the newest first.
var versions = []struct {
	since  version
	layout *layout
}{
	{version{7, 1}, &layout71}, {version{6, 4}, &layout64}, {version{6, 3}, &layout63}, {version{5, 12}, &layout512}, {version{4, 19}, &layout419}, {version{4, 14}, &layout414},
}

// layoutOf finds out which layout an image's entries have. Its header says so; without one, the version of its kernel, or LoongArch's
// machine, which has one layout.
func layoutOf(img *module.Image) (*layout, error) {
	m := img.Machine().ELF
	if !img.Is64() || m != arch.EM_X86_64 && m != arch.EM_LOONG {
		return nil, fmt.Errorf("%w: ORC of machine %s", module.ErrUnsupported, img.Machine().Name)
	}
	if s := img.Section(header); s != nil {
		b, err := img.Data(s)
		if err != nil {
			return nil, err
		}
		// Objects that ld -r joined have a header each.
		for len(b) > 20 && len(b)%20 == 0 && string(b[:20]) == string(b[20:40]) {
			b = b[20:]
		}
		h, ok := headers[hex.EncodeToString(b)]
		if !ok || h.elf != m {
			return nil, fmt.Errorf("%s: %w: definitions with the hash %x, which %s has no layout for", header, module.ErrUnsupported, b[:min(len(b), 32)], img.Machine().Name)
		}
		return h.layout, nil
	}
	if m == arch.EM_LOONG {
		return &layoutLoong, nil
	}
	v, ok := versionOf(img)
	if !ok {
		return nil, fmt.Errorf("%w: no %s, no version in .modinfo and no \"%s\" say which kernel wrote the entries", module.ErrUnsupported, header, banner)
	}
	for _, l := range versions {
		if !v.less(l.since) {
			return l.layout, nil
		}
	}
	return nil, fmt.Errorf("%w: ORC of Linux %d.%d", module.ErrUnsupported, v.major, v.minor)
}

// An Entry says how the caller's registers are found, from an address on up to that of the next entry.
type Entry struct {
	SP, FP, RA                   Base
	SPOffset, FPOffset, RAOffset int16
	Type                         Type
	Signal                       bool // the caller was interrupted
}

// decode reads an entry's bits. Its error has neither section nor offset.
func (l *layout) decode(bits uint64) (e Entry, err error) {
	base := func(what string, field *Base) {
		n := int(bits & 15)
		bits >>= 4
		if *field = unknownBase; n < len(l.bases) {
			*field = l.bases[n]
		} else if err == nil {
			err = fmt.Errorf("%w: %s is based on %d", module.ErrMalformed, what, n)
		}
	}
	e.SPOffset, e.FPOffset = int16(bits), int16(bits>>16)
	bits >>= 32
	if l.ra {
		e.RAOffset = int16(bits)
		bits >>= 16
	}
	base("the stack pointer", &e.SP)
	base("the frame pointer", &e.FP)
	if l.ra {
		base("the return address", &e.RA)
	}
	if n := int(bits & (1<<l.bits - 1)); n < len(l.types) {
		e.Type = l.types[n]
	} else {
		e.Type = unknownType
		if err == nil {
			err = fmt.Errorf("%w: type %d", module.ErrMalformed, n)
		}
	}
	e.Signal = e.Type == Regs || e.Type == Partial
	if l.signal >= 0 {
		e.Signal = bits>>l.signal&1 != 0
	}
	// Types that know no end tell by the stack pointer that nothing is known.
	if l.types[0] != None && e.SP == Undefined {
		e.Type, e.Signal = None, false
		if l.lenient || l.end >= 0 && bits>>l.end&1 != 0 {
			e.Type = End
		}
	}
	return e, err
}
