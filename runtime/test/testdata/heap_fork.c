/* heap_fork.c: a process keeps 100 blocks of 100 bytes, its child one of 77. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *volatile sink;

__attribute__((noinline)) static void keep(size_t n)
{
	sink = malloc(n);
	__asm__ volatile("" ::: "memory");
}

int main(void)
{
	int i;

	for (i = 0; i < 100; i++)
		keep(100);
	if (fork() == 0) {
		free(sink);
		keep(77);
		_exit(0);
	}
	wait(NULL);
	return 0;
}
