/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * wide.h: rules that do not fit 16 bytes, and expressions (docs/TABLE.md, docs/SEMANTICS.md section 3). They are rare: signal
 * frames, the first instructions of a program, hand-written code. Part of walk.h.
 */

/* ---- Expressions ---- */

/* A LEB128 may have so many bytes, trailing ones without meaning included. */
#define MAX_LEB 24

/*
 * Decodes a LEB128 at the expression's next byte. An unsigned one must fit 64 bits; of a signed one, what does not is
 * dropped. Returns 0 where it is cut off.
 */
PART int leb(struct walk *w, u32 is_signed, u64 *to)
{
	u64 v = 0;
	u32 i;

	if (!w || !to)
		return 0;
	for (i = 0; i < MAX_LEB; i++) {
		u32 shift = 7 * i;
		u64 c;

		if (w->e_at >= w->e_len)
			return 0;
		c = (u8)word_at(w->table, w->e_base + w->e_at);
		w->e_at++;
		if (!is_signed && ((shift >= 64 && c & 0x7f) || (shift == 63 && (c & 0x7f) > 1)))
			return 0;
		if (shift < 64)
			v |= (c & 0x7f) << shift;
		if (c < 0x80) {
			if (is_signed && c & 0x40 && shift + 7 < 64)
				v |= ~(u64)0 << (shift + 7);
			*to = v;
			return 1;
		}
	}
	return 0;
}

/* A number of 1, 2, 4 or 8 bytes. Returns 0 where it is cut off. */
PART int fixed(struct walk *w, u32 size, u32 is_signed, u64 *to)
{
	u64 v;

	if (!w || !to || w->e_len - w->e_at < size || w->e_at > w->e_len)
		return 0;
	v = word_at(w->table, w->e_base + w->e_at);
	w->e_at += size;
	switch (size) {
	case 1: v = is_signed ? (u64)(s64)(s8)v : (u8)v; break;
	case 2: v = is_signed ? (u64)(s64)(s16)v : (u16)v; break;
	case 4: v = is_signed ? (u64)(s64)(s32)v : (u32)v; break;
	}
	*to = v;
	return 1;
}

/* What an operation takes from the stack and what it leaves there instead, as takes << 8 | gives; 0xffff: not allowed. */
static __always_inline u32 stack_use(u32 op)
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
	return 0xffff;
}

/* Reads size bytes at addr; where eight cannot be read there, the eight that end with them. */
PART int load_size(struct walk *w, u64 addr, u32 size, u64 *to)
{
	u64 v, mask;

	if (!w || !to || size == 0 || size > 8)
		return BAD_EXPR;
	mask = ~(u64)0 >> (64 - 8 * size);
	if (load(w, addr, &v)) {
		*to = v & mask;
		return OK;
	}
	if (size < 8 && load(w, addr - (8 - size), &v)) {
		*to = v >> (64 - 8 * size) & mask;
		return OK;
	}
	w->fault = addr;
	return UNREADABLE;
}

/* Operations on one or two values, of which a is the top of the stack. */
PART int arith(u32 op, u64 a, u64 b, u64 arg, u64 *to)
{
	s64 sa = (s64)a, sb = (s64)b;
	u64 ua, ub;

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
	case DW_OP_shra: *to = (u64)(sb >> (a < 64 ? a & 63 : 63)); break;
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

#define TOP(w, i) ((w)->e_stack[((w)->e_n - 1 - (i)) & (2 * EXPR_STACK - 1)])

/* Runs one operation. Returns OK to go on. */
static __always_inline int expr_op(struct walk *w)
{
	u64 a, b, c, r = 0, arg = 0, reg = 0;
	u32 op, use, takes, gives;
	int o;

	if (!w)
		return BAD_EXPR;
	op = (u8)word_at(w->table, w->e_base + w->e_at);
	w->e_at++;
	use = stack_use(op);
	takes = use >> 8;
	gives = use & 0xff;

	/* The operand. */
	o = 1;
	if (op >= DW_OP_lit0 && op <= DW_OP_lit31) {
		arg = op - DW_OP_lit0;
	} else if (op >= DW_OP_breg0 && op <= DW_OP_breg31) {
		reg = op - DW_OP_breg0;
		o = leb(w, 1, &arg);
	} else if (op >= DW_OP_const1u && op <= DW_OP_const8s) {
		o = fixed(w, 1u << ((op - DW_OP_const1u) >> 1 & 3), op & 1, &arg);
	} else if (op == DW_OP_addr) {
		o = fixed(w, 8, 0, &arg);
	} else if (op == DW_OP_constu || op == DW_OP_plus_uconst) {
		o = leb(w, 0, &arg);
	} else if (op == DW_OP_consts) {
		o = leb(w, 1, &arg);
	} else if (op == DW_OP_bregx) {
		o = leb(w, 0, &reg) && reg <= 0xffff && leb(w, 1, &arg);
	} else if (op == DW_OP_pick || op == DW_OP_deref_size) {
		o = fixed(w, 1, 0, &arg);
	} else if (op == DW_OP_bra || op == DW_OP_skip) {
		o = fixed(w, 2, 1, &arg);
	}
	if (use == 0xffff || !o || w->e_n < takes || w->e_n - takes + gives > EXPR_STACK)
		return BAD_EXPR;

	a = TOP(w, 0);
	b = TOP(w, 1);
	c = TOP(w, 2);
	if ((op >= DW_OP_breg0 && op <= DW_OP_breg31) || op == DW_OP_bregx) {
		if (reg == SLOT_RA) {
			r = w->pc;
		} else {
			o = get(w, (u32)reg, &r);
			if (o != OK)
				return o;
		}
		r += arg;
	} else if ((op >= DW_OP_lit0 && op <= DW_OP_lit31) || (op >= DW_OP_const1u && op <= DW_OP_consts) || op == DW_OP_addr) {
		r = arg;
	} else {
		switch (op) {
		case DW_OP_deref:
			if (!load(w, a, &r)) {
				w->fault = a;
				return UNREADABLE;
			}
			break;
		case DW_OP_deref_size:
			o = load_size(w, a, (u32)arg, &r);
			if (o != OK)
				return o;
			break;
		case DW_OP_dup: r = a; takes = 0; break;
		case DW_OP_over: r = b; takes = 0; break;
		case DW_OP_pick:
			if (arg >= w->e_n)
				return BAD_EXPR;
			r = TOP(w, (u32)arg);
			takes = 0;
			break;
		case DW_OP_drop: w->e_n--; return OK;
		case DW_OP_swap:
			TOP(w, 0) = b;
			TOP(w, 1) = a;
			return OK;
		case DW_OP_rot:
			TOP(w, 0) = b;
			TOP(w, 1) = c;
			TOP(w, 2) = a;
			return OK;
		case DW_OP_bra:
			w->e_n--;
			if (a == 0)
				return OK;
			/* fallthrough */
		case DW_OP_skip: {
			s64 at = (s64)(u64)w->e_at + (s64)arg;

			if (at < 0 || at > (s64)(u64)w->e_len)
				return BAD_EXPR;
			w->e_at = (u32)at;
			return OK;
		}
		case DW_OP_nop: return OK;
		default:
			if (!arith(op, a, b, arg, &r))
				return BAD_EXPR;
		}
	}
	w->e_n = w->e_n - takes + 1;
	TOP(w, 0) = r;
	return OK;
}

static long expr_next(u32 i, void *ctx)
{
	struct walk *w = walk_state();

	(void)ctx;
	if (!w)
		return 1;
	if (w->e_at >= w->e_len)
		return 1;
	if (i >= EXPR_STEPS || w->e_left == 0) {
		w->e_outcome = BAD_EXPR;
		return 1;
	}
	w->e_left--;
	w->e_outcome = expr_op(w);
	return w->e_outcome != OK;
}

/* A rule is still cached whose table has been taken out. */
static __always_inline int no_table(struct walk *w)
{
	walk_used(w->table, 0, w->s.time);
	w->missing = 1;
	return NO_RULE;
}

/* Runs the expression that off says, its length in the upper half; with push, the stack starts with the CFA. */
PART int eval(struct walk *w, u64 off, u32 push, u64 *to)
{
	const u8 *h;
	u64 at = (u32)off, n = off >> 32;

	if (!w || !to)
		return BAD_EXPR;
	h = walk_value(w->table, 0);
	if (!h)
		return no_table(w);
	if (at > HEADER(h, expr_size) || n > HEADER(h, expr_size) - at)
		return BAD_EXPR;
	w->e_base = HEADER(h, exprs) + at;
	w->e_at = 0;
	w->e_len = (u32)n;
	w->e_n = push ? 1 : 0;
	w->e_stack[0] = w->new_cfa;
	w->e_outcome = OK;
	walk_loop(EXPR_STEPS + 1, expr_next, NULL);
	if (w->e_outcome != OK)
		return w->e_outcome;
	if (w->e_n == 0)
		return BAD_EXPR;
	*to = TOP(w, 0);
	return OK;
}

/* ---- Rules ---- */

/* Where register of a wide's rule lies in the caller: loc. Returns OK; or why its value is not known. */
PART int wide_rule(struct walk *w, u64 at)
{
	u64 head, off, v = 0;
	u32 of, kind, reg;
	int o = OK, mem = 0, lost = 0, copied = 0;

	if (!w)
		return NO_RULE;
	head = word_at(w->table, at);
	off = word_at(w->table, at + UNSPOOL_OFF_WRULE_OFF);
	of = (u16)head;
	kind = (u8)(head >> 8 * UNSPOOL_OFF_WRULE_KIND);
	reg = (u16)(head >> 8 * UNSPOOL_OFF_WRULE_REG);
	if (of >= SLOTS && of != w->ra_column)
		return OK;
	switch (kind) {
	case UNSPOOL_SAME_VALUE:
		reg = of;
		copied = 1;
		break;
	case UNSPOOL_REGISTER:
		copied = 1;
		break;
	case UNSPOOL_OFFSET:
		v = w->new_cfa + off;
		mem = 1;
		break;
	case UNSPOOL_VAL_OFFSET:
		v = w->new_cfa + off;
		break;
	case UNSPOOL_REG_OFFSET:
	case UNSPOOL_REG_DEREF:
		o = get(w, reg, &v);
		v += off;
		mem = kind == UNSPOOL_REG_DEREF;
		break;
	case UNSPOOL_EXPR:
	case UNSPOOL_VAL_EXPR:
		o = eval(w, off, 1, &v);
		mem = kind == UNSPOOL_EXPR;
		break;
	default:
		lost = 1;
	}
	if (copied) {
		o = OK;
		lost = reg >= SLOTS || !(w->known >> (reg & 31) & 1);
		if (!lost) {
			mem = w->in_mem >> (reg & 31) & 1;
			v = w->val[BOUNDED(reg, SLOT_ROOM)];
		}
	}
	if (of == w->ra_column) {
		if (kind == UNSPOOL_UNDEFINED)
			return OUTERMOST;
		w->ra_outcome = o != OK ? o : lost ? LOST_REGISTER : OK;
		w->wanted |= lost;
		if (w->ra_outcome == OK) {
			w->ra = v;
			if (mem && !load(w, v, &w->ra)) {
				w->fault = v;
				w->ra_outcome = UNREADABLE;
			}
		}
	}
	if (of >= SLOTS)
		return OK;
	if (o != OK || lost) {
		w->new_known &= ~(1u << of);
		return OK;
	}
	w->new_known |= 1u << of;
	w->new_in_mem = (w->new_in_mem & ~(1u << of)) | (u32)mem << of;
	w->new_val[BOUNDED(of, SLOT_ROOM)] = v;
	return OK;
}

/* Applies a rule of kind wide, as apply does. */
PART int apply_wide(struct walk *w)
{
	const u8 *h;
	u64 head, off, off2, size, cfa = 0, ra;
	u32 kind, flags, n, i;
	int o;

	if (!w)
		return NO_RULE;
	h = walk_value(w->table, 0);
	off = w->r0 >> 32;
	if (!h)
		return no_table(w);
	size = HEADER(h, wide_size);
	if (off > size || size - off < UNSPOOL_WIDE_HEAD)
		return NO_RULE;
	w->wide = HEADER(h, wides) + off;
	head = word_at(w->table, w->wide);
	n = (u32)(head >> 48);
	if (n > (size - off - UNSPOOL_WIDE_HEAD) / UNSPOOL_WRULE_SIZE)
		return NO_RULE;
	kind = (u8)head;
	flags = (u8)(head >> 8);
	w->ra_column = (u16)(head >> 16);
	off = word_at(w->table, w->wide + UNSPOOL_OFF_WIDE_OFF);
	off2 = word_at(w->table, w->wide + UNSPOOL_OFF_WIDE_OFF2);

	/* The CFA. */
	if (kind == UNSPOOL_CFA_EXPR) {
		o = eval(w, off, 0, &cfa);
		if (o != OK)
			return o;
	} else if (kind != UNSPOOL_CFA_NONE) {
		o = get(w, (u16)(head >> 32), &cfa);
		if (o != OK)
			return o;
		cfa += off;
		if (kind == UNSPOOL_CFA_REG_DEREF) {
			u64 at = cfa;

			if (!load(w, at, &cfa)) {
				w->fault = at;
				return UNREADABLE;
			}
			cfa += off2;
		} else if (kind == UNSPOOL_CFA_PLT && (s64)(w->pc & 15) >= (s64)off2) {
			cfa += 8;
		}
	}

	/* All rules see this frame's registers: the caller's are located beside them. */
	w->new_cfa = cfa;
	w->new_known = (w->known & (flags & UNSPOOL_SIGNAL ? ALL_SLOTS : SAVED_SLOTS)) | 1u << SLOT_RSP;
	w->new_in_mem = w->in_mem & ~(1u << SLOT_RSP);
	for (i = 0; i < SLOTS; i++)
		w->new_val[i] = w->val[i];
	w->new_val[SLOT_RSP] = cfa;
	w->ra_outcome = LOST_REGISTER;
	for (i = 0; i < 4 * SLOTS; i++) {
		u64 at = w->wide + UNSPOOL_WIDE_HEAD + UNSPOOL_WRULE_SIZE * (u64)i;

		if (i >= n)
			break;
		if (kind == UNSPOOL_CFA_NONE) {
			u64 x = word_at(w->table, at);

			if ((u16)x == w->ra_column && (u8)(x >> 8 * UNSPOOL_OFF_WRULE_KIND) == UNSPOOL_UNDEFINED)
				return OUTERMOST;
			continue;
		}
		o = wide_rule(w, at);
		if (o != OK)
			return o;
	}
	if (kind == UNSPOOL_CFA_NONE)
		return NO_RULE;
	if (w->ra_outcome != OK)
		return w->ra_outcome;
	ra = w->ra;
	if (flags & (UNSPOOL_RA_SIGNED | UNSPOOL_RA_SIGN_PC))
		ra &= ((u64)1 << 48) - 1;
	for (i = 0; i < SLOTS; i++)
		w->val[i] = w->new_val[i];
	w->known = w->new_known;
	w->in_mem = w->new_in_mem;
	i = w->ra_column;
	if (i < SLOTS) {
		w->known |= 1u << i;
		w->in_mem &= ~(1u << i);
		w->val[BOUNDED(i, SLOT_ROOM)] = ra;
	}
	w->pc = ra;
	w->cfa = cfa;
	return OK;
}
