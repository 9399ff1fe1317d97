// spin is the program of the recording and of the core that the examples read: main calls work, work calls spin, and spin does not return.
// It needs no C library and no dynamic linker. testdata/make makes it, the recording and the core.

static volatile unsigned long turns;

__attribute__((noinline)) void spin(unsigned long n)
{
	for (unsigned long i = 0; i < n; i++)
		turns++;
	__builtin_trap();
}

__attribute__((noinline)) void work(unsigned long n)
{
	volatile unsigned long kept[4] = {n};
	spin(kept[0]);
	turns += kept[0];
}

__attribute__((noinline)) int main(void)
{
	work(60000000);
	return turns != 0;
}

// The entry point: the stack is aligned, and there is no caller.
__asm__(".globl _start\n_start:\n.cfi_startproc\n.cfi_undefined rip\nxor %ebp, %ebp\nand $-16, %rsp\ncall main\nud2\n.cfi_endproc\n");
