/* SPDX-License-Identifier: Apache-2.0 */
/* A process to be looked at: main's thread is in a signal handler that sorts, below 30 calls; another one sleeps. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static int compare(const void *a, const void *b)
{
	static int n;

	if (n++ == 50) {
		puts("ready");
		fflush(stdout);
		pause();
	}
	return *(const int *)a - *(const int *)b;
}

static void handler(int sig)
{
	int a[200];

	(void)sig;
	for (int i = 0; i < 200; i++)
		a[i] = rand();
	qsort(a, 200, sizeof *a, compare);
}

static void *sleeper(void *arg)
{
	pause();
	return arg;
}

static void down(volatile int n)
{
	volatile char room[100];

	room[n] = 1;
	if (n)
		down(n - 1);
	else
		raise(SIGUSR1);
	room[n] = 2;
}

int main(void)
{
	pthread_t t;

	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
	signal(SIGUSR1, handler);
	if (pthread_create(&t, NULL, sleeper, NULL))
		return 1;
	usleep(20000);
	down(30);
	return 0;
}
