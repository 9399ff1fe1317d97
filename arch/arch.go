// Package arch describes each machine as data, in a file each: registers and their DWARF numbers, the registers that a call preserves
// (processor supplements of the System V ABI), Linux's signal frames and system calls, and the shapes of code. It also has the types of
// addresses.
//
// The package reads no files and knows nothing of call frame information.
package arch

import (
	"fmt"
	"maps"
	"slices"
)

// A Vaddr is a link-time address: what an ELF file's headers and unwind tables speak of.
type Vaddr uint64

// An Addr is a run-time address in some process. Addr = Vaddr + the mapping's bias, modulo 2⁶⁴.
type Addr uint64

// A Reg is a DWARF register number.
type Reg uint16

// A Slot is a register's index in a walker's state. Only registers that walking can need have one.
type Slot uint8

// NumSlots is the size of a walker's register file; a set of slots fits a uint64.
const NumSlots = 64

// NoSlot marks a register that the walker does not carry, such as a vector register.
const NoSlot Slot = 255

// A Machine describes one instruction set under its System V ABI.
type Machine struct {
	Name   string // as the kernel spells it: "x86_64", "aarch64"
	GoArch string // as Go spells it; "" where no machine of that name can be walked
	ELF    uint16 // e_machine; of Windows's machines, the number in a COFF header
	Compat uint16 // e_machine of the 32-bit programs that Linux runs there, too; 0: of none
	SP     Reg    // stack pointer
	FP     Reg    // frame pointer, where code keeps one
	PC     Reg    // the number expressions use for the program counter
	RA     Reg    // the usual return address column
	RAName string // what the judges print for that column in a table

	// CalleeSaved are the registers that a call preserves, in the order in which the compact table
	// stores them.
	CalleeSaved []Reg

	// Vectors are how many of CalleeSaved, the last ones, are vector registers. Compilers save them in a run; a compact rule says where it is.
	Vectors int

	// RAInReg says that a function's return address starts in register RA (a link register) and
	// stays there as long as no rule says otherwise.
	RAInReg bool

	// RASignState is the pseudo register that says whether the return address is signed, or 0.
	RASignState Reg

	// AddressBits are how many bits an address has in a signed return address, the most first: kernels differ. None where none is signed.
	AddressBits []int

	// Tags says that a process may have anything in the high byte of an address that it loads from (AArch64: TBI, MTE).
	Tags bool

	// EdgeBytes is how many bytes Edge reads from the place on: MaxEdge at most.
	EdgeBytes int

	// CallPush is the number of bytes that a call pushes: the return address. 0 where it is in a register.
	CallPush uint64

	// Record describes the words that code with a frame pointer keeps at its target.
	Record Record

	// Signal describes the frame that Linux leaves on the stack of a signal handler; nil where that is not known.
	Signal *Signal

	// PLT is the shape of lazy procedure linkage tables; nil where that is not known.
	PLT *PLT

	// RedZone is the number of bytes below the stack pointer that a function may use, and that signal handlers leave alone.
	RedZone uint64

	// Syscall is how Linux is called.
	Syscall Syscall

	// Args are the registers of a function's first arguments that are integers or pointers; nil where nothing needs them. Its result is in Syscall.Result.
	Args []Reg

	// Trap is the instruction of a breakpoint.
	Trap Trap

	// SaveScale divides the offsets of saved registers from the CFA, in bytes: 4 or 8. 0 counts as 8.
	SaveScale int

	// BigEndian says that words in memory start with their high byte.
	BigEndian bool

	// SPBelow is how far a function's stack pointer is below its CFA before its first instruction, where a call pushes nothing. So far below the CFA is
	// the caller's stack pointer, where no rule tells.
	SPBelow uint64

	// ZeroEnds says that code that nobody has called has 0 for its return address.
	ZeroEnds bool

	// Word is how many bytes an address has: 4 or 8. 0 counts as 8.
	Word int

	// SyncInside says that a frame that has called nobody is walked by rules that hold at calls only, where these lead behind a call: the machine's
	// programs have no others. Walkers in C do not know such a machine.
	SyncInside bool

	// ModeBits are the bits of a return address that say how the code there is to be run, and are no part of its address (Arm: Thumb).
	ModeBits uint64

	// Perf are the slots of the registers that a sample of perf can have, by their number in a mask (asm/perf_regs.h); NoSlot
	// where walking needs none.
	Perf []Slot

	// Unames are what Linux calls the machine besides Name and GoArch (uname -m).
	Unames []string

	// Triplet is what Debian calls the directories of the machine's libraries; "" where they are looked for without it.
	Triplet string

	// UserRegs has the layout of a thread's registers in ptrace and in core files.
	UserRegs UserRegs

	// Context has the layout of a thread's registers in minidumps; nil where none is known.
	Context *Context

	// CompactSaves are the registers that Apple's compact unwind information says to be saved, by their number in an encoding, from 1 on; nil where
	// encodings have a bit for each pair.
	CompactSaves []Reg

	// CompactPairs are the registers that an encoding has a bit for, where it has: of each pair the first, whose second is the next one, in the order in
	// which they lie below the frame record or the CFA.
	CompactPairs []CompactPair

	// VSyscall is the address of the kernel's page in each process; 0 if there is none.
	VSyscall uint64

	// GoMove is how Go's runtime keeps the stack pointer while it calls the vDSO.
	GoMove GoMove

	// Return is the instruction with which Go's assembler returns.
	Return []byte

	// GoPush is how many bytes Go's handler of a signal pushes before it makes a function look as if the interrupted code had called it. The link
	// register is at their beginning (runtime/signal_arm64.go: pushCall, preparePanic). 0 where the return address is pushed, as by a call.
	GoPush uint64

	// StepKnown says that frames of this machine can be walked. Tables of the others can be read
	// and printed only.
	StepKnown bool

	// Numbered says that nothing is known of the machine but its number, ELF's e_machine. No tables are made for it.
	Numbered bool

	names []string
	slots []uint8 // by register number; NoSlot where it has none
	saved uint64  // CalleeSaved and SP as slots

	afterCall func(code []byte) bool
	thunk     func(code []byte, at Vaddr) (slot Vaddr, ok bool) // of Windows
	edge      func(before, at []byte) (Edge, bool)
	target    func(before []byte, ra uint64) (uint64, bool)
}

// A Record is two words on the stack: the caller's frame pointer, at its beginning, and the return address.
type Record struct {
	At   int64  // where it begins, from the frame pointer
	RA   uint64 // where the return address is in it
	Size uint64 // the stack pointer was behind it; 0: code keeps no such records

	// Chain says that the record is at the stack pointer instead: the caller's stack pointer, 0 in the outermost frame. RA is counted from there.
	Chain bool
}

// AddressMask selects the address in a signed return address, unless the process has addresses of more bits.
const AddressMask = 1<<48 - 1

// A GoMove is an instruction that copies the stack pointer to a register.
type GoMove struct {
	Code []byte
	To   Reg
}

// A Trap is an instruction that stops a traced thread.
type Trap struct {
	Code   []byte
	Behind uint64  // how far behind its beginning the program counter of a stopped thread is
	Codes  []int32 // si_code of a SIGTRAP by such an instruction of the program's own
}

// A CompactPair is two registers that compact unwind information has one bit for.
type CompactPair struct {
	Bit   uint32
	First Reg
}

// WordSize is how many bytes an address has.
func (m *Machine) WordSize() uint64 {
	if m.Word == 4 {
		return 4
	}
	return 8
}

// Plain says that words have eight bytes, the low one first.
func (m *Machine) Plain() bool { return m.Word != 4 && !m.BigEndian }

// Regs is one more than the greatest number of a register with a slot.
func (m *Machine) Regs() Reg { return Reg(len(m.slots)) }

// Slot returns r's index in a walker's state, or NoSlot.
func (m *Machine) Slot(r Reg) Slot {
	if int(r) < len(m.slots) {
		return Slot(m.slots[r])
	}
	return NoSlot
}

// Like returns a machine that differs from m in the registers that a call preserves, none of them a vector register, and in SaveScale. Tests that hold on any machine use it.
func Like(m *Machine, saved []Reg, scale int) *Machine {
	x := *m
	x.CalleeSaved, x.Vectors, x.SaveScale, x.saved = saved, 0, scale, 0
	x.preserve()
	return &x
}

// SavedSlots is the set of slots that a call preserves.
func (m *Machine) SavedSlots() uint64 { return m.saved }

// RegName returns the name of r as readelf prints it, in lower case: "rsp", "x29", or "r123" where the
// ABI names none.
func (m *Machine) RegName(r Reg) string {
	if int(r) < len(m.names) && m.names[r] != "" {
		return m.names[r]
	}
	return fmt.Sprintf("r%d", r)
}

// RegByName is the inverse of RegName.
func (m *Machine) RegByName(s string) (Reg, bool) {
	for i, n := range m.names {
		if n == s && n != "" {
			return Reg(i), true
		}
	}
	var r Reg
	if _, err := fmt.Sscanf(s, "r%d", &r); err == nil && m.RegName(r) == s {
		return r, true
	}
	return 0, false
}

// e_machine values (System V ABI, chapter 4).
const (
	EM_386     = 3
	EM_MIPS    = 8
	EM_PPC64   = 21
	EM_S390    = 22
	EM_ARM     = 40
	EM_X86_64  = 62
	EM_AARCH64 = 183
	EM_RISCV   = 243
	EM_LOONG   = 258
)

// Others are machines whose programs this one does not run. Those with UserRegs can be walked, in cores; of the rest, tables can be read, compiled
// and proven.
var others = map[uint16]*Machine{
	EM_386:   I386,
	EM_ARM:   ARM,
	EM_RISCV: RISCV64,
	EM_LOONG: Loong64,
	EM_S390:  S390X,
	EM_PPC64: PPC64LE,
	EM_MIPS:  MIPS,
}

// ByELF returns the machine of an ELF header's e_machine, or of a number from a COFF header that ELF has not. It never returns nil: a machine without a
// description gets one that can only number its registers. Of MIPS's machines, which share a number, it returns the first: MIPSMachine chooses.
func ByELF(em uint16) *Machine {
	for _, m := range machines {
		if m.ELF == em {
			return m
		}
	}
	if m := others[em]; m != nil {
		return m
	}
	if m := windows[em]; m != nil {
		return m
	}
	return finish(&Machine{Name: fmt.Sprintf("machine-%d", em), ELF: em, RAName: "ra", Numbered: true}, 0, nil)
}

// Named returns the machine with a Name; nil for a name that no machine has.
func Named(name string) *Machine {
	var em uint16
	if _, err := fmt.Sscanf(name, "machine-%d", &em); err == nil {
		if m := ByELF(em); m.Name == name {
			return m
		}
		return nil
	}
	all := slices.Concat(machines, slices.Collect(maps.Values(others)), slices.Collect(maps.Values(windows)), mipsMachines)
	if i := slices.IndexFunc(all, func(m *Machine) bool { return m.Name == name }); i >= 0 {
		return all[i]
	}
	return nil
}

// finish fills in the derived tables: registers 0 to n-1 get the slot of their number, extra ones the
// slots after them.
func finish(m *Machine, n int, extra []Reg) *Machine {
	top := n
	for _, r := range extra {
		top = max(top, int(r)+1)
	}
	m.slots = make([]uint8, top)
	for i := range m.slots {
		m.slots[i] = uint8(NoSlot)
	}
	for i := range n {
		m.slots[i] = uint8(i)
	}
	for i, r := range extra {
		m.slots[r] = uint8(n + i)
	}
	if m.StepKnown {
		m.preserve()
	}
	return m
}

// preserve makes the set of slots that a call preserves.
func (m *Machine) preserve() {
	for _, r := range append([]Reg{m.SP}, m.CalleeSaved...) {
		m.saved |= 1 << m.Slot(r)
	}
	if m.RAInReg {
		m.saved |= 1 << m.Slot(m.RA)
	}
}
