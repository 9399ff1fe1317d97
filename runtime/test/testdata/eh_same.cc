// SPDX-License-Identifier: Apache-2.0
// eh_same.cc walks its stack by the _Unwind_Backtrace that it is given and by libgcc_s.so.1's own, on the same stack, and compares all that the
// contexts say of each frame. Both libraries read both contexts. It prints what it has compared: "walks N frames N different 0", and more.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#define NOINLINE __attribute__((noinline, noclone))

struct table {
	_Unwind_Reason_Code (*backtrace)(_Unwind_Trace_Fn, void *);
	_Unwind_Word (*gr)(_Unwind_Context *, int);
	_Unwind_Ptr (*ip)(_Unwind_Context *, int *);
	_Unwind_Word (*cfa)(_Unwind_Context *);
	void *(*lsda)(_Unwind_Context *);
	_Unwind_Ptr (*start)(_Unwind_Context *);
	void *(*enclosing)(void *);
	void (*add)(void *);
	void (*drop)(void *);
};

extern "C" void __register_frame(void *);
extern "C" void __deregister_frame(void *);
struct bases {
	void *tbase, *dbase, *func;
};
extern "C" const void *_Unwind_Find_FDE(void *, bases *);

static table lib[2] = {{_Unwind_Backtrace, _Unwind_GetGR, _Unwind_GetIPInfo, _Unwind_GetCFA, _Unwind_GetLanguageSpecificData, _Unwind_GetRegionStart,
	_Unwind_FindEnclosingFunction, __register_frame, __deregister_frame}, {}};
static const void *(*find_fde)(void *, bases *);

template <typename F> static void find(void *h, const char *name, F &f)
{
	f = reinterpret_cast<F>(dlsym(h, name));
	if (!f) {
		printf("no %s\n", name);
		exit(1);
	}
}

// DWARF's numbers of registers: how many are compared, which a call preserves, and which is the stack pointer.
#ifdef __aarch64__
enum { REGISTERS = 80, SP = 31, GENERAL = 31, SPACING = 48 };
static const int preserved[] = {19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 72, 73, 74, 75, 76, 77, 78, 79};
#else
enum { REGISTERS = 16, SP = 7, GENERAL = 16, SPACING = 16 };
static const int preserved[] = {3, 6, 12, 13, 14, 15};
#endif

struct frame {
	unsigned long ip, cfa, lsda, start, before, gr[REGISTERS];
};
enum { MAX = 512 };
struct record {
	int n, reader, signal;
	frame f[MAX];
};

static thread_local record records[4];
static thread_local volatile int turn;

static _Unwind_Reason_Code take(_Unwind_Context *c, void *arg)
{
	record *r = &records[turn];
	static_cast<void>(arg);
	const table &t = lib[r->reader];
	if (r->n == MAX)
		return _URC_NORMAL_STOP;
	frame &f = r->f[r->n++];
	int before = 0;
	memset(&f, 0, sizeof f);
	f.ip = t.ip(c, &before);
	f.before = before;
	f.cfa = t.cfa(c);
	f.lsda = reinterpret_cast<unsigned long>(t.lsda(c));
	if (f.ip) /* libgcc leaves the last one's there */
		f.start = t.start(c);
	if (f.ip)
		for (int i : preserved)
			f.gr[i] = t.gr(c, i);
	r->signal |= before;
	if (r->signal && f.ip)
		for (int i = 0; i < GENERAL; i++)
			if (i != SP)
				f.gr[i] = t.gr(c, i);
	return _URC_NO_REASON;
}

static long walks, frames, different, signals, fdes, deepest;

NOINLINE static void begin()
{
	records[turn].n = records[turn].signal = 0;
	records[turn].reader = turn >> 1;
}

// All four walks are from one call, and nothing that a register has tells them apart.
NOINLINE static void compare()
{
	static thread_local volatile int code[4];
	for (turn = 0; turn < 4; turn = turn + 1) {
		begin();
		code[turn] = lib[turn & 1].backtrace(take, nullptr);
	}
	record *r = records;
	__sync_fetch_and_add(&walks, 1);
	for (int k = 1; k < 4; k++) {
		if (r[k].n != r[0].n || code[k] != code[0]) {
			__sync_fetch_and_add(&different, 1);
			printf("walk %d: %d frames, code %d; %d, %d\n", k, r[k].n, code[k], r[0].n, code[0]);
		}
		for (int i = 0; i < std::min(r[0].n, r[k].n); i++) {
			const unsigned long *a = &r[0].f[i].ip, *b = &r[k].f[i].ip;
			for (unsigned j = 0; j < sizeof(frame) / 8; j++)
				if (a[j] != b[j] && __sync_fetch_and_add(&different, 1) < 20)
					printf("walk %d frame %d of %d at %#lx: word %u: %#lx, %#lx\n", k, i, r[0].n, r[0].f[i].ip, j, a[j], b[j]);
		}
	}
	for (int i = 0; i < r[0].n; i++) {
		void *pc = reinterpret_cast<void *>(r[0].f[i].ip);
		signals += r[0].f[i].before;
		frames++;
		if (!pc)
			continue;
		bases a, b;
		memset(&a, 0, sizeof a);
		memset(&b, 0, sizeof b);
		const void *x = _Unwind_Find_FDE(pc, &a), *y = find_fde(pc, &b);
		if (x != y || (x && memcmp(&a, &b, sizeof a)) || lib[0].enclosing(pc) != lib[1].enclosing(pc)) {
			__sync_fetch_and_add(&different, 1);
			printf("FDE at %p: %p, %p\n", pc, x, y);
		}
		fdes += x != nullptr;
	}
	deepest = std::max<long>(deepest, r[0].n);
}

struct guard {
	int &n;
	~guard() { n++; }
};

NOINLINE static int deep(int n, char *p)
{
	int count = n;
	guard g{count};
	char *room = static_cast<char *>(alloca(16 + n * 8));
	room[0] = p[0];
	long a = n * 3, b = n ^ 5, c = n + 7;
	asm volatile("" : "+r"(a), "+r"(b), "+r"(c));
	if (n > 0)
		deep(n - 1, room);
	else
		compare();
	asm volatile("" ::"r"(a), "r"(b), "r"(c));
	return count;
}

static int order(const void *a, const void *b)
{
	static int calls;
	if (calls++ % 8 == 0)
		compare();
	return *static_cast<const int *>(a) - *static_cast<const int *>(b);
}

static void sorted()
{
	int v[32];
	for (int i = 0; i < 32; i++)
		v[i] = i * 7 % 32;
	qsort(v, 32, sizeof v[0], order);
}

static void on_signal(int) { compare(); }

static volatile int *nowhere;
NOINLINE static int faults(int n) { return n ? faults(n - 1) + 1 : *nowhere; }

static void on_fault_skip(int, siginfo_t *, void *uc)
{
	compare();
	// The load goes on from memory that is there: its register becomes that.
	static int here;
	mcontext_t &m = static_cast<ucontext_t *>(uc)->uc_mcontext;
#ifdef __aarch64__
	for (auto &r : m.regs)
		if (r == 0x10)
			r = reinterpret_cast<unsigned long>(&here);
#else
	for (int i = 0; i < 16; i++)
		if (m.gregs[i] == 0x10)
			m.gregs[i] = reinterpret_cast<greg_t>(&here);
#endif
}

static void handle(int sig, void (*f)(int), int flags)
{
	struct sigaction a = {};
	a.sa_handler = f;
	a.sa_flags = flags;
	sigaction(sig, &a, nullptr);
}

static long left;
NOINLINE static int thrower(int n)
{
	int count = 0;
	guard g{count};
	if (n == 0)
		throw 1;
	return thrower(n - 1) + count;
}

#ifdef __aarch64__

static void on_timer(int)
{
	left--;
	compare();
}

// A timer interrupts calls through the PLT, qsort, and throws and catches, wherever they are.
static void stepped()
{
	handle(SIGVTALRM, on_timer, 0);
	itimerval t = {{0, 700}, {0, 700}};
	left = 300;
	setitimer(ITIMER_VIRTUAL, &t, nullptr);
	while (left > 0) {
		int v[3] = {3, 1, 2};
		qsort(v, 3, sizeof v[0], [](const void *a, const void *b) { return *static_cast<const int *>(a) - *static_cast<const int *>(b); });
		free(strdup(getenv("PATH")));
		try {
			thrower(3);
		} catch (int) {
		}
	}
	t = {};
	setitimer(ITIMER_VIRTUAL, &t, nullptr);
}

#else

static void on_trap(int, siginfo_t *, void *uc)
{
	if (left-- > 0)
		compare();
	else
		static_cast<ucontext_t *>(uc)->uc_mcontext.gregs[REG_EFL] &= ~0x100L;
}

// The first instruction that traps is the one behind popf.
NOINLINE static void trap() { asm volatile("pushf; orl $0x100, (%%rsp); popf; nop" ::: "memory", "cc"); }

// Every instruction of calls through the PLT, of qsort, and of a throw and a catch is a place to walk from.
static void stepped()
{
	struct sigaction a = {};
	a.sa_sigaction = on_trap;
	a.sa_flags = SA_SIGINFO;
	sigaction(SIGTRAP, &a, nullptr);
	left = 60000;
	int v[3] = {3, 1, 2};
	trap();
	qsort(v, 3, sizeof v[0], [](const void *a, const void *b) { return *static_cast<const int *>(a) - *static_cast<const int *>(b); });
	free(strdup(getenv("PATH"))); // the first call of each goes through the loader
	try {
		thrower(3);
	} catch (int) {
	}
	left = 0;
}

#endif

static ucontext_t coroutine, caller;
static void on_own_stack()
{
	char p = 0;
	deep(5, &p);
}

static void switched()
{
	static char stack[1 << 18];
	getcontext(&coroutine);
	coroutine.uc_stack.ss_sp = stack;
	coroutine.uc_stack.ss_size = sizeof stack;
	coroutine.uc_link = &caller;
	makecontext(&coroutine, on_own_stack, 0);
	swapcontext(&caller, &coroutine);
}

static void *thread(void *)
{
	char p = 0;
	for (int i = 0; i < 5; i++)
		deep(i, &p);
	sorted();
	return nullptr;
}

// Code that calls its argument, and an .eh_frame for it at the address that it will have.
#ifdef __aarch64__
// sub sp, sp, #48; stp x29, x30, [sp, #32]; stp xzr, xzr, [sp, #16]; stp xzr, xzr, [sp]; add x29, sp, #32; blr x0; ldp x29, x30, [sp, #32];
// add sp, sp, #48; ret: damaged information leads to the zeros rather than to what calls left below the stack.
static const unsigned char code[] = {0xff, 0xc3, 0x00, 0xd1, 0xfd, 0x7b, 0x02, 0xa9, 0xff, 0x7f, 0x01, 0xa9, 0xff, 0x7f, 0x00, 0xa9, 0xfd, 0x83, 0x00, 0x91,
	0x00, 0x00, 0x3f, 0xd6, 0xfd, 0x7b, 0x42, 0xa9, 0xff, 0xc3, 0x00, 0x91, 0xc0, 0x03, 0x5f, 0xd6};
static const unsigned char cie[] = {0x14, 0, 0, 0, 0, 0, 0, 0, 1, 0, 4, 0x78, 30, 0x0c, 31, 0, 0, 0, 0, 0, 0, 0, 0, 0};
static const unsigned char insns[] = {0x41, 0x0e, 48, 0x41, 0x9d, 2, 0x9e, 1, 0x43, 0x0c, 29, 16, 0, 0, 0, 0};
#else
// push %rbp; mov %rsp, %rbp; call *%rdi; pop %rbp; ret
static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3};
static const unsigned char cie[] = {0x14, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0, 0, 0, 0, 0};
static const unsigned char insns[] = {0x41, 0x0e, 16, 0x86, 2, 0x43, 0x0d, 6, 0x43, 0x0c, 7, 8, 0, 0, 0, 0};
#endif

// Around both is memory that cannot be read, as far as 32 bits lead: a length or a distance that is damaged leads there, and not to what happens to be
// mapped near, where one library may find an end and the other none.
static const unsigned long ROOM = 1 << 16, AROUND = (1ul << 32) + ROOM;

static unsigned char *reserve()
{
	void *all = mmap(nullptr, 2 * AROUND + ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	unsigned char *p = static_cast<unsigned char *>(all) + AROUND;
	if (all == MAP_FAILED || mprotect(p, ROOM, PROT_READ | PROT_WRITE | PROT_EXEC) != 0)
		abort();
	return p;
}

static void generate(unsigned char *p, int n, unsigned &size_of)
{
	unsigned char *eh = p + 32768, *q = eh;
	memcpy(q, cie, sizeof cie);
	q += sizeof cie;
	for (int i = n; i-- > 0;) {
		memcpy(p + i * SPACING, code, sizeof code);
		unsigned size = 36, back = static_cast<unsigned>(q + 4 - eh);
		unsigned long lo = reinterpret_cast<unsigned long>(p + i * SPACING), length = sizeof code;
		memcpy(q, &size, 4);
		memcpy(q + 4, &back, 4);
		memcpy(q + 8, &lo, 8);
		memcpy(q + 16, &length, 8);
		memcpy(q + 24, insns, sizeof insns);
		q += 4 + size;
	}
	memset(q, 0, 4);
	__builtin___clear_cache(reinterpret_cast<char *>(p), reinterpret_cast<char *>(eh));
	size_of = static_cast<unsigned>(q - eh);
}

static void generated(int n)
{
	unsigned size;
	unsigned char *p = reserve(), *eh = p + 32768;
	generate(p, n, size);
	for (table &t : lib)
		t.add(eh);
	for (int i = 0; i < n; i += 1 + n / 8)
		reinterpret_cast<void (*)(void (*)())>(p + i * SPACING)(compare);
	for (table &t : lib)
		t.drop(eh);
	bases b;
	if (_Unwind_Find_FDE(p + 4, &b)) {
		different++;
		printf("what was given back is still there\n");
	}
	munmap(p - AROUND, 2 * AROUND + ROOM);
}

static int damaged_with, damaged_frames;
static void walk_damaged() { lib[damaged_with].backtrace([](_Unwind_Context *c, void *n) {
	volatile unsigned long sink = _Unwind_GetIP(c) + _Unwind_GetCFA(c) + reinterpret_cast<unsigned long>(_Unwind_GetLanguageSpecificData(c));
	static_cast<void>(sink);
	return ++*static_cast<int *>(n) < 100 ? _URC_NO_REASON : _URC_NORMAL_STOP; }, &damaged_frames); }

// Registers damaged call frame information, in a child: with libgcc, and with the library, which must end well where libgcc does.
static int damaged(unsigned long seed)
{
	static unsigned char *const p = reserve(), *const eh = p + 32768;
	int status[2];
	for (int k = 1; k >= 0; k--) {
		pid_t child = fork();
		if (child == 0) {
			unsigned size;
			generate(p, 2, size);
			for (unsigned long i = seed % 3 + 1, x = seed; i > 0; i--) {
				x = x * 6364136223846793005u + 1442695040888963407u;
				eh[(x >> 33) % size] = static_cast<unsigned char>(x >> 20 & 1 ? x >> 25 : eh[(x >> 33) % size] ^ 1u << (x >> 25 & 7));
			}
			damaged_with = k;
			alarm(5);
			lib[k].add(eh);
			reinterpret_cast<void (*)(void (*)())>(p)(walk_damaged);
			lib[k].drop(eh);
			_exit(0);
		}
		waitpid(child, &status[k], 0);
	}
	if (status[1] == 0 && status[0] != 0)
		printf("seed %lu: status %#x\n", seed, status[0]);
	return status[1] == 0 ? (status[0] == 0 ? 1 : -1) : 0;
}

static void open_library()
{
	// A copy, bound to itself: what is loaded calls its own functions through the first library that has them.
	void *h = dlopen(getenv("EH_LIBGCC"), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
	if (!h) {
		puts(dlerror());
		exit(1);
	}
	find(h, "_Unwind_Backtrace", lib[1].backtrace);
	find(h, "_Unwind_GetGR", lib[1].gr);
	find(h, "_Unwind_GetIPInfo", lib[1].ip);
	find(h, "_Unwind_GetCFA", lib[1].cfa);
	find(h, "_Unwind_GetLanguageSpecificData", lib[1].lsda);
	find(h, "_Unwind_GetRegionStart", lib[1].start);
	find(h, "_Unwind_FindEnclosingFunction", lib[1].enclosing);
	find(h, "__register_frame", lib[1].add);
	find(h, "__deregister_frame", lib[1].drop);
	find(h, "_Unwind_Find_FDE", find_fde);
}

__attribute__((constructor)) static void early()
{
	open_library();
	compare();
}

static void say(const char *what)
{
	static long w, f;
	printf("%s: walks %ld frames %ld\n", what, walks - w, frames - f);
	w = walks;
	f = frames;
}

int main(int argc, char **argv)
{
	char p = 0;
	if (argc > 1) {
		long well = 0, badly = 0, n = atol(argv[1]);
		signal(SIGABRT, SIG_DFL);
		for (long i = 0; i < n; i++) {
			int r = damaged(static_cast<unsigned long>(i) * 2654435761 + 12345);
			well += r > 0;
			badly += r < 0;
		}
		printf("libgcc ends well: %s, the library does not: %ld\n", well > n / 4 ? "often" : "rarely", badly);
		return 0;
	}
	Dl_info ours, theirs;
	dladdr(reinterpret_cast<void *>(lib[0].backtrace), &ours);
	dladdr(reinterpret_cast<void *>(lib[1].backtrace), &theirs);
	printf("libraries %s\n", strcmp(ours.dli_fname, theirs.dli_fname) ? "differ" : "are one");
	say("constructor");
	for (int i = 0; i < 3; i++)
		for (int n = 0; n < 100; n += 9)
			deep(n, &p);
	say("deep");
	sorted();
	say("qsort");
	handle(SIGUSR1, on_signal, 0);
	raise(SIGUSR1);
	static char alternate[1 << 18];
	stack_t s = {};
	s.ss_sp = alternate;
	s.ss_size = sizeof alternate;
	sigaltstack(&s, nullptr);
	handle(SIGUSR1, on_signal, SA_ONSTACK);
	raise(SIGUSR1);
	struct sigaction a = {};
	a.sa_sigaction = on_fault_skip;
	a.sa_flags = SA_SIGINFO | SA_ONSTACK;
	sigaction(SIGSEGV, &a, nullptr);
	nowhere = reinterpret_cast<int *>(0x10);
	faults(10);
	say("signals");
	pthread_t t[8];
	for (pthread_t &x : t)
		pthread_create(&x, nullptr, thread, nullptr);
	for (pthread_t &x : t)
		pthread_join(x, nullptr);
	say("threads");
	switched();
	say("own stack");
	generated(1);
	for (int i = 0; i < 20; i++)
		generated(i * 40 % 500 + 1);
	say("registered");
	stepped();
	say("stepped");
	printf("signal frames %s, FDEs %s, deepest %s\n", signals > 100 ? "many" : "few", fdes > 1000 ? "many" : "few", deepest > 100 ? "deep" : "shallow");
	printf("different %ld\n", different);
	return different != 0;
}
