// Walks its own stack of 40 frames by unw_step, so many times as the first argument says, and prints how many steps each walk has had. check-libunwind.sh
// counts the instructions.
#define UNW_LOCAL_ONLY
#include <libunwind.h>
#include <stdio.h>
#include <stdlib.h>

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
