/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blind.c: steps out of code without rules, for both drop-ins (docs/SEMANTICS.md, section 6): what unwind.Walker does and, in
 * source/ebpf/c/places.h, the kernel's program. Sections are not known here, so stubs of linkage tables are told by their code.
 */
#define _GNU_SOURCE
#include "blind.h"
#include "edge.h"
#include "unspool_table.h"

#include <string.h>

/* The caller goes on at ra, which was at an address, with the stack pointer cfa. */
static int called_from(struct us_blind *b, enum us_how how, uint64_t at, uint64_t ra, uint64_t cfa)
{
	struct us_state *s = b->s;

	us_set own = US_BIT(US_SP) | (US_RA_IS_PC ? US_BIT(US_RA) : 0);

	s->known |= own;
	s->in_mem &= ~own;
	s->in_reg &= ~own;
	s->val[US_SP] = s->cfa = cfa;
	s->pc = ra;
	if (US_RA_IS_PC)
		s->val[US_RA] = ra;
	b->how = how;
	b->ra_at = at;
	return US_OK;
}

/* A return address without what may sign it. */
static uint64_t without_signature(struct us_blind *b, uint64_t ra)
{
	return US_RA_IS_PC || b->from->is_code(b->ctx, ra - 1) ? ra : us_unsigned(b->s, ra);
}

static int load(struct us_blind *b, uint64_t addr, uint64_t *to)
{
	if (b->from->load(b->ctx, addr, to))
		return 1;
	b->s->fault = addr;
	return 0;
}

/*
 * The return address of a function that has not begun, or is about to end, off bytes below the caller's frame: on the stack, or in its
 * register. *at is where it was, and *cfa the caller's stack pointer.
 */
static int return_address(struct us_blind *b, uint64_t off, uint64_t *ra, uint64_t *at, uint64_t *cfa)
{
	*at = b->sp + off;
	*cfa = *at + MACHINE(CALL_PUSH);
	if (US_RA_IS_PC)
		return b->from->load(b->ctx, *at, ra);
	*at = 0;
	if (us_get_with(b->s, US_RA, b->from->load, b->from->reg, b->ctx, ra) != US_OK)
		return 0;
	*ra = without_signature(b, *ra);
	return 1;
}

/* ---- Linkage tables ---- */

static int code_is(struct us_blind *b, uint64_t at, const uint8_t *want, uint32_t n)
{
	uint8_t code[16];

	return b->from->code(b->ctx, at, code, n) && memcmp(code, want, n) == 0;
}

static uint32_t word_at(const uint8_t *b)
{
	return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

#ifdef __x86_64__

/* Where in code a jmp *x(%rip) is, with or without bnd; 0 for nowhere. */
static int is_jump(const uint8_t *b)
{
	return (b[0] == 0xff && b[1] == 0x25) || (b[0] == 0xf2 && b[1] == 0xff && b[2] == 0x25);
}

enum { STUB = UNSPOOL_X86_64_PLT_ENTRY_SIZE };

/*
 * How many bytes the stub of a linkage table has pushed at an offset; less than 0 where the code is none. With IBT, stubs begin with
 * endbr64 and push in one section, and jump in another.
 */
static int pushed_by(const uint8_t code[STUB], uint32_t at)
{
	int pushed = -1, known = 0;
	int ibt = word_at(code) == 0xfa1e0ff3, jumps = code[9] == 0xe9 || (code[9] == 0xf2 && code[10] == 0xe9);

#define PUSHES(from, size, bytes, byte) \
	if (!known && code[from] == (byte)) { \
		known = 1; \
		if (at >= (from) + (size)) \
			pushed += (bytes); \
	}
	if (code[0] == 0xff && code[1] == 0x35 && is_jump(code + 6)) {
		pushed = UNSPOOL_X86_64_PLT_FIRST_ENTERED;
		UNSPOOL_X86_64_PLT_FIRST_PUSHES(PUSHES)
	} else if ((is_jump(code) && code[6] == 0x68 && code[11] == 0xe9) || (ibt && code[4] == 0x68 && jumps)) {
		pushed = UNSPOOL_X86_64_PLT_ENTRY_ENTERED;
		UNSPOOL_X86_64_PLT_ENTRY_PUSHES(PUSHES)
	} else if ((ibt && is_jump(code + 4)) || (is_jump(code) && code[6] == 0x66 && code[7] == 0x90)) { /* the latter of 8 bytes */
		pushed = 0;
	}
	return pushed;
}

static int step_stub(struct us_blind *b, uint64_t at)
{
	uint8_t code[STUB];
	uint64_t ra, from;
	int pushed;

	if (!b->from->code(b->ctx, at & ~(uint64_t)(STUB - 1), code, sizeof code))
		return US_NO_RULE;
	pushed = pushed_by(code, (uint32_t)at & (STUB - 1));
	if (pushed < 0)
		return US_NO_RULE;
	from = b->sp + (uint64_t)pushed;
	if (!load(b, from, &ra))
		return US_UNREADABLE;
	b->s->known &= US_SAVED;
	return called_from(b, US_BY_PLT, from, ra, from + MACHINE(CALL_PUSH));
}

#else

/* adrp x16, slot; ldr x17, [x16, slot]; add x16, x16, slot; and br x17, or what authenticates that first. */
static int is_entry(const uint8_t *b)
{
	return (word_at(b) & 0x9f00001f) == 0x90000010 && (word_at(b + 4) & 0xffc003ff) == 0xf9400211 && (word_at(b + 8) & 0xffc003ff) == 0x91000210 &&
	       (word_at(b + 12) == 0xd61f0220 || (word_at(b + 12) & 0xfffffddf) == 0xd503219f);
}

/* A stub uses no stack, but for the first of its table: stp x16,x30,[sp,#-16]! comes before the rest, and three nops behind it. */
static int step_stub(struct us_blind *b, uint64_t at)
{
	enum { FIRST = 0xa9bf7bf0, LANDING = 0xd503245f };
	static const uint8_t nop[] = {0x1f, 0x20, 0x03, 0xd5};
	uint64_t ra;
	uint8_t code[20];

	if (!b->exact) /* no stub calls: the link register is no caller's */
		return US_NO_RULE;
	for (int i = -1; i < 7; i++) { /* the entry's instruction at hand; -1 before it */
		uint64_t lo = at - (uint64_t)(int64_t)(4 * i);
		uint64_t pushed = 0;

		if (!b->from->code(b->ctx, lo - 4, code, sizeof code) || !is_entry(code + 4) || (i > 3 && !code_is(b, at, nop, sizeof nop)))
			continue;
		if (word_at(code) == FIRST)
			pushed = i >= 0 ? 16 : 0;
		else if (i > 4 || (i < 0 && word_at(code) != LANDING))
			continue;
		if (us_get_with(b->s, US_RA, b->from->load, b->from->reg, b->ctx, &ra) != US_OK) /* not signed yet */
			return US_NO_RULE;
		b->s->known &= US_SAVED;
		return called_from(b, US_BY_PLT, 0, ra, b->sp + pushed);
	}
	return US_NO_RULE;
}

#endif

/* ---- Signals ---- */

static const uint8_t return_0[] = {MACHINE(RETURN_0)};
#ifdef __x86_64__
static const uint8_t return_1[] = {MACHINE(RETURN_1)};
#else
#define return_1 return_0
#endif

static const uint8_t system_call[] = {MACHINE(SYSCALL_BYTES)};

/* Whether the code to which signal handlers return ends there. */
static int ends_sigreturn(struct us_blind *b, uint64_t end)
{
	return code_is(b, end - sizeof return_0, return_0, sizeof return_0) || code_is(b, end - sizeof return_1, return_1, sizeof return_1);
}

int us_is_sigreturn_code(struct us_blind *b)
{
	return code_is(b, b->s->pc, return_0, sizeof return_0) || code_is(b, b->s->pc, return_1, sizeof return_1);
}

int us_is_sigreturn(struct us_blind *b)
{
	uint64_t pc = b->s->pc, uc = b->sp + MACHINE(FRAME_CONTEXT), v;

	/* uc_flags, of which there are three, and uc_link, which is 0. */
	if ((b->from->load(b->ctx, uc, &v) && v > UNSPOOL_MAX_FLAGS) || (b->from->load(b->ctx, uc + 8, &v) && v))
		return 0;
	if (us_is_sigreturn_code(b))
		return 1;
	/* At the last instruction, and behind it, while the kernel does what it asks for, the stack pointer is the same. */
	return b->exact && (ends_sigreturn(b, pc + sizeof system_call) || ends_sigreturn(b, pc));
}

static int step_sigreturn(struct us_blind *b)
{
	struct us_state *s = b->s;
	uint64_t pc, sp;

	if (!load(b, b->sp + MACHINE(FRAME_PC), &pc) || !load(b, b->sp + MACHINE(FRAME_SP), &sp))
		return US_UNREADABLE;
#define SAVED_AT(slot, offset) s->val[slot] = b->sp + (offset);
	MACHINE(FRAME)(SAVED_AT)
	s->known = s->in_mem = US_IN_FRAME;
	s->in_reg = 0;
	return called_from(b, US_BY_SIGNAL, b->sp + MACHINE(FRAME_PC), pc, sp);
}

/* ---- Calls ---- */

/* The eight bytes of code before an address; where code begins there, fewer, at the end. Returns 0 where it is none. */
static int code_before(struct us_blind *b, uint64_t pc, uint64_t *to)
{
	uint8_t code[8] = {0};

	if (!b->from->is_code(b->ctx, pc - 1))
		return 0;
	for (uint32_t n = 8; n > 0; n--)
		if (b->from->code(b->ctx, pc - n, code + 8 - n, n)) {
			memcpy(to, code, 8);
			return 1;
		}
	return 0;
}

int us_is_place(struct us_blind *b)
{
	uint64_t pc = b->s->pc, code;

	return b->from->is_code(b->ctx, pc) && (!b->from->is_code(b->ctx, pc - 1) || (code_before(b, pc, &code) && !unspool_after_call(code)));
}

/* Leaves a place to which a call has led, and whose return address is off above the stack pointer. */
static int step_call(struct us_blind *b, uint64_t off)
{
	uint64_t at, cfa, ra, code;

	if (!return_address(b, off, &ra, &at, &cfa) || !code_before(b, ra, &code) || !unspool_after_call(code))
		return US_NO_RULE;
	b->s->known &= US_SAVED;
	return called_from(b, US_BY_CALL, at, ra, cfa);
}

/*
 * Whether an address is in a gap of the rules that begins with a system call: *behind says how far before. C libraries end them there where
 * a thread is made.
 */
static int after_syscall(struct us_blind *b, uint64_t pc, uint32_t *behind)
{
	uint8_t code[UNSPOOL_MAX_AFTER_SYSCALL + sizeof system_call];

	if (!b->from->code(b->ctx, pc - UNSPOOL_MAX_AFTER_SYSCALL, code, sizeof code))
		return 0;
	for (uint32_t n = 0; n <= UNSPOOL_MAX_AFTER_SYSCALL; n++)
		if (!memcmp(code + UNSPOOL_MAX_AFTER_SYSCALL - n, system_call, sizeof system_call) && !b->from->has_rule(b->ctx, pc - n) &&
		    b->from->has_rule(b->ctx, pc - n - 1)) {
			*behind = n;
			return 1;
		}
	return 0;
}

/* Leaves a frame whose function is about to begin or to end, as its code says. */
static int step_edge(struct us_blind *b)
{
	uint64_t pc = b->s->pc;
	struct unspool_edge e = {.n = UNSPOOL_EDGE_BYTES};

	while (e.n > 0 && !b->from->code(b->ctx, pc, e.code, e.n)) /* fewer where the code ends */
		e.n -= MACHINE(CALL_PUSH) ? 1 : 4; /* with a link register, an instruction has four bytes */
	if (!b->from->code(b->ctx, pc - 1, &e.last, 1))
		e.last = 0;
#ifdef __aarch64__
	if (!code_before(b, pc, &e.before))
		e.before = 0;
#endif
	if (e.n == 0 || !unspool_edge(&e) || step_call(b, (uint64_t)(int64_t)e.off) != US_OK)
		return US_NO_RULE;
	if (e.fp >= 0) {
		b->s->known |= US_BIT(US_FP);
		b->s->in_mem |= US_BIT(US_FP);
		b->s->in_reg &= ~(US_BIT(US_FP));
		b->s->val[US_FP] = b->sp + (uint64_t)(int64_t)e.fp;
	}
	return US_OK;
}

/* ---- The frame pointer ---- */

/* Follows the frame pointer. US_LOST_REGISTER says that it is the caller's. */
static int step_pointer(struct us_blind *b)
{
	struct us_state *s = b->s;
	uint64_t fp, up, ra, code, top;

	if (us_get_with(s, US_FP, b->from->load, b->from->reg, b->ctx, &fp) != US_OK || fp < b->sp || fp - b->sp > UNSPOOL_MAX_STACK || fp & 7)
		return US_NO_RULE;
	if (!load(b, fp, &up) || !load(b, fp + MACHINE(RECORD_RA), &ra))
		return US_UNREADABLE;
	ra = without_signature(b, ra);
	if (!b->from->is_code(b->ctx, ra - 1))
		return US_NO_RULE;
	if (b->exact && code_before(b, ra, &code) && b->from->load(b->ctx, b->sp, &top) && unspool_leaf(s->pc, ra, code, top))
		return US_LOST_REGISTER;
	s->known = s->in_mem = US_BIT(US_FP);
	s->in_reg = 0;
	s->val[US_FP] = fp;
	return called_from(b, US_BY_POINTER, fp + MACHINE(RECORD_RA), ra, fp + MACHINE(RECORD_SIZE));
}

/* ---- All of them ---- */

int us_step_blind(struct us_blind *b, uint64_t at)
{
	uint32_t behind;
	uint8_t byte;
	uint64_t v;
	int o;

	if (!b->from->is_code(b->ctx, at)) /* called through a bad pointer */
		return b->exact ? step_call(b, 0) : US_NO_RULE;
	o = step_stub(b, at);
	if (o != US_NO_RULE)
		return o;
	if (us_is_sigreturn(b))
		return step_sigreturn(b);
	if (!b->exact)
		return step_pointer(b);
	if (!b->from->code(b->ctx, at, &byte, 1)) {
		o = step_call(b, 0);
		return o == US_OK ? o : step_pointer(b);
	}
	if (after_syscall(b, at, &behind)) {
		/* Behind the system call, a new thread has 0, and no caller. */
		if (behind > 0 && us_get_with(b->s, US_RESULT, b->from->load, b->from->reg, b->ctx, &v) == US_OK && v == 0)
			return US_OUTERMOST;
		return step_call(b, 0);
	}
	if (step_edge(b) == US_OK)
		return US_OK;
	o = step_pointer(b);
	/* A link register has another return address, once the function has called. */
	if ((o == US_LOST_REGISTER || (o != US_OK && MACHINE(CALL_PUSH) > 0)) && step_call(b, 0) == US_OK)
		return US_OK;
	if (o == US_LOST_REGISTER) { /* no call, though */
		b->exact = 0;
		o = step_pointer(b);
	}
	return o;
}
