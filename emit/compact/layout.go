// Package compact holds the compact table: a module's rows as bytes that are used where they lie, on
// disk, in Go, in C and in the kernel. Emit makes them from rows; Load checks them; Find and Apply are a
// rows.Stepper over them.
//
// The layout is described in docs/TABLE.md, and for C in runtime/unspool_table.h. The package knows
// nothing of files: store keeps tables on disk.
package compact

// Version is the version of the layout. A reader takes its own version only.
const Version = 1

// Magic starts every table.
const Magic = "uTbl"

// Offsets of the header's fields, in bytes. Numbers are little-endian; offsets and counts have 32 bits.
const (
	hdrMagic     = 0
	hdrVersion   = 4  // u16
	hdrMachine   = 6  // u16: e_machine
	hdrSize      = 8  // of the whole table
	hdrShift     = 12 // u8: an address unit is 1<<shift bytes
	hdrRuleSize  = 13 // u8: bytes of a rule
	hdrSaves     = 14 // u8: saves in a rule
	hdrEscSize   = 15 // u8: bytes of an escape's rule, 2 or 4
	hdrNSpans    = 16
	hdrNRegions  = 20
	hdrNGranules = 24
	hdrNRows     = 28
	hdrNRules    = 32
	hdrNEscapes  = 36
	hdrWideSize  = 40
	hdrExprSize  = 44
	hdrSpans     = 48 // offsets of the parts
	hdrRules     = 52
	hdrRegions   = 56
	hdrGranules  = 60
	hdrRows      = 64
	hdrEscDir    = 68
	hdrEscKeys   = 72
	hdrEscRules  = 76
	hdrWides     = 80
	hdrExprs     = 84
	hdrSlots     = 88 // u8[24]: the slot of each save
	headerSize   = 112
	maxSaves     = 24
)

// A granule is 256 units of text, a region 256 granules.
const (
	granuleBits = 8
	regionBits  = 16

	escapeID      = 255 // a row's rule is in the list of escapes
	escapeBits    = 12  // rows that share an entry of the escapes' directory
	rowsPad       = 8   // zeros behind the rows, so that eight bytes can be read at each
	maxShift      = 2
	align         = 8 // of every part
	outermostFlag = 1 << 7
	baseUnit      = 1024 // bytes by which a rule's base lowers the CFA
)

// A span is a range of text with one run of granules.
const (
	spanLo      = 0  // u64: first address
	spanHi      = 8  // u64: behind the last
	spanGranule = 16 // u32: its first granule
	spanRegion  = 20 // u32: its first region
	spanSize    = 24
)

// A rule starts with these; then come the saves, one byte each, and the mask of those that are
// present, in the rest of the rule: one byte on x86-64, four on AArch64.
const (
	ruleKind  = 0
	ruleReg   = 1 // u8: the slot that the CFA is relative to
	ruleFlags = 2 // u8: rows.Flags, and outermostFlag
	ruleAux   = 3 // u8: base on kindReg; the limit of pc&15 on kindPLT
	ruleOff   = 4 // i32: CFA offset; on kindWide a u32 offset in the wides
	ruleHead  = 8
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
	wideFlags   = 1  // u8: rows.Flags
	wideRA      = 2  // u16: return address column
	wideCFAReg  = 4  // u16: DWARF register
	wideNRules  = 6  // u16
	wideOff     = 8  // i64; of an expression: u32 offset in the expressions, u32 length
	wideOff2    = 16 // i64
	wideHead    = 24
)

// A wide's rule.
const (
	wruleOf   = 0 // u16: DWARF register
	wruleKind = 2 // u8: rows.Kind
	wruleReg  = 4 // u16
	wruleOff  = 8 // i64; of an expression: u32 offset in the expressions, u32 length
	wruleSize = 16
)
