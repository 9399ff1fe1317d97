package annotate

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/arch/arm64/arm64asm"

	"github.com/unspool/unspool/arch"
)

// arm64 decodes AArch64.
type arm64 struct{ syntax string }

// arm64Lock guards arm64asm.Decode, which keeps notes of what it has decoded.
var arm64Lock sync.Mutex

func (d arm64) decode(code []byte, pc arch.Vaddr) (x decoded, ok bool) {
	arm64Lock.Lock()
	in, err := arm64asm.Decode(code)
	arm64Lock.Unlock()
	if err != nil {
		if len(code) < 4 {
			return decoded{n: len(code), text: bytesText(code)}, false
		}
		w := binary.LittleEndian.Uint32(code)
		if s := atomic(w); s != "" {
			return decoded{n: 4, text: s}, true
		}
		return decoded{n: 4, text: fmt.Sprintf(".inst %#08x", w)}, false
	}
	x.n = 4
	for _, a := range in.Args {
		if rel, ok := a.(arm64asm.PCRel); ok {
			from := pc
			if in.Op == arm64asm.ADRP {
				from &^= 0xfff
			}
			x.target, x.hasTarget = from+arch.Vaddr(rel), true
			switch in.Op {
			case arm64asm.B, arm64asm.BL, arm64asm.CBZ, arm64asm.CBNZ, arm64asm.TBZ, arm64asm.TBNZ:
				x.branch = true
			}
			x.text = rel.String()
		}
	}
	if d.syntax == "go" {
		x.text = arm64asm.GoSyntax(in, uint64(pc), nil, nil)
		return x, true
	}
	text := arm64asm.GNUSyntax(in)
	if x.hasTarget {
		text = strings.Replace(text, x.text, fmt.Sprintf("%#x", uint64(x.target)), 1)
	}
	x.text = text
	return x, true
}

// atomic returns the text of an atomic operation of the Large System Extensions, which arm64asm does not know; "" if w
// is none (Arm ARM, section C4.1.94, "Compare and swap" and "Atomic memory operations").
func atomic(w uint32) string {
	sized := func(order string) (suffix, r string) {
		switch w >> 30 {
		case 0:
			return order + "b", "w"
		case 1:
			return order + "h", "w"
		case 2:
			return order, "w"
		}
		return order, "x"
	}
	order := func(acquire, release uint32) string { return [...]string{"", "l", "a", "al"}[acquire<<1|release] }
	var op, r string
	switch {
	case w&0x3fa07c00 == 0x08a07c00:
		op, r = sized(order(w>>22&1, w>>15&1))
		op = "cas" + op
	case w&0x3f200c00 == 0x38200000 && w>>12&15 <= 8:
		op, r = sized(order(w>>23&1, w>>22&1))
		op = [...]string{"ldadd", "ldclr", "ldeor", "ldset", "ldsmax", "ldsmin", "ldumax", "ldumin", "swp"}[w>>12&15] + op
	default:
		return ""
	}
	reg := func(n uint32, r, last string) string {
		if n == 31 {
			return last
		}
		return fmt.Sprintf("%s%d", r, n)
	}
	return fmt.Sprintf("%s %s, %s, [%s]", op, reg(w>>16&31, r, r+"zr"), reg(w&31, r, r+"zr"), reg(w>>5&31, "x", "sp"))
}
