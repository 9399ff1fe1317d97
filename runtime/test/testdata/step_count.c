// Walks its own stack of 40 frames by unw_step, so many times as the first argument says, and prints how many steps each walk has had. check-libunwind.sh
// counts the instructions; TestArmLocal does without libunwind's header, which is for this machine only.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#ifndef NO_HEADER
#define UNW_LOCAL_ONLY
#include <libunwind.h>
#else
#include <stdint.h>
#include <ucontext.h>

typedef uint64_t unw_word_t;
typedef ucontext_t unw_context_t;
typedef struct {
	unw_word_t opaque[250];
} unw_cursor_t;

#define unw_init_local _ULaarch64_init_local
#define unw_step _ULaarch64_step
#define unw_get_reg _ULaarch64_get_reg
int unw_init_local(unw_cursor_t *c, unw_context_t *uc);
int unw_step(unw_cursor_t *c);
int unw_get_reg(unw_cursor_t *c, int n, unw_word_t *to);
enum { UNW_REG_IP = 30, UNW_REG_SP = 31 };

#define unw_getcontext(uc) \
	do { \
		register uint64_t base __asm__("x0") = (uint64_t)(uc)->uc_mcontext.regs; \
		__asm__ volatile( \
			"stp x18, x19, [x0, #144]\n\tstp x20, x21, [x0, #160]\n\tstp x22, x23, [x0, #176]\n\tstp x24, x25, [x0, #192]\n\t" \
			"stp x26, x27, [x0, #208]\n\tstp x28, x29, [x0, #224]\n\tmov x1, sp\n\tstp x30, x1, [x0, #240]\n\tadr x1, .\n\tstr x1, [x0, #256]" \
			: : "r"(base) : "x1", "memory"); \
	} while (0)
#endif

static int walks, steps;

static void walk(void)
{
	unw_context_t uc;
	unw_cursor_t c;
	unw_word_t sp, ip;

	unw_getcontext(&uc);
	unw_init_local(&c, &uc);
	for (steps = 0; unw_step(&c) > 0; steps++)
		if (unw_get_reg(&c, UNW_REG_IP, &ip) || unw_get_reg(&c, UNW_REG_SP, &sp) || !ip)
			abort();
}

__attribute__((noinline)) static int wide(int n, volatile int *sum);

__attribute__((noinline)) static int deep(int n, volatile int *sum)
{
	volatile char room[64];

	room[n] = (char)n;
	if (n == 0)
		for (int i = 0; i < walks; i++)
			walk();
	else
		*sum += wide(n - 1, sum);
	return *sum + room[n];
}

__attribute__((noinline)) static int wide(int n, volatile int *sum)
{
	int a = sum[0], b = a + n, c = b * 3, d = c - a;

	*sum += n ? deep(n - 1, sum) : deep(0, sum);
	return a + b + c + d + *sum;
}

int main(int argc, char **argv)
{
	volatile int sum = 0;

	walks = argc > 1 ? atoi(argv[1]) : 1;
	deep(40, &sum);
	printf("%d\n", steps);
	return 0;
}
