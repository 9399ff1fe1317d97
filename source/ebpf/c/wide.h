/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * wide.h: rules that do not fit 16 bytes, and expressions (docs/TABLE.md, docs/SEMANTICS.md section 3). They are rare: signal
 * frames, the first instructions of a program, hand-written code. Part of walk.h.
 */

/* ---- Expressions ---- */

#define STEP_RUN struct walk
#define STEP_BYTES(w, at, n) word_at((w)->table, (w)->e_base + (at))
#define STEP_GET(w, slot, to) get(w, slot, to)
#define STEP_LOAD(w, addr, to) load(w, addr, to)
#define STEP_PC(w) (w)->pc
#define STEP_FAULT(w) (w)->fault
#define STEP_LEB 24
#include "step.h"

static long expr_next(u32 i, void *ctx)
{
	struct walk *w = walk_state();

	(void)ctx;
	if (!w)
		return 1;
	if (w->e_at >= w->e_len)
		return 1;
	if (i >= UNSPOOL_EXPR_STEPS || w->e_left == 0) {
		w->e_outcome = BAD_EXPR;
		return 1;
	}
	w->e_left--;
	w->e_outcome = step_op(w);
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
	step_begin(w, (u32)n, push, w->new_cfa);
	w->e_outcome = OK;
	walk_loop(UNSPOOL_EXPR_STEPS + 1, expr_next, NULL);
	if (w->e_outcome != OK)
		return w->e_outcome;
	if (w->e_n == 0)
		return BAD_EXPR;
	*to = STEP_TOP(w, 0);
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
