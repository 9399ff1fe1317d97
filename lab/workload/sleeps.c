/*
 * sleeps.c - threads that sleep again and again, and others that leave no processor idle: gcc -pthread sleeps.c
 *
 *	sleeps THREADS SLEEPS BUSY
 *
 * Each of the THREADS sleeps SLEEPS times, for 50 us to 4 ms.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile int over;
static int turns;

static void *spin(void *p)
{
	while (!over)
		;
	return p;
}

static void *sleeps(void *p)
{
	unsigned seed = (unsigned)(size_t)p + 1;

	for (int i = 0; i < turns; i++) {
		struct timespec t = {0, 50000 + (long)(rand_r(&seed) % 4000) * 1000};

		nanosleep(&t, NULL);
	}
	return p;
}

int main(int argc, char **argv)
{
	int n = atoi(argv[1]), busy = atoi(argv[3]);
	pthread_t t[1024], b[64];

	(void)argc;
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
	return 0;
}
