package shadow

import (
	"encoding/binary"
	"strings"

	"golang.org/x/arch/x86/x86asm"
)

// decodeAMD64 reads the instruction at the start of b (Intel SDM, volume 2, chapter 2 and appendix A). Bytes that make none are
// plain.
func decodeAMD64(b []byte) inst {
	x := inst{writes: mayWrite(b)}
	i, rex := 0, byte(0)
	for i < len(b) && strings.IndexByte("\x66\x67\xf2\xf3\x2e\x36\x3e\x26\x64\x65\xf0", b[i]) >= 0 {
		i++
	}
	if i < len(b) && b[i]&0xf0 == 0x40 {
		rex = b[i]
		i++
	}
	if i >= len(b) {
		return x
	}
	op, b := b[i], b[i+1:]
	i++
	at := func(k int) byte { // 0 past the end: the instruction cannot have run then
		if k < len(b) {
			return b[k]
		}
		return 0
	}
	mod, reg, rm := at(0)>>6, at(0)>>3&7, at(0)&7
	regIsSP, rmIsSP := reg == 4 && rex&4 == 0, mod == 3 && rm == 4 && rex&1 == 0
	switch op {
	case 0xe8:
		x.kind, x.size = call, uint8(i+4)
		if len(b) >= 4 {
			x.direct, x.rel = true, int32(binary.LittleEndian.Uint32(b))
		}
	case 0xff:
		switch reg {
		case 2:
			x.kind, x.size = call, uint8(i+modrmSize(at(0), at(1)))
		case 4:
			x.kind = jump
		}
	case 0xc3, 0xcb, 0xc2, 0xca:
		x.kind = ret
	case 0xcf:
		x.kind = jump // iret
	case 0x0f:
		switch {
		case at(0) == 0x05, at(0) == 0x34:
			x.kind = kernel
		case at(0)&0xf0 == 0x40 && at(1)>>3&7 == 4 && rex&4 == 0:
			x.kind = setSP // cmov
		}
	case 0xcd:
		x.kind = kernel
		if at(0) == 3 {
			x.kind = trap
		}
	case 0xcc, 0xf1:
		x.kind = trap
	case 0x9c:
		x.kind = pushf
	case 0xc9:
		x.kind = setSP
	case 0x5c:
		if rex&1 == 0 {
			x.kind = setSP
		}
	case 0x89:
		if rmIsSP {
			x.kind = setSP
		}
	case 0x8b:
		if regIsSP {
			x.kind = setSP
		}
	case 0x87:
		if rmIsSP || regIsSP {
			x.kind = setSP
		}
	case 0x94: // xchg %rax
		if rex&1 == 0 {
			x.kind = setSP
		}
	case 0x8d: // lea, from another register than the stack pointer
		if regIsSP && !(rm == 4 && at(1)&7 == 4 && rex&1 == 0) {
			x.kind = setSP
		}
	}
	return x
}

// modrmSize returns the bytes of a ModR/M byte and what belongs to it: SIB byte, displacement.
func modrmSize(modrm, sib byte) int {
	n, mod, rm := 1, modrm>>6, modrm&7
	if mod != 3 && rm == 4 {
		n++
		if mod == 0 && sib&7 == 5 {
			n += 4
		}
	}
	switch {
	case mod == 1:
		n++
	case mod == 2, mod == 0 && rm == 5:
		n += 4
	}
	return n
}

// reads are instructions whose first operand, if it is memory, is only read.
var reads = map[x86asm.Op]bool{
	x86asm.CMP: true, x86asm.TEST: true, x86asm.BT: true, x86asm.NOP: true, x86asm.JMP: true,
	x86asm.PREFETCHT0: true, x86asm.PREFETCHT1: true, x86asm.PREFETCHT2: true, x86asm.PREFETCHNTA: true, x86asm.PREFETCHW: true,
	x86asm.CMPSB: true, x86asm.CMPSD: true, x86asm.CMPSQ: true, x86asm.CMPSW: true,
}

// harmless are instructions that write to no memory, although they may not look so.
var harmless = map[x86asm.Op]bool{
	x86asm.MOV: true, x86asm.LEA: true, x86asm.ADD: true, x86asm.SUB: true, x86asm.AND: true, x86asm.OR: true, x86asm.XOR: true,
	x86asm.CMP: true, x86asm.TEST: true, x86asm.INC: true, x86asm.DEC: true, x86asm.NEG: true, x86asm.NOT: true, x86asm.NOP: true,
	x86asm.SHL: true, x86asm.SHR: true, x86asm.SAR: true, x86asm.ROL: true, x86asm.ROR: true, x86asm.SHLD: true, x86asm.SHRD: true,
	x86asm.IMUL: true, x86asm.MUL: true, x86asm.DIV: true, x86asm.IDIV: true, x86asm.ADC: true, x86asm.SBB: true,
	x86asm.MOVZX: true, x86asm.MOVSX: true, x86asm.MOVSXD: true, x86asm.BT: true, x86asm.BTS: true, x86asm.BTR: true, x86asm.BTC: true,
	x86asm.BSF: true, x86asm.BSR: true, x86asm.TZCNT: true, x86asm.LZCNT: true, x86asm.POPCNT: true, x86asm.BSWAP: true,
	x86asm.CDQ: true, x86asm.CDQE: true, x86asm.CQO: true, x86asm.CWDE: true, x86asm.POP: true, x86asm.RET: true, x86asm.JMP: true,
	x86asm.MOVAPS: true, x86asm.MOVUPS: true, x86asm.MOVDQA: true, x86asm.MOVDQU: true, x86asm.MOVQ: true, x86asm.MOVD: true,
	x86asm.PXOR: true, x86asm.POR: true, x86asm.PAND: true, x86asm.PADDD: true, x86asm.PADDQ: true, x86asm.PCMPEQB: true,
	x86asm.PMOVMSKB: true, x86asm.PMINUB: true, x86asm.PSHUFD: true, x86asm.PUNPCKLQDQ: true, x86asm.PSRLDQ: true, x86asm.PSLLDQ: true,
	x86asm.PREFETCHT0: true, x86asm.PREFETCHT1: true, x86asm.PREFETCHT2: true, x86asm.PREFETCHNTA: true, x86asm.PREFETCHW: true,
	x86asm.LEAVE: true,
}

// mayWrite says whether the instruction at the start of b may write to memory. It says yes where it does not know.
func mayWrite(b []byte) bool {
	x, err := x86asm.Decode(b, 64)
	if err != nil {
		return true
	}
	name := x.Op.String()
	if name[0] == 'J' || strings.HasPrefix(name, "CMOV") {
		return false
	}
	if !harmless[x.Op] {
		if _, mem := x.Args[0].(x86asm.Mem); mem || !strings.HasPrefix(name, "SET") {
			return true
		}
		return false
	}
	_, mem := x.Args[0].(x86asm.Mem)
	return mem && !reads[x.Op]
}
