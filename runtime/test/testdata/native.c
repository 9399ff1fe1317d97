/*
 * A client of libunspool, which compares its answers with libgcc's and with libunwind's. The argument says what to do; 0
 * is returned if all answers are as they should be. "target" waits to be looked at by others.
 */
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include <libunspool.h>
#include <libunwind.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <unwind.h>

#define NOINLINE __attribute__((noinline))
#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); abort(); } } while (0)
#define END __asm__ volatile("" ::: "memory") /* no tail call */

enum { MAX = 128 };

static void catch(int sig, void (*f)(int, siginfo_t *, void *), int flags)
{
	struct sigaction a = {.sa_sigaction = f, .sa_flags = SA_SIGINFO | flags};

	CHECK(sigaction(sig, &a, NULL) == 0);
}

/* Calls f without call frame information: with a frame pointer, and with nothing that leads on. */
void by_pointer(void (*f)(void));
void by_nothing(void (*f)(void));
__asm__(".text\n"
	".type by_pointer,@function\nby_pointer: push %rbp\n mov %rsp, %rbp\n call *%rdi\n pop %rbp\n ret\n .size by_pointer,.-by_pointer\n"
	".type by_nothing,@function\nby_nothing: push %rbp\n xor %ebp, %ebp\n call *%rdi\n pop %rbp\n ret\n .size by_nothing,.-by_nothing\n");

static int within(uint64_t pc, const void *f, unsigned size)
{
	return pc - (uint64_t)f < size;
}

/* ---- The current thread, as libgcc sees it ---- */

struct list {
	void *pc[MAX];
	int n;
};

static _Unwind_Reason_Code note(struct _Unwind_Context *c, void *p)
{
	struct list *l = p;

	/* At the end it says 0. */
	if (_Unwind_GetIP(c) && l->n < MAX)
		l->pc[l->n++] = (void *)_Unwind_GetIP(c);
	return _URC_NO_REASON;
}

static int compared;
NOINLINE static void compare_here(void)
{
	struct list l = {.n = 0};
	void *pc[MAX];
	int n = unspool_backtrace(pc, MAX);

	_Unwind_Backtrace(note, &l);
	CHECK(n == l.n && n > 3);
	/* The first is this function, which called them at two places. */
	CHECK(within((uint64_t)pc[0], (void *)compare_here, 256) && within((uint64_t)l.pc[0], (void *)compare_here, 256));
	CHECK(memcmp(pc + 1, l.pc + 1, (size_t)(n - 1) * sizeof pc[0]) == 0);
	compared++;
}

NOINLINE static int deep(int n, void (*f)(void))
{
	volatile char room[40 + n];

	room[0] = 0;
	if (n == 0)
		f();
	else
		deep(n - 1, f);
	return room[0];
}

static void (*in_order)(void);
static int order(const void *a, const void *b)
{
	static _Thread_local int times;

	if (times++ == 0)
		deep(3, in_order);
	return *(const int *)a - *(const int *)b;
}

static void sorted(void (*f)(void))
{
	int v[] = {3, 1, 2};

	in_order = f;
	qsort(v, 3, sizeof v[0], order);
}

static void on_compare(int s, siginfo_t *i, void *uc)
{
	(void)s, (void)i, (void)uc;
	compare_here();
}

static void *thread_here(void *p)
{
	deep(5, compare_here);
	return p;
}

static void test_here(void)
{
	static char alt[1 << 16];
	stack_t ss = {.ss_sp = alt, .ss_size = sizeof alt};
	void *pc[8];
	pthread_t t;
	int n;

	compare_here();
	deep(40, compare_here);
	sorted(compare_here);
	catch(SIGUSR1, on_compare, 0);
	raise(SIGUSR1);
	sigaltstack(&ss, NULL);
	catch(SIGUSR1, on_compare, SA_ONSTACK);
	raise(SIGUSR1);
	CHECK(pthread_create(&t, NULL, thread_here, NULL) == 0);
	pthread_join(t, NULL);
	CHECK(compared == 6);
	memset(pc, 0x55, sizeof pc);
	CHECK(unspool_backtrace(pc, 0) == 0 && unspool_backtrace(pc, -1) == 0);
	CHECK(unspool_backtrace(NULL, 0) == 0);
	n = unspool_backtrace(pc, 2);
	CHECK(n == 2 && within((uint64_t)pc[0], (void *)test_here, 1024) && pc[2] == pc[7]);
}

/* ---- Contexts, as libunwind sees them ---- */

/* Walks; the frames must be libunwind's. Returns how many. */
NOINLINE static int both(ucontext_t *uc, int in_signal, struct unspool_frame *f, enum unspool_stop *stop)
{
	int n = unspool_backtrace_context(uc, in_signal, f, MAX, stop), k = 0;
	unw_word_t pc, sp;
	unw_cursor_t c;

	CHECK(unw_init_local2(&c, uc, in_signal ? UNW_INIT_SIGNAL_FRAME : 0) == 0);
	do {
		unw_get_reg(&c, UNW_REG_IP, &pc);
		unw_get_reg(&c, UNW_REG_SP, &sp);
		CHECK(k < n && f[k].pc == pc && f[k].sp == sp);
		k++;
	} while (unw_step(&c) > 0);
	CHECK(k == n);
	CHECK(f[0].how == UNSPOOL_FIRST);
	return n;
}

static int count(const struct unspool_frame *f, int n, uint32_t how)
{
	int k = 0;

	for (int i = 0; i < n; i++)
		k += f[i].how == how;
	return k;
}

static uint64_t outer_pc;
static int contexts;

/* In a handler in a handler. */
static void on_inner(int s, siginfo_t *i, void *uc)
{
	struct unspool_frame f[MAX];
	enum unspool_stop stop;
	int n = both(uc, 1, f, &stop), k;

	(void)s, (void)i;
	CHECK(n > 8 && stop == UNSPOOL_OUTERMOST);
	CHECK(count(f, n, UNSPOOL_SIGNAL) == 1 && count(f, n, UNSPOOL_CFI) == n - 2);
	for (k = 0; f[k].how != UNSPOOL_SIGNAL; k++)
		;
	CHECK(f[k].pc == outer_pc);
	contexts++;
}

static void on_outer(int s, siginfo_t *i, void *p)
{
	struct unspool_frame f[MAX], few[4];
	ucontext_t *uc = p;
	enum unspool_stop stop;
	int n = both(uc, 1, f, &stop);

	(void)s, (void)i;
	outer_pc = (uint64_t)uc->uc_mcontext.gregs[REG_RIP];
	CHECK(n > 5 && f[0].pc == outer_pc && f[0].sp == (uint64_t)uc->uc_mcontext.gregs[REG_RSP]);
	CHECK(stop == UNSPOOL_OUTERMOST && count(f, n, UNSPOOL_CFI) == n - 1);
	/* Cut off, and just not. */
	memset(few, 0x55, sizeof few);
	CHECK(unspool_backtrace_context(uc, 1, few, 0, &stop) == 0 && stop == UNSPOOL_MAX);
	CHECK(unspool_backtrace_context(uc, 1, few, -1, &stop) == 0 && stop == UNSPOOL_MAX);
	CHECK(unspool_backtrace_context(uc, 1, few, 3, &stop) == 3 && stop == UNSPOOL_MAX);
	CHECK(memcmp(f, few, 3 * sizeof f[0]) == 0 && few[3].reserved == 0x55555555);
	CHECK(unspool_backtrace_context(uc, 1, f, n, &stop) == n && stop == UNSPOOL_OUTERMOST);
	CHECK(unspool_backtrace_context(uc, 1, f, MAX, NULL) == n);
	contexts++;
	raise(SIGUSR2);
}

static void raise_outer(void)
{
	raise(SIGUSR1);
	END;
}

NOINLINE static void pointer_context(void)
{
	struct unspool_frame f[MAX];
	enum unspool_stop stop;
	ucontext_t uc;
	int n;

	getcontext(&uc);
	n = both(&uc, 0, f, &stop);
	CHECK(n > 4 && within(f[1].pc, (void *)by_pointer, 16));
	CHECK(f[1].how == UNSPOOL_CFI && f[2].how == UNSPOOL_FRAME_POINTER && count(f, n, UNSPOOL_CFI) == n - 2);
	CHECK(stop == UNSPOOL_OUTERMOST);
	contexts++;
}

NOINLINE static void nothing_context(void)
{
	struct unspool_frame f[MAX];
	enum unspool_stop stop;
	ucontext_t uc;
	int n;

	getcontext(&uc);
	n = both(&uc, 0, f, &stop);
	CHECK(n == 2 && within(f[1].pc, (void *)by_nothing, 16) && f[1].how == UNSPOOL_CFI);
	CHECK(stop == UNSPOOL_NO_INFO);
	contexts++;
}

static sigjmp_buf back;
static void on_bad_call(int s, siginfo_t *i, void *uc)
{
	struct unspool_frame f[MAX];
	enum unspool_stop stop;
	int n = unspool_backtrace_context(uc, 1, f, MAX, &stop);

	(void)s, (void)i;
	CHECK(n > 3 && f[0].pc == 0 && f[0].how == UNSPOOL_FIRST && f[1].how == UNSPOOL_BAD_CALL);
	CHECK(count(f, n, UNSPOOL_CFI) == n - 2 && stop == UNSPOOL_OUTERMOST);
	contexts++;
	siglongjmp(back, 1);
}

NOINLINE static void call_nothing(void)
{
	void (*volatile f)(void) = NULL;

	f();
	END;
}

/* A coroutine, whose stack keeps still while it is walked. */
static ucontext_t own, other;
static void coroutine(void)
{
	swapcontext(&other, &own);
}

static void test_plt(void)
{
	static char stack[1 << 16] __attribute__((aligned(16)));
	struct unspool_frame f[MAX], g[MAX];
	enum unspool_stop stop, end;
	uint64_t sp, pc;
	int n;

	getcontext(&other);
	other.uc_stack.ss_sp = stack;
	other.uc_stack.ss_size = sizeof stack;
	makecontext(&other, coroutine, 0);
	swapcontext(&own, &other);
	n = both(&other, 0, f, &end);
	CHECK(n >= 2 && within(f[0].pc, (void *)coroutine, 64));
	/* The linkage table's stub for what it calls: jmp, push, jmp. In a program that is not relocated it is the address. */
	sp = f[0].sp;
	pc = (uint64_t)(void *)raise;
	CHECK(((uint8_t *)pc)[0] == 0xff && ((uint8_t *)pc)[1] == 0x25 && ((uint8_t *)pc)[6] == 0x68);
	for (unsigned at = 0; at <= 11; at += at ? 5 : 6) {
		uint32_t how = UNSPOOL_CFI;

#ifndef PLT_CFI
		/* Without call frame information they are known by their first instruction. */
		if (at > 0)
			break;
		how = UNSPOOL_PLT;
#endif
		other.uc_mcontext.gregs[REG_RIP] = (greg_t)(pc + at);
		other.uc_mcontext.gregs[REG_RSP] = (greg_t)(sp - (at == 11 ? 16 : 8));
		*(uint64_t *)(sp - 8) = f[0].pc;
		CHECK(both(&other, 1, g, &stop) == n + 1 && stop == end);
		CHECK(g[1].how == how && g[1].pc == f[0].pc && g[1].sp == sp);
		CHECK(memcmp(g + 2, f + 1, (size_t)(n - 1) * sizeof f[0]) == 0);
	}
	contexts++;
}

static uint64_t ring_pc;
NOINLINE static void find_ring_pc(volatile char *room)
{
	room[0] = 0;
	ring_pc = (uint64_t)__builtin_return_address(0);
}

/* Its frame is found by rbp. */
NOINLINE static void by_rbp(int n)
{
	volatile char room[n];

	find_ring_pc(room);
	END;
}

static void test_bad(void)
{
	char *m = mmap(NULL, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct unspool_frame f[MAX];
	enum unspool_stop stop;
	ucontext_t uc;
	uint64_t *ring;

	by_rbp(32);
	getcontext(&uc);
	uc.uc_mcontext.gregs[REG_RIP] = (greg_t)ring_pc;
	uc.uc_mcontext.gregs[REG_RSP] = uc.uc_mcontext.gregs[REG_RBP] = (greg_t)(m + 4096);
	CHECK(unspool_backtrace_context(&uc, 0, f, MAX, &stop) == 1 && stop == UNSPOOL_UNREADABLE);
	mprotect(m, 3 * 4096, PROT_READ | PROT_WRITE);
	ring = (uint64_t *)(m + 4096);
	ring[0] = (uint64_t)ring;
	ring[1] = ring_pc;
	uc.uc_mcontext.gregs[REG_RSP] -= 64;
	CHECK(unspool_backtrace_context(&uc, 0, f, MAX, &stop) == 2 && stop == UNSPOOL_BAD_FRAME);
	/* Down to another stack, and round there. */
	ring[0] = (uint64_t)(ring - 16);
	ring[-16] = ring[0];
	ring[-15] = ring_pc;
	CHECK(unspool_backtrace_context(&uc, 0, f, MAX, &stop) == 3 && stop == UNSPOOL_BAD_FRAME);
	munmap(m, 3 * 4096);
	contexts++;
}

static void test_context(void)
{
	static char alt[1 << 16];
	stack_t ss = {.ss_sp = alt, .ss_size = sizeof alt};

	catch(SIGUSR1, on_outer, 0);
	catch(SIGUSR2, on_inner, 0);
	deep(7, raise_outer);
	sorted(raise_outer);
	sigaltstack(&ss, NULL);
	catch(SIGUSR1, on_outer, SA_ONSTACK);
	deep(7, raise_outer);
	by_pointer(pointer_context);
	by_nothing(nothing_context);
	catch(SIGSEGV, on_bad_call, 0);
	if (sigsetjmp(back, 1) == 0)
		call_nothing();
	test_plt();
	test_bad();
	CHECK(contexts == 6 + 2 + 1 + 2);
}

/* ---- Names ---- */

static void test_name(void)
{
	uint64_t off, pc = (uint64_t)(void *)test_context;
	char name[32];

	CHECK(unspool_name(pc + 3, name, sizeof name, &off) == 0 && !strcmp(name, "test_context") && off == 3);
	CHECK(unspool_name(pc, name, 5, NULL) == 0 && !strcmp(name, "test"));
	CHECK(unspool_name(pc, name, 0, &off) == -1);
	CHECK(unspool_name(0, name, sizeof name, &off) == -1);
	CHECK(unspool_name((uint64_t)name, name, sizeof name, &off) == -1);
	CHECK(unspool_name((uint64_t)(void *)by_nothing, name, sizeof name, &off) == 0 && !strcmp(name, "by_nothing") && off == 0);
}

/* ---- Threads of other processes ---- */

static void on_alarm(int s, siginfo_t *i, void *uc)
{
	(void)s, (void)i, (void)uc;
}

/* The field of /proc/PID/status. */
static const char *status(pid_t pid, const char *field)
{
	static char b[4096];
	char name[64], *p;
	ssize_t n;
	int fd;

	snprintf(name, sizeof name, "/proc/%d/status", (int)pid);
	fd = open(name, O_RDONLY);
	CHECK(fd >= 0);
	n = read(fd, b, sizeof b - 1);
	close(fd);
	CHECK(n > 0);
	b[n] = 0;
	p = strstr(b, field);
	CHECK(p);
	return p + strlen(field) + 2;
}

static volatile sig_atomic_t got;
static void on_got(int s, siginfo_t *i, void *uc)
{
	(void)s, (void)i, (void)uc;
	got++;
}

static void test_thread(void)
{
	struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
	struct unspool_frame f[MAX];
	enum unspool_stop stop;
	int st, n = 0;
	pid_t pid;

	/* Errors: itself, which cannot trace itself; what is gone; what never was. */
	errno = 0;
	CHECK(unspool_backtrace_thread((pid_t)syscall(SYS_gettid), f, MAX, &stop) == -1 && errno == EPERM);
	pid = fork();
	if (pid == 0)
		_exit(0);
	CHECK(waitpid(pid, &st, 0) == pid);
	errno = 0;
	CHECK(unspool_backtrace_thread(pid, f, MAX, &stop) == -1 && errno == ESRCH);
	CHECK(unspool_backtrace_thread(0, f, MAX, NULL) == -1 && errno == ESRCH);
	/* A process that is there, while signals arrive here, and there. */
	catch(SIGUSR1, on_got, 0);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* where a check fails, nobody sends them */
		while (got < 50)
			usleep(100);
		_exit(got);
	}
	CHECK(unspool_backtrace_thread(pid, f, 0, &stop) == 0 && stop == UNSPOOL_MAX);
	CHECK(unspool_backtrace_thread(pid, f, 1, &stop) == 1 && stop == UNSPOOL_MAX && f[0].how == UNSPOOL_FIRST);
	catch(SIGALRM, on_alarm, 0);
	setitimer(ITIMER_REAL, &often, NULL);
	for (int i = 0; i < 100; i++) {
		n = unspool_backtrace_thread(pid, f, MAX, i & 1 ? &stop : NULL);
		CHECK(n > 2);
		CHECK(atoi(status(pid, "TracerPid")) == 0);
		if (i < 49)
			kill(pid, SIGUSR1);
		usleep(300); /* signals do not queue up */
	}
	setitimer(ITIMER_REAL, &never, NULL);
	CHECK(stop == UNSPOOL_OUTERMOST);
	CHECK(strchr("SR", *status(pid, "State"))); /* which may change from one look to the next */
	/* One that is stopped stays so. */
	kill(pid, SIGSTOP);
	CHECK(waitpid(pid, &st, WUNTRACED) == pid && WIFSTOPPED(st));
	CHECK(unspool_backtrace_thread(pid, f, MAX, &stop) > 2 && stop == UNSPOOL_OUTERMOST);
	usleep(10000);
	CHECK(*status(pid, "State") == 'T' && atoi(status(pid, "TracerPid")) == 0);
	kill(pid, SIGCONT);
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, &st, 0) == pid && WIFSIGNALED(st));
}

/* ---- What others look at ---- */

static void say(const char *what)
{
	printf("%s %d\n", what, (int)syscall(SYS_gettid));
	fflush(stdout);
}

static void wait_here(void)
{
	for (;;)
		pause();
}

static void say_sorted(void)
{
	say("sorted");
	wait_here();
	END;
}

static void say_pointer(void)
{
	say("pointer");
	wait_here();
	END;
}

static void say_nothing(void)
{
	say("nothing");
	wait_here();
	END;
}

static void on_wait(int s, siginfo_t *i, void *uc)
{
	(void)i, (void)uc;
	say(s == SIGSEGV ? "call" : "signal");
	wait_here();
}

static void *target(void *p)
{
	switch ((intptr_t)p) {
	case 0:
		sorted(say_sorted);
		break;
	case 1:
		by_pointer(say_pointer);
		break;
	case 2:
		by_nothing(say_nothing);
		break;
	case 3:
		call_nothing();
		break;
	}
	return p;
}

static void test_target(void)
{
	pthread_t t;

	catch(SIGSEGV, on_wait, 0);
	catch(SIGUSR1, on_wait, 0);
	for (intptr_t i = 0; i < 4; i++)
		CHECK(pthread_create(&t, NULL, target, (void *)i) == 0);
	deep(4, raise_outer);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*f)(void);
	} tests[] = {{"here", test_here}, {"context", test_context}, {"name", test_name}, {"thread", test_thread}, {"target", test_target}};

	alarm(argc > 1 && strcmp(argv[1], "thread") ? 60 : 0); /* which uses the alarm itself */
	for (unsigned i = 0; i < sizeof tests / sizeof tests[0]; i++) {
		if (argc > 1 && !strcmp(argv[1], tests[i].name)) {
			tests[i].f();
			return 0;
		}
	}
	return 2;
}
