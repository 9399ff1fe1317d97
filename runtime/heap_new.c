/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap_new.c: libunspool_heap_new.so, C++'s operators new and delete (Itanium C++ ABI, section 5.1: their names) in front of those of an allocator
 * that has its own. It is preloaded behind libunspool_heap.so, and only where the program has such an allocator: libstdc++'s operators call malloc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))

/* libunspool_heap.so */
extern int64_t unspool_heap_left(void);
extern void unspool_heap_allocated(void *p, uint64_t n, int64_t left);
extern void unspool_heap_freed(void *p);

static void *find(const char *name)
{
	void *f = dlsym(RTLD_NEXT, name);

	if (!f)
		abort();
	return f;
}

/* An operator new with n bytes and what else it takes; names are mangled. */
#define NEW(name, params, args) \
	API void *name params; \
	API void *name params \
	{ \
		static void *(*next) params; \
		int64_t left = unspool_heap_left(); \
		void *p; \
\
		if (__builtin_expect(!next, 0)) \
			*(void **)&next = find(#name); \
		p = next args; \
		unspool_heap_allocated(p, n, left); \
		return p; \
	}

#define DELETE(name, params, args) \
	API void name params; \
	API void name params \
	{ \
		static void (*next) params; \
\
		if (__builtin_expect(!next, 0)) \
			*(void **)&next = find(#name); \
		unspool_heap_freed(p); \
		next args; \
	}

#define BOTH(one, many, kind, params, args) \
	kind(one, params, args) \
	kind(many, params, args)

BOTH(_Znwm, _Znam, NEW, (size_t n), (n))
BOTH(_ZnwmRKSt9nothrow_t, _ZnamRKSt9nothrow_t, NEW, (size_t n, const void *t), (n, t))
BOTH(_ZnwmSt11align_val_t, _ZnamSt11align_val_t, NEW, (size_t n, size_t a), (n, a))
BOTH(_ZnwmSt11align_val_tRKSt9nothrow_t, _ZnamSt11align_val_tRKSt9nothrow_t, NEW, (size_t n, size_t a, const void *t), (n, a, t))
BOTH(_ZdlPv, _ZdaPv, DELETE, (void *p), (p))
BOTH(_ZdlPvm, _ZdaPvm, DELETE, (void *p, size_t n), (p, n))
BOTH(_ZdlPvRKSt9nothrow_t, _ZdaPvRKSt9nothrow_t, DELETE, (void *p, const void *t), (p, t))
BOTH(_ZdlPvSt11align_val_t, _ZdaPvSt11align_val_t, DELETE, (void *p, size_t a), (p, a))
BOTH(_ZdlPvmSt11align_val_t, _ZdaPvmSt11align_val_t, DELETE, (void *p, size_t n, size_t a), (p, n, a))
BOTH(_ZdlPvSt11align_val_tRKSt9nothrow_t, _ZdaPvSt11align_val_tRKSt9nothrow_t, DELETE, (void *p, size_t a, const void *t), (p, a, t))
