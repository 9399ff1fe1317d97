/* deep.c - works at the bottom of a deep recursion until it is killed: deep FRAMES. */
#include <stdlib.h>

static volatile unsigned long sum;
static volatile int forever = 1;

__attribute__((noinline)) static void down(int n)
{
	volatile char frame[48];

	frame[0] = (char)n;
	if (n > 0)
		down(n - 1);
	else
		for (unsigned long i = 0; forever; i++)
			sum += i;
	sum += (unsigned long)frame[0];
}

int main(int argc, char **argv)
{
	down(argc > 1 ? atoi(argv[1]) : 1000);
	return 0;
}
