/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_cache.h: rules by program counter, for steps that recover every register; for all threads. Nearby code has nearby slots, so that a first
 * walk touches few pages. On AArch64, nearly all rules are packed so that a step reads six words and no table; a step by such a rule is here, too.
 * Part of local_walk.c.
 */
#ifndef UNSPOOL_LOCAL_CACHE_H
#define UNSPOOL_LOCAL_CACHE_H

#include "abi.h"
#include "local.h"

#include <string.h>

enum { SLOT_BITS = 13, GROUP_BITS = 8 };

/*
 * A key is the program counter, with one bit that says that it is looked up exactly, and one that says that the rule is packed. On x86-64,
 * addresses of code are below 2^47, and no rule is packed; on AArch64, they are multiples of 4.
 */
#ifdef __x86_64__
enum { SLOT_WORDS = US_RULE_WORDS, EXACT_BIT = US_USER_BITS, PACKED = 0 };
#else
enum { SLOT_WORDS = 6, EXACT_BIT = 0, PACKED = 2 };
#endif

struct rule_slot {
	_Atomic uint32_t seq; /* odd while it is written */
	_Atomic uint32_t index;
	_Atomic uint64_t key;
	_Atomic uint64_t rule[SLOT_WORDS];
};

static struct rule_slot rules[1 << SLOT_BITS] __attribute__((aligned(4096)));

/*
 * The pages of either cache that have been written to. Others are not read: that would map a page of zeros, which the write
 * that follows would replace.
 */
static struct {
	_Atomic uint64_t rules, traces;
} used;

enum { RULE_PAGE = 7 }; /* bits of a slot's number in its pages */
_Static_assert(sizeof(struct rule_slot) << RULE_PAGE >= 4096 && SLOT_BITS - RULE_PAGE <= 6, "a bit of 64 for each page, or two");

/* The slot of pc. If another pc has that, it can be in the other slots of its set, whose numbers differ in these bits. */
enum { WAYS = 4 };

US_INLINE unsigned slot_of(uint64_t pc)
{
	unsigned group = (unsigned)((pc >> 12 ^ pc >> 17) & ((1 << (SLOT_BITS - GROUP_BITS)) - 1));

	return group << GROUP_BITS | (uint32_t)pc * 0x9e3779b1u >> (32 - GROUP_BITS);
}

US_INLINE int is_used(_Atomic uint64_t *pages, unsigned page)
{
	return atomic_load_explicit(pages, memory_order_relaxed) >> page & 1;
}

static void use(_Atomic uint64_t *pages, unsigned page)
{
	atomic_fetch_or_explicit(pages, (uint64_t)1 << page, memory_order_relaxed);
}

US_INLINE int has_key(uint64_t pc)
{
	return us_is_user(pc) && !(pc & ((uint64_t)1 << EXACT_BIT | PACKED));
}

US_INLINE uint64_t key_of(uint64_t pc, int exact)
{
	return pc | (uint64_t)exact << EXACT_BIT;
}

#ifdef __aarch64__

/*
 * A packed rule: its first word; the set of the slots that it saves, with the return address's save in the highest byte; and the other saves, one
 * behind the other, each in 16 bits: the slot and, above its six bits, the save. Behind the last one is 0, which no save's slot is.
 */
enum { LIST = 4, MAX_LISTED = 3 * LIST };

/* The slots of a packed rule's saves. */
#define SAVED_SLOTS MACHINE(SLOTS_OF)((1u << MACHINE(N_SAVES)) - 1)
_Static_assert(SAVED_SLOTS >> 48 == 0 && US_SLOTS <= 64, "room for a save");

/* Packs a rule; 0 where it has no packed form. */
static int rule_pack(const struct us_rule *r, uint64_t w[SLOT_WORDS])
{
	unsigned n = 0;

	if (r->kind != US_KIND_REG || (r->reg != US_SP && r->reg != US_FP) || !(r->mask >> MACHINE(RA_SAVE) & 1) ||
	    r->flags & (US_SIGNAL | US_OUTERMOST_FLAG | UNSPOOL_PARTIAL) || r->mask >> MACHINE(N_SAVES))
		return 0;
	memset(w, 0, SLOT_WORDS * sizeof *w);
	memcpy(w, r, 8);
	w[1] = (uint64_t)MACHINE(SLOTS_OF)(r->mask) | (uint64_t)(uint8_t)r->saves[MACHINE(RA_SAVE)] << 56;
	for (uint32_t mask = r->mask & ((1u << MACHINE(RA_SAVE)) - 1); mask; mask &= mask - 1, n++) {
		unsigned i = us_first(mask);

		if (n == MAX_LISTED)
			return 0;
		w[2 + n / LIST] |= (uint64_t)(us_save_slot[i] | (unsigned)(uint8_t)r->saves[i] << 6) << 16 * (n % LIST);
	}
	return 1;
}

/* Takes a packed rule apart. What a save is that it does not have, does not count. */
static void rule_unpacked(const uint64_t w[SLOT_WORDS], struct us_rule *r)
{
#define SAVE_OF(i, slot) [slot] = (i),
	static const uint8_t save_of[64] = {MACHINE(EACH_SAVE)(SAVE_OF)};

	memset(r, 0, sizeof *r);
	memcpy(r, w, 8);
	r->mask = 1u << MACHINE(RA_SAVE);
	r->saves[MACHINE(RA_SAVE)] = (int8_t)(w[1] >> 56);
	for (unsigned n = 0; n < MAX_LISTED; n++) {
		unsigned one = (unsigned)(w[2 + n / LIST] >> 16 * (n % LIST)) & 0xffff, i = save_of[one & 63];

		if (one == 0)
			break;
		r->saves[i] = (int8_t)(one >> 6);
		r->mask |= 1u << i;
	}
}

#else

static int rule_pack(const struct us_rule *r, uint64_t w[SLOT_WORDS])
{
	(void)r;
	(void)w;
	return 0;
}

static void rule_unpacked(const uint64_t w[SLOT_WORDS], struct us_rule *r)
{
	memcpy(r, w, sizeof *r);
}

#endif

US_INLINE int rule_get_in(struct rule_slot *e, uint64_t pc, int exact, struct us_rule *r, uint32_t *index)
{
	uint32_t seq = atomic_load_explicit(&e->seq, memory_order_acquire);
	uint64_t key = atomic_load_explicit(&e->key, memory_order_acquire), w[SLOT_WORDS];

	if ((key & ~(uint64_t)PACKED) != key_of(pc, exact))
		return 0;
	*index = atomic_load_explicit(&e->index, memory_order_acquire);
	for (unsigned i = 0; i < SLOT_WORDS; i++)
		w[i] = atomic_load_explicit(&e->rule[i], memory_order_acquire);
	if (seq & 1 || atomic_load_explicit(&e->seq, memory_order_relaxed) != seq)
		return 0;
	if (key & PACKED)
		rule_unpacked(w, r);
	else
		memcpy(r, w, sizeof *r);
	return 1;
}

US_INLINE int rule_get(uint64_t pc, int exact, struct us_rule *r, uint32_t *index)
{
	unsigned at = slot_of(pc);

	if (us_unlikely(!is_used(&used.rules, at >> RULE_PAGE)))
		return 0;
	if (us_likely(rule_get_in(&rules[at], pc, exact, r, index)))
		return 1;
	for (unsigned way = 1; way < WAYS; way++)
		if (rule_get_in(&rules[at ^ way], pc, exact, r, index))
			return 1;
	return 0;
}

static void rule_put(uint64_t pc, int exact, const struct us_rule *r, uint32_t index)
{
	unsigned at = slot_of(pc);
	struct rule_slot *e = &rules[at];
	uint32_t seq = 0;
	uint64_t key = key_of(pc, exact), there, w[SLOT_WORDS] = {0};

	if (is_used(&used.rules, at >> RULE_PAGE)) {
		/* The first that is free, or has it already; else the last. */
		for (unsigned way = 0; way < WAYS; way++) {
			e = &rules[at ^ way];
			there = atomic_load_explicit(&e->key, memory_order_relaxed);
			if (there == 0 || (there & ~(uint64_t)PACKED) == key)
				break;
		}
		seq = atomic_load_explicit(&e->seq, memory_order_relaxed);
	} else {
		use(&used.rules, at >> RULE_PAGE);
	}

	if (seq & 1 || !atomic_compare_exchange_strong_explicit(&e->seq, &seq, seq + 1, memory_order_acq_rel, memory_order_relaxed))
		return;
	if (!exact && rule_pack(r, w))
		key |= PACKED;
	else
		memcpy(w, r, sizeof *r);
	atomic_store_explicit(&e->key, key, memory_order_release);
	atomic_store_explicit(&e->index, index, memory_order_release);
	for (unsigned i = 0; i < SLOT_WORDS; i++)
		atomic_store_explicit(&e->rule[i], w[i], memory_order_release);
	atomic_store_explicit(&e->seq, seq + 2, memory_order_release);
}

#ifdef __aarch64__

/* The end of a step from a frame that is larger than most, or to another stack. */
static US_COLD int moved(struct us_walk *w, uint64_t sp)
{
	return us_move(&w->moves, sp, w->sp, w->s.pc) ? US_STEPPED : -UNW_EBADFRAME;
}

/* Reads two words of a slot, each as a whole. */
#define PAIR(e, member, one, two) \
	__asm__ volatile("ldp %0, %1, [%2, %3]" : "=r"(one), "=r"(two) : "r"(e), "i"(offsetof(struct rule_slot, member)) : "memory")
_Static_assert(offsetof(struct rule_slot, index) == 4 && offsetof(struct rule_slot, rule) == 16, "read in words");

/* Locates the first register of a list. */
US_INLINE void locate(uint64_t *val, uint64_t base, uint64_t list)
{
	val[list & 63] = base + (uint64_t)((int64_t)(list << 50) >> 56) * 8;
}

/*
 * A step by a packed rule, through memory that the walk knows: what us_apply_with and its caller do, for nearly all frames. Returns US_END, with w as
 * it was, where that is not enough.
 */
US_INLINE int step_packed(struct us_walk *w)
{
	uint64_t pc = w->s.pc, sp, *val = w->s.val, head, set, list, more, last, cfa, base, at, ra;
	struct us_span span;
	unsigned slot = slot_of(pc);
	struct rule_slot *e;
	uint64_t counts, key; /* seq and index */

	if (us_unlikely(w->exact || w->saved_only) || us_unlikely(!is_used(&used.rules, slot >> RULE_PAGE)))
		return US_END;
	for (unsigned way = 0;; way++) {
		if (us_unlikely(way == WAYS))
			return US_END;
		e = &rules[slot ^ way];
		/* Each address is made once: compilers would make that of each member again. */
		__asm__("" : "+r"(e), "+r"(val));
		counts = __atomic_load_n((const uint64_t *)(const void *)e, __ATOMIC_ACQUIRE);
		PAIR(e, key, key, head);
		PAIR(e, rule[1], set, list);
		PAIR(e, rule[3], more, last);
		if (us_likely(key == (pc | PACKED)))
			break;
	}
	atomic_thread_fence(memory_order_acquire);
	if (us_unlikely(atomic_load_explicit(&e->seq, memory_order_relaxed) != (uint32_t)counts) || us_unlikely(counts & 1) ||
	    us_unlikely(counts >> 32 && (counts >> 32 != w->module || w->uncached)))
		return US_END;

	span = w->span;
	cfa = sp = w->sp;
	if ((head & 0xff) != (US_KIND_REG | US_SP << 2)) {
		cfa = val[US_FP];
		if (us_unlikely(!(w->s.known >> US_FP & 1)))
			return US_END;
		if (w->s.in_mem >> US_FP & 1) {
			if (us_unlikely(!us_within(&span, cfa)))
				return US_END;
			cfa = us_word(cfa);
		}
	}
	cfa += (uint64_t)((int64_t)head >> 32);
	base = cfa - (head >> 8 & 0xff) * UNSPOOL_BASE_UNIT;
	at = base + (uint64_t)((int64_t)set >> 56) * 8;
	if (us_unlikely(!us_within(&span, at)))
		return US_END;
	ra = us_word(at);
	if (head & US_SIGNED << 16)
		ra = us_unsigned(&w->s, ra);

	for (; list; list >>= 16)
		locate(val, base, list);
	if (us_unlikely(more)) {
		for (; more; more >>= 16)
			locate(val, base, more);
		for (; last; last >>= 16)
			locate(val, base, last);
	}
	set &= ((uint64_t)1 << 48) - 1;
	val[US_RA] = w->ra_at = at;
	w->s.known |= set;
	w->s.in_mem |= set;
	w->s.pc = ra;
	w->s.cfa = val[US_SP] = w->sp = cfa;
	return us_likely(cfa - sp - 1 < UNSPOOL_MAX_PIECE) ? US_STEPPED : moved(w, sp);
}

#endif

#endif /* UNSPOOL_LOCAL_CACHE_H */
