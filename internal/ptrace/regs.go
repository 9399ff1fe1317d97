package ptrace

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/unspool/unspool/arch"
)

// Machine is this process's machine; nil where threads cannot be read.
var Machine = arch.Host()

// Registers are a thread's registers, by slot.
type Registers struct {
	PC, SP uint64
	TLS    uint64 // where the thread's own variables are; 0 if that is not known
	Known  uint64
	Regs   [arch.NumSlots]uint64
}

func (r *Registers) set(s arch.Slot, v uint64) {
	r.Regs[s] = v
	r.Known |= 1 << s
}

// maxWords is at least the Words of each arch.UserRegs.
const maxWords = 40

// Get reads the registers of a thread that has stopped.
func Get(tid int) (r Registers, err error) {
	if Machine == nil {
		return r, errors.ErrUnsupported
	}
	u := &Machine.UserRegs
	var b [8 * maxWords]byte
	n, err := getSet(tid, ntPRSTATUS, b[:8*u.Words])
	if err != nil {
		return r, err
	}
	if !r.parse(Machine, b[:n]) {
		return r, fmt.Errorf("32-bit code: %w", errors.ErrUnsupported)
	}
	if u.TLS == 0 {
		var tls [16]byte // of AArch64 TPIDR_EL0, and TPIDR2_EL0 where there is one
		if n, err := getSet(tid, uintptr(u.TLSSet), tls[:]); err == nil && n >= 8 {
			r.TLS = binary.LittleEndian.Uint64(tls[:])
		}
	}
	return r, nil
}

// Signs returns the bits that signatures of a stopped thread's return addresses use; 0 where there are none, or that is not known.
func Signs(tid int) uint64 {
	if Machine == nil || Machine.UserRegs.SignSet == 0 {
		return 0
	}
	var b [16]byte
	n, err := getSet(tid, uintptr(Machine.UserRegs.SignSet), b[:])
	if err != nil {
		return 0
	}
	return Machine.UserRegs.Signs(b[:n])
}

const ntPRSTATUS = 1 // the general registers

// parse takes the registers out of m's layout. It is false where they are those of 32-bit code.
func (r *Registers) parse(m *arch.Machine, b []byte) bool {
	u := &m.UserRegs
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	if len(b) < 8*u.Words || u.Mode != 0 && word(u.Mode) == u.Mode32 {
		return false
	}
	for i, s := range u.Slots {
		if s != arch.NoSlot {
			r.set(s, word(i))
		}
	}
	r.PC, r.SP = r.Regs[m.Slot(m.PC)], r.Regs[m.Slot(m.SP)]
	if u.TLS != 0 {
		r.TLS = word(u.TLS)
	}
	return true
}
