// All unwind codes of AArch64, and packed entries. Made into arm64.dll by
// clang-19 --target=aarch64-pc-windows-msvc -c, lld-link-19 /dll /noentry /filealign:16.
	.text
	.globl	codes
	.seh_proc codes
codes:
	pacibsp
	.seh_pac_sign_lr
	stp	x19, x20, [sp, #-208]!
	.seh_save_r19r20_x 208
	stp	x21, x22, [sp, #16]
	.seh_save_next
	stp	x23, x24, [sp, #32]
	.seh_save_regp x23, 32
	str	x25, [sp, #48]
	.seh_save_reg x25, 48
	stp	x27, lr, [sp, #56]
	.seh_save_lrpair x27, 56
	stp	d8, d9, [sp, #80]
	.seh_save_fregp d8, 80
	str	d10, [sp, #96]
	.seh_save_freg d10, 96
	stp	x29, lr, [sp, #112]
	.seh_save_fplr 112
	add	x29, sp, #112
	.seh_add_fp 112
	nop
	.seh_nop
	sub	sp, sp, #32
	.seh_stackalloc 32
	sub	sp, sp, #1024
	.seh_stackalloc 1024
	sub	sp, sp, #65536
	.seh_stackalloc 65536
	.seh_endprologue
	nop
	.seh_startepilogue
	sub	sp, x29, #112
	.seh_add_fp 112
	ldp	x29, lr, [sp, #112]
	.seh_save_fplr 112
	ldp	x19, x20, [sp], #208
	.seh_save_r19r20_x 208
	autibsp
	.seh_pac_sign_lr
	.seh_endepilogue
	ret
	.seh_endproc

	.seh_proc indexed
indexed:
	stp	x29, lr, [sp, #-16]!
	.seh_save_fplr_x 16
	mov	x29, sp
	.seh_set_fp
	stp	x21, x22, [sp, #-32]!
	.seh_save_regp_x x21, 32
	str	x23, [sp, #-16]!
	.seh_save_reg_x x23, 16
	stp	d10, d11, [sp, #-16]!
	.seh_save_fregp_x d10, 16
	str	d12, [sp, #-16]!
	.seh_save_freg_x d12, 16
	stp	x26, x27, [sp, #-48]!
	.seh_save_any_reg_px x26, 48
	str	d13, [sp, #16]
	.seh_save_any_reg d13, 16
	str	q14, [sp, #32]
	.seh_save_any_reg q14, 32
	stp	q8, q9, [sp, #-32]!
	.seh_save_any_reg_px q8, 32
	.seh_endprologue
	nop
	.seh_startepilogue
	mov	sp, x29
	.seh_set_fp
	ldp	x29, lr, [sp], #16
	.seh_save_fplr_x 16
	.seh_endepilogue
	ret
	.seh_endproc

	.seh_proc frame
frame:
	.seh_pushframe
	sub	sp, sp, #16
	.seh_stackalloc 16
	.seh_endprologue
	nop
	brk	#1
	.seh_endproc
	.seh_proc all
all:
	.seh_context
	.seh_endprologue
	nop
	brk	#1
	.seh_endproc
	.seh_proc exact
exact:
	.seh_clear_unwound_to_call
	stp	x29, lr, [sp, #-16]!
	.seh_save_fplr_x 16
	.seh_endprologue
	nop
	brk	#1
	.seh_endproc
	.seh_proc trap
trap:
	.seh_trap_frame
	.seh_endprologue
	brk	#1
	.seh_endproc

	// By hand: packed entries, of 12 instructions each.
homes:	.fill	12, 4, 0xd503201f	// RegI 2, RegF 1, H, CR 0, 16 bytes of its own
chained: .fill	12, 4, 0xd503201f	// RegI 1, CR 3, 1040 bytes of its own
single:	.fill	12, 4, 0xd503201f	// RegI 1, CR 1
part:	.fill	12, 4, 0xd503201f	// of a function as homes
huge:	.fill	12, 4, 0xd503201f	// CR 0, 4096 bytes
scalable: .fill	14, 4, 0xd503201f	// 3 lengths of a vector; p4, z8 and z15 are saved there, below them x29, lr and x19
unsaved: .fill	4, 4, 0xd503201f	// saves p0
below:	.fill	4, 4, 0xd503201f	// the processor's frame above a length of a vector
leaf:	ret
	.section .pdata,"dr"
	.long	homes@IMGREL, 1 | 12<<2 | 1<<13 | 2<<16 | 1<<20 | 0<<21 | 7<<23
	.long	chained@IMGREL, 1 | 12<<2 | 1<<16 | 3<<21 | 66<<23
	.long	single@IMGREL, 1 | 12<<2 | 1<<16 | 1<<21 | 1<<23
	.long	part@IMGREL, 2 | 12<<2 | 1<<13 | 2<<16 | 1<<20 | 0<<21 | 7<<23
	.long	huge@IMGREL, 1 | 12<<2 | 257<<23
	.long	scalable@IMGREL, x_scalable@IMGREL
	.long	unsaved@IMGREL, x_unsaved@IMGREL
	.long	below@IMGREL, x_below@IMGREL
	.section .xdata,"dr"
	.p2align 2
x_scalable:
	.long	14 | 1<<21 | 4<<27
	.byte	0xd0, 0x02, 0x83, 0xe7, 0x07, 0xc2, 0xe7, 0x00, 0xc1, 0xe7, 0x14, 0xc0, 0xdf, 0x03, 0xe4, 0
x_unsaved:
	.long	4 | 1<<27
	.byte	0xe7, 0x10, 0xc0, 0xe4
x_below:
	.long	4 | 1<<27
	.byte	0xdf, 0x01, 0xe9, 0xe4
