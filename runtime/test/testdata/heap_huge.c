/* SPDX-License-Identifier: Apache-2.0 */
/* Asks in vain for as many bytes as the argument says, by each function, and allocates 1,000 times 1,000 bytes between these. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

static void *volatile sink;

static __attribute__((noipa)) void after(void)
{
	for (int i = 0; i < 1000; i++)
		sink = malloc(1000);
}

int main(int argc, char **argv)
{
	volatile size_t n = strtoul(argv[argc - 1], NULL, 0);
	void *p = NULL;

	after();
	if (malloc(n))
		return 1;
	after();
	if (calloc(1, n))
		return 2;
	after();
	if (realloc(sink, n))
		return 3;
	after();
	if (memalign(64, n) || aligned_alloc(64, n & -64) || posix_memalign(&p, 64, n) == 0 || valloc(n) || pvalloc(n))
		return 4;
	after();
	printf("done\n");
	return 0;
}
