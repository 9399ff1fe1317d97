/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libunspool.h: backtraces without frame pointers, of the current thread, of a ucontext_t, and of another process.
 * Linux on x86-64 and AArch64. All addresses are run-time addresses. The first frame's address is its program counter; its callers' addresses are
 * return addresses.
 */
#ifndef LIBUNSPOOL_H
#define LIBUNSPOOL_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <ucontext.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a frame was found from its callee. */
enum unspool_how {
	UNSPOOL_FIRST = 0,         /* it is the first frame */
	UNSPOOL_CFI = 1,           /* by call frame information */
	UNSPOOL_SIGNAL = 2,        /* a signal handler interrupted it: pc is exact */
	UNSPOOL_PLT = 3,           /* from a stub of the linkage table */
	UNSPOOL_FRAME_POINTER = 4, /* a guess: by rbp or x29, because there is no information */
	UNSPOOL_BAD_CALL = 5,      /* it called an address without code, or code without information, at its first or last instructions */
};

/* Why a stack ended. */
enum unspool_stop {
	UNSPOOL_OUTERMOST = 0,  /* there is no caller */
	UNSPOOL_MAX = 1,        /* max frames were written */
	UNSPOOL_NO_INFO = 2,    /* no call frame information, and nothing else leads on */
	UNSPOOL_UNREADABLE = 3, /* memory cannot be read */
	UNSPOOL_BAD_FRAME = 4,  /* the stack leads nowhere, or in circles */
};

struct unspool_frame {
	uint64_t pc;
	uint64_t sp;  /* the stack pointer */
	uint32_t how; /* enum unspool_how */
	uint32_t reserved;
};

/* Writes return addresses of the current thread, the caller's first. Returns their number. Async-signal-safe. */
int unspool_backtrace(void **pcs, int max);

/*
 * Writes the frames of a context of this process, and does not change the context. in_signal is nonzero for a context that a signal
 * handler got: its program counter is exact. stop can be NULL. Returns the number of frames. Async-signal-safe.
 */
int unspool_backtrace_context(const ucontext_t *uc, int in_signal, struct unspool_frame *frames, int max, enum unspool_stop *stop);

/*
 * Writes the frames of a thread of another process, and stops the thread meanwhile by ptrace. Returns the number of frames, or -1 with
 * errno. Not for signal handlers.
 */
int unspool_backtrace_thread(pid_t tid, struct unspool_frame *frames, int max, enum unspool_stop *stop);

/*
 * The function of this process at pc: writes its name, cut off at size, and the distance. Returns 0, or -1 where it has
 * none. The first call for a module maps its file.
 */
int unspool_name(uint64_t pc, char *name, size_t size, uint64_t *offset);

#ifdef __cplusplus
}
#endif

#endif /* LIBUNSPOOL_H */
