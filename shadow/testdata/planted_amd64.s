# Functions whose call frame information is wrong on purpose, at one row each, and what is wrong there. The names say
# it: wrong_WHAT__REMARK. The right ones between them are the ways in which correct code looks odd.

	.text

# The CFA is 8 too low between push and pop.
	.globl wrong_cfa_ra_rbx
wrong_cfa_ra_rbx:
	.cfi_startproc
	mov	%rbx, %rax
	push	%rbx
	xor	%ebx, %ebx
	pop	%rbx
	ret
	.cfi_endproc

# r12 is overwritten, and no rule says where it is. It is the row of the function before that goes on.
	.globl wrong_r12
wrong_r12:
	.cfi_startproc
	mov	%r12, %rcx
	mov	$5, %r12d
	nop
	mov	%rcx, %r12
	ret
	.cfi_endproc

# The place of rbx is wrong, in the middle of three rows.
	.globl wrong_rbx
wrong_rbx:
	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset rbp, -16
	push	%rbx
	.cfi_def_cfa_offset 24
	.cfi_offset rbx, -16
	mov	$77, %ebx
	pop	%rbx
	.cfi_restore rbx
	.cfi_def_cfa_offset 16
	pop	%rbp
	.cfi_restore rbp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc

# The rows lack the pop in front of the return: epilogues are where most wrong rows are.
	.globl wrong_cfa_ra
wrong_cfa_ra:
	.cfi_startproc
	sub	$24, %rsp
	.cfi_def_cfa_offset 32
	nop
	add	$24, %rsp
	ret
	.cfi_endproc

# The return address is in a register that has been overwritten since.
	.globl wrong_ra
wrong_ra:
	.cfi_startproc
	pop	%rdx
	.cfi_def_cfa_offset 0
	.cfi_register rip, rcx
	xor	%ecx, %ecx
	push	%rdx
	.cfi_def_cfa_offset 8
	.cfi_offset rip, -8
	ret
	.cfi_endproc

# It is not the outermost function.
	.globl wrong_ra__outermost
wrong_ra__outermost:
	.cfi_startproc
	nop
	.cfi_undefined rip
	nop
	ret
	.cfi_endproc

# rbp was saved, but the caller's is not what is there: the value is CFA-16, not at it.
	.globl wrong_rbp
wrong_rbp:
	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_val_offset rbp, -16
	pop	%rbp
	.cfi_restore rbp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc

# Lost is not wrong: the row claims nothing.
	.globl right_lost
right_lost:
	.cfi_startproc
	.cfi_undefined rbx
	mov	%rbx, %rax
	xor	%ebx, %ebx
	mov	%rax, %rbx
	ret
	.cfi_endproc

# The return address in a register while the stack has none of it, as in vfork.
	.globl right_popped
right_popped:
	.cfi_startproc
	pop	%rdx
	.cfi_def_cfa_offset 0
	.cfi_register rip, rdx
	nop
	push	%rdx
	.cfi_def_cfa_offset 8
	.cfi_offset rip, -8
	ret
	.cfi_endproc

# Back by a jump.
	.globl right_jump_back
right_jump_back:
	.cfi_startproc
	pop	%rdx
	.cfi_def_cfa_offset 0
	.cfi_register rip, rdx
	jmp	*%rdx
	.cfi_endproc

# A jump by push and return, a call to the next instruction, and a tail call.
	.globl right_push_ret
right_push_ret:
	.cfi_startproc
	lea	1f(%rip), %rax
	push	%rax
	.cfi_def_cfa_offset 16
	ret
	.cfi_def_cfa_offset 8
1:	call	2f
	.cfi_def_cfa_offset 16
2:	pop	%rax
	.cfi_def_cfa_offset 8
	jmp	right_popped
	.cfi_endproc

# A retpoline: the call's return address is overwritten.
	.globl right_retpoline
right_retpoline:
	.cfi_startproc
	lea	right_popped(%rip), %rax
	call	2f
	.cfi_def_cfa_offset 16
1:	pause
	lfence
	jmp	1b
2:	mov	%rax, (%rsp)
	ret
	.cfi_endproc

# A realigned stack, whose CFA is in memory.
	.globl right_aligned
right_aligned:
	.cfi_startproc
	lea	8(%rsp), %r10
	.cfi_def_cfa r10, 0
	and	$-64, %rsp
	push	-8(%r10)
	push	%rbp
	mov	%rsp, %rbp
	.cfi_escape 0x10, 6, 2, 0x76, 0		# rbp: *(rbp)
	push	%r10
	.cfi_escape 0x0f, 3, 0x76, 0x78, 6	# CFA: *(rbp - 8)
	sub	$200, %rsp
	call	right_popped
	mov	-8(%rbp), %r10
	.cfi_def_cfa r10, 0
	leave
	.cfi_restore rbp
	lea	-8(%r10), %rsp
	.cfi_def_cfa rsp, 8
	ret
	.cfi_endproc

# A string instruction, which a step executes a part of, and flags, which a step must not leave its own in.
	.globl right_strings
right_strings:
	.cfi_startproc
	sub	$128, %rsp
	.cfi_def_cfa_offset 136
	mov	%rsp, %rdi
	mov	$100, %ecx
	xor	%eax, %eax
	rep stosb
	pushf
	.cfi_def_cfa_offset 144
	mov	(%rsp), %rax
	popf
	.cfi_def_cfa_offset 136
	and	$0x100, %eax		# the trap flag
	add	$128, %rsp
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc

# A call of the next function, which does not come back: it returns from both.
	.globl right_next
right_next:
	.cfi_startproc
	push	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset rbp, -16
	mov	%rsp, %rbp
	.cfi_def_cfa_register rbp
	call	right_next2
	.cfi_endproc
right_next2:
	.cfi_startproc
	push	%rcx
	.cfi_def_cfa_offset 16
	nop
	pop	%rcx
	.cfi_def_cfa_offset 8
	leave
	ret
	.cfi_endproc

	.globl main
main:
	.cfi_startproc
	push	%rbx
	.cfi_def_cfa_offset 16
	.cfi_offset rbx, -16
	push	%r12
	.cfi_def_cfa_offset 24
	.cfi_offset r12, -24
	mov	$3, %ebx
	mov	$0x1234, %r12d
again:	call	wrong_cfa_ra_rbx
	call	wrong_rbx
	call	wrong_r12
	call	wrong_cfa_ra
	call	wrong_ra
	call	wrong_ra__outermost
	call	wrong_rbp
	call	right_lost
	call	right_popped
	call	right_jump_back
	call	right_push_ret
	call	right_retpoline
	call	right_aligned
	call	right_next
	dec	%ebx
	jnz	again
	call	right_strings
	pop	%r12
	.cfi_def_cfa_offset 16
	.cfi_restore r12
	pop	%rbx
	.cfi_def_cfa_offset 8
	.cfi_restore rbx
	ret
	.cfi_endproc

	.section .note.GNU-stack, "", @progbits
