/* SPDX-License-Identifier: Apache-2.0 */
/* blind.h: steps out of code without rules, for both drop-ins. */
#ifndef UNSPOOL_BLIND_H
#define UNSPOOL_BLIND_H

#include "core.h"

/* How a frame was found. */
enum us_how { US_BY_CFI, US_BY_SIGNAL, US_BY_PLT, US_BY_POINTER, US_BY_CALL };

/* What such a step asks its walker. */
struct us_asks {
	us_load load;
	us_reg reg; /* or NULL, as in us_mem */
	int (*code)(void *ctx, uint64_t at, uint8_t *to, uint32_t n); /* reads n bytes of code; or returns 0 */
	int (*is_code)(void *ctx, uint64_t at);                       /* whether there may be code, as far as can be told */
	int (*has_rule)(void *ctx, uint64_t at);                      /* whether there is a rule */
};

/* A frame that has no rule. */
struct us_blind {
	struct us_state *s; /* becomes the caller's, if the step comes to US_OK */
	uint64_t sp;        /* the stack pointer */
	const struct us_asks *from;
	void *ctx;
	int exact;          /* nobody was called from there */

	/* Then: how the caller was found, and where its return address was. */
	enum us_how how;
	uint64_t ra_at;
};

/* Steps to the caller. at is the address that was looked up. US_OUTERMOST: there is none; US_NO_RULE: nothing leads on. */
US_HIDDEN int us_step_blind(struct us_blind *b, uint64_t at);

/* Whether the return address s->pc is a place that no call has led to, but somebody who wrote it: makecontext, the kernel. */
US_HIDDEN int us_is_place(struct us_blind *b);

/* Whether code to which signal handlers return begins there. */
US_HIDDEN int us_is_sigreturn_code(struct us_blind *b);

/* Whether a signal handler returns to the frame, by its code and by what the kernel leaves on the stack. */
US_HIDDEN int us_is_sigreturn(struct us_blind *b);

#endif /* UNSPOOL_BLIND_H */
