# All operations of version 1, and epilogues of each form. Made into amd64.dll by
# clang-19 --target=x86_64-pc-windows-msvc -c, lld-link-19 /dll /noentry /filealign:16.
	.text
	.globl	codes
	.seh_proc codes
codes:	# every operation that can be in one function
	pushq	%rbp
	.seh_pushreg %rbp
	pushq	%r15
	.seh_pushreg %r15
	subq	$0x28, %rsp
	.seh_stackalloc 0x28
	subq	$0x1000, %rsp
	.seh_stackalloc 0x1000
	subq	$0x100000, %rsp
	.seh_stackalloc 0x100000
	leaq	0x80(%rsp), %rbp
	.seh_setframe %rbp, 0x80
	movq	%rbx, 0x40(%rsp)
	.seh_savereg %rbx, 0x40
	movq	%r12, 0x90000(%rsp)
	.seh_savereg %r12, 0x90000
	movaps	%xmm6, 0x20(%rsp)
	.seh_savexmm %xmm6, 0x20
	movaps	%xmm15, 0x100010(%rsp)
	.seh_savexmm %xmm15, 0x100010
	.seh_endprologue
	call	leaf
	movaps	0x20(%rsp), %xmm6
	leaq	0x100fa8(%rbp), %rsp
	popq	%r15
	popq	%rbp
	retq
	.seh_endproc
leaf:
	xorl	%eax, %eax
	retq
	.p2align 4, 0xcc

	.seh_proc frame	# the processor pushes, with a code
frame:
	.seh_pushframe @code
	pushq	%rax
	.seh_pushreg %rax
	subq	$0x20, %rsp
	.seh_stackalloc 0x20
	.seh_endprologue
	nop
	addq	$0x28, %rsp
	iretq
	.seh_endproc
	.seh_proc frame2	# and without
frame2:
	.seh_pushframe
	pushq	%rbx
	.seh_pushreg %rbx
	.seh_endprologue
	nop
	popq	%rbx
	iretq
	.seh_endproc

	.seh_proc ends	# epilogues that Windows knows, and code that only looks like one
ends:
	pushq	%rbx
	.seh_pushreg %rbx
	subq	$0x30, %rsp
	.seh_stackalloc 0x30
	.seh_endprologue
	jmp	1f
	popq	%rax
	pushq	%rax
1:	movl	$0xc3, %eax
	addq	$0x30, %rsp
	popq	%rbx
	rep retq
	addq	$0x30, %rsp
	popq	%rbx
	retq	$8
	addq	$0x30, %rsp
	popq	%rbx
	jmp	leaf
	addq	$0x30, %rsp
	popq	%rbx
	jmp	ends
	addq	$0x30, %rsp
	popq	%rbx
	jmpq	*leaf(%rip)
	addq	$0x30, %rsp
	popq	%rbx
	rex64 jmpq	*%rax
	jmpq	*%rax	# a table of a switch
	jmp	1b
	jmp	ends.cold
	.seh_endproc
	.seh_proc ends.cold	# as GCC describes it
ends.cold:
	.seh_pushreg %rbx
	.seh_stackalloc 0x30
	.seh_endprologue
	ud2
	.seh_endproc

	.seh_proc early	# an epilogue between the instructions of a prologue
early:
	subq	$0x28, %rsp
	.seh_stackalloc 0x28
	testl	%ecx, %ecx
	jne	1f
	addq	$0x28, %rsp
	retq
1:	movq	%rbx, 0x30(%rsp)
	.seh_savereg %rbx, 0x30
	.seh_endprologue
	movq	0x30(%rsp), %rbx
	addq	$0x28, %rsp
	retq
	.seh_endproc

	# By hand: a chain, an entry that leads to an entry, versions 2 and 3, damage.
chain:	pushq	%rsi
	subq	$0x20, %rsp
	jmp	chain2
chain1:	movq	%rdi, 0x38(%rsp)
	nop
	movq	0x38(%rsp), %rdi
chain2:	addq	$0x20, %rsp
	popq	%rsi
	retq
second:	pushq	%rdi
	pushq	%r14
	subq	$0x20, %rsp
	jmp	1f
	addq	$0x20, %rsp
second.early:
	popq	%r14
	popq	%rdi
	retq
1:	jmp	leaf	# not listed: it is in the function's body
	addq	$0x20, %rsp
	popq	%r14
	popq	%rdi
	retq
second.end:
third:	retq
fourth:	retq
fifth:	retq
	.p2align 4, 0xcc
end:
	.section .xdata,"dr"
	.p2align 2
x.chain:
	.byte	1, 5, 2, 0, 5, 0x32, 1, 0x60
x.chain1:
	.byte	0x21, 5, 2, 0, 5, 0x74
	.short	7
	.long	chain@IMGREL, chain1@IMGREL, x.chain@IMGREL
p.chain1:
	.long	chain1@IMGREL, chain2@IMGREL, x.chain1@IMGREL
x.second:	# epilogues of four bytes: pop %r14, pop %rdi, ret; one at the end, one before
	.byte	2, 7, 5, 0, 4, 0x16
	.byte	second.end-second.early, 6, 7, 0x32, 3, 0xe0, 1, 0x70, 0, 0
x.third:
	.byte	3, 0, 0, 0
x.fourth:
	.byte	1, 1, 1, 0, 1, 7
	.section .pdata,"dr"
	.long	chain@IMGREL, chain1@IMGREL, x.chain@IMGREL
	.long	chain1@IMGREL, chain2@IMGREL, p.chain1@IMGREL+1
	.long	chain2@IMGREL, second@IMGREL, x.chain@IMGREL
	.long	second@IMGREL, second.end@IMGREL, x.second@IMGREL
	.long	third@IMGREL, fourth@IMGREL, x.third@IMGREL
	.long	fourth@IMGREL, fifth@IMGREL, x.fourth@IMGREL
	.long	fifth@IMGREL, end@IMGREL, 0
