/* SPDX-License-Identifier: Apache-2.0 */
/* apply.h: rules of fixed size for the drop-ins, over plain.h. libunspool.h has other meanings for some names of the table's, so core.h does without. */
#ifndef UNSPOOL_APPLY_H
#define UNSPOOL_APPLY_H

#include "core.h"
#include "unspool_table.h"

/* For each save in mask, which becomes 0. */
#define US_LOCATE(mask, base, set) \
	for (; mask; mask &= mask - 1) { \
		unsigned i = us_first(mask); \
\
		s->val[us_save_slot[i]] = PLAIN_AT(base, i); \
		set |= US_BIT(us_save_slot[i]); \
	}

US_INLINE int us_apply_other(const struct us_rule *r, struct us_state *s, us_load load, us_reg reg, void *ctx, us_set keep)
{
	struct us_mem m = {load, reg, ctx};

	return us_apply_wide(r, s, &m, keep);
}

/*
 * Turns s, the state of a frame whose rule is r, into that of its caller. keep is the set of registers that a call
 * frame leaves in place: US_SAVED, or US_ALL to take the stale values of lost registers for theirs, as libunwind does.
 * After any outcome but US_OK s is unchanged but for fault. Async-signal-safe if m's functions are.
 *
 * It is inlined so that a caller whose memory is known at compile time pays for no indirect call.
 */
#define PLAIN_STEP US_INLINE int us_apply_with(const struct us_rule *r, struct us_state *s, us_load load, us_reg reg, void *ctx, us_set kept)
#define PLAIN_SET us_set
#define PLAIN_KIND r->kind
#define PLAIN_REG r->reg
#define PLAIN_FLAGS r->flags
#define PLAIN_AUX r->aux
#define PLAIN_OFF r->off
#define PLAIN_BASE -(int32_t)r->aux * UNSPOOL_BASE_UNIT
#define PLAIN_MASK r->mask
#define PLAIN_MASKS uint32_t
#define PLAIN_SCALE 8
#define PLAIN_SAVE(i) r->saves[i]
#define PLAIN_RA_SAVE MACHINE(RA_SAVE)
#define PLAIN_LOCATE(mask, base, set) US_LOCATE(mask, base, set)
#define PLAIN_WIDE us_apply_other(r, s, load, reg, ctx, kept)
#define PLAIN_KEEP kept
#define PLAIN_SP US_SP
#define PLAIN_RA US_RA
#define PLAIN_RA_IS_PC US_RA_IS_PC
#define PLAIN_GET(slot, to) us_get_with(s, slot, load, reg, ctx, to)
#define PLAIN_LOAD(addr, to) load(ctx, addr, to)
#define PLAIN_PLACED(set) s->in_reg &= ~(set)
#define PLAIN_UNSIGNED(ra) us_unsigned(s, ra)
#include "plain.h"

#endif /* UNSPOOL_APPLY_H */
