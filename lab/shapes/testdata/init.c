// chain: _init LIB+ _start
// gdb: it has no rule for this section
// not: tcc
// not: clang-O2-lto (its .init comes after crtn.o's return)
// The code of section .init has no unwind information: it is put together from pieces of several files.
#include "shape.h"

__asm__(
	".section .init,\"ax\",@progbits\n"
	"	mov $1, %eax\n"
	"	mov $1, %edi\n"
	"	lea s_ready(%rip), %rsi\n"
	"	mov $6, %edx\n"
	"	syscall\n"
	"1:	pause\n"
	"	cmpl $0, s_again(%rip)\n"
	"	jne 1b\n"
	".section .rodata\n"
	"s_ready: .ascii \"ready\\n\"\n"
	".data\n"
	"s_again: .long 1\n"
	".text\n");

int main(void) { return 0; }
