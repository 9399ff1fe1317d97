// SPDX-License-Identifier: Apache-2.0
// eh_shapes.cc throws and catches in many ways and prints what happens: the same with any unwinder. Its argument is one of the ways, or none for
// all that end well.
#include <alloca.h>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <dlfcn.h>
#include <exception>
#include <future>
#include <functional>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>
#include <vector>

#ifndef THROWS
#define THROWS 500 // of each of 128 threads
#endif
#define NOINLINE __attribute__((noinline, noclone))

struct guard {
	const char *name;
	~guard() { printf("cleanup %s\n", name); }
};

NOINLINE static void thrower(int n)
{
	guard g{"thrower"};
	if (n == 0)
		throw std::runtime_error("thrown");
	thrower(n - 1);
	puts("not here");
}

static void plain()
{
	for (int i = 0; i < 3; i++) {
		try {
			thrower(i);
		} catch (const std::exception &e) {
			printf("caught %s\n", e.what());
		}
	}
	try {
		throw 1;
	} catch (long) {
		puts("wrong");
	} catch (int n) {
		printf("int %d\n", n);
	}
}

NOINLINE static void rethrower()
{
	guard g{"rethrower"};
	try {
		thrower(1);
	} catch (const std::logic_error &) {
		puts("wrong");
	} catch (...) {
		guard h{"in the handler"};
		throw;
	}
}

static void rethrow()
{
	try {
		rethrower();
	} catch (const std::runtime_error &e) {
		printf("again %s\n", e.what());
	}
}

struct throws_inside {
	~throws_inside()
	{
		try {
			throw std::string("inside a cleanup");
		} catch (const std::string &s) {
			printf("%s, %d uncaught\n", s.c_str(), std::uncaught_exceptions());
		}
	}
};

static void nested()
{
	try {
		throws_inside t;
		thrower(1);
	} catch (const std::exception &e) {
		try {
			std::throw_with_nested(std::logic_error("outer"));
		} catch (const std::exception &f) {
			printf("%s\n", f.what());
			try {
				std::rethrow_if_nested(f);
			} catch (const std::exception &g) {
				printf("nested %s\n", g.what());
			}
		}
	}
}

static void on_delete(_Unwind_Reason_Code code, _Unwind_Exception *e)
{
	printf("foreign exception deleted, %d\n", code);
	free(e);
}

NOINLINE static void throw_foreign()
{
	guard g{"foreign"};
	_Unwind_Exception *e = static_cast<_Unwind_Exception *>(aligned_alloc(16, sizeof *e));
	memset(e, 0, sizeof *e);
	e->exception_class = 0x464f524549474e00;
	e->exception_cleanup = on_delete;
	int code = _Unwind_RaiseException(e);
	printf("nobody catches it: %d\n", code);
	free(e);
}

static void foreign()
{
	try {
		throw_foreign();
	} catch (const std::exception &) {
		puts("wrong");
	} catch (...) {
		puts("a foreign one");
	}
	try {
		try {
			throw_foreign();
		} catch (...) {
			puts("a foreign one, thrown again");
			throw;
		}
	} catch (...) {
		puts("and caught");
	}
}

static void *alone(void *)
{
	_Unwind_Exception e;
	memset(&e, 0, sizeof e);
	printf("end of the stack: %d\n", _Unwind_RaiseException(&e));
	return nullptr;
}

static void dependent()
{
	std::exception_ptr p;
	try {
		thrower(2);
	} catch (...) {
		p = std::current_exception();
	}
	for (int i = 0; i < 3; i++) {
		std::thread t([&] {
			try {
				guard g{"dependent"};
				std::rethrow_exception(p);
			} catch (const std::runtime_error &e) {
				printf("in a thread %s\n", e.what());
			}
		});
		t.join();
	}
	std::future<int> f = std::async(std::launch::async, []() -> int { throw std::out_of_range("future"); });
	try {
		f.get();
	} catch (const std::out_of_range &e) {
		printf("by a %s\n", e.what());
	}
}

static int order(const void *, const void *) { throw 17; }

static void through_c()
{
	int v[4] = {4, 3, 2, 1};
	try {
		guard g{"qsort"};
		qsort(v, 4, sizeof v[0], order);
	} catch (int n) {
		printf("through qsort %d\n", n);
	}
}

static void on_fault(int sig)
{
	sigset_t s;
	sigemptyset(&s);
	sigaddset(&s, sig);
	sigprocmask(SIG_UNBLOCK, &s, nullptr);
	throw std::runtime_error("a signal");
}

static int *volatile nowhere;
static volatile int zero;

NOINLINE static int faults(int n)
{
	guard g{"faults"};
	long a = n * 3, b = n ^ 5;
	asm volatile("" : "+r"(a), "+r"(b));
	int x;
	if (n == 0)
		x = *nowhere;
	else if (n == 1)
		x = 5 / zero;
	else
		x = faults(n - 2);
	asm volatile("" ::"r"(a), "r"(b));
	return x;
}

static void signals()
{
	static char alternate[1 << 16];
	stack_t s = {};
	s.ss_sp = alternate;
	s.ss_size = sizeof alternate;
	for (int flags : {0, SA_ONSTACK, SA_NODEFER}) {
		sigaltstack(&s, nullptr);
		struct sigaction a = {};
		a.sa_handler = on_fault;
		a.sa_flags = flags;
		sigaction(SIGSEGV, &a, nullptr);
		sigaction(SIGFPE, &a, nullptr);
		for (int i = 0; i < 4; i++) {
			int kept = i * 7;
			try {
				faults(i);
			} catch (const std::exception &e) {
				printf("caught %s, %d\n", e.what(), kept);
			}
		}
	}
}

static int calls_back(int n)
{
	guard g{"calls back"};
	if (n == 2)
		throw std::runtime_error("to the plugin");
	return n;
}

static void modules()
{
	for (int i = 0; i < 6; i++) {
		void *h = dlopen(getenv(i & 1 ? "EH_PLUGIN_2" : "EH_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
		if (!h) {
			puts(dlerror());
			return;
		}
		auto f = reinterpret_cast<int (*)(int (*)(int), int)>(dlsym(h, "plugin"));
		for (int n = 0; n < 3; n++) {
			try {
				printf("plugin %d\n", f(calls_back, n));
			} catch (const std::exception &e) {
				printf("out of the plugin %s\n", std::string(e.what()).c_str());
			}
		}
		// More often than there is room for modules.
		int sum = 0;
		for (int n = 0; n < 10000; n++) {
			try {
				f(calls_back, 3);
			} catch (int x) {
				sum += x;
			}
		}
		printf("often %d\n", sum);
		dlclose(h);
	}
}

struct member {
	const char *name;
	explicit member(const char *n, bool bad) : name(n)
	{
		if (bad)
			throw std::runtime_error(n);
		printf("made %s\n", n);
	}
	~member() { printf("unmade %s\n", name); }
};
struct whole {
	member one{"one", false}, two{"two", false}, three{"three", true};
};

static void constructors()
{
	try {
		delete new whole;
	} catch (const std::exception &e) {
		printf("constructor of %s\n", e.what());
	}
	try {
		member a[3] = {member("a", false), member("b", false), member("c", true)};
	} catch (...) {
		puts("array");
	}
	try {
		throw std::vector<std::string>(3, "v");
	} catch (std::vector<std::string> v) {
		printf("%zu by value\n", v.size());
	}
}

struct bad_base {
	bad_base() { throw 3; }
};
struct derived : bad_base {
	derived()
	try : bad_base() {
	} catch (int n) {
		printf("function try %d\n", n);
	}
};
static void function_try()
{
	try {
		derived d;
	} catch (int n) {
		printf("and again %d\n", n);
	}
}

static ucontext_t a_context, main_context;
static void in_coroutine()
{
	try {
		thrower(3);
	} catch (const std::exception &e) {
		printf("in a coroutine %s\n", e.what());
	}
	alone(nullptr);
}

static void coroutines()
{
	std::vector<char> stack(1 << 18);
	for (int i = 0; i < 2; i++) {
		getcontext(&a_context);
		a_context.uc_stack.ss_sp = stack.data();
		a_context.uc_stack.ss_size = stack.size();
		a_context.uc_link = &main_context;
		makecontext(&a_context, in_coroutine, 0);
		swapcontext(&main_context, &a_context);
	}
}

static void forks()
{
	fflush(stdout);
	pid_t p = fork();
	if (p == 0) {
		try {
			thrower(2);
		} catch (const std::exception &e) {
			printf("in a child %s\n", e.what());
		}
		fflush(stdout);
		_exit(3);
	}
	int status = 0;
	waitpid(p, &status, 0);
	printf("the child ended with %d\n", WEXITSTATUS(status));
}

static void *counts(void *arg)
{
	long n = reinterpret_cast<long>(arg), sum = 0;
	for (long i = 0; i < THROWS; i++) {
		try {
			std::function<void(long)> f = [&](long d) {
				struct adds {
					long &s;
					~adds() { s++; }
				} a{sum};
				if (d == 0)
					throw n;
				f(d - 1);
			};
			f(i % 20);
		} catch (long x) {
			sum += x;
		}
	}
	return reinterpret_cast<void *>(sum);
}

static void threads()
{
	pthread_t t[128];
	long sum = 0;
	for (long i = 0; i < 128; i++)
		pthread_create(&t[i], nullptr, counts, reinterpret_cast<void *>(i));
	for (pthread_t x : t) {
		void *r;
		pthread_join(x, &r);
		sum += reinterpret_cast<long>(r);
	}
	printf("128 threads: %ld\n", sum);
}

static void on_exit_of(void *what) { printf("handler of %s\n", static_cast<const char *>(what)); }

NOINLINE static void waits(int n)
{
	guard g{"waits"};
	pthread_cleanup_push(on_exit_of, const_cast<char *>("waits"));
	if (n > 0)
		waits(n - 1);
	else
		for (;;)
			pause();
	pthread_cleanup_pop(0);
}

static void *cancelled(void *)
{
	try {
		waits(3);
#ifdef _LIBCPP_VERSION
	} catch (...) {
#else
	} catch (abi::__forced_unwind &) {
#endif
		puts("a forced unwind");
		throw;
	}
	return nullptr;
}

NOINLINE static void leaves(int n)
{
	guard g{"leaves"};
	if (n == 0)
		pthread_exit(reinterpret_cast<void *>(42));
	leaves(n - 1);
}

static void *exits(void *)
{
	try {
		leaves(3);
	} catch (...) {
		puts("a forced unwind, again");
		throw;
	}
	return nullptr;
}

static void cancellation()
{
	pthread_t t;
	void *r;
	for (int i = 0; i < 3; i++) {
		pthread_create(&t, nullptr, cancelled, nullptr);
		usleep(20000);
		pthread_cancel(t);
		pthread_join(t, &r);
		printf("cancelled %d\n", r == PTHREAD_CANCELED);
		pthread_create(&t, nullptr, exits, nullptr);
		pthread_join(t, &r);
		printf("exited %ld\n", reinterpret_cast<long>(r));
	}
	pthread_create(&t, nullptr, alone, nullptr);
	pthread_join(t, nullptr);
}

static jmp_buf target;
static _Unwind_Reason_Code stop(int, _Unwind_Action actions, _Unwind_Exception_Class, _Unwind_Exception *, _Unwind_Context *c, void *arg)
{
	if (actions & _UA_END_OF_STACK || reinterpret_cast<void *>(_Unwind_GetCFA(c)) > arg)
		longjmp(target, 1);
	return _URC_NO_REASON;
}

NOINLINE static void forces(int n, void *to)
{
	guard g{"forces"};
	if (n > 0) {
		forces(n - 1, to);
	} else {
		static _Unwind_Exception e;
		memset(&e, 0, sizeof e);
		_Unwind_ForcedUnwind(&e, stop, to);
	}
	puts("not here");
}

NOINLINE static void forced_inside()
{
	try {
		forces(3, __builtin_frame_address(0));
	} catch (...) {
		puts("on the way");
		throw;
	}
}

static void forced()
{
	if (setjmp(target) == 0)
		forced_inside();
	else
		puts("forced to here");
}

NOINLINE static int many(int a, int b, int c, int d, int e, int f, int g, int h, int i)
{
	if (a + b + c + d + e + f + g + h + i == 45)
		throw 45;
	return 0;
}

NOINLINE static void arguments(int n)
{
	char *room = static_cast<char *>(alloca(n));
	int sum = 0;
	for (int i = 0; i < 100; i++) {
		try {
			sum += many(1, 2, 3, 4, 5, 6, 7, 8, i % 2 ? 9 : n);
		} catch (int x) {
			sum += x;
		}
	}
	memset(room, 0, n);
	printf("arguments %d\n", sum);
}

static void never() noexcept { thrower(1); }
static void in_terminate()
{
	puts("terminate");
	try {
		throw;
	} catch (const std::exception &e) {
		printf("because of %s\n", e.what());
	} catch (...) {
		puts("because of something");
	}
	fflush(stdout);
	_exit(7);
}

static void noexcepts()
{
	std::set_terminate(in_terminate);
	never();
}

static void uncaught()
{
	std::set_terminate(in_terminate);
	guard g{"not to be run"};
	thrower(1);
}

struct bad_cleanup {
	~bad_cleanup() noexcept(false) { throw 2; }
};
static void twice()
{
	std::set_terminate(in_terminate);
	try {
		bad_cleanup b;
		throw 1;
	} catch (...) {
		puts("wrong");
	}
}

static void aborts() { thrower(1); }

#ifndef STATIC // before its constructors, a static executable has not registered its call frame information
__attribute__((constructor(101))) static void early()
{
	try {
		throw 9;
	} catch (int) {
	}
}
#endif

static const struct {
	const char *name;
	void (*run)();
	bool ends;
} ways[] = {{"plain", plain, false}, {"rethrow", rethrow, false}, {"nested", nested, false}, {"foreign", foreign, false}, {"dependent", dependent, false},
	{"through_c", through_c, false}, {"signals", signals, false}, {"modules", modules, false}, {"constructors", constructors, false},
	{"function_try", function_try, false}, {"coroutines", coroutines, false}, {"forks", forks, false}, {"threads", threads, false},
	{"cancellation", cancellation, false}, {"forced", forced, false}, {"arguments", [] { arguments(9); }, false}, {"noexcept", noexcepts, true},
	{"uncaught", uncaught, true}, {"twice", twice, true}, {"abort", aborts, true}};

int main(int argc, char **argv)
{
	setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
	for (const auto &w : ways) {
		if (argc > 1 ? strcmp(argv[1], w.name) != 0 : w.ends)
			continue;
		printf("--- %s\n", w.name);
		w.run();
	}
	return 0;
}
