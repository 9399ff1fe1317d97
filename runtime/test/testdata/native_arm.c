/* A client of libunspool on AArch64, which compares its stacks with libgcc's, and names its own functions in a context. Prints how many stacks are right. */
#define _GNU_SOURCE
#include <libunspool.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unwind.h>

#define OWN __attribute__((noinline, noipa))
#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); abort(); } } while (0)

enum { MAX = 128 };

static int stacks;

struct list {
	void *pc[MAX];
	int n;
};

static _Unwind_Reason_Code note(struct _Unwind_Context *c, void *p)
{
	struct list *l = p;

	if (_Unwind_GetIP(c) && l->n < MAX) /* at the end it says 0 */
		l->pc[l->n++] = (void *)_Unwind_GetIP(c);
	return _URC_NO_REASON;
}

OWN void compare(void)
{
	struct list l = {.n = 0};
	void *pc[MAX];
	int n = unspool_backtrace(pc, MAX);

	_Unwind_Backtrace(note, &l);
	CHECK(n == l.n && n > 3 && unspool_backtrace(pc, 2) == 2);
	n = unspool_backtrace(pc, MAX);
	/* The first is this function, which called them at several places. */
	CHECK(memcmp(pc + 1, l.pc + 1, (size_t)(n - 1) * sizeof pc[0]) == 0);
	stacks++;
}

OWN int deep(int n, void (*f)(void))
{
	volatile char room[5000 + n];

	room[n] = 0;
	if (n == 0)
		f();
	else
		deep(n - 1, f);
	return room[n];
}

OWN int order(const void *a, const void *b)
{
	static int times;

	if (times++ == 0)
		deep(3, compare);
	return *(const int *)a - *(const int *)b;
}

/* What a context's frames are named, and how they were found; the first is where the signal came. */
OWN void on_signal(int sig, siginfo_t *info, void *uc)
{
	struct unspool_frame f[MAX];
	enum unspool_stop stop;
	char name[64];
	uint64_t off;
	int n = unspool_backtrace_context(uc, 1, f, MAX, &stop), seen = 0;

	(void)sig, (void)info;
	CHECK(n > 3 && f[0].how == UNSPOOL_FIRST && stop == UNSPOOL_OUTERMOST);
	for (int i = 1; i < n; i++) {
		CHECK(f[i].how == UNSPOOL_CFI && f[i].sp >= f[i - 1].sp);
		seen += unspool_name(f[i].pc - 1, name, sizeof name, &off) == 0 && (!strcmp(name, "deep") || !strcmp(name, "main"));
	}
	CHECK(seen == 6 && unspool_backtrace_context(uc, 1, f, 2, &stop) == 2 && stop == UNSPOOL_MAX);
	compare();
	stacks++;
}

OWN void raise_it(void)
{
	raise(SIGUSR1);
}

static void *thread(void *p)
{
	deep(2, compare);
	return p;
}

int main(void)
{
	struct sigaction a = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
	int v[] = {3, 1, 2};
	pthread_t t;

	deep(10, compare);
	qsort(v, 3, sizeof v[0], order);
	CHECK(sigaction(SIGUSR1, &a, NULL) == 0);
	deep(4, raise_it);
	CHECK(pthread_create(&t, NULL, thread, NULL) == 0 && pthread_join(t, NULL) == 0);
	printf("%d stacks\n", stacks);
	return 0;
}
