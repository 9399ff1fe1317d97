/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core.h: what both halves of the runtime walk with: a frame's registers, the rules that recover the caller's, modules
 * and their rules, and a cache of rules by program counter. docs/SEMANTICS.md says what a rule means; rows.Step is the
 * same in Go, and core.c is tested against it. machine.h has what is special to the machine.
 *
 * "Async-signal-safe" here means: no lock, no malloc, no libc call but memcpy and the like. What is built on the way is
 * in memory from mmap that is never given back, and is published with one atomic store. All functions are safe in many
 * threads at once, and in a child after fork.
 *
 * A walk, in short:
 *
 *	struct us_state s;			registers: us_start, then fill s.snap
 *	while (n < max) {
 *		pc = s.pc - !exact;		a return address is looked up minus one
 *		if (!us_cache_get(&us_cache, space, s.pc, exact, &rule)) {
 *			... find the module of pc, its bias ...
 *			if (us_module_rule(module, &target, bias, pc - bias, &rule) != US_FOUND) break;
 *			us_cache_put(&us_cache, space, s.pc, exact, &rule);
 *		}
 *		if (us_apply(&rule, &s, &mem, US_SAVED) != US_OK) break;
 *		exact = rule.flags & US_SIGNAL;
 *	}
 */
#ifndef UNSPOOL_CORE_H
#define UNSPOOL_CORE_H

#include "machine.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define US_HIDDEN __attribute__((visibility("hidden")))
#define US_COLD __attribute__((cold, noinline))
#define US_INLINE static inline __attribute__((always_inline))
#define us_likely(x) __builtin_expect(!!(x), 1)
#define us_unlikely(x) __builtin_expect(!!(x), 0)

/* ---- Registers ---- */

/* Slots of the stack pointer, the frame pointer, the return address and a system call's result. */
enum {
	US_SP = MACHINE(SLOT_SP),
	US_FP = MACHINE(SLOT_FP),
	US_RA = MACHINE(SLOT_RA), /* on x86-64, the program counter */
	US_PC = MACHINE(SLOT_PC),
	US_RESULT = MACHINE(RESULT),
	US_SLOTS = MACHINE(SLOTS),
	US_RA_IS_PC = !MACHINE(RA_IN_REG),
};

/* How many bits the addresses of programs have. On AArch64, programs that ask mmap(2) for addresses of up to 52 bits may get them. */
#ifdef __aarch64__
enum { US_USER_BITS = MACHINE(USER_BITS), US_MAX_BITS = MACHINE(MAX_BITS) };
#else
enum { US_USER_BITS = 47, US_MAX_BITS = US_USER_BITS };
#endif

/* How many bits a signed return address keeps where nothing else is known: UNSPOOL_ADDRESS. */
enum { US_SIGNED_BITS = 48 };

/* How many it keeps in the own process: XPACLRI, which does nothing where nothing is signed, says it. */
US_INLINE uint32_t us_own_bits(void)
{
#ifdef __aarch64__
	register uint64_t x30 __asm__("x30") = ((uint64_t)1 << 55) - 1; /* bit 55 says whose half of the addresses it is */

	__asm__("hint #7" : "+r"(x30));
	return 64 - (uint32_t)__builtin_clzll(x30);
#else
	return US_SIGNED_BITS;
#endif
}

US_INLINE int us_is_user(uint64_t addr)
{
	return addr >> US_MAX_BITS == 0;
}

/* The address in one that memory is read by. AArch64 ignores the high byte, where programs and MTE have tags; system calls refuse it. */
US_INLINE uint64_t us_untagged(uint64_t addr)
{
	return MACHINE(TAGS) ? addr & (((uint64_t)1 << 56) - 1) : addr;
}

typedef MACHINE(SET) us_set; /* a set of slots */

#define US_ALL ((us_set)MACHINE(ALL))         /* every slot */
#define US_SAVED ((us_set)MACHINE(PRESERVED)) /* the slots that a call preserves */
#define US_BIT(slot) ((us_set)1 << (slot))

/* The slots of the registers that are in a signal's frame. */
#define US_ALSO(slot, offset) | US_BIT(slot)
#define US_IN_FRAME ((us_set)0 MACHINE(FRAME)(US_ALSO))

/* The lowest number in a set, which is not empty. */
#define us_first(set) (unsigned)(sizeof(set) > 4 ? __builtin_ctzll(set) : __builtin_ctz((uint32_t)(set)))

/*
 * A frame's registers, each with its location (rows.State): slot i is lost if known lacks bit i; else at address val[i]
 * if in_mem has the bit; else in the snapshot's register val[i] if in_reg has it; else it is val[i].
 */
struct us_state {
	uint64_t pc;
	uint64_t cfa; /* of the frame that was stepped out of; 0 before the first step */
	us_set known, in_mem, in_reg;
	uint32_t bits; /* of an address: what is above them in a signed return address is the signature */
	uint64_t val[US_SLOTS];
	uint64_t snap[US_SLOTS]; /* the snapshot; a step does not change it */
	uint64_t fault;          /* the address that could not be read, after US_UNREADABLE */
};

/* What a step comes to; the numbers are rows.Outcome's. */
enum us_outcome {
	US_OK = 0,
	US_OUTERMOST = 1,     /* the return address is undefined by rule */
	US_NO_RULE = 2,       /* a gap, or a row without a rule for the CFA */
	US_LOST_REGISTER = 3, /* the CFA or the return address needs a register that is lost */
	US_UNREADABLE = 4,    /* or memory that cannot be read */
	US_BAD_EXPR = 5,      /* or an expression that is ill-formed or too long */
};

/* Reads eight bytes at addr into *to and returns nonzero; or returns 0. It must not write *to then. */
typedef int (*us_load)(void *ctx, uint64_t addr, uint64_t *to);

/* Reads the snapshot's register i, below US_SLOTS, in the same way. */
typedef int (*us_reg)(void *ctx, unsigned i, uint64_t *to);

/* What a walk may read. Without reg, the registers are in the state's snap. */
struct us_mem {
	us_load load;
	us_reg reg;
	void *ctx;
};

/* Makes s the first frame at pc, of which the registers in known can be read. snap is the caller's to fill. */
US_INLINE void us_start(struct us_state *s, uint64_t pc, us_set known)
{
	s->pc = pc;
	s->cfa = s->fault = 0;
	s->bits = US_SIGNED_BITS;
	s->known = s->in_reg = known;
	s->in_mem = 0;
	for (unsigned i = 0; i < US_SLOTS; i++)
		s->val[i] = i;
}

/* A signed return address without its signature. */
US_INLINE uint64_t us_unsigned(const struct us_state *s, uint64_t ra)
{
	return ra & (((uint64_t)1 << s->bits) - 1);
}

/* The value of a slot. */
US_INLINE int us_get_with(struct us_state *s, unsigned slot, us_load load, us_reg reg, void *ctx, uint64_t *to)
{
	uint64_t v;

	if (slot >= US_SLOTS || !(s->known >> slot & 1))
		return US_LOST_REGISTER;
	v = s->val[slot];
	if (s->in_mem >> slot & 1) {
		if (load(ctx, v, to))
			return US_OK;
		s->fault = v;
		return US_UNREADABLE;
	}
	if (us_unlikely(s->in_reg >> slot & 1)) {
		if (v >= US_SLOTS)
			return US_LOST_REGISTER;
		if (reg)
			return reg(ctx, (unsigned)v, to) ? US_OK : US_LOST_REGISTER;
		v = s->snap[v];
	}
	*to = v;
	return US_OK;
}

/* ---- Rules ---- */

/* Flags of a rule. */
enum {
	US_SIGNAL = 1,      /* a signal frame: its caller is looked up by its exact PC */
	US_SIGNED = 2 | 4,  /* the return address is signed */
	US_SYNC_ONLY = 0x20, /* right at call sites only */
	US_PARTIAL = 0x40,   /* all registers are lost that the rule does not name */
	US_OUTERMOST_FLAG = 0x8000, /* there is no caller */
	US_NATIVE = 0x4000, /* of kind NONE: machine code does it; tables cannot say so */
};

/* Kinds, as in the compact table (docs/TABLE.md). */
enum { US_KIND_NONE = 0, US_KIND_REG = 1, US_KIND_PLT = 2, US_KIND_WIDE = 3 };

/* Where the wide rules and expressions of a rule's owner are. They are not checked, but every read of them is. */
struct us_wides {
	const uint8_t *wides, *exprs;
	uint32_t wide_size, expr_size;
};

typedef MACHINE(SAVE_SET) us_saves; /* a set of saves */

/*
 * A rule: the bytes of a compact table's rule, unpacked, but a wide one has a pointer to its owner's wides in the place of its
 * saves. kind REG: CFA = reg + off, base = CFA - 1024 aux; kind PLT: CFA = base = reg + off + (pc & 15 >= aux ? 8 : 0).
 * Bit i of mask: the register us_save_slot[i] is at base + 8 saves[i]; the last one is the return address.
 * Kind NONE with US_NATIVE: off is the number of a rule of native, whose code reads no register of the snapshot but reg, or any if that is
 * US_SLOTS.
 */
struct us_rule {
	uint8_t kind : 2, reg : 6; /* one byte, kind in the low bits */
	uint8_t aux;
	uint16_t flags;
	int32_t off; /* of a wide one, its offset in the wides */
	union {
		struct {
			int8_t saves[MACHINE(N_SAVES)];
			us_saves mask;
		};
		const struct us_wides *wide;
		const struct us_native *native;
	};
};
_Static_assert(sizeof(struct us_rule) == MACHINE(RULE_SIZE), "as packed.h unpacks it");

static const uint8_t us_save_slot[MACHINE(N_SAVES)] = {MACHINE(SAVES)};

/* Turns s, the state of a frame whose rule is r, into that of its caller: us_apply_with of apply.h, for any memory. */
US_HIDDEN int us_apply(const struct us_rule *r, struct us_state *s, const struct us_mem *m, us_set keep);

/* The same for a rule of kind WIDE. */
US_HIDDEN int us_apply_wide(const struct us_rule *r, struct us_state *s, const struct us_mem *m, us_set keep);

/* ---- Beyond call frame information: docs/SEMANTICS.md, sections 5 and 6 ---- */

/*
 * After a step from a frame that has called nobody, whose state was was and whose stack pointer sp: a register whose place is below
 * that, and is not the function's any more, has the value that it had.
 */
US_HIDDEN void us_restore(struct us_state *s, const struct us_state *was, uint64_t sp, us_load load, void *ctx);

/* Where a walk has gone down to another stack: how often, and one of the last times. */
struct us_moves {
	uint64_t low; /* where the piece of a stack at hand begins */
	uint64_t pc, cfa;
	uint32_t n, pad;
};

/*
 * Whether a walk may go on from a frame whose caller's is at cfa to one at up, whose program counter is pc. A loop comes again to where it
 * went down. One such place is remembered, the first, second, fourth and so on, so all loops are found (R. P. Brent).
 */
US_HIDDEN int us_move(struct us_moves *m, uint64_t cfa, uint64_t up, uint64_t pc);

/* ---- Memory that is never given back ---- */

/* Zeroed memory aligned to 16, or NULL when there is none. Lock-free; may call mmap; async-signal-safe. */
US_HIDDEN void *us_alloc(size_t size);

/* ---- Bytes of a module ---- */

/*
 * A window on memory by address: p[0] is at lo, and up to hi it can be read. Where it ends, refill is asked to move it
 * so that it contains addr; it returns 0 if there is nothing. Without refill, what lies outside is not there.
 */
struct us_window {
	const uint8_t *p;
	uint64_t lo, hi;
	int (*refill)(struct us_window *w, uint64_t addr);
	void *ctx;
};

/* ---- Call frame information ---- */

enum us_found {
	US_FOUND = 0,
	US_NOT_FOUND = 1, /* no FDE holds there */
	US_DAMAGED = 2,   /* the FDE that does is damaged, or cannot be read */
};

/* Where a module's call frame information is. Addresses are those of the window. */
struct us_frames {
	uint64_t hdr;      /* of .eh_frame_hdr; 0 for none */
	uint64_t table;    /* of its search table: pairs of int32 from hdr */
	uint64_t n;        /* pairs in it */
	uint64_t eh_frame; /* of .eh_frame; used without a search table, 0 for none */
	uint64_t eh_end;   /* its end, or 0 where only a terminator tells */
	int strict;        /* an FDE that an empty one hides in the search table is not looked for */
};

/* Fills f from the .eh_frame_hdr at hdr. Returns US_FOUND, also without a search table; else US_DAMAGED. */
US_HIDDEN int us_frames_open(struct us_frames *f, struct us_window *w, uint64_t hdr);

/* An FDE, found and decoded so far. Addresses are those of the window. */
struct us_fde {
	uint64_t at, end;       /* the FDE */
	uint64_t lo, hi;        /* the code it describes */
	uint64_t insns;         /* its instructions, up to end */
	uint64_t lsda, handler; /* 0 for none; where indirect, the address of the pointer */
	uint64_t cie, cie_insns, cie_end;
	uint64_t caf;
	int64_t daf;
	uint32_t ra;
	uint8_t enc, lsda_enc, handler_enc, addr_size;
	uint8_t signal, sized;
	uint8_t lsda_indirect, handler_indirect;
};

/* Finds the FDE of pc, by the search table where there is one. Async-signal-safe; does not allocate. */
US_HIDDEN int us_frames_find(const struct us_frames *f, struct us_window *w, uint64_t pc, struct us_fde *fde);

/* Decodes the FDE at an address. */
US_HIDDEN int us_fde_open(struct us_window *w, uint64_t at, struct us_fde *fde);

/*
 * Runs fde's instructions up to pc and makes the rule that holds there. What does not fit 16 bytes is put into memory
 * from us_alloc; where that is short, the rule is US_NO_RULE's.
 */
US_HIDDEN int us_fde_rule(struct us_window *w, const struct us_fde *fde, uint64_t pc, struct us_rule *r);

/* ---- Tables from the store ---- */

struct stat;
struct us_table; /* a compact table, mapped and checked */

/*
 * Opens the stored table of a file with a build ID, in $UNSPOOL_CACHE, $XDG_CACHE_HOME/unspool or ~/.cache/unspool, or in the
 * directories of all users: those in $UNSPOOL_TABLES, or of store.h. st is the file's. NULL if there is none, or it is damaged, or
 * others can change the directory: than this user, or of all users' than root. Not for
 * signal handlers: it calls open and mmap, and may read the environment.
 */
US_HIDDEN const struct us_table *us_table_stored(const uint8_t *id, size_t id_size, const struct stat *st);

/* The rule at link-time address pc. Async-signal-safe. */
US_HIDDEN int us_table_rule(const struct us_table *t, uint64_t pc, struct us_rule *r);

/* ---- How a frame is left: docs/DROPIN.md ---- */

enum us_stepper { US_BY_RULES, US_BY_TABLE, US_BY_NATIVE };

/* What $UNSPOOL_STEPPER says; else tables, but rules where strict. */
US_HIDDEN enum us_stepper us_stepper(int strict);

struct us_native; /* an eh_elf file, mapped and checked */

/* Opens the stored machine code of a file, as us_table_stored does its table, and with the same conditions. */
US_HIDDEN const struct us_native *us_native_stored(const uint8_t *id, size_t id_size, const struct stat *st);

/*
 * Finds the number of the rule at link-time address pc; plain is the same rule as data, or NULL if it is not known. It fills r and returns
 * US_FOUND. Async-signal-safe.
 */
US_HIDDEN int us_native_rule(const struct us_native *n, uint64_t pc, const struct us_rule *plain, struct us_rule *r);

/*
 * Turns s into the caller's state, by the machine code that r names: as us_apply, with US_SAVED for keep. US_NO_RULE also where it cannot be
 * done. keep is as us_apply takes it: with US_ALL, r must come from a plain rule that says nothing of lost registers.
 */
US_HIDDEN int us_native_apply(const struct us_rule *r, struct us_state *s, const struct us_mem *m, us_set keep);

/*
 * Opens a stored file of a module, whose name ends in "." and ending: open gets its descriptor and its name. What open returns comes back; NULL
 * if there is no such file. Not for signal handlers.
 */
US_HIDDEN const void *us_stored(const uint8_t *id, size_t id_size, const struct stat *st, const char *ending,
	const void *(*open)(int fd, const struct stat *st, const char *name));

/* Opens a table in memory, which stays; checks everything. */
US_HIDDEN const struct us_table *us_table_open(const uint8_t *bytes, size_t size);

/* ---- The cache ---- */

/*
 * Rules by program counter, direct-mapped, for all threads: each slot has a sequence number, which is odd while it is
 * written; who finds it so, or changed, has missed. A writer that finds it odd does not write. So nobody waits: not a
 * signal handler that interrupts a writer, nor a child of fork that finds one half done.
 */
enum { US_CACHE_BITS = 15, US_RULE_WORDS = sizeof(struct us_rule) / 8 };

struct us_slot {
	_Atomic uint32_t seq;
	_Atomic uint32_t tag;
	_Atomic uint64_t pc;
	_Atomic uint64_t rule[US_RULE_WORDS];
};

struct us_cache {
	struct us_slot slot[1 << US_CACHE_BITS];
};

extern US_HIDDEN struct us_cache us_cache;

US_INLINE struct us_slot *us_slot_of(struct us_slot *slots, unsigned bits, uint32_t tag, uint64_t pc)
{
	return &slots[(pc ^ (uint64_t)tag << 40) * 0x9e3779b97f4a7c15u >> (64 - bits)];
}

/* Gets a rule out of slot e; 0 if it is not there. */
US_INLINE int us_slot_get(struct us_slot *e, uint32_t tag, uint64_t pc, struct us_rule *r)
{
	uint32_t seq = atomic_load_explicit(&e->seq, memory_order_acquire);
	uint64_t w[US_RULE_WORDS];

	if (atomic_load_explicit(&e->pc, memory_order_relaxed) != pc ||
	    atomic_load_explicit(&e->tag, memory_order_relaxed) != tag)
		return 0;
	for (unsigned i = 0; i < US_RULE_WORDS; i++)
		w[i] = atomic_load_explicit(&e->rule[i], memory_order_relaxed);
	atomic_thread_fence(memory_order_acquire);
	if (seq & 1 || atomic_load_explicit(&e->seq, memory_order_relaxed) != seq)
		return 0;
	__builtin_memcpy(r, w, sizeof w);
	return 1;
}

US_HIDDEN void us_slot_put(struct us_slot *e, uint32_t tag, uint64_t pc, const struct us_rule *r);

/* A number for an address space, not used before; after it, what the cache holds for another is not found. */
US_HIDDEN uint32_t us_new_space(void);

/* Gets a rule; 0 if it is not there. exact: pc is no return address. */
US_INLINE int us_cache_get(struct us_cache *c, uint32_t space, uint64_t pc, int exact, struct us_rule *r)
{
	uint32_t tag = space << 1 | (exact != 0);

	return us_slot_get(us_slot_of(c->slot, US_CACHE_BITS, tag, pc), tag, pc, r);
}

/* Fetches the slot of a program counter that will be asked for soon. */
US_INLINE void us_cache_fetch(struct us_cache *c, uint32_t space, uint64_t pc, int exact)
{
	__builtin_prefetch(us_slot_of(c->slot, US_CACHE_BITS, space << 1 | (exact != 0), pc));
}

US_INLINE void us_cache_put(struct us_cache *c, uint32_t space, uint64_t pc, int exact, const struct us_rule *r)
{
	uint32_t tag = space << 1 | (exact != 0);

	us_slot_put(us_slot_of(c->slot, US_CACHE_BITS, tag, pc), tag, pc, r);
}

#endif /* UNSPOOL_CORE_H */
