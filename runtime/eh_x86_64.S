/* SPDX-License-Identifier: Apache-2.0 */
/* eh_x86_64.S: the functions that need their caller's registers, and the landing in a handler. */
#include "saved_x86_64.h"

	.text

/*
 * A function that saves what a call preserves, and calls another one with the address of this as one argument more. Below is the shadow stack's
 * pointer, or 0.
 */
	.macro entry name, body, arg
	.globl \name
	.type \name, @function
	.p2align 4
\name:
	.cfi_startproc
	endbr64
	push_saved
	mov %rsp, \arg
	xor %eax, %eax
	rdsspq %rax /* does nothing without a shadow stack */
	push %rax
	.cfi_adjust_cfa_offset 8
	call \body
	add $56, %rsp
	.cfi_adjust_cfa_offset -56
	ret
	.cfi_endproc
	.size \name, . - \name
	.endm

	entry _Unwind_RaiseException, eh_raise, %rsi
	entry _Unwind_Resume, eh_resume, %rsi
	entry _Unwind_Resume_or_Rethrow, eh_rethrow, %rsi
	entry _Unwind_ForcedUnwind, eh_forced, %rcx
	entry _Unwind_Backtrace, eh_backtrace, %rdx
	entry backtrace, us_backtrace, %rdx

/*
 * void eh_land(const uint64_t regs[10], uint64_t shadow): rbx, rbp, r12, r13, r14, r15, rax, rdx, rsp, rip, and the shadow stack's new pointer. A
 * signal handler that runs once the stack pointer is the new one may overwrite regs: nothing is read then.
 */
	.globl eh_land
	.hidden eh_land
	.type eh_land, @function
	.p2align 4
eh_land:
	.cfi_startproc
	.cfi_undefined %rip
	test %rsi, %rsi
	jnz 2f
1:	mov 0(%rdi), %rbx
	mov 8(%rdi), %rbp
	mov 16(%rdi), %r12
	mov 24(%rdi), %r13
	mov 32(%rdi), %r14
	mov 40(%rdi), %r15
	mov 48(%rdi), %rax
	mov 56(%rdi), %rdx
	mov 72(%rdi), %rcx
	mov 64(%rdi), %rsp
	jmp *%rcx
	/* What lies between is taken off the shadow stack, at most 255 return addresses at a time. */
2:	rdsspq %rax
	sub %rax, %rsi
	jbe 1b
	shr $3, %rsi
3:	mov $255, %eax
	cmp %rax, %rsi
	cmovb %rsi, %rax
	incsspq %rax
	sub %rax, %rsi
	jnz 3b
	jmp 1b
	.cfi_endproc
	.size eh_land, . - eh_land

	.section .note.GNU-stack, "", @progbits
