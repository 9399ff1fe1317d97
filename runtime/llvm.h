/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llvm.h: the layouts and numbers of LLVM's libunwind.so.1, as programs that were compiled against its <libunwind.h> expect them (version 15000, of
 * LLVM 13 and later). A test compares them with that header.
 */
#ifndef UNSPOOL_LLVM_H
#define UNSPOOL_LLVM_H

#include <stddef.h>
#include <stdint.h>

/* What functions return. */
enum {
	LLVM_SUCCESS = 0,
	LLVM_UNSPEC = -6540,
	LLVM_BADREG = -6542,
	LLVM_BADFRAME = -6546,
	LLVM_NOINFO = -6549,
};

/* unw_step's results besides those. */
enum { LLVM_END = 0, LLVM_STEPPED = 1 };

/* Registers have DWARF's numbers, and these two. */
enum { LLVM_IP = -1, LLVM_SP = -2 };

/*
 * A context is an array of words, and LLVM_CONTEXT is where it has the register of each slot: on x86-64, those up to rip, and words behind that are
 * not written; on AArch64 x0 to x30, sp, pc, a word that is not written, the state of the return address's signature, and d0 to d31.
 */
#ifdef __x86_64__
enum { LLVM_XMM0 = 17, LLVM_REGISTERS = 33 };
enum { LLVM_CONTEXT_WORDS = 21, LLVM_CURSOR_WORDS = 33 };
#define LLVM_CONTEXT 0, 3, 2, 1, 5, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16
#else
enum { LLVM_V0 = 64, LLVM_V8 = 72, LLVM_V16 = 80, LLVM_REGISTERS = 96 };
enum { LLVM_CONTEXT_WORDS = 66, LLVM_CURSOR_WORDS = 78, LLVM_CONTEXT_V0 = 34 };
#define LLVM_CONTEXT \
	0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 33, \
		42, 43, 44, 45, 46, 47, 48, 49
#endif

typedef struct {
	uint64_t word[LLVM_CONTEXT_WORDS];
} llvm_context;

typedef struct {
	uint64_t word[LLVM_CURSOR_WORDS];
} llvm_cursor;

typedef struct {
	uint64_t start_ip, end_ip, lsda, handler;
	uint64_t gp;    /* bytes of arguments that a landing takes off the stack */
	uint64_t flags; /* 0 */
	uint32_t format, unwind_info_size;
	uint64_t unwind_info; /* the FDE */
	uint64_t extra;       /* where its module begins */
} llvm_proc_info;

_Static_assert(sizeof(llvm_proc_info) == 72, "LLVM's");

/* The format of a procedure that an FDE describes. */
#ifdef __x86_64__
enum { LLVM_FORMAT_DWARF = 0x04000000 };
#else
enum { LLVM_FORMAT_DWARF = 0x03000000 };
#endif

#ifdef __aarch64__
/* Goes on with registers by slot, and with d0 to d7 and d16 to d31 (llvm_aarch64.S). */
__attribute__((visibility("hidden"), noreturn)) void llvm_resume(const uint64_t *regs, const uint64_t *other);
#endif

#endif /* UNSPOOL_LLVM_H */
