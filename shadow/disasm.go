package shadow

import (
	"fmt"
	"regexp"
	"strconv"
	"sync"

	"golang.org/x/arch/x86/x86asm"

	"github.com/unspool/unspool/arch"
)

// A Line is a disassembled instruction.
type Line struct {
	Addr arch.Vaddr
	Text string
}

// around is how many bytes in front of a finding, and from it on, are disassembled; before and after, how many instructions of
// that are shown.
const (
	around = 48
	before = 6
	after  = 5
)

// disassemble returns the instructions of code, whose first byte lies at base, from the first place in starts on from which
// instructions lead to at. The last ones may be cut off.
func disassemble(code []byte, base, at arch.Vaddr, starts []arch.Vaddr) (out []Line) {
	for _, from := range append(starts, at) {
		if from < base || from > at {
			continue
		}
		out = out[:0]
		mark := -1
		for a := from; int(a-base) < len(code) && (a < at || a < at+around && int(a-base)+maxInst <= len(code)); {
			n, text := host.disassemble(code[a-base:], a)
			if a == at {
				mark = len(out)
			}
			out = append(out, Line{a, text})
			a += arch.Vaddr(n)
		}
		if mark >= 0 {
			return out[max(0, mark-before):min(len(out), mark+after)]
		}
	}
	return nil
}

// unsigned is how x86asm spells a negative displacement.
var unsigned = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`0xf[0-9a-f]{7}\(`) })

// disassembleAMD64 returns the length and the text of the instruction at the start of b, in AT&T's syntax. What x86asm does not
// know it gives as a byte.
func disassembleAMD64(b []byte, at arch.Vaddr) (int, string) {
	if len(b) >= 4 && b[0] == 0xf3 && b[1] == 0x0f && b[2] == 0x1e && b[3] == 0xfa {
		return 4, "endbr64"
	}
	if x, err := x86asm.Decode(b, 64); err == nil && x.Op != 0 && x.Len > 0 && !onlyPrefix(b[:x.Len]) {
		return x.Len, unsigned().ReplaceAllStringFunc(x86asm.GNUSyntax(x, uint64(at), nil), func(s string) string {
			v, _ := strconv.ParseUint(s[2:len(s)-1], 16, 32)
			return fmt.Sprintf("-%#x(", -int64(int32(v)))
		})
	}
	return min(1, len(b)), fmt.Sprintf(".byte % x", b[:min(1, len(b))])
}

// onlyPrefix says whether b is a prefix that x86asm takes for an instruction, because it does not know what follows.
func onlyPrefix(b []byte) bool {
	if len(b) != 1 {
		return false
	}
	switch b[0] {
	case 0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf0, 0xf2, 0xf3, 0x0f:
		return true
	}
	return b[0]&0xf0 == 0x40
}
