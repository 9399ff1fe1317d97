/* SPDX-License-Identifier: Apache-2.0 */
/*
 * edge.h: what code says of the return address where a function begins or ends, and of calls: Edge and AfterCall of package arch. In the drop-ins and in the
 * kernel's program, so loops have bounds that the verifier sees, what it should not follow from turn to turn is in memory, and functions
 * are small.
 */
#ifndef UNSPOOL_EDGE_H
#define UNSPOOL_EDGE_H

#ifndef UNSPOOL_NO_STDINT
#include <stdint.h>
#endif
#include "machine.h"

/* How the functions below get what they look at. */
#ifndef EDGE_PART
#define EDGE_PART static
#define EDGE_TAKE struct unspool_edge *e
#define EDGE_PASS e
#define EDGE_SELF
#endif

/* How much is looked at, and a power of two that has room for it; on x86-64, also for the end of its last instruction. */
enum { UNSPOOL_EDGE_BYTES = MACHINE(EDGE_BYTES), UNSPOOL_EDGE_ROOM = MACHINE(EDGE_BYTES) * (MACHINE_ELF == UNSPOOL_X86_64_ELF ? 2 : 1) };
_Static_assert((UNSPOOL_EDGE_ROOM & (UNSPOOL_EDGE_ROOM - 1)) == 0, "indices are masked");

struct unspool_edge {
	uint64_t before;                 /* the code before the place; AArch64. 0 where it is not known */
	uint8_t code[UNSPOOL_EDGE_ROOM]; /* from the place on; zeros behind what is known */
	uint8_t last;                    /* the byte before the place; x86-64 */
	uint32_t n;                      /* how much is known: UNSPOOL_EDGE_BYTES at most */
	uint32_t at;                     /* how much has been looked at */
	int32_t off;                     /* where the return address is, from the stack pointer */
	int32_t fp;                      /* where the caller's frame pointer is, from there; less than 0: in its register */
};

#if MACHINE_ELF == UNSPOOL_X86_64_ELF

/* A byte. The index is masked in a way that compilers cannot see through. */
static inline __attribute__((always_inline)) uint8_t unspool_edge_byte(const struct unspool_edge *e, uint32_t i)
{
	__asm__("" : "+r"(i));
	return e->code[i & (UNSPOOL_EDGE_ROOM - 1)];
}

/* Looks at the next instruction. Returns 1 at a return, 0 where there may be one further on, and less than 0 where nothing is known. */
EDGE_PART int unspool_edge_next(EDGE_TAKE)
{
	EDGE_SELF
	uint32_t at, size;
	uint8_t a, b, c, d;

	if (!e)
		return -1;
	at = e->at;
	if (at >= e->n)
		return -1;
	a = unspool_edge_byte(e, at);
	b = unspool_edge_byte(e, at + 1);
	c = unspool_edge_byte(e, at + 2);
	d = unspool_edge_byte(e, at + 3);
	if (a == 0xc3 || a == 0xc2) { /* ret */
		return 1;
	} else if ((a == 0xf3 || a == 0xf2) && b == 0xc3) {
		size = 2;
		return at + size <= e->n ? 1 : -1;
	} else if (a == 0x5d && e->off >= 0) { /* pop %rbp */
		size = 1;
		e->fp = e->off;
		e->off += 8;
	} else if (a == 0x58 || a == 0x59) { /* pop %rax, pop %rcx */
		size = 1;
		e->off += 8;
	} else if (a == 0x50) { /* push %rax */
		size = 1;
		e->off -= 8;
	} else if (a == 0x48 && b == 0x83 && c == 0xc4) { /* add $n,%rsp */
		size = 4;
		e->off += (int8_t)d;
	} else if (a == 0x48 && b == 0x83 && c == 0xec) { /* sub $n,%rsp */
		size = 4;
		e->off -= (int8_t)d;
	} else if (a == 0x48 && ((b == 0x8b && c == 0x05) || (b == 0xc7 && c == 0xc0))) { /* mov x(%rip),%rax; mov $x,%rax */
		size = 7;
	} else if (a == 0x48 && b == 0x85 && c == 0xc0) { /* test %rax,%rax */
		size = 3;
	} else if (a == 0x74 && b == 0x02 && c == 0xff && d == 0xd0) { /* je .+4; call *%rax */
		size = 4;
	} else if (a == 0xff && b == 0xd0) { /* call *%rax */
		size = 2;
	} else if (a == 0xe8) { /* call */
		size = 5;
	} else {
		return -1;
	}
	e->at = at + size;
	return 0;
}

/* Whether the code in e is an edge: off and fp say where things are. */
EDGE_PART int unspool_edge(EDGE_TAKE)
{
	EDGE_SELF
	uint32_t i;
	uint8_t a, b;
	int o = 0;

	if (!e)
		return 0;
	e->at = 0;
	e->off = 0;
	e->fp = -1;
	if (e->n >= 4 && e->code[0] == 0xf3 && e->code[1] == 0x0f && e->code[2] == 0x1e && e->code[3] == 0xfa) /* endbr64 */
		e->at = 4;
	if (e->at >= e->n)
		return 0;
	a = unspool_edge_byte(e, e->at);
	b = unspool_edge_byte(e, e->at + 1);
	if (a == 0x55) /* push %rbp */
		return 1;
	if (e->last == 0x55) {
		for (i = 0; i < 8; i++) {
			if (i + 3 > e->n)
				break;
			/* mov %rsp,%rbp */
			if (e->code[i] == 0x48 && ((e->code[i + 1] == 0x89 && e->code[i + 2] == 0xe5) || (e->code[i + 1] == 0x8b && e->code[i + 2] == 0xec))) {
				e->off = 8;
				e->fp = 0;
				return 1;
			}
		}
	}
	/* A jump behind pop %rbp or leave. */
	if ((e->last == 0x5d || e->last == 0xc9) && (a == 0xe9 || a == 0xeb || (a == 0xff && e->at + 1 < e->n && (b >> 3 & 7) == 4)))
		return 1;
	for (i = 0; i < UNSPOOL_EDGE_BYTES && o == 0; i++)
		o = unspool_edge_next(EDGE_PASS);
	return o > 0 && e->off >= 0 && e->fp < e->off;
}

/*
 * Whether the function at pc keeps no frame of its own, so that the frame pointer is its caller's: unwind.Walker.leaf. ra is where the frame
 * pointer leads to, code the eight bytes before, and top the word at the stack pointer.
 */
static inline __attribute__((always_inline)) int unspool_leaf(uint64_t pc, uint64_t ra, uint64_t code, uint64_t top)
{
	uint64_t owner = ra + (uint64_t)(int64_t)(int32_t)(code >> 32);

	return (uint8_t)(code >> 24) == 0xe8 && owner <= top && top - owner <= UNSPOOL_MAX_FUNCTION && pc - owner > top - owner;
}

/*
 * Whether code, the eight bytes before an address, ends with a call, as far as they tell: CALL rel32 (e8), or CALL r/m64 (ff /2), whose
 * length depends on its operand.
 */
static inline __attribute__((always_inline)) int unspool_after_call(uint64_t code)
{
	uint32_t n;

	if ((uint8_t)(code >> 24) == 0xe8)
		return 1;
	for (n = 2; n <= 7; n++) {
		uint64_t c = code >> 8 * (8 - n);
		uint32_t modrm = (uint8_t)(c >> 8), mod = modrm >> 6, rm = modrm & 7, size = 2;

		if ((uint8_t)c != 0xff || (modrm >> 3 & 7) != 2)
			continue;
		if (mod != 3 && rm == 4) {
			size++;
			if (n > 2 && mod == 0 && ((c >> 16) & 7) == 5)
				size += 4;
		}
		if (mod == 1)
			size++;
		else if (mod == 2 || (mod == 0 && rm == 5))
			size += 4;
		if (size == n)
			return 1;
	}
	return 0;
}

#elif MACHINE_ELF == UNSPOOL_AARCH64_ELF

/* Instructions of functions with frame records (Arm ARM, section C6.2), without their numbers. */
#define UNSPOOL_STP 0xa9007bfd      /* stp x29,x30,[sp,#n] */
#define UNSPOOL_STP_PRE 0xa9807bfd  /* stp x29,x30,[sp,#n]! */
#define UNSPOOL_LDP_POST 0xa8c07bfd /* ldp x29,x30,[sp],#n */
#define UNSPOOL_PAIR(w) ((w) & 0xffc07fff)
#define UNSPOOL_IS_SUB_SP(w) (((w) & 0xff8003ff) == 0xd10003ff) /* sub sp,sp,#n */
#define UNSPOOL_SUB_SP(w) (((w) >> 10 & 0xfff) << ((w) >> 22 & 1 ? 12 : 0))

/* Whether an instruction leaves the link register and the stack pointer alone, and goes on to the next, or may: arm64Passes of package arch. */
static inline __attribute__((always_inline)) int unspool_passes(uint32_t w)
{
	uint32_t to = w & 31, base = w >> 5 & 31, class = w >> 25 & 15;

	if ((class & 14) == 10) { /* branches, exceptions, system */
		if ((w & 0xff000010) == 0x54000000 || (w & 0x7c000000) == 0x34000000 || w == 0xd4000001) /* b.cond; cbz, cbnz, tbz, tbnz; svc #0 */
			return 1;
		if (w == 0xd503201f || w == 0xd503203f || (w & 0xffffff3f) == 0xd503241f) /* nop, yield, bti */
			return 1;
		if ((w & 0xffffffbf) == 0xd50323bf) /* autiasp, autibsp: until then, the return address is signed */
			return 1;
		return to != 30 && ((w & 0xfffff01f) == 0xd503301f || (w & 0xfff00000) == 0xd5300000); /* barriers; mrs */
	}
	if (to == 30)
		return 0;
	if ((class & 14) == 8) /* immediates: add, sub; logical */
		return to != 31 || !((w & 0x3f000000) == 0x11000000 || ((w & 0x1f800000) == 0x12000000 && (w & 0x60000000) != 0x60000000));
	if ((class & 7) == 5) /* registers: add, sub of an extended one */
		return to != 31 || (w & 0x3fe00000) != 0x0b200000;
	if ((class & 5) == 4) { /* loads, stores */
		if ((w & 0x3b000000) == 0x39000000 || (w & 0x3b000000) == 0x18000000) /* an offset without a sign; from here */
			return 1;
		if ((w & 0x3b000000) == 0x38000000) /* from sp, and with a change of the base, other forms than the plain one */
			return base < 30 || (w & 0x00200c00) == 0;
		if ((w & 0x3a000000) == 0x28000000) /* pairs, and with a change of the base */
			return (w >> 10 & 31) != 30 && (base < 30 || (w & 0x00800000) == 0);
		return 0;
	}
	return (class & 7) == 7; /* vectors */
}

/* Looks at the next instruction. Returns 1 at a return, 0 where there may be one further on, and less than 0 where nothing is known. */
EDGE_PART int unspool_edge_next(EDGE_TAKE)
{
	EDGE_SELF
	uint32_t at, w;

	if (!e)
		return -1;
	at = e->at;
	if (at + 4 > e->n)
		return -1;
	__asm__("" : "+r"(at));
	w = *(const uint32_t *)(e->code + (at & (UNSPOOL_EDGE_ROOM - 4)));
	e->at = at + 4;
	return w == 0xd65f03c0 ? 1 : unspool_passes(w) ? 0 : -1;
}

/* Whether a function begins with w and what comes next: paciasp, pacibsp; the record, first or below other things. */
static inline __attribute__((always_inline)) int unspool_opens(uint32_t w, uint32_t next)
{
	return (w & 0xffffffbf) == 0xd503233f || UNSPOOL_PAIR(w) == UNSPOOL_STP_PRE || (UNSPOOL_IS_SUB_SP(w) && UNSPOOL_PAIR(next) == UNSPOOL_STP);
}

/* Whether the code in e is an edge: off says where the caller's stack pointer is. */
EDGE_PART int unspool_edge(EDGE_TAKE)
{
	EDGE_SELF
	uint32_t first = 0, second = 0, third = 0, last, prior, i;
	int o = 0;

	if (!e)
		return 0;
	e->at = 0;
	e->off = 0;
	e->fp = -1;
	if (e->n >= 4)
		first = *(const uint32_t *)e->code;
	if (e->n >= 8)
		second = *(const uint32_t *)(e->code + 4);
	if (e->n >= 12)
		third = *(const uint32_t *)(e->code + 8);
	last = (uint32_t)(e->before >> 32);
	prior = (uint32_t)e->before;
	if (unspool_opens(first, second) ||
	    ((first == 0xd503201f || (first & 0xffffff3f) == 0xd503241f) && unspool_opens(second, third)) || /* nop, as _init has it; bti */
	    (first & 0xffffffbf) == 0xd50323bf || (first & 0xfffffbff) == 0xd65f0bff ||                      /* autiasp, autibsp; retaa, retab */
	    (UNSPOOL_PAIR(last) == UNSPOOL_LDP_POST && (first >> 26 == 5 || (first & 0xfffffc1f) == 0xd61f0000))) /* b, br */
		return 1;
	if (first == 0x910003fd && UNSPOOL_PAIR(last) == UNSPOOL_STP_PRE) { /* mov x29,sp */
		e->off = ((int32_t)(last << 10) >> 25) * -8;
		return e->off > 0;
	}
	if (UNSPOOL_PAIR(first) == UNSPOOL_STP && UNSPOOL_IS_SUB_SP(last)) {
		e->off = (int32_t)UNSPOOL_SUB_SP(last);
		return 1;
	}
	if ((first & 0xffc003ff) == 0x910003fd && UNSPOOL_PAIR(last) == UNSPOOL_STP && UNSPOOL_IS_SUB_SP(prior)) { /* add x29,sp,#n */
		e->off = (int32_t)UNSPOOL_SUB_SP(prior);
		return 1;
	}
	for (i = 0; i < UNSPOOL_EDGE_BYTES / 4 && o == 0; i++)
		o = unspool_edge_next(EDGE_PASS);
	return o > 0;
}

/* A call does not tell which function it calls. */
static inline __attribute__((always_inline)) int unspool_leaf(uint64_t pc, uint64_t ra, uint64_t code, uint64_t top)
{
	(void)pc, (void)ra, (void)code, (void)top;
	return 0;
}

/* Whether code, the eight bytes before an address, ends with a call: BL, BLR, and the forms of BLR that authenticate (section C6.2). */
static inline __attribute__((always_inline)) int unspool_after_call(uint64_t code)
{
	uint32_t w = (uint32_t)(code >> 32);

	return w >> 26 == 0x25 || (w & 0xfffffc1f) == 0xd63f0000 || (w & 0xfefff800) == 0xd63f0800;
}

#endif

#endif /* UNSPOOL_EDGE_H */
