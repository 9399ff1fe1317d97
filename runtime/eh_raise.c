/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eh_raise.c: raising and resuming exceptions (Itanium C++ ABI, level I, section 1.3), forced unwinding (section 1.4), and backtraces. eh_x86_64.S
 * or eh_aarch64.S calls each of these with what the caller's registers were; a return goes back to that caller.
 */
#include "eh_step.h"

#include <stdlib.h>

US_HIDDEN int eh_raise(struct _Unwind_Exception *e, uint64_t *saved);
US_HIDDEN void eh_resume(struct _Unwind_Exception *e, uint64_t *saved);
US_HIDDEN int eh_rethrow(struct _Unwind_Exception *e, uint64_t *saved);
US_HIDDEN int eh_forced(struct _Unwind_Exception *e, eh_stop stop, void *arg, uint64_t *saved);
US_HIDDEN int eh_backtrace(eh_trace trace, void *arg, uint64_t *saved);

/* What a frame is recognized by, in the second phase. */
static uint64_t identity(const struct _Unwind_Context *c)
{
	return c->cfa - (c->flags >> 63);
}

static __attribute__((noreturn)) void install(const struct _Unwind_Context *c, const struct eh_walk *w, uint64_t frames)
{
#ifdef __x86_64__
	const uint64_t regs[] = {
		eh_value(c, UNSPOOL_X86_64_REG_RBX), eh_value(c, US_FP), eh_value(c, 12), eh_value(c, 13), eh_value(c, 14), eh_value(c, 15),
		eh_value(c, 0), eh_value(c, 1), eh_value(c, US_SP) + c->args_size, c->ra,
	};
#else
	uint64_t regs[26];

	for (unsigned i = 0; i < 4; i++)
		regs[i] = eh_value(c, i);
	for (unsigned i = 19; i <= 30; i++)
		regs[4 + i - 19] = eh_value(c, i);
	for (unsigned i = 0; i < 8; i++)
		regs[16 + i] = eh_value(c, eh_column(UNSPOOL_AARCH64_REG_V8 + i));
	regs[24] = eh_value(c, US_SP) + c->args_size;
	regs[25] = c->ra;
#endif

	/* Each frame has one word there: a return address, or what the kernel left below an interrupted frame. */
	eh_land(regs, w->shadow ? w->shadow + 8 * frames : 0);
}

/* The second phase: runs cleanups up to the handler's frame. */
static int second(struct _Unwind_Exception *e, struct _Unwind_Context *c, struct eh_walk *w, uint64_t *frames)
{
	struct eh_frame f;

	for (uint64_t n = 1;; n++) {
		int here = 0;

		if (eh_find(c, w, &f) != EH_NO_REASON)
			return EH_FATAL_PHASE2;
		if (identity(c) == e->private_2)
			here = EH_HANDLER_FRAME;
		if (f.personality) {
			int o = ((eh_personality)f.personality)(1, EH_CLEANUP_PHASE | here, e->class, e, c);

			if (o == EH_INSTALL_CONTEXT) {
				*frames = n;
				return o;
			}
			if (o != EH_CONTINUE)
				return EH_FATAL_PHASE2;
		}
		if (here)
			abort(); /* the handler of the first phase is not one any more */
		if (!eh_step(c, &f))
			return EH_FATAL_PHASE2;
	}
}

static int forced(struct _Unwind_Exception *e, struct _Unwind_Context *c, struct eh_walk *w, uint64_t *frames)
{
	eh_stop stop = (eh_stop)e->private_1;
	struct eh_frame f;

	for (uint64_t n = 1;; n++) {
		int o = eh_find(c, w, &f), actions = EH_FORCE_UNWIND | EH_CLEANUP_PHASE;

		if (o != EH_NO_REASON && o != EH_END_OF_STACK)
			return EH_FATAL_PHASE2;
		if (stop(1, actions | (o == EH_END_OF_STACK ? EH_ACTION_END : 0), e->class, e, c, (void *)e->private_2) != EH_NO_REASON)
			return EH_FATAL_PHASE2;
		if (o == EH_END_OF_STACK)
			return o;
		if (f.personality) {
			o = ((eh_personality)f.personality)(1, actions, e->class, e, c);
			if (o == EH_INSTALL_CONTEXT) {
				*frames = n;
				return o;
			}
			if (o != EH_CONTINUE)
				return EH_FATAL_PHASE2;
		}
		if (!eh_step(c, &f))
			return EH_FATAL_PHASE2;
	}
}

int eh_raise(struct _Unwind_Exception *e, uint64_t *saved)
{
	struct _Unwind_Context c;
	struct eh_walk w;
	struct eh_frame f;
	uint64_t frames = 0;
	int o;

	eh_start(&c, &w, saved);
	for (;;) {
		o = eh_find(&c, &w, &f);
		if (o == EH_END_OF_STACK)
			return o;
		if (o != EH_NO_REASON)
			return EH_FATAL_PHASE1;
		if (f.personality) {
			o = ((eh_personality)f.personality)(1, EH_SEARCH_PHASE, e->class, e, &c);
			if (o == EH_HANDLER_FOUND)
				break;
			if (o != EH_CONTINUE)
				return EH_FATAL_PHASE1;
		}
		if (!eh_step(&c, &f))
			return EH_FATAL_PHASE1;
	}
	e->private_1 = 0;
	e->private_2 = identity(&c);
	eh_start(&c, &w, saved);
	o = second(e, &c, &w, &frames);
	if (o != EH_INSTALL_CONTEXT)
		return o;
	install(&c, &w, frames);
}

/* Goes on after a cleanup. There is nobody to return to. */
void eh_resume(struct _Unwind_Exception *e, uint64_t *saved)
{
	struct _Unwind_Context c;
	struct eh_walk w;
	uint64_t frames = 0;

	eh_start(&c, &w, saved);
	if ((e->private_1 ? forced : second)(e, &c, &w, &frames) != EH_INSTALL_CONTEXT)
		abort();
	install(&c, &w, frames);
}

int eh_rethrow(struct _Unwind_Exception *e, uint64_t *saved)
{
	if (e->private_1 == 0)
		return eh_raise(e, saved);
	eh_resume(e, saved);
	return EH_FATAL_PHASE2;
}

int eh_forced(struct _Unwind_Exception *e, eh_stop stop, void *arg, uint64_t *saved)
{
	struct _Unwind_Context c;
	struct eh_walk w;
	uint64_t frames = 0;
	int o;

	e->private_1 = (uint64_t)stop;
	e->private_2 = (uint64_t)arg;
	eh_start(&c, &w, saved);
	o = forced(e, &c, &w, &frames);
	if (o != EH_INSTALL_CONTEXT)
		return o;
	install(&c, &w, frames);
}

EH_API void _Unwind_DeleteException(struct _Unwind_Exception *e)
{
	if (e->cleanup)
		e->cleanup(EH_FOREIGN_CAUGHT, e);
}

int eh_backtrace(eh_trace trace, void *arg, uint64_t *saved)
{
	struct _Unwind_Context c;
	struct eh_walk w;
	struct eh_frame f;

	eh_start(&c, &w, saved);
	for (;;) {
		int o = eh_find(&c, &w, &f);

		if (o != EH_NO_REASON && o != EH_END_OF_STACK)
			return EH_FATAL_PHASE1;
#ifdef UNSPOOL_LLVM /* libgcc shows what it knows nothing of, too */
		if (o == EH_END_OF_STACK)
			return o;
#endif
		if (trace(&c, arg) != EH_NO_REASON)
			return EH_FATAL_PHASE1;
		if (o == EH_END_OF_STACK)
			return EH_END_OF_STACK;
		if (!eh_step(&c, &f))
			return EH_FATAL_PHASE1;
	}
}
