/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * stacks.h: walks that go on to another stack, and registers that lie below the stack pointer: unwind/stacks.go. Part of walk.h.
 */

/*
 * Whether the walk may go on from a frame whose caller's is at cfa to one at up, which is not right above: unwind.stacks.move.
 * What its program counter is, w->pc says.
 */
PART int moved(u64 cfa, u64 up)
{
	struct walk *w = walk_state();
	u64 been = 0;
	u32 i;

	if (!w)
		return 0;
	if (up <= cfa) {
		if (up >= w->low || up & 7 || w->n_moves >= MAX_MOVES)
			return 0;
		for (i = 0; i < MAX_MOVES; i++) { /* without a branch, too */
			u64 d = (w->moves[i].pc ^ w->pc) | (w->moves[i].cfa ^ up), left = (u64)i - w->n_moves;

			__asm__ volatile("" : "+r"(d), "+r"(left));
			been |= (((d | -d) >> 63) ^ 1) & left >> 63;
		}
		if (been)
			return 0;
		i = BOUNDED(w->n_moves, MAX_MOVES);
		w->moves[i].pc = w->pc;
		w->moves[i].cfa = up;
		w->n_moves++;
	}
	w->low = up;
	return 1;
}

/* Takes back what Go has pushed before it made the interrupted code call a function: unwind.Walker.popLink. */
PART int pop_link(void)
{
	struct walk *w = walk_state();

	if (!w)
		return 0;
	w->val[SLOT_RA] = w->cfa;
	w->val[SLOT_SP] = w->sp = w->cfa += MACHINE(GO_PUSH);
	w->known |= BIT(SLOT_RA) | BIT(SLOT_SP);
	w->in_mem = (w->in_mem | BIT(SLOT_RA)) & ~BIT(SLOT_SP);
	return 0;
}

/* Whether a saved register is not to be had from an address below the stack pointer: unwind.gone. */
static __always_inline int gone(struct walk *w, u64 sp, u64 at)
{
	u64 v;

	return sp - at > RED_ZONE || !load(w, at, &v);
}

/* Keeps the registers of a frame that has called nobody, before its rule is applied. */
PART int keep_registers(void)
{
	struct walk *w = walk_state();
	u32 i;

	if (!w)
		return 0;
	for (i = 0; i < SLOTS; i++)
		w->old_val[i] = w->val[i];
	w->old_known = w->known;
	w->old_in_mem = w->in_mem;
	return 0;
}

/*
 * Once the rule is applied: a register whose place is below the frame's stack pointer, and is not the function's any more, has the
 * value that it had. unwind.Walker.apply says why.
 */
PART int restore_registers(u64 sp)
{
	struct walk *w = walk_state();
	slots set;
	u32 i, j;

	if (!w)
		return 0;
	set = w->known & w->in_mem & SAVED_SLOTS;
	for (i = 0; i < SLOTS; i++) {
		u64 at = w->val[i], same = 0;
		slots only = BIT(i);

		if (!(set & only) || at >= sp)
			continue;
		/* Where a signal has put a register, which the rule copies. Without a branch: the verifier would follow each. */
		for (j = 0; j < SLOTS; j++) {
			u64 d = w->old_val[j] ^ at;

			same |= (((d | -d) >> 63) ^ 1) & ((w->old_known & w->old_in_mem) >> j);
		}
		if (same & 1 || !gone(w, sp, at))
			continue;
		w->known = (w->known & ~only) | (w->old_known & only);
		w->in_mem = (w->in_mem & ~only) | (w->old_in_mem & only);
		w->val[i] = w->old_val[i];
	}
	return 0;
}
