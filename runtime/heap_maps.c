/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap_maps.c: the functions by which programs map memory without a file, in front of the C library's: which ranges are mapped, and from where.
 * The C library's own calls, and those of code that makes system calls itself, do not come here.
 *
 * A range can be unmapped in parts, and mapped over. A part of a range is the same part of an object.
 */
#define _GNU_SOURCE
#include "heap.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

/* ---- Ranges ---- */

enum { FIRST_RANGES = 1024, MAX_RANGES = 1 << 17 };

/* Mapped from a stack: [lo, hi). mark is its thread's, after the call. */
struct range {
	uint64_t lo, hi, objects, mark;
	struct heap_stack *stack;
};

/* Sorted, the highest first: Linux gives addresses downwards. */
static struct range *range;
static uint64_t max_ranges;

/* Zeros after fork: the child has none. */
static struct {
	uint64_t n, rest[511];
} ranges __attribute__((aligned(4096)));
_Static_assert(sizeof ranges == 4096, "a page of its own");

int heap_maps_open(void)
{
	if (syscall(SYS_madvise, &ranges, 4096, MADV_WIPEONFORK) != 0)
		return 0;
	if (!range) {
		range = heap_map(FIRST_RANGES * sizeof *range);
		max_ranges = FIRST_RANGES;
	}
	ranges.n = 0;
	return range != NULL;
}

/* Room for one more; 0 if there is none. */
static int room(void)
{
	struct range *more;

	if (ranges.n < max_ranges)
		return 1;
	if (max_ranges == MAX_RANGES || !(more = heap_map(2 * max_ranges * sizeof *more)))
		return 0;
	memcpy(more, range, ranges.n * sizeof *more);
	syscall(SYS_munmap, range, max_ranges * sizeof *range);
	range = more;
	max_ranges *= 2;
	return 1;
}

/* The first range that begins below an address. */
static uint64_t first_below(uint64_t address)
{
	uint64_t lo = 0, hi = ranges.n;

	while (lo < hi) {
		uint64_t mid = (lo + hi) / 2;

		if (range[mid].lo < address)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

/* Moves the ranges from the i-th on to where the k-th is. */
static void shift(uint64_t i, uint64_t k)
{
	uint64_t n = ranges.n;

	if (n >= i)
		memmove(&range[k], &range[i], (n - i) * sizeof *range);
	ranges.n = n + k - i;
}

/* Puts a range before the i-th. */
static void insert(uint64_t i, struct range r)
{
	shift(i, i + 1);
	range[i] = r;
}

/* Splits the range with an address in its middle; without room, all above the address is lost. */
static void split(uint64_t address)
{
	uint64_t i = first_below(address), objects;
	struct range r;

	if (i == ranges.n || range[i].hi <= address)
		return;
	r = range[i];
	objects = (uint64_t)((unsigned __int128)r.objects * (r.hi - address) / (r.hi - r.lo));
	range[i].hi = address;
	range[i].objects -= objects;
	range[i].mark = 0;
	if (!room()) {
		heap_discount(r.stack, objects, r.hi - address, 0);
		heap_lost();
		return;
	}
	insert(i, (struct range){address, r.hi, objects, 0, r.stack});
}

/* [lo, hi) is not mapped any more; returns how much of it was known. */
static uint64_t unmapped(uint64_t lo, uint64_t hi)
{
	uint64_t mark = heap_mark(), all = 0, i, k;

	if (lo >= hi)
		return 0;
	i = first_below(hi);
	if (i < ranges.n && range[i].lo == lo && range[i].hi == hi) { /* as it was mapped */
		heap_discount(range[i].stack, range[i].objects, hi - lo, range[i].mark == mark);
		shift(i + 1, i);
		return hi - lo;
	}
	split(lo);
	split(hi);
	i = k = first_below(hi);
	for (; k < ranges.n && range[k].lo >= lo; k++) {
		heap_discount(range[k].stack, range[k].objects, range[k].hi - range[k].lo, range[k].mark == mark);
		all += range[k].hi - range[k].lo;
	}
	shift(k, i);
	return all;
}

/* How much of [lo, hi) is known. */
static uint64_t known(uint64_t lo, uint64_t hi)
{
	uint64_t all = 0;

	for (uint64_t i = first_below(hi); i < ranges.n && range[i].hi > lo; i++)
		all += (range[i].hi < hi ? range[i].hi : hi) - (range[i].lo > lo ? range[i].lo : lo);
	return all;
}

/* [lo, hi) has been mapped by the function that this is called from. */
static void mapped(uint64_t lo, uint64_t hi)
{
	struct heap_stack *s;

	if (lo >= hi)
		return;
	s = heap_here();
	if (!s || !room()) {
		heap_lost();
		return;
	}
	heap_count(s, HEAP_UNIT, hi - lo);
	insert(first_below(lo), (struct range){lo, hi, HEAP_UNIT, heap_next_mark(), s});
}

/* ---- Sizes ---- */

/* As Linux rounds it. */
static uint64_t rounded(uint64_t n, int flags)
{
	uint64_t page = getauxval(AT_PAGESZ);

	if (flags & MAP_HUGETLB) {
		unsigned bits = (unsigned)flags >> MAP_HUGE_SHIFT & MAP_HUGE_MASK;

		page = (uint64_t)1 << (bits ? bits : 21);
	}
	return (n + page - 1) & -page;
}

/* ---- The functions ---- */

/* The library's own calls (the linker's --wrap). */
US_HIDDEN void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
	return (void *)syscall(SYS_mmap, at, n, prot, flags, fd, off);
}

US_HIDDEN int __wrap_munmap(void *p, size_t n);
int __wrap_munmap(void *p, size_t n)
{
	return (int)syscall(SYS_munmap, p, n);
}

static struct {
	void *(*mmap)(void *, size_t, int, int, int, off_t);
	int (*munmap)(void *, size_t);
	void *(*mremap)(void *, size_t, size_t, int, ...);
	int (*brk)(void *);
	void *(*sbrk)(intptr_t);
} next;

void heap_maps_find(void *(*find)(const char *))
{
	*(void **)&next.munmap = find("munmap");
	*(void **)&next.mremap = find("mremap");
	*(void **)&next.brk = find("brk");
	*(void **)&next.sbrk = find("sbrk");
	*(void **)&next.mmap = find("mmap");
}

/* What the caller of a function finds in errno: that function's error, or what was there before. */
#define KEEP(failed, e) ((failed) ? errno : (e))

API void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
	int e = errno;
	void *p = next.mmap ? next.mmap(at, n, prot, flags, fd, off) : (void *)syscall(SYS_mmap, at, n, prot, flags, fd, off);

	if (p != MAP_FAILED && heap_maps_enter()) {
		uint64_t lo = (uint64_t)p, hi = lo + rounded(n, flags);

		heap_lock();
		unmapped(lo, hi);
		if (flags & MAP_ANONYMOUS)
			mapped(lo, hi);
		heap_unlock();
		heap_maps_leave(e);
	}
	return p;
}

API void *mmap64(void *at, size_t n, int prot, int flags, int fd, off_t off) __attribute__((alias("mmap")));

/*
 * What is unmapped is taken out before, when no other thread can have it. The lock is not held meanwhile: another library's function may take a lock
 * that a thread holds which maps memory.
 */
API int munmap(void *p, size_t n)
{
	uint64_t lo = (uint64_t)p, hi = lo + rounded(n, 0), was = 0;
	int e = errno, on = lo == rounded(lo, 0) && hi > lo && heap_maps_enter(), r; /* others are errors */

	if (on) {
		heap_lock();
		was = unmapped(lo, hi);
		heap_unlock();
	}
	r = next.munmap ? next.munmap(p, n) : (int)syscall(SYS_munmap, p, n);
	if (on) {
		e = KEEP(r != 0, e);
		if (r != 0 && was) {
			heap_lock();
			heap_lost();
			heap_unlock();
		}
		heap_maps_leave(e);
	}
	return r;
}

API void *mremap(void *old, size_t old_n, size_t n, int flags, ...)
{
	uint64_t from = (uint64_t)old, to = from + rounded(old_n, 0), lo, was;
	int e = errno, on = heap_maps_enter();
	void *p, *at = NULL;
	va_list more;

	va_start(more, flags);
	if (flags & (MREMAP_FIXED | MREMAP_DONTUNMAP))
		at = va_arg(more, void *);
	va_end(more);
	if (on)
		heap_lock();
	p = next.mremap ? next.mremap(old, old_n, n, flags, at) : (void *)syscall(SYS_mremap, old, old_n, n, flags, at);
	if (!on)
		return p;
	e = KEEP(p == MAP_FAILED, e);
	if (p != MAP_FAILED) {
		if (old_n == 0) /* a second mapping of shared memory */
			was = known(from, from + 1);
		else
			was = flags & MREMAP_DONTUNMAP ? known(from, to) : unmapped(from, to);
		lo = (uint64_t)p;
		unmapped(lo, lo + rounded(n, 0));
		if (was)
			mapped(lo, lo + rounded(n, 0));
	}
	heap_unlock();
	heap_maps_leave(e);
	return p;
}

/* The program's break was moved. */
static void moved(uint64_t from, uint64_t to)
{
	if (to > from) {
		unmapped(from, to);
		mapped(from, to);
	} else
		unmapped(to, from);
}

API int brk(void *to)
{
	int e = errno, on, r;
	uint64_t from = 0;

	if (us_unlikely(!next.brk) && !heap_find())
		return -1;
	on = heap_maps_enter();
	if (on) {
		heap_lock();
		from = (uint64_t)syscall(SYS_brk, 0);
	}
	r = next.brk(to);
	if (on) {
		e = KEEP(r != 0, e);
		if (r == 0) /* also for an address below the break's first one: that changes nothing */
			moved(from, (uint64_t)syscall(SYS_brk, 0));
		heap_unlock();
		heap_maps_leave(e);
	}
	return r;
}

API void *sbrk(intptr_t by)
{
	int e = errno, on;
	void *p;

	if (us_unlikely(!next.sbrk) && !heap_find())
		return (void *)-1;
	on = by != 0 && heap_maps_enter();
	if (on)
		heap_lock();
	p = next.sbrk(by);
	if (on) {
		e = KEEP(p == (void *)-1, e);
		if (p != (void *)-1)
			moved((uint64_t)p, (uint64_t)p + (uint64_t)by);
		heap_unlock();
		heap_maps_leave(e);
	}
	return p;
}
