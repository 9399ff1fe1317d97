// Package compact holds the compact table: a module's rows as bytes that are used in place, on disk, in Go, in C and in the kernel. Emit makes
// a table from rows; Load checks it; Find and Apply are a rows.Stepper over it.
//
// docs/TABLE.md describes the layout, runtime/unspool_table.h the same for C. The package knows nothing of files: store keeps tables on disk.
package compact

// Version is the version of the layout. A reader takes its own version only.
const Version = 4

//go:generate go run ./gen

// Magic starts every table.
const Magic = "uTbl"

// FunctionsMagic starts the section behind a table.
const FunctionsMagic = "uFun"

// Offsets of the header's fields, in bytes. Numbers are little-endian. Behind the header lie the slots of the saves, a byte each.
const (
	hdrMagic     = 0  // u32: "uTbl"
	hdrVersion   = 4  // u16: of the layout
	hdrMachine   = 6  // u16: e_machine of the module
	hdrSize      = 8  // u32: bytes of the whole table
	hdrChecksum  = 12 // u32: CRC-32C of all bytes but these four
	hdrRuleSize  = 16 // u8: bytes of a rule: 16, 32, 64 or 128
	hdrNSaves    = 17 // u8: saves in a rule
	hdrSaveScale = 18 // u8: bytes of a save's unit, 4 or 8
	hdrEscSize   = 19 // u8: bytes of an escape's rule, 2 or 4
	hdrSP        = 20 // u8: slot of the stack pointer
	hdrTraits    = 21 // u8: of the machine, below
	hdrOrigin    = 22 // u8: what all rows were made from (rows.Origin); manyOrigins if that is not the same for all
	hdrNRun      = 23 // u8: saves in the run of a packed rule; 0 where rules are not packed
	hdrNSpans    = 24 // u32: spans
	hdrNRegions  = 28 // u32: regions
	hdrNGranules = 32 // u32: granules; where there are any, their list has one entry more
	hdrNRows     = 36 // u32: rows
	hdrNRules    = 40 // u32: rules, the gap's included
	hdrNEscapes  = 44 // u32: escapes
	hdrWideSize  = 48 // u32: bytes of the wides
	hdrExprSize  = 52 // u32: bytes of the expressions
	hdrSpans     = 56 // u32: offset of the spans, from the start of the table; so for the others
	hdrRules     = 60 // u32: offset of where rule 0 would be: it has no bytes, rule 1 is the first
	hdrRegions   = 64 // u32: offset of the regions
	hdrGranules  = 68 // u32: offset of the granules
	hdrRows      = 72 // u32: offset of the rows
	hdrEscDir    = 76 // u32: offset of the escapes' directory
	hdrEscKeys   = 80 // u32: offset of the escapes' keys
	hdrEscRules  = 84 // u32: offset of the escapes' rules
	hdrWides     = 88 // u32: offset of the wides
	hdrExprs     = 92 // u32: offset of the expressions
	headerSize   = 96
)

// Traits of a machine.
const (
	traitRAInReg   = 1 << 0 // the return address starts in a register, which keeps it as long as it has no save
	traitBigEndian = 1 << 1 // words in memory, and in expressions, start with their high byte
	numTraits      = 2
)

// A granule is 256 units of text, a region 256 granules. A unit is 1<<shift bytes, the same in a span.
const (
	granuleBits = 8  // 1<<8 units in a granule
	regionBits  = 16 // 1<<16 units in a region

	escapeID      = 255       // a row's rule is in the list of escapes
	escapeBits    = 12        // 1<<12 rows share an entry of the escapes' directory
	rowsPad       = 8         // zeros behind the rows, so that eight bytes can be read at each
	maxShift      = 55        // largest shift
	align         = 8         // of every part
	outermostFlag = 1 << 15   // in a rule's flags: there is no caller
	walkerFlags   = 0xf << 11 // in a rule's flags: never set in a table; a walker may mark its copy of a rule by them
	maxSaves      = 64        // in a rule
	baseUnit      = 1024      // bytes by which a rule's base lowers the CFA
	manyOrigins   = 255       // instead of an origin: the ranges behind the expressions tell
)

// A span is a range of text with one run of granules. A row so long that granules for it would cost more than a
// span is a span alone, with large units. Its rows' low bytes are units from spanLo, rounded down to a
// whole granule; but the first row starts at spanLo itself.
const (
	spanLo      = 0  // u64: first address, where its first row starts
	spanHi      = 8  // u64: end; if the next span does not start here, there is a gap up to it
	spanGranule = 16 // u32: its first granule, the one that lo is in
	spanRegion  = 20 // u32: its first region
	spanShift   = 24 // u64: a unit is 1 << shift bytes
	spanSize    = 32
)

// A rule starts with these; then come the saves, one byte each, and at the rule's end the mask of those that are
// present: 1, 2, 4 or 8 bytes, the fewest that have a bit for each save.
const (
	ruleCFA   = 0 // u8: kindMask, one of the kinds below; and the slot that the CFA is relative to, from slotShift on
	ruleAux   = 1 // u8: base on kindReg; the limit of pc&15 on kindPLT
	ruleFlags = 2 // u16: rows.Flags, and outermostFlag
	ruleOff   = 4 // i32: CFA offset; on kindWide, unsigned, an offset in the wides
	ruleHead  = 8
)

// A packed rule. Its base is kindReg's CFA less 2 × aux units of saves; with baseOnReg in aux, the CFA's register and as many units for the rest of aux.
// A save is four bits: how many units above the base. The run are the vector registers, which lie one behind the other: a place for all.
const (
	packedCFA   = 0 // u8: as of a rule
	packedAux   = 1 // u8: 2 units each; with baseOnReg above the CFA's register, else below the CFA
	packedFlags = 2 // u16: as of a rule
	packedRun   = 4 // u8: the mask of the run's registers that were saved; on kindWide, an offset in the wides begins here, as of a rule
	packedPlace = 5 // i8: twice the place of the run's first register, in units from the base; odd: the others are below it, else above
	packedOff   = 6 // i16: CFA offset, in units
	packedSaves = 8 // u64: the saves besides the run, and from maskShift on which of them there are
	packedSize  = 16
)

// Numbers in packed rules.
const (
	maskShift = 48           // bits of a packed rule's saves, below their mask
	maxPacked = 12           // saves besides the run
	maxRun    = 8            // saves in the run
	baseOnReg = 0x80         // in a packed rule's aux: the base is above the CFA's register
	minRun    = -8           // the lowest place in a run, in units from the base
	minBase   = -(1<<15 - 8) // the lowest base, in units from the CFA; the highest is the CFA
)

// The parts of a rule's first byte.
const (
	kindMask  = 3 // the kind
	slotShift = 2 // the slot, in the upper bits
)

// Kinds of rules.
const (
	kindNone = iota // no rule for the CFA; with outermostFlag, no caller
	kindReg         // CFA = reg + off
	kindPLT         // CFA = reg + off + (pc&15 >= aux ? 8 : 0)
	kindWide        // a complete set of rules, in the wides
	numKinds
)

// A wide is a set of rules in full: a head and its rules.
const (
	wideCFAKind = 0  // u8: rows.CFAKind
	wideNRules  = 1  // u8: rules that follow
	wideFlags   = 2  // u16: rows.Flags
	wideRA      = 4  // u16: return address column
	wideCFAReg  = 6  // u16: DWARF register
	wideOff     = 8  // i64: offset; of an expression its offset in the expressions, and its length in the upper half
	wideOff2    = 16 // i64: second offset
	wideHead    = 24
)

// A wide's rule.
const (
	wruleOf   = 0 // u16: DWARF register
	wruleKind = 2 // u8: rows.Kind
	wruleReg  = 4 // u16: DWARF register
	wruleOff  = 8 // i64: offset; of an expression as in the head
	wruleSize = 16
)

// An origin's range says what the rows from an address on, up to the next range, were made from.
const (
	originLo   = 0 // u64: first address
	originWhat = 8 // u64: rows.Origin
	originSize = 16
)

// The optional section behind a table, of functions and who handles exceptions in them: a header, the handlers and the ranges.
const (
	fhdrMagic    = 0  // u32: "uFun"
	fhdrLength   = 8  // u32: bytes of the section
	fhdrChecksum = 12 // u32: CRC-32C of all bytes of the section but these four
	fhdrHandlers = 16 // u32: handlers
	fhdrRanges   = 20 // u32: ranges
	fhdrSize     = 24
)

// A handler of exceptions: a personality routine.
const (
	handlerAt       = 0 // u64: address
	handlerIndirect = 8 // u64: 1 if a word at the address holds the routine's, else 0
	handlerSize     = 16
)

// A range of code that is a function, or a part of one.
const (
	rangeLo      = 0  // u64: first address
	rangeHi      = 8  // u64: end
	rangeLSDA    = 16 // u64: address of the language-specific data, 0 without
	rangeHasLSDA = 24 // u32: 1 if there is such data, else 0
	rangeHandler = 28 // u32: number of the handler, from 1 on; 0 for none
	rangeSize    = 32
)
