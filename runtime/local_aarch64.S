/* SPDX-License-Identifier: Apache-2.0 */
/* local_aarch64.S: where registers are saved and put back. */
#include "saved_aarch64.h"

	.text

/*
 * void us_resume(const uint64_t regs[43]): registers by slot; number 32 is jumped to. x16 and x17 are what linkers may change at any
 * call; the latter leads there, by RET, which needs no landing pad (BTI).
 */
	.globl us_resume
	.hidden us_resume
	.type us_resume, %function
	.p2align 4
us_resume:
	.cfi_startproc
	.cfi_undefined x30
	hint #34 /* bti c */
	ldp d8, d9, [x0, #280]
	ldp d10, d11, [x0, #296]
	ldp d12, d13, [x0, #312]
	ldp d14, d15, [x0, #328]
	ldp x2, x3, [x0, #16]
	ldp x4, x5, [x0, #32]
	ldp x6, x7, [x0, #48]
	ldp x8, x9, [x0, #64]
	ldp x10, x11, [x0, #80]
	ldp x12, x13, [x0, #96]
	ldp x14, x15, [x0, #112]
	ldp x18, x19, [x0, #144]
	ldp x20, x21, [x0, #160]
	ldp x22, x23, [x0, #176]
	ldp x24, x25, [x0, #192]
	ldp x26, x27, [x0, #208]
	ldp x28, x29, [x0, #224]
	ldr x30, [x0, #240]
	ldp x16, x17, [x0, #248] /* sp, pc */
	ldp x0, x1, [x0]
	mov sp, x16
	ret x17
	.cfi_endproc
	.size us_resume, . - us_resume

/* void us_kept(uint64_t regs[43]): the registers that calls preserve and no ucontext_t has at a fixed place: the low halves of v8 to v15. */
	.globl us_kept
	.hidden us_kept
	.type us_kept, %function
us_kept:
	.cfi_startproc
	hint #34
	stp d8, d9, [x0, #280]
	stp d10, d11, [x0, #296]
	stp d12, d13, [x0, #312]
	stp d14, d15, [x0, #328]
	ret
	.cfi_endproc
	.size us_kept, . - us_kept

/* void us_sigreturn(ucontext_t *): puts back what the kernel saved before a signal handler. */
	.globl us_sigreturn
	.hidden us_sigreturn
	.type us_sigreturn, %function
us_sigreturn:
	.cfi_startproc
	.cfi_undefined x30
	hint #34
	sub x0, x0, #128 /* struct siginfo is before it */
	mov sp, x0
	mov x8, #139
	svc #0
	brk #1
	.cfi_endproc
	.size us_sigreturn, . - us_sigreturn

/*
 * int unw_backtrace(void **, int): saves what a call preserves where us_backtrace finds it: x19 to x29, d8 to d15 and x30, upwards, and
 * behind them the caller's stack.
 */
#ifdef UNSPOOL_NATIVE /* libunspool.so has it by another name */
#define unw_backtrace unspool_backtrace
#endif
	.globl unw_backtrace
	.type unw_backtrace, %function
	.p2align 4
unw_backtrace:
	.cfi_startproc
	hint #34
	sub sp, sp, #160
	.cfi_adjust_cfa_offset 160
	save_saved 0
	str x30, [sp, #152]
	.cfi_rel_offset x30, 152
	mov x2, sp
	bl us_backtrace
	ldr x30, [sp, #152]
	add sp, sp, #160
	.cfi_adjust_cfa_offset -160
	.cfi_restore x30
	ret
	.cfi_endproc
	.size unw_backtrace, . - unw_backtrace

	end_of_file
