# 20,000 functions, whose sizes and frames differ, and the array of their addresses. A C compiler takes minutes for as many.
	.altmacro
	.macro one n, size, frame
	.type f\n, @function
f\n:
	.cfi_startproc
	push %rbx
	.cfi_def_cfa_offset 16
	.cfi_offset %rbx, -16
	sub $\frame, %rsp
	.cfi_def_cfa_offset 16 + \frame
	.rept \size
	mov %edi, 8(%rsp)
	lea 0x12345(%rbx,%rax,4), %rax
	.endr
	call next
	add $\frame, %rsp
	.cfi_def_cfa_offset 16
	pop %rbx
	.cfi_def_cfa_offset 8
	ret
	.cfi_endproc
	.size f\n, . - f\n
	.endm
	.macro address n
	.quad f\n
	.endm

	.text
	.set i, 0
	.rept 20000
	one %i, %(i % 61), %(16 + i % 11 * 16)
	.set i, i + 1
	.endr

	.section .data.rel.ro, "aw"
	.globl functions
functions:
	.set i, 0
	.rept 20000
	address %i
	.set i, i + 1
	.endr
	.section .note.GNU-stack, "", @progbits
