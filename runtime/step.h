/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * step.h: expressions and rules of any kind (docs/SEMANTICS.md, sections 3 and 4): rows.Eval and rows.Step, for the drop-ins and for the
 * kernel's program. So functions are small, loops have bounds that it sees, and what it should not
 * follow from turn to turn is in memory. Rules of fixed size are plain.h's.
 *
 * Who includes it has unspool_table.h and machine.h, and defines
 *
 *	STEP_RUN			the structure of a step, with these members:
 *	   uint64_t e_stack[2 * UNSPOOL_EXPR_STACK]	an expression's stack
 *	   uint64_t e_out				what a function has decoded, computed or read
 *	   uint32_t e_at, e_len, e_n			its next byte, how many there are, values on the stack
 *	   uint64_t new_cfa, ra				of the caller: the stack pointer, and the address
 *	   uint32_t ra_column				whose rule says that
 *	   int32_t ra_outcome				and what that came to
 *	STEP_BYTES(w, at, n)		the number in n bytes of the expression from at on; what is in the bytes above it does not count
 *	STEP_WIDE(w, at, n)		the same, of the set of rules at hand
 *	STEP_EVAL(w, off, push, to)	runs the expression that off says; with push, the stack starts with new_cfa
 *	STEP_GET(w, slot, to)		reads a register of the frame: UNSPOOL_OK, or why not
 *	STEP_LOAD(w, addr, to)		reads eight bytes of memory: not 0; or 0
 *	STEP_PC(w), STEP_FAULT(w)	the program counter, and where the address goes that could not be read
 *	STEP_NEW(w, keep)		the caller's registers, beside the frame's: at first, those in keep are where the frame has them
 *	STEP_SET(w, slot, v, mem)	one of them has the value v, or is at that address
 *	STEP_COPY(w, slot, from)	is where the frame has register from, below SLOTS
 *	STEP_LOSE(w, slot)		is lost
 *	STEP_DONE(w)			the frame becomes its caller, at ra
 *	STEP_UNSIGNED(w, ra)		a signed return address without its signature; who does not define it keeps UNSPOOL_ADDRESS
 *	STEP_LEB			how many bytes a LEB128 may have, trailing ones without meaning included
 *	STEP_PART			before functions that are not inline
 *
 * Where the structure is found without being passed on, STEP_SELF says how: a declaration of w, which may be null.
 */
#ifndef UNSPOOL_STEP_H
#define UNSPOOL_STEP_H

#define STEP_INLINE static inline __attribute__((always_inline))

#ifndef STEP_UNSIGNED
#define STEP_UNSIGNED(w, ra) ((ra) & UNSPOOL_ADDRESS)
#endif

#ifndef STEP_SELF
#define STEP_SELF
#define STEP_TAKE STEP_RUN *w,
#define STEP_PASS w,
#else
#define STEP_TAKE
#define STEP_PASS
#endif

/* ---- Expressions ---- */

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
STEP_PART int step_alu(STEP_TAKE uint32_t op, uint64_t a, uint64_t b, uint64_t arg)
{
	STEP_SELF
	int64_t sa = (int64_t)a, sb = (int64_t)b;
	uint64_t ua, ub;

	if (!w)
		return 0;
	switch (op) {
	case DW_OP_abs: w->e_out = sa < 0 ? -a : a; break;
	case DW_OP_and: w->e_out = b & a; break;
	case DW_OP_div: /* signed; the kernel's program has unsigned division only */
		if (a == 0)
			return 0;
		ua = sa < 0 ? -a : a;
		ub = sb < 0 ? -b : b;
		w->e_out = (sa < 0) != (sb < 0) ? -(ub / ua) : ub / ua;
		break;
	case DW_OP_minus: w->e_out = b - a; break;
	case DW_OP_mod:
		if (a == 0)
			return 0;
		w->e_out = b % a;
		break;
	case DW_OP_mul: w->e_out = b * a; break;
	case DW_OP_neg: w->e_out = -a; break;
	case DW_OP_not: w->e_out = ~a; break;
	case DW_OP_or: w->e_out = b | a; break;
	case DW_OP_plus: w->e_out = b + a; break;
	case DW_OP_plus_uconst: w->e_out = a + arg; break;
	case DW_OP_shl: w->e_out = a < 64 ? b << (a & 63) : 0; break;
	case DW_OP_shr: w->e_out = a < 64 ? b >> (a & 63) : 0; break;
	case DW_OP_shra: w->e_out = (uint64_t)(sb >> (a < 64 ? a & 63 : 63)); break;
	case DW_OP_xor: w->e_out = b ^ a; break;
	case DW_OP_eq: w->e_out = b == a; break;
	case DW_OP_ne: w->e_out = b != a; break;
	case DW_OP_ge: w->e_out = sb >= sa; break;
	case DW_OP_gt: w->e_out = sb > sa; break;
	case DW_OP_le: w->e_out = sb <= sa; break;
	case DW_OP_lt: w->e_out = sb < sa; break;
	default: return 0;
	}
	return 1;
}

/*
 * Decodes a LEB128 at the expression's next byte. An unsigned one must fit 64 bits; of a signed one, what does not is
 * dropped. Returns 0 where it is cut off.
 */
STEP_PART int step_leb(STEP_TAKE uint32_t is_signed)
{
	STEP_SELF
	uint64_t v = 0, c;
	uint32_t i, shift;

	if (!w)
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
			w->e_out = v;
			return 1;
		}
	}
	return 0;
}

/* A number of 1, 2, 4 or 8 bytes. Returns 0 where it is cut off. */
STEP_PART int step_fixed(STEP_TAKE uint32_t size, uint32_t is_signed)
{
	STEP_SELF
	uint64_t v;

	if (!w || w->e_len - w->e_at < size || w->e_at > w->e_len)
		return 0;
	v = STEP_BYTES(w, w->e_at, size);
	w->e_at += size;
	switch (size) {
	case 1: v = is_signed ? (uint64_t)(int64_t)(int8_t)v : (uint8_t)v; break;
	case 2: v = is_signed ? (uint64_t)(int64_t)(int16_t)v : (uint16_t)v; break;
	case 4: v = is_signed ? (uint64_t)(int64_t)(int32_t)v : (uint32_t)v; break;
	}
	w->e_out = v;
	return 1;
}

/* Decodes the operand of an operation: a register's number, and a number. Returns 0 where it is cut off. */
STEP_INLINE int step_operand(STEP_RUN *w, uint32_t op, uint64_t *reg, uint64_t *arg)
{
	int ok = 1;

	if (op >= DW_OP_lit0 && op <= DW_OP_lit31) {
		*arg = op - DW_OP_lit0;
		return 1;
	}
	if (op >= DW_OP_breg0 && op <= DW_OP_breg31) {
		*reg = op - DW_OP_breg0;
		ok = step_leb(STEP_PASS 1);
	} else if (op >= DW_OP_const1u && op <= DW_OP_const8s) {
		ok = step_fixed(STEP_PASS 1u << ((op - DW_OP_const1u) >> 1 & 3), op & 1);
	} else if (op == DW_OP_addr) {
		ok = step_fixed(STEP_PASS 8, 0);
	} else if (op == DW_OP_constu || op == DW_OP_plus_uconst) {
		ok = step_leb(STEP_PASS 0);
	} else if (op == DW_OP_consts) {
		ok = step_leb(STEP_PASS 1);
	} else if (op == DW_OP_bregx) {
		ok = step_leb(STEP_PASS 0);
		*reg = w->e_out;
		ok = ok && *reg <= 0xffff && step_leb(STEP_PASS 1);
	} else if (op == DW_OP_pick || op == DW_OP_deref_size) {
		ok = step_fixed(STEP_PASS 1, 0);
	} else if (op == DW_OP_bra || op == DW_OP_skip) {
		ok = step_fixed(STEP_PASS 2, 1);
	} else {
		return 1;
	}
	*arg = w->e_out;
	return ok;
}

/* Reads size bytes at addr; where eight cannot be read there, the eight that end with them. */
STEP_PART int step_load_size(STEP_TAKE uint64_t addr, uint32_t size)
{
	STEP_SELF
	uint64_t v, mask;

	if (!w || size == 0 || size > 8)
		return UNSPOOL_BAD_EXPR;
	mask = ~(uint64_t)0 >> (64 - 8 * size);
	if (STEP_LOAD(w, addr, &v)) {
		w->e_out = v & mask;
		return UNSPOOL_OK;
	}
	if (size < 8 && STEP_LOAD(w, addr - (8 - size), &v)) {
		w->e_out = v >> (64 - 8 * size) & mask;
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
		if (reg == MACHINE(SLOT_PC)) {
			r = STEP_PC(w);
		} else {
			o = STEP_GET(w, MACHINE(SLOT)((uint32_t)reg), &r);
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
			o = step_load_size(STEP_PASS a, (uint32_t)arg);
			if (o != UNSPOOL_OK)
				return o;
			r = w->e_out;
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
			if (!step_alu(STEP_PASS op, a, b, arg))
				return UNSPOOL_BAD_EXPR;
			r = w->e_out;
		}
	}
	w->e_n = w->e_n - takes + 1;
	STEP_TOP(w, 0) = r;
	return UNSPOOL_OK;
}

/* ---- Rules that do not fit 16 bytes ---- */

/* A set has a rule for each register and for the return address, at most (docs/TABLE.md). */
#define STEP_RULES (UNSPOOL_NUM_SLOTS + 2)

/*
 * Says where the register of the set's rule at an offset lies in the caller, in terms of the frame's registers. Returns UNSPOOL_OK, or
 * UNSPOOL_OUTERMOST.
 */
STEP_PART int step_wide_rule(STEP_TAKE uint32_t at)
{
	STEP_SELF
	uint64_t head, off, v = 0;
	uint32_t of, slot, kind, reg;
	int o = UNSPOOL_OK, mem = 0, copied = 0;

	if (!w)
		return UNSPOOL_NO_RULE;
	head = STEP_WIDE(w, at, 8);
	off = STEP_WIDE(w, at + UNSPOOL_OFF_WRULE_OFF, 8);
	of = (uint16_t)(head >> 8 * UNSPOOL_OFF_WRULE_OF);
	kind = (uint8_t)(head >> 8 * UNSPOOL_OFF_WRULE_KIND);
	reg = (uint16_t)(head >> 8 * UNSPOOL_OFF_WRULE_REG);
	slot = MACHINE(SLOT)(of);
	reg = MACHINE(SLOT)(reg);
	if (slot >= MACHINE(SLOTS) && of != w->ra_column)
		return UNSPOOL_OK;
	switch (kind) {
	case UNSPOOL_SAME_VALUE:
		reg = slot;
		copied = 1;
		break;
	case UNSPOOL_REGISTER:
		copied = 1;
		break;
	case UNSPOOL_OFFSET:
	case UNSPOOL_VAL_OFFSET:
		v = w->new_cfa + off;
		mem = kind == UNSPOOL_OFFSET;
		break;
	case UNSPOOL_REG_OFFSET:
	case UNSPOOL_REG_DEREF:
		o = STEP_GET(w, reg, &v);
		v += off;
		mem = kind == UNSPOOL_REG_DEREF;
		break;
	case UNSPOOL_EXPR:
	case UNSPOOL_VAL_EXPR:
		o = STEP_EVAL(w, off, 1, &v);
		mem = kind == UNSPOOL_EXPR;
		break;
	default:
		o = UNSPOOL_LOST_REGISTER;
	}
	if (of == w->ra_column) {
		if (kind == UNSPOOL_UNDEFINED)
			return UNSPOOL_OUTERMOST;
		if (copied)
			o = STEP_GET(w, reg, &v);
		w->ra_outcome = o;
		w->ra = v;
		if (o == UNSPOOL_OK && mem && !STEP_LOAD(w, v, &w->ra)) {
			STEP_FAULT(w) = v;
			w->ra_outcome = UNSPOOL_UNREADABLE;
		}
	}
	if (slot >= MACHINE(SLOTS))
		return UNSPOOL_OK;
	if (copied && reg < MACHINE(SLOTS))
		STEP_COPY(w, slot, reg);
	else if (copied || o != UNSPOOL_OK)
		STEP_LOSE(w, slot);
	else
		STEP_SET(w, slot, v, mem);
	return UNSPOOL_OK;
}

/* Finds the CFA by the head of the set at hand. */
STEP_INLINE int step_wide_cfa(STEP_RUN *w, uint64_t head, uint64_t *cfa)
{
	uint32_t kind = (uint8_t)(head >> 8 * UNSPOOL_OFF_WIDE_CFA_KIND);
	uint64_t off = STEP_WIDE(w, UNSPOOL_OFF_WIDE_OFF, 8), off2 = STEP_WIDE(w, UNSPOOL_OFF_WIDE_OFF2, 8), at;
	int o;

	if (kind == UNSPOOL_CFA_EXPR)
		return STEP_EVAL(w, off, 0, cfa);
	o = STEP_GET(w, MACHINE(SLOT)((uint32_t)(uint16_t)(head >> 8 * UNSPOOL_OFF_WIDE_CFA_REG)), cfa);
	if (o != UNSPOOL_OK)
		return o;
	*cfa += off;
	if (kind == UNSPOOL_CFA_REG_DEREF) {
		at = *cfa;
		if (!STEP_LOAD(w, at, cfa)) {
			STEP_FAULT(w) = at;
			return UNSPOOL_UNREADABLE;
		}
		*cfa += off2;
	} else if (kind == UNSPOOL_CFA_PLT && (int64_t)(STEP_PC(w) & 15) >= (int64_t)off2) {
		*cfa += 8;
	}
	return UNSPOOL_OK;
}

/*
 * Applies the set of rules at hand, in which room bytes can be read: the frame becomes its caller. keep are the registers that stay where
 * they are if no rule says something else. After anything but UNSPOOL_OK, nothing of the frame has changed but the fault.
 */
STEP_INLINE int step_wide(STEP_RUN *w, uint64_t room, MACHINE(SET) keep)
{
	uint64_t head, cfa = 0;
	uint32_t flags, n, i, at, x, none;
	int o;

	if (room < UNSPOOL_WIDE_HEAD)
		return UNSPOOL_NO_RULE;
	head = STEP_WIDE(w, 0, 8);
	n = (uint8_t)(head >> 8 * UNSPOOL_OFF_WIDE_N_RULES);
	if (n > (room - UNSPOOL_WIDE_HEAD) / UNSPOOL_WRULE_SIZE || n > STEP_RULES)
		return UNSPOOL_NO_RULE;
	none = (uint8_t)(head >> 8 * UNSPOOL_OFF_WIDE_CFA_KIND) == UNSPOOL_CFA_NONE;
	flags = (uint16_t)(head >> 8 * UNSPOOL_OFF_WIDE_FLAGS);
	w->ra_column = (uint16_t)(head >> 8 * UNSPOOL_OFF_WIDE_RA);
	w->ra_outcome = UNSPOOL_LOST_REGISTER;
	w->new_cfa = 0;
	if (!none) {
		o = step_wide_cfa(w, head, &cfa);
		if (o != UNSPOOL_OK)
			return o;
		w->new_cfa = cfa;
		STEP_NEW(w, flags & UNSPOOL_PARTIAL ? (MACHINE(SET))MACHINE(RA_IN_REG) << MACHINE(SLOT_RA) : flags & UNSPOOL_SIGNAL ? (MACHINE(SET))MACHINE(ALL) : keep);
		STEP_SET(w, MACHINE(SLOT_SP), cfa, 0);
		if (MACHINE(RA_IN_REG))
			w->ra_outcome = STEP_GET(w, MACHINE(SLOT)(w->ra_column), &w->ra);
	}
	for (i = 0; i < STEP_RULES; i++) {
		if (i >= n)
			break;
		at = UNSPOOL_WIDE_HEAD + UNSPOOL_WRULE_SIZE * i;
		if (none) { /* no CFA: only whether there is a caller */
			x = (uint32_t)STEP_WIDE(w, at, 4);
			if ((uint16_t)(x >> 8 * UNSPOOL_OFF_WRULE_OF) == w->ra_column && (uint8_t)(x >> 8 * UNSPOOL_OFF_WRULE_KIND) == UNSPOOL_UNDEFINED)
				return UNSPOOL_OUTERMOST;
			continue;
		}
		o = step_wide_rule(STEP_PASS at);
		if (o != UNSPOOL_OK)
			return o;
	}
	if (none)
		return UNSPOOL_NO_RULE;
	if (w->ra_outcome != UNSPOOL_OK)
		return w->ra_outcome;
	if (flags & (UNSPOOL_RA_SIGNED | UNSPOOL_RA_SIGN_PC))
		w->ra = STEP_UNSIGNED(w, w->ra);
	i = MACHINE(SLOT)(w->ra_column);
	if (!MACHINE(RA_IN_REG) && i < MACHINE(SLOTS)) /* it is the program counter */
		STEP_SET(w, i, w->ra, 0);
	STEP_DONE(w);
	return UNSPOOL_OK;
}

#endif /* UNSPOOL_STEP_H */
