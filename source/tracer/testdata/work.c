/* Programs to record: work NAME [ARGUMENT]. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double used(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

/* bursts runs for ms at a time, and sleeps for some 6 to 20 ms in between: never as long, so no period of a sampler fits. */
__attribute__((noinline)) static void bursts(double ms)
{
	for (;;) {
		for (double end = used() + ms; used() < end;)
			for (volatile int i = 0; i < 1000; i++)
				;
		usleep(6000 + random() % 14000);
	}
}

/* burn runs for some of its thread's processor time, in ms; for ever if that is 0. */
__attribute__((noinline)) static void burn(int ms)
{
	struct timespec t;
	do
		for (volatile int i = 0; i < 100000; i++)
			;
	while (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0 && (ms == 0 || t.tv_sec * 1000 + t.tv_nsec / 1000000 < ms));
}

__attribute__((noinline)) static void in_first(void) { burn(300); __asm__ volatile(""); }
__attribute__((noinline)) static void in_child(void) { burn(300); __asm__ volatile(""); }
__attribute__((noinline)) static void in_executed(void) { burn(300); __asm__ volatile(""); }
__attribute__((noinline)) static void in_thread(void) { burn(300); __asm__ volatile(""); }
__attribute__((noinline)) static void spin(void) { burn(0); __asm__ volatile(""); }

__attribute__((noinline)) static void in_user(long n)
{
	for (volatile long i = 0; i < n; i++)
		;
}

__attribute__((noinline)) static long in_call(int fd, char *to, size_t size) { return read(fd, to, size) + 1; }

static double ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

/*
 * share reads size bytes at a time on average, which takes about a share of its time. How long it calculates and how much it reads is
 * another each time: a sampler whose period is a multiple of the program's sees the same part of it again and again.
 */
static int share(double share, size_t size)
{
	int fd = open("/dev/zero", O_RDONLY);
	char *to = calloc(2, size);
	double call = 1e18, turn = 1e18;
	for (int k = 0; k < 50; k++) {
		double a = ns();
		for (int i = 0; i < 100; i++)
			in_call(fd, to, size);
		double b = ns();
		in_user(10000);
		double c = ns();
		call = (b - a) / 100 < call ? (b - a) / 100 : call;
		turn = (c - b) / 10000 < turn ? (c - b) / 10000 : turn;
	}
	if (write(1, "up\n", 3) != 3)
		return 1;
	for (unsigned seed = 1;;) {
		double u = (double)rand_r(&seed) / RAND_MAX;
		in_user(3 * u * u * call * (1 - share) / share / turn); /* 3 u u is 1 on average */
		in_call(fd, to, 2 * size * ((double)rand_r(&seed) / RAND_MAX));
	}
}

__attribute__((noinline)) static void in_handler(int sig)
{
	burn(0);
	(void)sig;
}

/* alternate runs on a signal's stack */
static void *alternate(void *arg)
{
	struct sigaction a = {.sa_handler = in_handler, .sa_flags = SA_ONSTACK};
	stack_t s = {.ss_sp = malloc(65536), .ss_size = 65536};
	sigaltstack(&s, NULL);
	sigaction(SIGUSR1, &a, NULL);
	raise(SIGUSR1);
	return arg;
}

static void *thread(void *arg)
{
	prctl(PR_SET_NAME, "named");
	in_thread();
	return arg;
}

static void *spins(void *arg)
{
	spin();
	return arg;
}

static void *ends(void *arg) { return arg; }

static void *churns(void *arg)
{
	for (pthread_t t;;)
		if (!pthread_create(&t, NULL, ends, NULL))
			pthread_join(t, NULL);
	return arg;
}

static void *executes(void *arg)
{
	execl("/proc/self/exe", "work", "executed", NULL);
	return arg;
}

/* works for a moment and executes this program again, as often as arg says */
static void *works(void *arg)
{
	char left[16];

	burn(3);
	snprintf(left, sizeof left, "%d", atoi(arg) - 1);
	execl("/proc/self/exe", "work", "heirs", left, NULL);
	return arg;
}

static void *asleep(void *arg)
{
	for (;;)
		pause();
	return arg;
}

int main(int argc, char **argv)
{
	pthread_t t;
	if (argc > 1 && !strcmp(argv[1], "family")) {
		pthread_create(&t, NULL, thread, NULL);
		pid_t child = fork();
		if (child == 0) {
			in_child();
			_exit(1);
		}
		pid_t other = vfork();
		if (other == 0) {
			execl("/proc/self/exe", "work", "executed", NULL);
			_exit(1);
		}
		in_first();
		pthread_join(t, NULL);
		int a, b;
		waitpid(child, &a, 0);
		waitpid(other, &b, 0);
		return WEXITSTATUS(a) + WEXITSTATUS(b);
	}
	if (argc > 1 && !strcmp(argv[1], "churn")) {
		for (int i = 0; i < 4; i++)
			pthread_create(&t, NULL, churns, NULL);
		return write(1, "up\n", 3) == 3 ? churns(NULL) != NULL : 1;
	}
	if (argc > 1 && !strcmp(argv[1], "heir")) { /* another thread executes a program, which runs for less than the first has */
		burn(600);
		pthread_create(&t, NULL, executes, NULL);
		pthread_join(t, NULL);
	}
	if (argc > 2 && !strcmp(argv[1], "heirs")) {
		if (atoi(argv[2]) == 0)
			return 0;
		pthread_create(&t, NULL, works, argv[2]);
		pthread_join(t, NULL);
	}
	if (argc > 1 && !strcmp(argv[1], "executed")) {
		prctl(PR_SET_NAME, "executed");
		in_executed();
		return 22;
	}
	if (argc > 1 && !strcmp(argv[1], "alternate")) {
		pthread_create(&t, NULL, alternate, NULL);
		if (write(1, "up\n", 3) != 3)
			return 1;
		alternate(NULL);
	}
	if (argc > 1 && !strcmp(argv[1], "forks") && write(1, "up\n", 3) == 3) /* children that end at once */
		for (;;) {
			pid_t child = fork();
			if (child == 0)
				_exit(0);
			waitpid(child, NULL, 0);
		}
	if (argc > 2 && !strcmp(argv[1], "bursts") && write(1, "up\n", 3) == 3)
		bursts(atof(argv[2]));
	if (argc > 3 && !strcmp(argv[1], "share"))
		return share(atoi(argv[2]) / 100.0, atoi(argv[3]));
	if (argc > 2 && !strcmp(argv[1], "asleep")) { /* so many threads, and one that runs */
		pthread_attr_t small;
		pthread_attr_init(&small);
		pthread_attr_setstacksize(&small, 16384);
		for (int i = 0; i < atoi(argv[2]); i++)
			if (pthread_create(&t, &small, asleep, NULL))
				return 1;
		if (write(1, "up\n", 3) != 3)
			return 1;
		spin();
	}
	if (argc > 2 && !strcmp(argv[1], "threads")) {
		for (int i = 0; i < atoi(argv[2]); i++)
			pthread_create(&t, NULL, spins, NULL);
		pthread_create(&t, NULL, asleep, NULL);
		if (write(1, "up\n", 3) != 3)
			return 1;
		/* And threads that come and go. */
		for (;;) {
			pthread_create(&t, NULL, thread, NULL);
			pthread_join(t, NULL);
		}
	}
	return 2;
}
