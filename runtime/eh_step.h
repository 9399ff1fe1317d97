/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eh_step.h: frames whose program counter is known already, and steps by rules of fixed size: what nearly all frames take. Part of eh_walk.c and of
 * eh_raise.c.
 */
#ifndef UNSPOOL_EH_STEP_H
#define UNSPOOL_EH_STEP_H

#include "eh.h"
#include "unspool_table.h"

/* ---- The cache ---- */

/*
 * Direct-mapped and shared by all threads, as in local_cache.h. head has in its lower half a sequence number, which is odd while the slot is
 * written; above it, the module that must still be there: 0 for none, US_VOLATILE for code registered at run time.
 */
struct eh_slot {
	_Atomic uint64_t head, key, word[EH_FRAME_WORDS];
} __attribute__((aligned(64)));

enum { EH_SLOT_BITS = 13, EH_GROUP_BITS = 7, EH_PAGE_BITS = sizeof(struct eh_slot) == 64 ? 6 : 5 };
_Static_assert(sizeof(struct eh_slot) << EH_PAGE_BITS == 4096, "lines of the processor's cache");

extern US_HIDDEN struct eh_slot eh_slots[1 << EH_SLOT_BITS];

/* The pages of slots that have been written to. Others are not read: that would map a page of zeros, to be replaced by the write. */
extern US_HIDDEN _Atomic uint64_t eh_used[1 << (EH_SLOT_BITS - EH_PAGE_BITS - 6)];

US_INLINE int eh_is_used(unsigned slot)
{
	return atomic_load_explicit(&eh_used[slot >> (EH_PAGE_BITS + 6)], memory_order_relaxed) >> (slot >> EH_PAGE_BITS & 63) & 1;
}

US_INLINE unsigned eh_slot_of(uint64_t pc)
{
	unsigned group = (unsigned)((pc >> 12 ^ pc >> 17) & ((1 << (EH_SLOT_BITS - EH_GROUP_BITS)) - 1));

	return group << EH_GROUP_BITS | (uint32_t)pc * 0x9e3779b1u >> (32 - EH_GROUP_BITS);
}

/* 0 is no key. */
US_INLINE uint64_t eh_key(uint64_t pc, uint64_t exact)
{
	return pc | (exact | 2) << US_MAX_BITS;
}

/* Reads a slot; 0 where it is not key's. */
US_INLINE int eh_read(struct eh_slot *e, uint64_t key, struct eh_frame *f, uint32_t *index)
{
	uint64_t head = atomic_load_explicit(&e->head, memory_order_acquire);

	if (us_unlikely(atomic_load_explicit(&e->key, memory_order_acquire) != key))
		return 0;
	/* One by one: what is written in words would be read in pairs, and wait. */
	for (unsigned i = 0; i < EH_RULE_WORDS; i++)
		f->word[i] = atomic_load_explicit(&e->word[i], memory_order_acquire);
	f->personality = atomic_load_explicit(&e->word[EH_RULE_WORDS], memory_order_acquire);
	f->lsda = atomic_load_explicit(&e->word[EH_RULE_WORDS + 1], memory_order_acquire);
	f->start = atomic_load_explicit(&e->word[EH_RULE_WORDS + 2], memory_order_acquire);
	f->args = atomic_load_explicit(&e->word[EH_RULE_WORDS + 3], memory_order_acquire);
	*index = (uint32_t)(head >> 32);
	return us_likely(!(head & 1) && atomic_load_explicit(&e->head, memory_order_relaxed) == head);
}

/* ---- Frames ---- */

US_INLINE int eh_find(struct _Unwind_Context *c, struct eh_walk *w, struct eh_frame *f)
{
	uint64_t pc = c->ra;
	unsigned at = eh_slot_of(pc);
	uint32_t index;

	if (us_unlikely(!eh_is_used(at)) || us_unlikely(!eh_read(&eh_slots[at], eh_key(pc, c->flags >> 63), f, &index)) ||
	    us_unlikely(index != 0 && index != w->module))
		return eh_miss(c, w, f);
	c->args_size = (uint32_t)f->args;
	c->lsda = f->lsda;
	c->func = f->start;
	c->tbase = c->dbase = 0;
	return EH_NO_REASON;
}

US_INLINE uint64_t eh_value(const struct _Unwind_Context *c, unsigned column)
{
	if (us_unlikely(c->by_value[column] || !c->reg[column]))
		return column == US_SP && !c->reg[column] ? c->cfa : c->reg[column];
	return us_word(c->reg[column]);
}

/* A return address that a function of this rule has signed, where its frame ends at cfa: what is left if the signature is right, else no address. */
US_INLINE uint64_t eh_authenticated(uint64_t ra, uint64_t cfa, unsigned flags)
{
#ifdef __aarch64__
	register uint64_t x16 __asm__("x16") = cfa;
	register uint64_t x17 __asm__("x17") = ra;

	if (flags & UNSPOOL_B_KEY)
		__asm__("hint #14" : "+r"(x17) : "r"(x16)); /* autib1716: nothing where the processor knows no signatures */
	else
		__asm__("hint #12" : "+r"(x17) : "r"(x16)); /* autia1716 */
	return x17;
#else
	(void)cfa;
	(void)flags;
	return ra;
#endif
}

/* Flags of a rule that eh_step knows. */
#ifdef __aarch64__
enum { EH_STEP_FLAGS = US_SYNC_ONLY | UNSPOOL_RA_SIGNED | UNSPOOL_B_KEY };
#else
enum { EH_STEP_FLAGS = US_SYNC_ONLY };
#endif

/* A rule's set of saves, and one of these; from words where they are two: what is written in words would be read in pairs, and wait. */
#ifdef __x86_64__
#define EH_MASK(f) ((uint32_t)((f)->word[1] >> 56))
#define EH_SAVE(f, i) ((int8_t)((f)->word[1] >> 8 * (i)))
_Static_assert(offsetof(struct us_rule, mask) == 15, "as it is read here");
#else
#define EH_MASK(f) ((f)->rule.mask)
#define EH_SAVE(f, i) ((f)->rule.saves[i])
#endif
_Static_assert(offsetof(struct us_rule, flags) == 2 && offsetof(struct us_rule, off) == 4 && offsetof(struct us_rule, saves) == 8, "as it is read here");

/* Goes to the caller's frame; 0 where it cannot be had. At the outermost frame it goes to one whose program counter is 0. */
US_INLINE int eh_step(struct _Unwind_Context *c, const struct eh_frame *f)
{
	uint64_t head = f->word[0], cfa, base;
	unsigned reg = (unsigned)(head >> 2) & 63;
	uint32_t mask = EH_MASK(f);

	if (us_unlikely((head & 3) != US_KIND_REG || head >> 16 & 0xffff & ~(uint64_t)EH_STEP_FLAGS || !(mask >> MACHINE(RA_SAVE) & 1)))
		return eh_step_other(c, &f->rule);
	cfa = us_likely(reg == US_SP && !c->reg[US_SP]) ? c->cfa : eh_value(c, eh_column(reg));
	cfa += (uint64_t)((int64_t)head >> 32);
	base = cfa - (head >> 8 & 0xff) * UNSPOOL_BASE_UNIT;
	for (mask &= (1u << MACHINE(RA_SAVE)) - 1; mask; mask &= mask - 1) {
		unsigned i = us_first(mask), column = eh_column(us_save_slot[i]);

		c->reg[column] = base + (uint64_t)((int64_t)EH_SAVE(f, i) * 8);
		c->by_value[column] = 0;
	}
	c->reg[US_RA] = base + (uint64_t)((int64_t)EH_SAVE(f, MACHINE(RA_SAVE)) * 8);
	c->by_value[US_RA] = 0;
	c->ra = us_word(c->reg[US_RA]);
	if (us_unlikely(head >> 16 & UNSPOOL_RA_SIGNED))
		c->ra = eh_authenticated(c->ra, cfa, (unsigned)(head >> 16));
	c->cfa = cfa;
	c->reg[US_SP] = 0;
	c->flags &= ~EH_EXACT;
	return 1;
}

#ifdef __x86_64__

/*
 * Starts at the caller of a function that saved r15, r14, r13, r12, rbp and rbx below its return address, upwards. The context's registers are
 * there, and in w.
 */
US_INLINE void eh_start(struct _Unwind_Context *c, struct eh_walk *w, uint64_t *saved)
{
	w->module = 0;
	w->data[0] = w->data[1] = 0;
	w->shadow = saved[-1];
	c->reg[2] = c->reg[4] = c->reg[5] = c->reg[US_SP] = c->reg[8] = c->reg[9] = c->reg[10] = c->reg[11] = c->reg[17] = 0;
	c->reg[15] = (uint64_t)&saved[0];
	c->reg[14] = (uint64_t)&saved[1];
	c->reg[13] = (uint64_t)&saved[2];
	c->reg[12] = (uint64_t)&saved[3];
	c->reg[US_FP] = (uint64_t)&saved[4];
	c->reg[UNSPOOL_X86_64_REG_RBX] = (uint64_t)&saved[5];
	c->reg[US_RA] = (uint64_t)&saved[6];
	c->reg[0] = (uint64_t)&w->data[0];
	c->reg[1] = (uint64_t)&w->data[1];
	c->ra = saved[6];
	c->cfa = (uint64_t)&saved[7];
	c->lsda = c->tbase = c->dbase = c->func = c->version = c->args_size = 0;
	c->flags = EH_EXTENDED;
	__builtin_memset(c->by_value, 0, sizeof c->by_value);
}

#else

/* Starts at the caller of a function that saved x19 to x29, d8 to d15 and x30, upwards. The context's registers are there, and in w. */
US_INLINE void eh_start(struct _Unwind_Context *c, struct eh_walk *w, uint64_t *saved)
{
	__builtin_memset(w, 0, sizeof *w);
	w->shadow = saved[-1];
	__builtin_memset(c, 0, sizeof *c);
	for (unsigned i = 0; i < EH_DATA; i++)
		c->reg[i] = (uint64_t)&w->data[i];
	for (unsigned i = 0; i < MACHINE(N_SAVES); i++)
		c->reg[eh_column(us_save_slot[i])] = (uint64_t)&saved[i];
	c->ra = saved[MACHINE(RA_SAVE)];
	c->cfa = (uint64_t)&saved[MACHINE(N_SAVES)];
	c->flags = EH_EXTENDED;
}

#endif

#endif /* UNSPOOL_EH_STEP_H */
