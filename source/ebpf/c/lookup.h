/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * lookup.h: the range of a program counter, and the rule or the way out that its table has for it. Part of walk.h.
 */

/* Finds the range of an address. The one before it is tried first. */
PART int find_range(u64 pc)
{
	struct walk *w = walk_state();
	const struct range_block *b;
	u32 i;

	if (!w)
		return 0;
	if (pc - w->range.lo < w->range.hi - w->range.lo)
		return 1;

	/* The last block that does not begin above it, and in that the last range. */
	w->lo = 0;
	w->hi = (w->n_ranges + RANGES - 1) / RANGES;
	for (i = 0; i < 16 && w->hi - w->lo > 1; i++) {
		u32 mid = (w->lo + w->hi) / 2;

		b = walk_block(w->space, mid);
		if (!b)
			return 0;
		if (b->r[0].lo <= pc)
			w->lo = mid;
		else
			w->hi = mid;
	}
	b = walk_block(w->space, w->lo);
	if (!b)
		return 0;
	w->lo = 0;
	w->hi = RANGES;
	for (i = 0; i < RANGE_BITS; i++) {
		u32 mid = (w->lo + w->hi) / 2;

		if (b->r[BOUNDED(mid, RANGES)].lo <= pc)
			w->lo = mid;
		else
			w->hi = mid;
	}
	w->range = b->r[BOUNDED(w->lo, RANGES)];
	return pc - w->range.lo < w->range.hi - w->range.lo;
}

/* The same; who has the walk looks first at the range at hand. */
static __always_inline int in_range(struct walk *w, u64 pc)
{
	return pc - w->range.lo < w->range.hi - w->range.lo || find_range(pc);
}

/* How the caller of an address's frame is found. */
/*
 * In the flags of a rule that was found in a RANGE_INJECTED, or RANGE_MOVED; or that is a signal frame's, and holds at the return
 * address, too. Tables have no such flags: UNSPOOL_WALKER_FLAGS.
 */
enum { INJECTED = 1 << 14, MOVED = 1 << 13, HERE = 1 << 12 };

enum { UNMAPPED, BY_RULE, BY_PLT, BY_LAZY_PLT, BY_FP, NO_CALLER, NO_TABLE, BY_SIGRETURN, BY_CALL };

/* Whether two rules are the same, but for marks of the second one. */
static __always_inline int same_rule(const struct rule *a, const struct rule *b)
{
	u64 d = a->head ^ (b->head & ~MARK(INJECTED | MOVED | HERE));
	u32 i;

	for (i = 0; i < RULE_WORDS - 1; i++)
		d |= a->saves[i] ^ b->saves[i];
	return d == 0;
}

/* Marks the rule of a signal frame that holds at the next address, too, as HERE. */
PART int signal_here(u64 next)
{
	struct walk *w = walk_state();
	struct rule was;

	if (!w)
		return 0;
	was = w->rule;
	if (find(w->range.table, next) && same_rule(&w->rule, &was))
		was.head |= MARK(HERE);
	w->rule = was;
	return 0;
}

/* Whether the rule at hand, of an address, is another than before that. */
PART int begins_here(u64 at)
{
	struct walk *w = walk_state();
	struct rule was;
	int other;

	if (!w)
		return 0;
	was = w->rule;
	other = !find(w->range.table, at - 1 - w->range.bias) || !same_rule(&w->rule, &was);
	w->rule = was;
	return other;
}

/* Whether an address's rule, which is at hand if there is one, is another than that of the address behind. */
PART int ends_here(u64 at, u32 by)
{
	struct walk *w = walk_state();
	struct rule was;
	int found, other;

	if (!w || !w->range.table)
		return 0;
	was = w->rule;
	found = find(w->range.table, at + 1 - w->range.bias);
	other = by == BY_RULE ? !found || !same_rule(&w->rule, &was) : found;
	w->rule = was;
	return other;
}

/*
 * Finds out how, and leaves a rule in w. here: no call has led to the address, so rules that are right at calls
 * only do not count.
 */
PART u32 look_up(u64 at, u32 here)
{
	struct walk *w = walk_state();
	u32 kind;

	if (!w)
		return UNMAPPED;
	kind = w->range.kind;
	if (kind == RANGE_TERMINAL)
		return NO_CALLER;
	if (w->range.table) {
		if (find(w->range.table, at - w->range.bias) && !(here && RULE_FLAGS(&w->rule) & UNSPOOL_SYNC_ONLY)) {
			if (kind == RANGE_INJECTED)
				w->rule.head |= MARK(INJECTED);
			if (kind == RANGE_MOVED)
				w->rule.head |= MARK(MOVED);
			if (RULE_FLAGS(&w->rule) & UNSPOOL_SIGNAL)
				signal_here(at + 1 - w->range.bias);
			walk_used(w->range.table, w->s.time);
			return BY_RULE;
		}
		if (!walk_value(w->range.table, 0)) {
			walk_used(w->range.table, w->s.time);
			return NO_TABLE;
		}
	}
	return kind == RANGE_PLT ? BY_PLT : kind == RANGE_LAZY ? BY_LAZY_PLT : BY_FP;
}
