// chain: s_spin jit s_call main START
// gdb: it finds no frame pointer in code of no file
// Code that was made as the program runs, with a frame pointer and nothing else.
#define _GNU_SOURCE
#include "shape.h"
#include <string.h>
#include <sys/mman.h>

FN void s_spin(void) { SPIN; }

FN void s_call(void (*made)(void (*)(void)))
{
	made(s_spin);
	KEEP;
}

int main(void)
{
	static const unsigned char code[] = {
		0x55,                   // push %rbp
		0x48, 0x89, 0xe5,       // mov %rsp,%rbp
		0x48, 0x83, 0xec, 0x40, // sub $64,%rsp
		0xff, 0xd7,             // call *%rdi
		0xc9,                   // leave
		0xc3,                   // ret
	};
	void *p = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	BEGIN;
	memcpy(p, code, sizeof code);
	s_call((void (*)(void (*)(void)))p);
	KEEP;
	return 0;
}
