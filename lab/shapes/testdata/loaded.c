// chain: s_spin plt? s_work s_load (s_down ){900}main START
// libraries: A
// not: tcc
// not: gcc-O2-static
// not: clang-O2-static
// not: musl-gcc-O2-static
// link: -ldl
// A library that is loaded beneath 900 frames, and stays.
#include "shape.h"

#ifdef A

FN void s_spin(void) { SPIN; }

int s_work(int n);

FN int s_work(int n)
{
	s_spin();
	KEEP;
	return n;
}

#else

#include <dlfcn.h>

FN int s_load(void)
{
	char path[4096];
	ssize_t n = readlink("/proc/self/exe", path, 4000);
	void *lib;
	int (*work)(int), got;

	if (n < 0)
		return 0;
	path[n] = '.';
	path[n + 1] = 'A';
	path[n + 2] = 0;
	lib = dlopen(path, RTLD_NOW);
	work = lib ? (int (*)(int))dlsym(lib, "s_work") : 0;
	got = work ? work(3) : 1;
	KEEP;
	return got;
}

FN int s_down(int n)
{
	int got = 1;

	if (n > 1)
		got += s_down(n - 1);
	else
		got += s_load();
	KEEP;
	return got;
}

int main(void)
{
	BEGIN;
	return s_down(900) == 900;
}

#endif
