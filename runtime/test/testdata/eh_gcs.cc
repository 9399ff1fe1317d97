// SPDX-License-Identifier: Apache-2.0
// eh_gcs.cc turns AArch64's shadow stack (GCS) on, and throws and catches: through frames, with cleanups, again, and out of a signal's handler. A return to
// what is not on the shadow stack ends the program.
#include <csignal>
#include <cstdio>
#include <sys/prctl.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static int cleanups;
struct guard {
	~guard() { cleanups++; }
};

static unsigned long shadow()
{
	unsigned long p;
	asm volatile("mrs %0, s3_3_c2_c5_1" : "=r"(p)); // gcspr_el0
	return p;
}

NOINLINE static int deep(int n)
{
	guard g;
	if (n == 0)
		throw 7;
	return deep(n - 1) + 1;
}

NOINLINE static int again(int n)
{
	try {
		return deep(n) + 1;
	} catch (int) {
		guard g;
		throw;
	}
}

static void on_fault(int sig)
{
	sigset_t s;
	sigemptyset(&s);
	sigaddset(&s, sig);
	sigprocmask(SIG_UNBLOCK, &s, nullptr);
	throw 8;
}

static int *volatile nowhere;
NOINLINE static int faults(int n)
{
	guard g;
	return n ? faults(n - 1) + 1 : *nowhere;
}

NOINLINE static void run(const char *what, int (*f)(int), int n)
{
	unsigned long before = shadow();
	try {
		f(n);
	} catch (int x) {
		printf("%s: %d, %d cleanups, shadow stack %s\n", what, x, cleanups, shadow() == before ? "as before" : "moved");
	}
	cleanups = 0;
}

int main()
{
	// By hand: a function of the C library would return after the shadow stack is on.
	register long x8 asm("x8") = 167, x0 asm("x0") = 75, x1 asm("x1") = 1, x2 asm("x2") = 0, x3 asm("x3") = 0, x4 asm("x4") = 0;
	asm volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory"); // prctl(PR_SET_SHADOW_STACK_STATUS, PR_SHADOW_STACK_ENABLE)
	if (x0 != 0) {
		printf("no shadow stack: %ld\n", x0);
		fflush(stdout);
		_exit(1);
	}
	signal(SIGSEGV, on_fault);
	for (int i = 0; i < 3; i++) {
		run("frames", deep, 300);
		run("again", again, 5);
		run("signal", faults, 4);
	}
	fflush(stdout);
	_exit(0);
}
