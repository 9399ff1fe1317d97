/*
 * Prints what libunwind says of many stacks of its own process, in words that do not depend on where things lie: run
 * against two libraries, the output is to be the same.
 */
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include <libunwind.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>
#include <sys/personality.h>

#define NOINLINE __attribute__((noinline))

static const char *base(unw_word_t v, unw_word_t lo, unw_word_t hi)
{
	static char b[4][40];
	static int i;
	char *s = b[i++ & 3];

	snprintf(s, 40, v >= lo && v < hi ? "+%lld" : v ? "set" : "0", (long long)(v - lo));
	return s;
}

/* A distance on the stack; what is elsewhere has none. */
static long near(unw_word_t v, unw_word_t sp)
{
	return v - sp + (1 << 15) < 1 << 16 ? (long)(v - sp) : -1;
}

/* Walks in steps, and prints each frame: name, offset, procedure, registers. */
static void walk(unw_context_t *uc, int flag, const char *what)
{
	unw_cursor_t c;
	unw_word_t ip, sp, off, v, sp0 = 0;
	unw_proc_info_t pi;
	char name[128];
	int n = 0, r, rn;

	printf("== %s\n", what);
	r = flag ? unw_init_local2(&c, uc, UNW_INIT_SIGNAL_FRAME) : unw_init_local(&c, uc);
	printf("init %d\n", r);
	do {
		unw_get_reg(&c, UNW_REG_IP, &ip);
		unw_get_reg(&c, UNW_REG_SP, &sp);
		sp0 = sp0 ? sp0 : sp;
		rn = unw_get_proc_name(&c, name, sizeof name, &off);
		printf("%d: name %d %s+%#lx signal %d", n, rn, rn ? "" : name, rn ? 0 : (long)off, unw_is_signal_frame(&c) > 0);
		memset(&pi, 0, sizeof pi);
		r = unw_get_proc_info(&c, &pi);
		printf(" info %d", r);
		if (r == 0)
			printf(" ip %s size %ld lsda %d handler %d gp %ld flags %ld", base(ip, pi.start_ip, pi.end_ip + 1),
			       (long)(pi.end_ip - pi.start_ip), pi.lsda != 0, pi.handler != 0, (long)(pi.gp ? pi.gp - pi.start_ip : 0), (long)pi.flags);
		printf("\n");
		for (int i = 0; i <= UNW_REG_LAST + 2; i++) {
			static const int saved[] = {UNW_X86_64_RBX, UNW_X86_64_RBP, UNW_X86_64_RSP, UNW_X86_64_R12, UNW_X86_64_R13, UNW_X86_64_R14, UNW_X86_64_R15};
			unw_save_loc_t loc;
			int keep = 0;

			for (unsigned k = 0; k < 7; k++)
				keep |= saved[k] == i;
			if (!keep)
				continue;
			r = unw_get_reg(&c, i, &v);
			memset(&loc, 0, sizeof loc);
			if (i != UNW_X86_64_RSP) {
				int q = unw_get_save_loc(&c, i, &loc);

				printf("  %s %d %ld loc %d type %d at %ld", unw_regname(i), r, near(v, sp0), q, loc.type,
				       loc.type == UNW_SLT_MEMORY ? near(loc.u.addr, sp0) : 0);
			}
		}
		printf("\n");
		if (++n > 60)
			break;
		r = unw_step(&c);
	} while (r > 0);
	printf("end after %d: %d\n", n, r);
}

static void trace(const char *what)
{
	void *b[100];
	int n = unw_backtrace(b, 100);
	unw_word_t off;
	char name[128];
	unw_context_t uc;
	unw_cursor_t c;

	printf("== backtrace %s: %d\n", what, n);
	for (int i = 0; i < n; i++) {
		unw_proc_info_t pi;

		if (unw_get_proc_info_by_ip(unw_local_addr_space, (unw_word_t)b[i] - 1, &pi, NULL) == 0)
			printf("%s size %ld\n", base((unw_word_t)b[i], pi.start_ip, pi.end_ip + 1), (long)(pi.end_ip - pi.start_ip));
		else
			printf("?\n");
	}
	(void)uc, (void)c, (void)off, (void)name;
}

NOINLINE static void here(const char *what)
{
	unw_context_t uc;

	unw_getcontext(&uc);
	walk(&uc, 0, what);
	trace(what);
}

NOINLINE static int recurse(int n, const char *what)
{
	volatile char room[n * 16 + 8];

	room[0] = (char)n;
	if (n == 0)
		here(what);
	else
		recurse(n - 1, what);
	return room[0];
}

static int compared;
static int compare(const void *a, const void *b)
{
	if (compared++ == 3)
		here("qsort");
	return *(const int *)a - *(const int *)b;
}

static int found;
static int look(const void *a, const void *b)
{
	if (found++ == 0)
		here("bsearch");
	return *(const int *)a - *(const int *)b;
}

static const char *signal_what;
static void on_signal(int s, siginfo_t *i, void *uc)
{
	(void)s, (void)i;
	here(signal_what);
	walk(uc, 1, "from the handler's context");
}

NOINLINE static void interrupted(const char *what, int flags, int sig)
{
	struct sigaction a = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | flags};

	signal_what = what;
	sigaction(sig, &a, NULL);
	raise(sig);
	__asm__ volatile("");
}

static void nested(int s)
{
	(void)s;
	interrupted("nested", 0, SIGUSR2);
}

static volatile int resumed;
NOINLINE static void jump(int levels, unw_word_t value)
{
	unw_context_t uc;
	unw_cursor_t c;

	unw_getcontext(&uc);
	unw_init_local(&c, &uc);
	for (int i = 0; i < levels; i++)
		if (unw_step(&c) <= 0)
			printf("step failed\n");
	resumed++;
	unw_set_reg(&c, UNW_X86_64_RAX, value);
	printf("resume %d\n", unw_resume(&c));
}

NOINLINE static long middle(unw_word_t v)
{
	jump(2, v);
	return 1;
}

NOINLINE static long outer(long a, long b, long c, long d)
{
	long x = a * 3 + b, y = b ^ c, z = c + d, r;

	__asm__ volatile("" : "+r"(x), "+r"(y), "+r"(z));
	r = middle(77 + (unw_word_t)d);
	__asm__ volatile("" : "+r"(x), "+r"(y), "+r"(z));
	return r * 1000000 + x * 10000 + y * 100 + z;
}

static void jump_handler(int s)
{
	(void)s;
	jump(2, 0); /* the handler, the trampoline: back to what was interrupted */
	abort();
}

static void *thread(void *p)
{
	here("thread");
	return p;
}

int main(int argc, char **argv)
{
	static char alt[1 << 16];
	(void)argc;
	stack_t ss = {.ss_sp = alt, .ss_size = sizeof alt};
	int v[] = {5, 3, 9, 1, 7, 2};
	pthread_t t;
	char small[4];
	unw_context_t uc;
	unw_cursor_t c;
	unw_word_t off;

	/* Always the same addresses, so that the stack is always aligned in the same way. */
	if (!(personality(0xffffffff) & ADDR_NO_RANDOMIZE) && personality(ADDR_NO_RANDOMIZE) != -1)
		execv("/proc/self/exe", argv);
	setvbuf(stdout, NULL, _IOFBF, 1 << 20);
	here("main");
	recurse(12, "recursion");
	qsort(v, 6, sizeof v[0], compare);
	bsearch(&v[2], v, 6, sizeof v[0], look);
	interrupted("signal", 0, SIGUSR1);
	sigaltstack(&ss, NULL);
	interrupted("signal on another stack", SA_ONSTACK, SIGUSR1);
	signal(SIGHUP, nested);
	raise(SIGHUP);
	printf("outer %ld\n", outer(1, 2, 3, 4));
	signal(SIGUSR1, jump_handler);
	raise(SIGUSR1);
	printf("resumed %d\n", resumed);
	pthread_create(&t, NULL, thread, NULL);
	pthread_join(t, NULL);
	/* Errors. */
	unw_getcontext(&uc);
	unw_init_local(&c, &uc);
	printf("small name %d", unw_get_proc_name(&c, small, sizeof small, &off));
	printf(" %s\n", small);
	for (int i = -12; i <= 12; i++)
		printf("%d: %s, %s, fp %d\n", i, unw_strerror(i), unw_regname(i + 12), unw_is_fpreg(i));
	printf("set sp %d cfa %d bad %d get bad %d fp %d\n", unw_set_reg(&c, UNW_REG_SP, 1), unw_set_reg(&c, UNW_X86_64_CFA, 1),
	       unw_set_reg(&c, 99, 1), unw_get_reg(&c, 99, &off), unw_get_fpreg(&c, 0, &(unw_fpreg_t){0}));
	printf("set rbx %d", unw_set_reg(&c, UNW_X86_64_RBX, 4711));
	unw_get_reg(&c, UNW_X86_64_RBX, &off);
	printf(" %ld\n", (long)off);
	printf("policy %d %d %d size %d\n", unw_set_caching_policy(unw_local_addr_space, UNW_CACHE_NONE),
	       unw_set_caching_policy(unw_local_addr_space, UNW_CACHE_GLOBAL), unw_set_caching_policy(unw_local_addr_space, UNW_CACHE_PER_THREAD),
	       unw_set_cache_size(unw_local_addr_space, 1024, 0));
	here("after flushes");
	return 0;
}
