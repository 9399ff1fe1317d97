package dwarf

import (
	"fmt"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Call frame instructions (DWARF 5, section 7.24, and the extensions of GNU, MIPS, Arm and LLVM).
const (
	DW_CFA_advance_loc = 0x40 // the low six bits are the delta
	DW_CFA_offset      = 0x80 // the low six bits are the register
	DW_CFA_restore     = 0xc0 // the low six bits are the register

	DW_CFA_nop                = 0x00
	DW_CFA_set_loc            = 0x01
	DW_CFA_advance_loc1       = 0x02
	DW_CFA_advance_loc2       = 0x03
	DW_CFA_advance_loc4       = 0x04
	DW_CFA_offset_extended    = 0x05
	DW_CFA_restore_extended   = 0x06
	DW_CFA_undefined          = 0x07
	DW_CFA_same_value         = 0x08
	DW_CFA_register           = 0x09
	DW_CFA_remember_state     = 0x0a
	DW_CFA_restore_state      = 0x0b
	DW_CFA_def_cfa            = 0x0c
	DW_CFA_def_cfa_register   = 0x0d
	DW_CFA_def_cfa_offset     = 0x0e
	DW_CFA_def_cfa_expression = 0x0f
	DW_CFA_expression         = 0x10
	DW_CFA_offset_extended_sf = 0x11
	DW_CFA_def_cfa_sf         = 0x12
	DW_CFA_def_cfa_offset_sf  = 0x13
	DW_CFA_val_offset         = 0x14
	DW_CFA_val_offset_sf      = 0x15
	DW_CFA_val_expression     = 0x16

	DW_CFA_MIPS_advance_loc8               = 0x1d
	DW_CFA_AARCH64_set_ra_state            = 0x2b
	DW_CFA_AARCH64_negate_ra_state_with_pc = 0x2c
	DW_CFA_AARCH64_negate_ra_state         = 0x2d // on AArch64
	DW_CFA_GNU_window_save                 = 0x2d // on SPARC
	DW_CFA_GNU_args_size                   = 0x2e
	DW_CFA_GNU_negative_offset_extended    = 0x2f
	DW_CFA_LLVM_def_aspace_cfa             = 0x30
	DW_CFA_LLVM_def_aspace_cfa_sf          = 0x31
)

// An operand is what follows an opcode, or is its low six bits.
type operand uint8

const (
	opEnd   operand = iota
	opLow           // delta, in the opcode
	opReg           // register: ULEB, or in the opcode
	opU             // ULEB
	opUD            // ULEB, times the data alignment factor
	opS             // SLEB
	opSD            // SLEB, times the data alignment factor
	opBlock         // ULEB length, bytes
	op1             // one byte
	op2             // two bytes
	op4             // four bytes
	op8             // eight bytes
	opAddr          // address, encoded as the FDE's
)

// opcodes says what each opcode takes. Of the primary ones, the first of their range is here.
var opcodes = [256]struct {
	name string
	args [3]operand
}{
	DW_CFA_advance_loc:        {"DW_CFA_advance_loc", [3]operand{opLow}},
	DW_CFA_offset:             {"DW_CFA_offset", [3]operand{opReg, opUD}},
	DW_CFA_restore:            {"DW_CFA_restore", [3]operand{opReg}},
	DW_CFA_nop:                {"DW_CFA_nop", [3]operand{}},
	DW_CFA_set_loc:            {"DW_CFA_set_loc", [3]operand{opAddr}},
	DW_CFA_advance_loc1:       {"DW_CFA_advance_loc1", [3]operand{op1}},
	DW_CFA_advance_loc2:       {"DW_CFA_advance_loc2", [3]operand{op2}},
	DW_CFA_advance_loc4:       {"DW_CFA_advance_loc4", [3]operand{op4}},
	DW_CFA_offset_extended:    {"DW_CFA_offset_extended", [3]operand{opReg, opUD}},
	DW_CFA_restore_extended:   {"DW_CFA_restore_extended", [3]operand{opReg}},
	DW_CFA_undefined:          {"DW_CFA_undefined", [3]operand{opReg}},
	DW_CFA_same_value:         {"DW_CFA_same_value", [3]operand{opReg}},
	DW_CFA_register:           {"DW_CFA_register", [3]operand{opReg, opReg}},
	DW_CFA_remember_state:     {"DW_CFA_remember_state", [3]operand{}},
	DW_CFA_restore_state:      {"DW_CFA_restore_state", [3]operand{}},
	DW_CFA_def_cfa:            {"DW_CFA_def_cfa", [3]operand{opReg, opU}},
	DW_CFA_def_cfa_register:   {"DW_CFA_def_cfa_register", [3]operand{opReg}},
	DW_CFA_def_cfa_offset:     {"DW_CFA_def_cfa_offset", [3]operand{opU}},
	DW_CFA_def_cfa_expression: {"DW_CFA_def_cfa_expression", [3]operand{opBlock}},
	DW_CFA_expression:         {"DW_CFA_expression", [3]operand{opReg, opBlock}},
	DW_CFA_offset_extended_sf: {"DW_CFA_offset_extended_sf", [3]operand{opReg, opSD}},
	DW_CFA_def_cfa_sf:         {"DW_CFA_def_cfa_sf", [3]operand{opReg, opSD}},
	DW_CFA_def_cfa_offset_sf:  {"DW_CFA_def_cfa_offset_sf", [3]operand{opSD}},
	DW_CFA_val_offset:         {"DW_CFA_val_offset", [3]operand{opReg, opUD}},
	DW_CFA_val_offset_sf:      {"DW_CFA_val_offset_sf", [3]operand{opReg, opSD}},
	DW_CFA_val_expression:     {"DW_CFA_val_expression", [3]operand{opReg, opBlock}},

	DW_CFA_MIPS_advance_loc8:               {"DW_CFA_MIPS_advance_loc8", [3]operand{op8}},
	DW_CFA_AARCH64_set_ra_state:            {"DW_CFA_AARCH64_set_ra_state", [3]operand{opU, opS}},
	DW_CFA_AARCH64_negate_ra_state_with_pc: {"DW_CFA_AARCH64_negate_ra_state_with_pc", [3]operand{}},
	DW_CFA_GNU_window_save:                 {"DW_CFA_GNU_window_save", [3]operand{}},
	DW_CFA_GNU_args_size:                   {"DW_CFA_GNU_args_size", [3]operand{opU}},
	DW_CFA_GNU_negative_offset_extended:    {"DW_CFA_GNU_negative_offset_extended", [3]operand{opReg, opUD}},
	DW_CFA_LLVM_def_aspace_cfa:             {"DW_CFA_LLVM_def_aspace_cfa", [3]operand{opReg, opU, opU}},
	DW_CFA_LLVM_def_aspace_cfa_sf:          {"DW_CFA_LLVM_def_aspace_cfa_sf", [3]operand{opReg, opSD, opU}},
}

// primary returns an opcode without the operand in its low six bits.
func primary(b byte) byte {
	if b&0xc0 != 0 {
		return b & 0xc0
	}
	return b
}

// OpName returns an opcode's name, "DW_CFA_def_cfa_offset"; the operand bits of the primary opcodes do
// not matter. Opcodes nobody defined are "DW_CFA_0x1c".
func OpName(op byte, m *arch.Machine) string {
	op = primary(op)
	if op == DW_CFA_AARCH64_negate_ra_state && m != nil && m.ELF == arch.EM_AARCH64 {
		return "DW_CFA_AARCH64_negate_ra_state"
	}
	if n := opcodes[op].name; n != "" {
		return n
	}
	return fmt.Sprintf("DW_CFA_%#02x", op)
}

// An Instruction is one decoded call frame instruction.
type Instruction struct {
	Off uint64 // in its section
	Op  byte   // without the operand bits of the primary opcodes

	// Args are the operands in their order: registers; offsets in bytes, multiplied by the data
	// alignment factor; deltas, multiplied by the code alignment factor; addresses; for set_ra_state
	// its state. Those after a block's are 0.
	Args [3]int64

	// Expr is the operand of DW_CFA_def_cfa_expression, DW_CFA_expression and DW_CFA_val_expression, in
	// rows' form: its numbers are little-endian.
	Expr string
}

// Name returns the instruction's name.
func (i *Instruction) Name(m *arch.Machine) string { return OpName(i.Op, m) }

// Text prints the instruction, "DW_CFA_offset: rbp -16".
func (i *Instruction) Text(m *arch.Machine) string {
	var b strings.Builder
	b.WriteString(i.Name(m))
	for k, kind := range opcodes[i.Op].args {
		if kind == opEnd {
			break
		}
		if k == 0 {
			b.WriteByte(':')
		}
		b.WriteByte(' ')
		switch v := i.Args[k]; kind {
		case opReg:
			b.WriteString(m.RegName(arch.Reg(v)))
		case opBlock:
			b.WriteString(rows.ExprString(i.Expr, m))
		case opAddr:
			fmt.Fprintf(&b, "%#x", uint64(v))
		case opLow, op1, op2, op4, op8:
			fmt.Fprintf(&b, "%d", uint64(v))
		default:
			fmt.Fprintf(&b, "%+d", v)
		}
	}
	return b.String()
}

// instruction decodes the instruction at offset at of a program of c, for the function at fn.
func (s *section) instruction(i *Instruction, r *reader, at int, c *cie, fn uint64) (next int, err error) {
	start := at
	b, at, err := r.u8(at)
	if err != nil {
		return at, err
	}
	op := primary(byte(b))
	*i = Instruction{Off: uint64(start), Op: op}
	d := &opcodes[op]
	if d.name == "" {
		return at, unsupported(start, "instruction %#02x", b)
	}
	low := op >= DW_CFA_advance_loc // the first operand is in the opcode
	for k, kind := range d.args {
		var u uint64
		var v int64
		switch kind {
		case opEnd:
			return at, nil
		case opLow:
			v = int64(uint64(b&0x3f) * c.caf)
		case opReg:
			if low && k == 0 {
				v = int64(b & 0x3f)
				break
			}
			if u, at, err = r.uleb(at); err == nil && u > 0xffff {
				err = unsupported(start, "register %d", u)
			}
			v = int64(u)
		case opU, opUD:
			if u, at, err = r.uleb(at); err == nil && u > 1<<63-1 {
				err = malformed(start, "operand %d is too large", u)
			}
			v = int64(u)
		case opS, opSD:
			v, at, err = r.sleb(at)
		case op1, op2, op4, op8:
			u, at, err = r.fixed(at, 1<<(kind-op1))
			if v = int64(u * c.caf); err == nil && c.caf != 0 && uint64(v)/c.caf != u {
				err = malformed(start, "operand %d is too large", u)
			}
		case opAddr:
			var p pointer
			bs := s.bases(fn)
			p, at, err = s.encoded(r, at, c.fdeEnc, c.addrSize, &bs)
			v = int64(p.v)
		case opBlock:
			if u, at, err = r.uleb(at); err == nil && u > uint64(r.end-at) {
				err = truncated(at, "expression")
			}
			if err == nil {
				i.Expr = normalExpr(s.data[at:at+int(u)], s.big, c.addrSize)
				at += int(u)
			}
		}
		if err != nil {
			return at, in(d.name, err)
		}
		if kind == opUD || kind == opSD {
			f := c.daf
			p := v * f
			if v != 0 && (p/v != f || v == -1 && f == -f) {
				return at, in(d.name, malformed(start, "offset %d·%d is too large", v, f))
			}
			v = p
		}
		i.Args[k] = v
	}
	return at, nil
}

// normalExpr returns an expression as rows wants it: numbers little-endian, addresses of eight bytes.
// An address of four bytes becomes DW_OP_const4u, which is as long. What does not decode stays as it is.
func normalExpr(e []byte, big bool, addrSize int) string {
	if !big && addrSize == 8 {
		return string(e)
	}
	s := string(e)
	b := []byte(s)
	for at := 0; at < len(b); {
		n := 0
		switch op := b[at]; op {
		case rows.DW_OP_addr:
			if n = addrSize; n == 4 {
				b[at] = rows.DW_OP_const4u
			} else if n == 2 {
				b[at] = rows.DW_OP_const2u
			}
		case rows.DW_OP_const2u, rows.DW_OP_const2s, rows.DW_OP_bra, rows.DW_OP_skip:
			n = 2
		case rows.DW_OP_const4u, rows.DW_OP_const4s:
			n = 4
		case rows.DW_OP_const8u, rows.DW_OP_const8s:
			n = 8
		default:
			o, err := rows.DecodeOp(s, at)
			if err != nil {
				return s
			}
			at = o.Next
			continue
		}
		if at++; len(b)-at < n {
			return s
		}
		if big {
			for i, j := at, at+n-1; i < j; i, j = i+1, j-1 {
				b[i], b[j] = b[j], b[i]
			}
		}
		at += n
	}
	return string(b)
}
