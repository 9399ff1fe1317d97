/* Walks its own stack with eh_elf.h, in one of the ways below, and compares that with what libgcc's unwinder says. */
#include "eh_elf.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define NOINLINE __attribute__((noinline))
#define COUNT(a) (sizeof(a) / sizeof(a)[0])

enum { MAX = 512 };

static struct eh_elf_module modules[64];
static struct eh_elf_map map;
static uint64_t top_pc; /* the return address in main, or in the function that a thread starts with */
static uint64_t fp_pc, fp; /* a function's frame pointer, and the return address in it */
static const char *how;
static volatile int failures, walks;
static int emulated;

static void fail(const char *what, uint64_t a, uint64_t b)
{
	fprintf(stderr, "%s: %s: %#llx, %#llx\n", how, what, (unsigned long long)a, (unsigned long long)b);
	if (++failures > 8)
		_exit(1);
}

static void show(const char *name, const uint64_t *pcs, uint32_t n)
{
	fprintf(stderr, "%s:", name);
	for (uint32_t i = 0; i < n; i++)
		fprintf(stderr, " %#llx", (unsigned long long)pcs[i]);
	fprintf(stderr, "\n");
}

/* The memory of each kind. */

struct memory {
	struct eh_elf_memory bounds;
	struct unspool_reader reader;
	struct unspool_slice slice;
	struct unspool_word words[1024];
	unsigned char copy[1 << 15];
};

static uint64_t trampoline; /* under qemu-user: the code that handlers return to, two instructions */

static int read_any(void *ctx, uint64_t addr, uint64_t *value)
{
	if (trampoline == 0 || addr != trampoline)
		return eh_elf_read8(ctx, addr, value);
	memcpy(value, (const void *)(uintptr_t)addr, 8);
	return 1;
}

static int (*read8)(void *, uint64_t, uint64_t *) = read_any;
static uint64_t plain = 64; /* bytes of the stack that are read plainly; the kernel reads the others */

static const void *memory(struct memory *m, uint64_t sp)
{
	int saved = errno;

	if (map.deref == EH_ELF_SELF)
		return NULL;
	m->bounds.lo = sp & ~(uint64_t)7;
	m->bounds.hi = m->bounds.lo + plain;
	m->bounds.pid = getpid();
	m->reader.read8 = read8;
	m->reader.ctx = &m->bounds;
	if (map.deref == EH_ELF_CALLBACK)
		return &m->reader;
	m->slice.lo = sp;
	m->slice.bytes = m->copy;
	m->slice.words = m->words;
	m->slice.n_words = 0;
	m->slice.more = 1;
	m->slice.size = 0;
	while (m->slice.size < sizeof m->copy) { /* page by page, until the stack ends */
		uint64_t at = sp + m->slice.size, n = 4096 - at % 4096, left = sizeof m->copy - m->slice.size;
		struct iovec to = {m->copy + m->slice.size, n < left ? n : left}, from = {(void *)at, to.iov_len};

		if (process_vm_readv(m->bounds.pid, &to, 1, &from, 1, 0) != (ssize_t)to.iov_len)
			break;
		m->slice.size += to.iov_len;
	}
	errno = saved;
	return &m->slice;
}

/* Goes on where a step only lacked a word. */
static uint32_t pcs_of(struct eh_elf_cursor *c, struct memory *m, uint64_t *pcs, uint32_t max, enum eh_elf_outcome *why)
{
	uint32_t n = eh_elf_pcs(c, pcs, max, why);

	while (*why == EH_ELF_MISSING && m->slice.n_words < COUNT(m->words)) {
		struct unspool_word *w = &m->words[m->slice.n_words++];

		w->addr = c->state.fault;
		w->ok = (uint64_t)read_any(&m->bounds, w->addr, &w->value);
		n += eh_elf_pcs(c, pcs + n - 1, max - n + 1, why) - 1;
	}
	return n;
}

static void compare(const uint64_t *pcs, uint32_t n, enum eh_elf_outcome why, void **want, int n_want, int from)
{
	int ok = 0;

	for (uint32_t i = 0; i < n; i++)
		ok |= pcs[i] == top_pc;
	if (why != EH_ELF_OUTERMOST || !ok)
		fail("stopped before the outermost frame", why, (uint64_t)ok);
	ok = (int)n - from == n_want - from;
	for (int i = from; ok && i < n_want; i++)
		ok = pcs[i] == (uint64_t)want[i];
	if (!ok) {
		fail("not what backtrace says", n, (uint64_t)n_want);
		show("got ", pcs, n);
		show("want", (const uint64_t *)want, (uint32_t)n_want);
	}
	walks++;
}

/* Walks from here. Frame 0 is at another place in this function. */
static NOINLINE void here(void)
{
	static __thread struct memory m;
	static __thread uint64_t pcs[MAX];
	void *want[MAX];
	struct eh_elf_cursor c;
	enum eh_elf_outcome why;
	uint32_t n;
	int n_want, own;

	eh_elf_capture(&c.state);
	eh_elf_begin(&c, &map, memory(&m, c.state.val[EH_ELF_SP]));
	n = pcs_of(&c, &m, pcs, MAX, &why);
	n_want = backtrace(want, MAX);
	for (own = 0; own + 1 < n_want && (uint64_t)want[own + 1] != pcs[1]; own++)
		; /* a sanitizer's backtrace has a frame of its own */
	compare(pcs, n, why, want + own, n_want - own, 1);

	eh_elf_capture(&c.state);
	eh_elf_begin(&c, &map, memory(&m, c.state.val[EH_ELF_SP]));
	do {
		uint64_t v = 0;

		if (c.state.pc != fp_pc)
			continue;
		if (eh_elf_get(&c, EH_ELF_FP, &v) != EH_ELF_OK || v != fp)
			fail("frame pointer", v, fp);
		break;
	} while (eh_elf_next(&c) == EH_ELF_OK);
}

/* Recursion by way of libc. */

static __thread int depth;
static void (*leaf)(void);

static NOINLINE int order(const void *a, const void *b)
{
	int v[5] = {5, 3, 1, 4, 2};

	if (depth > 0) {
		depth--;
		qsort(v, COUNT(v), sizeof v[0], order);
	} else if (leaf != NULL) {
		leaf();
	}
	return *(const int *)a - *(const int *)b;
}

static NOINLINE void recurse(int n)
{
	int v[5] = {5, 3, 1, 4, 2};

	fp_pc = (uint64_t)__builtin_return_address(0);
	depth = n;
	qsort(v, COUNT(v), sizeof v[0], order);
	__asm__ volatile("");
}

static NOINLINE void framed(int n)
{
	char *volatile some = (char *)__builtin_alloca((size_t)n + 100); /* so the frame pointer is needed */

	some[0] = 0;
	fp = (uint64_t)__builtin_frame_address(0);
	recurse(n);
	__asm__ volatile("");
}

static NOINLINE void top(int n)
{
	top_pc = (uint64_t)__builtin_return_address(0);
	framed(n);
	__asm__ volatile("");
}

/* In a signal handler: from inside of it, and from what it interrupted. */
static void handler(int sig, siginfo_t *si, void *uc)
{
	static struct memory m;
	static uint64_t pcs[MAX];
	void *want[MAX];
	struct eh_elf_cursor c;
	enum eh_elf_outcome why;
	uint32_t n;
	int n_want, i;

	(void)sig;
	(void)si;
	here();
	eh_elf_from_ucontext(&c.state, (const ucontext_t *)uc);
	eh_elf_begin(&c, &map, memory(&m, c.state.val[EH_ELF_SP]));
	n = pcs_of(&c, &m, pcs, MAX, &why);
	n_want = backtrace(want, MAX);
	for (i = 0; i < n_want && (uint64_t)want[i] != pcs[0]; i++)
		;
	if (i == n_want)
		fail("backtrace does not have the interrupted frame", pcs[0], 0);
	compare(pcs, n, why, want + i, n_want - i, 0);
}

static void on_signal(int sig, void (*fn)(int, siginfo_t *, void *), int flags)
{
	struct sigaction sa;

	memset(&sa, 0, sizeof sa);
	sa.sa_sigaction = fn;
	sa.sa_flags = SA_SIGINFO | SA_RESTART | flags;
	if (sigaction(sig, &sa, NULL) != 0)
		fail("sigaction", (uint64_t)errno, 0);
}

static void interrupt(void) { raise(SIGUSR1); }

/* qemu-user has no vDSO: the code that handlers return to is in no module, so one is made up, which has no file as a vDSO may have none. */
static void learn(int sig, siginfo_t *si, void *uc)
{
	(void)sig;
	(void)si;
	(void)uc;
	trampoline = (uint64_t)__builtin_return_address(0);
}

static void add_trampoline(void)
{
	on_signal(SIGUSR2, learn, 0);
	raise(SIGUSR2);
	if (eh_elf_map_add(&map, trampoline - 4, trampoline + 8, 0, NULL) != 0)
		fail("no place for the code that handlers return to", trampoline, 0);
}

/* A fault in code of the compiler's, so the interrupted frame is not raise. */
static volatile int *nowhere;

static void fault_handler(int sig, siginfo_t *si, void *uc)
{
	handler(sig, si, uc);
	/* Try again with an address that is there. */
#ifdef __x86_64__
	((ucontext_t *)uc)->uc_mcontext.gregs[REG_RAX] = (greg_t)(uintptr_t)&walks;
#else
	((ucontext_t *)uc)->uc_mcontext.regs[0] = (uintptr_t)&walks;
#endif
}

static void fault(void)
{
#ifdef __x86_64__
	__asm__ volatile("movl (%%rax), %%eax" : : "a"(nowhere) : "memory");
#else
	register volatile int *x0 __asm__("x0") = nowhere;

	__asm__ volatile("ldr w0, [x0]" : "+r"(x0) : : "memory");
#endif
}

static void *thread(void *arg)
{
	top(*(int *)arg);
	return NULL;
}

static void in_thread(int n)
{
	pthread_t t;

	pthread_create(&t, NULL, thread, &n);
	pthread_join(t, NULL);
}

/* A storm of signals. */

static int storms[2], partial;
static __thread int self_number;

static void storm_handler(int sig, siginfo_t *si, void *uc)
{
	static __thread struct memory m;
	uint64_t pcs[MAX];
	struct eh_elf_cursor c;
	enum eh_elf_outcome why;
	int saved = errno;
	uint32_t n;

	(void)sig;
	(void)si;
	eh_elf_from_ucontext(&c.state, (const ucontext_t *)uc);
	eh_elf_begin(&c, &map, memory(&m, c.state.val[EH_ELF_SP]));
	n = pcs_of(&c, &m, pcs, MAX, &why);
	if (errno != saved)
		fail("errno", (uint64_t)errno, (uint64_t)saved);
	if (why != EH_ELF_OUTERMOST && !__atomic_fetch_add(&partial, 1, __ATOMIC_RELAXED)) {
		fprintf(stderr, "reason %d, module of the last frame at %#llx\n", why, c.module ? (unsigned long long)c.module->bias : 0);
		show("partial", pcs, n);
	}
	__atomic_fetch_add(&storms[self_number], 1, __ATOMIC_RELAXED);
}

static void *storm_thread(void *arg)
{
	struct itimerspec khz = {{0, 1000000}, {0, 1000000}};
	struct timespec now, end;
	struct sigevent ev;
	timer_t timer;

	self_number = *(int *)arg;
	memset(&ev, 0, sizeof ev);
	ev.sigev_notify = SIGEV_THREAD_ID;
	ev.sigev_signo = SIGPROF;
	ev._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	if (timer_create(CLOCK_MONOTONIC, &ev, &timer) != 0 || timer_settime(timer, 0, &khz, NULL) != 0)
		fail("timer", (uint64_t)errno, 0);
	clock_gettime(CLOCK_MONOTONIC, &end);
	do {
		recurse(30);
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - end.tv_sec) * 1000000000 + now.tv_nsec - end.tv_nsec < 500000000);
	timer_delete(timer);
	return NULL;
}

static void storm(void)
{
	int numbers[2] = {0, 1};
	pthread_t t[2];

	on_signal(SIGPROF, storm_handler, 0);
	for (int i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, storm_thread, &numbers[i]);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	printf("storm: %d and %d walks, %d of them did not reach the outermost frame\n", storms[0], storms[1], partial);
	if (storms[0] == 0 || storms[1] == 0 || partial > 0)
		fail("storm", (uint64_t)storms[0] + (uint64_t)storms[1], (uint64_t)partial);
}

/* Registers and memory that make no sense. */

static uint64_t seed = 1;

static uint64_t rnd(void)
{
	uint64_t x = seed += 0x9e3779b97f4a7c15;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

static uint64_t stack[8192];

static uint64_t nonsense(void)
{
	const struct eh_elf_module *m = &modules[rnd() % map.n];

	switch (rnd() % 8) {
	case 0: return rnd();
	case 1: return rnd() >> 48;
	case 2: return ~(uint64_t)0 - (rnd() & 15);
	case 3:
	case 4:
	case 5: return m->start + rnd() % (m->end - m->start);
	}
	return (uint64_t)(uintptr_t)stack + (rnd() % sizeof stack & ~(uint64_t)7);
}

static void hostile(void)
{
	static struct memory m;
	static uint64_t pcs[8192];
	unsigned long long reasons[10] = {0}, frames = 0;

	m.bounds.lo = (uint64_t)(uintptr_t)stack;
	m.bounds.hi = m.bounds.lo + sizeof stack;
	/* Under emulation, a walk takes ten times as long. */
	for (int k = 0; k < (emulated && getenv("UNSPOOL_FULL") == NULL ? 20000 : 200000); k++) {
		struct eh_elf_cursor c;
		enum eh_elf_outcome why;
		uint32_t n;

		for (size_t i = 0; i < (k % 1000 ? 16 : COUNT(stack)); i++)
			stack[rnd() % COUNT(stack)] = nonsense();
		m.bounds.pid = k % 4 == 0 ? getpid() : 0;
		m.reader.read8 = eh_elf_read8;
		m.reader.ctx = &m.bounds;
		m.slice.lo = m.bounds.lo;
		m.slice.size = sizeof stack;
		m.slice.bytes = (const unsigned char *)stack;
		for (int i = 0; i < EH_ELF_NUM_SLOTS; i++)
			c.state.val[i] = nonsense();
		do
			c.state.pc = nonsense();
		while (k % 16 != 0 && eh_elf_map_find(&map, c.state.pc) == NULL);
		c.state.known = k % 8 == 0 ? rnd() : ~(uint64_t)0;
		c.state.in_mem = c.state.in_reg = 0;
		eh_elf_begin(&c, &map, map.deref == EH_ELF_CALLBACK ? (void *)&m.reader : (void *)&m.slice);
		n = eh_elf_pcs(&c, pcs, COUNT(pcs), &why);
		if (n > 4096 || why == EH_ELF_OK || why == EH_ELF_MISSING || why >= COUNT(reasons))
			fail("a walk that makes no sense", n, why);
		else
			reasons[why]++;
		frames += n;
	}
	printf("hostile: %llu frames; by reason", frames);
	for (size_t i = 1; i < COUNT(reasons); i++)
		printf(" %llu", reasons[i]);
	printf("\n");
}

/* Files that ld.so loaded. */

static char dir[PATH_MAX];

static void dlopened(void)
{
	for (uint32_t i = 0; i < map.n; i++) {
		struct eh_elf_module *m = &modules[i];
		char path[PATH_MAX + 200];
		struct unspool_state a, b;
		eh_elf_find_fn *find;
		eh_elf_apply_fn *apply;
		eh_elf_step_fn *step;
		void *h;

		if (m->file.base == NULL)
			continue;
		snprintf(path, sizeof path, "%s/%s.eh_elf.so", dir, m->file.id);
		h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (h == NULL) {
			fprintf(stderr, "%s\n", dlerror());
			failures++;
			continue;
		}
		find = (eh_elf_find_fn *)(uintptr_t)dlsym(h, "eh_elf_find");
		apply = (eh_elf_apply_fn *)(uintptr_t)dlsym(h, "eh_elf_apply");
		step = (eh_elf_step_fn *)(uintptr_t)dlsym(h, "eh_elf_step");
		if (step == NULL || (find == NULL) != (m->file.find == NULL) || (apply == NULL) != (m->file.apply == NULL)) {
			fail("dlsym", i, 0);
			continue;
		}
		for (uint64_t pc = m->start - m->bias; find != NULL && pc < m->end - m->bias; pc += 1 + rnd() % 64) {
			if (find(pc) != m->file.find(pc))
				fail("find", find(pc), m->file.find(pc));
		}
		memset(&a, 0, sizeof a);
		eh_elf_capture(&a);
		b = a;
		if (a.pc >= m->start && a.pc < m->end && map.deref == EH_ELF_SELF) {
			uint64_t pc = a.pc - m->bias;
			int oa = m->file.step(&a, NULL, pc), ob = find == NULL ? step(&b, NULL, pc) : apply(&b, NULL, find(pc));

			if (oa != ob || memcmp(&a, &b, sizeof a) != 0)
				fail("apply", (uint64_t)oa, (uint64_t)ob);
		}
		m->file.apply = apply;
		m->file.step = step;
	}
}

/* A reader that looks at the stack it runs on: that is inside of emitted code. */

static int traces;

NOINLINE int traced_read8(void *ctx, uint64_t addr, uint64_t *value)
{
	void *pcs[MAX];
	int n = backtrace(pcs, MAX), found = 0;

	for (int i = 0; i < n; i++)
		found |= (uint64_t)pcs[i] == top_pc;
	if (!found) {
		fail("backtrace inside of emitted code does not come to main", (uint64_t)n, 0);
		show("got ", (const uint64_t *)pcs, (uint32_t)n);
	}
	traces++;
	return read_any(ctx, addr, value);
}

/* Applies each rule of each file, in states that make it read: for the CFA, for the return address, for expressions. */

static int traced_arena(void *ctx, uint64_t addr, uint64_t *value)
{
	uint64_t v;

	(void)ctx;
	(void)addr;
	traced_read8(&(struct eh_elf_memory){(uint64_t)(uintptr_t)stack, (uint64_t)(uintptr_t)(stack + COUNT(stack)), 0}, (uint64_t)(uintptr_t)stack, &v);
	*value = (uint64_t)(uintptr_t)stack;
	return 1;
}

static void trace_rules(void)
{
	struct unspool_reader reader = {.read8 = traced_arena};

	for (uint32_t i = 0; i < map.n; i++) {
		for (uint32_t rule = 1; modules[i].file.apply != NULL && rule < 2 * modules[i].file.info.n_rules; rule++) {
			struct unspool_state s;

			memset(&s, 0, sizeof s);
			s.known = ((uint64_t)1 << EH_ELF_NUM_SLOTS) - 1;
			s.in_mem = rule & 1 ? s.known : 0;
			for (int r = 0; r < EH_ELF_NUM_SLOTS; r++)
				s.val[r] = (uint64_t)(uintptr_t)stack;
			modules[i].file.apply(&s, &reader, rule / 2);
		}
	}
	depth = -1;
	leaf = NULL;
}

/* Prints why each file of the standard input is refused. */
static void open_all(void)
{
	char line[PATH_MAX];

	while (fgets(line, sizeof line, stdin) != NULL) {
		struct eh_elf f;
		int e;

		line[strcspn(line, "\n")] = 0;
		e = eh_elf_open(line, &f);
		printf("%d %s %s\n", e, e == 0 ? f.id : "-", eh_elf_strerror(e));
		eh_elf_close(&f);
	}
}

/* Damages each bit of a file, and cuts it at each length. */
static void flip(const char *path)
{
	static unsigned char b[1 << 16];
	struct eh_elf f;
	int fd = open(path, O_RDWR), errors[14] = {0};
	ssize_t n = pread(fd, b, sizeof b, 0);

	if (n <= 0 || n == sizeof b || eh_elf_open(path, &f) != 0) {
		fail("the file as it was", (uint64_t)n, 0);
		return;
	}
	eh_elf_close(&f);
	for (ssize_t i = 0; i < 8 * n; i++) {
		unsigned char x = (unsigned char)(b[i / 8] ^ 1 << i % 8);
		int e;

		if (pwrite(fd, &x, 1, i / 8) != 1)
			fail("pwrite", (uint64_t)i, 0);
		e = eh_elf_open(path, &f);
		if (e >= EH_ELF_E_FORMAT + 1 || f.base != NULL)
			fail("a flipped bit", (uint64_t)i, (uint64_t)e);
		else
			errors[-e]++;
		if (pwrite(fd, &b[i / 8], 1, i / 8) != 1)
			fail("pwrite", (uint64_t)i, 0);
	}
	for (ssize_t i = n - 1; i >= 0; i--) {
		int e;

		if (ftruncate(fd, i) != 0)
			fail("ftruncate", (uint64_t)i, 0);
		e = eh_elf_open(path, &f);
		if (e >= EH_ELF_E_SYSTEM || f.base != NULL)
			fail("cut", (uint64_t)i, (uint64_t)e);
	}
	printf("flip: %zd bytes; format %d, version %d, size %d, checksum %d, malformed %d\n", n, errors[4], errors[5], errors[6], errors[7], errors[8]);
	close(fd);
}

/* Loading by name, and maps. */
static void maps(void)
{
	static struct eh_elf_module two[2], same[64];
	struct eh_elf_map small, other;
	struct eh_elf f;
	int n = 0, e;

	for (uint32_t i = 0; i < map.n; i++) {
		const struct eh_elf_module *m = &modules[i];

		if ((i > 0 && modules[i - 1].end > m->start) || eh_elf_map_find(&map, m->start) != m || eh_elf_map_find(&map, m->end - 1) != m)
			fail("order", m->start, m->end);
		n += m->file.base != NULL;
	}
	if (eh_elf_map_find(&map, modules[0].start - 1) != NULL || eh_elf_map_find(&map, modules[map.n - 1].end) != NULL)
		fail("found outside", 0, 0);
	if (eh_elf_map_find(&map, (uint64_t)(uintptr_t)maps) == NULL || eh_elf_map_find(&map, (uint64_t)(uintptr_t)modules) != NULL)
		fail("not text only", 0, 0);
	if (eh_elf_map_stale(&map))
		fail("stale", 0, 0);
	eh_elf_map_init(&small, two, 2, map.deref);
	if ((e = eh_elf_map_self(&small, dir)) != EH_ELF_E_FULL)
		fail("full", (uint64_t)e, 0);
	eh_elf_map_close(&small);
	eh_elf_map_init(&other, same, 64, map.deref == EH_ELF_SELF ? EH_ELF_SLICE : EH_ELF_SELF);
	if ((e = eh_elf_map_self(&other, dir)) != 0 || other.n != map.n)
		fail("kind", (uint64_t)e, other.n);
	for (uint32_t i = 0; i < other.n; i++)
		if (same[i].file.base != NULL || same[i].error != (modules[i].file.base ? (int)EH_ELF_E_DEREF : modules[i].error))
			fail("kind", i, (uint64_t)same[i].error);
	if ((e = eh_elf_map_add(&other, 16, 32, 0, &modules[0].file)) != EH_ELF_E_DEREF)
		fail("kind", (uint64_t)e, 0);
	if ((e = eh_elf_map_add(&other, same[0].start - 1, same[0].start + 1, 0, NULL)) != EH_ELF_E_OVERLAP)
		fail("overlap", (uint64_t)e, 0);
	if ((e = eh_elf_open_id(dir, "../x", &f)) != EH_ELF_E_ID || (e = eh_elf_open_id(dir, "", &f)) != EH_ELF_E_ID)
		fail("id", (uint64_t)e, 0);
	if ((e = eh_elf_open_id(dir, "0123", &f)) != EH_ELF_E_SYSTEM || errno != ENOENT)
		fail("id", (uint64_t)e, (uint64_t)errno);
	if (eh_elf_open_id("/", modules[0].file.id, &f) != EH_ELF_E_SYSTEM)
		fail("id", 0, 0);
	if (eh_elf_crc32c(0, (const unsigned char *)"123456789", 9) != 0xe3069283)
		fail("crc32c", eh_elf_crc32c(0, (const unsigned char *)"123456789", 9), 0xe3069283);
	printf("maps: %u modules, %d with a file, %d bytes each\n", map.n, n, (int)sizeof modules[0]);
}

static void speed(void)
{
	struct timespec a, b;
	uint64_t pcs[MAX], best = ~(uint64_t)0, best_libc = best, ns;
	static struct memory m;
	void *want[MAX];
	uint32_t n = 0;

	plain = 1 << 20;
	for (int i = 0; i < 200; i++) {
		struct eh_elf_cursor c;

		clock_gettime(CLOCK_MONOTONIC, &a);
		eh_elf_capture(&c.state);
		eh_elf_begin(&c, &map, memory(&m, c.state.val[EH_ELF_SP]));
		n = eh_elf_pcs(&c, pcs, MAX, NULL);
		clock_gettime(CLOCK_MONOTONIC, &b);
		ns = (uint64_t)(b.tv_sec - a.tv_sec) * 1000000000 + (uint64_t)(b.tv_nsec - a.tv_nsec);
		best = ns < best ? ns : best;
		clock_gettime(CLOCK_MONOTONIC, &a);
		backtrace(want, MAX);
		clock_gettime(CLOCK_MONOTONIC, &b);
		ns = (uint64_t)(b.tv_sec - a.tv_sec) * 1000000000 + (uint64_t)(b.tv_nsec - a.tv_nsec);
		best_libc = ns < best_libc ? ns : best_libc;
	}
	printf("speed: %u frames, %.1f ns a frame; backtrace: %.1f ns\n", n, (double)best / n, (double)best_libc / n);
	depth = -1;
	leaf = NULL;
}

int main(int argc, char **argv)
{
	static char alt[1 << 17];
	stack_t ss;
	int n;

	if (argc < 4)
		return 2;
	how = argv[3];
	if (argc > 4) { /* under qemu-user, which has no process_vm_readv and no vDSO */
		plain = strtoull(argv[4], NULL, 0);
		emulated = 1;
	}
	if (strcmp(how, "open") == 0) {
		open_all();
		return 0;
	}
	if (strcmp(how, "flip") == 0) {
		flip(argv[1]);
		return failures != 0;
	}
	strcpy(dir, argv[1]);
	backtrace((void *[1]){0}, 1); /* loads libgcc_s */
	eh_elf_map_init(&map, modules, COUNT(modules), (enum eh_elf_deref)atoi(argv[2]));
	n = eh_elf_map_self(&map, dir);
	if (n <= 0) {
		fprintf(stderr, "map: %d: %s\n", n, eh_elf_strerror(n));
		return 1;
	}
	if (emulated && strcmp(how, "maps") != 0 && strcmp(how, "hostile") != 0)
		add_trampoline();
	leaf = here;
	memset(&ss, 0, sizeof ss);
	ss.ss_sp = alt;
	ss.ss_size = sizeof alt;
	if (strcmp(how, "recurse") == 0) {
		top(0);
		top(60);
		in_thread(0);
		in_thread(60);
	} else if (strcmp(how, "signal") == 0) {
		leaf = interrupt;
		on_signal(SIGUSR1, handler, 0);
		on_signal(SIGSEGV, fault_handler, 0);
		top(20);
		leaf = fault;
		top(20);
	} else if (strcmp(how, "altstack") == 0) {
		leaf = interrupt;
		sigaltstack(&ss, NULL);
		on_signal(SIGUSR1, handler, SA_ONSTACK);
		on_signal(SIGSEGV, fault_handler, SA_ONSTACK);
		top(20);
		leaf = fault;
		top(20);
	} else if (strcmp(how, "storm") == 0) {
		leaf = NULL;
		storm();
		walks++;
	} else if (strcmp(how, "hostile") == 0) {
		hostile();
		walks++;
	} else if (strcmp(how, "dlopen") == 0) {
		dlopened();
		top(20);
		leaf = interrupt;
		on_signal(SIGUSR1, handler, 0);
		top(20);
	} else if (strcmp(how, "traced") == 0) {
		dlopened();
		read8 = traced_read8;
		top(3);
		leaf = interrupt;
		on_signal(SIGUSR1, handler, 0);
		top(3);
		leaf = trace_rules;
		top(0);
		if (traces == 0)
			fail("no traces", 0, 0);
		printf("traced: %d backtraces inside of emitted code\n", traces);
	} else if (strcmp(how, "maps") == 0) {
		maps();
		walks++;
	} else if (strcmp(how, "speed") == 0) {
		leaf = speed;
		top(100);
		walks++;
	} else {
		return 2;
	}
	eh_elf_map_close(&map);
	printf("%s: %d walks, %d failures\n", how, walks, failures);
	return failures != 0 || walks == 0;
}
