/* SPDX-License-Identifier: Apache-2.0 */
/* llvm_aarch64.S: saves registers as LLVM's contexts have them (llvm.h), and goes on in a frame. Hints do nothing on processors without them. */
#include "saved_aarch64.h"
	.text

/* int unw_getcontext(unw_context_t *): the caller's registers as they are when this returns 0. */
	.globl unw_getcontext
	.type unw_getcontext, %function
	.p2align 4
unw_getcontext:
	.cfi_startproc
	hint #34 /* bti c */
	stp x0, x1, [x0]
	stp x2, x3, [x0, #16]
	stp x4, x5, [x0, #32]
	stp x6, x7, [x0, #48]
	stp x8, x9, [x0, #64]
	stp x10, x11, [x0, #80]
	stp x12, x13, [x0, #96]
	stp x14, x15, [x0, #112]
	stp x16, x17, [x0, #128]
	stp x18, x19, [x0, #144]
	stp x20, x21, [x0, #160]
	stp x22, x23, [x0, #176]
	stp x24, x25, [x0, #192]
	stp x26, x27, [x0, #208]
	stp x28, x29, [x0, #224]
	mov x1, sp
	stp x30, x1, [x0, #240]
	str x30, [x0, #256]
	stp d0, d1, [x0, #272]
	stp d2, d3, [x0, #288]
	stp d4, d5, [x0, #304]
	stp d6, d7, [x0, #320]
	stp d8, d9, [x0, #336]
	stp d10, d11, [x0, #352]
	stp d12, d13, [x0, #368]
	stp d14, d15, [x0, #384]
	stp d16, d17, [x0, #400]
	stp d18, d19, [x0, #416]
	stp d20, d21, [x0, #432]
	stp d22, d23, [x0, #448]
	stp d24, d25, [x0, #464]
	stp d26, d27, [x0, #480]
	stp d28, d29, [x0, #496]
	add x1, x0, #512
	stp d30, d31, [x1]
	mov x0, #0
	ret
	.cfi_endproc
	.size unw_getcontext, . - unw_getcontext

/* void llvm_resume(const uint64_t regs[43], const uint64_t other[24]): other is d0 to d7 and d16 to d31; us_resume loads regs. */
	.globl llvm_resume
	.hidden llvm_resume
	.type llvm_resume, %function
	.p2align 4
llvm_resume:
	.cfi_startproc
	hint #34
	ldp d0, d1, [x1]
	ldp d2, d3, [x1, #16]
	ldp d4, d5, [x1, #32]
	ldp d6, d7, [x1, #48]
	ldp d16, d17, [x1, #64]
	ldp d18, d19, [x1, #80]
	ldp d20, d21, [x1, #96]
	ldp d22, d23, [x1, #112]
	ldp d24, d25, [x1, #128]
	ldp d26, d27, [x1, #144]
	ldp d28, d29, [x1, #160]
	ldp d30, d31, [x1, #176]
	b us_resume
	.cfi_endproc
	.size llvm_resume, . - llvm_resume

	end_of_file
