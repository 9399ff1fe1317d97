// Threads that recurse, and a signal in a recursion whose handler recurses until it stops the program. Each function writes down where it returns to: the chains
// array has, for each thread, its return addresses, outermost first, and 4 in the place of one that only the kernel knows.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <unistd.h>

enum { THREADS = 3, MAX = 300 };

struct chain {
	volatile unsigned long n;
	unsigned long at[MAX];
} chains[THREADS + 1];

static volatile int ready;

#define ENTER(c) ((c)->at[(c)->n++] = (unsigned long)__builtin_extract_return_addr(__builtin_return_address(0)))
#define NOINLINE __attribute__((noinline))

volatile int sink;
volatile double real;

NOINLINE int wait_here(struct chain *c, int a)
{
	ENTER(c);
	__sync_fetch_and_add(&ready, 1);
	for (;;)
		sink = a;
	return a;
}

NOINLINE int deep(struct chain *c, int n, int a, int b, double x)
{
	ENTER(c);
	int r = n == 0 ? wait_here(c, a) : deep(c, n - 1, b + n, a * n, x + n);
	real = x * r;
	return r + a * b;
}

NOINLINE int sized(struct chain *c, int n)
{
	ENTER(c);
	volatile char room[3000];
	room[n] = n;
	int r = deep(c, 20 + n, n, room[n], 1.5);
	return r + room[n / 2];
}

NOINLINE int dynamic(struct chain *c, int n)
{
	ENTER(c);
	volatile char *room = __builtin_alloca(n * 40 + 16);
	room[n] = n;
	int r = sized(c, n);
	return r + room[n / 2];
}

NOINLINE void *thread(void *arg)
{
	struct chain *c = arg;
	ENTER(c);
	sink = dynamic(c, c - chains);
	return 0;
}

NOINLINE int stop(struct chain *c, int n)
{
	ENTER(c);
	volatile int r = n ? stop(c, n - 1) : 0;
	if (n == 0) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile int *)(uintptr_t)(r + 8) = 1;
	}
	return r + n;
}

NOINLINE void handler_info(int sig, siginfo_t *info, void *context)
{
	struct chain *c = &chains[0];
	(void)info, (void)context;
	c->at[c->n++] = 4;
	sink = stop(c, sig);
}

NOINLINE int interrupted(struct chain *c, int n, double x)
{
	ENTER(c);
	volatile int r = n ? interrupted(c, n - 1, x + n) : 1;
	if (n == 0)
		*(volatile int *)(uintptr_t)(r + 3) = r;
	real = x;
	return r + n;
}

NOINLINE void handler(int sig)
{
	struct chain *c = &chains[0];
	c->at[c->n++] = 4;
	struct sigaction a = {.sa_sigaction = handler_info, .sa_flags = SA_SIGINFO | SA_NODEFER};
	sigaction(SIGSEGV, &a, 0);
	sink = interrupted(c, sig / 2, 2.5);
}

NOINLINE int first(struct chain *c)
{
	ENTER(c);
	struct sigaction a = {.sa_handler = handler, .sa_flags = SA_NODEFER};
	sigaction(SIGSEGV, &a, 0);
	return interrupted(c, 9, 0.5) + 1;
}

int main(void)
{
	pthread_t t;
	for (int i = 1; i <= THREADS; i++)
		pthread_create(&t, 0, thread, &chains[i]);
	while (ready < THREADS)
		usleep(1000);
	return first(&chains[0]);
}
