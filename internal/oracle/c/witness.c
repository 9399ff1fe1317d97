/* witness.c - a process that knows its own stack. At a few points it writes to standard output its
 * registers, its stack, and what it knows of the chain: the return address that each of its functions
 * found on entry. It unwinds nothing. First it writes its executable mappings.
 *
 *	maps:  u64 count; lo, hi, offset, length of path; path, padded with zeros to 8
 *	point: u64 regs[17] by DWARF number; u64 base, size; stack; u64 n; u64 pc[n], innermost first
 *
 * Functions of the C library between ours are missing from pc. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

enum { MAX = 64 };
static uint64_t known[MAX]; /* outermost first */
static int nknown;
static uint64_t top; /* where the stack that is written ends */
static volatile uint64_t sink;

#define ENTER() (known[nknown++] = (uint64_t)__builtin_return_address(0))
#define LEAVE() (nknown--)
#define POINT() __asm__ volatile("int3" ::: "memory") /* the handler sees the registers after it */
#define FRAME __attribute__((noinline, noclone)) static

static void put(const void *p, size_t n)
{
	if (fwrite(p, 1, n, stdout) != n)
		exit(2);
}

static void on_trap(int sig, siginfo_t *si, void *context)
{
	static const int reg[17] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8,
	                            REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};
	const ucontext_t *u = context;
	uint64_t regs[17];
	(void)sig, (void)si;
	for (int i = 0; i < 17; i++)
		regs[i] = (uint64_t)u->uc_mcontext.gregs[reg[i]];
	uint64_t base = regs[7], size = (top - base) & ~7ull, n = (uint64_t)nknown + 1;
	put(regs, sizeof regs);
	put(&base, 8);
	put(&size, 8);
	put((const void *)base, size);
	put(&n, 8);
	put(&regs[16], 8);
	for (int i = nknown; i-- > 0;)
		put(&known[i], 8);
}

FRAME void leaf(int n)
{
	ENTER();
	POINT();
	sink += (uint64_t)n;
	LEAVE();
}

FRAME void grown(int n)
{
	ENTER();
	char *p = __builtin_alloca((size_t)n * 16 + 64);
	memset(p, n, 16);
	__asm__ volatile("" ::"r"(p) : "memory");
	leaf(n);
	sink += (uint64_t)p[5];
	LEAVE();
}

FRAME void aligned(int n)
{
	ENTER();
	_Alignas(64) volatile char a[128];
	a[n & 127] = 1;
	grown(n);
	sink += (uint64_t)a[n & 127];
	LEAVE();
}

FRAME void large(int n)
{
	ENTER();
	volatile char a[40000];
	a[n] = 1;
	aligned(n);
	sink += (uint64_t)a[n];
	LEAVE();
}

FRAME void recurse(int n)
{
	ENTER();
	if (n > 0)
		recurse(n - 1);
	else
		large(3);
	sink += (uint64_t)n;
	LEAVE();
}

static int compare(const void *a, const void *b)
{
	static int calls;
	ENTER();
	if (++calls == 20)
		leaf(1);
	LEAVE();
	return *(const int *)a - *(const int *)b;
}

static void on_usr1(int sig)
{
	ENTER();
	leaf(sig);
	LEAVE();
}

FRAME void interrupted(void)
{
	ENTER();
	raise(SIGUSR1);
	sink++;
	LEAVE();
}

static void put_maps(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	static char buf[1 << 16];
	char line[4608], path[4096], prot[5];
	unsigned long lo, hi, off;
	uint64_t n = 0;
	size_t k = 0;
	if (!f)
		exit(2);
	while (fgets(line, sizeof line, f)) {
		if (sscanf(line, "%lx-%lx %4s %lx %*s %*s %4095s", &lo, &hi, prot, &off, path) != 5 || prot[2] != 'x')
			continue;
		uint64_t h[4] = {lo, hi, off, strlen(path)};
		size_t padded = (h[3] + 7) & ~7ull;
		if (sizeof buf - k < sizeof h + padded)
			exit(2);
		memcpy(buf + k, h, sizeof h);
		memcpy(buf + k + sizeof h, path, h[3]);
		k += sizeof h + padded;
		n++;
	}
	put(&n, 8);
	put(buf, k);
	fclose(f);
}

int main(int argc, char **argv)
{
	int v[64];
	struct sigaction trap = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO}, usr1 = {.sa_handler = on_usr1};
	ENTER();
	top = (uint64_t)(argv + argc + 1);
	sigaction(SIGTRAP, &trap, NULL);
	sigaction(SIGUSR1, &usr1, NULL);
	put_maps();
	recurse(5);
	for (int i = 0; i < 64; i++)
		v[i] = (i * 37) % 64;
	qsort(v, 64, sizeof *v, compare);
	interrupted();
	LEAVE();
	return fflush(stdout) != 0;
}
