# A 32-bit program, which ends with status 7.
	.globl _start
_start:
	mov	$7, %ebx
	mov	$1, %eax
	int	$0x80
	.section .note.GNU-stack, "", @progbits
