/*
 * Known stacks of an AArch64 program, walked by the drop-in from inside: by steps, by unw_backtrace, out of signal handlers on either stack, out of
 * functions that use no stack. Prints a line for each: its name and the functions, innermost first, up to main. The declarations are those
 * of libunwind 1.6.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

typedef struct {
	uint64_t opaque[250];
} unw_cursor_t;

#ifdef REMOTE /* the library for any process, on the own one */
#define _ULaarch64_init_local _Uaarch64_init_local
#define _ULaarch64_init_local2 _Uaarch64_init_local2
#define _ULaarch64_step _Uaarch64_step
#define _ULaarch64_get_reg _Uaarch64_get_reg
#define _ULaarch64_set_reg _Uaarch64_set_reg
#define _ULaarch64_is_signal_frame _Uaarch64_is_signal_frame
#define _ULaarch64_get_proc_name _Uaarch64_get_proc_name
#define _ULaarch64_resume _Uaarch64_resume
#endif

int _ULaarch64_init_local(unw_cursor_t *c, void *uc);
int _ULaarch64_init_local2(unw_cursor_t *c, void *uc, int flag);
int _ULaarch64_step(unw_cursor_t *c);
int _ULaarch64_get_reg(unw_cursor_t *c, int n, uint64_t *to);
int _ULaarch64_set_reg(unw_cursor_t *c, int n, uint64_t v);
int _ULaarch64_is_signal_frame(unw_cursor_t *c);
int _ULaarch64_get_proc_name(unw_cursor_t *c, char *to, size_t n, uint64_t *off);
int _ULaarch64_resume(unw_cursor_t *c);
int unw_backtrace(void **pcs, int n);

enum { FP = 29, IP = 30, SP = 31, PC = 32 };

/* What unw_getcontext is on AArch64: code in line. */
#define CONTEXT(uc) \
	do { \
		register uint64_t base __asm__("x0") = (uint64_t)(uc)->uc_mcontext.regs; \
		__asm__ volatile( \
			"stp x18, x19, [x0, #144]\n\tstp x20, x21, [x0, #160]\n\tstp x22, x23, [x0, #176]\n\tstp x24, x25, [x0, #192]\n\t" \
			"stp x26, x27, [x0, #208]\n\tstp x28, x29, [x0, #224]\n\tmov x1, sp\n\tstp x30, x1, [x0, #240]\n\tadr x1, .\n\tstr x1, [x0, #256]" \
			: : "r"(base) : "x1", "memory"); \
	} while (0)

#define OWN __attribute__((noinline, noipa))

static void *steps[256];

static void named(uint64_t pc, char *to);

/* Prints the functions of a context up to main, and keeps the program counters. */
OWN int walk(const char *what, ucontext_t *uc, int exact)
{
	unw_cursor_t c;
	char name[64];
	uint64_t off, pc, ip, sp, fp, last = 0;
	int n = 0;

	printf("%s:", what);
	if (exact)
		_ULaarch64_init_local2(&c, uc, 1);
	else
		_ULaarch64_init_local(&c, uc);
	do {
		if (_ULaarch64_get_reg(&c, PC, &pc) || _ULaarch64_get_reg(&c, IP, &ip) || _ULaarch64_get_reg(&c, SP, &sp) || ip != pc)
			printf(" (registers)");
		if (n > 0 && sp < last && !strchr(what, '2')) /* a stack of its own may lie anywhere */
			printf(" (sp)");
		last = sp;
		steps[n++] = (void *)pc;
		if (_ULaarch64_is_signal_frame(&c))
			strcpy(name, "<signal>");
		else if (_ULaarch64_get_proc_name(&c, name, sizeof name, &off) != 0)
			named(pc, name);
		if (strcmp(name, "walk"))
			printf(" %s", name);
		if (_ULaarch64_get_reg(&c, FP, &fp))
			printf(" (no fp)");
	} while (strcmp(name, "main") && n < 250 && _ULaarch64_step(&c) > 0);
	printf("\n");
	return n;
}

OWN void look(const char *what)
{
	ucontext_t uc;
	int n;

	memset(&uc, 0, sizeof uc);
	CONTEXT(&uc);
	n = walk(what, &uc, 0);
#ifndef REMOTE
	void *pcs[256];
	int k = unw_backtrace(pcs, n);

	if (k != n || memcmp(pcs + 1, steps + 1, (size_t)(n - 1) * sizeof *pcs))
		printf("%s: unw_backtrace differs: %d frames of %d\n", what, k, n);
#else
	(void)n;
#endif
}

OWN int deep(int n)
{
	int v = n == 0 ? (look("deep"), 1) : deep(n - 1);

	__asm__ volatile("" : "+r"(v));
	return v + 1;
}

OWN int compare(const void *a, const void *b)
{
	static int once;

	(void)a, (void)b;
	if (!once++)
		look("called back");
	return 0;
}

OWN int varied(int n) /* a frame of a size of its own, found by the frame pointer */
{
	volatile char *room = __builtin_alloca((size_t)n);

	room[0] = 1;
	look("alloca");
	return room[0];
}

OWN int tagged(int n) /* its frame pointer has a tag, as a stack that MTE or a sanitizer tags: memory is read by it */
{
	volatile char *room = __builtin_alloca((size_t)n);
	ucontext_t uc;

	room[0] = 1;
	memset(&uc, 0, sizeof uc);
	CONTEXT(&uc);
	uc.uc_mcontext.regs[29] |= (uint64_t)0x5a << 56;
	walk("tagged", &uc, 0);
	return room[0];
}

OWN double floats(double a) /* saves d8 and more */
{
	register double x __asm__("d8") = a, y __asm__("d9") = a + 1;

	__asm__ volatile("" : "+w"(x), "+w"(y));
	look("vectors");
	__asm__ volatile("" : "+w"(x), "+w"(y));
	return x + y;
}

static jmp_buf back;

OWN void handler(int sig, siginfo_t *si, void *uc)
{
	(void)si;
	look(sig == SIGUSR1 ? "signal" : sig == SIGSEGV ? "leaf" : "stack 2");
	if (sig == SIGSEGV) {
		walk("leaf, from its context", uc, 1);
		siglongjmp(back, 1);
	}
}

OWN int leaf(int *p) /* uses no stack: its return address is in x30 */
{
	return *p + 1;
}

OWN void faulting(void)
{
	if (sigsetjmp(back, 1) == 0)
		printf("%d\n", leaf(NULL));
}

OWN void *thread(void *arg)
{
	look("thread");
	return arg;
}

static volatile int resumed;

OWN void inner(void)
{
	ucontext_t uc;
	unw_cursor_t c;

	memset(&uc, 0, sizeof uc);
	CONTEXT(&uc);
	_ULaarch64_init_local(&c, &uc);
	for (int i = 0; i < 2; i++)
		_ULaarch64_step(&c);
	resumed = 1;
	_ULaarch64_resume(&c); /* in outer, behind middle */
	abort();
}

OWN void middle(void)
{
	inner();
	resumed = 2; /* is left out */
	__asm__ volatile("");
}

OWN int outer(int a)
{
	register double d __asm__("d10") = 1.5;
	int b = a * 7;

	__asm__ volatile("" : "+w"(d), "+r"(b));
	middle();
	__asm__ volatile("" : "+w"(d), "+r"(b));
	return b == a * 7 && d == 1.5 && resumed == 1;
}

/* Whether number 30 stands for the program counter. */
OWN int set(void)
{
	ucontext_t uc;
	unw_cursor_t c;
	uint64_t pc;

	memset(&uc, 0, sizeof uc);
	CONTEXT(&uc);
	_ULaarch64_init_local(&c, &uc);
	return _ULaarch64_set_reg(&c, IP, 4096) == 0 && _ULaarch64_get_reg(&c, PC, &pc) == 0 && pc == 4096 && uc.uc_mcontext.pc == 4096;
}

int main(void);

/* The function at pc, of those of this file: a static program's names are not found. */
static void named(uint64_t pc, char *to)
{
	static const struct {
		void *at;
		const char *name;
	} all[] = {{walk, "walk"}, {look, "look"}, {deep, "deep"}, {compare, "compare"}, {varied, "varied"}, {tagged, "tagged"},
		{floats, "floats"}, {handler, "handler"},
		{leaf, "leaf"}, {faulting, "faulting"}, {thread, "thread"}, {inner, "inner"}, {middle, "middle"}, {outer, "outer"}, {main, "main"}};
	uint64_t best = 1024;

	strcpy(to, "?");
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		if (pc - (uint64_t)all[i].at < best) {
			best = pc - (uint64_t)all[i].at;
			strcpy(to, all[i].name);
		}
}

int main(void)
{
	struct sigaction sa = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
	stack_t ss = {.ss_size = 1 << 16};
	int a[3] = {3, 1, 2};
	pthread_t t;

	deep(3);
	qsort(a, 3, sizeof *a, compare);
	varied(1000);
	tagged(1000);
	floats(2);
	sigaction(SIGUSR1, &sa, NULL);
	sigaction(SIGSEGV, &sa, NULL);
	raise(SIGUSR1);
	faulting();
	ss.ss_sp = mmap(NULL, ss.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sigaltstack(&ss, NULL);
	sa.sa_flags |= SA_ONSTACK;
	sigaction(SIGUSR2, &sa, NULL);
	raise(SIGUSR2);
	pthread_create(&t, NULL, thread, NULL);
	pthread_join(t, NULL);
	printf("set: %d\n", set());
#ifndef REMOTE
	printf("resumed: %d\n", outer(6));
#endif
	return 0;
}
