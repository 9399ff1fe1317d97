// SPDX-License-Identifier: Apache-2.0
// eh_sve.cc throws through frames whose size depends on that of SVE's vectors, in which vector registers are saved, too.
#include <arm_sve.h>
#include <cstdio>

#define NOINLINE __attribute__((noinline, noclone))

static int cleanups;
struct guard {
	~guard() { cleanups++; }
};

NOINLINE static svint32_t deep(svint32_t v, int n)
{
	guard g;
	svint32_t more = svadd_x(svptrue_b32(), v, n);
	if (n == 0)
		throw svaddv(svptrue_b32(), v);
	svint32_t got = deep(more, n - 1);
	return svadd_x(svptrue_b32(), got, more);
}

NOINLINE static double through(int n, double a, double b)
{
	double c = a * b, d = a + b, e = a - b;
	asm volatile("" : "+w"(c), "+w"(d), "+w"(e));
	try {
		deep(svdup_s32(n), n);
	} catch (long sum) {
		printf("%d cleanups, %ld a lane\n", cleanups, sum / static_cast<long>(svcntw()));
	}
	return c + d * 10 + e * 100;
}

int main()
{
	for (int i = 0; i < 4; i++)
		printf("%.1f\n", through(i, 1.5, 2.5));
}
