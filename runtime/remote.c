/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.c: libunwind's interface to other address spaces: what libunwind-x86_64.so.8 exports. Programs give accessors,
 * by which everything is read; modules are told apart by build ID (module.h), so what is known about one serves all
 * address spaces.
 *
 * Two modes. With UNSPOOL_STRICT=1, every answer is that of libunwind 1.6; on AArch64, every step that of 1.8.1. Otherwise it differs where libunwind is
 * wrong: a program's idea of where a module lies is corrected where the instruction pointer shows that it is stale;
 * registers that a call does not preserve are lost in the caller; stored tables may know more than .eh_frame_hdr.
 */
#define _GNU_SOURCE
#include "apply.h"
#include "blind.h"
#include "remote.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Reads an address of the program, also where memory ends with it: perf does not give the last word of a copied stack,
 * but all of its bytes except the highest, which is 0 in the addresses of programs.
 */
static int load_address(void *ctx, uint64_t addr, uint64_t *to)
{
	uint64_t v;

	if (load(ctx, addr, to))
		return 1;
	if (!load(ctx, addr - 1, &v) || !us_is_user(v >> 8))
		return 0;
	*to = v >> 8;
	return 1;
}

US_API int U(init_remote)(unw_cursor_t *cur, unw_addr_space_t as, void *arg)
{
	struct cursor *c = cursor(cur);
	unw_word_t ip, sp, top;
	int r;

	c->as = as;
	c->arg = arg;
	r = as->acc.access_reg(as, US_PC, &ip, 0, arg);
	if (r < 0)
		return r;
	r = as->acc.access_reg(as, US_SP, &sp, 0, arg);
	if (r < 0)
		return r;
	us_start(&c->s, ip, US_IN_FRAME);
	/* Accessors do not say how many bits of an address a signature leaves. Who has addresses of more bits has code or its stack there. */
	top = ip | us_untagged(sp);
	if (as == &us_local_space || (!US_RA_IS_PC && us_own_bits() < US_USER_BITS && top >> us_own_bits() == 0))
		c->s.bits = us_own_bits();
	else if (!US_RA_IS_PC && top >> US_USER_BITS)
		c->s.bits = US_MAX_BITS;
	if (!US_RA_IS_PC && as->strict)
		c->s.bits = 63; /* signatures stay */
	c->cfa = c->s.cfa = sp;
	c->s.val[US_SP] = sp;
	c->s.in_reg &= ~(US_BIT(US_SP));
	c->sp = US_SP;
	c->sp_kind = SP_REG;
	c->exact = 1;
	c->from_signal = 0;
	c->ra_kind = RA_REG;
	c->ra_at = c->sig = 0;
	c->moves = (struct us_moves){sp, 0, 0, 0, 0};
	c->seen.module = NULL;
	return 0;
}

/* flag: 0, or UNW_INIT_SIGNAL_FRAME (1) where uc is what a signal handler got. */
US_API int U(init_local2)(unw_cursor_t *cur, void *uc, int flag)
{
	int r;

	if (flag != 0 && flag != 1)
		return -UNW_EINVAL;
	r = U(init_remote)(cur, &us_local_space, uc);
	cursor(cur)->exact = (uint8_t)flag;
	return r;
}

US_API int U(init_local)(unw_cursor_t *cur, void *uc)
{
	return U(init_local2)(cur, uc, 0);
}

/* ---- Steps ---- */

/* After a step in strict mode: the stack pointer's location, where a rule has said it, is set apart; its value is the CFA. */
static US_COLD void keep_stack_pointer(struct cursor *c)
{
	struct us_state *s = &c->s;

	if (!(s->known >> US_SP & 1)) {
		c->sp_kind = SP_LOST;
	} else if (s->in_mem >> US_SP & 1) {
		c->sp_kind = SP_MEM;
		c->sp = s->val[US_SP];
	} else if (s->in_reg >> US_SP & 1) {
		c->sp_kind = SP_REG;
		c->sp = s->val[US_SP];
	} else if (s->val[US_SP] != s->cfa) {
		c->sp_kind = SP_VALUE;
		c->sp = s->val[US_SP];
	} else {
		return;
	}
	set_value(s, US_SP, s->cfa);
}

#ifdef __x86_64__

/* A stub of the procedure linkage table: jmp *x(%rip); push $n; jmp. */
static int is_plt(struct cursor *c)
{
	uint64_t a, b;

	if (!load(c, c->s.pc, &a) || !load(c, c->s.pc + 8, &b))
		return 0;
	return ((a & 0xffff) == 0x25ff && (a >> 48 & 0xff) == 0x68 && (b >> 24 & 0xff) == 0xe9);
}

/* The stack pointer, in strict mode. */
static int stack_pointer(struct cursor *c, uint64_t *to)
{
	*to = c->sp;
	if (c->sp_kind == SP_VALUE)
		return 1;
	if (c->sp_kind == SP_REG)
		return reg(c, (unsigned)c->sp, to);
	return c->sp_kind == SP_MEM && load(c, c->sp, to);
}

/* A step to the caller, whose return address is at an address. */
static void called_from(struct cursor *c, uint64_t cfa, uint64_t at, uint64_t ra)
{
	c->cfa = c->s.cfa = cfa;
	set_value(&c->s, US_SP, cfa);
	set_value(&c->s, US_RA, ra);
	c->s.pc = ra;
	c->ra_kind = RA_MEM;
	c->ra_at = at;
}

/* How far above the CFA a frame pointer may lead, to libunwind. */
enum { MAX_FRAME = 0x4000 };

/*
 * A step where there is no unwind information, as libunwind takes it: a stub of the linkage table has pushed nothing but
 * the return address; a frame whose instruction pointer is not in readable memory was called through a bad pointer, and
 * its return address is on top of the stack; else the frame pointer leads on, if it leads up the stack and not far.
 */
static US_COLD int step_strict(struct cursor *c)
{
	struct us_state *s = &c->s;
	uint64_t ip = s->pc, cfa = c->cfa, rbp, sp, ra, v;
	int o, valid, at;

	c->from_signal = 0;
	if (is_plt(c)) {
		if (!load(c, cfa, &ra))
			return -UNW_EINVAL;
		called_from(c, cfa + 8, cfa, ra);
		/* exact stays: libunwind does not change it here */
		return ra == ip && c->cfa == cfa ? -UNW_EBADFRAME : 1;
	}
	if (!(s->known >> US_FP & 1))
		return 0;
	o = us_get_with(s, US_FP, load, reg, c, &rbp);
	if (o != US_OK)
		return -UNW_EINVAL;
	valid = load(c, ip, &v);
	if (valid) {
		if (rbp == 0) {
			s->known = US_BIT(US_SP);
			return 0;
		}
	} else if (stack_pointer(c, &sp) && load(c, sp, &ra) && load(c, ra, &v)) {
		/* The frame pointer is still the caller's. libunwind takes it to be saved where it points to. */
		s->known = rbp == 0 ? 0 : US_BIT(US_FP);
		s->in_mem = US_BIT(US_FP);
		s->in_reg = 0;
		s->val[US_FP] = rbp;
		called_from(c, cfa + 8, sp, ra);
		c->sp = sp; /* and of the stack pointer, in the same way */
		c->sp_kind = SP_MEM;
		c->exact = 0;
		return 1;
	}
	at = load(c, rbp, &v);
	if (!at && !valid)
		return rbp ? -UNW_EINVAL : -UNW_EBADREG;
	if (!at || rbp < cfa || rbp - cfa > MAX_FRAME) {
		s->known = US_BIT(US_SP);
		return 0;
	}
	if (!load(c, rbp + 8, &ra))
		return -UNW_EINVAL;
	s->known = US_BIT(US_FP);
	s->in_mem = US_BIT(US_FP);
	s->in_reg = 0;
	s->val[US_FP] = rbp;
	/* libunwind takes the frame to be as large as its two words. */
	called_from(c, cfa + 16, rbp + 8, ra);
	c->sp_kind = SP_LOST;
	c->exact = 0;
	return ra == ip && c->cfa == cfa ? -UNW_EBADFRAME : 1;
}

#endif

static US_COLD int failed(struct cursor *c, int outcome)
{
	switch (outcome) {
	case US_OUTERMOST:
		c->s.pc = 0;
		return 0;
	case US_LOST_REGISTER:
		return -UNW_EBADREG;
	case US_UNREADABLE:
		if (c->as->strict && c->s.fault == 0) { /* to libunwind, what is saved at 0 is not saved */
			c->s.pc = 0;
			return 0;
		}
		return -UNW_EINVAL;
	}
	return -UNW_EBADFRAME;
}

/* ---- What blind.h asks ---- */

static int code(void *ctx, uint64_t at, uint8_t *to, uint32_t n)
{
	uint64_t v;

	for (; n >= 8; n -= 8, at += 8, to += 8) {
		if (!load(ctx, at, &v))
			return 0;
		memcpy(to, &v, 8);
	}
	if (n == 0)
		return 1;
	if (!load(ctx, at, &v)) { /* the word that ends there */
		if (!load(ctx, at + n - 8, &v))
			return 0;
		v >>= 64 - 8 * n;
	}
	memcpy(to, &v, n);
	return 1;
}

static int is_code(void *ctx, uint64_t at)
{
	struct cursor *c = ctx;

	return at >> c->s.bits == 0 && us_space_code(c->as, c->arg, at);
}

static int has_rule(void *ctx, uint64_t at)
{
	struct cursor *c = ctx;
	struct us_rule r;

	return us_space_rule(c->as, c->arg, at, &c->seen, &r) >= 0;
}

static const struct us_asks asks = {load, reg, code, is_code, has_rule};

static struct us_blind blind(struct cursor *c)
{
	return (struct us_blind){.s = &c->s, .sp = c->cfa, .from = &asks, .ctx = c, .exact = c->exact};
}

/* Whether the walk may go on to the frame at c, from one at cfa. */
US_INLINE int leads_on(struct cursor *c, uint64_t cfa, int exact)
{
	if (us_unlikely(c->from_signal)) {
		c->moves.low = c->cfa;
		return 1;
	}
	if (us_likely(c->cfa - cfa - 1 < UNSPOOL_MAX_PIECE) || (exact && c->cfa == cfa))
		return 1;
	return us_move(&c->moves, cfa, c->cfa, c->s.pc);
}

/* A step where there is no unwind information. at is the address that was looked up. */
static US_COLD int step_blind(struct cursor *c, uint64_t at)
{
	struct us_blind b = blind(c);
	int o = us_step_blind(&b, at), exact = c->exact;

	if (o == US_NO_RULE || o == US_LOST_REGISTER) {
		c->s.known = US_BIT(US_SP);
		return 0;
	}
	if (o != US_OK)
		return failed(c, o);
	c->cfa = c->s.cfa;
	c->ra_kind = b.ra_at ? RA_MEM : RA_LOST;
	c->ra_at = b.ra_at;
	c->exact = c->from_signal = b.how == US_BY_SIGNAL;
	if (c->from_signal)
		c->sig = b.sp + MACHINE(FRAME_CONTEXT);
	return leads_on(c, b.sp, exact) ? c->s.pc != 0 || c->exact : -UNW_EBADFRAME;
}

static int without_rule(struct cursor *c, uint64_t at)
{
#ifdef __x86_64__
	if (c->as->strict)
		return step_strict(c);
#endif
	return step_blind(c, at);
}

enum { UC_PC = MACHINE(FRAME_PC) - MACHINE(FRAME_CONTEXT) }; /* in ucontext_t */

/* How many frames were left by machine code, by tables and rules, and by the latter because the code could not. Threads may lose some. */
static struct {
	uint64_t native, data, fallen;
} steps;

US_INLINE void count(uint64_t *n)
{
	__atomic_store_n(n, __atomic_load_n(n, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

/* At its end, the program adds a line with the numbers to the file that $UNSPOOL_STEPS names. */
__attribute__((destructor)) static void say_steps(void)
{
	const char *path = secure_getenv("UNSPOOL_STEPS");
	char line[128];
	int fd, n;

	if (!path || steps.native + steps.data == 0 || (fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) < 0)
		return;
	n = snprintf(line, sizeof line, "native %llu data %llu fallen %llu\n", (unsigned long long)steps.native,
		     (unsigned long long)steps.data, (unsigned long long)steps.fallen);
	(void)!write(fd, line, (size_t)n); /* a test reads it */
	close(fd);
}

/*
 * A step by machine code: us_native_apply. Where the code cannot do it, r becomes the rule as data, of the address at that was looked up.
 * Returns US_NO_RULE then, and else what the step comes to.
 */
static int by_code(struct cursor *c, struct us_rule *r, uint64_t at)
{
	struct us_mem m = {load, reg, c};
	int o = us_native_apply(r, &c->s, &m, c->as->keep);

	if (us_likely(o != US_NO_RULE && o != US_UNREADABLE)) {
		count(&steps.native);
		return o;
	}
	count(&steps.fallen);
	if (us_space_rule(c->as, c->arg, at, &c->seen, r) < 0)
		return o == US_NO_RULE ? US_BAD_EXPR : o;
	return US_NO_RULE;
}

static int apply(struct cursor *c, struct us_rule *r, uint64_t at)
{
	unw_addr_space_t as = c->as;
	uint64_t ip = c->s.pc, cfa = c->cfa;
	int exact = c->exact, alive = exact && !as->strict && !(r->flags & US_SIGNAL), o = US_NO_RULE;
	struct us_state was;

	if (us_unlikely(alive))
		was = c->s;
	if (us_unlikely(r->flags & US_NATIVE)) {
		o = by_code(c, r, at);
		if (o != US_OK && o != US_NO_RULE)
			return failed(c, o);
	}
	if (us_likely(o != US_OK)) {
		count(&steps.data);
		o = us_apply_with(r, &c->s, load, reg, c, as->keep);
	}
	if (us_unlikely(o != US_OK)) {
		if (o == US_UNREADABLE && !as->strict) {
			struct us_mem m = {load_address, reg, c};

			o = us_apply(r, &c->s, &m, as->keep);
		}
		if (o != US_OK)
			return failed(c, o);
	}
	if (us_unlikely(alive))
		us_restore(&c->s, &was, cfa, load, c);
	c->cfa = c->s.cfa;
	if (us_unlikely(as->strict))
		keep_stack_pointer(c);
	c->exact = c->from_signal = r->flags & US_SIGNAL;
	if (us_likely(r->kind != US_KIND_WIDE)) {
		if (us_unlikely(!(r->mask >> MACHINE(RA_SAVE) & 1))) {
			if (!US_RA_IS_PC)
				c->ra_kind = RA_LOST; /* in a register, which is not the program counter */
		} else {
			c->ra_kind = RA_MEM;
			c->ra_at = c->cfa - (r->kind == US_KIND_REG ? (uint64_t)r->aux * 1024 : 0) + (uint64_t)((int64_t)r->saves[MACHINE(RA_SAVE)] * 8);
		}
	} else {
		c->ra_kind = RA_MAYBE;
		c->ra_at = c->cfa - 8;
		if (c->s.in_mem >> US_SP & 1) {
			c->sp_kind = SP_MEM;
			c->sp = c->s.val[US_SP];
		}
		if (c->from_signal) {
			c->sig = cfa + MACHINE(FRAME_CONTEXT); /* the ucontext_t that the kernel made */
			c->ra_at = c->sig + UC_PC;
		}
	}
	if (us_unlikely(c->s.pc == ip && c->cfa == cfa))
		return -UNW_EBADFRAME;
	if (!as->strict && us_unlikely(!leads_on(c, cfa, exact)))
		return -UNW_EBADFRAME; /* round in circles */
	/* A thread's first function is called from nowhere. To libunwind the end is where the frame pointer is lost. */
	if (US_RA_IS_PC && us_unlikely(as->strict) && !(c->s.known >> US_FP & 1))
		return c->s.pc = 0;
	return as->strict || c->s.pc != 0 || c->exact; /* a handler can have interrupted a call of 0 */
}

#ifdef __aarch64__

/*
 * A step as libunwind 1.8.1 takes it, for perf, whose accessors give neither names nor the mask of signed addresses. Four things differ from what
 * the frames say: a caller whose frame pointer is 0 is not there, so the outermost frame is never seen; signed return addresses stay signed; where
 * the instruction pointer cannot be read, the link register's place is taken for it; and without unwind information, or where the frame pointer
 * cannot be read after a step, so it is, once, and neither the CFA nor how the address is looked up changes.
 */

/* Reads the register of a slot as dwarf_get does: less than 0 where it cannot be read; more than 0 is no error, but no 0 either. */
static int place_of(struct cursor *c, unsigned slot, uint64_t *to)
{
	struct us_state *s = &c->s;
	uint64_t v = s->val[slot];

	if (!(s->known >> slot & 1) || (s->in_mem >> slot & 1 && v == 0))
		return -UNW_EBADREG;
	if (s->in_mem >> slot & 1)
		return c->as->acc.access_mem(c->as, v, to, 0, c->arg);
	if (s->in_reg >> slot & 1)
		return c->as->acc.access_reg(c->as, (unw_regnum_t)v, to, 0, c->arg);
	*to = v;
	return 0;
}

/* Takes the link register for the return address; it has no place then. */
static int by_link(struct cursor *c)
{
	struct us_state *s = &c->s;
	int r = place_of(c, US_RA, &s->pc), known = (int)(s->known >> US_RA & 1);

	c->ra_kind = RA_LOST;
	c->from_signal = 0;
	s->known &= ~US_BIT(US_RA);
	if (!known || (r < 0 && s->in_mem >> US_RA & 1 && s->val[US_RA] == 0))
		return (int)(s->pc = 0);
	return r < 0 ? r : s->pc != 0;
}

/* Code to which signal handlers return: libunwind asks for the bits that are set in its two instructions, and no others. */
static int is_return(struct cursor *c)
{
	const uint64_t code = 0xd4000001d2801168;
	uint64_t v = 0;
	int r = c->as->acc.access_mem(c->as, c->s.pc, &v, 0, c->arg);

	return r < 0 ? r : (v & code) == code;
}

static int from_handler(struct cursor *c)
{
	struct us_state *s = &c->s;
	uint64_t sp = c->cfa, v;

	if (sp == 0 || c->as->acc.access_mem(c->as, sp, &v, 0, c->arg) < 0)
		return -UNW_EUNSPEC;
#define PLACED_AT(slot, offset) s->val[slot] = sp + (offset);
	MACHINE(FRAME)(PLACED_AT)
	s->known = s->in_mem = US_IN_FRAME;
	s->in_reg = 0;
	place_of(c, US_SP, &c->cfa);
	place_of(c, US_PC, &s->pc);
	s->cfa = c->cfa;
	set_value(s, US_SP, c->cfa);
	c->exact = c->from_signal = 1;
	c->sig = sp + MACHINE(FRAME_CONTEXT);
	c->ra_kind = RA_MEM;
	c->ra_at = c->sig + UC_PC;
	return 1;
}

static US_COLD int step_strict(struct cursor *c)
{
	struct us_state *s = &c->s;
	struct us_rule rule;
	uint32_t space = atomic_load_explicit(&c->as->space, memory_order_relaxed);
	uint64_t fp, was;
	int o = is_return(c), r;

	if (o > 0)
		return from_handler(c);
	if (o < 0)
		place_of(c, US_RA, &s->pc);
	if (!c->as->cached || !us_cache_get(&us_cache, space, s->pc, c->exact, &rule)) {
		o = us_space_step(c->as, c->arg, c->exact ? s->pc : s->pc - 1, &c->seen, &rule);
		if (o < 0)
			return by_link(c);
		if (c->as->cached)
			us_cache_put(&us_cache, space, s->pc, c->exact, &rule);
	}
	if (rule.flags & US_SYNC_ONLY && c->exact)
		return by_link(c);
	was = s->val[rule.reg % US_SLOTS];
	s->fault = 0;
	o = apply(c, &rule, c->exact ? s->pc : s->pc - 1);
	if (o == 0)
		return 0;
	if (o < 0 && o != -UNW_EINVAL)
		return by_link(c);
	if (o < 0) /* the CFA's register cannot be read, or the return address, which is the link register's place, too */
		return s->fault == was ? by_link(c) : o;
	if (s->pc == 0)
		return 0;
	r = place_of(c, US_FP, &fp);
	if (r < 0)
		return by_link(c);
	if (r == 0 && fp == 0)
		s->pc = 0;
	return s->pc != 0;
}

#endif

US_API int U(step)(unw_cursor_t *cur)
{
	struct cursor *c = cursor(cur);
	unw_addr_space_t as = c->as;
	uint32_t space = atomic_load_explicit(&as->space, memory_order_relaxed);
	uint64_t ip = c->s.pc;
	struct us_rule rule, other;
	int place = 0, o;
	struct us_blind b;

#ifdef __aarch64__
	if (us_unlikely(as->strict))
		return step_strict(c);
#endif
	if (us_unlikely(!as->cached) || us_unlikely(!us_cache_get(&us_cache, space, ip, c->exact, &rule))) {
		b = blind(c);
		place = !c->exact && !as->strict && us_is_place(&b);
		o = us_space_step(as, c->arg, c->exact || place ? ip : ip - 1, &c->seen, &rule);
		if (o == -UNW_ENOINFO || (o >= 0 && place && !(rule.flags & US_SIGNAL) && us_is_sigreturn(&b)))
			return without_rule(c, c->exact || place ? ip : ip - 1);
		if (o < 0)
			return o;
		if (as->cached && !place)
			us_cache_put(&us_cache, space, ip, c->exact, &rule);
	}
	if (us_unlikely(rule.flags & US_SYNC_ONLY) && (c->exact || place))
		return without_rule(c, ip);
	/* At the beginning of a function that nobody has called, the frame is the first, unless its rule leads to code. */
	place = place && (us_space_step(as, c->arg, ip - 1, &c->seen, &other) < 0 || memcmp(&rule, &other, sizeof other) != 0);
	o = apply(c, &rule, c->exact || place ? ip : ip - 1);
	if (us_unlikely(place) && o > 0 && !has_rule(c, c->s.pc - 1) && !has_rule(c, c->s.pc))
		return c->s.pc = 0;
	us_cache_fetch(&us_cache, space, c->s.pc, c->exact); /* the caller is about to ask for registers: time enough */
	return o;
}

US_API int U(is_signal_frame)(unw_cursor_t *c)
{
#ifdef __x86_64__
	return cursor(c)->from_signal;
#else
	struct us_blind b = blind(cursor(c)); /* the code that a handler returns to */

	return cursor(c)->as->strict ? is_return(cursor(c)) : us_is_sigreturn(&b);
#endif
}

/* ---- Procedures ---- */

US_API int U(get_proc_info)(unw_cursor_t *cur, unw_proc_info_t *pi)
{
	struct cursor *c = cursor(cur);

	if (us_space_info(c->as, c->arg, c->s.pc - !c->exact, pi) < 0) {
		/* Code without information: all that is known is where it starts from here. */
		memset(pi, 0, sizeof *pi);
		pi->start_ip = c->s.pc;
		pi->end_ip = c->s.pc + 1;
	}
	return 0;
}

US_API int U(get_proc_name)(unw_cursor_t *cur, char *buf, size_t size, unw_word_t *off)
{
	struct cursor *c = cursor(cur);
	int r;

	if (size > 0)
		buf[0] = 0;
	r = us_space_name(c->as, c->arg, c->s.pc - !c->exact, buf, size, off);
	if (r == -UNW_ENOINFO && c->as->acc.get_proc_name)
		r = c->as->acc.get_proc_name(c->as, c->s.pc - !c->exact, buf, size, off, c->arg);
	if (r == 0 && off && !c->exact)
		(*off)++;
	return r;
}

US_API int U(reg_states_iterate)(unw_cursor_t *cur, us_states_callback callback, void *token)
{
	struct cursor *c = cursor(cur);

	return us_space_states(c->as, c->arg, c->s.pc - !c->exact, callback, token);
}

/* Steps by a rule that reg_states_iterate has given. */
US_API int U(apply_reg_state)(unw_cursor_t *cur, void *data)
{
	struct us_rule rule;

	memcpy(&rule, data, sizeof rule);
	rule.flags &= (uint16_t)~US_NATIVE;
	return apply(cursor(cur), &rule, 0);
}
