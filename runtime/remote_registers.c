/* SPDX-License-Identifier: Apache-2.0 */
/* remote_registers.c: a cursor's registers, to libunwind's interface: what they are, where they were saved, and how they are changed. */
#include "apply.h"
#include "remote.h"

#include <string.h>

static int error_of(int outcome)
{
	return outcome == US_OK ? 0 : outcome == US_UNREADABLE ? -UNW_EINVAL : -UNW_EBADREG;
}

/* A register by DWARF's number: 30 is x30. */
US_INLINE int register_of(struct cursor *c, int n, unw_word_t *to)
{
	if (us_likely(n == UNW_PC)) {
		*to = c->s.pc;
		return 0;
	}
	if (n == US_SP || n == UNW_CFA) {
		*to = c->cfa;
		return 0;
	}
	if (n < 0 || n >= UNW_NUM_REGS)
		return -UNW_EBADREG;
	return error_of(us_get_with(&c->s, (unsigned)n, load, reg, c, to));
}

US_API int U(get_reg)(unw_cursor_t *cur, int n, unw_word_t *to)
{
	return register_of(cursor(cur), n == UNW_IP ? UNW_PC : n, to);
}

/* The address where the program counter was read; 0 if it is not known. */
static uint64_t pc_at(struct cursor *c)
{
	uint64_t v;

	if (c->ra_kind == RA_MEM || (c->ra_kind == RA_MAYBE && load(c, c->ra_at, &v) && v == c->s.pc))
		return c->ra_at;
	return 0;
}

US_API int U(set_reg)(unw_cursor_t *cur, int n, unw_word_t v)
{
	struct cursor *c = cursor(cur);
	unw_addr_space_t as = c->as;
	struct us_state *s = &c->s;
	uint64_t at;
	int pc = n == UNW_PC || n == UNW_IP;

	if (n == US_SP || n == UNW_CFA)
		return -UNW_EREADONLYREG;
	if (n >= 0 && n < UNW_NUM_EH_REGS) {
		/* rax and rdx, or x0 to x3: what an exception handler is given by resume. The place where they were saved stays as it is. */
		set_value(s, (unsigned)n, v);
		return 0;
	}
	if (n < 0 || n >= UNW_NUM_REGS || !(s->known >> n & 1 || (pc && !US_RA_IS_PC)))
		return -UNW_EBADREG;
	if (pc) {
		at = pc_at(c);
		s->pc = v;
		set_value(s, US_PC, v);
		if (at)
			return as->acc.access_mem(as, us_untagged(at), &v, 1, c->arg);
		return c->ra_kind == RA_REG ? as->acc.access_reg(as, US_PC, &v, 1, c->arg) : 0;
	}
	if (s->in_mem >> n & 1)
		return as->acc.access_mem(as, us_untagged(s->val[n]), &v, 1, c->arg);
	if (s->in_reg >> n & 1)
		return as->acc.access_reg(as, (int)s->val[n], &v, 1, c->arg);
	s->val[n] = v;
	return -UNW_EREADONLYREG;
}

static void in_memory(unw_save_loc_t *to, uint64_t addr)
{
	to->type = UNW_SLT_MEMORY;
	to->u.addr = addr;
}

static void in_register(unw_save_loc_t *to, uint64_t n)
{
	to->type = UNW_SLT_REG;
	to->u.regnum = (int)n;
}

/* Of the program counter, the stack pointer, and the registers that a call preserves. */
US_API int U(get_save_loc)(unw_cursor_t *cur, int n, unw_save_loc_t *to)
{
	struct cursor *c = cursor(cur);
	struct us_state *s = &c->s;
	uint64_t at;

	memset(to, 0, sizeof *to);
	if (n == UNW_PC) {
		at = pc_at(c);
		if (at)
			in_memory(to, at);
		else if (c->ra_kind == RA_REG)
			in_register(to, US_PC);
	} else if (n == US_SP) {
		if (c->sp_kind == SP_REG)
			in_register(to, c->sp);
		else if (c->sp_kind == SP_MEM)
			in_memory(to, c->sp);
	} else if (n >= 0 && n < UNW_NUM_REGS && US_SAVED & s->known & US_BIT(n)) {
		if (s->in_mem >> n & 1)
			in_memory(to, s->val[n]);
		else if (s->in_reg >> n & 1)
			in_register(to, s->val[n]);
	}
	return 0;
}

US_API int U(get_fpreg)(unw_cursor_t *c, int n, unw_fpreg_t *to)
{
	(void)c;
	(void)n;
	(void)to;
	return -UNW_EBADREG;
}

US_API int U(set_fpreg)(unw_cursor_t *c, int n, unw_fpreg_t v)
{
	(void)c;
	(void)n;
	(void)v;
	return -UNW_EBADREG;
}

uint64_t us_signal_context(const unw_cursor_t *cur)
{
	const struct cursor *c = (const struct cursor *)(const void *)cur;

	return c->sig;
}

/* Writes the frame's registers where the accessors put them, and lets them go on there. */
US_API int U(resume)(unw_cursor_t *cur)
{
	struct cursor *c = cursor(cur);
	unw_addr_space_t as = c->as;
	uint64_t v[UNW_NUM_REGS];
	uint64_t got = 0;

	if (!as->acc.resume)
		return -UNW_EINVAL;
	for (unsigned i = 0; i < UNW_NUM_REGS; i++)
		if (register_of(c, (int)i, &v[i]) == 0)
			got |= (uint64_t)1 << i;
	for (unsigned i = 0; i < UNW_NUM_REGS; i++)
		if (got >> i & 1)
			as->acc.access_reg(as, (int)i, &v[i], 1, c->arg);
	return as->acc.resume(as, cur, c->arg);
}
