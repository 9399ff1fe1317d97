// SPDX-License-Identifier: Apache-2.0
// eh_tree.cc throws and catches in trees of calls that a random generator makes, and prints a sum of all that happened, in its order. With $EH_LIBGCC,
// each personality routine's context is compared with the one that a copy of libgcc has of the same frame.
//
//	eh_tree SEED TREES [THREADS]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <exception>
#include <new>
#include <pthread.h>
#include <unwind.h>

#define NOINLINE __attribute__((noinline, noclone))

struct random_numbers {
	uint64_t s;
	uint64_t next()
	{
		s ^= s << 13, s ^= s >> 7, s ^= s << 17;
		return s * 0x2545f4914f6cdd1du;
	}
	unsigned below(unsigned n) { return static_cast<unsigned>((next() >> 32) * n >> 32); }
};

struct tree {
	random_numbers r;
	uint64_t sum;
	int left;
	std::exception_ptr kept;
	void add(uint64_t x) { sum = (sum ^ x) * 0x9e3779b97f4a7c15u; }
};
static thread_local tree *now;

struct base {
	int v;
	virtual ~base() { now->add(static_cast<uint64_t>(v)); }
	explicit base(int n) : v(n) {}
	base(const base &) = default;
};
struct left_base : virtual base {
	explicit left_base(int n) : base(n) {}
};
struct right_base : virtual base {
	explicit right_base(int n) : base(n) {}
};
struct both : left_base, right_base {
	explicit both(int n) : base(n), left_base(n), right_base(n) {}
};
struct large {
	int v;
	char room[300];
};

struct guard {
	uint64_t id;
	~guard() { now->add(id); }
};

typedef long (*shape)(int depth, long a, long b, double d);
extern const shape shapes[];
enum { SHAPES = 24 };

NOINLINE static long child(int depth, long a)
{
	return shapes[now->r.below(SHAPES)](depth + 1, a + depth, a ^ 3, static_cast<double>(a));
}

NOINLINE static void throw_some(int n)
{
	switch (now->r.below(9)) {
	case 0: throw n;
	case 1: throw static_cast<long>(n);
	case 2: throw "text";
	case 3: throw left_base(n);
	case 4: throw both(n);
	case 5: throw large{n, {}};
	case 6: throw std::bad_alloc();
	case 7: throw nullptr;
	default:
		if (now->kept)
			std::rethrow_exception(now->kept);
		throw static_cast<char>(n);
	}
}

// What a node does in its body.
NOINLINE static long act(int depth, long a)
{
	tree *t = now;
	t->add(static_cast<uint64_t>(a) + static_cast<uint64_t>(depth));
	if (t->left-- <= 0 || depth > 60)
		return a;
	switch (t->r.below(12)) {
	case 0: throw_some(depth); break;
	case 1:
	case 2:
	case 3:
	case 4: return child(depth, a) + child(depth, a + 1);
	case 5: return a;
	default: return child(depth, a);
	}
	return 0;
}

// Inside a handler.
NOINLINE static void caught(int depth, uint64_t what)
{
	tree *t = now;
	t->add(what);
	switch (t->r.below(8)) {
	case 0: throw;
	case 1: throw_some(depth); break;
	case 2: t->kept = std::current_exception(); break;
	case 3: t->kept = nullptr; break;
	case 4:
		try {
			act(depth + 1, 5);
		} catch (int n) {
			t->add(static_cast<uint64_t>(n));
		}
		break;
	default: break;
	}
}

struct thrower_in_constructor {
	guard one, two;
	explicit thrower_in_constructor(int depth) : one{71}, two{72} { act(depth, 7); }
};

// Shapes of frames: saved registers, room on the stack, arguments there, and a frame of variable size.
template <int I> NOINLINE long node(int depth, long a, long b, double d)
{
	volatile char room[8 + I % 5 * 120];
	char *more = I % 4 == 3 ? static_cast<char *>(alloca(static_cast<size_t>(16 + depth))) : nullptr;
	long x = a * 3 + I, y = b ^ I, z = a + b, u = a - b, v = a * b;
	room[0] = static_cast<char>(I);
	asm volatile("" : "+r"(x), "+r"(y), "+r"(z), "+r"(u), "+r"(v), "+r"(more));
	long got = 0;
	if (I % 3 == 0) {
		guard g{static_cast<uint64_t>(I)};
		got = act(depth, x);
	} else if (I % 3 == 1) {
		try {
			if (I & 4) {
				thrower_in_constructor c(depth);
				got = 1;
			} else {
				guard g{static_cast<uint64_t>(I)};
				got = act(depth, x);
			}
		} catch (int n) {
			caught(depth, static_cast<uint64_t>(n));
		} catch (const right_base &e) {
			caught(depth, static_cast<uint64_t>(e.v) + 100);
		} catch (large l) {
			caught(depth, static_cast<uint64_t>(l.v) + 200);
		}
	} else if (I & 8) {
		try {
			got = act(depth, x);
		} catch (...) {
			caught(depth, 300);
		}
	} else {
		got = act(depth, x);
	}
	asm volatile("" ::"r"(more), "r"(room[0]));
	now->add(static_cast<uint64_t>(x ^ y << 1 ^ z << 2 ^ u << 3 ^ v << 4) + static_cast<uint64_t>(got) + static_cast<uint64_t>(d));
	return got + x;
}

// Many arguments: some lie on the stack at the calls, and are taken off where one throws.
NOINLINE static long many(long a, long b, long c, long d, long e, long f, long g, long h, long i)
{
	return act(static_cast<int>(g), a + b + c + d + e + f + h + i);
}

NOINLINE long pushes(int depth, long a, long b, double)
{
	long x = a ^ 11, y = b ^ 13;
	asm volatile("" : "+r"(x), "+r"(y));
	long got = 0;
	try {
		got = many(a, b, 1, 2, 3, 4, depth, x, y) + many(1, 2, 3, 4, 5, 6, depth, y, x);
	} catch (const base &e) {
		caught(depth, static_cast<uint64_t>(e.v) + 400);
	} catch (const char *) {
		caught(depth, 401);
	}
	now->add(static_cast<uint64_t>(x ^ y));
	return got;
}

static int order(const void *a, const void *)
{
	act(*static_cast<const int *>(a), 17);
	return 0;
}

NOINLINE long sorts(int depth, long a, long, double)
{
	int v[2] = {depth, depth};
	guard g{600};
	qsort(v, 2, sizeof v[0], order);
	return a;
}

#define N8(b) node<b>, node<b + 1>, node<b + 2>, node<b + 3>, node<b + 4>, node<b + 5>, node<b + 6>, node<b + 7>
const shape shapes[SHAPES] = {N8(0), N8(8), node<16>, node<17>, node<18>, node<19>, node<20>, node<21>, pushes, sorts};

/* ---- Contexts ---- */

static int (*backtrace_of)(_Unwind_Trace_Fn, void *);
static _Unwind_Word (*gr_of)(_Unwind_Context *, int);
static _Unwind_Ptr (*ip_of)(_Unwind_Context *, int *);
static _Unwind_Word (*cfa_of)(_Unwind_Context *);
static void *(*lsda_of)(_Unwind_Context *);
static _Unwind_Ptr (*start_of)(_Unwind_Context *);
static long contexts, different;

#ifdef __aarch64__
static const int preserved[] = {19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 72, 73, 74, 75, 76, 77, 78, 79};
#else
static const int preserved[] = {3, 6, 12, 13, 14, 15};
#endif
enum { PRESERVED = sizeof preserved / sizeof preserved[0] };

struct seen {
	unsigned long ip, before, cfa, lsda, start, gr[PRESERVED];
};

static void see(_Unwind_Context *c, seen *s)
{
	int before = 0;
	s->ip = _Unwind_GetIPInfo(c, &before);
	s->before = static_cast<unsigned long>(before);
	s->cfa = _Unwind_GetCFA(c);
	s->lsda = reinterpret_cast<unsigned long>(_Unwind_GetLanguageSpecificData(c));
	s->start = _Unwind_GetRegionStart(c);
	for (int i = 0; i < PRESERVED; i++)
		s->gr[i] = _Unwind_GetGR(c, preserved[i]);
}

static void see_theirs(_Unwind_Context *c, seen *s)
{
	int before = 0;
	s->ip = ip_of(c, &before);
	s->before = static_cast<unsigned long>(before);
	s->cfa = cfa_of(c);
	s->lsda = reinterpret_cast<unsigned long>(lsda_of(c));
	s->start = start_of(c);
	for (int i = 0; i < PRESERVED; i++)
		s->gr[i] = gr_of(c, preserved[i]);
}

struct search {
	const seen *want;
	bool found;
};

static _Unwind_Reason_Code at_frame(_Unwind_Context *c, void *arg)
{
	search *s = static_cast<search *>(arg);
	if (cfa_of(c) != s->want->cfa)
		return _URC_NO_REASON;
	seen x;
	see_theirs(c, &x);
	s->found = memcmp(&x, s->want, sizeof x) == 0;
	return _URC_NORMAL_STOP;
}

typedef _Unwind_Reason_Code (*personality)(int, _Unwind_Action, _Unwind_Exception_Class, _Unwind_Exception *, _Unwind_Context *);

// It is called in place of libstdc++'s.
extern "C" _Unwind_Reason_Code __gxx_personality_v0(
	int version, _Unwind_Action actions, _Unwind_Exception_Class cls, _Unwind_Exception *e, _Unwind_Context *c)
{
	static const personality next = reinterpret_cast<personality>(dlsym(RTLD_NEXT, "__gxx_personality_v0"));
	if (backtrace_of) {
		seen ours, again;
		see(c, &ours);
		see_theirs(c, &again);
		search s = {&ours, false};
		backtrace_of(at_frame, &s);
		__sync_fetch_and_add(&contexts, 1);
		if (!s.found || memcmp(&ours, &again, sizeof ours))
			__sync_fetch_and_add(&different, 1);
	}
	return next(version, actions, cls, e, c);
}

template <typename F> static void find(void *h, const char *name, F &f)
{
	f = reinterpret_cast<F>(dlsym(h, name));
	if (!f)
		abort();
}

/* ---- Trees ---- */

static uint64_t seed, trees;

static void *run(void *arg)
{
	uint64_t sum = 0, escaped = 0, id = reinterpret_cast<uint64_t>(arg);
	tree t;
	for (uint64_t i = 0; i < trees; i++) {
		t.r.s = (seed + i + id * 1000003) * 0x9e3779b97f4a7c15u | 1;
		t.sum = i;
		t.left = 12 + static_cast<int>(t.r.below(60));
		t.kept = nullptr;
		now = &t;
		try {
			child(0, 1);
		} catch (...) {
			escaped++;
			t.add(999);
		}
		t.kept = nullptr;
		sum = sum * 31 + t.sum;
		if (std::uncaught_exceptions() != 0)
			abort();
	}
	printf("thread %lu: sum %016lx escaped %lu of %lu\n", id, sum, escaped, trees);
	return nullptr;
}

int main(int argc, char **argv)
{
	seed = argc > 1 ? strtoul(argv[1], nullptr, 10) : 1;
	trees = argc > 2 ? strtoul(argv[2], nullptr, 10) : 1000;
	unsigned threads = argc > 3 ? static_cast<unsigned>(atoi(argv[3])) : 0;
	if (const char *path = getenv("EH_LIBGCC")) {
		void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
		if (!h)
			abort();
		find(h, "_Unwind_Backtrace", backtrace_of);
		find(h, "_Unwind_GetGR", gr_of);
		find(h, "_Unwind_GetIPInfo", ip_of);
		find(h, "_Unwind_GetCFA", cfa_of);
		find(h, "_Unwind_GetLanguageSpecificData", lsda_of);
		find(h, "_Unwind_GetRegionStart", start_of);
		// Before its first walk, libgcc does not know how large registers are.
		backtrace_of([](_Unwind_Context *, void *) { return _URC_NO_REASON; }, nullptr);
	}
	run(nullptr);
	pthread_t t[256];
	for (unsigned i = 0; i < threads && i < 256; i++) {
		pthread_create(&t[i], nullptr, run, reinterpret_cast<void *>(static_cast<uint64_t>(i) + 1));
		pthread_join(t[i], nullptr);
	}
	if (backtrace_of)
		printf("contexts %s different %ld\n", contexts > 1000 ? "many" : "few", different);
	return different != 0;
}
