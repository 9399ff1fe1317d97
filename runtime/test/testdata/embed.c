/* A program that walks its own stack by the eh_elf file in it: embed DEPTH. It prints how many modules have files, and how many frames it found. */
#include "eh_elf.h"

#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX 512

static struct eh_elf_module modules[64];
static struct eh_elf_map map;

__attribute__((noinline)) static int check(void)
{
	static uint64_t pcs[MAX];
	static void *theirs[MAX];
	struct eh_elf_cursor c;
	int n = 0, i, all = backtrace(theirs, MAX);

	eh_elf_capture(&c.state);
	eh_elf_begin(&c, &map, NULL);
	do
		pcs[n++] = c.state.pc;
	while (n < MAX && eh_elf_next(&c) == EH_ELF_OK);
	for (i = 1; i < n; i++)
		if (i >= all || pcs[i] != (uint64_t)(uintptr_t)theirs[i]) {
			printf("frame %d: %#llx, want %p\n", i, (unsigned long long)pcs[i], i < all ? theirs[i] : NULL);
			exit(1);
		}
	return n;
}

__attribute__((noinline)) static int deep(int n, const char *s)
{
	char more[n % 7 * 8 + 8];

	snprintf(more, sizeof more, "%s", s);
	return n == 0 ? check() : deep(n - 1, more) + (more[0] == 1);
}

int main(int argc, char **argv)
{
	int n, frames;

	if (argc != 2)
		return 2;
	eh_elf_map_init(&map, modules, 64, EH_ELF_SELF);
	n = eh_elf_map_self(&map, "/nonexistent");
	frames = deep(atoi(argv[1]), "text");
	printf("%d modules, %d frames\n", n, frames);
	eh_elf_map_close(&map);
	return 0;
}
