// chain: s_spin s_only _start
// builds: gcc-O2-static clang-O2-static-pie gcc-O2-nopie
// link: -nostartfiles
// gdb: it looks for more where the entry point is
// A program without the C library's beginning.
#include "shape.h"

FN void s_spin(void) { SPIN; }

FN void s_only(void)
{
	s_spin();
	KEEP;
}

__asm__(".text\n.globl _start\n.type _start, @function\n_start:\n	xor %ebp, %ebp\n	and $-16, %rsp\n	call s_only\n	hlt\n.size _start, .-_start\n");
