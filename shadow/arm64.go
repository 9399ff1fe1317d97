package shadow

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/arch/arm64/arm64asm"

	"github.com/unspool/unspool/arch"
)

// decodeARM64 reads the instruction at the start of b (Arm ARM, section C4.1).
func decodeARM64(b []byte) inst {
	if len(b) < 4 {
		return inst{writes: true}
	}
	w := binary.LittleEndian.Uint32(b)
	x := inst{kind: kindARM64(w), writes: mayWriteARM64(w)}
	switch x.kind {
	case call:
		x.size = 4
		if w>>26 == 0x25 { // BL
			x.direct, x.rel = true, int32(w<<6)>>4-4
		}
	case exclusive:
		x.writes = true // the store, up to which the thread runs
	}
	return x
}

// kindARM64 says what w does to a stack of calls.
func kindARM64(w uint32) kind {
	const toSP = 31 // as the destination of additions
	rd, rn := w&31, w>>5&31
	switch {
	case w>>26 == 0x25, // BL
		w&0xfffffc1f == 0xd63f0000, w&0xfefff800 == 0xd63f0800: // BLR, BLRAA and the like
		return call
	case w&0xfffffc1f == 0xd65f0000, w&0xfffff800 == 0xd65f0800, // RET; RETAA, RETAB, RETAASPPCR and the like
		w&0xffc0001f == 0x5500001f: // RETAASPPC, RETABSPPC
		return ret
	case w&0xfffffc1f == 0xd61f0000, w&0xfefff800 == 0xd61f0800: // BR, BRAA and the like
		return jump
	case w&0xffe0001f == 0xd4000001: // SVC
		return kernel
	case w&0xffe0001f == 0xd4200000: // BRK
		return trap
	case exclusiveARM64(w) && w>>22&1 == 1:
		return exclusive
	case rd != toSP:
		return plain
	case w&0xbf800000 == 0x91000000, // ADD, SUB of an immediate, 64 bits, without flags
		w&0xbfc00000 == 0x91800000: // ADDG, SUBG
		if rn != 31 {
			return setSP
		}
	case w&0xffe00000 == 0x8b200000: // ADD of an extended register
		return setSP
	case w&0xffe00000 == 0xcb200000: // SUB: from the stack pointer it makes room
		if rn != 31 {
			return setSP
		}
	case w&0x9f800000 == 0x92000000 && w>>29&3 != 3: // AND, ORR, EOR of an immediate
		return setSP
	}
	return plain
}

// exclusiveARM64 says whether w is LDXR, STXR or one of the like: bit 22 says which.
func exclusiveARM64(w uint32) bool {
	return w&0x3f800000 == 0x08000000 && (w>>21&1 == 0 || w>>31 == 1) // the others with bit 21 are CASP
}

// mayWriteARM64 says whether w may write to memory. It says yes where it does not know.
func mayWriteARM64(w uint32) bool {
	switch w >> 25 & 15 {
	case 8, 9, 10, 11, 5, 13, 7, 15: // data processing, branches, system
		return w&0xfff80000 == 0xd5080000 || // SYS: DC ZVA writes
			w&0xff000000 == 0xd4000000 // exceptions
	case 4, 6, 12, 14: // loads and stores
		opc := w >> 22 & 3
		switch {
		case w&0x3b000000 == 0x18000000: // literals
			return false
		case w&0x3a000000 == 0x28000000: // pairs
			return opc&1 == 0
		case w&0x3b000000 == 0x39000000, w&0x3b200000 == 0x38000000, w&0x3b200c00 == 0x38200800: // by an immediate or a register
			return opc == 0 || opc == 2 && w>>26&1 == 1 && w>>30 == 0
		case exclusiveARM64(w):
			return opc&1 == 0
		}
	}
	return true
}

// maxSequence bounds the instructions from a load to its store, both of them included. glibc's and compilers' have up to eight.
const maxSequence = 16

// sequenceARM64 returns where execution leaves the sequence from an exclusive load, at pc, to the exclusive store: the instruction behind
// the store, and the targets of branches between the two. A branch back to the load begins anew, and so stays within: a breakpoint there would
// be met before the load. Where a branch leads to another exclusive store, which a stop would let fail, the instruction behind that is
// the exit: a failing compare-and-swap of 128 bits stores what it has loaded. It is nil where code is not such a sequence, or leaves it in
// another way.
func sequenceARM64(code []byte, pc uint64) (exits []uint64) {
	store := func(at uint64) bool {
		if at >= uint64(len(code)) || uint64(len(code))-at < 4 {
			return false
		}
		w := binary.LittleEndian.Uint32(code[at:])
		return exclusiveARM64(w) && w>>22&1 == 0
	}
	var targets []uint64
	for i := 4; i+4 <= len(code) && i < 4*maxSequence; i += 4 {
		w := binary.LittleEndian.Uint32(code[i:])
		if end := pc + uint64(i); store(uint64(i)) {
			exits = append(exits, end+4)
			for _, t := range targets {
				if t > end && store(t-pc) {
					t += 4
				}
				if (t < pc || t > end) && !slices.Contains(exits, t) {
					exits = append(exits, t)
				}
			}
			return exits
		}
		switch kindARM64(w) {
		case call, ret, jump, kernel, trap:
			return nil
		}
		if off, ok := branchARM64(w); ok {
			targets = append(targets, pc+uint64(i)+uint64(off))
		}
	}
	return nil
}

// branchARM64 returns where a direct branch leads, from itself.
func branchARM64(w uint32) (off int64, ok bool) {
	switch {
	case w>>26 == 0x05: // B
		return int64(int32(w<<6) >> 4), true
	case w>>24 == 0x54, w&0x7e000000 == 0x34000000: // B.cond, BC.cond; CBZ, CBNZ
		return int64(int32(w<<8)>>13) << 2, true
	case w&0x7e000000 == 0x36000000: // TBZ, TBNZ
		return int64(int32(w<<13)>>18) << 2, true
	}
	return 0, false
}

// disassembleARM64 returns the length and the text of the instruction at the start of b, in GNU's syntax.
func disassembleARM64(b []byte, _ arch.Vaddr) (int, string) {
	if len(b) < 4 {
		return len(b), fmt.Sprintf(".byte % x", b)
	}
	x, err := arm64asm.Decode(b)
	if err != nil {
		return 4, fmt.Sprintf(".inst %#08x", binary.LittleEndian.Uint32(b))
	}
	return 4, strings.ToLower(arm64asm.GNUSyntax(x))
}
