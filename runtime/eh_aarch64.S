/* SPDX-License-Identifier: Apache-2.0 */
/* eh_aarch64.S: the functions that need their caller's registers, and the landing in a handler. Hints do nothing on processors without them. */
#include "saved_aarch64.h"

	.text

/*
 * A function that saves what a call preserves, and calls another one with the address of this as one argument more: x19 to x29, d8 to d15 and x30,
 * upwards. Below is the shadow stack's pointer, or 0.
 */
	.macro entry name, body, arg
	.globl \name
	.type \name, %function
	.p2align 4
\name:
	.cfi_startproc
	hint #34 /* bti c */
	sub sp, sp, #176
	.cfi_adjust_cfa_offset 176
	save_saved 16
	str x30, [sp, #168]
	.cfi_rel_offset x30, 168
	mov x16, #1
	hint #40 /* chkfeat x16: 0 where shadow stacks are on */
	mov x17, #0
	cbnz x16, 1f
	mrs x17, s3_3_c2_c5_1 /* gcspr_el0 */
1:	str x17, [sp, #8]
	add \arg, sp, #16
	bl \body
	ldr x30, [sp, #168]
	add sp, sp, #176
	.cfi_adjust_cfa_offset -176
	.cfi_restore x30
	ret
	.cfi_endproc
	.size \name, . - \name
	.endm

	entry _Unwind_RaiseException, eh_raise, x1
	entry _Unwind_Resume, eh_resume, x1
	entry _Unwind_Resume_or_Rethrow, eh_rethrow, x1
	entry _Unwind_ForcedUnwind, eh_forced, x3
	entry _Unwind_Backtrace, eh_backtrace, x2
	entry backtrace, us_backtrace, x2

/*
 * void eh_land(const uint64_t regs[26], uint64_t shadow): x0 to x3, x19 to x30, d8 to d15, sp, pc, and the shadow stack's new pointer. A signal
 * handler that runs once the stack pointer is the new one may overwrite regs: nothing is read then.
 */
	.globl eh_land
	.hidden eh_land
	.type eh_land, %function
	.p2align 4
eh_land:
	.cfi_startproc
	.cfi_undefined x30
	hint #34 /* bti c */
	cbz x1, 2f
	/* What lies between is taken off the shadow stack. */
1:	mrs x2, s3_3_c2_c5_1
	cmp x2, x1
	b.hs 2f
	sysl x2, #3, c7, c7, #1 /* gcspopm */
	b 1b
2:	mov x15, x1
	ldp x2, x3, [x0, #16]
	ldp x19, x20, [x0, #32]
	ldp x21, x22, [x0, #48]
	ldp x23, x24, [x0, #64]
	ldp x25, x26, [x0, #80]
	ldp x27, x28, [x0, #96]
	ldp x29, x30, [x0, #112]
	ldp d8, d9, [x0, #128]
	ldp d10, d11, [x0, #144]
	ldp d12, d13, [x0, #160]
	ldp d14, d15, [x0, #176]
	ldp x16, x17, [x0, #192] /* sp, pc */
	ldp x0, x1, [x0]
	mov sp, x16
	cbnz x15, 3f
	ret x17 /* needs no landing pad */
3:	br x17 /* a shadow stack is not asked */
	.cfi_endproc
	.size eh_land, . - eh_land

	end_of_file
