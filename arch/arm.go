package arch

import (
	"encoding/binary"
	"fmt"
)

// ARM is 32-bit Arm, little-endian, with ARM and Thumb code (AAPCS32; DWARF for the Arm Architecture, section 4.1). d8 to d15 survive a call.
// Windows has Thumb code only, and its calls preserve the same registers ("Overview of ARM32 ABI Conventions").
var ARM = finish(&Machine{
	Name: "arm", Triplet: "arm-linux-gnueabihf", ELF: EM_ARM, Word: 4, SaveScale: 4,
	SP: 13, FP: 11, PC: 15, RA: 14, RAName: "ra",
	CalleeSaved: []Reg{4, 5, 6, 7, 8, 9, 10, 11, 264, 265, 266, 267, 268, 269, 270, 271},
	RAInReg:     true,
	ZeroEnds:    true,
	PLT:         &armPLT,
	SyncInside:  true,
	ModeBits:    1, // Thumb
	Record:      Record{RA: 4, Size: 8},
	Signal:      &armSignal,
	afterCall:   armAfterCall,
	thunk:       armThumbThunk, // of Windows
	target:      armTarget,
	Context:     &armContext,
	UserRegs:    UserRegs{Slots: slots(0, 16)}, // struct pt_regs (asm/ptrace.h)
	Perf:        slots(0, 16),
	Unames:      []string{"armv5tel", "armv5tejl", "armv6l", "armv7l", "armv8l"},
	StepKnown:   true,
	names:       armNames(),
}, 16, []Reg{264, 265, 266, 267, 268, 269, 270, 271})

// armPLT: linkers agree on the first entry's first instruction. Behind it, the register of the return address has the table's address.
var armPLT = PLT{
	First:    Stub{Size: 20, Push: []Push{{At: 0, Size: 4, Bytes: 4, Code: "\x04\xe0\x2d\xe5"}}}, // str lr,[sp,#-4]!
	RAPushed: true,
}

// armSignal: arch/arm/kernel/signal.c. A handler with SA_SIGINFO has struct rt_sigframe: struct siginfo of 128 bytes, struct ucontext, and in it struct
// sigcontext at 20, whose registers are at 12. Others have struct sigframe, which is the ucontext.
var armSignal = Signal{
	Returns: [][]byte{[]byte("\xad\x70\xa0\xe3\x00\x00\x00\xef"), []byte("\x4f\xf0\xad\x07\x00\xdf"), []byte("\xad\x27\x00\xdf")}, // mov r7,#173; svc #0
	Call:    4,                                                                                                                    // 2 in Thumb
	Context: 128,
	Saved:   armSaved(128),
	Plain: &Signal{
		Returns: [][]byte{[]byte("\x77\x70\xa0\xe3\x00\x00\x00\xef"), []byte("\x4f\xf0\x77\x07\x00\xdf"), []byte("\x77\x27\x00\xdf")}, // mov r7,#119; svc #0
		Call:    4,
		Flags:   0x5ac3c35a, // setup_frame
		Saved:   armSaved(0),
	},
}

func armSaved(context uint16) (s []uint16) {
	for i := range uint16(16) {
		s = append(s, context+20+12+4*i)
	}
	return s
}

// armAfterCall knows BL and BLX of both instruction sets, and mov lr,pc before a jump (Arm ARM for Armv7-A, sections A8.8.25 and A8.8.26): a
// return address does not say which set it is in, once its lowest bit is gone.
func armAfterCall(code []byte) bool {
	n := len(code)
	if n >= 2 {
		if h := binary.LittleEndian.Uint16(code[n-2:]); h&0xff87 == 0x4780 { // blx r
			return true
		}
	}
	if n < 4 {
		return false
	}
	first, second := binary.LittleEndian.Uint16(code[n-4:]), binary.LittleEndian.Uint16(code[n-2:])
	if first&0xf800 == 0xf000 && (second&0xd000 == 0xd000 || second&0xd001 == 0xc000 && second != 0xe320) { // bl, blx; not ARM's nop
		return true
	}
	w := binary.LittleEndian.Uint32(code[n-4:])
	if w>>25 == 0x7d || w>>24&15 == 11 && w>>28 != 15 || w&0x0ffffff0 == 0x012fff30 && w>>28 != 15 { // blx, bl, blx r
		return true
	}
	return n >= 8 && binary.LittleEndian.Uint32(code[n-8:])&0x0fffffff == 0x01a0e00f // mov lr,pc
}

// armTarget knows BL and BLX of a label (Arm ARM for Armv7-A, section A8.8.25). The lowest bit of the return address says which set the call is in.
func armTarget(before []byte, ra uint64) (uint64, bool) {
	if len(before) < 4 {
		return 0, false
	}
	code := before[len(before)-4:]
	if ra&1 == 0 {
		w := binary.LittleEndian.Uint32(code)
		to := uint32(ra) + 4 + uint32(int32(w<<8)>>6) // a place reads as 8 bytes behind it
		switch {
		case w>>25 == 0x7d: // blx: to Thumb, in steps of 2 bytes
			return uint64(to + w>>23&2), true
		case w>>24&15 == 11 && w>>28 != 15:
			return uint64(to), true
		}
		return 0, false
	}
	ra &^= 1
	first, second := uint32(binary.LittleEndian.Uint16(code)), uint32(binary.LittleEndian.Uint16(code[2:]))
	if first&0xf800 != 0xf000 || second&0xc000 != 0xc000 || second&0x1001 == 1 {
		return 0, false
	}
	s := first >> 10 & 1
	off := int32(s<<31|(second>>13&1^s^1)<<30|(second>>11&1^s^1)<<29|first&0x3ff<<19|second&0x7ff<<8) >> 7
	if second&0x1000 == 0 { // blx: to ARM, counted from a multiple of 4
		ra &^= 3
	}
	return uint64(uint32(ra) + uint32(off)), true
}

func armNames() []string {
	n := make([]string, 288)
	for i := range 32 {
		n[256+i] = fmt.Sprintf("d%d", i)
	}
	return n
}

// slots returns n slots in a row.
func slots(first Slot, n int) (s []Slot) {
	for i := range Slot(n) {
		s = append(s, first+i)
	}
	return s
}
