/*
 * Walks its own threads' stacks through the interface to other address spaces: in many threads, in signal handlers that
 * interrupt walks, in children of fork, while caches are flushed, and on stacks of nonsense.
 *
 *	torture SECONDS [MICROSECONDS]
 *
 * The second is the time between signals. Where a handler takes longer than that, they pile up.
 */
#define _GNU_SOURCE
#include "abi.h"

#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

unw_addr_space_t _Ux86_64_create_addr_space(unw_accessors_t *, int);
void _Ux86_64_destroy_addr_space(unw_addr_space_t);
int _Ux86_64_set_caching_policy(unw_addr_space_t, int);
void _Ux86_64_flush_cache(unw_addr_space_t, unw_word_t, unw_word_t);
int _Ux86_64_init_remote(unw_cursor_t *, unw_addr_space_t, void *);
int _Ux86_64_step(unw_cursor_t *);
int _Ux86_64_get_reg(unw_cursor_t *, int, unw_word_t *);
int _Ux86_64_dwarf_search_unwind_table(unw_addr_space_t, unw_word_t, unw_dyn_info_t *, unw_proc_info_t *, int, void *);

/* Code of this process, listed before the threads start: what a handler may look at. */
static struct {
	uint64_t lo, hi, hdr, n;
} code[64];
static int n_code;

static int list(struct dl_phdr_info *x, size_t size, void *arg)
{
	uint64_t hdr = 0;

	(void)size;
	(void)arg;
	for (int i = 0; i < x->dlpi_phnum; i++)
		if (x->dlpi_phdr[i].p_type == PT_GNU_EH_FRAME)
			hdr = x->dlpi_addr + x->dlpi_phdr[i].p_vaddr;
	for (int i = 0; hdr && i < x->dlpi_phnum && n_code < 64; i++)
		if (x->dlpi_phdr[i].p_type == PT_LOAD && x->dlpi_phdr[i].p_flags & PF_X) {
			code[n_code].lo = x->dlpi_addr + (x->dlpi_phdr[i].p_vaddr & -4096ul);
			code[n_code].hi = x->dlpi_addr + ((x->dlpi_phdr[i].p_vaddr + x->dlpi_phdr[i].p_memsz + 4095) & -4096ul);
			code[n_code].hdr = hdr;
			code[n_code++].n = ((uint32_t *)hdr)[2];
		}
	return 0;
}

/* What is walked: registers, and the stack, which must not change meanwhile. */
struct walk {
	uint64_t regs[17];
	uint64_t lo, hi;
	const uint8_t *bytes;
};

static int find(unw_addr_space_t as, unw_word_t ip, unw_proc_info_t *pi, int need, void *arg)
{
	for (int i = 0; i < n_code; i++) {
		unw_dyn_info_t di = {.start_ip = code[i].lo, .end_ip = code[i].hi, .format = UNW_INFO_FORMAT_REMOTE_TABLE};

		if (ip < code[i].lo || ip >= code[i].hi)
			continue;
		di.u.rti.segbase = code[i].hdr;
		di.u.rti.table_data = code[i].hdr + 12;
		di.u.rti.table_len = code[i].n;
		return _Ux86_64_dwarf_search_unwind_table(as, ip, &di, pi, need, arg);
	}
	return -UNW_ENOINFO;
}

static int mem(unw_addr_space_t as, unw_word_t a, unw_word_t *v, int write, void *arg)
{
	struct walk *w = arg;
	struct iovec to = {v, 8}, from = {(void *)a, 8};
	int saved = errno, ok;

	(void)as;
	if (write)
		return -UNW_EINVAL;
	if (a >= w->lo && a < w->hi && w->hi - a >= 8) {
		memcpy(v, w->bytes + (a - w->lo), 8);
		return 0;
	}
	ok = process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 8;
	errno = saved;
	return ok ? 0 : -UNW_EINVAL;
}

static int reg(unw_addr_space_t as, unw_regnum_t n, unw_word_t *v, int write, void *arg)
{
	(void)as;
	if (write || n < 0 || n > 16)
		return -UNW_EBADREG;
	*v = ((struct walk *)arg)->regs[n];
	return 0;
}

static int none(unw_addr_space_t as, unw_word_t *v, void *arg)
{
	(void)as;
	(void)v;
	(void)arg;
	return -UNW_ENOINFO;
}

static unw_accessors_t acc = {.find_proc_info = find, .get_dyn_info_list_addr = none, .access_mem = mem, .access_reg = reg};
static unw_addr_space_t as;
static atomic_ulong walks, frames;
static atomic_int failures;

static const int order[17] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8,
			      REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};

static unsigned go(struct walk *w, uint64_t *pcs, unsigned max)
{
	unw_cursor_t c;
	unsigned n = 0;

	if (_Ux86_64_init_remote(&c, as, w) < 0)
		return 0;
	do {
		_Ux86_64_get_reg(&c, UNW_X86_64_RIP, &pcs[n++]);
	} while (n < max && _Ux86_64_step(&c) > 0);
	atomic_fetch_add(&walks, 1);
	atomic_fetch_add(&frames, n);
	return n;
}

/* Walks a context of this thread, whose stack is read where it lies: from above this function's own frames. */
static unsigned walk_context(ucontext_t *uc, uint64_t *pcs, unsigned max)
{
	struct walk w = {.lo = 0};

	for (int i = 0; i < 17; i++)
		w.regs[i] = (uint64_t)uc->uc_mcontext.gregs[order[i]];
	return go(&w, pcs, max);
}

static void handler(int sig, siginfo_t *si, void *uc)
{
	uint64_t pcs[128];

	(void)sig;
	(void)si;
	walk_context(uc, pcs, 128);
}

static __thread uint64_t outer;

__attribute__((noinline)) static void check(void)
{
	uint64_t pcs[128];
	ucontext_t uc;
	unsigned n;

	getcontext(&uc);
	n = walk_context(&uc, pcs, 128);
	for (unsigned i = 0; i < n; i++)
		if (pcs[i] == outer)
			return;
	if (++failures < 5)
		fprintf(stderr, "a walk of %u frames does not get to %#llx\n", n, (unsigned long long)outer);
}

__attribute__((noinline)) static int deeper(int n)
{
	volatile char room[64];
	int r;

	room[0] = (char)n;
	if (n == 0) {
		check();
		return 1;
	}
	r = deeper(n - 1);
	__asm__ volatile("" ::: "memory");
	return r + room[0];
}

/* A stack and registers made of code addresses and of pointers into the stack. */
static void nonsense(unsigned *seed)
{
	uint64_t stack[256], pcs[64];
	struct walk w = {.lo = 0x7ffe00000000, .hi = 0x7ffe00000000 + sizeof stack, .bytes = (uint8_t *)stack};

	for (int i = 0; i < 256 + 17; i++) {
		unsigned r = (unsigned)rand_r(seed);
		int k = (int)(r >> 4) % n_code;
		uint64_t v = code[k].lo + ((uint64_t)rand_r(seed) << 8 ^ (uint64_t)rand_r(seed)) % (code[k].hi - code[k].lo);

		if (r % 4 == 0)
			v = w.lo + r / 4 % sizeof stack;
		else if (r % 32 == 1)
			v = (uint64_t)r << 33;
		if (i < 256)
			stack[i] = v;
		else
			w.regs[i - 256] = v;
	}
	w.regs[7] = w.lo;
	go(&w, pcs, 64);
}

static double until; /* in seconds */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

__attribute__((noinline)) static void work(unsigned seed)
{
	outer = (uint64_t)__builtin_return_address(0);
	for (unsigned i = 0; now() < until; i++) {
		deeper(i % 20);
		for (int k = 0; k < 20; k++)
			nonsense(&seed);
		if (i % 64 == 0)
			_Ux86_64_flush_cache(as, 0, 0);
	}
}

static void *thread(void *arg)
{
	work((unsigned)(uintptr_t)arg);
	__asm__ volatile("" ::: "memory"); /* no tail call: work's caller must be there */
	return NULL;
}

/*
 * The library looks at descriptors that other threads open and close, for the file of a module (find_fd of module.c): what it finds, it compares with what is
 * mapped. ThreadSanitizer takes the look for a race, if another thread opens a file at that moment.
 */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void) { return "race:^find_fd$\n"; }

int main(int argc, char **argv)
{
	struct sigaction sa = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER};
	int us = argc > 2 ? atoi(argv[2]) : 500, status;
	struct itimerval storm = {{0, us}, {0, us}};
	pthread_t t[4];

	until = now() + (argc > 1 ? atoi(argv[1]) : 2);
	dl_iterate_phdr(list, NULL);
	as = _Ux86_64_create_addr_space(&acc, 0);
	_Ux86_64_set_caching_policy(as, UNW_CACHE_GLOBAL);
	sigaction(SIGPROF, &sa, NULL);
	setitimer(ITIMER_PROF, &storm, NULL);
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, thread, (void *)(uintptr_t)(i + 1));
	while (now() < until) {
		pid_t pid = fork();

		if (pid == 0) {
			outer = (uint64_t)__builtin_return_address(0);
			until = now();
			thread((void *)9);
			unsigned seed = 5;
			for (int i = 0; i < 100; i++)
				nonsense(&seed);
			_exit(failures != 0);
		}
		waitpid(pid, &status, 0);
		if (pid > 0 && status != 0) {
			fprintf(stderr, "a child ended with %#x\n", status);
			return 1;
		}
	}
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	setitimer(ITIMER_PROF, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
	_Ux86_64_destroy_addr_space(as);
	printf("%lu walks, %lu frames\n", atomic_load(&walks), atomic_load(&frames));
	return failures != 0;
}
