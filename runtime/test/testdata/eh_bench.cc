// SPDX-License-Identifier: Apache-2.0
// eh_bench.cc times throws and backtraces through 64 functions whose frames differ. It prints one number, in nanoseconds.
//
//	eh_bench throw|cleanup|unwind|backtrace DEPTH COUNT	for each frame
//	eh_bench first DEPTH					for all of the first throw
//	eh_bench threads DEPTH COUNT THREADS			for each throw: the time that all threads took, over the throws of one
//	eh_bench roots|fibonacci PERCENT COUNT THREADS		user time for each computation, of which so many fail (WG21's P2544R0 has such ones)
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cmath>
#include <cstring>
#include <ctime>
#include <execinfo.h>
#include <sys/resource.h>
#include <thread>
#include <unwind.h>
#include <vector>

static uint64_t now()
{
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return static_cast<uint64_t>(t.tv_sec) * 1000000000 + static_cast<uint64_t>(t.tv_nsec);
}

static enum { THROW, UNWIND, BACKTRACE } mode;
static int count;
static thread_local int cleanups;
struct guard {
	int *n;
	~guard() { ++*n; }
};

static _Unwind_Reason_Code seen(_Unwind_Context *c, void *arg)
{
	*static_cast<void **>(arg) = reinterpret_cast<void *>(_Unwind_GetIP(c));
	return _URC_NO_REASON;
}

__attribute__((noinline)) static void leaf()
{
	void *pcs[1024];
	switch (mode) {
	case THROW:
		throw 1;
	case UNWIND:
		for (int i = 0; i < count; i++)
			_Unwind_Backtrace(seen, pcs);
		break;
	case BACKTRACE:
		for (int i = 0; i < count; i++)
			backtrace(pcs, 1024);
	}
}

typedef void (*function)(int, volatile char *);
extern function table[64];

template <int I> __attribute__((noinline)) void plain(int d, volatile char *p)
{
	volatile char room[16 + I % 9 * 24];
	room[0] = p ? p[0] : 0;
	long a = d * 3 + I, b = d ^ I, c = d + 7 * I;
	if (I & 1)
		asm volatile("" : "+r"(a), "+r"(b), "+r"(c));
	if (d > 1)
		table[(I + 1) & 63](d - 1, room);
	else
		leaf();
	asm volatile("" ::"r"(a), "r"(b), "r"(c), "r"(room[0]));
}

template <int I> __attribute__((noinline)) void cleans(int d, volatile char *p)
{
	guard g{&cleanups};
	volatile char room[16 + I % 9 * 24];
	room[0] = p ? p[0] : 0;
	if (d > 1)
		table[(I + 1) & 63](d - 1, room);
	else
		leaf();
	asm volatile("" ::"r"(room[0]));
}

#define N8(F, b) F<b>, F<b + 1>, F<b + 2>, F<b + 3>, F<b + 4>, F<b + 5>, F<b + 6>, F<b + 7>
#define N64(F) {N8(F, 0), N8(F, 8), N8(F, 16), N8(F, 24), N8(F, 32), N8(F, 40), N8(F, 48), N8(F, 56)}
function table[64] = N64(plain);
static function with_cleanups[64] = N64(cleans);

static void throws(int depth, int n)
{
	for (int i = 0; i < n; i++) {
		try {
			table[0](depth, nullptr);
		} catch (int) {
		}
	}
}

struct negative {};
struct too_deep {};

__attribute__((noinline)) static double root(double x)
{
	if (x < 0)
		throw negative();
	return std::sqrt(x);
}

// The numbers of one computation; of one that fails, one is negative.
__attribute__((noinline)) static double roots(bool fails)
{
	double sum = 0;
	for (int i = 0; i < 100; i++)
		sum += root(fails && i == 57 ? -1 : i);
	return sum;
}

__attribute__((noinline)) static unsigned fibonacci(unsigned n, unsigned depth)
{
	if (depth == 0)
		throw too_deep();
	return n < 2 ? 1 : fibonacci(n - 2, depth - 1) + fibonacci(n - 1, depth - 1);
}

static void computes(bool recursive, int percent, int n)
{
	volatile double sink = 0;
	int failed = 0;
	for (int i = 0; i < n; i++) {
		bool fails = i * 37 % 100 < percent;
		try {
			sink = sink + (recursive ? fibonacci(15, fails ? 14 : 16) : roots(fails));
		} catch (negative) {
			failed++;
		} catch (too_deep) {
			failed++;
		}
	}
	if (failed != n * percent / 100)
		abort();
}

static double user_time()
{
	rusage u;
	getrusage(RUSAGE_SELF, &u);
	return static_cast<double>(u.ru_utime.tv_sec) * 1e9 + static_cast<double>(u.ru_utime.tv_usec) * 1e3;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "throw";
	int depth = argc > 2 ? atoi(argv[2]) : 100;
	count = argc > 3 ? atoi(argv[3]) : 1;
	if (!strcmp(what, "cleanup"))
		memcpy(table, with_cleanups, sizeof table);
	mode = !strcmp(what, "unwind") ? UNWIND : !strcmp(what, "backtrace") ? BACKTRACE : THROW;
	if (!strcmp(what, "threads")) {
		std::vector<std::thread> threads;
		throws(depth, 10);
		uint64_t t = now();
		for (int i = 0; i < atoi(argv[4]); i++)
			threads.emplace_back(throws, depth, count);
		for (std::thread &x : threads)
			x.join();
		printf("%.1f\n", static_cast<double>(now() - t) / count);
		return 0;
	}
	if (!strcmp(what, "roots") || !strcmp(what, "fibonacci")) {
		std::vector<std::thread> threads;
		int n = atoi(argv[4]);
		double t = user_time();
		for (int i = 0; i < n; i++)
			threads.emplace_back(computes, *what == 'f', depth, count);
		for (std::thread &x : threads)
			x.join();
		printf("%.1f\n", (user_time() - t) / count / n);
		return 0;
	}
	if (!strcmp(what, "first")) {
		uint64_t t = now();
		throws(depth, 1);
		printf("%.1f\n", static_cast<double>(now() - t));
		return 0;
	}
	double best = 1e18;
	for (int k = 0; k < 90; k++) { // the best of short times: long ones are more often disturbed
		uint64_t t = now();
		if (mode == THROW)
			throws(depth, count);
		else
			table[0](depth, nullptr);
		best = std::min(best, static_cast<double>(now() - t) / count / depth);
	}
	printf("%.1f\n", best);
	return 0;
}
