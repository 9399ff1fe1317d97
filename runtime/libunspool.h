/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libunspool.h: backtraces without frame pointers, of the current thread, of a ucontext_t, and of another process.
 * x86-64 Linux. All addresses are run-time ones; that of the first frame is where it is, those of its callers are return
 * addresses.
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

/* How a frame was found from the one that it called. */
enum unspool_how {
	UNSPOOL_FIRST = 0,         /* it was not: it is the first */
	UNSPOOL_CFI = 1,           /* by call frame information */
	UNSPOOL_SIGNAL = 2,        /* a signal handler interrupted it: pc is exact */
	UNSPOOL_PLT = 3,           /* from a stub of the linkage table */
	UNSPOOL_FRAME_POINTER = 4, /* a guess: by rbp, for want of information */
	UNSPOOL_BAD_CALL = 5,      /* it called an address where there is no code; or code without information that begins or ends there */
};

/* Why a stack ended. */
enum unspool_stop {
	UNSPOOL_OUTERMOST = 0,  /* there is no caller */
	UNSPOOL_MAX = 1,        /* there was no room for more */
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

/* Writes return addresses of the current thread, the caller's first. Returns how many. Async-signal-safe. */
int unspool_backtrace(void **pcs, int max);

/*
 * Writes the frames of a context of this process, which stays where it is. in_signal: it is what a signal handler got,
 * so that its program counter is exact. stop can be NULL. Returns how many. Async-signal-safe.
 */
int unspool_backtrace_context(const ucontext_t *uc, int in_signal, struct unspool_frame *frames, int max, enum unspool_stop *stop);

/*
 * Writes the frames of a thread of another process, which it stops meanwhile by ptrace. Returns how many, or -1 with
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
