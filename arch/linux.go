package arch

import (
	"encoding/binary"
	"math/bits"
	"runtime"
	"slices"
)

// A Syscall is the instruction for a system call, and the registers around it.
type Syscall struct {
	Code   []byte
	Number Slot    // has the call's number before it
	Result Reg     // has the result behind it
	Args   [6]Slot // have the arguments before it, in their order
	Starts []int   // the numbers of calls in which a thread can wait for its child's execve, as vfork does
	Maps   [2]int  // the numbers of mmap and mprotect

	// Restart is how far the interrupted function goes on from where it was, in bytes, where a signal finds a thread in a system call that is to begin
	// anew, and the signal's handler makes the call fail instead.
	Restart int64
}

// UserRegs is the layout of a thread's general registers (NT_PRSTATUS), word by word.
type UserRegs struct {
	Words  int    // how many words ptrace gives of a thread that runs 64-bit code
	Slots  []Slot // of the first words; NoSlot where walking needs none
	TLS    int    // the word that says where the thread's own variables are; 0 where it is the first of another set of registers,
	TLSSet int    // which this is the number of

	// SignSet is the number of the set of registers whose second word has the bits that signatures of return addresses use; 0 where none is signed.
	SignSet int

	// BreakSet is the number of the set of a thread's hardware breakpoints (struct user_hwdebug_state); 0 where nothing needs them.
	BreakSet int

	// Where Mode is not 0, that word is Mode32 in a thread that runs 32-bit code. Else such a thread has fewer words.
	Mode   int
	Mode32 uint64
}

// Signs returns the bits that signatures use, which a process or a core has in the set SignSet; 0 where no address of Linux ends below them.
func (u *UserRegs) Signs(set []byte) uint64 {
	if u.SignSet == 0 || len(set) < 16 {
		return 0
	}
	mask := binary.LittleEndian.Uint64(set[8:])
	if n := bits.TrailingZeros64(mask); n < 36 || n > 52 { // 16 KiB pages in two levels; 52-bit addresses
		return 0
	}
	return mask
}

// machines are those whose frames can be walked.
var machines = []*Machine{AMD64, ARM64}

// Machines returns the machines whose frames can be walked.
func Machines() []*Machine { return slices.Clone(machines) }

// ByName returns the machine that the kernel, or Go, calls name; nil for one whose frames cannot be walked. MIPS's processors have one name in both byte
// orders: that with the high byte first is returned, and Ordered chooses.
func ByName(name string) *Machine {
	for _, m := range machines {
		if name == m.Name || name == m.GoArch {
			return m
		}
	}
	for _, m := range others {
		if slices.Contains(m.Unames, name) {
			return m
		}
	}
	for _, m := range mipsMachines {
		if slices.Contains(m.Unames, name) {
			return m
		}
	}
	return nil
}

// Ordered returns m, or of MIPS's machines the one with m's convention whose words begin with the high byte, or with the low one.
func (m *Machine) Ordered(bigEndian bool) *Machine {
	if i := slices.Index(mipsMachines, m); i >= 0 {
		return MIPSMachine(MIPSConvention(i/2), bigEndian)
	}
	return m
}

// Host returns the machine that this process runs on; nil for one whose frames cannot be walked.
func Host() *Machine { return ByName(runtime.GOARCH) }
