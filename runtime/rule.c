/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rule.c: runs the instructions of an FDE (DWARF 5, section 6.4.2) up to one program counter, and makes the rule that holds
 * there. docs/SEMANTICS.md says what they mean. What lies behind the program counter is not read: an FDE that is damaged
 * there still counts, which is where this reader is more lenient than the one in Go.
 */
#define _GNU_SOURCE
#include "reader.h"
#include "unspool_table.h"

#include <sys/mman.h>

/* ---- Instructions ---- */

/* A value of an expression: its address and its length. */
struct block {
	uint64_t at, n;
};

/* A register's rule: kind is UNSPOOL_UNDEFINED and the like; off an offset, a register, or an expression's address. */
struct reg_rule {
	int64_t off;
	uint32_t len;
	uint32_t kind;
};

/* A set of rules. Of the registers, only those whose bit is in has have one, and are initialized. */
struct set {
	us_set has;
	uint8_t cfa_kind, behind;
	uint16_t cfa_reg;
	uint16_t signing; /* UNSPOOL_RA_SIGNED and UNSPOOL_RA_SIGN_PC */
	int64_t cfa_off;
	struct block cfa_expr;
	struct reg_rule reg[US_SLOTS];
};

static void copy_set(struct set *to, const struct set *from)
{
	memcpy(to, from, offsetof(struct set, reg));
	for (us_set m = from->has; m; m &= m - 1)
		to->reg[us_first(m)] = from->reg[us_first(m)];
}

enum { INLINE_DEPTH = 6, MAX_DEPTH = 4096 };

/* The sets that remember_state has pushed: a few here, all in pages of their own where they are more. */
struct stack {
	struct set *sets;
	unsigned n, room;
	struct set few[INLINE_DEPTH];
};

static US_COLD int grow(struct stack *s)
{
	unsigned room = s->room * 4;
	struct set *p;

	if (room > MAX_DEPTH)
		return 0;
	p = mmap(NULL, room * sizeof *p, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return 0;
	for (unsigned i = 0; i < s->n; i++)
		copy_set(&p[i], &s->sets[i]);
	if (s->sets != s->few)
		munmap(s->sets, s->room * sizeof *p);
	s->sets = p;
	s->room = room;
	return 1;
}

static uint64_t reg(struct reader *r)
{
	uint64_t v = uleb(r);

	r->bad |= v > 0xffff;
	return v;
}

/* An unsigned operand, and one times the data alignment factor. */
static int64_t positive(struct reader *r)
{
	uint64_t v = uleb(r);

	r->bad |= v >> 63;
	return (int64_t)v;
}

static int64_t factored(struct reader *r, int64_t v, int64_t daf)
{
	int64_t p;

	if (__builtin_mul_overflow(v, daf, &p))
		r->bad = 1;
	return p;
}

static struct block block(struct reader *r)
{
	uint64_t n = uleb(r);
	struct block b = {r->at, n};

	if (r->bad || n > r->end - r->at || n > UINT32_MAX)
		r->bad = 1;
	else
		r->at += n;
	return b;
}

/* The slot of a register. That of one without a slot is not below US_SLOTS: walking does not need it. */
static uint64_t slot_of(uint64_t reg)
{
	return MACHINE(SLOT)(reg);
}

/* The register of a slot. */
static unsigned reg_of(unsigned slot)
{
	unsigned r = slot;

	while (slot_of(r) != slot)
		r++;
	return r;
}

static void set_rule(struct set *s, uint64_t reg, unsigned kind, int64_t off, uint64_t len)
{
	uint64_t slot = slot_of(reg);

	if (slot >= US_SLOTS)
		return;
	s->has |= US_BIT(slot);
	s->reg[slot] = (struct reg_rule){off, (uint32_t)len, kind};
}

/*
 * Runs instructions on s until the location passes pc. initial is what restore goes back to: NULL in a CIE. Returns 0
 * where they are damaged.
 */
static int run(struct us_window *w, const struct us_fde *f, uint64_t at, uint64_t end, uint64_t pc,
	       struct set *s, const struct set *initial)
{
	struct reader r = {w, at, end, 0};
	struct stack stack;
	uint64_t loc = f->lo, v, u;
	int64_t n;
	struct block b;

	stack.n = 0;
	stack.room = INLINE_DEPTH;
	stack.sets = stack.few;
	while (r.at < r.end && !r.bad) {
		uint8_t op = u8(&r), low = op & 0x3f;

		switch (op & 0xc0) {
		case DW_CFA_advance_loc:
			v = low;
			goto advance;
		case DW_CFA_offset:
			n = factored(&r, positive(&r), f->daf);
			set_rule(s, low, UNSPOOL_OFFSET, n, 0);
			continue;
		case DW_CFA_restore:
			v = low;
			goto restore;
		}
		switch (op) {
		case DW_CFA_nop:
			break;
		case DW_CFA_set_loc:
			u = encoded(&r, f->enc & 0x7f, 0, f->lo);
			if (u && f->enc & PE_indirect)
				u = follow(&r, u);
			if (u < loc || !initial)
				r.bad = 1;
			loc = u;
			if (loc > pc)
				goto done;
			break;
		case DW_CFA_advance_loc1:
			v = fixed(&r, 1);
			goto advance;
		case DW_CFA_advance_loc2:
			v = fixed(&r, 2);
			goto advance;
		case DW_CFA_advance_loc4:
			v = fixed(&r, 4);
			goto advance;
		case DW_CFA_MIPS_advance_loc8:
			v = fixed(&r, 8);
		advance:
			if (__builtin_mul_overflow(v, f->caf, &u) || loc + u < loc || (u && !initial))
				r.bad = 1;
			loc += u;
			if (loc > pc)
				goto done;
			break;
		case DW_CFA_offset_extended:
			v = reg(&r);
			n = factored(&r, positive(&r), f->daf);
			set_rule(s, v, UNSPOOL_OFFSET, n, 0);
			break;
		case DW_CFA_offset_extended_sf:
			v = reg(&r);
			n = factored(&r, sleb(&r), f->daf);
			set_rule(s, v, UNSPOOL_OFFSET, n, 0);
			break;
		case DW_CFA_GNU_negative_offset_extended:
			v = reg(&r);
			n = factored(&r, positive(&r), f->daf);
			if (n == INT64_MIN)
				r.bad = 1;
			else
				set_rule(s, v, UNSPOOL_OFFSET, -n, 0);
			break;
		case DW_CFA_val_offset:
			v = reg(&r);
			n = factored(&r, positive(&r), f->daf);
			set_rule(s, v, UNSPOOL_VAL_OFFSET, n, 0);
			break;
		case DW_CFA_val_offset_sf:
			v = reg(&r);
			n = factored(&r, sleb(&r), f->daf);
			set_rule(s, v, UNSPOOL_VAL_OFFSET, n, 0);
			break;
		case DW_CFA_restore_extended:
			v = reg(&r);
		restore:
			u = slot_of(v);
			if (!initial)
				r.bad = 1;
			else if (u < US_SLOTS && initial->has >> u & 1)
				set_rule(s, v, initial->reg[u].kind, initial->reg[u].off, initial->reg[u].len);
			else if (u < US_SLOTS)
				s->has &= ~US_BIT(u);
			break;
		case DW_CFA_undefined:
			set_rule(s, reg(&r), UNSPOOL_UNDEFINED, 0, 0);
			break;
		case DW_CFA_same_value:
			set_rule(s, reg(&r), UNSPOOL_SAME_VALUE, 0, 0);
			break;
		case DW_CFA_register:
			v = reg(&r);
			u = reg(&r);
			set_rule(s, v, UNSPOOL_REGISTER, (int64_t)u, 0);
			break;
		case DW_CFA_remember_state:
			if (stack.n == stack.room && !grow(&stack)) {
				r.bad = 1;
				break;
			}
			copy_set(&stack.sets[stack.n++], s);
			break;
		case DW_CFA_restore_state:
			if (stack.n == 0)
				r.bad = 1;
			else
				copy_set(s, &stack.sets[--stack.n]);
			break;
		case DW_CFA_def_cfa:
		case DW_CFA_LLVM_def_aspace_cfa:
			s->cfa_reg = (uint16_t)reg(&r);
			s->cfa_off = positive(&r);
			goto def_cfa;
		case DW_CFA_def_cfa_sf:
		case DW_CFA_LLVM_def_aspace_cfa_sf:
			s->cfa_reg = (uint16_t)reg(&r);
			s->cfa_off = factored(&r, sleb(&r), f->daf);
		def_cfa:
			s->cfa_kind = UNSPOOL_CFA_REG;
			if (op == DW_CFA_LLVM_def_aspace_cfa || op == DW_CFA_LLVM_def_aspace_cfa_sf)
				positive(&r); /* the address space: all stacks lie in one */
			break;
		case DW_CFA_def_cfa_register:
			/* After an expression, the offset is that of the last register rule before it. */
			if (s->cfa_kind != UNSPOOL_CFA_REG && !s->behind)
				r.bad = 1;
			s->cfa_kind = UNSPOOL_CFA_REG;
			s->cfa_reg = (uint16_t)reg(&r);
			break;
		case DW_CFA_def_cfa_offset:
			n = positive(&r);
			goto def_cfa_offset;
		case DW_CFA_def_cfa_offset_sf:
			n = factored(&r, sleb(&r), f->daf);
		def_cfa_offset:
			/* GCC writes this behind an expression, too: then there is no CFA up to its next definition. */
			if (s->cfa_kind != UNSPOOL_CFA_REG) {
				r.bad |= !s->behind;
				s->cfa_kind = UNSPOOL_CFA_NONE;
			}
			s->cfa_off = n;
			break;
		case DW_CFA_def_cfa_expression:
			s->behind = s->behind || s->cfa_kind == UNSPOOL_CFA_REG;
			s->cfa_kind = UNSPOOL_CFA_EXPR;
			s->cfa_expr = block(&r);
			break;
		case DW_CFA_expression:
		case DW_CFA_val_expression:
			v = reg(&r);
			b = block(&r);
			set_rule(s, v, op == DW_CFA_expression ? UNSPOOL_EXPR : UNSPOOL_VAL_EXPR, (int64_t)b.at, b.n);
			break;
		case DW_CFA_GNU_args_size:
			positive(&r);
			break;
#ifdef __aarch64__
		case DW_CFA_AARCH64_negate_ra_state:
			s->signing ^= UNSPOOL_RA_SIGNED;
			break;
		case DW_CFA_AARCH64_negate_ra_state_with_pc:
			s->signing ^= UNSPOOL_RA_SIGNED | UNSPOOL_RA_SIGN_PC;
			break;
		case DW_CFA_AARCH64_set_ra_state:
			v = uleb(&r);
			sleb(&r); /* where it was signed */
			r.bad |= v > 2;
			s->signing = v == 0 ? 0 : v == 1 ? UNSPOOL_RA_SIGNED : UNSPOOL_RA_SIGNED | UNSPOOL_RA_SIGN_PC;
			break;
#endif
		default:
			r.bad = 1;
		}
	}
done:
	if (stack.sets != stack.few)
		munmap(stack.sets, stack.room * sizeof *stack.sets);
	return !r.bad;
}

/* ---- Rules ---- */

static int save_of(unsigned slot)
{
	for (unsigned i = 0; i < MACHINE(N_SAVES); i++)
		if (us_save_slot[i] == slot)
			return (int)i;
	return -1;
}

static uint16_t flags_of(const struct us_fde *f, const struct set *s)
{
	return (uint16_t)((f->signal ? US_SIGNAL : 0) | s->signing);
}

/* Makes a rule of fixed size; 0 if s does not fit one. */
static int narrow(const struct us_fde *f, const struct set *s, struct us_rule *r)
{
	int64_t least = 0;

	memset(r, 0, sizeof *r);
	r->flags = flags_of(f, s);
	if (s->cfa_kind == UNSPOOL_CFA_NONE) {
		uint64_t ra = slot_of(f->ra);

		if (ra < US_SLOTS && s->has >> ra & 1 && s->reg[ra].kind == UNSPOOL_UNDEFINED)
			r->flags |= US_OUTERMOST_FLAG;
		return 1;
	}
	if (s->cfa_kind != UNSPOOL_CFA_REG || slot_of(s->cfa_reg) >= US_SLOTS || s->cfa_off != (int32_t)s->cfa_off || slot_of(f->ra) != US_RA)
		return 0;
	r->kind = US_KIND_REG;
	r->reg = (uint8_t)slot_of(s->cfa_reg) & 63;
	r->off = (int32_t)s->cfa_off;
	if (s->has >> US_RA & 1 && s->reg[US_RA].kind == UNSPOOL_UNDEFINED) {
		r->flags |= US_OUTERMOST_FLAG;
		return 1;
	}
	for (us_set m = s->has; m; m &= m - 1) {
		unsigned i = us_first(m), k = s->reg[i].kind;
		int save = save_of(i);

		if (k == UNSPOOL_SAME_VALUE && (i != US_RA || !US_RA_IS_PC) && i != US_SP && (f->signal || US_SAVED >> i & 1))
			continue;
		if (k != UNSPOOL_OFFSET || save < 0 || s->reg[i].off & 7)
			return 0;
		r->mask |= (us_saves)(1u << save);
		if (s->reg[i].off < least)
			least = s->reg[i].off;
	}
	/* Without a rule, a return address that is the program counter is lost; a rule of fixed size would take it for unchanged. */
	if (US_RA_IS_PC && !(r->mask >> MACHINE(RA_SAVE) & 1))
		return 0;
	if (least < -1024) {
		int64_t aux = (-1024 - least + 1023) / 1024;

		if (least < -1024 * 256 || aux > 255)
			return 0;
		r->aux = (uint8_t)aux;
	}
	for (uint32_t m = r->mask; m; m &= m - 1) {
		unsigned i = us_first(m);
		int64_t n = s->reg[us_save_slot[i]].off;

		if (n > 1 << 20)
			return 0;
		n = (n + 1024 * (int64_t)r->aux) / 8;
		if (n < -128 || n > 127)
			return 0;
		r->saves[i] = (int8_t)n;
	}
	return 1;
}

/*
 * Wides made here, each with its expressions behind it. Equal ones are one, so their number is bounded by what the
 * modules say, however often a rule is made.
 */
struct made {
	struct made *next;
	uint32_t hash, size;
	struct us_wides wides;
	uint8_t bytes[];
};

static struct made *_Atomic made[1 << 10];

static const struct us_wides *intern(const uint8_t *bytes, uint32_t wide, uint32_t size)
{
	uint32_t hash = 2166136261u;
	struct made *_Atomic *list;
	struct made *first, *m, *fresh = NULL;

	for (uint32_t i = 0; i < size; i++)
		hash = (hash ^ bytes[i]) * 16777619u;
	list = &made[(hash ^ hash >> 16) & ((1 << 10) - 1)];
	first = atomic_load_explicit(list, memory_order_acquire);
	do {
		for (m = first; m; m = m->next)
			if (m->hash == hash && m->size == size && m->wides.wide_size == wide && !memcmp(m->bytes, bytes, size))
				return &m->wides;
		if (!fresh) {
			fresh = us_alloc(sizeof *fresh + size);
			if (!fresh)
				return NULL;
			memcpy(fresh->bytes, bytes, size);
			fresh->hash = hash;
			fresh->size = size;
			fresh->wides = (struct us_wides){fresh->bytes, fresh->bytes + wide, wide, size - wide};
		}
		fresh->next = first;
	} while (!atomic_compare_exchange_weak_explicit(list, &first, fresh, memory_order_release, memory_order_acquire));
	return &fresh->wides;
}

enum { MAX_WIDE = 4096 };

static void put(uint8_t *to, uint64_t v, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		to[i] = (uint8_t)(v >> 8 * i);
}

/* Copies an expression behind the others; returns where it is, as a wide says it. */
static uint64_t copy(struct us_window *w, uint64_t at, uint64_t n, uint8_t *to, uint32_t *used, uint32_t room, int *bad)
{
	struct reader r = {w, at, at + n, 0};
	uint64_t where = *used | n << 32;

	if (n > room - *used) {
		*bad = 1;
		return 0;
	}
	for (uint64_t i = 0; i < n; i++)
		to[(*used)++] = u8(&r);
	*bad |= r.bad;
	return where;
}

static US_COLD int wide(struct us_window *w, const struct us_fde *f, const struct set *s, struct us_rule *r)
{
	enum { HEAD = UNSPOOL_WIDE_HEAD + US_SLOTS * UNSPOOL_WRULE_SIZE };
	uint8_t bytes[MAX_WIDE], *exprs = bytes + HEAD;
	uint32_t n = 0, used = 0, size;
	int bad = 0;
	uint64_t off = (uint64_t)s->cfa_off;

	memset(bytes, 0, HEAD);
	for (us_set m = s->has; m; m &= m - 1) {
		unsigned i = us_first(m);
		uint8_t *x = bytes + UNSPOOL_WIDE_HEAD + n * UNSPOOL_WRULE_SIZE, k = (uint8_t)s->reg[i].kind;
		uint64_t v = (uint64_t)s->reg[i].off;

		n++;
		put(x + UNSPOOL_OFF_WRULE_OF, reg_of(i), 2);
		x[UNSPOOL_OFF_WRULE_KIND] = k;
		if (k == UNSPOOL_REGISTER) {
			put(x + UNSPOOL_OFF_WRULE_REG, v, 2);
			v = 0;
		} else if (k == UNSPOOL_EXPR || k == UNSPOOL_VAL_EXPR) {
			v = copy(w, v, s->reg[i].len, exprs, &used, MAX_WIDE - HEAD, &bad);
		}
		put(x + UNSPOOL_OFF_WRULE_OFF, v, 8);
	}
	if (s->cfa_kind == UNSPOOL_CFA_EXPR)
		off = copy(w, s->cfa_expr.at, s->cfa_expr.n, exprs, &used, MAX_WIDE - HEAD, &bad);
	if (bad)
		return US_DAMAGED;
	bytes[UNSPOOL_OFF_WIDE_CFA_KIND] = s->cfa_kind;
	put(bytes + UNSPOOL_OFF_WIDE_FLAGS, flags_of(f, s), 2);
	put(bytes + UNSPOOL_OFF_WIDE_RA, f->ra, 2);
	put(bytes + UNSPOOL_OFF_WIDE_CFA_REG, s->cfa_reg, 2);
	bytes[UNSPOOL_OFF_WIDE_N_RULES] = (uint8_t)n;
	put(bytes + UNSPOOL_OFF_WIDE_OFF, off, 8);
	size = UNSPOOL_WIDE_HEAD + n * UNSPOOL_WRULE_SIZE;
	if (used)
		memmove(bytes + size, exprs, used);
	memset(r, 0, sizeof *r);
	r->kind = US_KIND_WIDE;
	r->flags = flags_of(f, s);
	r->wide = intern(bytes, size, size + used);
	return r->wide ? US_FOUND : US_DAMAGED;
}

int us_fde_rule(struct us_window *w, const struct us_fde *f, uint64_t pc, struct us_rule *r)
{
	struct set s, initial;

	memset(&s, 0, offsetof(struct set, reg));
	if (!run(w, f, f->cie_insns, f->cie_end, UINT64_MAX, &s, NULL))
		return US_DAMAGED;
	copy_set(&initial, &s);
	if (!run(w, f, f->insns, f->end, pc, &s, &initial))
		return US_DAMAGED;
	return narrow(f, &s, r) ? US_FOUND : wide(w, f, &s, r);
}
