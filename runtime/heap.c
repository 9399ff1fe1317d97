/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap.c: the functions of the C library's allocator, in front of those that the program has: its C library's, or another library's. Most calls
 * only count bytes, and look a freed address up in a filter.
 */
#define _GNU_SOURCE
#include "heap.h"

#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

/* ---- What finding the other functions allocates ---- */

enum { EARLY = 64 << 10 };
static uint8_t early[EARLY] __attribute__((aligned(16)));
static _Atomic size_t early_used;

/* A block's size lies before it. */
static US_COLD void *early_alloc(size_t n)
{
	size_t at;

	if (n > EARLY / 2)
		return NULL;
	n = (n + 15) & ~(size_t)15;
	at = atomic_fetch_add(&early_used, n + 16);
	if (at + n + 16 > EARLY)
		return NULL;
	memcpy(&early[at], &n, sizeof n);
	return &early[at + 16];
}

US_INLINE int is_early(const void *p)
{
	return us_unlikely((uint64_t)p - (uint64_t)early < EARLY);
}

/* ---- The other functions ---- */

static void *boot_malloc(size_t n);
static void *boot_calloc(size_t k, size_t n);
static void *boot_realloc(void *p, size_t n);
static void boot_free(void *p);

static struct {
	void *(*malloc)(size_t);
	void *(*calloc)(size_t, size_t);
	void *(*realloc)(void *, size_t);
	void *(*reallocarray)(void *, size_t, size_t);
	void *(*memalign)(size_t, size_t);
	void *(*aligned_alloc)(size_t, size_t);
	int (*posix_memalign)(void **, size_t, size_t);
	void *(*valloc)(size_t);
	void *(*pvalloc)(size_t);
	void (*free)(void *);
	int (*dlclose)(void *);
} next = {.malloc = boot_malloc, .calloc = boot_calloc, .realloc = boot_realloc, .free = boot_free};

static void *after_this(const char *name)
{
	return dlsym(RTLD_NEXT, name);
}

/* Finds them; 0 while this thread does that. */
US_COLD int heap_find(void)
{
	static _Thread_local int finding __attribute__((tls_model("initial-exec")));

	if (finding)
		return 0;
	finding = 1;
#define FIND(name) *(void **)&next.name = dlsym(RTLD_NEXT, #name)
	heap_maps_find(after_this);
	FIND(reallocarray);
	FIND(memalign);
	FIND(aligned_alloc);
	FIND(posix_memalign);
	FIND(valloc);
	FIND(pvalloc);
	FIND(dlclose);
	FIND(calloc);
	FIND(realloc);
	FIND(free);
	FIND(malloc);
	finding = 0;
	if (!next.malloc || !next.calloc || !next.realloc || !next.free)
		_exit(127);
	return 1;
}

static US_COLD void *boot_malloc(size_t n)
{
	return heap_find() ? next.malloc(n) : early_alloc(n);
}

static US_COLD void *boot_calloc(size_t k, size_t n)
{
	return heap_find() ? next.calloc(k, n) : n && k > EARLY / n ? NULL : early_alloc(k * n);
}

static US_COLD void *boot_realloc(void *p, size_t n)
{
	return heap_find() ? next.realloc(p, n) : early_alloc(n);
}

static US_COLD void boot_free(void *p)
{
	if (heap_find())
		next.free(p);
}

__attribute__((constructor)) static void at_load(void)
{
	if (next.malloc == boot_malloc)
		heap_find();
	heap_begin(us_loaded_at((uint64_t)dlsym(RTLD_DEFAULT, "malloc")) != us_loaded_at((uint64_t)&at_load));
}

/* ---- In front of them ---- */

/* Before the other function is called. */
US_INLINE void expect(void)
{
	if (heap_is_all())
		heap_expect(__builtin_frame_address(0));
}

/* What failed counts nothing: its size can be any number, and left has 63 bits. */
US_INLINE void allocated(void *p, uint64_t n)
{
	if (us_unlikely(!p))
		heap_thread.ahead = NULL;
	else if (us_unlikely((heap_thread.left -= (int64_t)n) <= 0))
		heap_allocated(p, n, __builtin_frame_address(0));
}

/* Like allocated, after a function that may have called one of these itself: that one counted. */
US_INLINE void allocated_once(void *p, uint64_t n, int64_t left)
{
	if (us_likely(heap_thread.left == left))
		allocated(p, n);
}

API void *malloc(size_t n)
{
	void *p;

	expect();
	p = next.malloc(n);
	allocated(p, n);
	return p;
}

API void free(void *p)
{
	if (is_early(p))
		return;
	if (heap_maybe_recorded(p) && p)
		heap_free(p);
	next.free(p);
}

API void *calloc(size_t k, size_t n)
{
	int64_t left = heap_thread.left;
	void *p;

	expect();
	p = next.calloc(k, n);
	allocated_once(p, k * n, left);
	return p;
}

static US_COLD void *realloc_early(void *p, size_t n)
{
	size_t was;
	void *q = malloc(n);

	memcpy(&was, (uint8_t *)p - 16, sizeof was);
	if (q)
		memcpy(q, p, was < n ? was : n);
	return q;
}

/* After the other function has been asked for n bytes in place of p, and gave q: f says what p was. */
US_INLINE void *reallocated(void *p, void *q, size_t n, struct heap_freed f, int64_t left)
{
	if (us_unlikely(!q && n))
		heap_unfreed(p, f);
	allocated_once(q, n, left);
	return q;
}

API void *realloc(void *p, size_t n)
{
	struct heap_freed f = {NULL, 0};
	int64_t left;

	if (is_early(p))
		return realloc_early(p, n);
	expect();
	if (heap_maybe_recorded(p) && p)
		f = heap_free(p);
	left = heap_thread.left;
	return reallocated(p, next.realloc(p, n), n, f, left);
}

API void *reallocarray(void *p, size_t k, size_t n)
{
	size_t all;

	if (__builtin_mul_overflow(k, n, &all)) {
		errno = ENOMEM;
		return NULL;
	}
	return realloc(p, all);
}

API void *memalign(size_t align, size_t n)
{
	int64_t left = heap_thread.left;
	void *p;

	if (us_unlikely(!next.memalign) && !heap_find())
		return NULL;
	p = next.memalign(align, n);
	allocated_once(p, n, left);
	return p;
}

API void *aligned_alloc(size_t align, size_t n)
{
	int64_t left = heap_thread.left;
	void *p;

	if (us_unlikely(!next.aligned_alloc) && !heap_find())
		return NULL;
	p = next.aligned_alloc(align, n);
	allocated_once(p, n, left);
	return p;
}

API int posix_memalign(void **to, size_t align, size_t n)
{
	int64_t left = heap_thread.left;
	int e;

	if (us_unlikely(!next.posix_memalign) && !heap_find())
		return ENOMEM;
	e = next.posix_memalign(to, align, n);
	if (us_likely(e == 0))
		allocated_once(*to, n, left);
	return e;
}

API void *valloc(size_t n)
{
	int64_t left = heap_thread.left;
	void *p;

	if (us_unlikely(!next.valloc) && !heap_find())
		return NULL;
	p = next.valloc(n);
	allocated_once(p, n, left);
	return p;
}

API void *pvalloc(size_t n)
{
	int64_t left = heap_thread.left;
	void *p;

	if (us_unlikely(!next.pvalloc) && !heap_find())
		return NULL;
	p = next.pvalloc(n);
	allocated_once(p, n, left);
	return p;
}

API int dlclose(void *handle)
{
	int r;

	if (us_unlikely(!next.dlclose) && !heap_find())
		return -1;
	r = next.dlclose(handle);
	heap_unloaded();
	return r;
}

/* ---- For libunspool_heap_new.so ---- */

API int64_t unspool_heap_left(void);
API int64_t unspool_heap_left(void)
{
	return heap_thread.left;
}

/* n bytes were allocated at p, when left was what unspool_heap_left said before: by a function of this library, too, or not. */
API void unspool_heap_allocated(void *p, uint64_t n, int64_t left);
API void unspool_heap_allocated(void *p, uint64_t n, int64_t left)
{
	allocated_once(p, n, left);
}

API void unspool_heap_freed(void *p);
API void unspool_heap_freed(void *p)
{
	if (heap_maybe_recorded(p) && p)
		heap_free(p);
}

/* libgcc's registry of code takes locks, which the caller may hold. */
US_HIDDEN const void *_Unwind_Find_FDE(void *pc, void *bases);
const void *_Unwind_Find_FDE(void *pc, void *bases)
{
	(void)pc;
	(void)bases;
	return NULL;
}
