/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.h: walking in the own process: the memory of stacks, the modules that are loaded, and rules by program counter.
 * libunwind.so.8 (local.c) and libunspool.so (libunspool.c) are made of it. Everything is async-signal-safe but what says
 * otherwise.
 */
#ifndef UNSPOOL_LOCAL_H
#define UNSPOOL_LOCAL_H

#include "blind.h"

/* ---- Memory (local_mem.c) ---- */

/* Memory that can be read: what lies from lo up to and without hi. */
struct us_span {
	uint64_t lo, hi;
};

/* This thread's own stack, as far as it has been seen; empty at first. It stays as long as the thread. */
extern US_HIDDEN _Thread_local struct us_span us_stack __attribute__((tls_model("initial-exec")));

/* Reads memory that is known to be there; not seen by sanitizers, whose red zones lie between the words of a stack. */
US_INLINE uint64_t us_word(uint64_t addr)
{
	uint64_t v;

#ifdef __x86_64__
	__asm__("mov %1, %0" : "=r"(v) : "m"(*(const uint64_t *)addr));
#else
	__asm__("ldr %0, %1" : "=r"(v) : "m"(*(const uint64_t *)addr));
#endif
	return v;
}

US_INLINE int us_within(const struct us_span *s, uint64_t addr)
{
	return addr - s->lo < s->hi - s->lo && s->hi - addr >= 8;
}

/* Makes *s the memory around addr, if the eight bytes there can be read; grows us_stack where it is a part of that. */
US_HIDDEN int us_span_at(struct us_span *s, uint64_t addr);

/* The address by which n bytes can be read: this one, or it without its tag; 0 for neither. */
US_HIDDEN uint64_t us_readable(uint64_t addr, size_t n);

/* Copies n bytes; 0 unless all can be read. */
US_HIDDEN int us_peek(uint64_t addr, void *to, size_t n);

/* Whether eight bytes, which can be read by this address, can be written; it may write them. */
US_HIDDEN int us_may_write(uint64_t addr);

/* ---- Modules (local_mod.c) ---- */

struct us_names;

struct us_loaded {
	uint64_t lo, hi;     /* all of its mapping */
	uint64_t bias;
	const void *link_map;
	uint64_t hdr;        /* .eh_frame_hdr */
	struct us_span text; /* what is known to be readable: the segment of .eh_frame_hdr */
	struct us_span code; /* the segment of code, if that can be read */
	uint64_t gp;         /* what DT_PLTGOT says; 0 for nothing */
	uint64_t id_at;      /* where the build ID is; 0 for none */
	uint8_t id[8];       /* as much of it as is compared */
	uint16_t index;      /* in the caches, from 1 */
	uint8_t permanent;   /* cannot be unloaded */
	struct us_frames frames;
	struct us_names *_Atomic names;
};

/* The module of pc; NULL for none. */
US_HIDDEN struct us_loaded *us_loaded_at(uint64_t pc);

/* Whether the module with this index is still there at pc. careful: pc may be garbage. */
US_HIDDEN int us_still_loaded(unsigned index, uint64_t pc, int careful);

/* A window on a module's call frame information; buf is for what is not known to be readable. */
struct us_glass {
	struct us_window w;
	uint8_t buf[512];
};
US_HIDDEN void us_glass(struct us_glass *g, const struct us_loaded *m);

/* Finds the FDE at pc, among everything that is known. *m is NULL where it was registered at run time. */
US_HIDDEN int us_local_fde(uint64_t pc, int in_handler, struct us_glass *g, struct us_fde *fde, struct us_loaded **m);

/* Finds or makes the rule at pc. *index: 0 if it holds for good, the module that must still be there, or US_VOLATILE. */
enum { US_VOLATILE = 0xffff };
US_HIDDEN int us_local_rule(uint64_t pc, int in_handler, struct us_rule *r, unsigned *index);

/* Whether there is code at pc, as far as can be told: memory that can be read, and not this thread's stack. */
US_HIDDEN int us_local_code(uint64_t pc);

/* us_peek, for code: it asks the kernel only about modules that can be unloaded. */
US_HIDDEN int us_local_bytes(uint64_t pc, void *to, size_t n);

/* Code that a program has registered in libunwind's way: called after modules and before libgcc's registry. */
extern US_HIDDEN int (*_Atomic us_find_registered)(uint64_t pc, struct us_glass *g, struct us_fde *fde);

/* ---- Names (names.c) ---- */

struct us_symbol {
	const char *name;
	uint64_t lo, size; /* run-time address */
};

/* The function symbol with the greatest address not above pc. Maps the file the first time. */
US_HIDDEN int us_symbol_at(struct us_loaded *m, uint64_t pc, struct us_symbol *s);

/* ---- Walking (local_walk.c) ---- */

struct us_walk {
	struct us_state s;
	struct us_span span;  /* of the stack at hand */
	uint64_t sp;          /* the stack pointer */
	uint64_t ra_at;       /* where the return address was read; 0 if that is not known */
	uint64_t sig;         /* the ucontext_t of the signal frame that was left last; 0 for none */
	struct us_moves moves;
	uint32_t module;      /* the last one that was seen to be still loaded */
	uint8_t exact;        /* the program counter is not a return address */
	uint8_t saved_only;   /* registers that a call does not preserve are lost */
	uint8_t from_signal;  /* the last step left a signal frame */
	uint8_t in_handler;   /* one of the steps did: the thread may have been interrupted anywhere */
	uint8_t blind;        /* a frame was guessed: what follows may be garbage */
	uint8_t uncached;
	uint8_t begins;       /* the frame is at the beginning of a function that nobody has called */
};

enum us_step {
	US_STEPPED = 1,
	US_END = 0, /* the outermost frame, or nothing leads on */
	/* below 0: -UNW_E... */
};

/* Starts at the registers of a ucontext_t, which stays where it is. */
US_HIDDEN void us_walk_context(struct us_walk *w, uint64_t uc, int exact);

/*
 * Starts at the caller of us_backtrace. saved is what a call preserves, and its stack begins behind that: on x86-64 r15, r14, r13, r12, rbp, rbx,
 * return address; on AArch64 the registers of a rule's saves, in their order.
 */
US_HIDDEN void us_walk_saved(struct us_walk *w, const uint64_t *saved);

US_HIDDEN int us_walk_step(struct us_walk *w, enum us_how *how);

/* What libunwind calls a signal's frame: on x86-64 the one that was interrupted, on AArch64 the code that the handler returns to. */
US_HIDDEN int us_walk_is_signal(struct us_walk *w);

/* Applies a rule that is given. */
US_HIDDEN int us_walk_apply(struct us_walk *w, const struct us_rule *r);

/* The value of a register, by DWARF's number; an us_outcome. */
US_HIDDEN int us_walk_get(struct us_walk *w, unsigned slot, uint64_t *to);

/* Program counters of at most max frames, the caller's first. saved as for us_walk_saved. */
US_HIDDEN int us_backtrace(void **pcs, int max, const uint64_t *saved);

/*
 * What is known of the walk before, of any thread: its frames, the outermost first. One user at a time. Zeros are none. x86-64, where UNSPOOL_TRAIL is
 * defined (local_trail.h).
 */
enum { US_TRAIL = 264, US_TRAIL_DEEP = -1 };
struct us_trail_link {
	uint64_t at, pc; /* a return address, and where it lies: the frame's stack pointer is behind it */
};
struct us_trail_frame {
	uint64_t bp, bp_at; /* rbp, and where that of the caller is; 0: it is the same */
	uint64_t hash;      /* of the program counters from the outermost frame to this one: us_trail_hash */
	uint64_t flags;
};
struct us_trail {
	int n, kept; /* kept: so many of the outermost are those of the walk before */
	struct us_trail_link link[US_TRAIL];
	struct us_trail_frame frame[US_TRAIL];
	struct us_trail_link fresh_link[US_TRAIL];
	struct us_trail_frame fresh[US_TRAIL];
};

US_INLINE uint64_t us_trail_hash(uint64_t outer, uint64_t pc)
{
	uint64_t h = (outer ^ pc) * 0x9e3779b97f4a7c15u;

	return h ^ h >> 32;
}

/*
 * Walks from a caller: at is where its return address lies. It does not look up what it finds as the walk before left it: modules must not have been
 * unloaded since. Returns the number of frames, which are in t->link; US_TRAIL_DEEP for a walk of more than US_TRAIL frames, of which t->fresh_link has the
 * innermost ones first; 0 for a walk that needs other registers or is not whole.
 */
US_HIDDEN int us_trail(struct us_trail *t, uint64_t at, uint64_t bp);

/* Forgets all rules. */
US_HIDDEN void us_local_flush(void);

/* Puts registers that a call preserves into regs, those that no context has; AArch64. */
US_HIDDEN void us_kept(uint64_t *regs);

/* Goes on with registers by slot. */
US_HIDDEN void us_resume(const uint64_t *regs) __attribute__((noreturn));
US_HIDDEN void us_sigreturn(uint64_t uc) __attribute__((noreturn));

/* Where register slot is in a ucontext_t. */
extern US_HIDDEN const uint16_t us_greg[US_SLOTS];

#endif /* UNSPOOL_LOCAL_H */
