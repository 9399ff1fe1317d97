/* heap_frames.c: allocates from random chains of functions with frame pointers, without, and with another use of that register. */
#include <alloca.h>
#include <stdint.h>
#include <stdlib.h>

typedef void function(int);
static function plain, pointer, variable, saving, scratch;
static function *const functions[] = {plain, pointer, variable, saving, scratch};
static void *volatile sink;

static unsigned random_number(void)
{
	static uint64_t x = 88172645463325252u;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return (unsigned)(x >> 11);
}

static void leaf(void)
{
	free(sink = malloc(random_number() % 100));
	if (random_number() % 8 == 0)
		free(sink = realloc(sink = calloc(1, 10), 50));
}

static void go(int depth)
{
	for (int i = (int)(random_number() % 3); i >= 0; i--) {
		leaf();
		if (depth > 0)
			functions[random_number() % 5](depth - 1 - (int)(random_number() % 3));
	}
}

#define FUNCTION(name, how, before, after) \
	__attribute__((noipa, optimize(how))) static void name(int depth) \
	{ \
		before; \
		go(depth); \
		after; \
	}
FUNCTION(plain, "omit-frame-pointer", , __asm__ volatile(""))
FUNCTION(pointer, "no-omit-frame-pointer", , __asm__ volatile(""))
FUNCTION(variable, "omit-frame-pointer", char *x = alloca(random_number() % 64 + 1), __asm__ volatile("" : : "r"(x)))
FUNCTION(saving, "omit-frame-pointer", int a = depth + 1; __asm__ volatile("" : "+r"(a)), __asm__ volatile("" : : "r"(a)))
FUNCTION(scratch, "omit-frame-pointer", __asm__ volatile("xor %%ebp, %%ebp" : : : "rbp"), __asm__ volatile("" : : : "rbp"))

/* More frames than are recorded. */
__attribute__((noipa)) static void deep(int more)
{
	leaf();
	if (more)
		deep(more - 1);
	leaf();
}

int main(void)
{
	for (int i = 0; i < 3; i++)
		deep(400);
	for (int i = 0; i < 1000; i++)
		plain(14);
	return 0;
}
