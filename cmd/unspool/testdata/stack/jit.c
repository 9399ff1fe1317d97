// Functions for a just-in-time compiler: each has a frame of another kind, none keeps a frame pointer.
#include <stdio.h>
#include <unistd.h>

volatile int end;

__attribute__((noinline)) int leaf(int n)
{
	volatile char b[64];

	b[n & 63] = (char)n;
	puts("ready");
	fflush(stdout);
	while (!end)
		pause();
	return b[n & 63];
}

__attribute__((noinline)) int middle(int n)
{
	int r = leaf(n + 1);

	return r + n;
}

__attribute__((noinline)) int outer(int n)
{
	volatile int a[n + 3];

	a[0] = middle(n + 3);
	return a[0] + 1;
}

int main(void)
{
	return outer(4);
}
