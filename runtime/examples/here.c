/* Prints the stack of the current thread: cc here.c $(pkg-config --cflags --libs unspool) */
#include <libunspool.h>
#include <stdio.h>

int main(void)
{
	void *pcs[64];
	int n = unspool_backtrace(pcs, 64);

	for (int i = 0; i < n; i++) {
		char name[256];
		uint64_t off;

		if (unspool_name((uint64_t)pcs[i] - 1, name, sizeof name, &off) == 0)
			printf("#%-2d %p %s+%#lx\n", i, pcs[i], name, (unsigned long)off + 1);
		else
			printf("#%-2d %p\n", i, pcs[i]);
	}
	return n > 0 ? 0 : 1;
}
