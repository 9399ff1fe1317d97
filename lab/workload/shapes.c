/* Programs whose stacks are hard at one place: see walking_test.go. Each spins for half a second of processor time: shapes NAME. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#define OWN __attribute__((noinline))

static volatile long sum;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The last instructions of a function are most of it. */
OWN static void leaf(void)
{
	__asm__ volatile("");
}

OWN static void work(void)
{
	for (double end = now() + 0.5; now() < end;)
		for (int i = 0; i < 1000000; i++)
			leaf();
	sum++;
}

static void *nothing(void *p)
{
	return p;
}

OWN static void threads(void)
{
	for (double end = now() + 0.5; now() < end;) {
		pthread_t t;

		if (pthread_create(&t, NULL, nothing, NULL) == 0)
			pthread_join(t, NULL);
	}
	sum++;
}

static ucontext_t back, there;
static int turn, cold;

/* The first returns at once, so that the page of where it returns to is mapped. Then, if cold, that is taken back. */
static void coroutine(void)
{
	if (turn++ == 0)
		return;
	if (cold) {
		void **top = __builtin_frame_address(0);

		madvise((void *)((unsigned long)top[1] & -65536ul), 2 * 65536, MADV_DONTNEED);
	}
	work();
	sum++;
}

OWN static void enter(void)
{
	static char stack[1 << 16];

	getcontext(&there);
	there.uc_stack.ss_sp = stack;
	there.uc_stack.ss_size = sizeof stack;
	there.uc_link = &back;
	makecontext(&there, coroutine, 0);
	swapcontext(&back, &there);
	sum++;
}

OWN static void coroutines(void)
{
	enter();
	enter();
}

/* Calls f on a stack, which ends at top. The CFA stays that of this frame, by the frame pointer. */
void on_stack(void *top, void (*f)(void));
__asm__(".text\n.globl on_stack\n.type on_stack,@function\non_stack:\n.cfi_startproc\n"
	"push %rbp\n.cfi_def_cfa_offset 16\n.cfi_offset %rbp,-16\nmov %rsp,%rbp\n.cfi_def_cfa_register %rbp\n"
	"mov %rdi,%rsp\ncall *%rsi\nleave\n.cfi_def_cfa %rsp,8\nret\n.cfi_endproc\n.size on_stack,.-on_stack\n");

static char *low, *high;

static void inner(void)
{
	work();
	sum++;
}

static void middle(void)
{
	on_stack(high + 65536, inner);
	sum++;
}

static void handler(int sig)
{
	(void)sig;
	work();
	sum++;
}

OWN static void signals(void)
{
	signal(SIGUSR1, handler);
	raise(SIGUSR1);
	sum++;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	if (strcmp(name, "threads") == 0) {
		threads();
	} else if (strcmp(name, "coroutine") == 0) {
		coroutines();
	} else if (strcmp(name, "cold") == 0) {
		cold = 1;
		coroutines();
	} else if (strcmp(name, "signal") == 0) {
		signals();
	} else if (strcmp(name, "stacks") == 0) {
		/* main's is above both. */
		low = mmap(NULL, 3 * 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		high = low + 2 * 65536;
		on_stack(low + 65536, middle);
	} else {
		work();
	}
	return (int)(sum & 0);
}
