package annotate

import (
	"strings"

	"golang.org/x/arch/x86/x86asm"

	"github.com/unspool/unspool/arch"
)

// amd64 decodes x86-64.
type amd64 struct{ syntax string }

// fixed are instructions without operands that x86asm does not know.
var fixed = []struct{ bytes, text string }{
	{"\xf3\x0f\x1e\xfa", "endbr64"},
	{"\xf3\x0f\x1e\xfb", "endbr32"},
	{"\xc5\xf8\x77", "vzeroupper"},
	{"\xc5\xfc\x77", "vzeroall"},
	{"\x0f\x01\xee", "rdpkru"},
	{"\x0f\x01\xef", "wrpkru"},
}

func (d amd64) decode(code []byte, pc arch.Vaddr) (x decoded, ok bool) {
	for _, f := range fixed {
		if len(code) >= len(f.bytes) && string(code[:len(f.bytes)]) == f.bytes {
			return decoded{n: len(f.bytes), text: f.text}, true
		}
	}
	in, err := x86asm.Decode(code, 64)
	if err != nil || in.Len <= 0 || in.Len > len(code) || in.Op == 0 {
		return decoded{n: min(vexLen(code), len(code))}, false
	}
	x.n = in.Len
	next := pc + arch.Vaddr(in.Len)
	for _, a := range in.Args {
		switch a := a.(type) {
		case x86asm.Rel:
			x.target, x.hasTarget, x.branch = next+arch.Vaddr(int64(a)), true, true
		case x86asm.Mem:
			if a.Base == x86asm.RIP && a.Index == 0 {
				x.target, x.hasTarget = next+arch.Vaddr(a.Disp), true
			}
		}
	}
	switch d.syntax {
	case "gnu":
		x.text = x86asm.GNUSyntax(in, uint64(pc), nil)
	case "go":
		x.text = x86asm.GoSyntax(in, uint64(pc), nil)
	default:
		x.text = intel(in, pc)
	}
	return x, true
}

// intel returns an instruction as manuals and assemblers spell it: "ja", not "jnbe", and no more operands than it has.
func intel(in x86asm.Inst, pc arch.Vaddr) string {
	text := x86asm.IntelSyntax(in, uint64(pc), nil)
	switch in.Op {
	case x86asm.LEA:
		return strings.Replace(text, " ptr [", " [", 1)
	case x86asm.NOP:
		text, _, _ = strings.Cut(text, ", ")
		return text
	}
	name := strings.ToLower(in.Op.String())
	for _, kind := range []string{"j", "set", "cmov"} {
		if !strings.HasPrefix(name, kind) {
			continue
		}
		words := strings.SplitAfter(text, " ")
		for i, w := range words {
			if strings.HasPrefix(w, kind) {
				words[i] = name + w[len(strings.TrimSuffix(w, " ")):]
				return strings.Join(words, "")
			}
		}
	}
	return text
}

// vexLen returns the length of an instruction with a VEX or EVEX prefix; 0 if it has none, or is cut off (Intel SDM,
// volume 2, sections 2.3 and 2.7).
func vexLen(code []byte) int {
	i := 0
	for i < len(code) && i < 4 && strings.IndexByte("\x26\x2e\x36\x3e\x64\x65\x67", code[i]) >= 0 {
		i++
	}
	if i+4 >= len(code) {
		return 0
	}
	var opmap byte
	switch code[i] {
	case 0xc5:
		opmap, i = 1, i+2
	case 0xc4:
		opmap, i = code[i+1]&0x1f, i+3
	case 0x62:
		opmap, i = code[i+1]&7, i+4
	default:
		return 0
	}
	if i+1 >= len(code) {
		return 0
	}
	op, modrm := code[i], code[i+1]
	n := i + 2
	if mod, rm := modrm>>6, modrm&7; mod != 3 {
		if rm == 4 {
			if n >= len(code) {
				return 0
			}
			if mod == 0 && code[n]&7 == 5 {
				n += 4
			}
			n++
		}
		switch {
		case mod == 1:
			n++
		case mod == 2, rm == 5:
			n += 4
		}
	}
	if opmap == 3 || opmap == 1 && (op >= 0x70 && op <= 0x73 || op == 0xc2 || op >= 0xc4 && op <= 0xc6) {
		n++
	}
	if n > 15 || n > len(code) {
		return 0
	}
	return n
}
