/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * places.h: ways out of code that has no rule, and what code says of an address (docs/SEMANTICS.md, section 6). Part of walk.h.
 */

/* The caller has the stack pointer cfa, and goes on at ra. */
static __always_inline void called_from(struct walk *w, u64 ra, u64 cfa)
{
	w->pc = ra;
	w->cfa = cfa;
	w->known |= 1u << SLOT_RSP | 1u << SLOT_RA;
	w->in_mem &= ~(1u << SLOT_RSP | 1u << SLOT_RA);
	w->val[SLOT_RSP] = cfa;
	w->val[SLOT_RA] = ra;
}

/*
 * How many bytes a stub has pushed, at bytes behind its beginning, where its code is: arch.Stub. entered lie there from the start. A push's
 * first byte tells it; code that is not at hand has the first of them.
 */
#define STUB_PUSH(from, size, bytes, byte) \
	if (!known && (unread || (u8)(code >> 8 * (from)) == (byte))) { \
		known = 1; \
		if (at >= (from) + (size)) \
			pushed += (bytes); \
	}

/* Leaves a stub of a procedure linkage table, at bytes behind the table's beginning. */
PART int step_plt(u64 at, int lazy)
{
	struct walk *w = walk_state();
	u64 pushed = 0, sp, ra, code = 0, stub;
	int o, known = 0, unread;

	if (!w)
		return NO_RULE;
	if (lazy) {
		stub = w->range.lo + at;
		if (at >= UNSPOOL_X86_64_PLT_FIRST_SIZE)
			at = (at - UNSPOOL_X86_64_PLT_FIRST_SIZE) % UNSPOOL_X86_64_PLT_ENTRY_SIZE;
		stub -= at;
		unread = walk_read(&code, 8, stub) != 0;
		if (stub == w->range.lo) {
			pushed = UNSPOOL_X86_64_PLT_FIRST_ENTERED;
			UNSPOOL_X86_64_PLT_FIRST_PUSHES(STUB_PUSH)
		} else {
			pushed = UNSPOOL_X86_64_PLT_ENTRY_ENTERED;
			UNSPOOL_X86_64_PLT_ENTRY_PUSHES(STUB_PUSH)
		}
	}
	o = get(w, SLOT_RSP, &sp);
	if (o != OK)
		return o;
	if (!load(w, sp + pushed, &ra)) {
		w->fault = sp + pushed;
		return UNREADABLE;
	}
	w->known &= SAVED_SLOTS;
	called_from(w, ra, sp + pushed + 8);
	return OK;
}

/*
 * Reads the code before an address of the range at hand into w->code: eight bytes; or fewer, at its end, where the range begins. Returns
 * less than 0 where it cannot be read.
 */
PART int code_before(u64 pc)
{
	struct walk *w = walk_state();
	u64 n;

	if (!w)
		return -1;
	if (walk_read(&w->code, 8, pc - 8) == 0)
		return 0;
	n = pc - w->range.lo;
	w->code = 0;
	if (n >= 8)
		return -1;
	n &= 7;
	if (n == 0 || walk_read(&w->code, (u32)n, pc - n) != 0)
		return -1;
	w->code <<= 8 * (8 - n);
	return 0;
}

/*
 * Follows the frame pointer out of code without information. Returns NO_RULE where that would leave the stack or the code, UNREADABLE
 * where the stack is not at hand, and LOST_REGISTER where the frame pointer is the caller's.
 */
PART int step_fp(u32 alive)
{
	struct walk *w = walk_state();
	u64 fp, up, ra, top;

	if (!w)
		return NO_RULE;
	if (get(w, SLOT_RBP, &fp) != OK || fp < w->sp || fp - w->sp > MAX_UP || fp & 7)
		return NO_RULE;
	w->fault = fp;
	if (!load(w, fp, &up))
		return UNREADABLE;
	w->fault = fp + 8;
	if (!load(w, fp + 8, &ra))
		return UNREADABLE;
	if (!find_range(ra - 1))
		return NO_RULE;
	if (alive && code_before(ra) == 0 && load(w, w->sp, &top) && unspool_leaf(w->pc, ra, w->code, top))
		return LOST_REGISTER;
	w->known = 1u << SLOT_RBP;
	w->in_mem = 0;
	w->val[SLOT_RBP] = up;
	called_from(w, ra, fp + 16);
	return OK;
}

/* How many bytes the code at an address has that signal handlers return to: arch.Signal. 0: it is other code. Less than 0: it cannot be read. */
static __always_inline int sigreturn_at(u64 at)
{
	u64 code;

	if (walk_read(&code, 8, at) != 0)
		return -1;
	if ((code & 0xffffffffffffff) == 0x50f0000000fb8) /* mov $15,%eax; syscall */
		return 7;
	if (code != 0x0f0000000fc0c748) /* mov $15,%rax; syscall */
		return 0;
	return walk_read(&code, 8, at + 1) == 0 && code >> 56 == 0x05 ? 9 : 0;
}

/*
 * Whether a signal handler returns to the frame at hand, which is in code without information. What the kernel has left is looked
 * at first, because it is at hand: uc_flags, of which there are three, and uc_link, which is 0.
 */
PART int is_sigreturn(void)
{
	struct walk *w = walk_state();
	u64 sp, flags, link;
	int is;

	if (!w || get(w, SLOT_RSP, &sp) != OK || (load(w, sp, &flags) && flags > UNSPOOL_MAX_FLAGS) || (load(w, sp + 8, &link) && link))
		return 0;
	is = sigreturn_at(w->pc);
	if (is == 0 && w->exact) { /* at its last instruction, the stack pointer is the same */
		is = sigreturn_at(w->pc - 5);
		if (is >= 0 && is != 7) {
			is = sigreturn_at(w->pc - 7);
			if (is > 0 && is != 9)
				is = 0;
		}
	}
	if (is < 0)
		w->missing = 1; /* a page that may come */
	return is > 0;
}

/* Goes on to where a signal came, with the registers that the kernel has saved. */
PART int step_sigreturn(void)
{
	struct walk *w = walk_state();
	u64 sp, pc, up;
	int o;

	if (!w)
		return NO_RULE;
	o = get(w, SLOT_RSP, &sp);
	if (o != OK)
		return o;
	if (!load(w, sp + UNSPOOL_X86_64_FRAME_PC, &pc)) {
		w->fault = sp + UNSPOOL_X86_64_FRAME_PC;
		return UNREADABLE;
	}
	if (!load(w, sp + UNSPOOL_X86_64_FRAME_SP, &up)) {
		w->fault = sp + UNSPOOL_X86_64_FRAME_SP;
		return UNREADABLE;
	}
#define SAVED_AT(slot, offset) w->val[slot] = sp + (offset);
	UNSPOOL_X86_64_FRAME(SAVED_AT)
	w->known = w->in_mem = ALL_SLOTS;
	called_from(w, pc, up);
	return OK;
}

/*
 * Whether the return address w->pc is a place that no call has led to: unwind.Walker.place. MAYBE_PLACE where the code before it is not at
 * hand: its page can be one on which this process has run nothing yet.
 */
#define MAYBE_PLACE 2

PART int is_place(void)
{
	struct walk *w = walk_state();
	if (!w)
		return 0;
	if (!find_range(w->pc - 1))
		return find_range(w->pc);
	if (code_before(w->pc) != 0)
		return MAYBE_PLACE;
	return !unspool_after_call(w->code) && find_range(w->pc);
}

/* Leaves a place to which a call has led, and whose return address is off above the stack pointer. Returns 0 where no call has. */
PART int step_call(u64 off)
{
	struct walk *w = walk_state();
	u64 sp, ra;

	if (!w)
		return 0;
	if (get(w, SLOT_RSP, &sp) != OK)
		return 0;
	sp += off;
	if (!load(w, sp, &ra) || !find_range(ra - 1))
		return 0;
	if (code_before(ra) != 0) {
		w->missing = 1;
		return 0;
	}
	if (!unspool_after_call(w->code))
		return 0;
	w->known &= SAVED_SLOTS;
	called_from(w, ra, sp + 8);
	return 1;
}

/*
 * Leaves a place in code without rules, in a frame that has called nobody, whose instructions say where the return address is:
 * unwind.Walker.stepEdge.
 */
PART int step_edge(u64 at)
{
	struct walk *w = walk_state();
	struct unspool_edge *e;
	u64 sp;
	u32 n;

	if (!w)
		return 0;
	e = &w->edge;
	e->n = UNSPOOL_EDGE_BYTES;
	if (walk_read(e->code, UNSPOOL_EDGE_BYTES, at) != 0) {
		/* Up to the end of the page. */
		n = WINDOW - (u32)(at & (WINDOW - 1));
		for (u32 i = 0; i < UNSPOOL_EDGE_BYTES; i++)
			e->code[i] = 0;
		if (n > UNSPOOL_EDGE_BYTES || walk_read(e->code, n, at) != 0) {
			w->missing = 1; /* the code that comes to run next need not be in memory yet: a copy decides */
			return 0;
		}
		e->n = n;
	}
	if (walk_read(&e->last, 1, at - 1) != 0)
		e->last = 0;
	if (!unspool_edge() || get(w, SLOT_RSP, &sp) != OK || !step_call((u64)(s64)e->off))
		return 0;
	if (e->fp >= 0) {
		w->known |= 1u << SLOT_RBP;
		w->in_mem |= 1u << SLOT_RBP;
		w->val[SLOT_RBP] = sp + (u64)(s64)e->fp;
	}
	return 1;
}

/*
 * Whether an address lies in a gap of a table that begins with a system call, of which one that makes a thread is: unwind.Walker.afterSyscall. Returns
 * the distance plus one, or 0.
 */
PART int after_syscall(u64 at)
{
	struct walk *w = walk_state();
	u8 *code;
	u32 n;

	if (!w || !w->range.table)
		return 0;
	code = (u8 *)w->new_val; /* free between rules */
	if (walk_read(code, MAX_AFTER_SYSCALL + 2, at - MAX_AFTER_SYSCALL) != 0)
		return 0;
	for (n = 0; n <= MAX_AFTER_SYSCALL; n++) {
		u64 pc = at - n - w->range.bias;
		u32 k = BOUNDED(MAX_AFTER_SYSCALL - n, 32);

		if (code[k] != 0x0f || code[k + 1] != 0x05)
			continue;
		if (!find(w->range.table, pc) && find(w->range.table, pc - 1))
			return (int)n + 1;
	}
	return 0;
}
