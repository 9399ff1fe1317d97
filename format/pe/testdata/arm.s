// All unwind codes of 32-bit Arm, epilogues of all forms, and packed entries. A test executes the instructions. Made into arm.dll by
// clang-19 --target=thumbv7-pc-windows-msvc -c, lld-link-19 /dll /noentry /filealign:16.
	.syntax unified
	.thumb
	.text
	.globl	codes
	.thumb_func
	.seh_proc codes
codes:
	push	{r0-r3}
	.seh_save_regs {r0-r3}
	push.w	{r4-r8, r10, lr}
	.seh_save_regs_w {r4-r8, r10, lr}
	mov	r7, sp
	.seh_save_sp r7
	vpush	{d8-d11}
	.seh_save_fregs {d8-d11}
	vpush	{d12-d13}
	.seh_save_fregs {d12-d13}
	vpush	{d16-d18}
	.seh_save_fregs {d16-d18}
	nop
	.seh_nop
	nop.w
	.seh_nop_w
	sub	sp, sp, #16
	.seh_stackalloc 16
	sub.w	sp, sp, #1024
	.seh_stackalloc_w 1024
	sub.w	sp, sp, #65536
	.seh_stackalloc_w 65536
	.seh_endprologue
	nop
	.seh_startepilogue
	add.w	sp, sp, #65536
	.seh_stackalloc_w 65536
	add.w	sp, sp, #1024
	.seh_stackalloc_w 1024
	add	sp, sp, #16
	.seh_stackalloc 16
	vpop	{d16-d18}
	.seh_save_fregs {d16-d18}
	vpop	{d12-d13}
	.seh_save_fregs {d12-d13}
	vpop	{d8-d11}
	.seh_save_fregs {d8-d11}
	pop.w	{r4-r8, r10, lr}
	.seh_save_regs_w {r4-r8, r10, lr}
	add	sp, sp, #16
	.seh_stackalloc 16
	bx	lr
	.seh_nop
	.seh_endepilogue
	.seh_endproc

	.globl	frame
	.thumb_func
	.seh_proc frame
frame:
	push	{r4-r7, lr}
	.seh_save_regs {r4-r7, lr}
	push.w	{r8-r11}
	.seh_save_regs_w {r8-r11}
	mov	r7, sp
	.seh_save_sp r7
	.seh_endprologue
	sub	sp, sp, #40
	nop
	.seh_startepilogue
	mov	sp, r7
	.seh_save_sp r7
	pop.w	{r8-r11}
	.seh_save_regs_w {r8-r11}
	pop	{r4-r7, pc}
	.seh_save_regs {r4-r7, pc}
	.seh_endepilogue
	nop
	.seh_startepilogue
	mov	sp, r7
	.seh_save_sp r7
	pop.w	{r8-r11}
	.seh_save_regs_w {r8-r11}
	pop.w	{r4-r7, lr}
	.seh_save_regs_w {r4-r7, lr}
	b.w	codes
	.seh_nop_w
	.seh_endepilogue
	.seh_endproc

	.globl	link
	.thumb_func
	.seh_proc link
link:
	str	lr, [sp, #-20]!
	.seh_save_lr 20
	.seh_endprologue
	nop
	.seh_startepilogue
	ldr	pc, [sp], #20
	.seh_save_lr 20
	.seh_endepilogue
	.seh_endproc

	.globl	condition
	.thumb_func
	.seh_proc condition
condition:
	push	{r4, lr}
	.seh_save_regs {r4, lr}
	.seh_endprologue
	nop
	it	eq
	.seh_startepilogue_cond eq
	popeq	{r4, pc}
	.seh_save_regs {r4, pc}
	.seh_endepilogue
	nop
	.seh_startepilogue
	pop	{r4, pc}
	.seh_save_regs {r4, pc}
	.seh_endepilogue
	.seh_endproc

	.globl	part
	.thumb_func
	.seh_proc part
part:
	.seh_save_regs_w {r4-r9, lr}
	.seh_endprologue_fragment
	nop
	.seh_startepilogue
	pop.w	{r4-r9, pc}
	.seh_save_regs_w {r4-r9, pc}
	.seh_endepilogue
	.seh_endproc

	// These get packed entries.
.macro packed name
	.globl	\name
	.thumb_func
	.seh_proc \name
\name:
.endm
	packed	p_ints
	push.w	{r4-r10, lr}
	.seh_save_regs_w {r4-r10, lr}
	sub	sp, sp, #24
	.seh_stackalloc 24
	.seh_endprologue
	nop
	.seh_startepilogue
	add	sp, sp, #24
	.seh_stackalloc 24
	pop.w	{r4-r10, pc}
	.seh_save_regs_w {r4-r10, pc}
	.seh_endepilogue
	.seh_endproc

	packed	p_chain
	push.w	{r4-r6, r11, lr}
	.seh_save_regs_w {r4-r6, r11, lr}
	add.w	r11, sp, #12
	.seh_nop_w
	sub.w	sp, sp, #1024
	.seh_stackalloc_w 1024
	.seh_endprologue
	nop
	.seh_startepilogue
	add.w	sp, sp, #1024
	.seh_stackalloc_w 1024
	pop.w	{r4-r6, r11, pc}
	.seh_save_regs_w {r4-r6, r11, pc}
	.seh_endepilogue
	.seh_endproc

	packed	p_floats
	push.w	{r11, lr}
	.seh_save_regs_w {r11, lr}
	mov	r11, sp
	.seh_nop
	vpush	{d8-d12}
	.seh_save_fregs {d8-d12}
	sub	sp, sp, #8
	.seh_stackalloc 8
	.seh_endprologue
	nop
	.seh_startepilogue
	add	sp, sp, #8
	.seh_stackalloc 8
	vpop	{d8-d12}
	.seh_save_fregs {d8-d12}
	pop.w	{r11, pc}
	.seh_save_regs_w {r11, pc}
	.seh_endepilogue
	.seh_endproc

	packed	p_homes
	push	{r0-r3}
	.seh_save_regs {r0-r3}
	push	{r4-r5, lr}
	.seh_save_regs {r4-r5, lr}
	.seh_endprologue
	nop
	.seh_startepilogue
	pop	{r4-r5}
	.seh_save_regs {r4-r5}
	ldr	pc, [sp], #20
	.seh_save_lr 20
	.seh_endepilogue
	.seh_endproc

	packed	p_jump
	push	{r0-r3}
	.seh_save_regs {r0-r3}
	push.w	{r4-r8, lr}
	.seh_save_regs_w {r4-r8, lr}
	.seh_endprologue
	nop
	.seh_startepilogue
	pop.w	{r4-r8, lr}
	.seh_save_regs_w {r4-r8, lr}
	add	sp, sp, #16
	.seh_stackalloc 16
	bx	lr
	.seh_nop
	.seh_endepilogue
	.seh_endproc

	packed	p_branch
	push	{r4-r6, lr}
	.seh_save_regs {r4-r6, lr}
	.seh_endprologue
	nop
	.seh_startepilogue
	pop.w	{r4-r6, lr}
	.seh_save_regs_w {r4-r6, lr}
	b.w	codes
	.seh_nop_w
	.seh_endepilogue
	.seh_endproc

	packed	p_folded
	push	{r2-r7, lr}
	.seh_save_regs {r2-r7, lr}
	.seh_endprologue
	nop
	.seh_startepilogue
	pop	{r2-r7, pc}
	.seh_save_regs {r2-r7, pc}
	.seh_endepilogue
	.seh_endproc

	packed	p_half
	push	{r3-r4, lr}
	.seh_save_regs {r3-r4, lr}
	.seh_endprologue
	nop
	.seh_startepilogue
	add	sp, sp, #4
	.seh_stackalloc 4
	pop	{r4, pc}
	.seh_save_regs {r4, pc}
	.seh_endepilogue
	.seh_endproc

	packed	p_none
	push	{r4-r7, lr}
	.seh_save_regs {r4-r7, lr}
	sub	sp, sp, #12
	.seh_stackalloc 12
	.seh_endprologue
	nop
	udf	#1
	.seh_endproc

	// By hand: what the assembler does not write.
	.globl	h_codes, h_microsoft, h_part, h_folded, h_half, h_kind, h_open, h_invalid
	.p2align 2
	.thumb_func
h_codes:	.fill	20, 2, 0xbf00	// codes of all sizes
	.thumb_func
h_microsoft:	.fill	4, 2, 0xbf00	// a code that Microsoft keeps to itself
	.thumb_func
h_part:	.fill	8, 2, 0xbf00	// of a function: r4 to r6 and lr, 8 bytes more
	.thumb_func
h_folded:
	push	{r1-r3, lr}
	nop
	pop	{r1-r3, pc}
	.thumb_func
h_half:
	push	{r4, lr}
	sub	sp, sp, #8
	nop
	pop	{r2-r4, pc}
	.thumb_func
h_kind:	.fill	4, 2, 0xbf00	// packed, of kind 3
	.thumb_func
h_open:	.fill	4, 2, 0xbf00	// codes without an end
	.thumb_func
h_invalid:	.fill	4, 2, 0xbf00	// packed: it has a chain of frames, without lr
	.section .pdata,"dr"
	.rva	h_codes, x_codes
	.rva	h_microsoft, x_microsoft
	.rva	h_part
	.long	2 | 8<<2 | 2<<16 | 1<<20 | 2<<22
	.rva	h_folded
	.long	1 | 3<<2 | 7<<16 | 1<<19 | 1<<20 | 0x3fe<<22
	.rva	h_half
	.long	1 | 4<<2 | 1<<20 | 0x3f9<<22
	.rva	h_kind
	.long	3
	.rva	h_open, x_open
	.rva	h_invalid
	.long	1 | 4<<2 | 1<<13 | 1<<21
	.section .xdata,"dr"
	.p2align 2
x_codes:
	.long	20 | 1<<21 | 6<<28
	.byte	0xf7, 1, 0, 0xf8, 1, 0, 0, 0xf9, 2, 0, 0xfa, 2, 0, 0, 0xe9, 4, 0xef, 3, 0xec, 0x30, 0xf6, 0x12, 0xfd, 0
x_microsoft:
	.long	4 | 1<<28
	.byte	0xee, 1, 0xff, 0
x_open:
	.long	4 | 1<<28
	.byte	1, 1, 1, 1
