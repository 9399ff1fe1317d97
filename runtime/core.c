/* SPDX-License-Identifier: Apache-2.0 */
/* core.c: wide rules, expressions, memory and the cache. See core.h. */
#define _GNU_SOURCE
#include "apply.h"

#include <string.h>
#include <sys/mman.h>

/* core.h's numbers are the table's. */
#define SAME(ours, tables) _Static_assert((uint64_t)(ours) == (uint64_t)(tables), "as in the table")
SAME(US_OUTERMOST, UNSPOOL_OUTERMOST);
SAME(US_NO_RULE, UNSPOOL_NO_RULE);
SAME(US_LOST_REGISTER, UNSPOOL_LOST_REGISTER);
SAME(US_UNREADABLE, UNSPOOL_UNREADABLE);
SAME(US_BAD_EXPR, UNSPOOL_BAD_EXPR);
SAME(US_SIGNAL, UNSPOOL_SIGNAL);
SAME(US_SIGNED, UNSPOOL_RA_SIGNED | UNSPOOL_RA_SIGN_PC);
SAME(US_SYNC_ONLY, UNSPOOL_SYNC_ONLY);
SAME(US_PARTIAL, UNSPOOL_PARTIAL);
SAME(US_OUTERMOST_FLAG, UNSPOOL_OUTERMOST_FLAG);
SAME(US_KIND_REG, UNSPOOL_KIND_REG);
SAME(US_KIND_PLT, UNSPOOL_KIND_PLT);
SAME(US_KIND_WIDE, UNSPOOL_KIND_WIDE);
SAME(US_SAVED, MACHINE(SAVED));
SAME(US_RA, MACHINE(RA));
SAME(US_SP, MACHINE(SP));

/* ---- Numbers in bytes ---- */

static uint64_t number(const uint8_t *b, unsigned n)
{
	uint64_t v = 0;

	for (unsigned i = 0; i < n; i++)
		v |= (uint64_t)b[i] << 8 * i;
	return v;
}

/* ---- Wide rules and expressions: step.h ---- */

/* A step by a wide rule. */
struct run {
	struct us_state *s, next;
	const struct us_mem *m;
	const struct us_wides *of;
	const uint8_t *wide, *expr;
	uint64_t new_cfa, ra;
	uint32_t ra_column;
	int32_t ra_outcome;
	uint32_t e_at, e_len, e_n;
	uint64_t e_stack[2 * UNSPOOL_EXPR_STACK];
	uint64_t e_out;
};

static int load(struct run *w, uint64_t addr, uint64_t *to)
{
	return w->m->load(w->m->ctx, addr, to);
}

static int get(struct run *w, uint32_t slot, uint64_t *to)
{
	return us_get_with(w->s, slot, w->m->load, w->m->reg, w->m->ctx, to);
}

static void set(struct run *w, uint32_t slot, uint64_t v, int mem)
{
	struct us_state *to = &w->next;

	to->known |= US_BIT(slot);
	to->in_mem = (to->in_mem & ~US_BIT(slot)) | (us_set)(mem != 0) << slot;
	to->in_reg &= ~US_BIT(slot);
	to->val[slot] = v;
}

static void copy(struct run *w, uint32_t slot, uint32_t from)
{
	const struct us_state *s = w->s;
	struct us_state *to = &w->next;

	to->known = (to->known & ~US_BIT(slot)) | (s->known >> from & 1) << slot;
	to->in_mem = (to->in_mem & ~US_BIT(slot)) | (s->in_mem >> from & 1) << slot;
	to->in_reg = (to->in_reg & ~US_BIT(slot)) | (s->in_reg >> from & 1) << slot;
	to->val[slot] = s->val[from];
}

static void keep_only(struct run *w, us_set keep)
{
	w->next = *w->s;
	w->next.known &= keep;
}

static void done(struct run *w)
{
	w->next.fault = w->s->fault;
	w->next.pc = w->ra;
	w->next.cfa = w->new_cfa;
	*w->s = w->next;
}

static int eval(struct run *w, uint64_t off, uint32_t push, uint64_t *to);

#define STEP_PART static
#define STEP_RUN struct run
#define STEP_BYTES(w, at, n) number((w)->expr + (at), n)
#define STEP_WIDE(w, at, n) number((w)->wide + (at), n)
#define STEP_EVAL(w, off, push, to) eval(w, off, push, to)
#define STEP_GET(w, slot, to) get(w, slot, to)
#define STEP_LOAD(w, addr, to) load(w, addr, to)
#define STEP_PC(w) (w)->s->pc
#define STEP_FAULT(w) (w)->s->fault
#define STEP_NEW(w, keep) keep_only(w, keep)
#define STEP_SET(w, slot, v, mem) set(w, slot, v, mem)
#define STEP_COPY(w, slot, from) copy(w, slot, from)
#define STEP_LOSE(w, slot) ((w)->next.known &= ~US_BIT(slot))
#define STEP_DONE(w) done(w)
#define STEP_UNSIGNED(w, ra) us_unsigned((w)->s, ra)
#define STEP_LEB UINT32_MAX
#include "step.h"

/* Runs the expression that off says, its length in the upper half; with push, the stack starts with the CFA. */
static int eval(struct run *w, uint64_t off, uint32_t push, uint64_t *to)
{
	uint32_t at = (uint32_t)off, n = (uint32_t)(off >> 32);

	if (at > w->of->expr_size || n > w->of->expr_size - at)
		return US_BAD_EXPR;
	w->expr = w->of->exprs + at;
	step_begin(w, n, push, w->new_cfa);
	for (int steps = 0; w->e_at < w->e_len; steps++) {
		int o = steps < UNSPOOL_EXPR_STEPS ? step_op(w) : US_BAD_EXPR;

		if (o != US_OK)
			return o;
	}
	if (w->e_n == 0)
		return US_BAD_EXPR;
	*to = STEP_TOP(w, 0);
	return US_OK;
}

US_COLD int us_apply_wide(const struct us_rule *rule, struct us_state *s, const struct us_mem *m, us_set keep)
{
	uint32_t at = (uint32_t)rule->off;
	struct run w;

	w.s = s;
	w.m = m;
	w.of = rule->wide;
	if (at > w.of->wide_size)
		return US_NO_RULE;
	w.wide = w.of->wides + at;
	return step_wide(&w, w.of->wide_size - at, keep);
}

int us_apply(const struct us_rule *r, struct us_state *s, const struct us_mem *m, us_set keep)
{
	return us_apply_with(r, s, m->load, m->reg, m->ctx, keep);
}

/* ---- Memory ---- */

enum { CHUNK = 1 << 18 };

struct chunk {
	_Atomic size_t used;
	uint8_t pad[8];
};

static struct chunk *_Atomic current;

static void *map(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

void *us_alloc(size_t size)
{
	struct chunk *c = atomic_load_explicit(&current, memory_order_acquire);

	if (size > (size_t)-1 / 2)
		return NULL;
	size = (size + 15) & ~(size_t)15;
	if (size > CHUNK / 4)
		return map(size);
	for (;;) {
		struct chunk *fresh;

		if (c) {
			/* A count that has passed the end stays there: it grows by less than a quarter of a chunk each time. */
			size_t at = atomic_load_explicit(&c->used, memory_order_relaxed);

			if (at + size <= CHUNK) {
				at = atomic_fetch_add_explicit(&c->used, size, memory_order_relaxed);
				if (at + size <= CHUNK)
					return (uint8_t *)c + at;
			}
		}
		fresh = map(CHUNK);
		if (!fresh)
			return NULL;
		atomic_init(&fresh->used, sizeof *fresh);
		if (atomic_compare_exchange_strong_explicit(&current, &c, fresh, memory_order_acq_rel, memory_order_acquire))
			c = fresh;
		else
			munmap(fresh, CHUNK);
	}
}

/* ---- The cache ---- */

struct us_cache us_cache;

static _Atomic uint32_t spaces;

uint32_t us_new_space(void)
{
	return atomic_fetch_add_explicit(&spaces, 1, memory_order_relaxed) + 1;
}

void us_slot_put(struct us_slot *e, uint32_t tag, uint64_t pc, const struct us_rule *r)
{
	uint32_t seq = atomic_load_explicit(&e->seq, memory_order_relaxed);
	uint64_t w[US_RULE_WORDS];

	if (seq & 1 || !atomic_compare_exchange_strong_explicit(&e->seq, &seq, seq + 1, memory_order_acq_rel, memory_order_relaxed))
		return;
	atomic_thread_fence(memory_order_release);
	memcpy(w, r, sizeof w);
	atomic_store_explicit(&e->pc, pc, memory_order_relaxed);
	atomic_store_explicit(&e->tag, tag, memory_order_relaxed);
	for (unsigned i = 0; i < US_RULE_WORDS; i++)
		atomic_store_explicit(&e->rule[i], w[i], memory_order_relaxed);
	atomic_store_explicit(&e->seq, seq + 2, memory_order_release);
}

/* ---- Beyond call frame information ---- */

void us_restore(struct us_state *s, const struct us_state *was, uint64_t sp, us_load load, void *ctx)
{
	for (us_set set = s->known & s->in_mem & US_SAVED; set; set &= set - 1) {
		unsigned slot = us_first(set);
		us_set bit = US_BIT(slot), there = was->known & was->in_mem;
		uint64_t at = s->val[slot], v;

		if (at >= sp)
			continue;
		while (there && was->val[us_first(there)] != at) /* where a signal has put a register */
			there &= there - 1;
		if (there || (sp - at <= MACHINE(RED_ZONE) && load(ctx, at, &v)))
			continue;
		s->known = (s->known & ~bit) | (was->known & bit);
		s->in_mem = (s->in_mem & ~bit) | (was->in_mem & bit);
		s->in_reg = (s->in_reg & ~bit) | (was->in_reg & bit);
		s->val[slot] = was->val[slot];
	}
}

int us_move(struct us_moves *m, uint64_t cfa, uint64_t up, uint64_t pc)
{
	if (up > cfa && up - cfa <= UNSPOOL_MAX_PIECE)
		return 1;
	if (up <= cfa) {
		if (up >= m->low || up & 7 || m->n >= UNSPOOL_MAX_MOVES || (m->n && m->pc == pc && m->cfa == up))
			return 0;
		if ((m->n & (m->n - 1)) == 0) {
			m->pc = pc;
			m->cfa = up;
		}
		m->n++;
	}
	m->low = up;
	return 1;
}
