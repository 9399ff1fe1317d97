/* SPDX-License-Identifier: (GPL-2.0-only OR Apache-2.0) */
/*
 * places.h: ways out of code that has no rule, and what code says of an address (docs/SEMANTICS.md, section 6). Part of walk.h.
 */

/* The caller has the stack pointer cfa, and goes on at ra. */
static __always_inline void called_from(struct walk *w, u64 ra, u64 cfa)
{
	w->pc = ra;
	w->cfa = cfa;
	w->known |= BIT(SLOT_SP) | BIT(SLOT_RA);
	w->in_mem &= ~(BIT(SLOT_SP) | BIT(SLOT_RA));
	w->val[SLOT_SP] = cfa;
	w->val[SLOT_RA] = ra;
}

/*
 * Finds the range of the call before a return address, which may be signed: unwind.unsigned. Returns 0 where there is none.
 */
static __always_inline int find_call(struct walk *w, u64 *ra)
{
	if (find_range(*ra - 1))
		return 1;
	if (RA_IN_REG) {
		*ra &= w->address;
		return find_range(*ra - 1);
	}
	return 0;
}

/* The return address that a call has just left: on the stack at sp, or in its register. Returns 0 where it cannot be read. */
static __always_inline int left_by_call(struct walk *w, u64 sp, u64 *ra)
{
	return RA_IN_REG ? get(w, SLOT_RA, ra) == OK : load(w, sp, ra);
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
		u64 last = w->range.hi - w->range.lo - MACHINE(PLT_LAST_SIZE), off = at;

		stub = w->range.lo + at;
		if (MACHINE(PLT_LAST_SIZE) && at >= last && walk_read(&code, 8, w->range.lo + last) == 0) {
			unread = 0;
			at -= last;
			MACHINE(PLT_LAST_PUSHES)(STUB_PUSH)
			at = off;
		}
		if (!known) { /* the first, or one of those between */
			if (at >= MACHINE(PLT_FIRST_SIZE))
				at = MACHINE(PLT_ENTRY_SIZE) ? (at - MACHINE(PLT_FIRST_SIZE)) % (MACHINE(PLT_ENTRY_SIZE) | !MACHINE(PLT_ENTRY_SIZE)) : 0;
			stub -= at;
			unread = walk_read(&code, 8, stub) != 0;
			if (stub == w->range.lo) {
				pushed = MACHINE(PLT_FIRST_ENTERED);
				MACHINE(PLT_FIRST_PUSHES)(STUB_PUSH)
			} else {
				pushed = MACHINE(PLT_ENTRY_ENTERED);
				MACHINE(PLT_ENTRY_PUSHES)(STUB_PUSH)
			}
		}
	}
	o = get(w, SLOT_SP, &sp);
	if (o != OK)
		return o;
	if (RA_IN_REG) {
		o = get(w, SLOT_RA, &ra);
		if (o != OK)
			return o;
	} else if (!load(w, sp + pushed, &ra)) {
		w->fault = sp + pushed;
		return UNREADABLE;
	}
	w->known &= SAVED_SLOTS;
	called_from(w, ra, sp + pushed + MACHINE(CALL_PUSH));
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
	if (get(w, SLOT_FP, &fp) != OK || fp < w->sp || fp - w->sp > MAX_UP || fp & 7)
		return NO_RULE;
	w->fault = fp;
	if (!load(w, fp, &up))
		return UNREADABLE;
	w->fault = fp + MACHINE(RECORD_RA);
	if (!load(w, fp + MACHINE(RECORD_RA), &ra))
		return UNREADABLE;
	if (!find_call(w, &ra))
		return NO_RULE;
	if (alive && code_before(ra) == 0 && load(w, w->sp, &top) && unspool_leaf(w->pc, ra, w->code, top))
		return LOST_REGISTER;
	w->known = BIT(SLOT_FP);
	w->in_mem = 0;
	w->val[SLOT_FP] = up;
	called_from(w, ra, fp + MACHINE(RECORD_SIZE));
	return OK;
}

/* Bytes of the code that signal handlers return to, and of its system call. */
enum { LONG = MACHINE(RETURN_0_SIZE), CALL = MACHINE(RETURN_CALL) };

#if MACHINE_ELF == UNSPOOL_X86_64_ELF
enum { SHORT = MACHINE(RETURN_1_SIZE) }; /* of its other form */

/* How many bytes the code at an address has that signal handlers return to: arch.Signal. 0: it is other code. Less than 0: it cannot be read. */
static __always_inline int sigreturn_at(u64 at)
{
	u64 code;

	if (walk_read(&code, 8, at) != 0)
		return -1;
	if ((code & ((1ull << 8 * SHORT) - 1)) == MACHINE(RETURN_1_CODE)) /* mov $15,%eax; syscall */
		return SHORT;
	if (code != MACHINE(RETURN_0_CODE)) /* mov $15,%rax; syscall, but for the last byte */
		return 0;
	return walk_read(&code, 8, at + LONG - 8) == 0 && code >> 56 == MACHINE(SYSCALL) >> 8 ? LONG : 0;
}

/* The same, of the code whose last instruction, the system call, is at an address, or right before it. */
static __always_inline int sigreturn_around(u64 at)
{
	int is = sigreturn_at(at - (SHORT - CALL));

	if (is >= 0 && is != SHORT) {
		is = sigreturn_at(at - SHORT); /* of the other form, LONG - CALL */
		if (is == 0) {
			is = sigreturn_at(at - LONG);
			if (is > 0 && is != LONG)
				is = 0;
		}
	}
	return is;
}
#else
static __always_inline int sigreturn_at(u64 at)
{
	u64 code;

	if (walk_read(&code, 8, at) != 0)
		return -1;
	return code == MACHINE(RETURN_0_CODE) ? LONG : 0; /* mov x8,#139; svc #0 */
}

static __always_inline int sigreturn_around(u64 at)
{
	int is = sigreturn_at(at - (LONG - CALL));

	return is == 0 ? sigreturn_at(at - LONG) : is;
}
#endif

/*
 * Whether a signal handler returns to the frame at hand, which is in code without information. What the kernel has left is looked
 * at first, because it is at hand: uc_flags, of which there are three, and uc_link, which is 0.
 */
PART int is_sigreturn(void)
{
	struct walk *w = walk_state();
	u64 sp, flags, link;
	int is;

	if (!w || get(w, SLOT_SP, &sp) != OK || (load(w, sp + MACHINE(FRAME_CONTEXT), &flags) && flags > UNSPOOL_MAX_FLAGS) ||
	    (load(w, sp + MACHINE(FRAME_CONTEXT) + 8, &link) && link))
		return 0;
	is = sigreturn_at(w->pc);
	if (is == 0 && w->exact) /* at its last instruction, and in the call, the stack pointer is the same */
		is = sigreturn_around(w->pc);
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
	o = get(w, SLOT_SP, &sp);
	if (o != OK)
		return o;
	if (!load(w, sp + MACHINE(FRAME_PC), &pc)) {
		w->fault = sp + MACHINE(FRAME_PC);
		return UNREADABLE;
	}
	if (!load(w, sp + MACHINE(FRAME_SP), &up)) {
		w->fault = sp + MACHINE(FRAME_SP);
		return UNREADABLE;
	}
#define SAVED_AT(slot, offset) w->val[slot] = sp + (offset);
	MACHINE(FRAME)(SAVED_AT)
	w->known = ALL_REGS;
	w->in_mem = ALL_REGS & ~(BIT(SLOT_SP) | BIT(SLOT_PC));
	w->val[SLOT_SP] = w->cfa = up;
	w->val[SLOT_PC] = w->pc = pc;
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
	if (!in_range(w, w->pc - 1))
		return in_range(w, w->pc);
	if (code_before(w->pc) != 0)
		return MAYBE_PLACE;
	return !unspool_after_call(w->code) && in_range(w, w->pc);
}

/*
 * Leaves a place to which a call has led, and whose return address is off above the stack pointer; with a link register, the caller's stack
 * pointer is. Returns 0 where no call has.
 */
PART int step_call(u64 off)
{
	struct walk *w = walk_state();
	u64 sp, ra;

	if (!w)
		return 0;
	if (get(w, SLOT_SP, &sp) != OK)
		return 0;
	sp += off;
	if (!left_by_call(w, sp, &ra) || !find_call(w, &ra))
		return 0;
	if (code_before(ra) != 0) {
		w->missing = 1;
		return 0;
	}
	if (!unspool_after_call(w->code))
		return 0;
	w->known &= SAVED_SLOTS;
	called_from(w, ra, sp + MACHINE(CALL_PUSH));
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
#if MACHINE_ELF == UNSPOOL_X86_64_ELF
	if (walk_read(&e->last, 1, at - 1) != 0)
		e->last = 0;
#else
	if (walk_read(&e->before, 8, at - 8) != 0) {
		u32 last = 0;

		walk_read(&last, 4, at - 4);
		e->before = (u64)last << 32;
	}
#endif
	if (!unspool_edge() || get(w, SLOT_SP, &sp) != OK || !step_call((u64)(s64)e->off))
		return 0;
	if (e->fp >= 0) {
		w->known |= BIT(SLOT_FP);
		w->in_mem |= BIT(SLOT_FP);
		w->val[SLOT_FP] = sp + (u64)(s64)e->fp;
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
	if (walk_read(code, MAX_AFTER_SYSCALL + sizeof(MACHINE(SYSCALL_CODE)), at - MAX_AFTER_SYSCALL) != 0)
		return 0;
	for (n = 0; n <= MAX_AFTER_SYSCALL; n += RA_IN_REG ? 4 : 1) { /* there, all instructions have four bytes */
		u64 pc = at - n - w->range.bias;
		u32 k = BOUNDED(MAX_AFTER_SYSCALL - n, 32);

		if (*(const MACHINE(SYSCALL_CODE) *)(code + k) != MACHINE(SYSCALL))
			continue;
		if (!find(w->range.table, pc) && find(w->range.table, pc - 1))
			return (int)n + 1;
	}
	return 0;
}
