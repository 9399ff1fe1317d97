/*
 * execs.c - works for a while, at the bottom of a recursion, and then becomes another program: gcc [-DPAD=BYTES] [-DDEPTH=FRAMES]
 * execs.c; execs TIMES MS PROGRAM...
 *
 * The programs are this one, compiled in different ways.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#ifndef PAD
#define PAD 40
#endif
#ifndef DEPTH
#define DEPTH 20
#endif

static volatile unsigned long sum;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

__attribute__((noinline)) static void down(int depth, double until)
{
	volatile char frame[PAD];

	frame[PAD - 1] = (char)depth;
	if (depth > 0)
		down(depth - 1, until);
	else
		do
			for (int i = 0; i < 10000; i++)
				sum += (unsigned long)i;
		while (now() < until);
	sum += (unsigned long)frame[PAD - 1];
}

int main(int argc, char **argv)
{
	int times = atoi(argv[1]);
	char left[20], *first = argv[3];

	down(DEPTH, now() + atof(argv[2]));
	if (times <= 0)
		return 0;
	snprintf(left, sizeof left, "%d", times - 1);
	argv[1] = left;
	for (int i = 3; i < argc - 1; i++)
		argv[i] = argv[i + 1];
	argv[argc - 1] = first;
	execv(argv[3], argv);
	perror(argv[3]);
	return 1;
}
