// A program with a guarded control stack, which it turns on itself: a C library does so only where all libraries are marked.
// gcs MODE [off]: with off, the stack stays off.
//
// walk	a signal handler prints the stack's entries, ready, and does not end
// local	a signal handler prints what the drop-in walks, then the stack's entries, and returns
// resume	the drop-in leaves a function; back says that its caller went on
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define FN __attribute__((noinline, noclone, used))
#define KEEP __asm__ volatile("" ::: "memory") // the call before it is no jump

enum { PR_SET_SHADOW_STACK_STATUS = 75, PR_SHADOW_STACK_ENABLE = 1 };

int unw_backtrace(void **, int);
typedef struct { uint64_t words[4096]; } unw_cursor_t;
int _ULaarch64_init_local(unw_cursor_t *, void *);
int _ULaarch64_step(unw_cursor_t *);
int _ULaarch64_resume(unw_cursor_t *);

enum { MAX = 100 };
static const char *mode;
static volatile int forever = 1;
static char text[8192];
static int length;

#define SAY(...) (length += snprintf(text + length, sizeof text - length, __VA_ARGS__))

static void flush(void)
{
	if (write(1, text, length) != length)
		_exit(4);
	length = 0;
}

// Entries are return addresses, innermost first; a signal has two, its handler's return and a token. A new stack ends with 0.
static void entries(void)
{
	const uint64_t *p;

	__asm__ volatile("mrs %0, s3_3_c2_c5_1" : "=r"(p)); // GCSPR_EL0
	for (int i = 0; i < MAX && p[i]; i++)
		SAY("entry %#lx\n", (long)p[i]);
}

FN void s_end(void)
{
	void *pcs[MAX];

	if (strcmp(mode, "local") == 0)
		for (int i = 0, n = unw_backtrace(pcs, MAX); i < n; i++)
			SAY("frame %#lx\n", (long)pcs[i]);
	entries();
	if (strcmp(mode, "walk") == 0) {
		SAY("ready\n");
		flush();
		while (forever)
			__asm__ volatile("yield");
	}
	flush();
	KEEP;
}

FN void s_deep(int n)
{
	if (n > 0)
		s_deep(n - 1);
	else
		s_end();
	KEEP;
}

FN void s_handler(int sig, siginfo_t *info, void *uc)
{
	(void)sig, (void)info;
	s_deep(3);
	((ucontext_t *)uc)->uc_mcontext.pc += 4; // behind the fault
}

FN void s_fault(void) { __asm__ volatile("brk 0"); KEEP; }

FN void s_caller(void)
{
	s_fault();
	SAY("back\n");
	flush();
	KEEP;
}

FN void s_inner(void)
{
	static unw_cursor_t c;
	ucontext_t uc;

	getcontext(&uc);
	if (_ULaarch64_init_local(&c, &uc) < 0 || _ULaarch64_step(&c) <= 0 || _ULaarch64_step(&c) <= 0)
		_exit(5);
	_ULaarch64_resume(&c); // in s_outer
	if (forever) // no compiler may know that this function does not return
		_exit(6);
}

FN void s_middle(void)
{
	s_inner();
	if (forever)
		_exit(7);
}

FN void s_outer(void)
{
	s_middle();
	SAY("back\n");
	flush();
	KEEP;
}

static void s_refused(int sig, siginfo_t *info, void *uc)
{
	uint32_t code = *(uint32_t *)((ucontext_t *)uc)->uc_mcontext.pc;

	SAY("signal %d, code %d, at %#x\n", sig, info->si_code, code);
	flush();
	_exit(3);
}

int main(int argc, char **argv)
{
	struct sigaction a;

	mode = argc > 1 ? argv[1] : "";
	memset(&a, 0, sizeof a);
	a.sa_flags = SA_SIGINFO;
	a.sa_sigaction = s_handler;
	sigaction(SIGTRAP, &a, 0);
	a.sa_sigaction = s_refused;
	sigaction(SIGSEGV, &a, 0);
	alarm(600);
	if (argc < 3) { // without a call, which would have no entry to return by
		register long n __asm__("x8") = SYS_prctl, a0 __asm__("x0") = PR_SET_SHADOW_STACK_STATUS, a1 __asm__("x1") = PR_SHADOW_STACK_ENABLE;
		register long a2 __asm__("x2") = 0, a3 __asm__("x3") = 0, a4 __asm__("x4") = 0;

		__asm__ volatile("svc 0" : "+r"(a0) : "r"(n), "r"(a1), "r"(a2), "r"(a3), "r"(a4) : "memory");
		if (a0 != 0)
			_exit(2);
	}
	if (strcmp(mode, "resume") == 0)
		s_outer();
	else
		s_caller();
	_exit(0); // main has no entry
}
