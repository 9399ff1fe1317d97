/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap_table.c: which allocations are recorded, those in use, and the stacks that they came from.
 *
 * All state lies in pages that are zeros in a process that forks off (MADV_WIPEONFORK): it begins anew, with nothing in use and no lock held. A
 * process without a recorder, or without these pages, records nothing.
 */
#define _GNU_SOURCE
#include "heap.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern int unspool_backtrace(void **pcs, int max);

_Thread_local struct heap_thread heap_thread __attribute__((tls_model("initial-exec")));

enum { UNBEGUN = 0, ON = 1, OFF = 2, DEFERRED = 64, FIRST_SLOTS = 1024, MAX_SLOTS = 1 << 30 };

/* An allocation in use. 48 bits of its address, and of its stack's; above them the thread's left when it was made. */
struct live {
	uint64_t address, stack, size;
};

/* A stack's place, and 32 bits of its hash; 0: none. */
struct interned {
	uint32_t hash;
	heap_ref stack;
};

static struct state {
	_Atomic uint32_t lock; /* 1: held; 2: and others wait */
	_Atomic uint32_t on;
	uint32_t generation; /* of modules */
	int32_t pid;         /* that began to record */
	_Atomic uint32_t n_deferred;
	_Atomic uint64_t deferred[DEFERRED]; /* what was given back while it could not be recorded */
	uint64_t n_live, n_interned;
} __attribute__((aligned(4096))) state;

/*
 * Where the tables and files are. A child has this from its parent, until it begins: a signal handler that interrupted a recording may fork, and the
 * recording ends in the child, too, in memory that is there and that nobody reads.
 */
static struct {
	uint64_t period;
	struct live *live;
	struct interned *interned;
	uint64_t live_slots, interned_slots;
	struct heap_files files;
} tables;

struct heap_filter heap_filter __attribute__((aligned(4096)));

/* The library's own code. */
static uint64_t own_lo, own_hi;

/* ---- The lock ---- */

extern char __libc_single_threaded __attribute__((weak));

/* The C library knows of no other thread: nobody else wants the lock. */
US_INLINE int is_alone(void)
{
	return &__libc_single_threaded && us_likely(*(volatile char *)&__libc_single_threaded);
}

US_INLINE int try_lock(_Atomic uint32_t *lock)
{
	uint32_t was = 0;

	if (is_alone()) {
		was = atomic_load_explicit(lock, memory_order_relaxed);
		if (was == 0)
			atomic_store_explicit(lock, 1, memory_order_relaxed);
		return was == 0;
	}
	return atomic_compare_exchange_strong_explicit(lock, &was, 1, memory_order_acquire, memory_order_relaxed);
}

static US_COLD void lock_waiting(void)
{
	for (unsigned spins = 0; spins < 100; spins++)
		if (try_lock(&state.lock))
			return;
	while (atomic_exchange_explicit(&state.lock, 2, memory_order_acquire) != 0)
		syscall(SYS_futex, &state.lock, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}

US_INLINE void lock_tables(void)
{
	if (us_unlikely(!try_lock(&state.lock)))
		lock_waiting();
}

US_INLINE void unlock_tables(void)
{
	if (is_alone())
		atomic_store_explicit(&state.lock, 0, memory_order_release);
	else if (atomic_exchange_explicit(&state.lock, 0, memory_order_release) == 2)
		syscall(SYS_futex, &state.lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

US_INLINE void unlock_trail(_Atomic uint32_t *busy)
{
	atomic_store_explicit(busy, 0, memory_order_release);
}

void heap_lock(void)
{
	lock_tables();
}

void heap_unlock(void)
{
	unlock_tables();
}

/* ---- What is in use ---- */

#define LOW ((uint64_t)1 << 48)

static uint64_t live_home(uint64_t address)
{
	return (address >> 4) * 0x9e3779b97f4a7c15u >> 20 & (tables.live_slots - 1);
}

static struct live *live_find(uint64_t address)
{
	for (uint64_t i = live_home(address);; i = (i + 1) & (tables.live_slots - 1)) {
		struct live *l = &tables.live[i];

		if (l->address == 0)
			return NULL;
		if (l->address % LOW == address)
			return l;
	}
}

static void live_put(struct live l)
{
	uint64_t i = live_home(l.address % LOW);

	while (tables.live[i].address)
		i = (i + 1) & (tables.live_slots - 1);
	tables.live[i] = l;
	state.n_live++;
}

/* Room for one more; 0 if there is none. */
static int live_room(void)
{
	struct live *old = tables.live;
	uint64_t slots = tables.live_slots;

	if (state.n_live < slots / 4 * 3)
		return 1;
	if (slots == MAX_SLOTS || !(tables.live = heap_map(2 * slots * sizeof *old))) {
		tables.live = old;
		return state.n_live < slots - 1;
	}
	syscall(SYS_madvise, tables.live, 2 * slots * sizeof *old, MADV_WIPEONFORK);
	tables.live_slots = 2 * slots;
	state.n_live = 0;
	for (uint64_t i = 0; i < slots; i++)
		if (old[i].address)
			live_put(old[i]);
	syscall(SYS_munmap, old, slots * sizeof *old);
	return 1;
}

static void live_remove(struct live *l)
{
	uint64_t hole = (uint64_t)(l - tables.live), mask = tables.live_slots - 1;

	for (uint64_t i = (hole + 1) & mask; tables.live[i].address; i = (i + 1) & mask) {
		uint64_t home = live_home(tables.live[i].address % LOW);

		if (((i - home) & mask) >= ((i - hole) & mask)) {
			tables.live[hole] = tables.live[i];
			hole = i;
		}
	}
	tables.live[hole].address = 0;
	state.n_live--;
}

static void filter(uint64_t address, int by)
{
	_Atomic uint8_t *f = &heap_filter.slot[heap_filter_slot(address)];
	uint8_t n;

	if (heap_is_all())
		return;
	n = atomic_load_explicit(f, memory_order_relaxed);
	if (n != UINT8_MAX)
		atomic_store_explicit(f, (uint8_t)(n + by), memory_order_relaxed);
}

/* ---- Counts ---- */

/* Before a stack's count changes: what it was at the peak. */
static void touch(struct heap_stack *s)
{
	uint64_t epoch = tables.files.process->epoch;

	if (s->epoch == epoch)
		return;
	s->peak_objects = s->objects - s->freed_objects;
	s->peak_bytes = s->bytes - s->freed_bytes;
	s->epoch = epoch;
}

static void count(struct heap_stack *s, struct heap_weight w)
{
	struct heap_process *p = tables.files.process;

	touch(s);
	s->objects += w.objects;
	s->bytes += w.bytes;
	p->objects += (int64_t)w.objects;
	p->bytes += (int64_t)w.bytes;
	if (p->bytes > p->peak_bytes) {
		p->peak_bytes = p->bytes;
		p->peak_objects = p->objects;
		p->epoch++;
	}
}

static void discount(struct heap_stack *s, struct heap_weight w, int brief)
{
	struct heap_process *p = tables.files.process;

	touch(s);
	s->freed_objects += w.objects;
	s->freed_bytes += w.bytes;
	p->objects -= (int64_t)w.objects;
	p->bytes -= (int64_t)w.bytes;
	if (brief) {
		s->brief_objects += w.objects;
		s->brief_bytes += w.bytes;
	}
}

static struct heap_freed forget(uint64_t address, int64_t left)
{
	struct live *l = live_find(address);
	struct heap_freed f = {NULL, 0};

	if (!l)
		return f;
	f.stack = (struct heap_stack *)(l->stack % LOW);
	if (us_unlikely(!f.stack)) /* wiped: a signal handler has forked */
		return f;
	f.size = l->size;
	discount(f.stack, heap_weigh(f.size, tables.period), (uint32_t)left == (uint32_t)(l->address >> 48 | l->stack >> 48 << 16));
	live_remove(l);
	filter(address, -1);
	if (us_unlikely(free_semaphore))
		heap_probe_free(address);
	return f;
}

static int remember(uint64_t address, struct heap_stack *s, uint64_t size, int64_t left)
{
	if (!live_room()) {
		tables.files.process->lost++;
		return 0;
	}
	live_put((struct live){address | (uint64_t)left << 48, (uint64_t)s | ((uint64_t)left >> 16) << 48, size});
	filter(address, 1);
	return 1;
}

/* ---- What could not be recorded at its time ---- */

static void defer(uint64_t address)
{
	for (unsigned i = 0; i < DEFERRED; i++) {
		uint64_t none = 0;

		if (atomic_compare_exchange_strong(&state.deferred[i], &none, address)) {
			atomic_fetch_add(&state.n_deferred, 1);
			return;
		}
	}
	if (atomic_load_explicit(&state.on, memory_order_acquire) == ON)
		tables.files.process->nested++;
}

static void catch_up(void)
{
	if (us_likely(atomic_load_explicit(&state.n_deferred, memory_order_relaxed) == 0))
		return;
	for (unsigned i = 0; i < DEFERRED; i++) {
		uint64_t address = atomic_exchange(&state.deferred[i], 0);

		if (address) {
			atomic_fetch_sub(&state.n_deferred, 1);
			forget(address, 0);
		}
	}
}

#include "heap_walk.h"

/* ---- Stacks ---- */

static int interned_room(void)
{
	struct interned *old = tables.interned, *now;
	uint64_t slots = tables.interned_slots, more = 4 * slots;

	if (state.n_interned < slots / 4 * 3)
		return 1;
	if (more > MAX_SLOTS || !(now = heap_map(more * sizeof *old)))
		return state.n_interned < slots - 1;
	syscall(SYS_madvise, now, more * sizeof *old, MADV_WIPEONFORK);
	for (uint64_t i = 0; i < slots; i++) {
		uint64_t k = old[i].hash & (more - 1);

		if (!old[i].stack)
			continue;
		while (now[k].stack)
			k = (k + 1) & (more - 1);
		now[k] = old[i];
	}
	tables.interned = now;
	tables.interned_slots = more;
	syscall(SYS_munmap, old, slots * sizeof *old);
	return 1;
}

#ifdef UNSPOOL_TRAIL_CHECK
/* Tests: stacks with the same hash are the same, and so are those that are written with another's frames. */
static void same_check(const struct heap_stack *s, const struct walked *w)
{
	unsigned left = w->n, i = 0; /* frames that s is to have; the next one */

	for (;; s = heap_at(s->outer)) {
		unsigned n = s->n + s->shared, k = n - left;

		if (n < left)
			abort();
		for (; k < s->n; k++)
			if ((s->frame[k] ^ pc_of(w, i++)) % LOW)
				abort();
		if (!(left = w->n - i))
			return;
		if (!s->outer || left > s->shared)
			abort();
	}
}
#endif

/* Writes a stack, without the frames that it has from another. */
static US_COLD struct heap_stack *new_stack(const struct walked *w, uint64_t hash)
{
	uint64_t frame[HEAP_FRAMES];
	struct us_loaded *m = NULL;
	struct heap_stack *s;
	unsigned shared = walk_shares(w), n = w->n - shared;

	for (unsigned i = 0; i < n; i++)
		frame[i] = heap_frame(&tables.files, pc_of(w, i), &m);
	s = heap_room(&tables.files, HEAP_STACK, sizeof *s + n * sizeof frame[0]);
	if (!s)
		return NULL;
	s->hash = hash;
	if (shared) {
		s->outer = w->trail->base;
		s->shared = (uint16_t)shared;
	}
	s->n = (uint16_t)n;
	s->epoch = tables.files.process->epoch;
	memcpy(s->frame, frame, n * sizeof frame[0]);
	return s;
}

static struct heap_stack *intern(const struct walked *w)
{
	struct heap_stack *s;
	uint64_t mask, i, hash = us_trail_hash(w->hash, state.generation);
	heap_ref r;

	mask = tables.interned_slots - 1;
	/* Of a million stacks, two have the same 64 bits with a chance of 1 in 37 million. */
	for (i = hash & mask; (r = tables.interned[i].stack); i = (i + 1) & mask) {
		if (us_unlikely(tables.interned[i].hash != (uint32_t)hash))
			continue;
		s = heap_at(r);
		if (us_likely(s->hash == hash)) {
#ifdef UNSPOOL_TRAIL_CHECK
			same_check(s, w);
#endif
			walk_has(w, r);
			return s;
		}
	}
	if (!interned_room())
		return NULL;
	mask = tables.interned_slots - 1;
	for (i = hash & mask; tables.interned[i].stack; i = (i + 1) & mask)
		;
	s = new_stack(w, hash);
	if (!s)
		return NULL;
	r = heap_place(&tables.files, s);
	heap_wrote(&tables.files);
	tables.interned[i] = (struct interned){(uint32_t)hash, r};
	state.n_interned++;
	walk_has(w, r);
#ifdef UNSPOOL_TRAIL_CHECK
	same_check(s, w);
#endif
	return s;
}

/* ---- The beginning ---- */

static uint64_t number(const char *s)
{
	uint64_t n = 0;

	while (*s >= '0' && *s <= '9' && n < (uint64_t)1 << 48)
		n = n * 10 + (uint64_t)(*s++ - '0');
	return n;
}

/* What the recorder asks for, as it was when the program began: it may change its environment before it forks. */
static char directory[HEAP_PATH];
static uint64_t asked_period;
static int asked_maps; /* mappings in place of allocations */

static int environment_read;

static void read_environment(void)
{
	const char *dir = getenv("UNSPOOL_HEAP"), *period = getenv("UNSPOOL_HEAP_PERIOD");

	if (environment_read)
		return;
	environment_read = 1;
	if (dir && strlen(dir) < sizeof directory)
		strcpy(directory, dir);
	asked_period = period ? number(period) : 512 << 10;
	if (getenv("UNSPOOL_HEAP_MAPS")) {
		asked_maps = 1;
		asked_period = 0;
	}
}

static int begin(void)
{
	struct us_loaded *own = us_loaded_at((uint64_t)&heap_begin);

	read_environment();
	if (!directory[0] || !own)
		return 0;
	own_lo = own->lo;
	own_hi = own->hi;
	if (syscall(SYS_madvise, &state, sizeof state, MADV_WIPEONFORK) != 0 ||
	    syscall(SYS_madvise, &heap_filter, sizeof heap_filter, MADV_WIPEONFORK) != 0 ||
	    syscall(SYS_madvise, trails, sizeof trails, MADV_WIPEONFORK) != 0)
		return 0;
	state.pid = (int32_t)syscall(SYS_getpid);
	state.n_live = state.n_interned = 0;
	for (unsigned i = 0; i < TRAILS; i++)
		trails[i].t.n = trails[i].base_n = 0;
	tables.period = asked_period;
	tables.live_slots = tables.interned_slots = FIRST_SLOTS;
	tables.live = heap_map(FIRST_SLOTS * sizeof *tables.live);
	tables.interned = heap_map(FIRST_SLOTS * sizeof *tables.interned);
	if (!tables.live || !tables.interned)
		return 0;
	syscall(SYS_madvise, tables.live, FIRST_SLOTS * sizeof *tables.live, MADV_WIPEONFORK);
	syscall(SYS_madvise, tables.interned, FIRST_SLOTS * sizeof *tables.interned, MADV_WIPEONFORK);
	if (asked_maps && !heap_maps_open())
		return 0;
	if (!heap_open(&tables.files, directory, tables.period))
		return 0;
	atomic_store_explicit(&heap_filter.all, tables.period == 0 && !asked_maps, memory_order_relaxed);
	return 1;
}

/* Whether allocations are recorded. Before the C library has the environment, they are not, and nothing is decided. */
static int is_on(void)
{
	uint32_t on = atomic_load_explicit(&state.on, memory_order_acquire);

	if (us_likely(on != UNBEGUN))
		return on == ON;
	if (!environ)
		return 0;
	lock_tables();
	if (atomic_load_explicit(&state.on, memory_order_relaxed) == UNBEGUN) {
		int begun;

		do
			begun = begin();
		while (begun && state.pid != (int32_t)syscall(SYS_getpid)); /* a signal handler has forked */
		atomic_store_explicit(&state.on, begun ? ON : OFF, memory_order_release);
	}
	unlock_tables();
	return atomic_load_explicit(&state.on, memory_order_relaxed) == ON;
}

/* What is called while it is set must not be recorded: it has the lock, or it is a signal handler that interrupted what has it. */
static int enter(struct heap_thread *t)
{
	if (t->busy)
		return 0;
	t->busy = 1;
	__asm__ volatile("" ::: "memory");
	return 1;
}

static void leave(struct heap_thread *t)
{
	__asm__ volatile("" ::: "memory");
	t->busy = 0;
}

/* In a child: pages may not be wiped, such as in emulators, which say that they were. */
static void forked(void)
{
	heap_thread.ahead = NULL;
	if (heap_thread.busy)
		heap_left(&tables.files);
	if (atomic_load_explicit(&state.on, memory_order_relaxed) == UNBEGUN || state.pid == (int32_t)syscall(SYS_getpid))
		return;
	memset((void *)&state, 0, sizeof state);
	memset((void *)&heap_filter, 0, sizeof heap_filter);
	for (unsigned i = 0; i < TRAILS; i++)
		trails[i].t.n = trails[i].base_n = trails[i].busy = 0;
}

/* What pthread_atfork calls. That itself is linked in, and wants a handle of the library: without one, the handler stays, as the library does. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);

void heap_begin(int foreign)
{
	static int handled;

	if (!handled++)
		__register_atfork(NULL, NULL, forked, NULL);
	int e = errno;

	if (enter(&heap_thread)) {
		if (is_on() && foreign && !asked_maps)
			tables.files.process->foreign = 1;
		leave(&heap_thread);
	}
	errno = e;
}

/* ---- Events ---- */

US_INLINE uint64_t stack_hash(const struct walked *w)
{
	return us_trail_hash(w->hash, __atomic_load_n(&state.generation, __ATOMIC_RELAXED));
}

void heap_expect(const uint64_t *frame)
{
#ifdef __x86_64__
	struct heap_thread *t = &heap_thread;
	struct walked w;
	int e = errno;

	if (!enter(t))
		return;
	t->ahead = NULL;
	if (us_likely(walk_trail(&w, frame)))
		__builtin_prefetch(&tables.interned[stack_hash(&w) & (tables.interned_slots - 1)]);
	walk_leave(&w);
	t->ahead = frame;
	leave(t);
	errno = e;
#else
	(void)frame;
#endif
}

static __attribute__((noinline)) void sample(struct heap_thread *t, uint64_t address, uint64_t n, const uint64_t *frame)
{
	struct heap_stack *s;
	struct walked w;

	/* What is looked at later is in no cache. Without the lock, these addresses may be those of old tables. */
	__builtin_prefetch(&tables.live[live_home(address)], 1);
	walk(&w, frame);
	t->ahead = NULL;
	lock_tables();
	catch_up();
	if (us_unlikely(heap_maybe_recorded((void *)address)))
		forget(address, 0); /* nobody has seen it freed */
	s = intern(&w);
	walk_leave(&w);
	__builtin_prefetch(s, 1);
	__builtin_prefetch((char *)s + 64, 1);
	if (!s)
		tables.files.process->lost++;
	else if (remember(address, s, n, t->left)) {
		struct heap_weight w = heap_weigh(n, tables.period);

		count(s, w);
		if (us_unlikely(alloc_semaphore))
			heap_probe_alloc(address, n, w.bytes);
	}
	unlock_tables();
}

void heap_allocated(void *p, uint64_t n, const uint64_t *frame)
{
	struct heap_thread *t = &heap_thread;
	int e = errno;

	if (!enter(t)) {
		if (atomic_load_explicit(&state.on, memory_order_relaxed) == ON)
			tables.files.process->nested++;
		return;
	}
	if (!is_on() || asked_maps) {
		if (state.on != UNBEGUN)
			t->left = INT64_MAX;
	} else if (tables.period == 0) {
		sample(t, (uint64_t)p % LOW, n, frame);
	} else {
		if (us_unlikely(!t->random)) {
			heap_seed(t);
			t->left += heap_draw(t, tables.period);
		}
		if (t->left <= 0) {
			t->left = heap_draw(t, tables.period);
			sample(t, (uint64_t)p % LOW, n, frame);
		}
	}
	leave(t);
	errno = e;
}

struct heap_freed heap_free(void *p)
{
	struct heap_thread *t = &heap_thread;
	struct heap_freed f = {NULL, 0};
	int e = errno;

	if (!enter(t)) {
		defer((uint64_t)p % LOW);
		return f;
	}
	if (is_on()) {
		lock_tables();
		catch_up();
		f = forget((uint64_t)p % LOW, t->left);
		unlock_tables();
	}
	leave(t);
	errno = e;
	return f;
}

void heap_unfreed(void *p, struct heap_freed f)
{
	struct heap_thread *t = &heap_thread;
	int e = errno;

	if (!f.stack || !enter(t))
		return;
	if (is_on()) {
		struct heap_weight w = heap_weigh(f.size, tables.period);

		lock_tables();
		if (remember((uint64_t)p % LOW, f.stack, f.size, 0)) {
			touch(f.stack);
			f.stack->freed_objects -= w.objects;
			f.stack->freed_bytes -= w.bytes;
			tables.files.process->objects += (int64_t)w.objects;
			tables.files.process->bytes += (int64_t)w.bytes;
		}
		unlock_tables();
	}
	leave(t);
	errno = e;
}

void heap_unloaded(void)
{
	int e = errno;

	if (enter(&heap_thread)) {
		lock_tables();
		state.generation++;
		unlock_tables();
		leave(&heap_thread);
	}
	errno = e;
}

/* ---- Mappings ---- */

int heap_maps_enter(void)
{
	if (us_likely(environment_read) && us_likely(!asked_maps))
		return 0;
	if (!enter(&heap_thread)) {
		if (asked_maps && atomic_load_explicit(&state.on, memory_order_relaxed) == ON)
			tables.files.process->nested++;
		return 0;
	}
	if (environ && !environment_read) {
		lock_tables();
		read_environment();
		unlock_tables();
	}
	if (asked_maps && is_on())
		return 1;
	leave(&heap_thread);
	return 0;
}

void heap_maps_leave(int e)
{
	leave(&heap_thread);
	errno = e;
}

struct heap_stack *heap_here(void)
{
	struct heap_stack *s;
	struct walked w;

	walk(&w, __builtin_frame_address(0));
	s = intern(&w);
	walk_leave(&w);
	return s;
}

void heap_count(struct heap_stack *s, uint64_t objects, uint64_t bytes)
{
	count(s, (struct heap_weight){objects, bytes});
}

void heap_discount(struct heap_stack *s, uint64_t objects, uint64_t bytes, int brief)
{
	discount(s, (struct heap_weight){objects, bytes}, brief);
}

void heap_lost(void)
{
	tables.files.process->lost++;
}

uint64_t heap_mark(void)
{
	return (uint64_t)&heap_thread << 16 ^ heap_thread.mapped;
}

uint64_t heap_next_mark(void)
{
	heap_thread.mapped++;
	return heap_mark();
}
