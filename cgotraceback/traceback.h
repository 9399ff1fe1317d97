/* SPDX-License-Identifier: Apache-2.0 */
/* traceback.h: the functions that runtime.SetCgoTraceback takes, and what its documentation says of their arguments. */
#ifndef UNSPOOL_GO_TRACEBACK_H
#define UNSPOOL_GO_TRACEBACK_H

#include <stdint.h>

struct us_go_traceback_arg {
	uintptr_t context; /* what us_go_context gave; 0 for none */
	uintptr_t signal;  /* the ucontext_t that a signal handler got; 0 for none */
	uintptr_t *pcs;    /* written: addresses within call instructions, and 0 behind the last if there is room */
	uintptr_t max;
};

struct us_go_context_arg {
	uintptr_t context; /* 0: written, where 0 is none; else it is given back */
};

struct us_go_symbolizer_arg {
	uintptr_t pc; /* 0: there are no more */
	const char *file;
	uintptr_t line;
	const char *function;
	uintptr_t entry, more, data;
};

/* Says where Go's code is, from lo up to and without hi. To be called first. */
void us_go_text(uintptr_t lo, uintptr_t hi);

void us_go_traceback(struct us_go_traceback_arg *a);
void us_go_context(struct us_go_context_arg *a);
void us_go_symbolizer(struct us_go_symbolizer_arg *a);

#endif /* UNSPOOL_GO_TRACEBACK_H */
