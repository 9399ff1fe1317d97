/* SPDX-License-Identifier: Apache-2.0 */
/* saved_aarch64.h: for assembly: writes what a call preserves, x19 to x29 and d8 to d15, to the stack from \at on, as an array of a walk's first frame. */
	.macro save_saved at
	stp x19, x20, [sp, #\at]
	stp x21, x22, [sp, #\at + 16]
	stp x23, x24, [sp, #\at + 32]
	stp x25, x26, [sp, #\at + 48]
	stp x27, x28, [sp, #\at + 64]
	str x29, [sp, #\at + 80]
	stp d8, d9, [sp, #\at + 88]
	stp d10, d11, [sp, #\at + 104]
	stp d12, d13, [sp, #\at + 120]
	stp d14, d15, [sp, #\at + 136]
	.endm
