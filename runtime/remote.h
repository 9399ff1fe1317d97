/* SPDX-License-Identifier: Apache-2.0 */
/* remote.h: a cursor of libunwind's interface to other address spaces: its steps are in remote.c, its registers in remote_registers.c. */
#ifndef UNSPOOL_REMOTE_H
#define UNSPOOL_REMOTE_H

#include "space.h"

struct cursor {
	struct unw_addr_space *as;
	void *arg;
	struct us_state s;
	uint64_t cfa;        /* what the stack pointer is */
	uint64_t sp;         /* strict: the stack pointer's location, by sp_kind */
	uint8_t sp_kind;
	uint8_t exact;       /* the program counter is not a return address */
	uint8_t from_signal; /* the last step left a signal frame */
	uint8_t ra_kind;
	uint64_t ra_at;      /* where the return address was read, by ra_kind */
	uint64_t sig;        /* the ucontext_t of the signal frame that was left last */
	struct us_seen seen;
	struct us_moves moves;
};

/* Where the program counter is: MAYBE holds if it is there. */
enum { RA_REG, RA_MEM, RA_MAYBE, RA_LOST };

/*
 * libunwind keeps a location for the stack pointer beside the CFA, which stands for its value. Steps do not change it,
 * except where a rule says so; it matters after a bad instruction pointer only.
 */
enum { SP_LOST, SP_REG, SP_MEM, SP_VALUE };
_Static_assert(sizeof(struct cursor) <= sizeof(unw_cursor_t), "it must fit");

US_INLINE struct cursor *cursor(unw_cursor_t *c)
{
	return (struct cursor *)(void *)c;
}

US_INLINE int load(void *ctx, uint64_t addr, uint64_t *to)
{
	struct cursor *c = ctx;
	unw_word_t v = 0;
	int r = c->as->acc.access_mem(c->as, c->as->strict ? addr : us_untagged(addr), &v, 0, c->arg);

	/* perf says 1, and 0 for the value, of what lies in no file. libunwind takes that for success. */
	if (us_unlikely(r != 0) && (r < 0 || !c->as->strict))
		return 0;
	*to = v;
	return 1;
}

US_INLINE int reg(void *ctx, unsigned i, uint64_t *to)
{
	struct cursor *c = ctx;
	unw_word_t v;

	if (c->as->acc.access_reg(c->as, (int)i, &v, 0, c->arg) < 0)
		return 0;
	*to = v;
	return 1;
}

/* Writes a register's location: a value. */
US_INLINE void set_value(struct us_state *s, unsigned slot, uint64_t v)
{
	s->known |= US_BIT(slot);
	s->in_mem &= ~US_BIT(slot);
	s->in_reg &= ~US_BIT(slot);
	s->val[slot] = v;
}

#endif /* UNSPOOL_REMOTE_H */
