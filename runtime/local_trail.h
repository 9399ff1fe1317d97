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

/* ---- Steps by program counter ---- */

/*
 * A step by a rule of code that stays, in one word: the bits of the return address that do not say where the word is; how the CFA is found, and where rbp
 * is saved below it, in units of 8 bytes. A word lies at its place or beside it. Of the rules in traces, these are nearly all, in half of the memory.
 */
enum { STEP_BITS = 14, STEP_TAG = 30, STEP_BY_BP = 1 << 29, STEP_OFF = 17, MAX_STEP_OFF = 0xfff, MAX_STEP_SAVE = 0xff };
_Static_assert(US_USER_BITS - (STEP_BITS + 2) + 3 + STEP_TAG <= 64, "a tag has the bits above those of the place, and the lowest three");
static _Atomic uint64_t steps[1 << STEP_BITS] __attribute__((aligned(4096)));

US_INLINE unsigned step_place(uint64_t pc)
{
	return ((uint32_t)(pc >> 2) ^ (uint32_t)(pc >> (STEP_BITS + 2)) * 0x9e3779b1u >> (32 - STEP_BITS)) & ((1 << STEP_BITS) - 1);
}

US_INLINE uint64_t step_tag(uint64_t pc)
{
	return pc >> (STEP_BITS + 2) << 3 | (pc & 7);
}

/* The step at pc; 0 for none. */
US_INLINE uint64_t step_get(uint64_t pc)
{
	unsigned at = step_place(pc);
	uint64_t s = atomic_load_explicit(&steps[at], memory_order_relaxed);

	if (us_likely(s >> STEP_TAG == step_tag(pc)))
		return s;
	s = atomic_load_explicit(&steps[at ^ 1], memory_order_relaxed);
	return us_likely(s >> STEP_TAG == step_tag(pc)) ? s : 0;
}

static void step_put(uint64_t pc, uint64_t d)
{
	unsigned at = step_place(pc), kind = (unsigned)(d >> 48);
	uint64_t off = (uint64_t)t_off(d), save = kind & T_SAVES ? (uint64_t)-t_save(d) : 0, s;

	if (((kind & 7) != T_SP && (kind & 7) != T_BP) || off % 8 || off == 0 || off / 8 > MAX_STEP_OFF || save > MAX_STEP_SAVE || (kind & T_SAVES && !save))
		return;
	s = step_tag(pc) << STEP_TAG | ((kind & 7) == T_BP ? STEP_BY_BP : 0) | off / 8 << STEP_OFF | save;
	atomic_store_explicit(&steps[at ^ 1], atomic_load_explicit(&steps[at], memory_order_relaxed), memory_order_relaxed);
	atomic_store_explicit(&steps[at], s, memory_order_relaxed);
}

/* ---- Trails ---- */

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

/* A walk of fresh frames, and old ones further out, that has more frames than are kept. */
static US_COLD int trail_deep(struct us_trail *t, int old, int fresh)
{
	while (fresh < US_TRAIL && old > 0)
		t->fresh_link[fresh++] = t->link[--old];
	return US_TRAIL_DEEP;
}

/* The walk is whole: the first old frames of the one before, and fresh ones. Returns how many. */
US_INLINE int trail_keep(struct us_trail *t, int old, int fresh)
{
	uint64_t hash = 0, flags = 0;

	if (us_unlikely(old + fresh > US_TRAIL))
		return trail_deep(t, old, fresh);
	t->kept = old;
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

/* What the other cache has, or gets, of a return address. */
static US_COLD uint64_t trace_at(uint64_t pc, uint32_t *index)
{
	unsigned slot = slot_of(pc);
	uint64_t d;

	if (is_used(&used.traces, slot >> TRACE_PAGE) && trace_get(&traces[slot], pc, 0, &d, index) && (*index == 0 || us_still_loaded(*index, pc - 1, 0)))
		return d;
	*index = 0;
	return trace_miss(pc, 0, 0, index);
}

int us_trail(struct us_trail *t, uint64_t at, uint64_t bp)
{
	struct us_span span = us_stack;
	uint64_t pc = us_word(at), cfa, d, s, flags;
	uint32_t index;
	int fresh = 0, old = t->n;

	t->n = t->kept = 0; /* unless this walk is whole */
	while (fresh < US_TRAIL) {
		uint64_t bp_at = 0, save;

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
				break;
			at = t->link[k].at;
			pc = t->link[k].pc;
		}

		s = step_get(pc);
		if (us_likely(s != 0)) {
			flags = s & STEP_BY_BP ? BY_BP : 0;
			cfa = (s & STEP_BY_BP ? bp : at + 8) + (s >> STEP_OFF & MAX_STEP_OFF) * 8;
			save = s & MAX_STEP_SAVE;
		} else {
			unsigned kind;

			d = trace_at(pc, &index);
			kind = (unsigned)(d >> 48);
			if (index == 0)
				step_put(pc, d);
			if (index == US_VOLATILE)
				return 0;
			if (kind == T_END) {
				t->fresh_link[fresh] = (struct us_trail_link){at, pc};
				t->fresh[fresh] = (struct us_trail_frame){bp, 0, 0, 0};
				return trail_keep(t, 0, fresh + 1);
			}
			if ((kind & 7) != T_SP && (kind & 7) != T_BP)
				return 0;
			flags = (kind & 7) == T_BP ? BY_BP : 0;
			cfa = (flags ? bp : at + 8) + (uint64_t)(int64_t)t_off(d);
			save = kind & T_SAVES ? (uint64_t)-t_save(d) : 0;
		}
		if (us_unlikely(cfa <= at + 8)) /* on another stack */
			return 0;
		if (us_unlikely(!us_within(&span, cfa - 8)) && !us_span_at(&span, cfa - 8))
			return 0;
		if (save) {
			bp_at = cfa - save * 8;
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
	return US_TRAIL_DEEP;
}

#endif /* UNSPOOL_LOCAL_TRAIL_H */
