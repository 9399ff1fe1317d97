	.text
	.globl	main
	.type	main, @function
main:
	xor	%eax, %eax
	call	helper
	nop
	ret
	.size	main, .-main

	.type	helper, @function
helper:
	mov	$1, %ecx
1:	dec	%ecx
	jnz	1b
	ret
	.size	helper, .-helper
	.section .note.GNU-stack,"",@progbits
