/* SPDX-License-Identifier: Apache-2.0 */
/* saved_aarch64.h: macros that the files in assembly share. */

/* Writes what a call preserves, x19 to x29 and d8 to d15, to the stack from \at on, as an array of a walk's first frame. */
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

/*
 * Ends a file. All that is jumped to in it begins with BTI, as GNU_PROPERTY_AARCH64_FEATURE_1_AND says: linkers guard a library's pages if each object
 * does. No stack is executable.
 */
	.macro end_of_file
	.section .note.GNU-stack, "", %progbits
	.section .note.gnu.property, "a", %note
	.p2align 3
	.word 4, 16, 5 /* sizes of the name and the description; NT_GNU_PROPERTY_TYPE_0 */
	.asciz "GNU"
	.word 0xc0000000, 4, 1, 0 /* the property, its size: BTI, and padding */
	.endm
