package arch

import "encoding/binary"

// MIPS's conventions. ELF has one number for all machines with MIPS processors; MIPSMachine chooses one by the convention and the byte order.
type MIPSConvention uint8

const (
	O32 MIPSConvention = iota // registers of 32 bits
	N32                       // registers of 64 bits, pointers of 32
	N64                       // 64 bits
)

// MIPSConventionOf tells the convention of an ELF file by its class and the flags of its header (EF_MIPS_ABI2).
func MIPSConventionOf(is64 bool, flags uint32) MIPSConvention {
	switch {
	case is64:
		return N64
	case flags&0x20 != 0:
		return N32
	}
	return O32
}

// MIPS is MIPS with registers of 32 bits, the high byte first (o32: System V ABI, MIPS RISC supplement, third edition, figure 3-18). Calls preserve s0 to s7,
// the frame pointer, and f20 to f31. A caller keeps gp itself.
var MIPS = mips("mips", O32, true, 16, 17, 18, 19, 20, 21, 22, 23, 30, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63)

// MIPSN32 has registers of 64 bits, the high byte first (n32: MIPSpro N32 ABI Handbook, table 2-1). Calls preserve gp, and of the floating-point registers f20,
// f22, f24, f26, f28 and f30. Words are those of saved registers: eight bytes. Pointers in memory have four; no rules of compilers load any.
// Tables are read, compiled and proven; cores are not walked.
var MIPSN32 = mips("mipsn32", N32, true, 16, 17, 18, 19, 20, 21, 22, 23, 28, 30, 52, 54, 56, 58, 60, 62)

// MIPS64 has registers and pointers of 64 bits, the high byte first (n64: MIPSpro 64-bit Porting and Transition Guide, table 2-2). Calls preserve gp, and
// f24 to f31.
var MIPS64 = mips("mips64", N64, true, 16, 17, 18, 19, 20, 21, 22, 23, 28, 30, 56, 57, 58, 59, 60, 61, 62, 63)

// The same with the low byte first.
var (
	MIPSel    = mips("mipsel", O32, false, MIPS.CalleeSaved...)
	MIPSN32el = mips("mipsn32el", N32, false, MIPSN32.CalleeSaved...)
	MIPS64el  = mips("mips64el", N64, false, MIPS64.CalleeSaved...)
)

// mipsPC is the column of the program counter in signal frames (DWARF_ALT_FRAME_RETURN_COLUMN of GCC). 32 to 63 are the floating-point registers.
const mipsPC = 66

// mips describes a machine by what conventions differ in. The lowest bit of a return address says that the code is MIPS16 or microMIPS.
func mips(name string, c MIPSConvention, bigEndian bool, saved ...Reg) *Machine {
	word := 8
	if c == O32 {
		word = 4
	}
	m := finish(&Machine{
		Name: name, ELF: EM_MIPS, Word: word, SaveScale: word, BigEndian: bigEndian,
		SP: 29, FP: 30, PC: mipsPC, RA: 31, RAName: "ra",
		CalleeSaved: saved,
		RAInReg:     true,
		ModeBits:    1,
		StepKnown:   true,
	}, 32, []Reg{52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, mipsPC})
	order := binary.ByteOrder(binary.LittleEndian)
	if bigEndian {
		order = binary.BigEndian
	}
	m.afterCall = func(code []byte) bool { return mipsAfterCall(order, code) }
	// elf_gregset_t (asm/elf.h): r0 to r31, lo, hi, and the program counter; in o32 behind six words.
	switch c {
	case O32:
		m.UserRegs.Slots = []Slot{NoSlot, NoSlot, NoSlot, NoSlot, NoSlot, NoSlot}
		m.Signal = mipsSignalO32(order)
	case N64:
		m.Signal = &Signal{Returns: mipsReturn(order, 5211), Call: 4, Context: 152, Saved: mipsSaved(192, 192+64*8+8*8, 0)}
	case N32:
		return m
	}
	m.UserRegs.Slots = append(append(m.UserRegs.Slots, slots(0, 32)...), NoSlot, NoSlot, m.Slot(mipsPC))
	m.Perf = append([]Slot{m.Slot(mipsPC)}, slots(1, 31)...)
	m.Unames = []string{map[MIPSConvention]string{O32: "mips", N64: "mips64"}[c]}
	return m
}

// mipsReturn is the code that handlers return to: li v0,call; syscall.
func mipsReturn(order binary.ByteOrder, call uint32) [][]byte {
	b := make([]byte, 8)
	order.PutUint32(b, 0x24020000|call)
	order.PutUint32(b[4:], 0x0000000c)
	return [][]byte{b}
}

// mipsSignalO32: arch/mips/kernel/signal.c. A handler with SA_SIGINFO has struct rt_sigframe: 24 bytes for arguments, struct siginfo of 128 bytes,
// struct ucontext, and in it struct sigcontext at 24. Others have struct sigframe: behind 24 bytes the sigcontext. It has the program counter at 8 and r0
// to r31 from 16 on, each in eight bytes. r0 is 0, which is looked for where an ucontext would be.
func mipsSignalO32(order binary.ByteOrder) *Signal {
	low := 0 // of eight bytes
	if order == binary.BigEndian {
		low = 4
	}
	return &Signal{
		Returns: mipsReturn(order, 4193), Call: 4, Context: 152, Saved: mipsSaved(176+16, 176+8, low),
		Plain: &Signal{Returns: mipsReturn(order, 4119), Call: 4, Context: 24 + 16, Saved: mipsSaved(24+16, 24+8, low)},
	}
}

// mipsSaved says where a signal frame has r1 to r31, in eight bytes each, and the program counter. low is where words of four bytes are in them.
func mipsSaved(regs, pc, low int) []uint16 {
	s := make([]uint16, mipsPC+1)
	for r := 1; r < 32; r++ {
		s[r] = uint16(regs + 8*r + low)
	}
	s[mipsPC] = uint16(pc + low)
	return s
}

// mipsAfterCall knows JAL, JALX, JALR to r31 and the branches that link, which have an instruction behind them, and BALC and JIALC, which have none (MIPS
// Architecture for Programmers, volume II-A). Calls of MIPS16 and microMIPS it does not know.
func mipsAfterCall(order binary.ByteOrder, code []byte) bool {
	at := func(back int) uint32 {
		if len(code) < back {
			return 0
		}
		return order.Uint32(code[len(code)-back:])
	}
	switch w := at(8); w >> 26 {
	case 0:
		if w&0x3f == 9 && w>>11&31 == 31 { // jalr
			return true
		}
	case 1:
		if w>>16&0x1c == 0x10 { // bltzal, bgezal, and their likely forms
			return true
		}
	case 3, 0x1d: // jal, jalx
		return true
	}
	w := at(4)
	return w>>26 == 0x3a || w>>21 == 0x3e<<5 // balc, jialc
}

// mipsMachines are those with the number EM_MIPS, by convention: the high byte first, then the low one.
var mipsMachines = []*Machine{MIPS, MIPSel, MIPSN32, MIPSN32el, MIPS64, MIPS64el}

// MIPSMachine returns the machine of a convention whose words begin with the high byte, or with the low one.
func MIPSMachine(c MIPSConvention, bigEndian bool) *Machine {
	if bigEndian {
		return mipsMachines[2*c]
	}
	return mipsMachines[2*c+1]
}

// Variants returns the machines that have m's number, m among them: several for MIPS only.
func (m *Machine) Variants() []*Machine {
	if m.ELF == EM_MIPS {
		return mipsMachines
	}
	return []*Machine{m}
}
