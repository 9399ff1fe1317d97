package shadow

import "github.com/unspool/unspool/arch"

// A kind is what an instruction does to a stack of calls.
type kind uint8

const (
	plain     kind = iota // nothing, or moves the stack pointer by little
	call                  // pushes a return address, or puts it into the link register
	ret                   // leaves by the address on the stack, or in a register
	jump                  // jumps to where a register or memory says
	setSP                 // sets the stack pointer from elsewhere: leave, mov, pop %rsp; mov sp
	kernel                // enters the kernel
	pushf                 // pushes the flags
	trap                  // int3, int1; brk
	exclusive             // loads, for a store that fails once a step has come between (LDXR)
)

// maxInst is the length of the longest instruction of all machines, in bytes.
const maxInst = 15

// An inst is what is known of an instruction.
type inst struct {
	kind   kind
	direct bool  // of a call: the target is in it
	size   uint8 // of a call only: bytes
	rel    int32 // of a direct call: the target, from its end
	writes bool  // may write to memory
}

// A machine is what following a program needs of its instructions and registers, besides what arch says.
type machine struct {
	*arch.Machine
	decode      func(code []byte) inst                                // of the instruction at its beginning; bytes that make none are plain
	disassemble func(code []byte, at arch.Vaddr) (n int, text string) // of the same
	longest     int                                                   // bytes of an instruction
}

// machines are those on which programs can be executed step by step.
var machines = []*machine{
	{Machine: arch.AMD64, decode: decodeAMD64, disassemble: disassembleAMD64, longest: maxInst},
	{Machine: arch.ARM64, decode: decodeARM64, disassemble: disassembleARM64, longest: 4},
}

// host is this process's machine; nil where programs are not executed step by step.
var host = func() *machine {
	for _, m := range machines {
		if m.Machine == arch.Host() {
			return m
		}
	}
	return nil
}()

// maxGeneral and maxSaved are at least what any machine has of general registers and of those that a call preserves.
const (
	maxGeneral = 32
	maxSaved   = 12
)

// What is asked of the host at each step: how many general registers there are, the stack pointer's slot, and the slots of the general
// registers that a call preserves. The general registers' slots are below their number, which is the program counter's slot.
var general, stackPointer, saved = func() (n, sp int, saved []arch.Slot) {
	if host == nil {
		return 0, 0, nil
	}
	for _, r := range host.CalleeSaved[:len(host.CalleeSaved)-host.Vectors] {
		saved = append(saved, host.Slot(r))
	}
	return int(host.Slot(host.PC)), int(host.Slot(host.SP)), saved
}()

// link is the slot of the register in which a call leaves the return address, on a machine that has one.
var link = func() int {
	if host == nil || !host.RAInReg {
		return -1
	}
	return int(host.Slot(host.RA))
}()
