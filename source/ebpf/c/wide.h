/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * wide.h: rules that do not fit 16 bytes, and expressions (docs/TABLE.md, docs/SEMANTICS.md section 3). They are rare: signal
 * frames, the first instructions of a program, hand-written code. Part of walk.h.
 */

/* ---- What step.h wants ---- */

/* The caller's registers are located beside the frame's. At first, those in keep are where the frame has them. */
static __always_inline void new_registers(struct walk *w, slots keep)
{
	u32 i;

	w->new_known = w->known & keep;
	w->new_in_mem = w->in_mem;
	for (i = 0; i < SLOTS; i++)
		w->new_val[i] = w->val[i];
}

static __always_inline void new_register(struct walk *w, u32 slot, u64 v, slots known, slots mem)
{
	w->new_known = (w->new_known & ~BIT(slot)) | known << (slot & (SLOT_ROOM - 1));
	w->new_in_mem = (w->new_in_mem & ~BIT(slot)) | mem << (slot & (SLOT_ROOM - 1));
	w->new_val[BOUNDED(slot, SLOT_ROOM)] = v;
}

static __always_inline void use_registers(struct walk *w)
{
	u32 i;

	for (i = 0; i < SLOTS; i++)
		w->val[i] = w->new_val[i];
	w->known = w->new_known;
	w->in_mem = w->new_in_mem;
	w->pc = w->ra;
	w->cfa = w->new_cfa;
}

PART int eval(u64 off, u32 push);

static __always_inline int eval_to(struct walk *w, u64 off, u32 push, u64 *to)
{
	int o = eval(off, push);

	*to = w->e_value;
	return o;
}


#define STEP_RUN struct walk
#define STEP_PART PART
#define STEP_SELF struct walk *w = walk_state();
#define STEP_BYTES(w, at, n) word_at((w)->table, (w)->e_base + (at))
#define STEP_WIDE(w, at, n) word_at((w)->table, (w)->wide + (at))
#define STEP_EVAL(w, off, push, to) eval_to(w, off, push, to)
#define STEP_GET(w, slot, to) get(w, slot, to)
#define STEP_LOAD(w, addr, to) load(w, addr, to)
#define STEP_PC(w) (w)->pc
#define STEP_FAULT(w) (w)->fault
#define STEP_NEW(w, keep) new_registers(w, keep)
#define STEP_SET(w, slot, v, mem) new_register(w, slot, v, 1, mem)
#define STEP_COPY(w, slot, from) \
	new_register(w, slot, (w)->val[BOUNDED(from, SLOT_ROOM)], (w)->known >> ((from) & (SLOT_ROOM - 1)) & 1, \
		     (w)->in_mem >> ((from) & (SLOT_ROOM - 1)) & 1)
#define STEP_LOSE(w, slot) ((w)->new_known &= ~BIT(slot))
#define STEP_DONE(w) use_registers(w)
#define STEP_LEB 24
#define STEP_UNSIGNED(w, ra) ((ra) & (w)->address)
#include "step.h"

/* ---- Expressions ---- */

PART int expr_next(u32 i)
{
	struct walk *w = walk_state();

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
	walk_used(w->table, w->s.time);
	w->missing = 1;
	return NO_RULE;
}

/* Runs the expression that off says, its length in the upper half; with push, the stack starts with the CFA. */
PART int eval(u64 off, u32 push)
{
	struct walk *w = walk_state();
	const u8 *h;
	u64 at = (u32)off, n = off >> 32;
	u32 i;

	if (!w)
		return BAD_EXPR;
	h = walk_value(w->table, 0);
	if (!h)
		return no_table(w);
	if (at > HEADER(h, expr_size) || n > HEADER(h, expr_size) - at)
		return BAD_EXPR;
	w->e_base = HEADER(h, exprs) + at;
	step_begin(w, (u32)n, push, w->new_cfa);
	w->e_outcome = OK;
	for (i = 0; i <= UNSPOOL_EXPR_STEPS; i++)
		if (expr_next(i))
			break;
	if (w->e_outcome != OK)
		return w->e_outcome;
	if (w->e_n == 0)
		return BAD_EXPR;
	w->e_value = STEP_TOP(w, 0);
	return OK;
}

/* ---- Rules ---- */

/* Applies a rule of kind wide, as apply does. */
PART int apply_wide(void)
{
	struct walk *w = walk_state();
	const u8 *h;
	u64 off, size;

	if (!w)
		return NO_RULE;
	h = walk_value(w->table, 0);
	off = w->rule.head >> 32;
	if (!h)
		return no_table(w);
	size = HEADER(h, wide_size);
	if (off > size)
		return NO_RULE;
	w->wide = HEADER(h, wides) + off;
	return step_wide(w, size - off, SAVED_SLOTS);
}
