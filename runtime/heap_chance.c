/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap_chance.c: which allocations are samples, and what each counts for.
 *
 * Without an allocation of all, samples are a Poisson process over allocated bytes: an allocation of n bytes is one with the probability
 * 1 - exp(-n / period), and counts as often as that is rare. So sums are right on average, for each size.
 */
#define _GNU_SOURCE
#include "heap.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t random_word(struct heap_thread *t)
{
	uint64_t x = t->random;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	t->random = x;
	return x * 0x2545f4914f6cdd1du;
}

void heap_seed(struct heap_thread *t)
{
	static _Atomic uint64_t threads;
	uint64_t x = heap_clock() ^ (uint64_t)t ^ atomic_fetch_add(&threads, 1) << 40 ^ (uint64_t)syscall(SYS_getpid) << 32;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	t->random = (x ^ x >> 31) | 1;
}

/* The natural logarithm of 0 < x <= 1. */
static double logarithm(double x)
{
	uint64_t bits;
	double m, s, z;
	int e;

	memcpy(&bits, &x, sizeof bits);
	e = (int)(bits >> 52) - 1023;
	bits = (bits & 0xfffffffffffffu) | (uint64_t)1023 << 52;
	memcpy(&m, &bits, sizeof m);
	if (m > 1.4142135623730951) {
		m /= 2;
		e++;
	}
	s = (m - 1) / (m + 1);
	z = s * s;
	return e * 0.6931471805599453 + 2 * s * (1 + z * (1 / 3.0 + z * (1 / 5.0 + z * (1 / 7.0 + z * (1 / 9.0 + z / 11)))));
}

/* 1 - exp(-x), for x >= 0. */
static double chance(double x)
{
	unsigned k = 0;
	double e;

	if (x > 40)
		return 1;
	for (; x > 1.0 / 16; k++)
		x /= 2;
	e = -x * (1 - x / 2 * (1 - x / 3 * (1 - x / 4 * (1 - x / 5 * (1 - x / 6 * (1 - x / 7))))));
	while (k--)
		e *= e + 2; /* of twice as much */
	return -e;
}

int64_t heap_draw(struct heap_thread *t, uint64_t period)
{
	double u = (double)((random_word(t) >> 11) + 1) * 0x1p-53;

	return (int64_t)(-logarithm(u) * (double)period) + 1;
}

struct heap_weight heap_weigh(uint64_t n, uint64_t period)
{
	double c;

	if (period == 0 || n == 0)
		return (struct heap_weight){HEAP_UNIT, n};
	c = chance((double)n / (double)period);
	return (struct heap_weight){(uint64_t)(HEAP_UNIT / c + 0.5), (uint64_t)((double)n / c + 0.5)};
}
