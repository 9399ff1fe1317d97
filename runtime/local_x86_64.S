/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local_x86_64.S: where registers are saved and put back. A ucontext_t has its general registers from offset 40 on, in the
 * kernel's order; the room for floating-point state is at 424, and the pointer to it at 224.
 */
#include "saved_x86_64.h"

	.text

#define FPREGS_PTR 224
#define FPREGS 424
#define MXCSR (FPREGS + 24)

/* int _Ux86_64_getcontext(ucontext_t *): the caller's registers as they are when this returns 0. */
	.globl _Ux86_64_getcontext
	.type _Ux86_64_getcontext, @function
	.p2align 4
_Ux86_64_getcontext:
	.cfi_startproc
	mov %r8, 40(%rdi)
	mov %r9, 48(%rdi)
	mov %r10, 56(%rdi)
	mov %r11, 64(%rdi)
	mov %r12, 72(%rdi)
	mov %r13, 80(%rdi)
	mov %r14, 88(%rdi)
	mov %r15, 96(%rdi)
	mov %rdi, 104(%rdi)
	mov %rsi, 112(%rdi)
	mov %rbp, 120(%rdi)
	mov %rbx, 128(%rdi)
	mov %rdx, 136(%rdi)
	movq $0, 144(%rdi)
	mov %rcx, 152(%rdi)
	lea 8(%rsp), %rax
	mov %rax, 160(%rdi)
	mov (%rsp), %rax
	mov %rax, 168(%rdi)
	lea FPREGS(%rdi), %rax
	mov %rax, FPREGS_PTR(%rdi)
	fnstcw (%rax)
	stmxcsr MXCSR(%rdi)
	xor %eax, %eax
	ret
	.cfi_endproc
	.size _Ux86_64_getcontext, . - _Ux86_64_getcontext

/* int _Ux86_64_setcontext(const ucontext_t *): goes on where the context was saved. The signal mask stays. */
	.globl _Ux86_64_setcontext
	.type _Ux86_64_setcontext, @function
	.p2align 4
_Ux86_64_setcontext:
	.cfi_startproc
	mov FPREGS_PTR(%rdi), %rax
	test %rax, %rax
	jz 1f
	fldcw (%rax)
	ldmxcsr 24(%rax)
1:	sub $136, %rsp
	.cfi_adjust_cfa_offset 136
	mov 144(%rdi), %rax
	mov %rax, 0(%rsp)
	mov 136(%rdi), %rax
	mov %rax, 8(%rsp)
	mov 152(%rdi), %rax
	mov %rax, 16(%rsp)
	mov 128(%rdi), %rax
	mov %rax, 24(%rsp)
	mov 112(%rdi), %rax
	mov %rax, 32(%rsp)
	mov 104(%rdi), %rax
	mov %rax, 40(%rsp)
	mov 120(%rdi), %rax
	mov %rax, 48(%rsp)
	mov 160(%rdi), %rax
	mov %rax, 56(%rsp)
	mov 40(%rdi), %rax
	mov %rax, 64(%rsp)
	mov 48(%rdi), %rax
	mov %rax, 72(%rsp)
	mov 56(%rdi), %rax
	mov %rax, 80(%rsp)
	mov 64(%rdi), %rax
	mov %rax, 88(%rsp)
	mov 72(%rdi), %rax
	mov %rax, 96(%rsp)
	mov 80(%rdi), %rax
	mov %rax, 104(%rsp)
	mov 88(%rdi), %rax
	mov %rax, 112(%rsp)
	mov 96(%rdi), %rax
	mov %rax, 120(%rsp)
	mov 168(%rdi), %rax
	mov %rax, 128(%rsp)
	mov %rsp, %rdi
	call us_resume
	hlt
	.cfi_endproc
	.size _Ux86_64_setcontext, . - _Ux86_64_setcontext

/*
 * void us_resume(const uint64_t regs[17]): all registers by DWARF's number; number 16 is jumped to. What is below the
 * new stack pointer is lost.
 */
	.globl us_resume
	.hidden us_resume
	.type us_resume, @function
	.p2align 4
us_resume:
	.cfi_startproc
	.cfi_undefined %rip
	/* regs can lie where the new stack will be written: a copy does not. */
	mov %rdi, %rsi
	sub $200, %rsp
	mov %rsp, %rdi
	mov $17, %ecx
	cld
	rep movsq
	mov %rsp, %rdi
	mov 7*8(%rdi), %rsi
	mov 16*8(%rdi), %rax
	mov %rax, -8(%rsi)
	mov 4*8(%rdi), %rax
	mov %rax, -16(%rsi)
	mov 5*8(%rdi), %rax
	mov %rax, -24(%rsi)
	mov 0*8(%rdi), %rax
	mov 1*8(%rdi), %rdx
	mov 2*8(%rdi), %rcx
	mov 3*8(%rdi), %rbx
	mov 6*8(%rdi), %rbp
	mov 8*8(%rdi), %r8
	mov 9*8(%rdi), %r9
	mov 10*8(%rdi), %r10
	mov 11*8(%rdi), %r11
	mov 12*8(%rdi), %r12
	mov 13*8(%rdi), %r13
	mov 14*8(%rdi), %r14
	mov 15*8(%rdi), %r15
	/* A signal handler that runs from here on does so below what is still needed. */
	lea -24(%rsi), %rsp
	pop %rdi
	pop %rsi
	ret
	.cfi_endproc
	.size us_resume, . - us_resume

/* void us_sigreturn(ucontext_t *): puts back what the kernel saved before a signal handler. */
	.globl us_sigreturn
	.hidden us_sigreturn
	.type us_sigreturn, @function
us_sigreturn:
	.cfi_startproc
	.cfi_undefined %rip
	mov %rdi, %rsp
	mov $15, %eax
	syscall
	hlt
	.cfi_endproc
	.size us_sigreturn, . - us_sigreturn

/*
 * int unw_backtrace(void **, int): saves what a call preserves where us_backtrace finds it: r15, r14, r13, r12, rbp, rbx,
 * and the return address, upwards.
 */
#ifdef UNSPOOL_NATIVE /* libunspool.so has it by another name, and nothing of libunwind's */
#define unw_backtrace unspool_backtrace
	.hidden _Ux86_64_getcontext, _Ux86_64_setcontext
#endif
	.globl unw_backtrace
	.type unw_backtrace, @function
	.p2align 4
unw_backtrace:
	.cfi_startproc
	push_saved
	mov %rsp, %rdx
	sub $8, %rsp
	.cfi_adjust_cfa_offset 8
	call us_backtrace
	add $56, %rsp
	.cfi_adjust_cfa_offset -56
	ret
	.cfi_endproc
	.size unw_backtrace, . - unw_backtrace

	.section .note.GNU-stack, "", @progbits
