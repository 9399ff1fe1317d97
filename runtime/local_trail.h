/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_trail.h: walks that go on where they meet the walk before, for heap recordings: most of a stack is as it was at the allocation before. Part of
 * local_walk.c, on x86-64.
 *
 * A frame's caller follows from its program counter, its stack pointer and rbp, and from at most two words of memory. So from a frame that the walk
 * before had, the same frames follow as long as the same return addresses lie at the same places; rbp counts only where a frame's CFA depends on it.
 */
#ifndef UNSPOOL_LOCAL_TRAIL_H
#define UNSPOOL_LOCAL_TRAIL_H

#include "local_cache.h"

/* The frame's CFA is by rbp; it or a frame further out needs the rbp that it has; from it outwards, a frame restores an rbp that is needed. */
enum { BY_BP = 1, NEEDS_BP = 2, CHECKS_BP = 4 };

/* Whether the caller of frame k is what it was. */
US_INLINE int trail_leads(const struct us_trail *t, const struct us_span *span, int k)
{
	const struct us_trail_link *to = &t->link[k - 1];

	return us_likely(us_within(span, to->at)) && us_likely(us_word(to->at) == to->pc);
}

/* Whether the caller's rbp is what it was, where somebody needs it. */
US_INLINE int trail_keeps_bp(const struct us_trail *t, const struct us_span *span, int k)
{
	uint64_t bp_at = t->frame[k].bp_at;

	return !bp_at || !(t->frame[k - 1].flags & NEEDS_BP) || (us_within(span, bp_at) && us_word(bp_at) == t->frame[k - 1].bp);
}

/* Goes outwards from frame k as far as all is as it was. Returns the frame that it comes to: 0 is the outermost one. */
US_INLINE int trail_follow(const struct us_trail *t, const struct us_span *span, int k)
{
	if (us_likely(!(t->frame[k].flags & CHECKS_BP)))
		while (k > 0 && trail_leads(t, span, k))
			k--;
	else
		while (k > 0 && trail_leads(t, span, k) && trail_keeps_bp(t, span, k))
			k--;
	return k;
}

/* The walk is whole: the first old frames of the one before, and fresh ones. Returns how many. */
US_INLINE int trail_keep(struct us_trail *t, int old, int fresh)
{
	uint64_t hash = 0, flags = 0;

	if (us_unlikely(old + fresh > US_TRAIL))
		return 0;
	if (old) {
		hash = t->frame[old - 1].hash;
		flags = t->frame[old - 1].flags;
	}
	while (fresh--) {
		struct us_trail_frame *f = &t->frame[old];

		t->link[old] = t->fresh_link[fresh];
		*f = t->fresh[fresh];
		f->flags |= flags & CHECKS_BP;
		if (f->bp_at && flags & NEEDS_BP)
			f->flags |= CHECKS_BP;
		if (f->flags & BY_BP || (!f->bp_at && flags & NEEDS_BP))
			f->flags |= NEEDS_BP;
		f->hash = hash = us_trail_hash(hash, t->link[old++].pc);
		flags = f->flags;
	}
	t->n = old;
	return old;
}

int us_trail(struct us_trail *t, uint64_t at, uint64_t bp)
{
	struct us_span span = us_stack;
	uint64_t pc = us_word(at), cfa, d, flags;
	uint32_t module = 0, index = 0;
	int fresh = 0, old = t->n;

	t->n = 0; /* unless this walk is whole */
	while (fresh < US_TRAIL) {
		unsigned slot = slot_of(pc), kind;
		uint64_t bp_at = 0;

		while (old && t->link[old - 1].at < at)
			old--;
		if (old && t->link[old - 1].at == at && t->link[old - 1].pc == pc && (!(t->frame[old - 1].flags & NEEDS_BP) || t->frame[old - 1].bp == bp)) {
			int k = trail_follow(t, &span, old - 1);

			if (us_likely(k == 0))
				return trail_keep(t, old, fresh);
			/* The frames on the way are known, and so is where they have rbp. */
			for (; old - 1 > k && fresh < US_TRAIL; old--) {
				const struct us_trail_frame *f = &t->frame[old - 1];

				t->fresh_link[fresh] = t->link[old - 1];
				t->fresh[fresh++] = (struct us_trail_frame){bp, f->bp_at, 0, f->flags & BY_BP};
				if (f->bp_at) {
					if (!us_within(&span, f->bp_at))
						return 0;
					bp = us_word(f->bp_at);
				}
			}
			if (fresh == US_TRAIL)
				return 0;
			at = t->link[k].at;
			pc = t->link[k].pc;
			slot = slot_of(pc);
		}

		if (us_unlikely(!is_used(&used.traces, slot >> TRACE_PAGE)) || us_unlikely(!trace_get(&traces[slot], pc, 0, &d, &index)) ||
		    us_unlikely(index != 0 && index != module && !us_still_loaded(index, pc - 1, 0)))
			d = trace_miss(pc, 0, 0, &index);
		if (us_unlikely(index != 0)) {
			if (index == US_VOLATILE)
				return 0;
			module = index;
		}
		kind = (unsigned)(d >> 48);
		flags = 0;
		if (us_likely((kind & 7) == T_SP)) {
			cfa = at + 8;
		} else if (us_likely((kind & 7) == T_BP)) {
			cfa = bp;
			flags = BY_BP;
		} else if (kind == T_END) {
			t->fresh_link[fresh] = (struct us_trail_link){at, pc};
			t->fresh[fresh] = (struct us_trail_frame){bp, 0, 0, 0};
			return trail_keep(t, 0, fresh + 1);
		} else {
			return 0;
		}
		cfa += (uint64_t)(int64_t)t_off(d);
		if (us_unlikely(cfa <= at + 8)) /* on another stack */
			return 0;
		if (us_unlikely(!us_within(&span, cfa - 8)) && !us_span_at(&span, cfa - 8))
			return 0;
		if (kind & T_SAVES) {
			bp_at = cfa + (uint64_t)(t_save(d) * 8);
			if (us_unlikely(!us_within(&span, bp_at)))
				return 0;
		}
		t->fresh_link[fresh] = (struct us_trail_link){at, pc};
		t->fresh[fresh++] = (struct us_trail_frame){bp, bp_at, 0, flags};
		at = cfa - 8;
		pc = us_word(at);
		if (bp_at)
			bp = us_word(bp_at);
		if (us_unlikely(pc == 0))
			return 0;
	}
	return 0;
}

#endif /* UNSPOOL_LOCAL_TRAIL_H */
