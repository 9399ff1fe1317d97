/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * step.h: expressions (docs/SEMANTICS.md, section 3): rows.Eval, for the drop-ins and for the kernel's program. So functions that the
 * verifier looks at once are a PART, loops have bounds that it sees, and what it should not follow from turn to turn is in memory.
 *
 * Who includes it has unspool_table.h and machine.h, and defines
 *
 *	STEP_RUN			the structure of an expression that is run, with these members:
 *	   uint64_t e_stack[2 * UNSPOOL_EXPR_STACK]	its stack
 *	   uint32_t e_at, e_len, e_n			the next byte, how many there are, values on the stack
 *	STEP_BYTES(w, at, n)		the number in n bytes of the expression from at on; what is in the bytes above it does not count
 *	STEP_GET(w, slot, to)		reads a register: UNSPOOL_OK, or why not
 *	STEP_LOAD(w, addr, to)		reads eight bytes of memory: not 0; or 0
 *	STEP_PC(w), STEP_FAULT(w)	the program counter, and where the address goes that could not be read
 *	STEP_LEB			how many bytes a LEB128 may have, trailing ones without meaning included
 *	PART				before functions
 */
#ifndef UNSPOOL_STEP_H
#define UNSPOOL_STEP_H

#define STEP_INLINE static inline __attribute__((always_inline))

/*
 * Value i from the top of the stack. Below it are STEP_BELOW zeros, because an operation's values are read before their number is compared
 * with what there is. The room is a power of two, so that a mask bounds the index.
 */
#define STEP_ROOM (2 * UNSPOOL_EXPR_STACK)
#define STEP_BELOW 3
#define STEP_TOP(w, i) ((w)->e_stack[((w)->e_n + STEP_BELOW - 1 - (i)) & (STEP_ROOM - 1)])

/* What an operation takes from the stack and what it leaves there instead, as takes << 8 | gives; STEP_REFUSED: not allowed. */
#define STEP_REFUSED 0xffff

STEP_INLINE uint32_t step_use(uint32_t op)
{
	if ((op >= DW_OP_lit0 && op <= DW_OP_lit31) || (op >= DW_OP_breg0 && op <= DW_OP_breg31) || (op >= DW_OP_const1u && op <= DW_OP_consts))
		return 0x001;
	switch (op) {
	case DW_OP_addr:
	case DW_OP_bregx: return 0x001;
	case DW_OP_dup:
	case DW_OP_pick: return 0x102;
	case DW_OP_over: return 0x203;
	case DW_OP_drop:
	case DW_OP_bra: return 0x100;
	case DW_OP_deref:
	case DW_OP_deref_size:
	case DW_OP_abs:
	case DW_OP_neg:
	case DW_OP_not:
	case DW_OP_plus_uconst: return 0x101;
	case DW_OP_swap: return 0x202;
	case DW_OP_rot: return 0x303;
	case DW_OP_skip:
	case DW_OP_nop: return 0x000;
	case DW_OP_and:
	case DW_OP_div:
	case DW_OP_minus:
	case DW_OP_mod:
	case DW_OP_mul:
	case DW_OP_or:
	case DW_OP_plus:
	case DW_OP_shl:
	case DW_OP_shr:
	case DW_OP_shra:
	case DW_OP_xor:
	case DW_OP_eq:
	case DW_OP_ge:
	case DW_OP_gt:
	case DW_OP_le:
	case DW_OP_lt:
	case DW_OP_ne: return 0x201;
	}
	return STEP_REFUSED;
}

/* Operations on one or two values, of which a is the top of the stack. Returns 0 where there is no result. */
PART int step_alu(uint32_t op, uint64_t a, uint64_t b, uint64_t arg, uint64_t *to)
{
	int64_t sa = (int64_t)a, sb = (int64_t)b;
	uint64_t ua, ub;

	if (!to)
		return 0;
	switch (op) {
	case DW_OP_abs: *to = sa < 0 ? -a : a; break;
	case DW_OP_and: *to = b & a; break;
	case DW_OP_div: /* signed; the kernel's program has unsigned division only */
		if (a == 0)
			return 0;
		ua = sa < 0 ? -a : a;
		ub = sb < 0 ? -b : b;
		*to = (sa < 0) != (sb < 0) ? -(ub / ua) : ub / ua;
		break;
	case DW_OP_minus: *to = b - a; break;
	case DW_OP_mod:
		if (a == 0)
			return 0;
		*to = b % a;
		break;
	case DW_OP_mul: *to = b * a; break;
	case DW_OP_neg: *to = -a; break;
	case DW_OP_not: *to = ~a; break;
	case DW_OP_or: *to = b | a; break;
	case DW_OP_plus: *to = b + a; break;
	case DW_OP_plus_uconst: *to = a + arg; break;
	case DW_OP_shl: *to = a < 64 ? b << (a & 63) : 0; break;
	case DW_OP_shr: *to = a < 64 ? b >> (a & 63) : 0; break;
	case DW_OP_shra: *to = (uint64_t)(sb >> (a < 64 ? a & 63 : 63)); break;
	case DW_OP_xor: *to = b ^ a; break;
	case DW_OP_eq: *to = b == a; break;
	case DW_OP_ne: *to = b != a; break;
	case DW_OP_ge: *to = sb >= sa; break;
	case DW_OP_gt: *to = sb > sa; break;
	case DW_OP_le: *to = sb <= sa; break;
	case DW_OP_lt: *to = sb < sa; break;
	default: return 0;
	}
	return 1;
}

/*
 * Decodes a LEB128 at the expression's next byte. An unsigned one must fit 64 bits; of a signed one, what does not is
 * dropped. Returns 0 where it is cut off.
 */
PART int step_leb(STEP_RUN *w, uint32_t is_signed, uint64_t *to)
{
	uint64_t v = 0, c;
	uint32_t i, shift;

	if (!w || !to)
		return 0;
	for (i = 0; i < STEP_LEB; i++) {
		if (w->e_at >= w->e_len)
			return 0;
		c = (uint8_t)STEP_BYTES(w, w->e_at, 1);
		w->e_at++;
		shift = i < 10 ? 7 * i : 70; /* where the tenth byte is, 64 bits end */
		if (!is_signed && ((shift >= 64 && c & 0x7f) || (shift == 63 && (c & 0x7f) > 1)))
			return 0;
		if (shift < 64)
			v |= (c & 0x7f) << shift;
		if (c < 0x80) {
			if (is_signed && c & 0x40 && shift + 7 < 64)
				v |= ~(uint64_t)0 << (shift + 7);
			*to = v;
			return 1;
		}
	}
	return 0;
}

/* A number of 1, 2, 4 or 8 bytes. Returns 0 where it is cut off. */
PART int step_fixed(STEP_RUN *w, uint32_t size, uint32_t is_signed, uint64_t *to)
{
	uint64_t v;

	if (!w || !to || w->e_len - w->e_at < size || w->e_at > w->e_len)
		return 0;
	v = STEP_BYTES(w, w->e_at, size);
	w->e_at += size;
	switch (size) {
	case 1: v = is_signed ? (uint64_t)(int64_t)(int8_t)v : (uint8_t)v; break;
	case 2: v = is_signed ? (uint64_t)(int64_t)(int16_t)v : (uint16_t)v; break;
	case 4: v = is_signed ? (uint64_t)(int64_t)(int32_t)v : (uint32_t)v; break;
	}
	*to = v;
	return 1;
}

/* Decodes the operand of an operation: a register's number, and a number. Returns 0 where it is cut off. */
STEP_INLINE int step_operand(STEP_RUN *w, uint32_t op, uint64_t *reg, uint64_t *arg)
{
	if (op >= DW_OP_lit0 && op <= DW_OP_lit31) {
		*arg = op - DW_OP_lit0;
		return 1;
	}
	if (op >= DW_OP_breg0 && op <= DW_OP_breg31) {
		*reg = op - DW_OP_breg0;
		return step_leb(w, 1, arg);
	}
	if (op >= DW_OP_const1u && op <= DW_OP_const8s)
		return step_fixed(w, 1u << ((op - DW_OP_const1u) >> 1 & 3), op & 1, arg);
	if (op == DW_OP_addr)
		return step_fixed(w, 8, 0, arg);
	if (op == DW_OP_constu || op == DW_OP_plus_uconst)
		return step_leb(w, 0, arg);
	if (op == DW_OP_consts)
		return step_leb(w, 1, arg);
	if (op == DW_OP_bregx)
		return step_leb(w, 0, reg) && *reg <= 0xffff && step_leb(w, 1, arg);
	if (op == DW_OP_pick || op == DW_OP_deref_size)
		return step_fixed(w, 1, 0, arg);
	if (op == DW_OP_bra || op == DW_OP_skip)
		return step_fixed(w, 2, 1, arg);
	return 1;
}

/* Reads size bytes at addr; where eight cannot be read there, the eight that end with them. */
PART int step_load_size(STEP_RUN *w, uint64_t addr, uint32_t size, uint64_t *to)
{
	uint64_t v, mask;

	if (!w || !to || size == 0 || size > 8)
		return UNSPOOL_BAD_EXPR;
	mask = ~(uint64_t)0 >> (64 - 8 * size);
	if (STEP_LOAD(w, addr, &v)) {
		*to = v & mask;
		return UNSPOOL_OK;
	}
	if (size < 8 && STEP_LOAD(w, addr - (8 - size), &v)) {
		*to = v >> (64 - 8 * size) & mask;
		return UNSPOOL_OK;
	}
	STEP_FAULT(w) = addr;
	return UNSPOOL_UNREADABLE;
}

/* Makes the stack of an expression of len bytes: empty, or with cfa. */
STEP_INLINE void step_begin(STEP_RUN *w, uint32_t len, uint32_t push, uint64_t cfa)
{
	uint32_t i;

	for (i = 0; i < STEP_BELOW; i++)
		w->e_stack[i] = 0;
	w->e_stack[STEP_BELOW] = cfa;
	w->e_n = push ? 1 : 0;
	w->e_at = 0;
	w->e_len = len;
}

/* Runs the operation at the expression's next byte, which there is. Returns UNSPOOL_OK to go on. */
STEP_INLINE int step_op(STEP_RUN *w)
{
	uint64_t a, b, c, r = 0, arg = 0, reg = 0;
	uint32_t op, use, takes, gives;
	int o;

	if (!w)
		return UNSPOOL_BAD_EXPR;
	op = (uint8_t)STEP_BYTES(w, w->e_at, 1);
	w->e_at++;
	use = step_use(op);
	takes = use >> 8;
	gives = use & 0xff;
	o = step_operand(w, op, &reg, &arg);
	if (use == STEP_REFUSED || !o || w->e_n < takes || w->e_n - takes + gives > UNSPOOL_EXPR_STACK)
		return UNSPOOL_BAD_EXPR;

	a = STEP_TOP(w, 0);
	b = STEP_TOP(w, 1);
	c = STEP_TOP(w, 2);
	if ((op >= DW_OP_breg0 && op <= DW_OP_breg31) || op == DW_OP_bregx) {
		if (reg == UNSPOOL_X86_64_RA) {
			r = STEP_PC(w);
		} else {
			o = STEP_GET(w, (uint32_t)reg, &r);
			if (o != UNSPOOL_OK)
				return o;
		}
		r += arg;
	} else if ((op >= DW_OP_lit0 && op <= DW_OP_lit31) || (op >= DW_OP_const1u && op <= DW_OP_consts) || op == DW_OP_addr) {
		r = arg;
	} else {
		switch (op) {
		case DW_OP_deref:
			if (!STEP_LOAD(w, a, &r)) {
				STEP_FAULT(w) = a;
				return UNSPOOL_UNREADABLE;
			}
			break;
		case DW_OP_deref_size:
			o = step_load_size(w, a, (uint32_t)arg, &r);
			if (o != UNSPOOL_OK)
				return o;
			break;
		case DW_OP_dup: r = a; takes = 0; break;
		case DW_OP_over: r = b; takes = 0; break;
		case DW_OP_pick:
			if (arg >= w->e_n)
				return UNSPOOL_BAD_EXPR;
			r = STEP_TOP(w, (uint32_t)arg);
			takes = 0;
			break;
		case DW_OP_drop: w->e_n--; return UNSPOOL_OK;
		case DW_OP_swap:
			STEP_TOP(w, 0) = b;
			STEP_TOP(w, 1) = a;
			return UNSPOOL_OK;
		case DW_OP_rot:
			STEP_TOP(w, 0) = b;
			STEP_TOP(w, 1) = c;
			STEP_TOP(w, 2) = a;
			return UNSPOOL_OK;
		case DW_OP_bra:
			w->e_n--;
			if (a == 0)
				return UNSPOOL_OK;
			/* fallthrough */
		case DW_OP_skip: {
			int64_t at = (int64_t)(uint64_t)w->e_at + (int64_t)arg;

			if (at < 0 || at > (int64_t)(uint64_t)w->e_len)
				return UNSPOOL_BAD_EXPR;
			w->e_at = (uint32_t)at;
			return UNSPOOL_OK;
		}
		case DW_OP_nop: return UNSPOOL_OK;
		default:
			if (!step_alu(op, a, b, arg, &r))
				return UNSPOOL_BAD_EXPR;
		}
	}
	w->e_n = w->e_n - takes + 1;
	STEP_TOP(w, 0) = r;
	return UNSPOOL_OK;
}

#endif /* UNSPOOL_STEP_H */
