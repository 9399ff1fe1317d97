/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eh.h: what libunspool_eh.so is made of, in front of libgcc_s.so.1's unwinder: the Itanium C++ ABI's _Unwind_* (level I), for exceptions and
 * backtraces of the own process (docs/EXCEPTIONS.md). Frames are what libgcc's are, found by rules that all threads keep in one cache.
 */
#ifndef UNSPOOL_EH_H
#define UNSPOOL_EH_H

#include "local.h"

#define EH_API __attribute__((visibility("default")))

/* For what a first throw reads: the loader has written to these pages already, so no access waits for one. */
#define EH_DATA_SECTION __attribute__((section(".data")))

/* Columns of a context, which are DWARF's numbers of registers and one more; and how many registers a handler is given: the first ones. */
#ifdef __x86_64__
enum { EH_COLUMNS = 18, EH_DATA = 2 };
#else
enum { EH_COLUMNS = 98, EH_DATA = 4 };
#endif

/* The column of a slot. */
US_INLINE unsigned eh_column(unsigned slot)
{
#ifdef __x86_64__
	return slot;
#else
	return slot < UNSPOOL_AARCH64_REG_V8 ? slot : slot + 72 - UNSPOOL_AARCH64_REG_V8;
#endif
}

/*
 * A frame and its registers. Its layout is that of libgcc's own contexts: the C library starts some walks with libgcc's functions, and programs
 * may have a copy of libgcc in them. A personality routine then hands libgcc's contexts to these functions, and the other way round.
 */
struct _Unwind_Context {
	uint64_t reg[EH_COLUMNS]; /* where a register is, or the value of one that by_value has; 0 if it is not known */
	uint64_t cfa;             /* of the frame that was called from here: the stack pointer */
	uint64_t ra;              /* the program counter */
	uint64_t lsda;
	uint64_t tbase, dbase, func;
	uint64_t flags, version, args_size;
	uint8_t by_value[EH_COLUMNS];
};

#define EH_EXACT ((uint64_t)1 << 63)    /* ra is no return address: a signal interrupted the frame */
#define EH_EXTENDED ((uint64_t)1 << 62) /* there is by_value */

/* The numbers are the ABI's. */
enum eh_reason {
	EH_NO_REASON = 0,
	EH_FOREIGN_CAUGHT = 1,
	EH_FATAL_PHASE2 = 2,
	EH_FATAL_PHASE1 = 3,
	EH_END_OF_STACK = 5,
	EH_HANDLER_FOUND = 6,
	EH_INSTALL_CONTEXT = 7,
	EH_CONTINUE = 8,
};
enum { EH_SEARCH_PHASE = 1, EH_CLEANUP_PHASE = 2, EH_HANDLER_FRAME = 4, EH_FORCE_UNWIND = 8, EH_ACTION_END = 16 };

struct _Unwind_Exception {
	uint64_t class;
	void (*cleanup)(int reason, struct _Unwind_Exception *e);
	uint64_t private_1, private_2; /* as libgcc uses them: 0 and the handler's frame; or a stop function and its argument */
};

typedef int (*eh_personality)(int version, int actions, uint64_t class, struct _Unwind_Exception *e, struct _Unwind_Context *c);
typedef int (*eh_stop)(int version, int actions, uint64_t class, struct _Unwind_Exception *e, struct _Unwind_Context *c, void *arg);
typedef int (*eh_trace)(struct _Unwind_Context *c, void *arg);

/* ---- Frames (eh_walk.c). All are async-signal-safe. ---- */

/* What is known of the code at a program counter. */
struct eh_frame {
	union {
		struct us_rule rule; /* its flags may have UNSPOOL_B_KEY and EH_SCALED */
		uint64_t word[sizeof(struct us_rule) / 8];
	};
	uint64_t personality, lsda, start;
	uint64_t args; /* in the lower half, bytes of arguments that a landing takes off the stack (DW_CFA_GNU_args_size) */
};
enum { EH_SCALED = 0x100 }; /* expressions of the rule read the length of SVE's vectors */
enum { EH_FRAME_WORDS = sizeof(struct eh_frame) / 8, EH_RULE_WORDS = sizeof(struct us_rule) / 8 };

#ifdef __aarch64__
/* A wide rule whose expressions have the length of SVE's vectors in the place of each read. */
struct eh_scaled {
	struct us_rule rule;
	struct us_wides wides;
	uint8_t exprs[4096];
};

/* Makes such a rule of one that has EH_SCALED. s must stay as long as the rule is used. */
US_HIDDEN const struct us_rule *eh_scale(struct eh_scaled *s, const struct us_rule *r);
#endif

/* A walk: what is remembered from one frame to the next. */
struct eh_walk {
	uint32_t module;        /* the last one that was seen to be still loaded */
	uint64_t data[EH_DATA]; /* where the registers are that a handler is given */
	uint64_t shadow;        /* the shadow stack's pointer at the first frame's return address; 0 if there is none */
};

/*
 * Finds what is known of the frame at hand, whose slot has something else: EH_NO_REASON, EH_END_OF_STACK or, where information is damaged,
 * EH_FATAL_PHASE1. eh_step.h has the fast ways.
 */
US_HIDDEN int eh_miss(struct _Unwind_Context *c, struct eh_walk *w, struct eh_frame *f) US_COLD;

/* Goes to the caller's frame by a rule of any kind; 0 where it cannot be had. */
US_HIDDEN int eh_step_other(struct _Unwind_Context *c, const struct us_rule *r) US_COLD;

/* ---- Code registered at run time (eh_register.c) ---- */

struct eh_bases {
	void *tbase, *dbase, *func;
};

/* Finds the FDE of pc among what is registered; 0 for none. Takes no lock. Async-signal-safe. */
US_HIDDEN uint64_t eh_registered(uint64_t pc, struct eh_bases *b);

/* What begins where something is registered: a list of FDEs up to a terminator, one FDE, or an array of pointers to such lists. */
enum eh_what { EH_SECTION, EH_ONE, EH_TABLE };
US_HIDDEN void eh_add(const void *begin, enum eh_what what);
US_HIDDEN void eh_remove(const void *begin);

/* Calls back for each FDE that is registered, under the lock: each must not register anything. */
US_HIDDEN void eh_each_registered(void (*each)(uint64_t lo, uint64_t hi, uint64_t fde, uint64_t begin));

/* How often something was registered or given back. */
extern US_HIDDEN _Atomic uint32_t eh_generation;

/* A window on all memory, unchecked. */
US_HIDDEN void eh_all_memory(struct us_window *w);

/* ---- Landing (eh_x86_64.S, eh_aarch64.S) ---- */

/*
 * Goes on with the registers at regs: rbx, rbp, r12 to r15, rax, rdx, or x0 to x3, x19 to x30, d8 to d15; and the stack pointer, and where to go.
 * shadow is the shadow stack's pointer there, or 0 if there is none.
 */
US_HIDDEN void eh_land(const uint64_t *regs, uint64_t shadow) __attribute__((noreturn));

#endif /* UNSPOOL_EH_H */
