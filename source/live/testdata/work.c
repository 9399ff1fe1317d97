/* Programs to look at: work NAME [ARGUMENT...]. When all is in place, each says so and stays where it is. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void up(void)
{
	if (write(1, "up\n", 3) != 3)
		_exit(1);
}

static pthread_barrier_t all;
static volatile int depth;

__attribute__((noinline)) static int down(int n)
{
	volatile char use[256];
	use[0] = (char)n;
	if (n > 0)
		return down(n - 1) + use[0];
	pthread_barrier_wait(&all);
	while (depth)
		pause();
	return 0;
}

static void *deep(void *arg)
{
	(void)arg;
	down(depth);
	return NULL;
}

/* threads COUNT DEPTH */
static void threads(int count, int n)
{
	depth = n;
	pthread_barrier_init(&all, NULL, (unsigned)count + 1);
	for (int i = 0; i < count; i++) {
		pthread_t t;
		if (pthread_create(&t, NULL, deep, NULL))
			exit(1);
	}
	pthread_barrier_wait(&all);
	up();
	for (;;)
		pause();
}

static void handler(int sig)
{
	(void)sig;
	up();
	for (;;)
		pause();
}

/* handler, altstack */
__attribute__((noinline)) static void in_handler(int alt)
{
	struct sigaction a = {.sa_handler = handler, .sa_flags = alt ? SA_ONSTACK : 0};
	stack_t s = {.ss_sp = malloc(65536), .ss_size = 65536};
	sigaltstack(&s, NULL);
	sigaction(SIGUSR1, &a, NULL);
	raise(SIGUSR1);
}

static void *thread_in_handler(void *arg)
{
	in_handler(1);
	return arg;
}

/* own: on a stack of its own, called from a thread's */
#if defined(__x86_64__)
__attribute__((noinline)) static void wait_here(void)
{
	up();
	for (;;)
		pause();
}

__attribute__((noinline, optimize("no-omit-frame-pointer"))) static void *to_own(void *arg)
{
	char *top = (char *)malloc(65536) + 65536;
	top -= (unsigned long)top % 16;
	__asm__ volatile("mov %%rsp, %%rbx\n mov %0, %%rsp\n call *%1\n mov %%rbx, %%rsp" ::"r"(top), "r"(wait_here) : "rbx", "memory", "cc");
	return arg;
}
#else
static void *to_own(void *arg) { return thread_in_handler(arg); }
#endif

static void join(void *(*f)(void *))
{
	pthread_t t;
	if (!pthread_create(&t, NULL, f, NULL))
		pthread_join(t, NULL);
}

/* vfork: the parent waits until the child has gone, which is never */
static void in_vfork(void)
{
	if (vfork() == 0) {
		up();
		for (;;)
			pause();
	}
}

/* corrupt: the caller's caller is lost */
__attribute__((noinline)) static void corrupt(void)
{
	void **frame = __builtin_frame_address(0);
	frame[1] = (void *)0x123456;
	up();
	for (;;)
		pause();
}

/* crossed: the stack pointer points to nowhere */
__attribute__((noinline)) static void nowhere(void)
{
	up();
#if defined(__x86_64__)
	__asm__ volatile("mov $0x1234560, %%rsp\n1: mov $34, %%eax\n syscall\n jmp 1b" ::: "memory");
#endif
}

/* busy COUNT: threads that run */
static void *spin(void *arg)
{
	for (volatile unsigned long n = 0;; n++)
		;
	return arg;
}

static void *noop(void *arg) { return arg; }

/* churn: threads that come and go, from all threads */
static void *churn(void *arg)
{
	for (;;) {
		pthread_t t;
		if (!pthread_create(&t, NULL, noop, NULL))
			pthread_join(t, NULL);
	}
	return arg;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int n = argc > 2 ? atoi(argv[2]) : 1;
	if (!strcmp(what, "threads"))
		threads(n, argc > 3 ? atoi(argv[3]) : 5);
	if (!strcmp(what, "handler") || !strcmp(what, "altstack"))
		in_handler(!strcmp(what, "altstack"));
	if (!strcmp(what, "thread-altstack"))
		join(thread_in_handler);
	if (!strcmp(what, "own"))
		to_own(NULL);
	if (!strcmp(what, "thread-own"))
		join(to_own);
	if (!strcmp(what, "vfork"))
		in_vfork();
	if (!strcmp(what, "corrupt"))
		corrupt();
	if (!strcmp(what, "nowhere"))
		nowhere();
	if (!strcmp(what, "read")) {
		char b;
		up();
		return (int)read(0, &b, 1);
	}
	if (!strcmp(what, "busy") || !strcmp(what, "churn")) {
		for (int i = 0; i < n; i++) {
			pthread_t t;
			pthread_create(&t, NULL, what[0] == 'b' ? spin : churn, NULL);
		}
		up();
		for (;;)
			pause();
	}
	if (!strcmp(what, "zombie")) { /* the first thread has exited, another has not */
		pthread_t t;
		depth = 1;
		pthread_barrier_init(&all, NULL, 1);
		pthread_create(&t, NULL, deep, NULL);
		up();
		pthread_exit(NULL);
	}
	if (!strcmp(what, "exec")) { /* executes itself again and again, from a thread or not */
		up();
		execl("/proc/self/exe", "work", "exec2", NULL);
	}
	if (!strcmp(what, "exec2"))
		execl("/proc/self/exe", "work", "exec2", NULL);
	return 2;
}
