/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * walk.h: walks one user stack with compact tables (docs/TABLE.md). The same text is compiled into the kernel's program
 * and, for tests, as user-space code that is held against rows.Step and unwind.Walker.
 *
 * Who includes it has fixed-width types u8 to u64, s8, s16, s32 and s64, and defines
 *
 *	const void *walk_table(u32 table)		a table, or NULL
 *	const u8 *walk_part(const void *t, u32 k)	value k of the table t, which is not NULL
 *	const u8 *walk_value(u32 table, u32 k)		value k of a table: VALUE_SIZE bytes, of which the last VALUE_OVERLAP
 *							repeat the start of the next; or NULL
 *	const struct range_block *walk_block(u32 space, u32 k)	block k of a space's ranges, or NULL
 *	int walk_read(void *to, u32 n, u64 addr)		reads user memory; 0, or less than 0 where it cannot be read
 *	void walk_used(u32 table, u64 time)	notes that a table was looked for
 *	struct walk *walk_state(void)			where the walk is kept
 *	struct cache *walk_cache(void)			what it remembers of other walks
 *	int walk_registers(struct walk *w)		fills w->val with the registers that the walk begins with; or 0
 *	PART						before functions that the kernel's verifier looks at once, not at each call. Before Linux
 *							5.13 they take numbers only, so each asks for its walk itself
 *
 * It is compiled for each machine, by what machine.h says of it: MACHINE(fact). What is read on every frame is inline, all else is a PART of its
 * own. User space has checked a table's checksum, head and rules, and not its rows. No access depends on that: every offset is masked or
 * compared where it is used.
 */
#ifndef UNSPOOL_WALK_H
#define UNSPOOL_WALK_H

#define EDGE_PART PART
#define EDGE_TAKE void
#define EDGE_PASS
#define EDGE_SELF struct unspool_edge *e = walk_edge();
static struct unspool_edge *walk_edge(void);
#include "edge.h"
#include "machine.h"

#define RULE_WORDS (MACHINE(RULE_SIZE) / 8)

#define VALUE_BITS 10
#define VALUE_BYTES (1 << VALUE_BITS)
#define VALUE_OVERLAP (MACHINE(TABLE_RULE) - 8)
#define VALUE_SIZE (VALUE_BYTES + VALUE_OVERLAP)
#define VALUE_MASK (VALUE_BYTES - 1)

#define MAX_FRAMES 1024
#define PLAIN_FRAMES 8 /* in a turn of the loop */
#define WINDOW 4096	/* bytes of the stack that are read at once */
#define WINDOW_FIRST 1024 /* the first time: most stacks are not deep */
#define WINDOW_BELOW 64 /* of them below what was asked for */
#define WALK_STEPS 8192 /* of all expressions of a walk, which holds up a processor */
#define MAX_UP ((u64)UNSPOOL_MAX_STACK)
#define MAX_MOVES UNSPOOL_MAX_MOVES
#define MAX_PIECE UNSPOOL_MAX_PIECE
#define RED_ZONE MACHINE(RED_ZONE) /* below the stack pointer, which signal handlers leave alone */
#define MAX_AFTER_SYSCALL UNSPOOL_MAX_AFTER_SYSCALL

typedef MACHINE(SET) slots; /* a set of them */

#define SLOTS MACHINE(SLOTS)
#define SLOT_ROOM (8 * sizeof(slots)) /* so that a mask bounds an index */
#define BIT(slot) ((slots)1 << ((slot) & (SLOT_ROOM - 1)))
#define REGS (MACHINE(SLOT_PC) + 1) /* the kernel has so many registers of a thread: the slots up to the program counter */

/* An index below n, a power of two, in a way that the verifier can follow: the compiler does not see that it was before. */
#define BOUNDED(i, n) ({ u64 _i = (i); __asm__ volatile("" : "+r"(_i)); _i & ((n) - 1); })
/* The same for a length of 1 to n bytes. */
#define LENGTH(len, n) ((u32)BOUNDED((len) - 1, n) + 1)
#define SLOT_SP MACHINE(SLOT_SP)
#define SLOT_FP MACHINE(SLOT_FP)
#define SLOT_PC MACHINE(SLOT_PC)
#define SLOT_RA MACHINE(SLOT_RA)
#define RA_IN_REG MACHINE(RA_IN_REG) /* a link register; else SLOT_RA is SLOT_PC */
#define ALL_REGS ((slots)(BIT(REGS) - 1))
#define SAVED_SLOTS ((slots)MACHINE(PRESERVED))

/* What a range of addresses is. */
enum {
	RANGE_CODE = 1,     /* has a table; where that has no rule, frame pointers */
	RANGE_TERMINAL = 2, /* has no caller */
	RANGE_PLT = 3,      /* as RANGE_CODE, but where there is no rule, a procedure linkage table */
	RANGE_LAZY = 4,     /* the same, whose stubs push */
	RANGE_INJECTED = 5, /* as RANGE_CODE, but the caller goes on exactly at the return address */
	RANGE_MOVED = 6,    /* as RANGE_CODE, but register GO_SP has the stack pointer */
	RANGE_FORKS = 7,    /* as RANGE_CODE, but where a system call has returned 0, nothing: it has made the thread */
};

/* A part of a process's address space. Ranges ascend and do not overlap. */
struct range {
	u64 lo, hi;
	u64 bias; /* a link-time address is the run-time address minus this */
	u32 table; /* 0 for none */
	u32 kind;
};

/* A space's ranges come in blocks. Behind the last range, all have the greatest address. */
#define RANGE_BITS 5
#define RANGES (1 << RANGE_BITS)

/* How many there are has so many bits. Above them is how many bits addresses of the space have, for return addresses that are signed; 0: 48. */
#define NUM_RANGES_BITS 24

struct range_block {
	struct range r[RANGES];
};

/* A rule of fixed size, unpacked (docs/TABLE.md): a table's, and what the walk marks in its flags. */
struct rule {
	u64 head;
	u64 saves[RULE_WORDS - 1]; /* a byte each, and at the end which there are */
};

typedef MACHINE(SAVE_SET) save_set;

#define RULE_FLAGS(r) ((u32)((r)->head >> 16) & 0xffff)
#define RULE_OFF(r) ((s64)(r)->head >> 32)
#define RULE_REG(r) ((u8)(r)->head >> UNSPOOL_SLOT_SHIFT)
#define RULE_MASK(r) ((save_set)((r)->saves[RULE_WORDS - 2] >> (64 - 8 * sizeof(save_set))))
#define RULE_SAVE(r, i) ((s8)((r)->saves[(i) / 8] >> 8 * ((i) % 8)))
#define MARK(flag) ((u64)(flag) << 16)

/*
 * What was found for addresses, so that frames that come again need no search. Neither a space nor the table of one of its
 * modules ever changes, so it stays right. Two addresses can have the same place: the one that came first is the second.
 */
#define CACHE_BITS 13
#define EXACT_KEY (1ull << 63) /* beyond all addresses of programs. What a return address is may be more than the place before it tells. */

struct cached {
	u64 pc; /* that was looked up, at run time; with EXACT_KEY where no call has led there */
	u32 space, table; /* table 0: the rule is plain, and needs none */
	struct rule rule;
};

/* What a table's header and its only span say. */
#define HEADS 64

struct head {
	u32 space, table;
	u64 lo, hi;
	u32 shift, granule, region;
	u32 n_granules, n_regions, n_rows, n_rules;
	u32 granules, regions, rows, rules;
	u32 pad;
};

/* The stacks that were written last. */
#define SEEN_BITS 12

struct cache { /* a multiple of a cache line: 64 bytes */
	struct cached e[1 << CACHE_BITS][2];
	struct head heads[HEADS];
	u64 seen[1 << SEEN_BITS];
};

#define MIX 0x9e3779b97f4a7c15ull /* 2^64 by the golden ratio */

static __always_inline u64 mix(u64 h, u64 x)
{
	h = (h ^ x) * MIX;
	return h ^ h >> 32;
}

/* What a step comes to: rows.Outcome. */
enum { OK, OUTERMOST, NO_RULE, LOST_REGISTER, UNREADABLE, BAD_EXPR };

/* Why a stack ends: unwind.Stop. */
enum { STOP_OUTERMOST, STOP_NO_INFO, STOP_BAD_CFA, STOP_TRUNCATED, STOP_BAD_MEMORY, STOP_BAD_RETURN, STOP_DEPTH, STOP_NO_STACK };

/* How a frame was found: unwind.How, in the upper byte of its word. */
enum { HOW_START, HOW_CFI, HOW_SIGNAL, HOW_PLT, HOW_FP, HOW_SIGRETURN, HOW_CALL };
#define HOW_SHIFT 56 /* addresses of programs are below it, with five levels of page tables, too */
#define HOW_EXACT 128 /* a bit beside: the frame's address is exact although no signal interrupted it */

#define MAX_KERNEL 127
#define MAX_USER (REGS + MAX_FRAMES) /* words */

/*
 * What becomes of a sample. Where its stack has not been seen before, it is followed by the user stack's words, each an address
 * with how it was found, and the kernel's. There is no sample yet, but a stack to be known: SAMPLE_STACK; or SAMPLE_COPY, where
 * the user stack's words are the registers and a copy of it.
 */
enum { SAMPLE_NEW, SAMPLE_SEEN, SAMPLE_STACK, SAMPLE_COPY };

struct sample {
	u64 time, period, ip;
	u64 id; /* of the stack, by content */
	u32 pid, tid, cpu;
	u8 what, stop;
	u16 n_kernel;
	u32 n_user;
	u32 pad;
};

struct walk {
	u64 pc, cfa;
	slots known, in_mem; /* lost if not known; at address val if in_mem, else val itself */
	u64 val[SLOT_ROOM];
	u64 fault;

	/* The walk. */
	u64 sp;          /* of the frame at hand */
	u32 space, n_ranges;
	u64 address;     /* selects the address in a signed return address */
	u32 n;           /* frames */
	u32 exact;       /* pc is no return address */
	u32 stop;
	u32 how;         /* how the frame at hand was found */
	u32 missing;     /* an address or a table was not there, and may come */
	u32 brief;       /* registers that plain rules save need not be located */
	u32 wanted;      /* a register was asked for that was not known */
	u64 low;         /* where the piece of a stack at hand begins */
	u32 n_moves;     /* how often the walk went down */
	u32 gap;         /* how far behind a system call the address lies, plus one: after_syscall */
	u32 begins;      /* the frame below is at the beginning of a function that nobody has called */
	struct {
		u64 pc, cfa;
	} moves[MAX_MOVES];

	/* The registers of a frame that has called nobody, while its rule is applied. */
	u64 old_val[SLOT_ROOM];
	slots old_known, old_in_mem;
	u64 id;          /* of the frames so far, by content */
	u64 first_id;    /* of no frames */
	struct range range;     /* the last that was found */

	/* The rule at hand. */
	struct rule rule;
	u32 table, pad;

	/* A set of rules that does not fit, while it is applied. */
	u64 wide;     /* its offset in the table */
	u64 new_val[SLOT_ROOM];
	slots new_known, new_in_mem;
	u64 new_cfa, ra;
	struct unspool_edge edge;
	u64 code; /* before an address */
	u32 ra_column;
	s32 ra_outcome;

	/* An expression that is run. */
	u64 e_stack[2 * UNSPOOL_EXPR_STACK];
	u64 e_value;           /* what came out */
	u64 e_out;             /* and what a part of it has */
	u64 e_base;            /* offset of its bytes in the table */
	u32 e_at, e_len, e_n;  /* the next byte, how many there are, values on the stack */
	s32 e_outcome;
	u32 e_left;            /* operations that the walk may still run */

	u32 lo, hi; /* of a search. Here, the verifier forgets what it knows of them, so that all turns of the loop look alike */

	u64 loaded; /* what load_far found */
	u64 win_lo;
	u32 win_len; /* 0 for no window */
	u32 win_next; /* how long the next may be */
	u32 written;  /* bytes, since somebody looked whether there is room */
	u32 pad2;
	u8 win[WINDOW + 8];
	struct sample s;
	u64 words[MAX_USER + WINDOW / 8]; /* right behind it: the kernel's, too, and room for the verifier's doubts */
};

/* The code at hand. */
static __always_inline struct unspool_edge *walk_edge(void)
{
	struct walk *w = walk_state();

	if (!w)
		return NULL;
	__asm__ volatile("" : "+r"(w)); /* no sum before the comparison */
	return &w->edge;
}

/* ---- Memory ---- */

/* AArch64 ignores the high byte of an address, where programs and MTE have tags; the kernel's readers do not. */
#define UNTAGGED(addr) (MACHINE(TAGS) ? (addr) & 0xffffffffffffffull : (addr))

/* Leaves eight bytes in w->loaded. Returns 0 where they cannot be read. */
PART int load_far(u64 addr)
{
	struct walk *w = walk_state();
	u64 at = addr - WINDOW_BELOW;
	u32 len;

	if (!w)
		return 0;
	if (at >> 12 != addr >> 12)
		at = addr;
	len = WINDOW - (u32)(at & (WINDOW - 1));
	if (len > w->win_next)
		len = w->win_next;
	w->win_next = WINDOW;
	w->win_len = 0;
	if ((addr & (WINDOW - 1)) > WINDOW - 8) /* across two pages */
		return walk_read(&w->loaded, 8, addr) == 0;
	len = LENGTH(len, WINDOW);
	if (walk_read(w->win, len, at) != 0)
		return walk_read(&w->loaded, 8, addr) == 0;
	w->win_lo = at;
	w->win_len = len;
	w->loaded = *(u64 *)(w->win + ((addr - at) & (WINDOW - 1)));
	return 1;
}

static __always_inline int load(struct walk *w, u64 addr, u64 *to)
{
	u64 off;

	addr = UNTAGGED(addr);
	off = addr - w->win_lo;
	if (off + 8 <= w->win_len && off < w->win_len) {
		*to = *(u64 *)(w->win + (off & (WINDOW - 1)));
		return 1;
	}
	if (!load_far(addr))
		return 0;
	*to = w->loaded;
	return 1;
}

/* The value of a slot. */
static __always_inline int get(struct walk *w, u32 slot, u64 *to)
{
	u64 v;

	if (slot >= SLOTS || !(w->known >> slot & 1)) {
		w->wanted = 1;
		return LOST_REGISTER;
	}
	v = w->val[BOUNDED(slot, SLOT_ROOM)];
	if (w->in_mem >> slot & 1) {
		if (!load(w, v, to)) {
			w->fault = v;
			return UNREADABLE;
		}
		return OK;
	}
	*to = v;
	return OK;
}

/* Whether the thread has just been made by the system call behind which it is: the call has returned 0. Nobody has called the thread. */
static __always_inline int new_thread(void)
{
	struct walk *w = walk_state();
	u64 result;

	return w && get(w, MACHINE(RESULT), &result) == OK && result == 0;
}

#include "find.h"

/* ---- Steps ---- */

#include "wide.h"

/*
 * Where the mask has bit i, the register of save i is at its place. Without a branch: which registers a function saves cannot be
 * predicted.
 */
#define LOCATE(i, slot)                                                                       \
	if (i < MACHINE(RA_SAVE) + RA_IN_REG)                                                 \
		s->val[slot] ^= (s->val[slot] ^ PLAIN_AT(base, i)) & -(u64)(mask >> i & 1);

/*
 * Applies the rule at hand, s->rule: s, the state of a frame, becomes that of its caller. After any outcome but OK its
 * registers are unchanged.
 */
#define PLAIN_STEP static __always_inline int apply(struct walk *s)
#define PLAIN_SET slots
#define PLAIN_KIND ((u32)s->rule.head & UNSPOOL_KIND_MASK)
#define PLAIN_REG RULE_REG(&s->rule)
#define PLAIN_FLAGS (u16)(s->rule.head >> 16)
#define PLAIN_AUX (u8)(s->rule.head >> 8)
#define PLAIN_OFF (s32)(s->rule.head >> 32)
#define PLAIN_BASE -(s64)(u8)(s->rule.head >> 8) * UNSPOOL_BASE_UNIT
#define PLAIN_MASK RULE_MASK(&s->rule)
#define PLAIN_MASKS u32
#define PLAIN_SCALE 8
#define PLAIN_SAVE(i) RULE_SAVE(&s->rule, i)
#define PLAIN_RA_SAVE MACHINE(RA_SAVE)
#define PLAIN_LOCATE(mask, base, set)               \
	if (mask) {                                 \
		MACHINE(EACH_SAVE)(LOCATE)          \
		set = (slots)MACHINE(SLOTS_OF)(mask); \
	}
#define PLAIN_WIDE apply_wide()
#define PLAIN_KEEP SAVED_SLOTS
#define PLAIN_SP SLOT_SP
#define PLAIN_RA SLOT_RA
#define PLAIN_RA_IS_PC !RA_IN_REG
#define PLAIN_GET(slot, to) get(s, slot, to)
#define PLAIN_LOAD(addr, to) load(s, addr, to)
#define PLAIN_PLACED(set) (void)0
#define PLAIN_UNSIGNED(ra) ((ra) & s->address)
#include "plain.h"

#include "lookup.h"
#include "places.h"
#include "stacks.h"

/* ---- The walk ---- */

static __always_inline u32 stop_of(int outcome, u64 fault, u64 sp)
{
	switch (outcome) {
	case OUTERMOST: return STOP_OUTERMOST;
	case NO_RULE: return STOP_NO_INFO;
	/* The stack is there, but a page of it is not in memory; anything else is no memory of the stack's. */
	case UNREADABLE: return fault - sp < MAX_UP ? STOP_TRUNCATED : STOP_BAD_MEMORY;
	}
	return STOP_BAD_CFA;
}

/* Where what was found for an address is kept: two places. */
static __always_inline struct cached *places(struct walk *w, struct cache *c, u64 at)
{
	return c->e[BOUNDED((at ^ (u64)w->space << 32) * MIX >> (64 - CACHE_BITS), 1 << CACHE_BITS)];
}

/* Adds a frame. There is room. */
static __always_inline void add_frame(struct walk *w, u32 place)
{
	u64 word = w->pc | (u64)(w->how | place) << HOW_SHIFT;

	w->words[BOUNDED(w->n, MAX_FRAMES)] = word;
	w->n++;
	w->id = mix(w->id, word);
}

/* With a link register, what a rule of a signed return address says. */
#define SIGNED (UNSPOOL_RA_SIGNED | UNSPOOL_RA_SIGN_PC)
#define QUIET_FLAGS (RA_IN_REG ? SIGNED | UNSPOOL_B_KEY : 0)

/*
 * Whether a rule is plain: the CFA is the stack or the frame pointer and an offset, the return address is in memory, without a link register
 * right below the CFA, and flags say nothing but that it is signed.
 */
static __always_inline int is_plain(const struct rule *r)
{
	u32 reg = RULE_REG(r);

	return (r->head & 0xffffff00 & ~MARK(QUIET_FLAGS)) == 0 && (r->head & UNSPOOL_KIND_MASK) == UNSPOOL_KIND_REG && (reg == SLOT_SP || reg == SLOT_FP) &&
	       RULE_MASK(r) >> MACHINE(RA_SAVE) & 1 && (RA_IN_REG || RULE_SAVE(r, MACHINE(RA_SAVE)) == -1);
}

/*
 * Does what walk_frame does, for up to PLAIN_FRAMES frames whose rules are cached and plain, but locates the frame pointer and the return
 * address only: other registers that they save are not known from then on. So what is known stays a part, and a right one, of what it would be
 * otherwise. Returns 0 at a frame that is anything else, or where the step fails: walk_frame does that one.
 */
static __always_inline int walk_plain(struct walk *w, struct cache *c)
{
	u32 i, saved = 0, done = 1;

	if (!(w->known & ~w->in_mem & BIT(SLOT_SP)))
		return 0;
	for (i = 0; i < PLAIN_FRAMES; i++) {
		u64 at = w->exact ? w->pc | EXACT_KEY : w->pc - 1, sp = w->sp, cfa, ra, ra_at, m;
		struct cached *e = places(w, c, at);

		done = 0;
		if (e->pc != at || e->space != w->space)
			e++;
		if (e->pc != at || e->space != w->space || e->table || w->n >= MAX_FRAMES)
			break;
		cfa = w->val[SLOT_SP];
		if (RULE_REG(&e->rule) == SLOT_FP && get(w, SLOT_FP, &cfa) != OK)
			break;
		cfa += (u64)RULE_OFF(&e->rule);
		ra_at = RA_IN_REG ? cfa + (u64)((s64)RULE_SAVE(&e->rule, MACHINE(RA_SAVE)) * 8) : cfa - 8;
		if (cfa <= sp || !load(w, ra_at, &ra))
			break;
		m = -(u64)(RULE_MASK(&e->rule) >> MACHINE(FP_SAVE) & 1);
		if (w->exact && m && (s64)RULE_SAVE(&e->rule, MACHINE(FP_SAVE)) * 8 < (s64)(sp - cfa))
			break;
		if (RA_IN_REG && w->exact && ra_at < sp)
			break;
		add_frame(w, 0);
		if (cfa - sp > MAX_PIECE)
			w->low = cfa;
		w->val[SLOT_FP] ^= (w->val[SLOT_FP] ^ (cfa + (u64)((s64)RULE_SAVE(&e->rule, MACHINE(FP_SAVE)) * 8))) & m;
		w->known |= (slots)m & BIT(SLOT_FP);
		w->in_mem |= (slots)m & BIT(SLOT_FP);
		saved |= RULE_MASK(&e->rule);
		if (RA_IN_REG && RULE_FLAGS(&e->rule) & SIGNED)
			ra &= w->address;
		w->val[SLOT_SP] = w->sp = w->cfa = cfa;
		w->val[SLOT_RA] = RA_IN_REG ? ra_at : ra;
		w->pc = ra;
		w->exact = 0;
		w->how = HOW_CFI;
		done = 1;
	}
	if (i) {
		w->begins = 0;
		w->known &= SAVED_SLOTS & ~(slots)MACHINE(SLOTS_OF)(saved & ~(1u << MACHINE(FP_SAVE)));
		w->known |= BIT(SLOT_RA);
		w->in_mem &= ~BIT(SLOT_RA);
		if (RA_IN_REG)
			w->in_mem |= BIT(SLOT_RA);
	}
	return done;
}

/* One frame of the walk, and the step to its caller. Returns nonzero at the end. */
static __always_inline long walk_frame(struct walk *w, struct cache *c)
{
	u64 at = w->pc - !w->exact, key = w->exact ? at | EXACT_KEY : at;
	u32 exact = w->exact, alive = exact && !(w->how & HOW_EXACT), how, signal = 0, injected = 0, place = 0, begins = 0, by = BY_RULE;
	struct cached *e = places(w, c, key);
	int o, maybe = 0;

	if (e->pc == key && e->space == w->space) {
		w->rule = e->rule;
		w->table = e->table;
	} else if (e[1].pc == key && e[1].space == w->space) {
		w->rule = e[1].rule;
		w->table = e[1].table;
	} else {
		by = UNMAPPED;
		if (!exact)
			maybe = is_place();
		if (maybe == 1) {
			at = w->pc;
			key = at | EXACT_KEY;
			e = places(w, c, key);
			place = HOW_EXACT;
		}
		if (in_range(w, at))
			by = look_up(at, exact | place);
		else
			w->range.lo = w->range.hi = 0;
		if (!exact && !MACHINE(CALL_PUSH) && (by == BY_PLT || by == BY_LAZY_PLT))
			by = BY_FP; /* no stub calls: the link register is no caller's */
		if (maybe == MAYBE_PLACE)
			maybe = ends_here(at, by) ? MAYBE_PLACE : 0;
		if (by == BY_FP) {
			w->gap = 0;
			if (alive)
				w->gap = (u32)after_syscall(at);
			if (is_sigreturn()) {
				by = BY_SIGRETURN;
				place = HOW_EXACT;
			} else if (w->gap) {
				by = BY_CALL;
			}
		}
		if (by == BY_RULE && exact && w->range.kind == RANGE_FORKS && new_thread())
			by = NO_CALLER;
		else if (by == BY_RULE && maybe != MAYBE_PLACE && w->range.kind != RANGE_FORKS) {
			e[1] = e[0];
			e->pc = key;
			e->space = w->space;
			e->table = is_plain(&w->rule) ? 0 : w->table;
			e->rule = w->rule;
		}
		if (by == BY_RULE && place && !(RULE_FLAGS(&w->rule) & UNSPOOL_SIGNAL) && is_sigreturn())
			by = BY_SIGRETURN; /* Go's has a rule, as if it were called */
		if (by == UNMAPPED && w->n > 0 && w->begins) {
			w->stop = STOP_OUTERMOST;
			return 1;
		}
		begins = by == BY_RULE && place && !(RULE_FLAGS(&w->rule) & UNSPOOL_SIGNAL) && begins_here(at);
		if (by == UNMAPPED || by == NO_TABLE || maybe == MAYBE_PLACE)
			w->missing = 1;
		if (by == UNMAPPED && w->n > 0) {
			w->stop = STOP_BAD_RETURN;
			return 1;
		}
	}
	if (w->n >= MAX_FRAMES) {
		w->stop = STOP_DEPTH;
		return 1;
	}
	w->begins = begins;
	if (by == BY_RULE && RULE_FLAGS(&w->rule) & HERE)
		place = HOW_EXACT;
	add_frame(w, exact ? 0 : place);
	switch (by) {
	case BY_RULE:
		signal = RULE_FLAGS(&w->rule) & UNSPOOL_SIGNAL;
		injected = RULE_FLAGS(&w->rule) & INJECTED ? 1 : 0;
		how = signal ? HOW_SIGNAL : injected ? HOW_CFI | HOW_EXACT : HOW_CFI;
		o = OK;
		if (RULE_FLAGS(&w->rule) & MOVED) {
			u64 up;

			o = get(w, MACHINE(GO_SP), &up);
			if (o == OK) {
				w->in_mem &= ~BIT(SLOT_SP);
				w->val[SLOT_SP] = up;
			}
			alive = 0;
		}
		if (alive && !signal)
			keep_registers();
		if (o == OK)
			o = apply(w);
		if (o == OK && alive && !signal)
			restore_registers(w->sp);
		break;
	case BY_PLT:
	case BY_LAZY_PLT:
		how = HOW_PLT;
		o = step_plt(at - w->range.lo, by == BY_LAZY_PLT);
		break;
	case BY_SIGRETURN:
		how = HOW_SIGRETURN;
		signal = 1;
		o = step_sigreturn();
		break;
	case BY_CALL:
		how = HOW_CALL;
		if (w->gap > 1 && new_thread()) {
			w->stop = STOP_OUTERMOST;
			return 1;
		}
		o = step_call(0) ? OK : NO_RULE;
		break;
	case BY_FP:
		if (alive && step_edge(w->pc)) {
			how = HOW_CALL;
			o = OK;
			break;
		}
		how = HOW_FP;
		o = step_fp(alive);
		if (o == LOST_REGISTER && !step_call(0))
			o = step_fp(0);
		else if (o == LOST_REGISTER || (!RA_IN_REG && o != OK && alive && step_call(0)))
			how = HOW_CALL, o = OK;
		if (o == UNREADABLE && stop_of(o, w->fault, w->sp) != STOP_TRUNCATED)
			o = NO_RULE;
		break;
	case NO_CALLER:
		w->stop = STOP_OUTERMOST;
		return 1;
	default:
		w->stop = STOP_NO_INFO;
		return 1;
	}
	if (o != OK) {
		w->stop = stop_of(o, w->fault, w->sp);
		return 1;
	}
	w->exact = injected;
	if (signal) {
		w->exact = 1;
		if (get(w, SLOT_SP, &w->sp) != OK)
			w->sp = w->cfa;
		w->low = w->sp;
	} else if (w->cfa - w->sp - 1 >= MAX_PIECE && !(exact && w->cfa == w->sp) && !moved(w->sp, w->cfa)) {
		w->stop = STOP_BAD_CFA;
		return 1;
	} else {
		w->sp = w->cfa;
	}
	w->how = how;
	return 0;
}

/* Begins a walk with the registers in w->val. */
static __always_inline void begin(struct walk *w, u32 brief)
{
	w->brief = brief;
	w->wanted = 0;
	w->id = w->first_id;
	w->pc = w->val[SLOT_PC];
	w->sp = w->cfa = w->low = w->val[SLOT_SP];
	w->n_moves = w->begins = 0;
	w->known = ALL_REGS;
	w->in_mem = 0;
	w->n = 0;
	w->exact = 1;
	w->how = HOW_START;
	w->stop = STOP_DEPTH;
	w->missing = 0;
	w->win_len = 0;
	w->win_next = WINDOW_FIRST;
	w->e_left = WALK_STEPS;
	w->range.lo = w->range.hi = 0;
}

/* A turn of the walk: some frames. Returns nonzero at the end. */
PART int walk_on(void)
{
	struct walk *w = walk_state();
	struct cache *c = walk_cache();

	if (!w || !c)
		return 1;
	if ((w->brief && walk_plain(w, c)) || !walk_frame(w, c))
		return 0;
	if (!w->brief || !w->wanted || !walk_registers(w))
		return 1;
	begin(w, 0);
	return 0;
}

/*
 * Walks the stack of the registers in w->val, of which the program counter is the last, in a space, which is not 0; n_ranges also has what
 * NUM_RANGES_BITS says. Few
 * stacks need another register than the stack and the frame pointer. So it is walked in brief first; where a register is asked for that is not
 * known then, whether it was lost or left out, the result does not count, and the stack is walked again with all of them.
 */
static __always_inline void walk(struct walk *w, u32 space, u32 n_ranges)
{
	u32 i;

	w->space = space;
	w->n_ranges = n_ranges & ((1u << NUM_RANGES_BITS) - 1);
	w->address = UNSPOOL_ADDRESS;
	if (RA_IN_REG && n_ranges >> NUM_RANGES_BITS)
		w->address = ((u64)1 << (n_ranges >> NUM_RANGES_BITS & 63)) - 1;
	w->first_id = w->id;
	begin(w, 1);
	for (i = 0; i < 2 * (MAX_FRAMES + 1); i++) {
		if (walk_on())
			break;
		if (MACHINE(GO_PUSH) && w->how & HOW_EXACT) /* here, because walk_on has no room: a chain of calls has 512 bytes for locals */
			pop_link();
	}
}

#endif /* UNSPOOL_WALK_H */
