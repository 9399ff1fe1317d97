/*
 * Walks a process by libunwind's interface to other address spaces and prints all that it says:
 *
 *	remote_client ptrace PID
 *	remote_client core FILE
 *	remote_client own
 *	remote_client bench
 *
 * Lines: F a frame, P its procedure, R registers that a call preserves, V the others, L where they were saved, E the end.
 * "own" walks itself, and prints addresses so that they do not depend on where things lie. "bench" times that: the first
 * walk in microseconds, and the median of later ones in nanoseconds a frame.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libunwind-coredump.h>
#include <libunwind-ptrace.h>
#include <libunwind.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FUNC __attribute__((noinline, noipa))

static int own;
static unw_word_t own_sp;

/* An address: of the own process, as a distance from where it would be moved with. */
static const char *show(unw_word_t v)
{
	static char text[16][300];
	static unsigned n;
	char *s = text[n++ % 16];
	Dl_info i;

	if (own && dladdr((void *)v, &i) && i.dli_fname)
		snprintf(s, sizeof text[0], "%s+%lx", i.dli_fname[0] == '/' ? strrchr(i.dli_fname, '/') : "self", v - (unw_word_t)i.dli_fbase);
	else if (own && v - own_sp + (1 << 16) < 1 << 17)
		snprintf(s, sizeof text[0], "stack%+ld", (long)(v - own_sp));
	else
		snprintf(s, sizeof text[0], "%lx", v);
	return s;
}

static void registers(unw_cursor_t *c, const char *line, const int *list, int n)
{
	printf("%s", line);
	for (int i = 0; i < n; i++) {
		unw_word_t v = 0;
		int r = unw_get_reg(c, list[i], &v);

		printf(" %d=", list[i]);
		if (r < 0)
			printf("!%d", r);
		else
			printf("%s", show(v));
	}
	printf("\n");
}

static void locations(unw_cursor_t *c)
{
	printf("L");
	for (int i = 0; i < 17; i++) {
		unw_save_loc_t l;
		int r = unw_get_save_loc(c, i, &l);

		if (r < 0)
			printf(" %d=!%d", i, r);
		else if (l.type == UNW_SLT_MEMORY)
			printf(" %d=@%s", i, show(l.u.addr));
		else if (l.type == UNW_SLT_REG)
			printf(" %d=%%%d", i, l.u.regnum);
	}
	printf("\n");
}

static void walk(unw_cursor_t *c)
{
	static const int saved[] = {3, 6, 12, 13, 14, 15}, other[] = {0, 1, 2, 4, 5, 8, 9, 10, 11};
	int r, n = 0;

	do {
		unw_word_t ip = 0, sp = 0, cfa = 0, off = 0;
		unw_proc_info_t pi;
		char name[200];
		int named, info;

		unw_get_reg(c, UNW_REG_IP, &ip);
		unw_get_reg(c, UNW_REG_SP, &sp);
		unw_get_reg(c, UNW_X86_64_CFA, &cfa);
		named = unw_get_proc_name(c, name, sizeof name, &off);
		printf("F %d %s sp %s cfa %s %s+%lx signal %d\n", n, show(ip), show(sp), show(cfa), named < 0 ? "?" : name,
		       named < 0 ? 0 : off, unw_is_signal_frame(c) > 0);
		memset(&pi, 0, sizeof pi);
		info = unw_get_proc_info(c, &pi);
		printf("P %d %s %s lsda %s handler %s gp %s flags %lx format %d\n", info, show(pi.start_ip), show(pi.end_ip), show(pi.lsda),
		       show(pi.handler), show(pi.gp), pi.flags, pi.format);
		registers(c, "R", saved, 6);
		registers(c, "V", other, 9);
		locations(c);
		r = unw_step(c);
	} while (r > 0 && ++n < 200);
	printf("E %d\n", r);
}

/* ---- The own process ---- */

static struct sigaction action;

FUNC static void here(void *context, int signal_frame)
{
	unw_context_t uc;
	unw_cursor_t c;

	if (!context) {
		memset(&uc, 0, sizeof uc);
		unw_getcontext(&uc);
		uc.uc_mcontext.gregs[REG_R10] = uc.uc_mcontext.gregs[REG_R11] = 0; /* libunwind does not save them */
		context = &uc;
	}
	if (unw_init_local2(&c, context, signal_frame ? UNW_INIT_SIGNAL_FRAME : 0) < 0)
		exit(1);
	unw_get_reg(&c, UNW_REG_SP, &own_sp);
	walk(&c);
}

FUNC static void handler(int sig, siginfo_t *info, void *context)
{
	(void)sig;
	(void)info;
	here(NULL, 0);
	here(context, 1);
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2; /* behind ud2 */
}

static int resumed;

/* Goes on in the caller's caller, with another value. */
FUNC static long leave(void)
{
	unw_context_t uc;
	unw_cursor_t c;

	unw_getcontext(&uc);
	if (unw_init_local(&c, &uc) < 0 || unw_step(&c) <= 0 || unw_step(&c) <= 0)
		exit(1);
	printf("set %d\n", unw_set_reg(&c, UNW_X86_64_RAX, 77));
	fflush(stdout);
	unw_resume(&c);
	exit(2);
}

FUNC static long middle(void)
{
	leave();
	resumed = -1;
	return 0;
}

FUNC static void edges(void)
{
	unw_accessors_t *a = unw_get_accessors(unw_local_addr_space);
	static const long constant = 7;
	long variable = 8;
	unw_word_t v = 5;
	char name[3];
	unw_word_t off;
	unw_cursor_t c;
	unw_context_t uc;

	/* libunwind reads what it is told to; what is not there would be a signal. */
	printf("read %d %lu\n", a->access_mem(unw_local_addr_space, (unw_word_t)&variable, &v, 0, NULL), v);
	v = 9;
	printf("write %d", a->access_mem(unw_local_addr_space, (unw_word_t)&variable, &v, 1, NULL));
	printf(" %ld %ld\n", variable, constant);
	if (!strcmp(getenv("EDGES") ?: "0", "1")) {
		printf("none %d\n", a->access_mem(unw_local_addr_space, 8, &v, 0, NULL));
		printf("constant %d\n", a->access_mem(unw_local_addr_space, (unw_word_t)&constant, &v, 1, NULL));
	}
	unw_getcontext(&uc);
	unw_init_remote(&c, unw_local_addr_space, &uc);
	printf("short %d %s\n", unw_get_proc_name(&c, name, sizeof name, &off), name);
	printf("flag %d policy %d %d\n", unw_init_local2(&c, &uc, 2), unw_set_caching_policy(unw_local_addr_space, UNW_CACHE_NONE),
	       unw_set_caching_policy(unw_local_addr_space, UNW_CACHE_GLOBAL));
}

/* Code that the program registers. */
FUNC static void registered(void)
{
	static unw_dyn_info_t di;
	unw_proc_info_t pi;
	unw_context_t uc;
	unw_cursor_t c;
	unw_word_t off = 0;
	char name[32], part[4];

	di.start_ip = 0x10000;
	di.end_ip = 0x11000;
	di.gp = 5;
	di.format = UNW_INFO_FORMAT_DYNAMIC;
	di.u.pi.name_ptr = (unw_word_t)"registered";
	di.u.pi.handler = 0x77;
	_U_dyn_register(&di);
	unw_getcontext(&uc);
	uc.uc_mcontext.gregs[REG_RIP] = 0x10010;
	unw_init_local2(&c, &uc, UNW_INIT_SIGNAL_FRAME);
	memset(&pi, 0, sizeof pi);
	printf("info %d", unw_get_proc_info_by_ip(unw_local_addr_space, 0x10010, &pi, NULL));
	printf(" %lx %lx gp %lx handler %lx format %d\n", pi.start_ip, pi.end_ip, pi.gp, pi.handler, pi.format);
	printf("name %d", unw_get_proc_name(&c, name, sizeof name, &off));
	printf(" %s+%lx\n", name, off);
	printf("part %d", unw_get_proc_name(&c, part, sizeof part, &off));
	printf(" %s\n", part);
	_U_dyn_cancel(&di);
	printf("gone %d\n", unw_get_proc_info_by_ip(unw_local_addr_space, 0x10010, &pi, NULL));
}

static int count_states(void *token, void *data, size_t size, unw_word_t lo, unw_word_t hi)
{
	unw_word_t *last = token;

	(void)data;
	(void)size;
	if (*last && lo != *last)
		printf("a gap of states\n");
	*last = hi;
	return 0;
}

static unw_word_t wanted;
static char state[4096];

static int keep_state(void *token, void *data, size_t size, unw_word_t lo, unw_word_t hi)
{
	(void)token;
	if (wanted >= lo && wanted < hi && size <= sizeof state) {
		memcpy(state, data, size);
		return 1;
	}
	return 0;
}

/* Walks by states alone. */
FUNC static void by_states(void)
{
	unw_context_t uc;
	unw_cursor_t c, x;
	int r;

	unw_getcontext(&uc);
	unw_init_local(&c, &uc);
	do {
		unw_word_t ip, sp, last = 0;

		unw_get_reg(&c, UNW_REG_IP, &ip);
		unw_get_reg(&c, UNW_REG_SP, &sp);
		printf("S %s %s\n", show(ip), show(sp));
		x = c;
		r = unw_reg_states_iterate(&x, count_states, &last);
		printf("states %d to %s\n", r, show(last));
		/* Which state was found last does not matter. */
		wanted = ip - 1;
		x = c;
		if (unw_reg_states_iterate(&x, keep_state, NULL) < 0)
			break;
		r = unw_apply_reg_state(&c, state);
		printf("apply %d\n", r);
	} while (r > 0);
}

static int compare(const void *a, const void *b)
{
	static int once;

	if (!once++)
		here(NULL, 0);
	return *(const int *)a - *(const int *)b;
}

static int own_process(void)
{
	int x[] = {3, 1, 2};

	own = 1;
	qsort(x, 3, sizeof x[0], compare);
	action.sa_sigaction = handler;
	action.sa_flags = SA_SIGINFO;
	sigaction(SIGILL, &action, NULL);
	__asm__ volatile("xor %%eax, %%eax\n\txor %%ecx, %%ecx\n\txor %%edx, %%edx\n\txor %%esi, %%esi\n\txor %%edi, %%edi\n\t"
			 "xor %%r8d, %%r8d\n\txor %%r9d, %%r9d\n\txor %%r10d, %%r10d\n\txor %%r11d, %%r11d\n\tud2"
			 : : : "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
	edges();
	registered();
	by_states();
	printf("returned %ld, %d\n", middle(), resumed);
	return 0;
}

/* ---- Times ---- */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int count(void)
{
	unw_context_t uc;
	unw_cursor_t c;
	unw_word_t ip;
	int n = 0;

	unw_getcontext(&uc);
	unw_init_local(&c, &uc);
	do {
		unw_get_reg(&c, UNW_REG_IP, &ip);
		n++;
	} while (unw_step(&c) > 0);
	return n;
}

FUNC static long deep(int n)
{
	volatile long x = n;
	double start = now(), t[101];

	if (n > 0)
		return deep(n - 1) + x;
	count();
	printf("%.1f ", (now() - start) / 1e3);
	for (int i = 0; i < 101; i++) {
		start = now();
		t[i] = count();
		t[i] = (now() - start) / t[i];
	}
	qsort(t, 101, sizeof t[0], by_size);
	printf("%.1f\n", t[50]);
	return x;
}

/* ---- Others ---- */

static int by_ptrace(int pid)
{
	unw_addr_space_t as = unw_create_addr_space(&_UPT_accessors, 0);
	unw_cursor_t c;
	int status, r;
	void *ui;

	if (ptrace(PTRACE_ATTACH, pid, 0, 0) != 0 || waitpid(pid, &status, 0) != pid) {
		perror("ptrace");
		return 3;
	}
	ui = _UPT_create(pid);
	if (getenv("CACHED"))
		unw_set_caching_policy(as, UNW_CACHE_GLOBAL);
	for (int i = 0; i < 2; i++) {
		r = unw_init_remote(&c, as, ui);
		printf("init %d\n", r);
		walk(&c);
	}
	_UPT_destroy(ui);
	unw_destroy_addr_space(as);
	ptrace(PTRACE_DETACH, pid, 0, 0);
	return r < 0;
}

static int by_core(const char *file)
{
	unw_addr_space_t as = unw_create_addr_space(&_UCD_accessors, 0);
	struct UCD_info *ui = _UCD_create(file);
	unw_cursor_t c;

	if (!ui)
		return 3;
	for (int i = 0; i < _UCD_get_num_threads(ui); i++) {
		_UCD_select_thread(ui, i);
		printf("thread %d init %d\n", i, unw_init_remote(&c, as, ui));
		walk(&c);
	}
	_UCD_destroy(ui);
	unw_destroy_addr_space(as);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "ptrace"))
		return by_ptrace(atoi(argv[2]));
	if (argc > 2 && !strcmp(argv[1], "core"))
		return by_core(argv[2]);
	if (argc > 1 && !strcmp(argv[1], "bench"))
		return (int)(deep(50) & 0);
	return own_process();
}
