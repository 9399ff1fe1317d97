// chain: s_spin s_high s_switch s_low s_switch main START
// not: tcc (its assembler has no call frame directives)
// gdb: it takes a stack above its caller's for a damaged one
// Two stacks of the program's own, one below and one above its caller's.
#include "shape.h"

static char low[65536] __attribute__((aligned(16))), high[65536] __attribute__((aligned(16)));

// s_switch(f, top) calls f on another stack.
void s_switch(void (*f)(void), char *top);
__asm__(
	".text\n"
	".globl s_switch\n"
	".type s_switch, @function\n"
	"s_switch:\n"
	"	.cfi_startproc\n"
	"	push %rbp\n"
	"	.cfi_def_cfa_offset 16\n"
	"	.cfi_offset %rbp, -16\n"
	"	mov %rsp, %rbp\n"
	"	.cfi_def_cfa_register %rbp\n"
	"	mov %rsi, %rsp\n"
	"	call *%rdi\n"
	"	leave\n"
	"	.cfi_def_cfa %rsp, 8\n"
	"	.cfi_restore %rbp\n"
	"	ret\n"
	"	.cfi_endproc\n"
	".size s_switch, .-s_switch\n");

FN void s_spin(void) { SPIN; }

FN void s_high(void)
{
	s_spin();
	KEEP;
}

FN void s_low(void)
{
	s_switch(s_high, (low < high ? high : low) + sizeof high);
	KEEP;
}

int main(void)
{
	BEGIN;
	s_switch(s_low, (low < high ? low : high) + sizeof low);
	KEEP;
	return 0;
}
