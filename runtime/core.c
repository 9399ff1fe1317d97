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

enum { MAX_STACK = 64, MAX_STEPS = 4096 };

/* An expression that is being run. */
struct expr {
	const uint8_t *p;
	int64_t at, n;
};

/* An unsigned LEB128 that fits 64 bits; 0 if there is none. */
static int uleb(struct expr *e, uint64_t *to)
{
	uint64_t v = 0;
	int64_t at = e->at;

	for (unsigned shift = 0; at < e->n; shift += 7) {
		uint64_t low = e->p[at] & 0x7f;

		if ((shift >= 64 && low) || (shift == 63 && low > 1))
			return 0;
		if (shift < 64)
			v |= low << shift;
		if (e->p[at++] < 0x80) {
			e->at = at;
			*to = v;
			return 1;
		}
	}
	return 0;
}

/* A signed LEB128, whose bits beyond 64 are dropped; 0 if it is cut off. */
static int sleb(struct expr *e, uint64_t *to)
{
	uint64_t v = 0;
	int64_t at = e->at;

	for (unsigned shift = 0; at < e->n;) {
		uint8_t c = e->p[at++];

		if (shift < 64)
			v |= (uint64_t)(c & 0x7f) << shift;
		shift = shift < 64 ? shift + 7 : shift;
		if (c < 0x80) {
			if (shift < 64 && c & 0x40)
				v |= ~(uint64_t)0 << shift;
			e->at = at;
			*to = v;
			return 1;
		}
	}
	return 0;
}

/* A number of size bytes, extended by its sign. */
static int fixed(struct expr *e, unsigned size, int is_signed, uint64_t *to)
{
	if (e->n - e->at < (int64_t)size)
		return 0;
	*to = number(e->p + e->at, size);
	if (is_signed && size < 8)
		*to = (uint64_t)((int64_t)(*to << (64 - 8 * size)) >> (64 - 8 * size));
	e->at += size;
	return 1;
}

/* What an operation needs on the stack, and what the ones that push more leave in its place; -1: not allowed. */
static int stack_use(uint8_t op, int *gives)
{
	*gives = 1;
	if (op >= DW_OP_lit0 && op <= DW_OP_lit31)
		return 0;
	if (op >= DW_OP_breg0 && op <= DW_OP_breg31)
		return 0;
	switch (op) {
	case DW_OP_addr:
	case DW_OP_bregx:
	case DW_OP_const1u ... DW_OP_consts:
		return 0;
	case DW_OP_dup:
	case DW_OP_pick:
		*gives = 2;
		return 1;
	case DW_OP_over:
		*gives = 3;
		return 2;
	case DW_OP_drop:
	case DW_OP_bra:
		*gives = 0;
		return 1;
	case DW_OP_deref:
	case DW_OP_deref_size:
	case DW_OP_abs:
	case DW_OP_neg:
	case DW_OP_not:
	case DW_OP_plus_uconst:
		return 1;
	case DW_OP_swap:
		*gives = 2;
		return 2;
	case DW_OP_rot:
		*gives = 3;
		return 3;
	case DW_OP_skip:
	case DW_OP_nop:
		*gives = 0;
		return 0;
	case DW_OP_and ... DW_OP_minus: /* and, div, minus */
	case DW_OP_mod:
	case DW_OP_mul:
	case DW_OP_or:
	case DW_OP_plus:
	case DW_OP_shl:
	case DW_OP_shr:
	case DW_OP_shra:
	case DW_OP_xor:
	case DW_OP_eq ... DW_OP_ne:
		return 2;
	}
	return -1;
}

/* Operations on one or two values: a is the top of the stack. 0: division by zero. */
static int arith(uint8_t op, uint64_t a, uint64_t b, uint64_t arg, uint64_t *r)
{
	int64_t sa = (int64_t)a, sb = (int64_t)b;

	switch (op) {
	case DW_OP_abs: *r = sa < 0 ? -a : a; break;
	case DW_OP_and: *r = b & a; break;
	case DW_OP_div:
		if (a == 0)
			return 0;
		*r = sa == -1 ? -b : (uint64_t)(sb / sa);
		break;
	case DW_OP_minus: *r = b - a; break;
	case DW_OP_mod:
		if (a == 0)
			return 0;
		*r = b % a;
		break;
	case DW_OP_mul: *r = b * a; break;
	case DW_OP_neg: *r = -a; break;
	case DW_OP_not: *r = ~a; break;
	case DW_OP_or: *r = b | a; break;
	case DW_OP_plus: *r = b + a; break;
	case DW_OP_plus_uconst: *r = a + arg; break;
	case DW_OP_shl: *r = a < 64 ? b << a : 0; break;
	case DW_OP_shr: *r = a < 64 ? b >> a : 0; break;
	case DW_OP_shra: *r = (uint64_t)(sb >> (a < 64 ? a : 63)); break;
	case DW_OP_xor: *r = b ^ a; break;
	case DW_OP_eq: *r = b == a; break;
	case DW_OP_ne: *r = b != a; break;
	case DW_OP_ge: *r = sb >= sa; break;
	case DW_OP_gt: *r = sb > sa; break;
	case DW_OP_le: *r = sb <= sa; break;
	case DW_OP_lt: *r = sb < sa; break;
	default: return 0;
	}
	return 1;
}

/* Reads n bytes at addr; where eight cannot be read there, the eight that end with them. */
static int load_size(const struct us_mem *m, struct us_state *s, uint64_t addr, uint64_t n, uint64_t *to)
{
	uint64_t mask, v;

	if (n == 0 || n > 8)
		return US_BAD_EXPR;
	mask = ~(uint64_t)0 >> (64 - 8 * n);
	if (m->load(m->ctx, addr, &v)) {
		*to = v & mask;
		return US_OK;
	}
	if (n < 8 && m->load(m->ctx, addr - (8 - n), &v)) {
		*to = v >> (64 - 8 * n) & mask;
		return US_OK;
	}
	s->fault = addr;
	return US_UNREADABLE;
}

/* Decodes the operand of the operation op. 0: it is cut off. */
static int operand(struct expr *e, uint8_t op, uint64_t *reg, uint64_t *arg)
{
	*arg = 0;
	if (op >= DW_OP_lit0 && op <= DW_OP_lit31) {
		*arg = (uint64_t)(op - DW_OP_lit0);
		return 1;
	}
	if (op >= DW_OP_breg0 && op <= DW_OP_breg31) {
		*reg = (uint64_t)(op - DW_OP_breg0);
		return sleb(e, arg);
	}
	switch (op) {
	case DW_OP_addr:
		return fixed(e, 8, 0, arg);
	case DW_OP_const1u ... DW_OP_const8s:
		return fixed(e, 1u << ((op - DW_OP_const1u) >> 1), op & 1, arg);
	case DW_OP_constu:
	case DW_OP_plus_uconst:
		return uleb(e, arg);
	case DW_OP_consts:
		return sleb(e, arg);
	case DW_OP_bregx:
		return uleb(e, reg) && *reg <= 0xffff && sleb(e, arg);
	case DW_OP_pick:
	case DW_OP_deref_size:
		return fixed(e, 1, 0, arg);
	case DW_OP_bra:
	case DW_OP_skip:
		return fixed(e, 2, 1, arg);
	}
	return 1;
}

/* Runs an expression; with push, the stack starts with cfa. */
static int eval(struct expr e, struct us_state *s, const struct us_mem *m, uint64_t cfa, int push, uint64_t *to)
{
	uint64_t st[MAX_STACK + 2], a, b, r, reg = 0, arg;
	int n = 0, need, gives, o;

	if (push)
		st[n++] = cfa;
	for (int steps = 0; e.at < e.n;) {
		uint8_t op = e.p[e.at++];

		if (++steps > MAX_STEPS)
			return US_BAD_EXPR;
		need = stack_use(op, &gives);
		if (need < 0 || !operand(&e, op, &reg, &arg) || n < need || n - need + gives > MAX_STACK)
			return US_BAD_EXPR;
		a = n > 0 ? st[n - 1] : 0;
		b = n > 1 ? st[n - 2] : 0;
		switch (op) {
		case DW_OP_breg0 ... DW_OP_breg31:
		case DW_OP_bregx:
			if (reg == US_RA) {
				r = s->pc;
			} else {
				o = us_get_with(s, (unsigned)reg, m->load, m->reg, m->ctx, &r);
				if (o != US_OK)
					return o;
			}
			r += arg;
			break;
		case DW_OP_lit0 ... DW_OP_lit31:
		case DW_OP_const1u ... DW_OP_consts:
		case DW_OP_addr:
			r = arg;
			break;
		case DW_OP_deref:
			if (!m->load(m->ctx, a, &r)) {
				s->fault = a;
				return US_UNREADABLE;
			}
			break;
		case DW_OP_deref_size:
			o = load_size(m, s, a, arg, &r);
			if (o != US_OK)
				return o;
			break;
		case DW_OP_dup:
			st[n++] = a;
			continue;
		case DW_OP_drop:
			n--;
			continue;
		case DW_OP_over:
			st[n++] = b;
			continue;
		case DW_OP_pick:
			if (arg >= (uint64_t)n)
				return US_BAD_EXPR;
			r = st[n - 1 - (int)arg];
			st[n++] = r;
			continue;
		case DW_OP_swap:
			st[n - 1] = b;
			st[n - 2] = a;
			continue;
		case DW_OP_rot:
			st[n - 1] = b;
			st[n - 2] = st[n - 3];
			st[n - 3] = a;
			continue;
		case DW_OP_bra:
			n--;
			if (a == 0)
				continue;
			/* fallthrough */
		case DW_OP_skip:
			e.at += (int64_t)arg;
			if (e.at < 0 || e.at > e.n)
				return US_BAD_EXPR;
			continue;
		case DW_OP_nop:
			continue;
		default:
			if (!arith(op, a, b, arg, &r))
				return US_BAD_EXPR;
		}
		n -= need;
		st[n++] = r;
	}
	if (n == 0)
		return US_BAD_EXPR;
	*to = st[n - 1];
	return US_OK;
}

/* ---- Wide rules ---- */

/* A register's rule of a wide, decoded. */
struct wrule {
	unsigned of, kind, reg;
	uint64_t off;
};

/* Bytes of the expression that off says. Where it leads out of the expressions it is one that fails. */
static struct expr expression(const struct us_wides *w, uint64_t off)
{
	static const uint8_t bad = 0xff;
	uint64_t at = off & 0xffffffff, n = off >> 32;

	if (at > w->expr_size || n > w->expr_size - at)
		return (struct expr){&bad, 0, 1};
	return (struct expr){w->exprs + at, 0, (int64_t)n};
}

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
		o = eval(expression(w, r->off), s, m, cfa, 1, &addr);
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
		o = eval(expression(w, r->off), s, m, cfa, 1, &v);
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
		o = eval(expression(w, number(b + UNSPOOL_OFF_WIDE_OFF, 8)), s, m, 0, 0, &cfa);
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
