/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * find.h: the rule of an address in a compact table (docs/TABLE.md), which may be in several values of a map. Part of walk.h.
 */

#include "packed.h"

/* Eight bytes at an offset; 0 where there are none. */
PART u64 word_at(u32 table, u64 off)
{
	const u8 *v = walk_value(table, (u32)(off >> VALUE_BITS));

	return v ? *(const u64 *)(v + (off & VALUE_MASK)) : 0;
}

/* The same of a table that is at hand. */
static __always_inline u64 word_in(const void *t, u64 off)
{
	const u8 *v = walk_part(t, (u32)(off >> VALUE_BITS));

	return v ? *(const u64 *)(v + (off & VALUE_MASK)) : 0;
}

#define HEADER(first, field) (((const struct unspool_table_header *)(first))->field)

/* The rule number of a row whose byte says that it is among the escapes. */
PART u32 escape(u32 table, u32 row)
{
	struct walk *w = walk_state();
	const u8 *h;
	u32 key = row & ((1u << UNSPOOL_ESCAPE_BITS) - 1), i;
	u64 dir;

	if (!w)
		return 0;
	h = walk_value(table, 0);
	if (!h)
		return 0;
	dir = word_at(table, (u64)HEADER(h, esc_dir) + 4 * (u64)(row >> UNSPOOL_ESCAPE_BITS));
	w->lo = (u32)dir;
	w->hi = (u32)(dir >> 32);
	if (w->hi > HEADER(h, n_escapes))
		w->hi = HEADER(h, n_escapes);
	for (i = 0; i <= UNSPOOL_ESCAPE_BITS && w->lo < w->hi; i++) {
		u32 mid = w->lo + (w->hi - w->lo) / 2;
		u32 k = (u16)word_at(table, (u64)HEADER(h, esc_keys) + 2 * (u64)mid);

		if (k == key) {
			if (HEADER(h, esc_size) == 4)
				return (u32)word_at(table, (u64)HEADER(h, esc_rules) + 4 * (u64)mid);
			return (u16)word_at(table, (u64)HEADER(h, esc_rules) + 2 * (u64)mid);
		}
		if (k < key)
			w->lo = mid + 1;
		else
			w->hi = mid;
	}
	return 0;
}

/* Where the span of a link-time address is in the table; 0 for none. Tables have one span, nearly all. */
PART u64 span_of(u32 table, u64 pc)
{
	struct walk *w = walk_state();
	const u8 *h;
	u64 spans;
	u32 i;

	if (!w)
		return 0;
	h = walk_value(table, 0);
	if (!h)
		return 0;
	w->lo = 0;
	w->hi = HEADER(h, n_spans);
	spans = HEADER(h, spans);
	for (i = 0; i < 32 && w->lo < w->hi; i++) {
		u32 mid = w->lo + (w->hi - w->lo) / 2;

		if (word_at(table, spans + (u64)mid * UNSPOOL_SPAN_SIZE) <= pc)
			w->lo = mid + 1;
		else
			w->hi = mid;
	}
	return w->lo ? spans + (u64)(w->lo - 1) * UNSPOOL_SPAN_SIZE : 0;
}

/* Where the head of a table is kept. */
static __always_inline struct head *walk_head(u32 table)
{
	struct cache *c = walk_cache();

	return c ? &c->heads[BOUNDED(table, HEADS)] : NULL;
}

/* Fills the head of a table in a space, for an address: from its span, where there are several. Returns 0 where there is none. */
PART u32 read_head(u32 table, u64 pc)
{
	struct walk *w = walk_state();
	struct head *h = walk_head(table);
	const u8 *first;
	u64 at;

	if (!w || !h)
		return 0;
	h->space = 0;
	first = walk_value(table, 0);
	if (!first)
		return 0;
	at = HEADER(first, spans);
	if (HEADER(first, n_spans) != 1)
		at = span_of(table, pc);
	if (at == 0)
		return 0;
	h->lo = word_at(table, at + UNSPOOL_OFF_SPAN_LO);
	h->hi = word_at(table, at + UNSPOOL_OFF_SPAN_HI);
	h->shift = (u32)word_at(table, at + UNSPOOL_OFF_SPAN_SHIFT);
	if (h->shift > UNSPOOL_MAX_SHIFT)
		return 0;
	at = word_at(table, at + UNSPOOL_OFF_SPAN_GRANULE); /* and the region, behind it */
	h->granule = (u32)at;
	h->region = (u32)(at >> 32);
	h->n_granules = HEADER(first, n_granules);
	h->n_regions = HEADER(first, n_regions);
	h->n_rows = HEADER(first, n_rows);
	h->n_rules = HEADER(first, n_rules);
	h->granules = HEADER(first, granules);
	h->regions = HEADER(first, regions);
	h->rows = HEADER(first, rows);
	h->rules = HEADER(first, rules);
	h->table = table;
	if (HEADER(first, n_spans) == 1)
		h->space = w->space; /* it will do for all addresses */
	return 1;
}

/* Finds how many of n rows at an offset of a table begin at off or before: w->lo. what is n << 8 | off. */
PART int search_across(u32 table, u64 at, u32 what)
{
	struct walk *w = walk_state();
	u32 i;

	if (!w)
		return 0;
	w->lo = 0;
	w->hi = what >> 8;
	for (i = 0; i <= UNSPOOL_GRANULE_BITS && w->lo < w->hi; i++) {
		u32 mid = (w->lo + w->hi) / 2;

		if ((u8)word_at(table, at + mid) <= (u8)what)
			w->lo = mid + 1;
		else
			w->hi = mid;
	}
	return 0;
}

/*
 * Finds the rule of a link-time address and leaves it in w->rule, and its table. Returns 0 where there is none.
 */
PART u32 find(u32 table, u64 pc)
{
	struct walk *w = walk_state();
	struct head *h = walk_head(table);
	const void *t;
	const u8 *v = NULL;
	u64 at, off, g, r, k;
	u32 n, base, start, lo, id, i;

	if (!w || !h)
		return 0;
	if ((h->space == 0 || h->space != w->space || h->table != table) && !read_head(table, pc))
		return 0;
	if (pc < h->lo || pc >= h->hi)
		return 0;
	off = (pc - (h->lo & ~(((u64)1 << (UNSPOOL_GRANULE_BITS + (h->shift & 63))) - 1))) >> (h->shift & 63);
	g = h->granule + (off >> UNSPOOL_GRANULE_BITS);
	r = h->region + (off >> UNSPOOL_REGION_BITS);
	if (g >= h->n_granules || r >= h->n_regions)
		return 0;
	t = walk_table(table);
	if (!t)
		return 0;
	base = (u32)word_in(t, h->regions + 4 * r);
	at = word_in(t, h->granules + 2 * g);
	start = (u16)at;
	n = (u16)((u32)(at >> 16) - start);
	start = base + (u16)(start - base);
	if (n > 1u << UNSPOOL_GRANULE_BITS || (u64)start + n > h->n_rows)
		return 0;

	/* A granule's rows: n low bytes, then n rule bytes. They can lie across two values. */
	at = h->rows + 2 * (u64)start;
	k = at >> VALUE_BITS;
	if ((at + 2 * (u64)n) >> VALUE_BITS == k) {
		v = walk_part(t, (u32)k);
		if (!v)
			return 0;
		w->lo = 0;
		w->hi = n;
		for (i = 0; i <= UNSPOOL_GRANULE_BITS && w->lo < w->hi; i++) {
			u32 mid = (w->lo + w->hi) / 2;

			if (v[(at + mid) & VALUE_MASK] <= (u8)off)
				w->lo = mid + 1;
			else
				w->hi = mid;
		}
	} else {
		search_across(table, at, n << 8 | (u8)off);
	}
	lo = w->lo;
	if (start + lo == 0)
		return 0;
	at = lo > 0 ? at + n + lo - 1 : at - 1;
	id = v && at >> VALUE_BITS == k ? v[at & VALUE_MASK] : (u8)word_at(table, at);
	if (id == UNSPOOL_ESCAPE_ID)
		id = escape(table, start + lo - 1);
	if (id == 0 || id >= h->n_rules)
		return 0;
	at = h->rules + MACHINE(TABLE_RULE) * (u64)id;
	v = walk_part(t, (u32)(at >> VALUE_BITS));
	if (!v)
		return 0;
	at &= VALUE_MASK & ~7ull; /* so all words but the first are in the overlap at worst */
#if MACHINE(N_RUN)
	rule_unpack((const u64 *)(v + at), &w->rule.head);
#else
	w->rule = *(const struct rule *)(v + at);
#endif
	w->table = table;
	return id;
}
