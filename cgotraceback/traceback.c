// SPDX-License-Identifier: Apache-2.0
//go:build linux && cgo && (amd64 || arm64)

/*
 * traceback.c: what runtime.SetCgoTraceback takes, on the walk through the own process (../runtime/local.h). All functions are async-signal-safe,
 * and take no lock.
 */
#include "traceback.h"
#include "../runtime/local.h"

static struct us_span go_text;

void us_go_text(uintptr_t lo, uintptr_t hi)
{
	go_text = (struct us_span){lo, hi};
}

static int is_go(uint64_t pc)
{
	return pc - go_text.lo < go_text.hi - go_text.lo;
}

/* ---- The registers of the caller ---- */

/*
 * us_go_traceback and us_go_context save what a call preserves, as us_walk_saved takes it, and hand it to the functions below. They have unwind
 * information of their own, whatever flags a user compiles C with.
 */
#ifdef __x86_64__
enum { SAVED = 7, SAVED_PC = 6 };
#define ENTRY(name, body)                                                                                                                     \
	__asm__(".text\n\t.globl " #name "\n\t.hidden " #name "\n\t.type " #name ", @function\n\t.p2align 4\n" #name ":\n\t.cfi_startproc\n\t"   \
		"endbr64\n\tpush %rbx\n\t.cfi_adjust_cfa_offset 8\n\t.cfi_rel_offset %rbx, 0\n\t"                                                            \
		"push %rbp\n\t.cfi_adjust_cfa_offset 8\n\t.cfi_rel_offset %rbp, 0\n\t"                                                            \
		"push %r12\n\t.cfi_adjust_cfa_offset 8\n\t.cfi_rel_offset %r12, 0\n\t"                                                            \
		"push %r13\n\t.cfi_adjust_cfa_offset 8\n\t.cfi_rel_offset %r13, 0\n\t"                                                            \
		"push %r14\n\t.cfi_adjust_cfa_offset 8\n\t.cfi_rel_offset %r14, 0\n\t"                                                            \
		"push %r15\n\t.cfi_adjust_cfa_offset 8\n\t.cfi_rel_offset %r15, 0\n\t"                                                            \
		"mov %rsp, %rsi\n\tsub $8, %rsp\n\t.cfi_adjust_cfa_offset 8\n\tcall " #body "\n\t"                                                 \
		"add $56, %rsp\n\t.cfi_adjust_cfa_offset -56\n\tret\n\t.cfi_endproc\n\t.size " #name ", . - " #name)
#else
enum { SAVED = MACHINE(N_SAVES), SAVED_PC = MACHINE(RA_SAVE) };
#define ENTRY(name, body)                                                                                                                     \
	__asm__(".text\n\t.globl " #name "\n\t.hidden " #name "\n\t.type " #name ", %function\n\t.p2align 4\n" #name ":\n\t.cfi_startproc\n\t"   \
		"hint #34\n\tsub sp, sp, #160\n\t.cfi_adjust_cfa_offset 160\n\t"                                                                   \
		"stp x19, x20, [sp]\n\tstp x21, x22, [sp, #16]\n\tstp x23, x24, [sp, #32]\n\tstp x25, x26, [sp, #48]\n\t"                           \
		"stp x27, x28, [sp, #64]\n\tstr x29, [sp, #80]\n\tstp d8, d9, [sp, #88]\n\tstp d10, d11, [sp, #104]\n\t"                            \
		"stp d12, d13, [sp, #120]\n\tstp d14, d15, [sp, #136]\n\tstr x30, [sp, #152]\n\t.cfi_rel_offset x30, 152\n\t"                       \
		"mov x1, sp\n\tbl " #body "\n\tldr x30, [sp, #152]\n\tadd sp, sp, #160\n\t.cfi_adjust_cfa_offset -160\n\t.cfi_restore x30\n\t"      \
		"ret\n\t.cfi_endproc\n\t.size " #name ", . - " #name)
_Static_assert(MACHINE(N_SAVES) == 20 && MACHINE(RA_SAVE) == 19, "as above");
#endif

US_HIDDEN void us_go_traceback_from(struct us_go_traceback_arg *a, const uint64_t *saved);
US_HIDDEN void us_go_context_from(struct us_go_context_arg *a, const uint64_t *saved);
ENTRY(us_go_traceback, us_go_traceback_from);
ENTRY(us_go_context, us_go_context_from);

/* ---- Contexts ---- */

/*
 * The frame of a C function that is calling Go: the stub that cgo makes of each exported function. Its frame stays while Go runs; that of the
 * function that asks for the context does not.
 */
struct context {
	uint64_t sp;
	uint64_t saved[SAVED]; /* as for us_walk_saved */
};

/* A thread's callbacks are within each other. Few threads have more than some; further contexts are shared by all threads. */
enum { OWN = 3, POOL = 4096 };

static _Thread_local struct {
	uint32_t n;    /* how many of c are in use */
	uint32_t last; /* the innermost that is in the pool, from 1; 0 for none */
	struct context c[OWN];
} own __attribute__((tls_model("initial-exec")));

static struct {
	struct context c;
	_Atomic uint32_t next; /* of the free ones, from 1 */
	uint32_t below;        /* the thread's last one before this */
} pool[POOL];

/* The first free context of the pool, from 1, and in the upper half how often it has changed. Contexts from fresh on have never been used. */
static _Atomic uint64_t free_first;
static _Atomic uint32_t fresh;

/* Takes one out of the pool; 0 for none. */
static uint32_t from_pool(void)
{
	uint64_t head = atomic_load_explicit(&free_first, memory_order_acquire);
	uint32_t i;

	while ((i = (uint32_t)head) != 0) {
		uint64_t next = ((head >> 32) + 1) << 32 | atomic_load_explicit(&pool[i - 1].next, memory_order_relaxed);

		if (atomic_compare_exchange_weak_explicit(&free_first, &head, next, memory_order_acquire, memory_order_acquire))
			return i;
	}
	i = atomic_load_explicit(&fresh, memory_order_relaxed);
	while (i < POOL)
		if (atomic_compare_exchange_weak_explicit(&fresh, &i, i + 1, memory_order_relaxed, memory_order_relaxed))
			return i + 1;
	return 0;
}

/* Gives the thread's last one back to the pool. */
static void to_pool(void)
{
	uint64_t head = atomic_load_explicit(&free_first, memory_order_relaxed);
	uint32_t i = own.last;

	own.last = pool[i - 1].below;
	do
		atomic_store_explicit(&pool[i - 1].next, (uint32_t)head, memory_order_relaxed);
	while (!atomic_compare_exchange_weak_explicit(&free_first, &head, ((head >> 32) + 1) << 32 | i, memory_order_release,
						      memory_order_relaxed));
}

/*
 * A panic that leaves C frames gives no context back. A context of the same stack, whose frame is not outside of the one at sp that calls Go now, is
 * left from a panic.
 */
static int is_left(const struct context *c, uint64_t sp)
{
	return c->sp <= sp && us_within(&us_stack, c->sp) && us_within(&us_stack, sp);
}

/* A context for a frame at sp; NULL for none. */
static struct context *take(uint64_t sp)
{
	uint32_t i;

	while (own.last && is_left(&pool[own.last - 1].c, sp))
		to_pool();
	if (own.last == 0) {
		while (own.n > 0 && is_left(&own.c[own.n - 1], sp))
			own.n--;
		if (own.n < OWN)
			return &own.c[own.n++];
	}
	i = from_pool();
	if (i == 0)
		return NULL;
	pool[i - 1].below = own.last;
	own.last = i;
	return &pool[i - 1].c;
}

/* Gives back c, and those of callbacks within its own that a panic has left. */
static void give_back(const struct context *c)
{
	uintptr_t i = ((uintptr_t)c - (uintptr_t)own.c) / sizeof own.c[0];

	while (own.last) {
		int done = c == &pool[own.last - 1].c;

		to_pool();
		if (done)
			return;
	}
	if (i < OWN)
		own.n = (uint32_t)i;
}

void us_go_context_from(struct us_go_context_arg *a, const uint64_t *saved)
{
	struct context *c, now;
	struct us_walk w;

	if (a->context) {
		give_back((const struct context *)a->context);
		return;
	}
	us_walk_saved(&w, saved);
	w.saved_only = 1;
	w.in_handler = 1; /* it may be one: then libgcc's lock must not be taken */
	if (us_walk_step(&w, NULL) <= 0 || w.exact)
		return;
	now.sp = w.sp;
#ifdef __x86_64__
	static const uint8_t slot[SAVED_PC] = {UNSPOOL_X86_64_REG_R15, UNSPOOL_X86_64_REG_R14, UNSPOOL_X86_64_REG_R13,
		UNSPOOL_X86_64_REG_R12, UNSPOOL_X86_64_REG_RBP, UNSPOOL_X86_64_REG_RBX};
#else
	const uint8_t *slot = us_save_slot;
#endif
	for (unsigned i = 0; i < SAVED_PC; i++)
		if (us_walk_get(&w, slot[i], &now.saved[i]) != US_OK)
			now.saved[i] = 0;
	now.saved[SAVED_PC] = w.s.pc;
	c = take(w.sp);
	if (!c)
		return;
	*c = now;
	a->context = (uintptr_t)c;
}

/* Starts at a context. */
static void walk_from(struct us_walk *w, const struct context *c)
{
	us_walk_saved(w, c->saved);
	w->sp = w->s.cfa = w->s.val[US_SP] = c->sp;
	w->moves = (struct us_moves){c->sp, 0, 0, 0, 0};
	w->ra_at = 0;
}

/* ---- Stacks ---- */

void us_go_traceback_from(struct us_go_traceback_arg *a, const uint64_t *saved)
{
	uintptr_t n = 0;
	struct us_walk w;

	if (a->context)
		walk_from(&w, (const struct context *)a->context);
	else if (a->signal)
		us_walk_context(&w, a->signal, 1);
	else
		us_walk_saved(&w, saved);
	w.saved_only = 1;
	w.in_handler = 1;
	while (n < a->max && !is_go(w.s.pc)) {
		if (w.s.pc != 0)
			a->pcs[n++] = w.s.pc - !w.exact;
		else if (!w.exact)
			break; /* a call through a null pointer leads on: 0 would end the list */
		if (us_walk_step(&w, NULL) <= 0)
			break;
	}
	if (n < a->max)
		a->pcs[n] = 0;
}

/* ---- Names ---- */

void us_go_symbolizer(struct us_go_symbolizer_arg *a)
{
	struct us_loaded *m;
	struct us_symbol s;

	a->file = a->function = NULL;
	a->line = a->entry = a->more = 0;
	if (a->pc == 0)
		return;
	m = us_loaded_at(a->pc);
	if (!m || !us_symbol_at(m, a->pc, &s) || (s.size && a->pc - s.lo >= s.size))
		return;
	a->function = s.name;
	a->entry = s.lo;
}
