/* heap_handler.c: a signal handler forks wherever it interrupts, also while an allocation is recorded; parent and child go on from there. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t forks, is_child, wrong;

/* The next signal comes when the handler has ended, at another moment each time. */
static void next_signal(void)
{
	static unsigned r = 1;
	struct itimerval after = {{0, 0}, {0, 0}};

	r = r * 1103515245u + 12345u;
	after.it_value.tv_usec = 50 + (r >> 16) % 400;
	setitimer(ITIMER_REAL, &after, NULL);
}

static void handler(int sig)
{
	int e = errno, status;
	pid_t pid;

	(void)sig;
	if (is_child)
		return;
	pid = fork();
	if (pid == 0) {
		is_child = 1;
	} else if (pid > 0) {
		if (waitpid(pid, &status, 0) != pid || status != 7 << 8)
			wrong++;
		forks++;
		next_signal();
	}
	errno = e;
}

/* Other stacks all the time. */
__attribute__((noipa)) static void *deep(unsigned path, int maps)
{
	void *p;

	if (path > 1) {
		p = path % 2 ? deep(path / 2, maps) : deep(path / 2, maps);
		__asm__ volatile("");
		return p;
	}
	if (maps) {
		p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		return p == MAP_FAILED ? NULL : p;
	}
	return malloc(100);
}

static void give(void *p, int maps)
{
	if (maps)
		munmap(p, 8192);
	else
		free(p);
}

/* Allocates n times, and keeps 10. */
static void some(unsigned n, int maps)
{
	void *kept[10] = {0};

	for (unsigned i = 0; i < n; i++) {
		if (kept[i % 10])
			give(kept[i % 10], maps);
		if (!(kept[i % 10] = deep(i * 2654435761u >> 15 | 1u << 17, maps)))
			abort();
		if (is_child == 1) { /* it comes back from where it was interrupted, and has had the rest of a recording */
			is_child = 2;
			i = 0;
			n = 300;
		}
	}
	for (int i = 0; i < 10; i++)
		if (kept[i])
			give(kept[i], maps);
}

int main(int argc, char **argv)
{
	int most = argc > 1 ? atoi(argv[1]) : 100, maps = argc > 2;
	char text[80];

	signal(SIGALRM, handler);
	next_signal();
	while (forks < most && !is_child)
		some(1000, maps);
	if (is_child)
		_exit(7);
	signal(SIGALRM, SIG_IGN);
	snprintf(text, sizeof text, "%d wrong\n", (int)wrong);
	return write(1, text, strlen(text)) < 0;
}
