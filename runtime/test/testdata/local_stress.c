/*
 * Walks under bad conditions. The argument says which; 0 is returned if all walks ended as they should.
 */
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include <libunwind.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); abort(); } } while (0)

/* The sanitizers take stack of their own, and time: between signals (in microseconds) there must be enough for a handler. */
#if defined __SANITIZE_THREAD__
enum { STACK = 1 << 21, STORM = 5000 };
#elif defined __SANITIZE_ADDRESS__
enum { STACK = 1 << 16, STORM = 1000 };
#else
enum { STACK = 1 << 16, STORM = 200 };
#endif

extern int unw_backtrace(void **, int);

static int steps(int max)
{
	unw_context_t uc;
	unw_cursor_t c;
	int n = 0;

	unw_getcontext(&uc);
	unw_init_local(&c, &uc);
	while (n < max && unw_step(&c) > 0)
		n++;
	return n;
}

NOINLINE static int deep(int n)
{
	volatile int r;

	if (n > 0) {
		r = deep(n - 1);
	} else {
		void *b[256];

		r = unw_backtrace(b, 256);
		CHECK(r > 10);
		CHECK(steps(256) > 10);
	}
	return r;
}

static _Atomic int storms;
static int least = 3; /* so many frames can be walked wherever a signal arrives */

/* A handler, in which there is another, and in that a third. ThreadSanitizer blocks signals in handlers: one after another. */
static void storm(int s)
{
	void *b[128];
	int n = unw_backtrace(b, 128);

	storms++;
	CHECK(n > least);
	CHECK(steps(128) >= least);
	if (s != SIGUSR2)
		raise(s == SIGPROF ? SIGUSR1 : SIGUSR2);
}

static void catch(int sig, void (*f)(int), int flags)
{
	struct sigaction a = {.sa_handler = f, .sa_flags = flags};

	sigaction(sig, &a, NULL);
}

static void tick(int us)
{
	struct itimerval t = {{0, us}, {0, us}};

	setitimer(ITIMER_PROF, &t, NULL);
}

static void start_storm(int flags)
{
	catch(SIGPROF, storm, SA_RESTART | flags);
	catch(SIGUSR1, storm, SA_NODEFER);
	catch(SIGUSR2, storm, SA_NODEFER);
	tick(STORM);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double until;

static void *walker(void *p)
{
	while (now() < until)
		deep(20 + (int)(intptr_t)p);
	return NULL;
}

static void threads(int n, void *(*f)(void *))
{
	pthread_t t[16];

	for (int i = 0; i < n; i++)
		CHECK(pthread_create(&t[i], NULL, f, (void *)(intptr_t)i) == 0);
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
}

static void test_storm(void)
{
	start_storm(SA_NODEFER);
	threads(4, walker);
	tick(0);
	CHECK(storms > 10);
}

static void *forker(void *p)
{
	(void)p;
	while (now() < until) {
		pid_t pid = fork();
		int st;

		if (pid == 0) {
			deep(15);
			_exit(0);
		}
		CHECK(waitpid(pid, &st, 0) == pid && st == 0);
	}
	return NULL;
}

static void *mixed(void *p)
{
	return (intptr_t)p & 1 ? forker(p) : walker(p);
}

static const char *lib[2];

static int from_plugin(void)
{
	void *b[64];
	int n = unw_backtrace(b, 64), k = steps(64);

	CHECK(n >= 4 && k >= 3);
	return n;
}

static void *loader(void *p)
{
	for (unsigned i = (unsigned)(intptr_t)p; now() < until; i++) {
		void *h = dlopen(lib[i & 1], RTLD_NOW | RTLD_LOCAL);
		int (*f)(int (*)(void)), n;

		CHECK(h);
		f = (int (*)(int (*)(void)))dlsym(h, "plugin");
		CHECK(f);
		n = f(from_plugin);
		/* plugin 0 has one frame, plugin 1 has three, at the same addresses. */
		CHECK(n > 0);
		dlclose(h);
	}
	return NULL;
}

/* One after the other in the same place: what is known of one is not used for the other. */
static void reload(void)
{
	int first[2] = {0, 0};

	for (int i = 0; i < 200; i++) {
		void *h = dlopen(lib[i & 1], RTLD_NOW);
		int n = ((int (*)(int (*)(void)))dlsym(h, "plugin"))(from_plugin);

		if (first[i & 1] == 0)
			first[i & 1] = n;
		if (n != first[i & 1])
			fprintf(stderr, "%d: %d frames, %d before\n", i, n, first[i & 1]);
		CHECK(n == first[i & 1]);
		dlclose(h);
	}
	CHECK(first[1] == first[0] + 2);
}

static void test_dlopen(void)
{
	reload();
	until = now() + 0.8;
	threads(3, loader);
}

/* Its caller is plugin. */
static int names_plugin(void)
{
	unw_context_t uc;
	unw_cursor_t c;
	unw_word_t off;
	char name[32] = "";

	unw_getcontext(&uc);
	unw_init_local(&c, &uc);
	CHECK(unw_step(&c) > 0);
	CHECK(unw_get_proc_name(&c, name, sizeof name, &off) == 0 && !strcmp(name, "plugin"));
	return 1;
}

/* Modules without a build ID do not use up what there is for others, however often walks lead through them. */
static void test_unnamed(const char *const *named)
{
	void *h;

	reload();
	h = dlopen(lib[0], RTLD_NOW);
	for (int i = 0; i < 10000; i++)
		((int (*)(int (*)(void)))dlsym(h, "plugin"))(from_plugin);
	dlclose(h);
	reload();
	lib[0] = named[0];
	lib[1] = named[1];
	reload();
	((int (*)(int (*)(void)))dlsym(dlopen(lib[0], RTLD_NOW), "plugin"))(names_plugin);
}

/* Handlers walk while the code that they interrupt is in the middle of dlopen or dlclose, and holds the loader's lock. */
static void test_dlstorm(void)
{
	least = 2; /* crtbegin.o's functions have no call frame information: what leads to them is not found */
	start_storm(SA_NODEFER);
	threads(3, loader);
	tick(0);
	CHECK(storms > 10);
}

/* A stack full of garbage behind a frame. */
NOINLINE static void corrupt(unsigned seed)
{
	uint64_t page[512] __attribute__((aligned(16)));
	unw_context_t uc;
	unw_cursor_t c;
	int n = 0;

	srandom(seed);
	for (int i = 0; i < 512; i++) {
		switch (random() % 6) {
		case 0: page[i] = (uint64_t)random() << 32 | (uint64_t)random(); break;
		case 1: page[i] = (uint64_t)&page[random() % 512]; break;
		case 2: page[i] = (uint64_t)(void *)corrupt + (uint64_t)random() % 512; break;
		case 3: page[i] = (uint64_t)(void *)qsort + (uint64_t)random() % 4096; break;
		case 4: page[i] = (uint64_t)(void *)deep + (uint64_t)random() % 64; break;
		case 5: page[i] = (uint64_t)random() % 4096; break;
		}
	}
	unw_getcontext(&uc);
	uc.uc_mcontext.gregs[15] = (long long)&page[8]; /* rsp */
	uc.uc_mcontext.gregs[10] = (long long)&page[random() % 512]; /* rbp */
	if (random() % 2)
		uc.uc_mcontext.gregs[16] = (long long)page[random() % 512];
	if (random() % 8 == 0)
		uc.uc_mcontext.gregs[15] = (long long)random() << (random() % 32);
	unw_init_local2(&c, &uc, (int)(random() % 2));
	while (n < 1000 && unw_step(&c) > 0) {
		unw_word_t v, off;
		unw_proc_info_t pi;
		char name[64];

		n++;
		for (int i = 0; i < 17; i++)
			unw_get_reg(&c, i, &v);
		unw_get_proc_info(&c, &pi);
		unw_get_proc_name(&c, name, sizeof name, &off);
	}
	CHECK(n < 1000);
}

static void test_corrupt(void)
{
	for (unsigned i = 0; i < 20000 && now() < until; i++)
		corrupt(i);
}

/*
 * Walks from everywhere in a module whose call frame information, notes, symbols and section headers are damaged. h: what
 * dlopen gave, or RTLD_DEFAULT for one that was there from the start, which is read in another way.
 */
static void test_damaged(void *h)
{
	uint64_t words[64], at = (uint64_t)dlsym(h, "plugin") & ~(uint64_t)4095;

	CHECK(at);
	for (unsigned i = 0; i < 64; i++)
		words[i] = i % 3 ? (uint64_t)&words[i / 2 + 16] : at + i * 7;
	for (unsigned i = 0; i < 1024; i += 3) {
		unw_word_t v, off;
		unw_proc_info_t pi;
		unw_context_t uc;
		unw_cursor_t c;
		char name[64];

		unw_getcontext(&uc);
		uc.uc_mcontext.gregs[16] = (long long)(at + i);
		uc.uc_mcontext.gregs[15] = (long long)&words[i % 16];
		uc.uc_mcontext.gregs[10] = (long long)&words[i % 32];
		unw_init_local2(&c, &uc, (int)(i & 1));
		for (int n = 0; n < 100; n++) {
			unw_get_proc_info(&c, &pi);
			unw_get_proc_name(&c, name, sizeof name, &off);
			for (int k = 0; k < 17; k++)
				unw_get_reg(&c, k, &v);
			if (unw_step(&c) <= 0)
				break;
		}
	}
}

/* A stack whose first words are the last that can be read. */
static void *small(void *p)
{
	(void)p;
	deep(10);
	return NULL;
}

static void test_guard(void)
{
	uint8_t *m = mmap(NULL, 1 << 23, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unw_context_t uc;
	unw_cursor_t c;
	pthread_attr_t a;
	pthread_t t;

	/* A frame whose caller's would be in the guard page. */
	mprotect(m + (1 << 22), 4096, PROT_NONE);
	for (int i = 0; i <= 128; i++) {
		unw_getcontext(&uc);
		uc.uc_mcontext.gregs[15] = (long long)(m + (1 << 22) - 8 * i);
		uc.uc_mcontext.gregs[10] = (long long)(m + (1 << 22) - 16);
		uc.uc_mcontext.gregs[16] = (long long)(void *)deep + i % 16;
		unw_init_local(&c, &uc);
		for (int n = 0; n < 100 && unw_step(&c) > 0; n++)
			CHECK(n < 99);
	}
	/* The smallest stacks, at their ends. */
	pthread_attr_init(&a);
	pthread_attr_setstack(&a, m, STACK);
	CHECK(pthread_create(&t, &a, small, NULL) == 0);
	pthread_join(t, NULL);
	munmap(m, 1 << 23);
	for (int i = 0; i < 50; i++) {
		pthread_attr_init(&a);
		pthread_attr_setstacksize(&a, STACK);
		CHECK(pthread_create(&t, &a, small, NULL) == 0);
		pthread_join(t, NULL);
	}
}

/* A handler's stack right below a thread's, without a page between them; then it is gone, and a walk leads there. */
enum { HALF = 1 << 20 };

static void on_below(int s)
{
	(void)s;
	CHECK(steps(64) > 2);
	CHECK(unw_backtrace((void *[64]){0}, 64) > 2);
}

static void *above(void *m)
{
	stack_t on = {.ss_sp = m, .ss_size = HALF}, off = {.ss_flags = SS_DISABLE};
	struct sigaction a = {.sa_handler = on_below, .sa_flags = SA_ONSTACK};
	unw_context_t uc;
	unw_cursor_t c;

	for (int known = 0; known < 2; known++) {
		if (known)
			deep(15); /* the thread's own stack has been seen before */
		CHECK(sigaltstack(&on, NULL) == 0);
		sigaction(SIGUSR2, &a, NULL);
		raise(SIGUSR2);
		CHECK(sigaltstack(&off, NULL) == 0);
	}
	munmap(m, HALF);
	unw_getcontext(&uc);
	uc.uc_mcontext.gregs[15] = (long long)m + HALF - 4096;
	unw_init_local(&c, &uc);
	CHECK(unw_step(&c) <= 0);
	return NULL;
}

static void test_gone(void)
{
	uint8_t *m = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_attr_t a;
	pthread_t t;

	pthread_attr_init(&a);
	pthread_attr_setstack(&a, m + HALF, HALF);
	CHECK(pthread_create(&t, &a, above, m) == 0);
	pthread_join(t, NULL);
	munmap(m + HALF, HALF);
}

/* A stack that runs into its guard page: the handler, on a stack of its own, walks all of it. */
static _Atomic int overflows;
static void on_overflow(int s, siginfo_t *i, void *uc)
{
	static int max;
	unw_word_t sp, last = 0;
	unw_cursor_t c;
	int n = 0;

	(void)s, (void)i;
	CHECK(unw_init_local2(&c, uc, UNW_INIT_SIGNAL_FRAME) == 0);
	do {
		CHECK(unw_get_reg(&c, UNW_REG_SP, &sp) == 0);
		CHECK(sp > last);
		last = sp;
		n++;
	} while (unw_step(&c) > 0);
	/* All of them have the same stack. */
	if (max == 0)
		max = n;
	CHECK(n > 200 && abs(n - max) <= 4);
	overflows++;
	pthread_exit(NULL);
}

NOINLINE static int endless(int n)
{
	volatile char room[64];

	room[0] = (char)n;
	return n < 0 ? 0 : endless(n + 1) + room[0];
}

static void *overflow(void *p)
{
	stack_t ss = {.ss_sp = p, .ss_size = 1 << 17};

	sigaltstack(&ss, NULL);
	endless(0);
	return NULL;
}

static void test_overflow(void)
{
	struct sigaction a = {.sa_sigaction = on_overflow, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
	static char alt[1 << 17] __attribute__((aligned(4096)));
	pthread_attr_t at;
	pthread_t t;

	sigaction(SIGSEGV, &a, NULL);
	for (int i = 0; i < 8; i++) {
		pthread_attr_init(&at);
		pthread_attr_setstacksize(&at, 1 << 22);
		CHECK(pthread_create(&t, &at, overflow, alt) == 0);
		pthread_join(t, NULL);
	}
	CHECK(overflows == 8);
}

/* Stacks that come and go: what is known of one is not used for another. */
static void on_alt(int s)
{
	(void)s;
	CHECK(deep(5) > 7);
}

static void test_alt(void)
{
	catch(SIGUSR2, on_alt, SA_ONSTACK);
	for (int i = 0; i < 600; i++) {
		size_t size = (size_t)(16 + i % 16) * 4096;
		stack_t ss = {.ss_size = size}, off = {.ss_flags = SS_DISABLE};

		ss.ss_sp = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		sigaltstack(&ss, NULL);
		raise(SIGUSR2);
		sigaltstack(&off, NULL);
		munmap(ss.ss_sp, size);
	}
}

/* A call through a bad pointer. */
static void on_bad_call(int s, siginfo_t *i, void *uc)
{
	unw_word_t ip, lo = (unw_word_t)(void *)deep;
	unw_cursor_t c;
	int n = 0;

	(void)s, (void)i, (void)lo;
	unw_init_local2(&c, uc, UNW_INIT_SIGNAL_FRAME);
	unw_get_reg(&c, UNW_REG_IP, &ip);
	CHECK(ip == 0);
	while (unw_step(&c) > 0)
		n++;
	CHECK(n >= 3);
	_exit(0);
}

static void test_call(void)
{
	struct sigaction a = {.sa_sigaction = on_bad_call, .sa_flags = SA_SIGINFO};
	void (*volatile f)(void) = NULL;

	sigaction(SIGSEGV, &a, NULL);
	f();
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	static char alt[1 << 17];
	stack_t ss = {.ss_sp = alt, .ss_size = sizeof alt};

	until = now() + 0.8;
	alarm(60);
	if (!strcmp(what, "threads")) {
		threads(4, walker);
	} else if (!strcmp(what, "storm")) {
		test_storm();
	} else if (!strcmp(what, "altstorm")) {
		sigaltstack(&ss, NULL);
		start_storm(SA_ONSTACK);
		walker(NULL);
		tick(0);
	} else if (!strcmp(what, "fork")) {
		threads(4, mixed);
	} else if (!strcmp(what, "dlopen")) {
		lib[0] = argv[2];
		lib[1] = argv[3];
		test_dlopen();
	} else if (!strcmp(what, "unnamed")) {
		lib[0] = argv[2];
		lib[1] = argv[3];
		test_unnamed((const char *const *)argv + 4);
	} else if (!strcmp(what, "dlstorm")) {
		lib[0] = argv[2];
		lib[1] = argv[3];
		test_dlstorm();
	} else if (!strcmp(what, "corrupt")) {
		test_corrupt();
	} else if (!strcmp(what, "guard")) {
		test_guard();
	} else if (!strcmp(what, "gone")) {
		test_gone();
	} else if (!strcmp(what, "damaged")) {
		test_damaged(argc > 2 ? dlopen(argv[2], RTLD_NOW) : RTLD_DEFAULT);
	} else if (!strcmp(what, "overflow")) {
		test_overflow();
	} else if (!strcmp(what, "alt")) {
		test_alt();
	} else if (!strcmp(what, "call")) {
		test_call();
		return 1;
	} else {
		return 2;
	}
	return 0;
}
