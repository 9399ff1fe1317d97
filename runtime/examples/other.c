/* Prints the stack of a thread of another process: other TID */
#include <libunspool.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	struct unspool_frame f[256];
	enum unspool_stop stop;
	int n;

	if (argc != 2)
		return 2;
	n = unspool_backtrace_thread((pid_t)atoi(argv[1]), f, 256, &stop);
	if (n < 0) {
		perror("other");
		return 1;
	}
	for (int i = 0; i < n; i++)
		printf("#%-2d %#lx sp %#lx how %u\n", i, (unsigned long)f[i].pc, (unsigned long)f[i].sp, f[i].how);
	printf("ended: %d\n", stop);
	return 0;
}
