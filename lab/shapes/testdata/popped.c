// chain: s_popped s_fp main START
// builds: gcc-O2 gcc-O2-fp gcc-O2-static clang-O2 clang-O2-fp musl-gcc-O2 musl-gcc-O2-static
// A program waits at the return of a function that has popped rbp, whose rule still says that rbp is on the stack, below the stack
// pointer. Its caller has a frame pointer and no unwind information.
#include "shape.h"

void s_fp(void);

__asm__(
	".text\n"
	".type s_popped, @function\n"
	"s_popped:\n"
	"	.cfi_startproc\n"
	"	push %rbp\n"
	"	.cfi_def_cfa_offset 16\n"
	"	.cfi_offset %rbp, -16\n"
	"	mov %rsp, %rbp\n"
	"	.cfi_def_cfa_register %rbp\n"
	"	mov $1, %eax\n"
	"	mov $1, %edi\n"
	"	lea ready(%rip), %rsi\n"
	"	mov $6, %edx\n"
	"	syscall\n"
	"	pop %rbp\n"
	"	.cfi_def_cfa %rsp, 8\n"
	"1:	pause\n"
	"	cmpl $0, again(%rip)\n"
	"	jne 1b\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".size s_popped, .-s_popped\n"
	".globl s_fp\n"
	".type s_fp, @function\n"
	"s_fp:\n"
	"	push %rbp\n"
	"	mov %rsp, %rbp\n"
	"	sub $48, %rsp\n"
	"	call s_popped\n"
	"	leave\n"
	"	ret\n"
	".size s_fp, .-s_fp\n"
	".section .rodata\n"
	"ready: .ascii \"ready\\n\"\n"
	".data\n"
	"again: .long 1\n"
	".text\n");

int main(void)
{
	BEGIN;
	s_fp();
	KEEP;
	return 0;
}
