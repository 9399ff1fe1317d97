/*
 * spawn.c - starts programs at a rate, by vfork and by posix_spawn in turn: spawn PER_SECOND SECONDS PROGRAM...
 *
 * Prints how many ran, and how many a second.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64 }; /* that run at once */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static pid_t start(char *program, int n)
{
	char *argv[] = {program, "--version", NULL}, *none[] = {NULL};
	pid_t pid = -1;

	if (n & 1)
		return posix_spawn(&pid, program, NULL, NULL, argv, none) ? -1 : pid;
	pid = vfork();
	if (pid == 0) {
		execve(program, argv, none);
		_exit(127);
	}
	return pid;
}

int main(int argc, char **argv)
{
	double rate = atof(argv[1]), began = now(), end = began + atof(argv[2]);
	int started = 0, running = 0, null = open("/dev/null", O_WRONLY), out = dup(1);

	if (argc < 4 || dup2(null, 1) < 0)
		return 2;
	while (now() < end) {
		while (running > 0 && waitpid(-1, NULL, running < MOST ? WNOHANG : 0) > 0)
			running--;
		if (running < MOST && started < (now() - began) * rate) {
			if (start(argv[3 + started % (argc - 3)], started) < 0)
				return 1;
			started++;
			running++;
		} else {
			usleep(300);
		}
	}
	end = now();
	while (wait(NULL) > 0)
		;
	dprintf(out, "%d processes, %.0f a second\n", started, started / (end - began));
	return 0;
}
