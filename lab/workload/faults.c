/* faults.c - has a signal handler, or calls where no code is.
 *
 *	faults handler		a handler, of a signal that an instruction raises
 *	faults altstack		the same, on a stack of its own
 *	faults null		calls a null pointer
 *	faults wild		calls where nothing is mapped
 *	faults nullhandler	calls a null pointer, with a handler
 *
 * Compiled with RESTORER, handlers return to code here that has no unwind information. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int sink;
typedef void function(int);
static function *volatile target;

/* A debugger stops here. */
__attribute__((noinline, noclone)) void stop_here(int x)
{
	sink += x;
	__asm__ volatile("" ::: "memory");
}

__attribute__((noinline)) static void handler(int sig)
{
	stop_here(sig);
	_exit(0);
}

__attribute__((noinline, noclone)) static int inner(const char *how, int x)
{
	volatile char room[100];
	memset((char *)room, x, sizeof room);
	if (strstr(how, "null") || strstr(how, "wild"))
		target(x);
	else
		__asm__ volatile("ud2");
	return room[x & 63] + 1;
}

__attribute__((noinline, noclone)) static int outer(const char *how, int x)
{
	return inner(how, x + sink) + 3;
}

#ifdef RESTORER
/* gdb looks at code whose name has "sigaction" in it, by the address before. */
void own_return(void);
__asm__(".text\n.p2align 4\n.globl own_sigaction_return\n.type own_sigaction_return,@function\n"
	"own_sigaction_return:\n\tnop\n.globl own_return\nown_return:\n\tmov $15, %rax\n\tsyscall\n"
	".size own_sigaction_return,.-own_sigaction_return\n");

static int take(int sig, int flags)
{
	struct {
		function *handler;
		unsigned long flags;
		void (*restorer)(void);
		unsigned long mask;
	} act = {handler, (unsigned long)flags | 0x04000000, own_return, 0}; /* SA_RESTORER */
	return (int)syscall(SYS_rt_sigaction, sig, &act, NULL, 8);
}
#else
static int take(int sig, int flags)
{
	struct sigaction act = {.sa_handler = handler, .sa_flags = flags};
	return sigaction(sig, &act, NULL);
}
#endif

int main(int argc, char **argv)
{
	enum { ALT = 1 << 16 };
	const char *how = argc > 1 ? argv[1] : "";
	int flags = 0;
	if (!strcmp(how, "wild"))
		target = (function *)0x123450;
	if (!strcmp(how, "altstack")) {
		stack_t alt = {.ss_sp = malloc(ALT), .ss_size = ALT};
		if (!alt.ss_sp || sigaltstack(&alt, NULL))
			return 1;
		flags = SA_ONSTACK;
	}
	if (strcmp(how, "null") && strcmp(how, "wild") && (take(SIGILL, flags) || take(SIGSEGV, flags)))
		return 1;
	sink += outer(how, argc);
	return 0;
}
