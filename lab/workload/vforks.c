/*
 * vforks.c - children that share the parent's memory work and then become another program: vforks MS PROGRAM
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long sum;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

__attribute__((noinline)) static void spin(int depth)
{
	volatile char frame[72];

	frame[0] = (char)depth;
	if (depth > 0)
		spin(depth - 1);
	else
		for (int i = 0; i < 5000000; i++)
			sum += (unsigned long)i;
	sum += (unsigned long)frame[0];
}

__attribute__((noinline)) static void start(char *program)
{
	char *argv[] = {program, NULL}, *none[] = {NULL};
	pid_t pid = vfork();

	if (pid < 0)
		exit(1);
	if (pid == 0) {
		spin(30);
		execve(program, argv, none);
		_exit(127);
	}
	waitpid(pid, NULL, 0);
}

int main(int argc, char **argv)
{
	double until = now() + atof(argv[1]);

	do {
		start(argv[argc - 1]);
		spin(10);
	} while (now() < until);
	return 0;
}
