/* SPDX-License-Identifier: Apache-2.0 */
/* saved_x86_64.h: for assembly: puts what a call preserves on the stack, r15 last, as an array of a walk's first frame. */
	.macro push_saved
	.irp reg, rbx, rbp, r12, r13, r14, r15
	push %\reg
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset %\reg, 0
	.endr
	.endm
