/* SPDX-License-Identifier: Apache-2.0 */
/* llvm_x86_64.S: saves registers as LLVM's contexts have them (llvm.h). */
	.text

/* int unw_getcontext(unw_context_t *): the caller's registers as they are when this returns 0. */
	.globl unw_getcontext
	.type unw_getcontext, @function
	.p2align 4
unw_getcontext:
	.cfi_startproc
	endbr64
	mov %rax, 0(%rdi)
	mov %rbx, 8(%rdi)
	mov %rcx, 16(%rdi)
	mov %rdx, 24(%rdi)
	mov %rdi, 32(%rdi)
	mov %rsi, 40(%rdi)
	mov %rbp, 48(%rdi)
	lea 8(%rsp), %rax
	mov %rax, 56(%rdi)
	mov %r8, 64(%rdi)
	mov %r9, 72(%rdi)
	mov %r10, 80(%rdi)
	mov %r11, 88(%rdi)
	mov %r12, 96(%rdi)
	mov %r13, 104(%rdi)
	mov %r14, 112(%rdi)
	mov %r15, 120(%rdi)
	mov (%rsp), %rax
	mov %rax, 128(%rdi)
	xor %eax, %eax
	ret
	.cfi_endproc
	.size unw_getcontext, . - unw_getcontext

	.section .note.GNU-stack, "", @progbits
