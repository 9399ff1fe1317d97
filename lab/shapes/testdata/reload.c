// chain: (s_leaf|plt)? s_work s_load main START
// chain: (LIB|plt|jit|_init|_fini)* s_load? main START
// libraries: A B
// not: musl (its libraries stay)
// not: tcc
// not: gcc-O2-static
// not: clang-O2-static
// link: -ldl
// Two libraries in turn, at the same addresses, whose functions have other frames.
#include "shape.h"

#if defined A || defined B

FN int s_leaf(int n) { for (volatile int i = 0; i < 2000; i++) n += i; return n; }

#ifdef A
FN int s_work(int n)
{
	volatile char local[1000];

	for (int i = 0; i < 200; i++) {
		local[n] = n;
		n = s_leaf(n + local[n & 511]) & 511;
	}
	return n + local[1];
}
#else
FN int s_work(int n)
{
	int sum = 0;

	for (int i = 0; i < 100; i++)
		sum += s_leaf(i) ^ n;
	for (int i = 0; i < 100; i++)
		sum += s_leaf(sum + 1);
	KEEP;
	return sum;
}
#endif

#else

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

FN int s_load(const char *path)
{
	void *lib = dlopen(path, RTLD_NOW);
	int (*work)(int) = lib ? (int (*)(int))dlsym(lib, "s_work") : 0;
	int got;

	if (!work)
		return 1;
	got = work(3);
	KEEP;
	dlclose(lib);
	KEEP;
	return got == 77777;
}

int main(void)
{
	char path[2][4096];
	ssize_t n;

	BEGIN;
	n = readlink("/proc/self/exe", path[0], 4000);
	if (n < 0)
		return 1;
	path[0][n] = 0;
	strcpy(path[1], path[0]);
	strcat(path[0], ".A");
	strcat(path[1], ".B");
	READY;
	for (int i = 0; forever; i++)
		if (s_load(path[i & 1]))
			return 1;
	return 0;
}

#endif
