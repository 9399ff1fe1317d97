/* SPDX-License-Identifier: Apache-2.0 */
/* core.c: wide rules, expressions, memory and the cache. See core.h. */
#define _GNU_SOURCE
#include "core.h"
#include "unspool_table.h"

#include <string.h>
#include <sys/mman.h>

/* core.h's numbers are the table's. It cannot include the table's header: libunspool.h has other meanings for some of its names. */
#define SAME(ours, tables) _Static_assert((uint64_t)(ours) == (uint64_t)(tables), "as in the table")
SAME(US_OUTERMOST, UNSPOOL_OUTERMOST);
SAME(US_NO_RULE, UNSPOOL_NO_RULE);
SAME(US_LOST_REGISTER, UNSPOOL_LOST_REGISTER);
SAME(US_UNREADABLE, UNSPOOL_UNREADABLE);
SAME(US_BAD_EXPR, UNSPOOL_BAD_EXPR);
SAME(US_SIGNAL, UNSPOOL_SIGNAL);
SAME(US_SIGNED, UNSPOOL_RA_SIGNED | UNSPOOL_RA_SIGN_PC);
SAME(US_KIND_REG, UNSPOOL_KIND_REG);
SAME(US_KIND_PLT, UNSPOOL_KIND_PLT);
SAME(US_KIND_WIDE, UNSPOOL_KIND_WIDE);
SAME(US_SAVED, UNSPOOL_X86_64_SAVED);
SAME(US_RA, UNSPOOL_X86_64_RA);
SAME(US_RSP, UNSPOOL_X86_64_SP);

/* ---- Numbers in bytes ---- */

static uint64_t number(const uint8_t *b, unsigned n)
{
	uint64_t v = 0;

	for (unsigned i = 0; i < n; i++)
		v |= (uint64_t)b[i] << 8 * i;
	return v;
}

/* ---- Expressions (docs/SEMANTICS.md, section 3) ---- */

/* An expression that is run: step.h. */
struct expr {
	struct us_state *s;
	const struct us_mem *m;
	const uint8_t *p;
	uint32_t e_at, e_len, e_n;
	uint64_t e_stack[2 * UNSPOOL_EXPR_STACK];
};

static int load(struct expr *e, uint64_t addr, uint64_t *to)
{
	return e->m->load(e->m->ctx, addr, to);
}

static int get(struct expr *e, uint32_t slot, uint64_t *to)
{
	return us_get_with(e->s, slot, e->m->load, e->m->reg, e->m->ctx, to);
}

#define PART static
#define STEP_RUN struct expr
#define STEP_BYTES(e, at, n) number((e)->p + (at), n)
#define STEP_GET(e, slot, to) get(e, slot, to)
#define STEP_LOAD(e, addr, to) load(e, addr, to)
#define STEP_PC(e) (e)->s->pc
#define STEP_FAULT(e) (e)->s->fault
#define STEP_LEB UINT32_MAX
#include "step.h"

/* Runs the expression of w that off says, its length in the upper half; with push, the stack starts with cfa. */
static int eval(const struct us_wides *w, uint64_t off, struct us_state *s, const struct us_mem *m, uint64_t cfa, int push, uint64_t *to)
{
	uint32_t at = (uint32_t)off, n = (uint32_t)(off >> 32);
	struct expr e;

	if (at > w->expr_size || n > w->expr_size - at)
		return US_BAD_EXPR;
	e.s = s;
	e.m = m;
	e.p = w->exprs + at;
	step_begin(&e, n, push, cfa);
	for (int steps = 0; e.e_at < e.e_len; steps++) {
		int o = steps < UNSPOOL_EXPR_STEPS ? step_op(&e) : US_BAD_EXPR;

		if (o != US_OK)
			return o;
	}
	if (e.e_n == 0)
		return US_BAD_EXPR;
	*to = STEP_TOP(&e, 0);
	return US_OK;
}

/* ---- Wide rules ---- */

/* A register's rule of a wide, decoded. */
struct wrule {
	unsigned of, kind, reg;
	uint64_t off;
};

/* What rule r says of the return address. */
static int value_of(const struct us_wides *w, const struct wrule *r, struct us_state *s, const struct us_mem *m,
		    uint64_t cfa, uint64_t *to)
{
	uint64_t addr = 0;
	int o;

	switch (r->kind) {
	case UNSPOOL_UNDEFINED:
		return US_OUTERMOST;
	case UNSPOOL_SAME_VALUE:
		return us_get_with(s, r->of, m->load, m->reg, m->ctx, to);
	case UNSPOOL_REGISTER:
		return us_get_with(s, r->reg, m->load, m->reg, m->ctx, to);
	case UNSPOOL_VAL_OFFSET:
		*to = cfa + r->off;
		return US_OK;
	case UNSPOOL_OFFSET:
		addr = cfa + r->off;
		break;
	case UNSPOOL_REG_OFFSET:
	case UNSPOOL_REG_DEREF:
		o = us_get_with(s, r->reg, m->load, m->reg, m->ctx, &addr);
		if (o != US_OK)
			return o;
		addr += r->off;
		if (r->kind == UNSPOOL_REG_OFFSET) {
			*to = addr;
			return US_OK;
		}
		break;
	case UNSPOOL_EXPR:
	case UNSPOOL_VAL_EXPR:
		o = eval(w, r->off, s, m, cfa, 1, &addr);
		if (o != US_OK || r->kind == UNSPOOL_VAL_EXPR) {
			if (o == US_OK)
				*to = addr;
			return o;
		}
		break;
	}
	if (!m->load(m->ctx, addr, to)) {
		s->fault = addr;
		return US_UNREADABLE;
	}
	return US_OK;
}

static void set_loc(struct us_state *s, unsigned slot, uint64_t v, int mem)
{
	s->known |= 1u << slot;
	s->in_mem = (s->in_mem & ~(1u << slot)) | (uint32_t)(mem != 0) << slot;
	s->in_reg &= ~(1u << slot);
	s->val[slot] = v;
}

static void copy_loc(struct us_state *to, unsigned t, const struct us_state *from, unsigned f)
{
	to->known = (to->known & ~(1u << t)) | (from->known >> f & 1) << t;
	to->in_mem = (to->in_mem & ~(1u << t)) | (from->in_mem >> f & 1) << t;
	to->in_reg = (to->in_reg & ~(1u << t)) | (from->in_reg >> f & 1) << t;
	to->val[t] = from->val[f];
}

/* Writes where rule r says that its register lies into next. */
static void locate(const struct us_wides *w, const struct wrule *r, struct us_state *s, struct us_state *next,
		   const struct us_mem *m, uint64_t cfa)
{
	uint64_t v;
	int o;

	switch (r->kind) {
	case UNSPOOL_SAME_VALUE:
		copy_loc(next, r->of, s, r->of);
		return;
	case UNSPOOL_OFFSET:
	case UNSPOOL_VAL_OFFSET:
		set_loc(next, r->of, cfa + r->off, r->kind == UNSPOOL_OFFSET);
		return;
	case UNSPOOL_REGISTER:
		if (r->reg < US_SLOTS) {
			copy_loc(next, r->of, s, r->reg);
			return;
		}
		break;
	case UNSPOOL_REG_OFFSET:
	case UNSPOOL_REG_DEREF:
		o = us_get_with(s, r->reg, m->load, m->reg, m->ctx, &v);
		if (o == US_OK) {
			set_loc(next, r->of, v + r->off, r->kind == UNSPOOL_REG_DEREF);
			return;
		}
		break;
	case UNSPOOL_EXPR:
	case UNSPOOL_VAL_EXPR:
		o = eval(w, r->off, s, m, cfa, 1, &v);
		if (o == US_OK) {
			set_loc(next, r->of, v, r->kind == UNSPOOL_EXPR);
			return;
		}
		break;
	}
	next->known &= ~(1u << r->of);
}

US_COLD int us_apply_wide(const struct us_rule *rule, struct us_state *s, const struct us_mem *m, uint32_t keep)
{
	const struct us_wides *w = rule->wide;
	uint32_t at = (uint32_t)rule->off;
	struct us_state next;
	uint64_t cfa, ra = 0;
	unsigned kind, column, n;
	int o, ra_from = US_LOST_REGISTER;
	const uint8_t *b;

	if (at > w->wide_size || w->wide_size - at < UNSPOOL_WIDE_HEAD)
		return US_NO_RULE;
	b = w->wides + at;
	kind = b[UNSPOOL_OFF_WIDE_CFA_KIND];
	column = (unsigned)number(b + UNSPOOL_OFF_WIDE_RA, 2);
	n = (unsigned)number(b + UNSPOOL_OFF_WIDE_N_RULES, 2);
	if (n > (w->wide_size - at - UNSPOOL_WIDE_HEAD) / UNSPOOL_WRULE_SIZE)
		return US_NO_RULE;

	/* The CFA. */
	if (kind == UNSPOOL_CFA_EXPR) {
		o = eval(w, number(b + UNSPOOL_OFF_WIDE_OFF, 8), s, m, 0, 0, &cfa);
		if (o != US_OK)
			return o;
	} else if (kind != UNSPOOL_CFA_NONE) {
		uint64_t off2 = number(b + UNSPOOL_OFF_WIDE_OFF2, 8);

		o = us_get_with(s, (unsigned)number(b + UNSPOOL_OFF_WIDE_CFA_REG, 2), m->load, m->reg, m->ctx, &cfa);
		if (o != US_OK)
			return o;
		cfa += number(b + UNSPOOL_OFF_WIDE_OFF, 8);
		if (kind == UNSPOOL_CFA_REG_DEREF) {
			uint64_t v;

			if (!m->load(m->ctx, cfa, &v)) {
				s->fault = cfa;
				return US_UNREADABLE;
			}
			cfa = v + off2;
		} else if (kind == UNSPOOL_CFA_PLT && (int64_t)(s->pc & 15) >= (int64_t)off2) {
			cfa += 8;
		}
	} else {
		cfa = 0;
	}

	/* All rules see the registers of this frame: the new ones are located beside the old. */
	next = *s;
	next.known &= b[UNSPOOL_OFF_WIDE_FLAGS] & US_SIGNAL ? US_ALL : keep;
	set_loc(&next, US_RSP, cfa, 0);
	for (unsigned i = 0; i < n; i++) {
		const uint8_t *x = b + UNSPOOL_WIDE_HEAD + i * UNSPOOL_WRULE_SIZE;
		struct wrule r = {
			(unsigned)number(x + UNSPOOL_OFF_WRULE_OF, 2), x[UNSPOOL_OFF_WRULE_KIND],
			(unsigned)number(x + UNSPOOL_OFF_WRULE_REG, 2), number(x + UNSPOOL_OFF_WRULE_OFF, 8),
		};

		if (kind == UNSPOOL_CFA_NONE) {
			if (r.of == column && r.kind == UNSPOOL_UNDEFINED)
				return US_OUTERMOST;
			continue;
		}
		if (r.of == column) {
			ra_from = value_of(w, &r, s, m, cfa, &ra);
			if (ra_from == US_OUTERMOST)
				return US_OUTERMOST;
		}
		if (r.of < US_SLOTS)
			locate(w, &r, s, &next, m, cfa);
	}
	if (kind == UNSPOOL_CFA_NONE)
		return US_NO_RULE;
	if (ra_from != US_OK)
		return ra_from;
	if (b[UNSPOOL_OFF_WIDE_FLAGS] & US_SIGNED)
		ra &= US_ADDRESS;
	next.fault = s->fault;
	next.pc = ra;
	next.cfa = cfa;
	if (column < US_SLOTS)
		set_loc(&next, column, ra, 0);
	*s = next;
	return US_OK;
}

int us_apply(const struct us_rule *r, struct us_state *s, const struct us_mem *m, uint32_t keep)
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
	uint64_t w[2];

	if (seq & 1 || !atomic_compare_exchange_strong_explicit(&e->seq, &seq, seq + 1, memory_order_acq_rel, memory_order_relaxed))
		return;
	atomic_thread_fence(memory_order_release);
	memcpy(w, r, sizeof w);
	atomic_store_explicit(&e->pc, pc, memory_order_relaxed);
	atomic_store_explicit(&e->tag, tag, memory_order_relaxed);
	atomic_store_explicit(&e->rule[0], w[0], memory_order_relaxed);
	atomic_store_explicit(&e->rule[1], w[1], memory_order_relaxed);
	atomic_store_explicit(&e->seq, seq + 2, memory_order_release);
}

/* ---- Beyond call frame information ---- */

enum { MAX_MOVES = 64, MAX_PIECE = 4096 };

void us_restore(struct us_state *s, const struct us_state *was, uint64_t sp, us_load load, void *ctx)
{
	for (uint32_t set = s->known & s->in_mem & US_SAVED; set; set &= set - 1) {
		unsigned slot = (unsigned)__builtin_ctz(set);
		uint32_t bit = 1u << slot, there = was->known & was->in_mem;
		uint64_t at = s->val[slot], v;

		if (at >= sp)
			continue;
		while (there && was->val[__builtin_ctz(there)] != at) /* where a signal has put a register */
			there &= there - 1;
		if (there || (sp - at <= UNSPOOL_X86_64_RED_ZONE && load(ctx, at, &v)))
			continue;
		s->known = (s->known & ~bit) | (was->known & bit);
		s->in_mem = (s->in_mem & ~bit) | (was->in_mem & bit);
		s->in_reg = (s->in_reg & ~bit) | (was->in_reg & bit);
		s->val[slot] = was->val[slot];
	}
}

/* CALL rel32 (e8) and CALL r/m64 (ff /2), whose length depends on its operand. */
int us_after_call(uint64_t code)
{
	if ((uint8_t)(code >> 24) == 0xe8)
		return 1;
	for (unsigned n = 2; n <= 7; n++) {
		uint64_t c = code >> 8 * (8 - n);
		unsigned mod = c >> 14 & 3, rm = c >> 8 & 7, size = 2;

		if ((c & 0xff) != 0xff || (c >> 11 & 7) != 2)
			continue;
		if (mod != 3 && rm == 4)
			size += n > 2 && mod == 0 && (c >> 16 & 7) == 5 ? 5 : 1;
		if (mod == 1)
			size++;
		else if (mod == 2 || (mod == 0 && rm == 5))
			size += 4;
		if (size == n)
			return 1;
	}
	return 0;
}

int us_move(struct us_moves *m, uint64_t cfa, uint64_t up, uint64_t pc)
{
	if (up > cfa && up - cfa <= MAX_PIECE)
		return 1;
	if (up <= cfa) {
		if (up >= m->low || up & 7 || m->n >= MAX_MOVES || (m->n && m->pc == pc && m->cfa == up))
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
