/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap_walk.h: the stacks of allocations, walked where they happen. Part of heap_table.c.
 */

/*
 * Walks go on where they meet the walk before (us_trail). A thread uses one of a few trails, by where its own memory is, and none while another
 * thread does: a trail of another stack is of no use, and of no harm.
 */
enum { TRAILS = 16 };
struct trail {
	_Atomic uint32_t busy;
	uint32_t generation;
	uint64_t walk;         /* how many there were; the last one: */
	const uint64_t *frame; /* from here */
	int n;                 /* found this */
	int base_n;            /* of its outermost frames, so many are those of the stack */
	heap_ref base;         /* here */
	struct us_trail t;
} __attribute__((aligned(4096)));
static struct trail trails[TRAILS];

/* The stack of an allocation: without this library's frames, at most HEAP_FRAMES. It lies in a trail, which is to be left; or in pcs. */
struct walked {
	struct trail *trail;
	uint64_t hash;
	unsigned n;
	void **pcs, *room[HEAP_FRAMES + 8];
};

US_INLINE int is_own(uint64_t pc)
{
	return pc - own_lo < own_hi - own_lo;
}

/* The i-th program counter from the allocation. */
US_INLINE uint64_t pc_of(const struct walked *w, unsigned i)
{
	return w->trail ? w->trail->t.link[w->n - 1 - i].pc : (uint64_t)w->pcs[i];
}

/* The walk is what room has, of n frames. */
static void walk_is(struct walked *w, int n)
{
	w->pcs = w->room;
	for (; n > 0 && is_own((uint64_t)w->pcs[0]); n--)
		w->pcs++;
	w->n = n < HEAP_FRAMES ? (unsigned)n : HEAP_FRAMES;
	w->hash = 0;
	for (unsigned i = w->n; i > 0; i--)
		w->hash = us_trail_hash(w->hash, (uint64_t)w->pcs[i - 1]);
}

static __attribute__((noinline)) void walk_whole(struct walked *w)
{
	walk_is(w, unspool_backtrace(w->room, HEAP_FRAMES + 8));
}

#ifdef UNSPOOL_TRAIL_CHECK
/* Tests: a walk that is another one than without a trail ends the process. */
static __attribute__((noinline)) void trail_check(const struct walked *w)
{
	struct walked whole = {NULL, 0, 0, NULL, {NULL}};

	walk_whole(&whole);
	if (whole.n != w->n || whole.hash != w->hash)
		abort();
	for (unsigned i = 0; i < w->n; i++)
		if (pc_of(&whole, i) != pc_of(w, i))
			abort();
}
#endif

#ifdef __x86_64__

static US_COLD void walk_deep(struct walked *w, const struct us_trail *t)
{
	for (unsigned i = 0; i < HEAP_FRAMES + 8; i++)
		w->room[i] = (void *)t->fresh_link[i].pc;
	walk_is(w, HEAP_FRAMES + 8);
}
_Static_assert(HEAP_FRAMES + 8 <= US_TRAIL, "a deep walk has all frames that are recorded");

/* Walks the stack of the function with a frame by the thread's trail, if nobody has done this since heap_expect; 0 where that is not possible. */
US_INLINE int walk_trail(struct walked *w, const uint64_t *frame)
{
	struct heap_thread *t = &heap_thread;
	struct trail *tr = &trails[((uint64_t)t >> 12 ^ (uint64_t)t >> 18) % TRAILS];
	uint32_t generation = __atomic_load_n(&state.generation, __ATOMIC_RELAXED);
	int n;

	w->trail = NULL;
	if (us_unlikely(!try_lock(&tr->busy)))
		return 0;
	if (us_unlikely(tr->generation != generation)) {
		tr->t.n = 0;
		tr->generation = generation;
		tr->frame = NULL;
	}
	if (t->ahead != frame || tr->frame != frame || t->ahead_walk != tr->walk) {
		t->ahead_walk = ++tr->walk;
		tr->frame = frame;
		tr->n = us_trail(&tr->t, (uint64_t)(frame + 1), frame[0]);
		if (tr->base_n > tr->t.kept)
			tr->base_n = tr->t.kept;
	}
	n = tr->n;
	while (n > 0 && us_unlikely(is_own(tr->t.link[n - 1].pc)))
		n--;
	if (us_likely(n > 0 && n <= HEAP_FRAMES)) {
		w->trail = tr;
		w->n = (unsigned)n;
		w->hash = tr->t.frame[n - 1].hash;
		return 1;
	}
	if (n == US_TRAIL_DEEP)
		walk_deep(w, &tr->t);
	unlock_trail(&tr->busy);
	return n == US_TRAIL_DEEP;
}

#endif

/* Walks the stack of the function with a frame. */
US_INLINE void walk(struct walked *w, const uint64_t *frame)
{
#ifdef __x86_64__
	if (us_unlikely(!walk_trail(w, frame)))
		walk_whole(w);
#ifdef UNSPOOL_TRAIL_CHECK
	trail_check(w);
#endif
#else
	(void)frame;
	w->trail = NULL;
	walk_whole(w);
#endif
}

/* How many of the outermost frames a stack has that is written. */
US_INLINE unsigned walk_shares(const struct walked *w)
{
	if (!w->trail)
		return 0;
	return (unsigned)w->trail->base_n < w->n ? (unsigned)w->trail->base_n : w->n;
}

/* The stack is written there. */
US_INLINE void walk_has(const struct walked *w, heap_ref r)
{
	if (us_likely(w->trail != NULL)) {
		w->trail->base = r;
		w->trail->base_n = (int)w->n;
	}
}

US_INLINE void walk_leave(const struct walked *w)
{
	if (us_likely(w->trail != NULL))
		unlock_trail(&w->trail->busy);
}
