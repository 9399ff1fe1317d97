/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llvm.c: LLVM's interface to the own process: what its libunwind.so.1 exports apart from _Unwind_*, which are eh_raise.c's and eh_walk.c's.
 * Frames are those that exceptions go through, and from the same cache. docs/DROPIN.md says how it differs from LLVM's.
 *
 * A cursor has the values of all registers. So a frame may be gone on with when the stack below has other frames, and setting a register writes
 * no memory. A register that a frame does not save has its callee's value, whoever should have preserved it. On AArch64 x30 has, too: only a
 * signal's frame says what it was, and where a frame returns to is the program counter.
 */
#define _GNU_SOURCE
#include "apply.h"
#include "eh_step.h"
#include "llvm.h"

#include <dlfcn.h>
#include <string.h>

struct cursor {
	uint64_t reg[US_SLOTS]; /* the program counter too */
#ifdef __aarch64__
	uint64_t other[24];     /* d0 to d7, and d16 to d31: no frame's rule has them */
#endif
	struct us_span span;    /* memory that can be read, of the stack at hand */
	struct eh_frame f;      /* of the program counter, where found is set */
	uint32_t module;        /* the last one that was seen to be still loaded */
	uint8_t exact;          /* the program counter is not a return address */
	uint8_t from_signal;    /* the last step left a signal's frame */
	uint8_t found;
};
_Static_assert(sizeof(struct cursor) <= sizeof(llvm_cursor), "it must fit");

US_INLINE struct cursor *cursor(llvm_cursor *c)
{
	return (struct cursor *)(void *)c;
}

/* Finds what is known of the frame at hand. */
US_INLINE void look_up(struct cursor *c)
{
	struct _Unwind_Context x;
	struct eh_walk w = {.module = c->module};

	x.ra = c->reg[US_PC];
	x.flags = c->exact ? EH_EXACT : 0;
	x.func = 0;
	c->found = eh_find(&x, &w, &c->f) == EH_NO_REASON;
	c->module = w.module;
}

US_INLINE int is_signal_code(const struct cursor *c)
{
	return c->f.rule.kind == US_KIND_NONE && c->f.rule.flags == US_SIGNAL;
}

/* ---- Steps ---- */

static US_COLD int load_elsewhere(struct cursor *c, uint64_t addr, uint64_t *to)
{
	struct us_span s;

	if (!us_span_at(&s, addr))
		return 0;
	c->span = s;
	*to = us_word(addr);
	return 1;
}

US_INLINE int load(void *ctx, uint64_t addr, uint64_t *to)
{
	struct cursor *c = ctx;

	if (us_unlikely(!us_within(&c->span, addr)))
		return load_elsewhere(c, addr, to);
	*to = us_word(addr);
	return 1;
}

/* Out of a signal's frame that has no information. */
static int step_signal(struct cursor *c)
{
	uint64_t uc = c->reg[US_SP] + MACHINE(FRAME_CONTEXT), reg[US_SLOTS];

	for (unsigned i = 0; i < US_SLOTS; i++) {
		reg[i] = c->reg[i];
		if (us_greg[i] && !load(c, uc + us_greg[i], &reg[i]))
			return LLVM_BADFRAME;
	}
	memcpy(c->reg, reg, sizeof reg);
	c->exact = c->from_signal = 1;
	return LLVM_STEPPED;
}

/* Sets where a frame returns to: by a rule with these flags, and a stack that ends at cfa. */
US_INLINE void returns_to(struct cursor *c, uint64_t pc, uint64_t cfa, unsigned flags)
{
#ifdef __aarch64__
	if (us_unlikely((flags & US_SIGNED) == UNSPOOL_RA_SIGNED))
		pc = eh_authenticated(pc, cfa, flags);
#endif
	(void)cfa;
	c->reg[US_PC] = pc;
	c->exact = c->from_signal = flags & US_SIGNAL;
}

static US_COLD int step_rule(struct cursor *c, const struct us_rule *r)
{
	uint64_t reg[US_SLOTS];
	struct us_state s;
	int o;

	s.pc = c->reg[US_PC];
	s.cfa = c->reg[US_SP];
	s.known = US_ALL;
	s.in_mem = s.in_reg = 0;
	s.bits = us_own_bits();
	s.fault = 0;
	memcpy(s.val, c->reg, sizeof s.val);
	o = us_apply_with(r, &s, load, NULL, c, US_ALL);
	if (o != US_OK && o != US_OUTERMOST)
		return LLVM_BADFRAME;
	if (o == US_OUTERMOST) {
		/* Its caller's stack pointer can be told, and no more. */
		if (r->kind == US_KIND_REG)
			c->reg[US_SP] = c->reg[r->reg] + (uint64_t)(int64_t)r->off;
		returns_to(c, 0, 0, r->flags & US_SIGNAL);
		return LLVM_STEPPED;
	}
	for (unsigned i = 0; i < US_SLOTS; i++) {
		reg[i] = c->reg[i];
		if (s.known >> i & 1 && us_get_with(&s, i, load, NULL, c, &reg[i]) != US_OK)
			return LLVM_BADFRAME;
	}
	if (!US_RA_IS_PC && !(r->flags & US_SIGNAL)) {
		uint64_t ra = reg[US_RA];

		reg[US_RA] = c->reg[US_RA];
		memcpy(c->reg, reg, sizeof reg);
		returns_to(c, (r->flags & US_SIGNED) == UNSPOOL_RA_SIGNED ? ra : s.pc, s.cfa, r->flags);
		return LLVM_STEPPED;
	}
	memcpy(c->reg, reg, sizeof reg);
	returns_to(c, s.pc, s.cfa, r->flags & US_SIGNAL);
	return LLVM_STEPPED;
}

#ifdef __aarch64__
static US_COLD int step_scaled(struct cursor *c)
{
	struct eh_scaled s;

	return step_rule(c, eh_scale(&s, &c->f.rule));
}
#endif

static US_COLD int step_other(struct cursor *c)
{
	if (is_signal_code(c))
		return step_signal(c);
#ifdef __aarch64__
	if (c->f.rule.flags & EH_SCALED)
		return step_scaled(c);
#endif
	return step_rule(c, &c->f.rule);
}

/* By a rule of fixed size, as nearly all are. */
US_INLINE int step(struct cursor *c)
{
	uint64_t head = c->f.word[0], cfa, base, v[MACHINE(N_SAVES)];
	unsigned reg = (unsigned)(head >> 2) & 63;
	uint32_t mask = EH_MASK(&c->f);

	if (us_unlikely((head & 3) != US_KIND_REG || head >> 16 & 0xffff & ~(uint64_t)EH_STEP_FLAGS || !(mask >> MACHINE(RA_SAVE) & 1) || reg >= US_SLOTS))
		return step_other(c);
	cfa = c->reg[reg] + (uint64_t)((int64_t)head >> 32);
	base = cfa - (head >> 8 & 0xff) * UNSPOOL_BASE_UNIT;
	for (uint32_t m = mask; m; m &= m - 1) {
		unsigned i = us_first(m);

		if (us_unlikely(!load(c, base + (uint64_t)((int64_t)EH_SAVE(&c->f, i) * 8), &v[i])))
			return LLVM_BADFRAME;
	}
	for (uint32_t m = mask & ((1u << MACHINE(RA_SAVE)) - 1); m; m &= m - 1) {
		unsigned i = us_first(m);

		c->reg[us_save_slot[i]] = v[i];
	}
	c->reg[US_SP] = cfa;
	returns_to(c, v[MACHINE(RA_SAVE)], cfa, (unsigned)(head >> 16) & EH_STEP_FLAGS);
	return LLVM_STEPPED;
}

EH_API int unw_step(llvm_cursor *cur)
{
	struct cursor *c = cursor(cur);
	int o;

	if (us_unlikely(!c->found))
		return LLVM_END;
	o = step(c);
	if (us_unlikely(o < 0))
		return o;
	look_up(c);
	return us_likely(c->found) ? LLVM_STEPPED : LLVM_END;
}

EH_API int unw_init_local(llvm_cursor *cur, const llvm_context *uc)
{
	static const uint8_t at[US_SLOTS] = {LLVM_CONTEXT};
	struct cursor *c = cursor(cur);

	for (unsigned i = 0; i < US_SLOTS; i++)
		c->reg[i] = uc->word[at[i]];
#ifdef __aarch64__
	memcpy(c->other, &uc->word[LLVM_CONTEXT_V0], 8 * 8);
	memcpy(&c->other[8], &uc->word[LLVM_CONTEXT_V0 + 16], 16 * 8);
#endif
	c->span = us_stack;
	c->module = 0;
	c->exact = 1;
	c->from_signal = 0;
	look_up(c);
	return LLVM_SUCCESS;
}

EH_API int unw_is_signal_frame(llvm_cursor *cur)
{
	return cursor(cur)->from_signal;
}

/* ---- Registers ---- */

/* The slot of a register, or -1. */
US_INLINE int slot_of(int n)
{
	if (n == LLVM_IP)
		return US_PC;
	if (n == LLVM_SP)
		return US_SP;
#ifdef __x86_64__
	return n >= 0 && n < US_SLOTS ? n : -1;
#else
	return (n >= 0 && n <= US_PC) || n == UNSPOOL_AARCH64_REG_RA_SIGN_STATE ? n : -1;
#endif
}

EH_API int unw_get_reg(llvm_cursor *cur, int n, uint64_t *to)
{
	int slot = slot_of(n);

	if (slot < 0)
		return LLVM_BADREG;
	*to = cursor(cur)->reg[slot];
	return LLVM_SUCCESS;
}

/* Who sets the program counter means to go on there: what the frame's call left of arguments is taken off the stack then. */
EH_API int unw_set_reg(llvm_cursor *cur, int n, uint64_t v)
{
	struct cursor *c = cursor(cur);
	int slot = slot_of(n);

	if (slot < 0)
		return LLVM_BADREG;
	c->reg[slot] = v;
	if (n == LLVM_IP) {
		uint64_t args = c->found ? (uint32_t)c->f.args : 0;

		c->exact = 1;
		look_up(c);
		c->reg[US_SP] += args;
	}
	return LLVM_SUCCESS;
}

/* Where a cursor has a floating-point register; NULL for none. On x86-64, there is no call frame information for these. */
US_INLINE uint64_t *double_of(struct cursor *c, int n)
{
#ifdef __aarch64__
	if (n >= LLVM_V0 && n < LLVM_V8)
		return &c->other[n - LLVM_V0];
	if (n >= LLVM_V8 && n < LLVM_V16)
		return &c->reg[UNSPOOL_AARCH64_REG_V8 + n - LLVM_V8];
	if (n >= LLVM_V16 && n < LLVM_REGISTERS)
		return &c->other[8 + n - LLVM_V16];
#endif
	(void)c;
	(void)n;
	return NULL;
}

EH_API int unw_get_fpreg(llvm_cursor *cur, int n, double *to)
{
	const uint64_t *at = double_of(cursor(cur), n);

	if (!at)
		return LLVM_BADREG;
	memcpy(to, at, sizeof *to);
	return LLVM_SUCCESS;
}

EH_API int unw_set_fpreg(llvm_cursor *cur, int n, double v)
{
	uint64_t *at = double_of(cursor(cur), n);

	if (!at)
		return LLVM_BADREG;
	memcpy(at, &v, sizeof v);
	return LLVM_SUCCESS;
}

EH_API int unw_is_fpreg(llvm_cursor *cur, int n)
{
	return double_of(cursor(cur), n) != NULL;
}

EH_API const char *unw_regname(llvm_cursor *c, int n)
{
	static const char *const names[LLVM_REGISTERS] = {
#ifdef __x86_64__
		"rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip",
		"xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
#else
		"x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x18", "x19",
		"x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "fp", "lr", "sp", "pc",
		[LLVM_V0] = "d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8", "d9", "d10", "d11", "d12", "d13", "d14", "d15", "d16", "d17", "d18",
		"d19", "d20", "d21", "d22", "d23", "d24", "d25", "d26", "d27", "d28", "d29", "d30", "d31",
#endif
	};

	(void)c;
	n = n == LLVM_IP ? US_PC : n == LLVM_SP ? US_SP : n;
	return n >= 0 && n < LLVM_REGISTERS && names[n] ? names[n] : "unknown register";
}

EH_API int unw_resume(llvm_cursor *cur)
{
#ifdef __aarch64__
	llvm_resume(cursor(cur)->reg, cursor(cur)->other);
#else
	us_resume(cursor(cur)->reg);
#endif
}

/* ---- Procedures ---- */

extern const void *_Unwind_Find_FDE(void *pc, struct eh_bases *b);

EH_API int unw_get_proc_info(llvm_cursor *cur, llvm_proc_info *pi)
{
	struct cursor *c = cursor(cur);
	uint64_t pc = c->reg[US_PC] - !c->exact;
	struct dl_find_object o;
	struct us_window w;
	struct eh_bases b;
	struct us_fde fde;
	uint64_t at;

	memset(pi, 0, sizeof *pi);
	if (!c->found)
		return LLVM_NOINFO;
	if (is_signal_code(c)) {
		pi->start_ip = c->reg[US_PC];
		pi->end_ip = pi->start_ip + 4;
		return LLVM_SUCCESS;
	}
	at = (uint64_t)_Unwind_Find_FDE((void *)pc, &b);
	eh_all_memory(&w);
	if (!at || us_fde_open(&w, at, &fde) != US_FOUND)
		return LLVM_NOINFO;
	pi->start_ip = fde.lo;
	pi->end_ip = fde.hi;
	pi->lsda = c->f.lsda;
	pi->handler = c->f.personality;
	pi->gp = (uint32_t)c->f.args;
	pi->format = LLVM_FORMAT_DWARF;
	pi->unwind_info = at;
	pi->unwind_info_size = (uint32_t)(fde.end - at);
	if (_dl_find_object((void *)pc, &o) == 0)
		pi->extra = (uint64_t)o.dlfo_map_start;
	return LLVM_SUCCESS;
}

/* As much of the name as fits. It maps the module's file the first time. */
EH_API int unw_get_proc_name(llvm_cursor *cur, char *to, size_t n, uint64_t *off)
{
	struct cursor *c = cursor(cur);
	uint64_t pc = c->reg[US_PC];
	struct us_loaded *m = us_loaded_at(pc - !c->exact);
	struct us_symbol s;
	size_t len;

	if (!m || !us_symbol_at(m, pc - !c->exact, &s))
		return LLVM_UNSPEC;
	if (off)
		*off = pc - s.lo;
	if (n == 0)
		return LLVM_SUCCESS;
	len = strnlen(s.name, n - 1);
	memcpy(to, s.name, len);
	to[len] = 0;
	return LLVM_SUCCESS;
}

/* ---- Code registered at run time ---- */

EH_API void unw_iterate_dwarf_unwind_cache(void (*each)(uint64_t lo, uint64_t hi, uint64_t fde, uint64_t object))
{
	eh_each_registered(each);
}

/* One FDE. */
EH_API void __unw_add_dynamic_fde(uint64_t fde)
{
	eh_add((const void *)fde, EH_ONE);
}

EH_API void __unw_remove_dynamic_fde(uint64_t fde)
{
	eh_remove((const void *)fde);
}

/* All FDEs up to the terminator. */
EH_API void __unw_add_dynamic_eh_frame_section(uint64_t begin)
{
	eh_add((const void *)begin, EH_SECTION);
}

EH_API void __unw_remove_dynamic_eh_frame_section(uint64_t begin)
{
	eh_remove((const void *)begin);
}

EH_API void __register_frame(const void *fde)
{
	eh_add(fde, EH_ONE);
}

EH_API void __deregister_frame(const void *fde)
{
	eh_remove(fde);
}

/* ---- The address space, which is one and has no operations ---- */

static const uint64_t space;
extern const void *unw_local_addr_space;
EH_API const void *unw_local_addr_space = &space;
