/*
 * Threads that wait, each below some calls.
 *
 *	sleepers THREADS DEPTH     says "ready" when all of them wait
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t all;
static int depth;

__attribute__((noinline)) static int down(int n)
{
	volatile char frame[64];
	int r = 0;

	frame[0] = (char)n;
	if (n > 0) {
		r = down(n - 1);
	} else {
		pthread_barrier_wait(&all);
		pthread_mutex_lock(&held);
	}
	return r + frame[0];
}

static void *begin(void *arg)
{
	down(depth);
	return arg;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 100;

	depth = argc > 2 ? atoi(argv[2]) : 20;
	pthread_mutex_lock(&held);
	pthread_barrier_init(&all, NULL, (unsigned)n + 1);
	for (int i = 0; i < n; i++) {
		pthread_t t;

		if (pthread_create(&t, NULL, begin, NULL) != 0)
			return 1;
	}
	pthread_barrier_wait(&all);
	puts("ready");
	fflush(stdout);
	pause();
	return 0;
}
