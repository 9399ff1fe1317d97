/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eh_register.c: code registered at run time, by __register_frame and its kin. Who registers takes a lock; who looks up does not.
 *
 * What is registered stands in one of two arrays, sorted by address. A writer fills the other one, and then says that this one holds. Who looks up
 * begins again where that has happened meanwhile. All memory here stays this file's, so what is read in vain can be read. A signal handler that
 * interrupts a writer finds the array that holds.
 */
#define _GNU_SOURCE
#include "eh.h"
#include "reader.h"

#include <pthread.h>

_Atomic uint32_t eh_generation EH_DATA_SECTION;

/* An FDE, and a set of FDEs that one call has registered. */
struct entry {
	uint64_t lo, hi, at;
};

struct object {
	uint64_t begin;
	void *ob, *tbase, *dbase;
	struct entry *entries; /* sorted */
	uint64_t n;
	unsigned size_class; /* of entries */
	uint64_t lo, hi;
	struct object *next; /* in the list of all, or of those that are free */
};

struct place {
	uint64_t lo, hi;
	uint64_t reach; /* the highest hi of this and all before it */
	struct object *object;
};

struct places {
	struct place *at;
	uint64_t n, room;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct places both[2];
static struct places *_Atomic now = &both[0];
static struct object *all, *unused;
static void *free_blocks[48]; /* by the logarithm of their size; each begins with the next one */

void eh_all_memory(struct us_window *w)
{
	uint64_t lo = 4096;

	__asm__("" : "+r"(lo)); /* a compiler would object to an array there */
	*w = (struct us_window){(const uint8_t *)lo, lo, (uint64_t)1 << US_MAX_BITS, NULL, NULL};
}

/* ---- Memory, which is used again but never given back ---- */

static void *take(uint64_t size, unsigned *class)
{
	unsigned k = 6;
	void *p;

	while ((uint64_t)1 << k < size)
		if (++k == 48)
			return NULL;
	*class = k;
	p = free_blocks[k];
	if (p)
		memcpy(&free_blocks[k], p, sizeof p);
	else
		p = us_alloc((size_t)1 << k);
	return p;
}

static void give(void *p, unsigned class)
{
	memcpy(p, &free_blocks[class], sizeof p);
	free_blocks[class] = p;
}

/* ---- Looking up ---- */

uint64_t eh_registered(uint64_t pc, struct eh_bases *b)
{
	for (;;) {
		uint32_t generation = atomic_load_explicit(&eh_generation, memory_order_acquire);
		uint64_t found = 0, lo = 0, hi;
		struct places *p;

		if (us_likely(generation == 0))
			return 0;
		p = atomic_load_explicit(&now, memory_order_acquire);
		hi = p->n;
		while (lo < hi) {
			uint64_t mid = lo + (hi - lo) / 2;

			if (p->at[mid].lo <= pc)
				lo = mid + 1;
			else
				hi = mid;
		}
		for (; lo > 0 && p->at[lo - 1].reach > pc && !found; lo--) {
			struct object *o = p->at[lo - 1].object;
			const struct entry *e;
			uint64_t first = 0, n;

			if (p->at[lo - 1].hi <= pc)
				continue;
			atomic_thread_fence(memory_order_acquire);
			if (atomic_load_explicit(&eh_generation, memory_order_relaxed) != generation)
				break;
			e = o->entries;
			n = o->n;
			atomic_thread_fence(memory_order_acquire);
			if (atomic_load_explicit(&eh_generation, memory_order_relaxed) != generation)
				break; /* e and n may not belong together */
			while (first < n) {
				uint64_t mid = first + (n - first) / 2;

				if (e[mid].lo <= pc)
					first = mid + 1;
				else
					n = mid;
			}
			if (first > 0 && pc < e[first - 1].hi) {
				found = e[first - 1].at;
				*b = (struct eh_bases){o->tbase, o->dbase, (void *)e[first - 1].lo};
			}
		}
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit(&eh_generation, memory_order_relaxed) == generation)
			return found;
	}
}

/* ---- Registering ---- */

/* Looks at each FDE that can be decoded, from begin to the terminator; or at one only. */
static void each(uint64_t begin, int one, struct object *o)
{
	struct us_window w;

	eh_all_memory(&w);
	for (uint64_t at = begin, head = at;; head = at) {
		struct reader r = {&w, at, (uint64_t)1 << US_MAX_BITS, 0};
		uint64_t n = fixed(&r, 4);
		struct us_fde fde;

		if (n == UINT32_MAX)
			n = fixed(&r, 8);
		if (r.bad || n < 4)
			return;
		at = r.at + n;
		if (fixed(&r, 4) != 0 && us_fde_open(&w, head, &fde) == US_FOUND && fde.lo && fde.hi > fde.lo) {
			if (o->entries)
				o->entries[o->n] = (struct entry){fde.lo, fde.hi, fde.at};
			o->n++;
		}
		if (one)
			return;
	}
}

static void each_of(uint64_t begin, enum eh_what what, struct object *o)
{
	if (what != EH_TABLE) {
		each(begin, what == EH_ONE, o);
		return;
	}
	for (const uint64_t *p = (const uint64_t *)begin; *p; p++)
		each(*p, 0, o);
}

static void sift(struct entry *e, uint64_t i, uint64_t n)
{
	for (uint64_t child; (child = 2 * i + 1) < n; i = child) {
		struct entry x = e[i];

		if (child + 1 < n && e[child + 1].lo > e[child].lo)
			child++;
		if (e[child].lo <= x.lo)
			return;
		e[i] = e[child];
		e[child] = x;
	}
}

static void sort(struct entry *e, uint64_t n)
{
	uint64_t i;

	for (i = 1; i < n && e[i - 1].lo <= e[i].lo; i++)
		;
	if (i >= n)
		return;
	for (i = n / 2; i-- > 0;)
		sift(e, i, n);
	for (i = n; i-- > 1;) {
		struct entry x = e[0];

		e[0] = e[i];
		e[i] = x;
		sift(e, 0, i);
	}
}

/* Makes the other array that which holds, with one object more or less. The lock is held. 0 if there is no memory. */
static int publish(struct object *add, const struct object *remove)
{
	struct places *from = atomic_load_explicit(&now, memory_order_relaxed), *to = from == &both[0] ? &both[1] : &both[0];
	uint64_t n = 0, reach = 0;

	if (to->room < from->n + 1) {
		uint64_t room = to->room ? to->room : 16;
		struct place *p;

		while (room < from->n + 1)
			room *= 2;
		p = us_alloc(room * sizeof *p);
		if (!p)
			return 0;
		to->at = p;
		to->room = room;
	}
	for (uint64_t i = 0; i <= from->n; i++) {
		if (add && (i == from->n || from->at[i].lo > add->lo)) {
			reach = add->hi > reach ? add->hi : reach;
			to->at[n++] = (struct place){add->lo, add->hi, reach, add};
			add = NULL;
		}
		if (i == from->n || from->at[i].object == remove)
			continue;
		reach = from->at[i].hi > reach ? from->at[i].hi : reach;
		to->at[n] = from->at[i];
		to->at[n++].reach = reach;
	}
	to->n = n;
	atomic_store_explicit(&now, to, memory_order_release);
	/* 0 says that nothing was ever registered. */
	if (atomic_fetch_add_explicit(&eh_generation, 1, memory_order_acq_rel) == UINT32_MAX)
		atomic_fetch_add_explicit(&eh_generation, 1, memory_order_acq_rel);
	atomic_thread_fence(memory_order_seq_cst);
	return 1;
}

static void add(const void *begin, void *ob, void *tbase, void *dbase, enum eh_what what)
{
	struct object *o, count;

	memset(&count, 0, sizeof count);
	pthread_mutex_lock(&lock);
	each_of((uint64_t)begin, what, &count);
	o = unused;
	if (o)
		unused = o->next;
	else
		o = us_alloc(sizeof *o);
	if (o) {
		*o = (struct object){.begin = (uint64_t)begin, .ob = ob, .tbase = tbase, .dbase = dbase, .next = all};
		all = o;
		if (count.n)
			o->entries = take(count.n * sizeof *o->entries, &o->size_class);
		if (o->entries) {
			each_of((uint64_t)begin, what, o);
			sort(o->entries, o->n);
			o->lo = o->entries[0].lo;
			for (uint64_t i = 0; i < o->n; i++)
				o->hi = o->entries[i].hi > o->hi ? o->entries[i].hi : o->hi;
			publish(o, NULL);
		}
	}
	pthread_mutex_unlock(&lock);
}

static void *drop(const void *begin)
{
	void *ob = NULL;

	pthread_mutex_lock(&lock);
	for (struct object **at = &all; *at; at = &(*at)->next) {
		struct object *o = *at;

		if (o->begin != (uint64_t)begin)
			continue;
		if (!o->entries || publish(NULL, o)) {
			*at = o->next;
			ob = o->ob;
			if (o->entries)
				give(o->entries, o->size_class);
			o->next = unused;
			unused = o;
		}
		break;
	}
	pthread_mutex_unlock(&lock);
	return ob;
}

/* Whether there is nothing from begin on. */
static int is_empty(const void *begin)
{
	uint32_t n;

	if (!begin)
		return 1;
	memcpy(&n, begin, sizeof n);
	return n == 0;
}

void eh_add(const void *begin, enum eh_what what)
{
	if (!is_empty(begin))
		add(begin, NULL, NULL, NULL, what);
}

void eh_remove(const void *begin)
{
	if (!is_empty(begin))
		drop(begin);
}

void eh_each_registered(void (*each)(uint64_t lo, uint64_t hi, uint64_t fde, uint64_t begin))
{
	pthread_mutex_lock(&lock);
	for (const struct object *o = all; o; o = o->next)
		for (uint64_t i = 0; o->entries && i < o->n; i++)
			each(o->entries[i].lo, o->entries[i].hi, o->entries[i].at, o->begin);
	pthread_mutex_unlock(&lock);
}

#ifndef UNSPOOL_LLVM /* llvm.c has what LLVM has of these */

EH_API void __register_frame_info_bases(const void *begin, void *ob, void *tbase, void *dbase)
{
	if (!is_empty(begin))
		add(begin, ob, tbase, dbase, EH_SECTION);
}

EH_API void __register_frame_info(const void *begin, void *ob)
{
	__register_frame_info_bases(begin, ob, NULL, NULL);
}

EH_API void __register_frame(void *begin)
{
	__register_frame_info_bases(begin, NULL, NULL, NULL);
}

EH_API void __register_frame_info_table_bases(void *begin, void *ob, void *tbase, void *dbase)
{
	add(begin, ob, tbase, dbase, EH_TABLE);
}

EH_API void __register_frame_info_table(void *begin, void *ob)
{
	__register_frame_info_table_bases(begin, ob, NULL, NULL);
}

EH_API void __register_frame_table(void *begin)
{
	__register_frame_info_table_bases(begin, NULL, NULL, NULL);
}

/* Gives back what the caller has given as ob. NULL where nothing was registered; libgcc aborts then. */
EH_API void *__deregister_frame_info_bases(const void *begin)
{
	return is_empty(begin) ? NULL : drop(begin);
}

EH_API void *__deregister_frame_info(const void *begin)
{
	return __deregister_frame_info_bases(begin);
}

EH_API void __deregister_frame(void *begin)
{
	__deregister_frame_info_bases(begin);
}

#endif
