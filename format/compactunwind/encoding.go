package compactunwind

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// Modes of x86-64 and i386.
const (
	x86Frame     = 0x01000000 // a frame pointer
	x86Small     = 0x02000000 // none, and the size of the frame is in the encoding
	x86Large     = 0x03000000 // none, and it is in the instruction that subtracts it from the stack pointer
	x86DWARF     = 0x04000000 // an FDE in __eh_frame
	arm64NoFrame = 0x02000000
	arm64DWARF   = 0x03000000
	arm64Frame   = 0x04000000
)

// large says whether the size of a function's frame is in its code.
func (t *Table) large(encoding uint32) bool {
	return t.machine.CompactSaves != nil && encoding&modeMask == x86Large
}

// largeSize returns the number that the function's prologue subtracts from the stack pointer.
func (t *Table) largeSize(e *Entry) (int64, error) {
	at := e.Lo + arch.Vaddr(e.Encoding>>16&0xff)
	b, ok := t.text(at, 4)
	if !ok || at+4 > e.Hi {
		return 0, fmt.Errorf("the code at %#x has no size of the frame: %w", uint64(at), module.ErrMalformed)
	}
	return int64(t.order.Uint32(b)), nil
}

// x86Set makes the rules of an encoding of x86-64 or i386.
func x86Set(t *Table, e *Entry) (rows.Set, error) {
	m, w := t.machine, int64(t.machine.WordSize())
	set := rows.Set{RA: m.RA, Flags: rows.SyncOnly, Rules: []rows.Rule{{Of: m.RA, Kind: rows.Offset, Off: -w}}}
	code := e.Encoding
	save := func(number int, off int64) error {
		if number < 1 || number > len(m.CompactSaves) {
			return fmt.Errorf("saved register %d: %w", number, module.ErrMalformed)
		}
		set.Rules = append(set.Rules, rows.Rule{Of: m.CompactSaves[number-1], Kind: rows.Offset, Off: off})
		return nil
	}
	switch code & modeMask {
	case x86Frame:
		// (cfa, ra, fp) = (fp+2w, *(cfa-w), *(cfa-2w)); register i is at fp - n·w + i·w.
		set.CFA = rows.CFA{Kind: rows.CFAReg, Reg: m.FP, Off: 2 * w}
		if err := save(6, -2*w); err != nil {
			return set, err
		}
		n := int64(code >> 16 & 0xff)
		for i := range int64(5) {
			if number := int(code >> (3 * i) & 7); number == 6 {
				return set, fmt.Errorf("the frame pointer is saved twice: %w", module.ErrMalformed)
			} else if number != 0 {
				if err := save(number, (i-n-2)*w); err != nil {
					return set, err
				}
			}
		}
	case x86Small, x86Large:
		size := int64(code>>16&0xff) * w
		if code&modeMask == x86Large {
			n, err := t.largeSize(e)
			if err != nil {
				return set, err
			}
			size = n + int64(code>>13&7)*w
		}
		// (cfa, ra) = (sp+size, *(cfa-w)); the registers are below the return address, the last one next to it.
		set.CFA = rows.CFA{Kind: rows.CFAReg, Reg: m.SP, Off: size}
		numbers, err := permuted(int(code>>10&7), code&0x3ff)
		if err != nil {
			return set, err
		}
		if least := int64(1+len(numbers)) * w; size < least {
			return set, fmt.Errorf("%d registers in a frame of %d bytes: %w", len(numbers), size, module.ErrMalformed)
		}
		for i, number := range numbers {
			if err := save(number, (int64(i)-int64(len(numbers))-1)*w); err != nil {
				return set, err
			}
		}
	case x86DWARF, 0:
		return rows.Set{}, nil
	default:
		return set, fmt.Errorf("mode %d: %w", code&modeMask>>24, module.ErrUnsupported)
	}
	return sorted(set)
}

// sorted sorts the rules; two for one register are an error.
func sorted(set rows.Set) (rows.Set, error) {
	slices.SortFunc(set.Rules, func(a, b rows.Rule) int { return cmp.Compare(a.Of, b.Of) })
	for i := 1; i < len(set.Rules); i++ {
		if set.Rules[i].Of == set.Rules[i-1].Of {
			return set, fmt.Errorf("a register is saved twice: %w", module.ErrMalformed)
		}
	}
	return set, nil
}

// permuted returns the numbers of n registers, in the order in which they lie in memory. Each digit of the permutation is the place of a
// register among those that none before it has taken. Digit i counts in 6-i, so the permutations of n of 6 registers are numbered densely; of
// six registers the last is the only one left.
func permuted(n int, permutation uint32) ([]int, error) {
	if n > 6 {
		return nil, fmt.Errorf("%d saved registers: %w", n, module.ErrMalformed)
	}
	digits := make([]uint32, n)
	for i := n - 1; i >= 0; i-- {
		base := uint32(6 - i)
		digits[i], permutation = permutation%base, permutation/base
	}
	if permutation != 0 {
		return nil, fmt.Errorf("no such permutation of %d registers: %w", n, module.ErrMalformed)
	}
	free := []int{1, 2, 3, 4, 5, 6}
	numbers := make([]int, n)
	for i, d := range digits {
		numbers[i] = free[d]
		free = slices.Delete(free, int(d), int(d)+1)
	}
	return numbers, nil
}

// arm64Set makes the rules of an encoding of arm64.
func arm64Set(t *Table, e *Entry) (rows.Set, error) {
	m := t.machine
	set := rows.Set{RA: m.RA, Flags: rows.SyncOnly}
	code := e.Encoding
	at := int64(0)
	switch code & modeMask {
	case arm64Frame:
		// (cfa, ra, fp) = (fp+16, *(cfa-8), *(cfa-16))
		set.CFA = rows.CFA{Kind: rows.CFAReg, Reg: m.FP, Off: 16}
		set.Rules = []rows.Rule{{Of: m.FP, Kind: rows.Offset, Off: -16}, {Of: m.RA, Kind: rows.Offset, Off: -8}}
		at = -16
	case arm64NoFrame:
		// (cfa, ra) = (sp+size, ra). The registers lie below the CFA: so compilers save them, and so call frame information says. LLVM's
		// libunwind reads them 8 bytes above.
		set.CFA = rows.CFA{Kind: rows.CFAReg, Reg: m.SP, Off: int64(code>>12&0xfff) * 16}
	case arm64DWARF, 0:
		return rows.Set{}, nil
	default:
		return set, fmt.Errorf("mode %d: %w", code&modeMask>>24, module.ErrUnsupported)
	}
	for _, p := range m.CompactPairs {
		if code&p.Bit != 0 {
			set.Rules = append(set.Rules, rows.Rule{Of: p.First, Kind: rows.Offset, Off: at - 8}, rows.Rule{Of: p.First + 1, Kind: rows.Offset, Off: at - 16})
			at -= 16
		}
	}
	return sorted(set)
}
