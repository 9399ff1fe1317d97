// Functions whose call frame information is wrong on purpose, at one row each, and what is wrong there. The names say
// it: wrong_WHAT__REMARK. The right ones between them are the ways in which correct code looks odd. The program stands
// alone, so that little is executed: a C library begins with thousands of instructions.

	.arch armv8.3-a
	.text

	.macro fn name
	.globl \name
	.type \name, %function
\name:
	.cfi_startproc
	.endm

	.macro end
	.cfi_endproc
	.endm

// The CFA is 16 too low between push and pop, and nothing says where x19 is. The return address is still in x30.
	fn wrong_cfa_x19
	stp	x19, x30, [sp, #-16]!
	mov	x19, #0
	ldp	x19, x30, [sp], #16
	ret
	end

// The return address has been moved, and x30 overwritten.
	fn wrong_ra
	mov	x9, x30
	mov	x30, #5
	nop
	mov	x30, x9
	ret
	end

// The place of x20 is wrong.
	fn wrong_x20
	str	x20, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset x20, -8
	mov	x20, #77
	ldr	x20, [sp], #16
	.cfi_restore x20
	.cfi_def_cfa_offset 0
	ret
	end

// The rows lack the end of the frame.
	fn wrong_cfa
	sub	sp, sp, #32
	.cfi_def_cfa_offset 32
	nop
	add	sp, sp, #32
	ret
	end

// The return address is signed, and the row does not say so. A signature can be 0, one in eight where addresses have 52 bits: then another
// modifier is tried. Copies are inverted, so that none is the return address.
	fn wrong_ra__signed
	mov	x10, #0
	mvn	x9, x30
1:	add	x10, x10, #1
	pacia	x30, x10
	mvn	x11, x30
	cmp	x11, x9
	b.eq	1b
	autia	x30, x10
	ret
	end

// It is not the outermost function.
	fn wrong_ra__outermost
	nop
	.cfi_undefined x30
	nop
	ret
	end

	fn right_leaf
	nop
	ret
	end

	fn right_signed
	paciasp
	.cfi_negate_ra_state
	stp	x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_offset x29, -32
	.cfi_offset x30, -24
	mov	x29, sp
	str	x19, [sp, #16]
	.cfi_offset x19, -16
	mov	x19, #9
	bl	right_leaf
	adr	x1, right_leaf
	blr	x1
	ldr	x19, [sp, #16]
	.cfi_restore x19
	ldp	x29, x30, [sp], #32
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	retaa
	end

// Lost is not wrong: the row claims nothing.
	fn right_lost
	.cfi_undefined x19
	mov	x0, x19
	mov	x19, #0
	mov	x19, x0
	ret
	end

// The return address in another register, which it is returned by.
	fn right_moved
	mov	x9, x30
	.cfi_register x30, x9
	bl	right_leaf
	ret	x9
	end

// Jumps within a function, and out of it into another that returns in its place, by any register.
	fn right_tail
	adr	x1, 1f
	br	x1
1:	adr	x16, right_leaf
	br	x16
	end

	fn right_tail_direct
	str	x30, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset x30, -16
	bl	right_leaf
	ldr	x30, [sp], #16
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	b	right_tail
	end

// A call to the next instruction, to know its own address.
	fn right_here
	mov	x9, x30
	.cfi_register x30, x9
	bl	1f
1:	mov	x0, x30
	mov	x30, x9
	.cfi_restore x30
	ret
	end

// Loops that a step would never let end: with one exit and with two, with a branch back to the load, and two stores.
	fn right_exclusive
	sub	sp, sp, #16
	.cfi_def_cfa_offset 16
	str	xzr, [sp]
	mov	x0, sp
1:	ldaxr	x1, [x0]
	add	x1, x1, #1
	stlxr	w2, x1, [x0]
	cbnz	w2, 1b
	mov	x3, #7
2:	ldxr	w1, [x0]
	cmp	w1, w3
	b.ne	3f
	stxr	w2, w3, [x0]
	cbnz	w2, 2b
3:	mov	x3, #1
4:	ldxp	x1, x4, [x0]
	cmp	x1, x3
	b.ne	5f
	stxp	w2, x3, x4, [x0]
	cbnz	w2, 4b
5:	str	wzr, [sp]
6:	ldaxr	w1, [x0]		// a lock, which is free
	cbnz	w1, 6b
	stxr	w2, w3, [x0]
	cbnz	w2, 6b
	str	wzr, [sp]
7:	ldaxr	w1, [x0]
	cbz	w1, 8f
	wfe
	b	7b
8:	stxr	w2, w3, [x0]
	cbnz	w2, 7b
9:	ldaxp	x1, x4, [x0]		// a compare-and-swap that fails, as LLVM has it
	cmp	x1, xzr
	cset	w5, ne
	cmp	x4, xzr
	cinc	w5, w5, ne
	cbnz	w5, 10f
	stlxp	w5, x3, x3, [x0]
	cbnz	w5, 9b
	b	11f
10:	stlxp	w5, x1, x4, [x0]
	cbnz	w5, 9b
11:	add	sp, sp, #16
	.cfi_def_cfa_offset 0
	ret
	end

// Room of a size that is known at run time.
	fn right_room
	stp	x29, x30, [sp, #-16]!
	.cfi_def_cfa_offset 16
	.cfi_offset x29, -16
	.cfi_offset x30, -8
	mov	x29, sp
	.cfi_def_cfa_register x29
	mov	x0, #64
	sub	x1, sp, x0
	mov	sp, x1
	bl	right_leaf
	sub	sp, sp, x0
	mov	sp, x29
	.cfi_def_cfa_register sp
	ldp	x29, x30, [sp], #16
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	ret
	end

	fn handler
	nop
	ret
	end

	fn main
	stp	x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_offset x29, -32
	.cfi_offset x30, -24
	stp	x19, x20, [sp, #16]
	.cfi_offset x19, -16
	.cfi_offset x20, -8
	mov	x19, #2
	mov	x20, #0x1234
again:	bl	wrong_cfa_x19
	bl	wrong_ra
	bl	wrong_x20
	bl	wrong_cfa
	bl	wrong_ra__signed
	bl	wrong_ra__outermost
	bl	right_signed
	bl	right_lost
	bl	right_moved
	bl	right_tail
	bl	right_tail_direct
	bl	right_here
	bl	right_exclusive
	bl	right_room
	subs	x19, x19, #1
	b.ne	again
	// A handler of SIGUSR1 (10), and the signal to this process.
	mov	x0, #10
	adr	x1, action
	mov	x2, #0
	mov	x3, #8
	mov	x8, #134		// rt_sigaction
	svc	#0
	mov	x8, #172		// getpid
	svc	#0
	mov	x1, #10
	mov	x8, #129		// kill
	svc	#0
	ldp	x19, x20, [sp, #16]
	.cfi_restore x19
	.cfi_restore x20
	ldp	x29, x30, [sp], #32
	.cfi_restore x29
	.cfi_restore x30
	.cfi_def_cfa_offset 0
	ret
	end

	fn _start
	.cfi_undefined x30
	bl	main
	mov	x8, #94			// exit_group
	mov	x0, #0
	svc	#0
	end

	.balign 8
action:	.quad	handler, 0, 0, 0		// struct sigaction of the kernel

	.section .note.GNU-stack, "", @progbits
