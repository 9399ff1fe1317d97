/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_walk.c: one step, and whole backtraces, through the stacks of the own process.
 *
 * Two caches. One has rules by program counter, for steps that recover every register. The other, for backtraces, has
 * what little they need: where the CFA is and where rbp was saved, in 8 bytes. Both are direct-mapped and shared by all
 * threads. Nearby code has nearby slots, so that a first walk touches few pages.
 */
#define _GNU_SOURCE
#include "local.h"
#include "abi.h"
#include "apply.h"
#include "blind.h"
#include "local_cache.h"

#include <string.h>

#define OFFSET(slot, offset) [slot] = (offset) - MACHINE(FRAME_CONTEXT),
const uint16_t us_greg[US_SLOTS] = {MACHINE(FRAME)(OFFSET)};

/* ---- Caches ---- */

/* word ^ key is data times a constant: who reads halves of two writes sees that they do not match. */
struct trace_slot {
	_Atomic uint64_t word, data;
};

static struct trace_slot traces[1 << SLOT_BITS] __attribute__((aligned(4096)));

enum { TRACE_PAGE = 8 };
_Static_assert(sizeof(struct trace_slot) << TRACE_PAGE == 4096 && SLOT_BITS - TRACE_PAGE <= 6, "as for rules");

void us_local_flush(void)
{
	for (unsigned i = 0; i < 1 << SLOT_BITS; i++) {
		if (is_used(&used.rules, i >> RULE_PAGE) && atomic_load_explicit(&rules[i].key, memory_order_relaxed))
			atomic_store_explicit(&rules[i].key, 0, memory_order_relaxed);
		if (is_used(&used.traces, i >> TRACE_PAGE) && atomic_load_explicit(&traces[i].word, memory_order_relaxed))
			atomic_store_explicit(&traces[i].word, 0, memory_order_relaxed);
	}
}

/* ---- Memory ---- */

static US_COLD int load_elsewhere(struct us_walk *w, uint64_t addr, uint64_t *to)
{
	struct us_span s;

	if (us_unlikely(us_untagged(addr) != addr))
		return us_peek(addr, to, 8);
	if (!us_span_at(&s, addr)) {
		/* Across the end of what is there, or not there at all. */
		return 0;
	}
	w->span = s;
	*to = us_word(addr);
	return 1;
}

US_INLINE int load(void *ctx, uint64_t addr, uint64_t *to)
{
	struct us_walk *w = ctx;

	if (us_unlikely(!us_within(&w->span, addr)))
		return load_elsewhere(w, addr, to);
	*to = us_word(addr);
	return 1;
}

/* ---- Starts ---- */

static void start(struct us_walk *w, uint64_t pc, uint64_t sp, int exact)
{
	w->span = us_stack;
	w->s.pc = pc;
	w->s.cfa = w->sp = sp;
	w->s.fault = 0;
	w->s.bits = us_own_bits();
	w->s.in_reg = 0;
	w->s.val[US_SP] = sp;
	if (US_RA_IS_PC)
		w->s.val[US_RA] = pc;
	w->ra_at = w->sig = 0;
	w->moves = (struct us_moves){sp, 0, 0, 0, 0};
	w->module = 0;
	w->exact = (uint8_t)exact;
	w->from_signal = 0;
	w->in_handler = (uint8_t)exact;
	w->blind = w->uncached = w->saved_only = w->begins = 0;
}

void us_walk_context(struct us_walk *w, uint64_t uc, int exact)
{
	/* The program has it: it can be read. */
	start(w, us_word(uc + us_greg[US_PC]), us_word(uc + us_greg[US_SP]), exact);
	w->s.known = US_IN_FRAME;
	w->s.in_mem = US_IN_FRAME & ~(US_BIT(US_SP) | US_BIT(US_PC));
	for (unsigned i = 0; i < US_PC; i++)
		if (i != US_SP)
			w->s.val[i] = uc + us_greg[i];
	w->ra_at = uc + us_greg[US_PC];
}

#ifdef __x86_64__

void us_walk_saved(struct us_walk *w, const uint64_t *saved)
{
	static const uint8_t slot[6] = {15, 14, 13, 12, US_FP, UNSPOOL_X86_64_REG_RBX};

	start(w, saved[6], (uint64_t)(saved + 7), 0);
	w->s.known = US_SAVED | US_BIT(US_RA);
	w->s.in_mem = 0;
	for (unsigned i = 0; i < 6; i++)
		w->s.val[slot[i]] = saved[i];
	w->ra_at = (uint64_t)(saved + 6);
}

#else

void us_walk_saved(struct us_walk *w, const uint64_t *saved)
{
	start(w, saved[MACHINE(RA_SAVE)], (uint64_t)(saved + MACHINE(N_SAVES)), 0);
	w->s.known = US_SAVED;
	w->s.in_mem = 0;
	for (unsigned i = 0; i < MACHINE(N_SAVES); i++)
		w->s.val[us_save_slot[i]] = saved[i];
	w->ra_at = (uint64_t)(saved + MACHINE(RA_SAVE));
}

#endif

/* ---- Steps ---- */

static US_COLD int failed(struct us_walk *w, int outcome)
{
	switch (outcome) {
	case US_OUTERMOST:
		w->s.pc = 0;
		w->exact = 0;
		return US_END;
	case US_LOST_REGISTER:
		return -UNW_EBADREG;
	case US_UNREADABLE:
		return -UNW_EINVAL;
	}
	return -UNW_EBADFRAME;
}

/* ---- What blind.h asks ---- */

static int code(void *ctx, uint64_t at, uint8_t *to, uint32_t n)
{
	(void)ctx;
	return us_local_bytes(at, to, n);
}

static int is_code(void *ctx, uint64_t at)
{
	(void)ctx;
	return us_local_code(at);
}

static int has_rule(void *ctx, uint64_t at)
{
	struct us_walk *w = ctx;
	struct us_rule r;
	unsigned index;

	return us_local_rule(at, w->in_handler, &r, &index) == US_FOUND;
}

static const struct us_asks asks = {load, NULL, code, is_code, has_rule};

static struct us_blind blind(struct us_walk *w)
{
	return (struct us_blind){.s = &w->s, .sp = w->sp, .from = &asks, .ctx = w, .exact = w->exact};
}

/* Whether the walk may go on to the frame at w, from one at sp. */
US_INLINE int leads_on(struct us_walk *w, uint64_t sp, int exact)
{
	if (us_likely(w->sp - sp - 1 < UNSPOOL_MAX_PIECE) || (exact && w->sp == sp))
		return 1;
	return us_move(&w->moves, sp, w->sp, w->s.pc);
}

/* A step where there is no unwind information. at is the address that was looked up. */
static US_COLD int step_blind(struct us_walk *w, uint64_t at, enum us_how *how)
{
	struct us_blind b = blind(w);
	int exact = w->exact, o;

	if (w->s.pc == 0 && !exact)
		return US_END;
	o = us_step_blind(&b, at);
	if (o == US_NO_RULE || o == US_LOST_REGISTER) {
		w->blind = 1;
		w->s.known = US_BIT(US_SP);
		return US_END;
	}
	if (o != US_OK)
		return failed(w, o);
	w->blind |= b.how == US_BY_POINTER || b.how == US_BY_CALL;
	w->sp = w->s.cfa;
	w->ra_at = b.ra_at;
	w->exact = w->from_signal = b.how == US_BY_SIGNAL;
	if (how)
		*how = b.how;
	if (w->exact) {
		w->sig = b.sp + MACHINE(FRAME_CONTEXT);
		w->in_handler = 1;
		w->moves.low = w->sp;
	} else if (!leads_on(w, b.sp, exact)) {
		return -UNW_EBADFRAME;
	}
	return US_STEPPED;
}

US_INLINE int apply(struct us_walk *w, const struct us_rule *r)
{
	uint64_t ip = w->s.pc, sp = w->sp;
	int exact = w->exact, alive = exact && !(r->flags & US_SIGNAL), o;
	struct us_state was;

	if (us_unlikely(alive))
		was = w->s;
	o = us_apply_with(r, &w->s, load, NULL, w, w->saved_only ? US_SAVED : US_ALL);
	if (us_unlikely(o != US_OK))
		return failed(w, o);
	if (us_unlikely(alive))
		us_restore(&w->s, &was, sp, load, w);
	w->sp = w->s.cfa;
	w->exact = w->from_signal = r->flags & US_SIGNAL;
	w->ra_at = us_likely(r->kind == US_KIND_REG) && (US_RA_IS_PC || r->mask >> MACHINE(RA_SAVE) & 1)
			   ? w->sp - (uint64_t)r->aux * 1024 + (uint64_t)((int64_t)r->saves[MACHINE(RA_SAVE)] * 8) : 0;
	if (us_unlikely(w->exact)) {
		w->sig = sp + MACHINE(FRAME_CONTEXT); /* the ucontext_t that the kernel made */
		w->in_handler = 1;
		if (w->s.known >> US_SP & 1)
			us_get_with(&w->s, US_SP, load, NULL, w, &w->sp);
		w->ra_at = w->sig + us_greg[US_PC];
		w->moves.low = w->sp;
	} else if (!leads_on(w, sp, exact)) {
		return -UNW_EBADFRAME; /* round in circles */
	}
	if (us_unlikely(w->s.pc == ip && w->sp == sp))
		return -UNW_EBADFRAME;
	return US_STEPPED;
}

int us_walk_apply(struct us_walk *w, const struct us_rule *r)
{
	return apply(w, r);
}

/* Finds the rule of the frame at hand; *at is the address that is looked up. */
static US_COLD int make_rule(struct us_walk *w, struct us_rule *r, uint64_t *at)
{
	struct us_blind b = blind(w);
	struct us_rule before;
	unsigned index, other;
	int place = !w->exact && us_is_place(&b), keep, o;

	*at = w->s.pc - (!w->exact && !place);
	o = us_local_rule(*at, w->in_handler, r, &index);
	if (o == US_FOUND && (w->exact || place) && r->flags & US_SYNC_ONLY)
		return US_NOT_FOUND;
	if (o == US_FOUND && place && !(r->flags & US_SIGNAL) && us_is_sigreturn(&b))
		return US_NOT_FOUND;

	w->begins = place && o == US_FOUND &&
		    (us_local_rule(*at - 1, w->in_handler, &before, &other) != US_FOUND || memcmp(r, &before, sizeof before) != 0);
	/*
	 * AArch64's unw_getcontext ends at a place: each walk begins there. At code to which signal handlers return, the stack decides each time.
	 * x86-64's us_backtrace asks for itself what is a place, where no rule is kept.
	 */
	keep = !place || (!US_RA_IS_PC && !w->begins && (r->flags & US_SIGNAL || !us_is_sigreturn_code(&b)));
	if (o == US_FOUND && keep && index != US_VOLATILE && (index == 0 || !w->uncached) && has_key(w->s.pc))
		rule_put(w->s.pc, w->exact, r, index);
	return o;
}

US_INLINE int step(struct us_walk *w, enum us_how *how)
{
	struct us_rule r;
	uint32_t index;
	uint64_t at;
	int o;

	/* Without a cache too: the rules of what cannot be unloaded do not change. */
	if (us_unlikely(!rule_get(w->s.pc, w->exact, &r, &index)) ||
	    (us_unlikely(index != 0) && (w->uncached || (index != w->module && !us_still_loaded(index, w->s.pc - !w->exact, w->blind))))) {
		if (make_rule(w, &r, &at) != US_FOUND)
			return step_blind(w, at, how);
	} else if (us_unlikely(index != 0)) {
		w->module = index;
	}
	if (how)
		*how = r.flags & US_SIGNAL ? US_BY_SIGNAL : r.kind == US_KIND_PLT ? US_BY_PLT : US_BY_CFI;
	o = apply(w, &r);
	if (us_unlikely(w->begins)) { /* nobody has called that function: it is the first, unless its rule leads to code */
		w->begins = 0;
		if (o == US_STEPPED && !has_rule(w, w->s.pc - 1) && !has_rule(w, w->s.pc))
			return failed(w, US_OUTERMOST);
	}
	return o;
}

#ifdef __aarch64__

static __attribute__((noinline)) int step_any(struct us_walk *w, enum us_how *how)
{
	return step(w, how);
}

int us_walk_step(struct us_walk *w, enum us_how *how)
{
	int o = step_packed(w);

	if (us_unlikely(o == US_END))
		return step_any(w, how);
	if (how)
		*how = US_BY_CFI;
	return o;
}

#else

int us_walk_step(struct us_walk *w, enum us_how *how)
{
	return step(w, how);
}

#endif

int us_walk_is_signal(struct us_walk *w)
{
#ifdef __x86_64__
	return w->from_signal;
#else
	struct us_blind b = blind(w);

	return us_is_sigreturn(&b);
#endif
}

int us_walk_get(struct us_walk *w, unsigned slot, uint64_t *to)
{
	return us_get_with(&w->s, slot, load, NULL, w, to);
}

/* ---- Backtraces ---- */

/* In steps, for stacks with frames of other shapes than those below. */
static US_COLD int backtrace_slow(void **pcs, int max, const uint64_t *saved)
{
	struct us_walk w;
	int n = 0;

	us_walk_saved(&w, saved);
	while (n < max) {
		pcs[n++] = (void *)w.s.pc;
		if (us_walk_step(&w, NULL) <= 0 || w.s.pc == 0)
			break;
	}
	return n;
}

#ifdef __x86_64__

/*
 * A frame in 8 bytes: CFA = sp + off or rbp + off, the return address at CFA - 8, rbp at CFA + 8 save where it is saved.
 * Other shapes are walked in steps.
 */
enum { T_OTHER = 0, T_SP = 1, T_BP = 2, T_SIGNAL = 3, T_END = 4, T_SAVES = 8 };

#define MIX 0xd6e8feb86659fd93u

US_INLINE int32_t t_off(uint64_t d)
{
	return (int32_t)d;
}

US_INLINE int64_t t_save(uint64_t d)
{
	return (int64_t)(d << 16) >> 48;
}

/* mov $15, %rax; syscall: what a signal handler returns to. */
static int is_sigreturn(const uint8_t *b)
{
	static const uint8_t code[] = {MACHINE(RETURN_0)};

	return memcmp(b, code, sizeof code) == 0;
}

static int load_nothing(void *ctx, uint64_t addr, uint64_t *to)
{
	(void)ctx;
	(void)addr;
	*to = 0;
	return 1;
}

static uint64_t pack(const struct us_rule *r, uint64_t pc)
{
	uint8_t code[16];
	uint64_t kind;

	if (r->kind == US_KIND_WIDE && !(r->flags & US_SIGNAL)) {
		/* It says of itself whether it is the outermost frame's. */
		struct us_mem m = {load_nothing, NULL, NULL};
		struct us_state s;

		memset(&s, 0, sizeof s);
		us_start(&s, pc, US_ALL);
		return us_apply(r, &s, &m, US_ALL) == US_OUTERMOST ? (uint64_t)T_END << 48 : 0;
	}

	if (r->kind == US_KIND_WIDE && r->flags & US_SIGNAL)
		return us_peek(pc, code, sizeof code) && is_sigreturn(code) ? (uint64_t)T_SIGNAL << 48 : 0;
	if (r->kind == US_KIND_NONE && r->flags & US_OUTERMOST_FLAG)
		return (uint64_t)T_END << 48;
	if (r->kind != US_KIND_REG || r->aux || r->flags & ~US_OUTERMOST_FLAG)
		return 0;
	if (r->flags & US_OUTERMOST_FLAG)
		return (uint64_t)T_END << 48;
	if (!(r->mask & 0x40) || r->saves[6] != -1)
		return 0;
	kind = r->reg == US_SP ? T_SP : r->reg == US_FP ? T_BP : T_OTHER;
	if (kind == T_OTHER)
		return 0;
	if (r->mask & 2)
		kind |= T_SAVES;
	return kind << 48 | (uint64_t)(uint16_t)r->saves[1] << 32 | (uint32_t)r->off;
}

/* Whether a slot is pc's: its data, and the module that must still be there. */
US_INLINE int trace_get(struct trace_slot *e, uint64_t pc, int exact, uint64_t *data, uint32_t *index)
{
	uint64_t d = atomic_load_explicit(&e->data, memory_order_relaxed);
	uint64_t k = atomic_load_explicit(&e->word, memory_order_relaxed) ^ d * MIX ^ key_of(pc, exact);

	*data = d;
	*index = (uint32_t)(k >> 48);
	return k << 16 == 0;
}

static int is_place(uint64_t pc)
{
	struct us_state s;
	struct us_blind b = {.s = &s, .from = &asks};

	s.pc = pc;
	return us_is_place(&b);
}

/* Finds pc in the other slots of its set, or fills one. Returns the data, or 0 where there is none. */
static US_COLD uint64_t trace_miss(uint64_t pc, int exact, int in_handler, uint32_t *index)
{
	unsigned at = slot_of(pc);
	struct trace_slot *e = &traces[at];
	struct us_rule r;
	uint64_t d;

	if (is_used(&used.traces, at >> TRACE_PAGE)) {
		unsigned way;

		for (way = 1; way < WAYS; way++)
			if (trace_get(&traces[at ^ way], pc, exact, &d, index) && (*index == 0 || us_still_loaded(*index, pc - !exact, 0)))
				return d;
		/* The first that is free, or has it already; else the last. */
		for (way = 0; way < WAYS; way++) {
			e = &traces[at ^ way];
			if (atomic_load_explicit(&e->word, memory_order_relaxed) == 0 || trace_get(e, pc, exact, &d, index))
				break;
		}
	}
	if (!has_key(pc) || (!rule_get(pc, exact, &r, index) &&
			 ((!exact && is_place(pc)) || us_local_rule(pc - !exact, in_handler, &r, index) != US_FOUND)))
		return 0;
	if (*index == US_VOLATILE)
		return pack(&r, pc);
	if (*index && !us_still_loaded(*index, pc - !exact, 0))
		return 0;
	d = pack(&r, pc);
	use(&used.traces, at >> TRACE_PAGE);
	atomic_store_explicit(&e->word, key_of(pc, exact) ^ (uint64_t)*index << 48 ^ d * MIX, memory_order_relaxed);
	atomic_store_explicit(&e->data, d, memory_order_relaxed);
	return d;
}

int us_backtrace(void **pcs, int max, const uint64_t *saved)
{
	uint64_t pc = saved[6], sp = (uint64_t)(saved + 7), bp = saved[4], cfa;
	struct us_span span = us_stack;
	uint32_t module = 0, index = 0;
	int n = 0, exact = 0, in_handler = 0;

	while (n < max) {
		unsigned at = slot_of(pc);
		uint64_t d = 0;
		unsigned kind;

		pcs[n++] = (void *)pc;
		if (us_unlikely(!is_used(&used.traces, at >> TRACE_PAGE)) || us_unlikely(!trace_get(&traces[at], pc, exact, &d, &index)) ||
		    us_unlikely(index != 0 && index != module && !us_still_loaded(index, pc - !exact, 0)))
			d = trace_miss(pc, exact, in_handler, &index);
		if (us_unlikely(index != 0))
			module = index;
		kind = (unsigned)(d >> 48);
		if (us_likely((kind & 7) == T_SP))
			cfa = sp;
		else if (us_likely((kind & 7) == T_BP))
			cfa = bp;
		else if (kind == T_END)
			return n;
		else if (kind == T_SIGNAL) {
			uint64_t uc = sp;

			if (!us_within(&span, uc + us_greg[US_RA]) && !us_span_at(&span, uc + us_greg[US_RA]))
				return n;
			if (!us_within(&span, uc + us_greg[US_FP]))
				return backtrace_slow(pcs, max, saved);
			pc = us_word(uc + us_greg[US_RA]);
			sp = us_word(uc + us_greg[US_SP]);
			bp = us_word(uc + us_greg[US_FP]);
			exact = in_handler = 1;
			if (pc == 0)
				return backtrace_slow(pcs, max, saved);
			continue;
		} else
			return backtrace_slow(pcs, max, saved);
		cfa += (uint64_t)(int64_t)t_off(d);
		if (us_unlikely(cfa <= sp)) /* on another stack */
			return backtrace_slow(pcs, max, saved);
		if (us_unlikely(!us_within(&span, cfa - 8)) && !us_span_at(&span, cfa - 8))
			return n;
		pc = us_word(cfa - 8);
		if (kind & T_SAVES) {
			uint64_t bp_at = cfa + (uint64_t)(t_save(d) * 8);

			if (us_unlikely(!us_within(&span, bp_at)))
				return backtrace_slow(pcs, max, saved);
			bp = us_word(bp_at);
		}
		sp = cfa;
		exact = 0;
		if (us_unlikely(pc == 0))
			return n;
	}
	return n;
}

#ifdef UNSPOOL_TRAIL
#include "local_trail.h"
#endif

#else

int us_backtrace(void **pcs, int max, const uint64_t *saved)
{
	return backtrace_slow(pcs, max, saved);
}

#endif
