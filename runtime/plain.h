/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * plain.h: applies a rule of fixed size, as nearly all are (docs/TABLE.md; docs/SEMANTICS.md, section 4): rows.Step, for the drop-ins and for
 * the kernel's program. emit/compact/gen copies the function into unspool_table.h, which stands alone. Other rules are step.h's.
 *
 * It is included inside no function, once for each that applies rules. Who includes it has unspool_table.h's constants, and defines
 *
 *	PLAIN_STEP			the function's head. Its s points to the frame's state, with members pc, cfa, known, in_mem, val and
 *					fault, which becomes the caller's; after anything but UNSPOOL_OK it has not changed but for fault
 *	PLAIN_SET			the type of a set of slots
 *	PLAIN_KIND, PLAIN_REG, PLAIN_FLAGS, PLAIN_AUX, PLAIN_OFF	of the rule; the last one is an int32_t
 *	PLAIN_BASE			what the saves of kind REG are relative to, from the CFA
 *	PLAIN_MASK, PLAIN_MASKS, PLAIN_SAVE(i)	which saves it has, the type of that, and what one of them says
 *	PLAIN_SCALE			the unit of saves, in bytes
 *	PLAIN_RA_SAVE			the number of the return address's
 *	PLAIN_LOCATE(mask, base, set)	for each save in mask: its register is at PLAIN_AT(base, i), and in set
 *	PLAIN_WIDE			what to do with a rule of kind wide, as an expression
 *	PLAIN_KEEP			the registers that a call leaves in place
 *	PLAIN_SP, PLAIN_RA		the slots of the stack pointer and of the return address
 *	PLAIN_RA_IS_PC			whether the latter is the program counter's own
 *	PLAIN_GET(slot, to)		reads a register of the frame: UNSPOOL_OK, or why not
 *	PLAIN_LOAD(addr, to)		reads eight bytes of memory: not 0; or 0
 *	PLAIN_PLACED(set)		registers whose place is no longer a snapshot's register
 *	PLAIN_UNSIGNED(ra)		a signed return address without its signature; who does not define it keeps UNSPOOL_ADDRESS
 *
 * All are forgotten at the end.
 */

#ifdef __GNUC__
#define PLAIN_RARE(x) __builtin_expect(!!(x), 0)
#else
#define PLAIN_RARE(x) (x)
#endif
#ifndef PLAIN_UNSIGNED
#define PLAIN_UNSIGNED(ra) ((ra) & UNSPOOL_ADDRESS)
#endif
#define PLAIN_BIT(slot) ((PLAIN_SET)1 << (slot))
#define PLAIN_AT(base, i) ((base) + (uint64_t)((int64_t)(int8_t)(PLAIN_SAVE(i)) * PLAIN_SCALE))

PLAIN_STEP
{
	uint32_t kind = PLAIN_KIND, flags = PLAIN_FLAGS;
	PLAIN_MASKS mask;
	uint64_t cfa, base, ra;
	PLAIN_SET set = 0, keep, own;
	int o;

	if (PLAIN_RARE(kind != UNSPOOL_KIND_REG)) {
		if (kind == UNSPOOL_KIND_WIDE)
			return PLAIN_WIDE;
		if (kind != UNSPOOL_KIND_PLT)
			return kind == UNSPOOL_KIND_NONE && flags & UNSPOOL_OUTERMOST_FLAG ? UNSPOOL_OUTERMOST : UNSPOOL_NO_RULE;
	}
	o = PLAIN_GET(PLAIN_REG, &cfa);
	if (PLAIN_RARE(o != UNSPOOL_OK))
		return o;
	cfa += (uint64_t)(int64_t)PLAIN_OFF;
	if (PLAIN_RARE(kind == UNSPOOL_KIND_PLT)) {
		if ((s->pc & 15) >= PLAIN_AUX)
			cfa += 8;
		base = cfa;
	} else {
		base = cfa + (uint64_t)(int64_t)(PLAIN_BASE);
	}
	if (PLAIN_RARE(flags & UNSPOOL_OUTERMOST_FLAG))
		return UNSPOOL_OUTERMOST;
	mask = PLAIN_MASK;
	if (PLAIN_RARE(!(mask >> PLAIN_RA_SAVE & 1))) {
		o = PLAIN_GET(PLAIN_RA, &ra);
		if (o != UNSPOOL_OK)
			return o;
	} else if (PLAIN_RARE(!PLAIN_LOAD(PLAIN_AT(base, PLAIN_RA_SAVE), &ra))) {
		s->fault = PLAIN_AT(base, PLAIN_RA_SAVE);
		return UNSPOOL_UNREADABLE;
	}

	/* Nothing can fail any more. */
	keep = PLAIN_KEEP;
	if (PLAIN_RARE(flags & (UNSPOOL_SIGNAL | UNSPOOL_PARTIAL | UNSPOOL_RA_SIGNED | UNSPOOL_RA_SIGN_PC))) {
		if (flags & UNSPOOL_SIGNAL)
			keep = ~(PLAIN_SET)0;
		if (flags & UNSPOOL_PARTIAL)
			keep = PLAIN_RA_IS_PC ? 0 : PLAIN_BIT(PLAIN_RA);
		if (flags & (UNSPOOL_RA_SIGNED | UNSPOOL_RA_SIGN_PC))
			ra = PLAIN_UNSIGNED(ra);
	}
	own = PLAIN_BIT(PLAIN_SP);
	if (PLAIN_RA_IS_PC) {
		own |= PLAIN_BIT(PLAIN_RA);
		mask &= ((PLAIN_MASKS)1 << PLAIN_RA_SAVE) - 1;
	}
	PLAIN_LOCATE(mask, base, set);
	s->known = (s->known & keep) | set | own;
	s->in_mem = (s->in_mem | set) & ~own;
	PLAIN_PLACED(set | own);
	s->val[PLAIN_SP] = cfa;
	if (PLAIN_RA_IS_PC)
		s->val[PLAIN_RA] = ra;
	s->pc = ra;
	s->cfa = cfa;
	return UNSPOOL_OK;
}

#undef PLAIN_RARE
#undef PLAIN_BIT
#undef PLAIN_AT
#undef PLAIN_STEP
#undef PLAIN_SET
#undef PLAIN_KIND
#undef PLAIN_REG
#undef PLAIN_FLAGS
#undef PLAIN_AUX
#undef PLAIN_OFF
#undef PLAIN_BASE
#undef PLAIN_MASK
#undef PLAIN_MASKS
#undef PLAIN_SCALE
#undef PLAIN_SAVE
#undef PLAIN_RA_SAVE
#undef PLAIN_LOCATE
#undef PLAIN_WIDE
#undef PLAIN_KEEP
#undef PLAIN_SP
#undef PLAIN_RA
#undef PLAIN_RA_IS_PC
#undef PLAIN_GET
#undef PLAIN_LOAD
#undef PLAIN_PLACED
#undef PLAIN_UNSIGNED
