// Frames with scalable vectors, for AArch64, as compilers write them. The test executes the instructions.
	.text
	.globl	locals
	.seh_proc locals
locals:
	str	x19, [sp, #-32]!
	.seh_save_reg_x x19, 32
	str	x28, [sp, #8]
	.seh_save_reg x28, 8
	str	x30, [sp, #16]
	.seh_save_reg x30, 16
	sub	sp, sp, #400
	.seh_stackalloc 400
	addvl	sp, sp, #-1
	.seh_allocz 1
	.seh_endprologue
	nop
	nop
	.seh_startepilogue
	addvl	sp, sp, #1
	.seh_allocz 1
	add	sp, sp, #400
	.seh_stackalloc 400
	ldr	x30, [sp, #16]
	.seh_save_reg x30, 16
	ldr	x28, [sp, #8]
	.seh_save_reg x28, 8
	ldr	x19, [sp], #32
	.seh_save_reg_x x19, 32
	.seh_endepilogue
	ret
	.seh_endproc

	.globl	saves
	.seh_proc saves
saves:
	addvl	sp, sp, #-7
	.seh_allocz 7
	str	p4, [sp]
	.seh_save_preg p4, 0
	str	p15, [sp, #7, mul vl]
	.seh_save_preg p15, 7
	str	z8, [sp, #2, mul vl]
	.seh_save_zreg z8, 2
	str	z11, [sp, #3, mul vl]
	.seh_save_zreg z11, 3
	str	z15, [sp, #5, mul vl]
	.seh_save_zreg z15, 5
	str	z23, [sp, #6, mul vl]
	.seh_save_zreg z23, 6
	stp	x19, x20, [sp, #-48]!
	.seh_save_regp_x x19, 48
	str	x28, [sp, #16]
	.seh_save_reg x28, 16
	stp	x29, x30, [sp, #24]
	.seh_save_fplr 24
	.seh_endprologue
	nop
	.seh_startepilogue
	ldp	x29, x30, [sp, #24]
	.seh_save_fplr 24
	ldr	x28, [sp, #16]
	.seh_save_reg x28, 16
	ldp	x19, x20, [sp], #48
	.seh_save_regp_x x19, 48
	ldr	z8, [sp, #2, mul vl]
	.seh_save_zreg z8, 2
	ldr	z11, [sp, #3, mul vl]
	.seh_save_zreg z11, 3
	ldr	z15, [sp, #5, mul vl]
	.seh_save_zreg z15, 5
	ldr	z23, [sp, #6, mul vl]
	.seh_save_zreg z23, 6
	ldr	p4, [sp]
	.seh_save_preg p4, 0
	ldr	p15, [sp, #7, mul vl]
	.seh_save_preg p15, 7
	addvl	sp, sp, #7
	.seh_allocz 7
	.seh_endepilogue
	ret
	.seh_endproc

	.globl	frame
	.seh_proc frame
frame:
	addvl	sp, sp, #-2
	.seh_allocz 2
	str	z9, [sp]
	.seh_save_zreg z9, 0
	str	z10, [sp, #1, mul vl]
	.seh_save_zreg z10, 1
	str	x19, [sp, #-48]!
	.seh_save_reg_x x19, 48
	stp	d8, d14, [sp, #32]
	.seh_nop
	stp	x29, x30, [sp, #16]
	.seh_save_fplr 16
	add	x29, sp, #16
	.seh_add_fp 16
	.seh_endprologue
	sub	sp, sp, #64
	addvl	sp, sp, #-5
	nop
	.seh_startepilogue
	sub	sp, x29, #16
	.seh_add_fp 16
	ldp	x29, x30, [sp, #16]
	.seh_save_fplr 16
	ldr	x19, [sp], #48
	.seh_save_reg_x x19, 48
	ldr	z9, [sp]
	.seh_save_zreg z9, 0
	ldr	z10, [sp, #1, mul vl]
	.seh_save_zreg z10, 1
	addvl	sp, sp, #2
	.seh_allocz 2
	.seh_endepilogue
	ret
	.seh_endproc
