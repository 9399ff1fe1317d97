package usdt

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/printable"
)

// An Argument says where a number is when a thread comes to a probe.
type Argument struct {
	Kind   Kind
	Size   uint8    // bytes of it: 1, 2, 4 or 8
	Signed bool     // it is widened with its sign
	High   bool     // of Register: its second byte, as in %ah
	Scale  uint8    // of Memory: by how many bits Index is shifted
	Value  int64    // the constant; of Memory, what is added to the address
	Reg    arch.Reg // by DWARF's number; of Memory, the address, or NoReg
	Index  arch.Reg // of Memory, what is added to the address, or NoReg
}

// NoReg is a register that there is none.
const NoReg = arch.Reg(0xffff)

// A Kind says what holds an argument.
type Kind uint8

const (
	Constant Kind = iota
	Register
	Memory // at Value + Reg + Index << Scale
)

// ErrUnsupported says that an argument is none of a kind that can be read without the program's symbols.
var ErrUnsupported = errors.New("unsupported")

const (
	maxArguments = 64
	maxText      = 100 // bytes of an argument, and of a file's text in a message
)

// Arguments reads Args as it is written for x86-64 and AArch64: N@OPERAND, one after another. N is how many bytes the argument has, negative if it has
// a sign, 8 where it is missing. An operand is as the machine's assembler has it: of the former $5, %rdi, -8(%rbp), 8(%rax,%rbx,4); of the latter 5, x1,
// w1, [sp, 8], [x0, x1, lsl 3]. Memory by the name of a symbol, or by a segment, is ErrUnsupported, and so are numbers with a fraction.
func (p *Probe) Arguments(m *arch.Machine) (list []Argument, err error) {
	for rest := strings.TrimSpace(p.Args); rest != ""; {
		var one string
		one, rest = split(rest)
		if len(list) == maxArguments {
			return nil, fmt.Errorf("more than %d arguments: %w", maxArguments, ErrUnsupported)
		}
		var a Argument
		if err = ErrUnsupported; len(one) <= maxText { // what is longer has a symbol's name
			a, err = parse(m, one)
		}
		if err != nil {
			return nil, fmt.Errorf("argument %d of probe %s:%s, %q: %w", len(list)+1, clip(p.Provider), clip(p.Name), clip(one), err)
		}
		list = append(list, a)
	}
	return list, nil
}

// clip is the beginning of a file's text, for messages.
func clip(s string) string {
	return printable.Clip(printable.String(s[:min(len(s), maxText)]), maxText)
}

// split cuts the first argument off. A space within brackets, or behind a comma, is a part of it.
func split(s string) (one, rest string) {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case ' ', '\t':
			if depth <= 0 {
				return s[:i], strings.TrimLeft(s[i:], " \t")
			}
		}
	}
	return s, ""
}

func parse(m *arch.Machine, s string) (a Argument, err error) {
	a = Argument{Size: 8, Reg: NoReg, Index: NoReg}
	if size, operand, ok := strings.Cut(s, "@"); ok {
		n, err := strconv.Atoi(size)
		if strings.HasSuffix(size, "f") {
			return a, fmt.Errorf("%w: a number with a fraction", ErrUnsupported)
		}
		if a.Signed = n < 0; a.Signed {
			n = -n
		}
		if err != nil || n != 1 && n != 2 && n != 4 && n != 8 {
			return a, fmt.Errorf("%w: its size is not 1, 2, 4 or 8", ErrUnsupported)
		}
		a.Size, s = uint8(n), operand
	}
	switch m {
	case arch.AMD64:
		return a.amd64(s)
	case arch.ARM64:
		return a.arm64(s)
	}
	return a, fmt.Errorf("%w on %s", ErrUnsupported, m.Name)
}

func (a Argument) amd64(s string) (Argument, error) {
	var err error
	if c, ok := strings.CutPrefix(s, "$"); ok {
		a.Value, err = number(c)
		return a, err
	}
	if r, ok := strings.CutPrefix(s, "%"); ok && !strings.ContainsAny(s, "(:") {
		a.Kind = Register
		a.Reg, a.High, err = amd64Register(r)
		return a, err
	}
	offset, inner, ok := strings.Cut(s, "(")
	inner, closed := strings.CutSuffix(inner, ")")
	switch {
	case strings.Contains(s, ":"):
		return a, fmt.Errorf("%w: memory by a segment", ErrUnsupported)
	case !ok || !closed:
		return a, fmt.Errorf("%w: neither a constant, nor a register, nor memory by one", ErrUnsupported)
	case strings.TrimSpace(inner) == "%rip":
		return a, fmt.Errorf("%w: memory relative to the code, which takes the program's symbols", ErrUnsupported)
	}
	if offset != "" {
		if a.Value, err = number(offset); err != nil {
			return a, fmt.Errorf("%w: memory by a symbol", ErrUnsupported)
		}
	}
	a.Kind = Memory
	parts := strings.Split(inner, ",")
	if len(parts) > 3 {
		return a, fmt.Errorf("%w: memory by more than two registers", ErrUnsupported)
	}
	for i, part := range parts {
		part = strings.TrimSpace(part)
		if i == 2 {
			n, err := number(part)
			if err != nil || n < 1 || n > 8 || bits.OnesCount64(uint64(n)) != 1 {
				return a, fmt.Errorf("%w: a register times %s", ErrUnsupported, part)
			}
			a.Scale = uint8(bits.TrailingZeros64(uint64(n)))
			continue
		}
		if part == "" && i == 0 && len(parts) > 1 {
			continue
		}
		name, ok := strings.CutPrefix(part, "%")
		r, known := arch.AMD64.RegByName(name)
		if !ok || !known || r >= arch.AMD64.PC {
			return a, fmt.Errorf("%w: memory by %s", ErrUnsupported, part)
		}
		if i == 0 {
			a.Reg = r
		} else {
			a.Index = r
		}
	}
	return a, nil
}

// amd64Register returns the register that has one of this name, and whether the name is that of its second byte.
func amd64Register(name string) (r arch.Reg, high bool, err error) {
	full := name
	switch n := len(name); {
	case n > 1 && name[0] == 'r' && name[1] >= '0' && name[1] <= '9': // r8, r8d, r8w, r8b
		full = strings.TrimRight(name, "dwb")
		if n-len(full) > 1 {
			full = ""
		}
	case n == 3 && name[0] == 'e': // eax
		full = "r" + name[1:]
	case n == 2 && name[1] == 'l' && strings.IndexByte("abcd", name[0]) >= 0: // al
		full = "r" + name[:1] + "x"
	case n == 2 && name[1] == 'h' && strings.IndexByte("abcd", name[0]) >= 0: // ah
		full, high = "r"+name[:1]+"x", true
	case n == 3 && name[2] == 'l' && name[0] != 'r': // sil
		full = "r" + name[:2]
	case n == 2: // ax
		full = "r" + name
	}
	r, ok := arch.AMD64.RegByName(full)
	if !ok || r >= arch.AMD64.PC {
		return r, high, fmt.Errorf("%w: register %s", ErrUnsupported, name)
	}
	return r, high, nil
}

func (a Argument) arm64(s string) (Argument, error) {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		if !ok {
			return a, fmt.Errorf("%w: memory with an address that changes", ErrUnsupported)
		}
		return a.arm64Memory(strings.Split(inner, ","))
	}
	if n, err := number(strings.TrimPrefix(s, "#")); err == nil {
		a.Value = n
		return a, nil
	}
	if s == "xzr" || s == "wzr" {
		return a, nil
	}
	name := s
	if len(s) > 1 && s[0] == 'w' && s != "wsp" {
		name = "x" + s[1:]
	}
	a.Kind = Register
	var err error
	a.Reg, err = arm64Register(name)
	return a, err
}

func (a Argument) arm64Memory(parts []string) (_ Argument, err error) {
	a.Kind = Memory
	for i, part := range parts {
		part = strings.TrimSpace(part)
		offset, nerr := number(strings.TrimPrefix(part, "#"))
		shift, shifts := strings.CutPrefix(part, "lsl ")
		switch {
		case i == 0:
			a.Reg, err = arm64Register(part)
		case i == 1 && nerr == nil:
			a.Value = offset
		case i == 1:
			a.Index, err = arm64Register(part)
		case i == 2 && shifts && a.Index != NoReg:
			n, serr := number(strings.TrimPrefix(strings.TrimSpace(shift), "#"))
			if serr != nil || n < 0 || n > 4 {
				return a, fmt.Errorf("%w: %s", ErrUnsupported, part)
			}
			a.Scale = uint8(n)
		default:
			return a, fmt.Errorf("%w: %s in an address", ErrUnsupported, part)
		}
		if err != nil {
			return a, err
		}
	}
	return a, nil
}

func arm64Register(name string) (arch.Reg, error) {
	r, ok := arch.ARM64.RegByName(name)
	if !ok || r > arch.ARM64.SP {
		return r, fmt.Errorf("%w: register %s", ErrUnsupported, name)
	}
	return r, nil
}

// number reads a whole number, also one above the greatest with a sign.
func number(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		u, uerr := strconv.ParseUint(s, 0, 64)
		if uerr == nil {
			return int64(u), nil
		}
	}
	return n, err
}
