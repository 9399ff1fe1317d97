/*
 * sleeps.c - threads that sleep again and again, and others that leave no processor idle: gcc -pthread sleeps.c
 *
 *	sleeps THREADS SLEEPS BUSY [FILE]
 *
 * Each of the THREADS sleeps SLEEPS times, for 50 us to 4 ms. FILE gets a line for each of them: its thread ID, how often it has blocked
 * as the kernel counts it, and when it looked at that count (CLOCK_MONOTONIC, ns).
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile int over;
static int turns;

static struct result {
	long tid, blocked;
	struct timespec at;
} results[1024];

static void *spin(void *p)
{
	while (!over)
		;
	return p;
}

static void *sleeps(void *p)
{
	unsigned seed = (unsigned)(size_t)p + 1;
	struct result *r = &results[(size_t)p];
	struct rusage u;

	for (int i = 0; i < turns; i++) {
		struct timespec t = {0, 50000 + (long)(rand_r(&seed) % 4000) * 1000};

		nanosleep(&t, NULL);
	}
	getrusage(RUSAGE_THREAD, &u);
	clock_gettime(CLOCK_MONOTONIC, &r->at);
	r->tid = syscall(SYS_gettid);
	r->blocked = u.ru_nvcsw;
	return p;
}

int main(int argc, char **argv)
{
	int n = atoi(argv[1]), busy = atoi(argv[3]);
	pthread_t t[1024], b[64];

	turns = atoi(argv[2]);
	for (int i = 0; i < busy; i++)
		pthread_create(&b[i], NULL, spin, NULL);
	for (int i = 0; i < n; i++)
		pthread_create(&t[i], NULL, sleeps, (void *)(size_t)i);
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	over = 1;
	for (int i = 0; i < busy; i++)
		pthread_join(b[i], NULL);
	if (argc > 4) {
		FILE *f = fopen(argv[4], "w");

		for (int i = 0; f && i < n; i++)
			fprintf(f, "%ld %ld %lld\n", results[i].tid, results[i].blocked, results[i].at.tv_sec * 1000000000LL + results[i].at.tv_nsec);
		if (!f || fclose(f))
			return 1;
	}
	return 0;
}
