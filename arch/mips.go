package arch

// MIPS's conventions. ELF has one number for all machines with MIPS processors; MIPSMachine chooses one by the convention and the byte order.
type MIPSConvention uint8

const (
	O32 MIPSConvention = iota // registers of 32 bits
	N32                       // registers of 64 bits, pointers of 32
	N64                       // 64 bits
)

// MIPS is MIPS with registers of 32 bits, the high byte first (o32: System V ABI, MIPS RISC supplement, third edition, figure 3-18). Calls preserve s0 to s7,
// the frame pointer, and f20 to f31. A caller keeps gp itself. Tables are read, compiled and proven; cores and recordings are not walked.
var MIPS = mips("mips", true, 4, 16, 17, 18, 19, 20, 21, 22, 23, 30, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63)

// MIPSN32 has registers of 64 bits, the high byte first (n32: MIPSpro N32 ABI Handbook, table 2-1). Calls preserve gp, and of the floating-point registers f20,
// f22, f24, f26, f28 and f30. Words are those of saved registers: eight bytes. Pointers in memory have four; no rules of compilers load any.
var MIPSN32 = mips("mipsn32", true, 8, 16, 17, 18, 19, 20, 21, 22, 23, 28, 30, 52, 54, 56, 58, 60, 62)

// MIPS64 has registers and pointers of 64 bits, the high byte first (n64: MIPSpro 64-bit Porting and Transition Guide, table 2-2). Calls preserve gp, and
// f24 to f31.
var MIPS64 = mips("mips64", true, 8, 16, 17, 18, 19, 20, 21, 22, 23, 28, 30, 56, 57, 58, 59, 60, 61, 62, 63)

// The same with the low byte first.
var (
	MIPSel    = littleEndian(MIPS, "mipsel")
	MIPSN32el = littleEndian(MIPSN32, "mipsn32el")
	MIPS64el  = littleEndian(MIPS64, "mips64el")
)

// mips describes a machine by what conventions differ in. Registers are numbered as GCC does: 32 to 63 are the floating-point ones. 66 is the column of the
// program counter in signal frames (DWARF_ALT_FRAME_RETURN_COLUMN). The lowest bit of a return address says that the code is MIPS16 or microMIPS.
func mips(name string, bigEndian bool, word int, saved ...Reg) *Machine {
	return finish(&Machine{
		Name: name, ELF: EM_MIPS, Word: word, SaveScale: word, BigEndian: bigEndian,
		SP: 29, FP: 30, PC: 66, RA: 31, RAName: "ra",
		CalleeSaved: saved,
		RAInReg:     true,
		ModeBits:    1,
		StepKnown:   true,
	}, 32, []Reg{52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 66})
}

func littleEndian(m *Machine, name string) *Machine {
	x := *m
	x.Name, x.BigEndian = name, false
	return &x
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
