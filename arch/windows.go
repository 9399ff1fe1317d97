package arch

import "encoding/binary"

// Machine numbers of a COFF header (PE format, "Machine Types"). ELF has none so high, so a table of Windows's rules is never taken for one of
// Linux's.
const (
	IMAGE_FILE_MACHINE_I386  = 0x14c
	IMAGE_FILE_MACHINE_ARMNT = 0x1c4
	IMAGE_FILE_MACHINE_AMD64 = 0x8664
	IMAGE_FILE_MACHINE_ARM64 = 0xaa64
)

// WindowsAMD64 is x86-64 by Microsoft's convention ("x64 calling convention", "x64 software conventions"). A call preserves rsi, rdi and xmm6
// to xmm15, too. Slots have eight bytes: those of vector registers are their low halves; their high halves lie behind them in memory.
var WindowsAMD64 = finish(&Machine{
	Name: "x86_64-windows", ELF: IMAGE_FILE_MACHINE_AMD64,
	SP: 7, FP: 6, PC: 16, RA: 16, RAName: "ra",
	CalleeSaved: []Reg{3, 4, 5, 6, 12, 13, 14, 15, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32}, // rbx rsi rdi rbp r12 to r15, xmm6 to xmm15
	Vectors:     10,
	CallPush:    8,
	afterCall:   amd64AfterCall,
	thunk:       amd64Thunk,
	Context:     &amd64Context,
	StepKnown:   true,
	names:       amd64Names(),
}, 17, []Reg{23, 24, 25, 26, 27, 28, 29, 30, 31, 32})

// WindowsARM64 is AArch64 by Microsoft's convention ("Overview of ARM64 ABI conventions"). A call preserves the same registers as elsewhere. x18
// has the thread's environment block in each function, so no rule is about it. Signal frames and linkage tables of Linux are not there.
var WindowsARM64 = finish(&Machine{
	Name: "aarch64-windows", ELF: IMAGE_FILE_MACHINE_ARM64,
	SP: 31, FP: 29, PC: 32, RA: 30, RAName: "ra",
	CalleeSaved: []Reg{19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 72, 73, 74, 75, 76, 77, 78, 79},
	Vectors:     8,
	RAInReg:     true,
	RASignState: 34,
	AddressBits: []int{48, 47},
	Tags:        true,
	Record:      Record{RA: 8, Size: 16},
	afterCall:   arm64AfterCall,
	thunk:       arm64Thunk,
	Context:     &arm64Context,
	StepKnown:   true,
	names:       arm64Names(),
}, 35, []Reg{72, 73, 74, 75, 76, 77, 78, 79})

// armThumbThunk knows movw r12, slot; movt r12, slot>>16; ldr.w pc, [r12].
func armThumbThunk(code []byte, _ Vaddr) (Vaddr, bool) {
	if len(code) < 12 {
		return 0, false
	}
	half := func(at int, op uint16) (v uint32, ok bool) { // movw, movt: i, imm4, imm3, Rd, imm8
		a, b := binary.LittleEndian.Uint16(code[at:]), binary.LittleEndian.Uint16(code[at+2:])
		return uint32(a&15)<<12 | uint32(a>>10&1)<<11 | uint32(b>>12&7)<<8 | uint32(b&0xff), a&0xfbf0 == op && b&0x8f00 == 0x0c00
	}
	lo, ok1 := half(0, 0xf240)
	hi, ok2 := half(4, 0xf2c0)
	return Vaddr(hi<<16 | lo), ok1 && ok2 && string(code[8:12]) == "\xdc\xf8\x00\xf0"
}

// windows are the machines of PE images, by the number in the header.
var windows = map[uint16]*Machine{
	IMAGE_FILE_MACHINE_AMD64: WindowsAMD64,
	IMAGE_FILE_MACHINE_ARM64: WindowsARM64,
}

// ByCOFF returns the machine of a COFF header, as Windows uses it; as ByELF, it never returns nil.
func ByCOFF(machine uint16) *Machine {
	switch machine {
	case IMAGE_FILE_MACHINE_I386:
		return ByELF(EM_386)
	case IMAGE_FILE_MACHINE_ARMNT:
		return ByELF(EM_ARM)
	}
	return ByELF(machine)
}

// ImportThunk says which slot of the import address table the code at an address jumps through, if it is a linker's thunk for an import.
func (m *Machine) ImportThunk(code []byte, at Vaddr) (slot Vaddr, ok bool) {
	if m.thunk == nil {
		return 0, false
	}
	return m.thunk(code, at)
}

// amd64Thunk knows jmp *slot(%rip), with and without REX.W.
func amd64Thunk(code []byte, at Vaddr) (Vaddr, bool) {
	if hasPrefix(code, "\x48") {
		code, at = code[1:], at+1
	}
	if len(code) < 6 || !hasPrefix(code, "\xff\x25") {
		return 0, false
	}
	return at + 6 + Vaddr(int32(binary.LittleEndian.Uint32(code[2:]))), true
}

// arm64Thunk knows adrp x16, slot; ldr x16, [x16, slot]; br x16.
func arm64Thunk(code []byte, at Vaddr) (Vaddr, bool) {
	if len(code) < 12 {
		return 0, false
	}
	le := binary.LittleEndian
	adrp, ldr, br := le.Uint32(code), le.Uint32(code[4:]), le.Uint32(code[8:])
	if adrp&0x9f00001f != 0x90000010 || ldr&0xffc003ff != 0xf9400210 || br != 0xd61f0200 {
		return 0, false
	}
	pages := int64(int32(adrp<<8))>>13<<2 | int64(adrp>>29&3)
	return at&^0xfff + Vaddr(pages<<12) + Vaddr(ldr>>10&0xfff*8), true
}
