package arch

import (
	"encoding/binary"
	"fmt"
)

// ARM64 is AArch64 (DWARF for the Arm 64-bit Architecture, section 4.1). The low halves of v8–v15
// survive a call and have slots of their own.
var ARM64 = finish(&Machine{
	Name: "aarch64", GoArch: "arm64", ELF: EM_AARCH64, Compat: EM_ARM, Triplet: "aarch64-linux-gnu",
	SP: 31, FP: 29, PC: 32, RA: 30, RAName: "ra",
	CalleeSaved: []Reg{19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 72, 73, 74, 75, 76, 77, 78, 79},
	Vectors:     8,
	RAInReg:     true,
	RASignState: 34,
	AddressBits: []int{52, 48, 47, 39},
	Tags:        true,
	Record:      Record{RA: 8, Size: 16},
	Signal:      &arm64Signal,
	PLT:         &arm64PLT,
	afterCall:   arm64AfterCall,
	edge:        arm64Edge,
	EdgeBytes:   MaxEdge,
	Syscall: Syscall{
		Code: []byte("\x01\x00\x00\xd4"), Number: 8, Result: 0, Args: [6]Slot{0, 1, 2, 3, 4, 5}, // svc #0; x8; x0 to x5
		Starts: []int{220, 435}, // clone, clone3
		Maps:   [2]int{222, 226}, Restart: 4,
	},
	Args:         regs(8), // AAPCS64, 6.8.2
	Perf:         slots(0, 33),
	UserRegs:     UserRegs{Words: 34, Slots: slots(0, 33), TLSSet: 0x401, SignSet: 0x406, BreakSet: 0x402}, // struct user_pt_regs (asm/ptrace.h); NT_ARM_TLS, NT_ARM_PAC_MASK, NT_ARM_HW_BREAK
	GoMove:       GoMove{Code: []byte("\xf4\x03\x00\x91"), To: 20},                                         // mov x20,sp
	Return:       []byte("\xc0\x03\x5f\xd6"),                                                               // ret
	Trap:         Trap{Code: []byte("\x00\x00\x20\xd4"), Codes: []int32{1}},                                // brk #0; TRAP_BRKPT
	Context:      &arm64Context,
	CompactPairs: []CompactPair{{0x001, 19}, {0x002, 21}, {0x004, 23}, {0x008, 25}, {0x010, 27}, {0x100, 72}, {0x200, 74}, {0x400, 76}, {0x800, 78}},
	GoPush:       16,
	StepKnown:    true,
	names:        arm64Names(),
}, 35, []Reg{72, 73, 74, 75, 76, 77, 78, 79})

// arm64Signal: struct rt_sigframe (arch/arm64/kernel/signal.c): struct siginfo has 128 bytes, struct ucontext follows, and
// in it struct sigcontext at 176, whose registers are at 8.
var arm64Signal = Signal{
	Returns: [][]byte{[]byte("\x68\x11\x80\xd2\x01\x00\x00\xd4")}, // mov x8,#139; svc #0
	Call:    4,
	Context: 128,
	Saved: func() []uint16 {
		s := make([]uint16, 33)
		for i := range s { // x0 to x30, sp, pc
			s[i] = uint16(128 + 176 + 8 + 8*i)
		}
		return s
	}(),
}

// arm64PLT: ELF for the Arm 64-bit Architecture leaves it to linkers; binutils and lld agree. The first entry saves x16 and x30, the last one, of
// TLS descriptors that are resolved late, x2 and x3; with BTI, bti c comes before that. Others use no stack. The return address stays in x30
// all the way.
var arm64PLT = PLT{
	First: Stub{Size: 32, Push: []Push{
		{At: 0, Size: 4, Bytes: 16, Code: "\xf0\x7b\xbf\xa9"}, // stp x16,x30,[sp,#-16]!
		{At: 4, Size: 4, Bytes: 16, Code: "\xf0\x7b\xbf\xa9"},
	}},
	Jumps: arm64Jumps,
	Last: Stub{Size: 32, Push: []Push{
		{At: 0, Size: 4, Bytes: 16, Code: "\xe2\x0f\xbf\xa9"}, // stp x2,x3,[sp,#-16]!
		{At: 4, Size: 4, Bytes: 16, Code: "\xe2\x0f\xbf\xa9"},
	}},
}

// arm64Jumps finds adrp x16, slot; ldr x17, [x16, slot], with or without bti c in front. An entry ends where the
// next one starts.
func arm64Jumps(b []byte, addr, _ uint64) []Jump {
	var out []Jump
	for at := 0; at+8 <= len(b); at += 4 {
		adrp, ldr := binary.LittleEndian.Uint32(b[at:]), binary.LittleEndian.Uint32(b[at+4:])
		if adrp&0x9f00001f != 0x90000010 || ldr&0xffc003ff != 0xf9400211 {
			continue
		}
		imm := int64(adrp>>5&0x7ffff)<<2 | int64(adrp>>29&3)
		imm = imm << 43 >> 43 // 21 bits, signed
		page := (addr + uint64(at)) &^ 0xfff
		slot := page + uint64(imm<<12) + uint64(ldr>>10&0xfff)*8
		lo := addr + uint64(at)
		if at >= 4 && binary.LittleEndian.Uint32(b[at-4:]) == 0xd503245f {
			lo -= 4
		}
		if n := len(out); n > 0 {
			out[n-1].Hi = lo
		}
		out = append(out, Jump{lo, addr + uint64(len(b)), slot})
	}
	// The last entry is as long as the one before it.
	if n := len(out); n > 1 {
		out[n-1].Hi = min(out[n-1].Hi, out[n-1].Lo+out[n-1].Lo-out[n-2].Lo)
	}
	return out
}

// arm64AfterCall knows BL, BLR and the forms of BLR that authenticate (Arm ARM, section C6.2).
func arm64AfterCall(code []byte) bool {
	if len(code) < 4 {
		return false
	}
	c := code[len(code)-4:]
	w := uint32(c[0]) | uint32(c[1])<<8 | uint32(c[2])<<16 | uint32(c[3])<<24
	return w>>26 == 0x25 || w&0xfffffc1f == 0xd63f0000 || w&0xfefff800 == 0xd63f0800
}

func arm64Names() []string {
	var n []string
	for i := range 31 {
		n = append(n, fmt.Sprintf("x%d", i))
	}
	n = append(n, "sp", "pc", "", "ra_sign_state")
	for len(n) < 64 {
		n = append(n, "")
	}
	n[46] = "vg" // the length of SVE's vectors in words
	for i := range 32 {
		n = append(n, fmt.Sprintf("v%d", i))
	}
	return n
}
