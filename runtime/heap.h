/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap.h: what libunspool_heap.so is made of: it stands in front of a program's allocator, samples allocations, and walks the stack of each sample
 * (docs/HEAP.md). heap.c has the allocator's functions, heap_maps.c those that map memory. heap_chance.c says which allocations are samples,
 * heap_table.c has the tables, heap_file.c the files that the recorder reads by source/heap, heap_probe.c probes for other recorders.
 */
#ifndef UNSPOOL_HEAP_H
#define UNSPOOL_HEAP_H

#include "local.h"

/* ---- The files ---- */

/*
 * A process writes chunks: files PID-PART-NUMBER in the recorder's directory. Each begins with a header; records follow, each of a multiple of 8
 * bytes. All is in the machine's byte order, and all numbers may change while the process runs.
 */
#define HEAP_MAGIC 0x7061656874707375u /* "uspthe", "ap" */
enum { HEAP_VERSION = 2, HEAP_FRAMES = 255, HEAP_SEGMENTS = 8, HEAP_PATH = 4096, HEAP_ID = 32 };
enum { HEAP_PROCESS = 1, HEAP_MODULE = 2, HEAP_STACK = 3 };

struct heap_chunk {
	uint64_t magic;
	uint32_t version, pid;
	uint64_t part;   /* when the process began to record, in ns: all chunks of one recording have the same */
	uint32_t number; /* from 0 */
	uint32_t unused;
	_Atomic uint64_t used; /* bytes that are written, this header included */
};

struct heap_head {
	uint32_t type, size; /* of the record, with this */
};

/* The first record of the first chunk. */
struct heap_process {
	struct heap_head head;
	uint64_t period;   /* bytes, on average, between samples; 0: all allocations are recorded */
	uint64_t foreign;  /* 1: the program has an allocator in itself: its calls of that are not seen */
	uint64_t lost;     /* allocations that there was no room for */
	uint64_t nested;   /* samples and frees in signal handlers that interrupted the recording of another: not recorded */
	int64_t objects, bytes, peak_objects, peak_bytes; /* in use; objects in units of 1/HEAP_UNIT */
	uint64_t epoch;    /* how often the peak rose */
	char comm[16];
	char path[]; /* of the program, ending with 0 */
};

struct heap_module {
	struct heap_head head;
	uint32_t index, n_id, n_segments, unused;
	uint8_t id[HEAP_ID];
	struct {
		uint64_t lo, hi, off;
	} segment[HEAP_SEGMENTS]; /* what is executable: addresses, and where that is in the file */
	char path[];
};

enum { HEAP_UNIT = 1 << 16 };

/*
 * A record's place: the number of its chunk, and the record's offset there, in units of 8 bytes. 0 is none.
 */
typedef uint32_t heap_ref;
enum { HEAP_REF_BITS = 21, HEAP_MAX_CHUNK = 8 << HEAP_REF_BITS, HEAP_CHUNKS = 1 << (32 - HEAP_REF_BITS) };

/*
 * What was allocated from one stack: of its frames, it has the n innermost ones, and the others are the shared outermost ones of a stack that was
 * written before. Each word of frame has the module's index above the lower 48 bits. Objects count in 1/HEAP_UNIT.
 */
struct heap_stack {
	struct heap_head head;
	uint64_t hash; /* of all frames, and of how often modules had been unloaded */
	heap_ref outer;
	uint16_t shared, n;
	uint64_t objects, bytes;             /* allocated */
	uint64_t freed_objects, freed_bytes;
	uint64_t brief_objects, brief_bytes; /* freed before the thread had allocated anything else */
	uint64_t peak_objects, peak_bytes;   /* in use at the peak, if epoch is the process's; else what is in use now was */
	uint64_t epoch;
	uint64_t frame[];
};

/* ---- The tables (heap_table.c) ---- */

/* A thread. left counts down: at 0 and below, the next allocation is looked at. */
struct heap_thread {
	int64_t left;
	uint64_t random; /* 0: not seeded */
	uint32_t busy;
	uint32_t mapped;       /* how often it mapped memory */
	const uint64_t *ahead; /* the frame whose stack is in the thread's trail already; NULL for none */
	uint64_t ahead_walk;   /* if this is the trail's last walk */
};
extern US_HIDDEN _Thread_local struct heap_thread heap_thread __attribute__((tls_model("initial-exec")));

/* ---- Chance (heap_chance.c) ---- */

/* Makes a thread's random numbers its own. */
US_HIDDEN void heap_seed(struct heap_thread *t);

/* Bytes up to the next sample. */
US_HIDDEN int64_t heap_draw(struct heap_thread *t, uint64_t period);

/* What a recorded allocation of n bytes counts for. Each is recorded where the period is 0. */
struct heap_weight {
	uint64_t objects, bytes;
};
US_HIDDEN struct heap_weight heap_weigh(uint64_t n, uint64_t period);

/* ---- What is in use (heap_table.c) ---- */

/*
 * slot counts the recorded allocations in use whose addresses share it; 255 stays. Where there is 0, nothing is recorded. all: nearly every allocation
 * is, and the slots are not used.
 */
enum { HEAP_FILTER_BITS = 15 };
struct heap_filter {
	_Atomic uint8_t slot[1 << HEAP_FILTER_BITS];
	_Atomic uint8_t all;
	uint8_t unused[4095];
};
extern US_HIDDEN struct heap_filter heap_filter;

US_INLINE unsigned heap_filter_slot(uint64_t p)
{
	return (unsigned)((p >> 4) * 0x9e3779b97f4a7c15u >> (64 - HEAP_FILTER_BITS));
}

US_INLINE int heap_is_all(void)
{
	return us_unlikely(atomic_load_explicit(&heap_filter.all, memory_order_relaxed) != 0);
}

US_INLINE int heap_maybe_recorded(const void *p)
{
	return heap_is_all() || us_unlikely(atomic_load_explicit(&heap_filter.slot[heap_filter_slot((uint64_t)p)], memory_order_relaxed) != 0);
}

/* Before an allocation, when all are recorded: walks the stack, and asks for the memory that the recording reads. */
US_HIDDEN void heap_expect(const uint64_t *frame) __attribute__((noinline));

/*
 * An allocation of n bytes at p, after the thread's left went to 0 or below, by the function with that frame: on x86-64, the caller's rbp and the return
 * address. Keeps errno.
 */
US_HIDDEN void heap_allocated(void *p, uint64_t n, const uint64_t *frame) US_COLD;

/* Before p is given back. What it returns, heap_unfreed can put in again. Keeps errno. */
struct heap_freed {
	struct heap_stack *stack;
	uint64_t size;
};
US_HIDDEN struct heap_freed heap_free(void *p) __attribute__((noinline));
US_HIDDEN void heap_unfreed(void *p, struct heap_freed f) US_COLD;

/* Finds the functions behind the library; 0 while this thread does that. */
US_HIDDEN int heap_find(void) US_COLD;

/* Begins to record, if the environment asks for it, and not yet. */
US_HIDDEN void heap_begin(int foreign);

/* Modules may have changed: stacks from now on are not those from before. */
US_HIDDEN void heap_unloaded(void);

/* ---- Mappings (heap_maps.c), recorded in place of allocations ---- */

/* Whether this call, of a function that maps or unmaps memory, is recorded; then heap_maps_leave ends that, and errno is what it says. */
US_HIDDEN int heap_maps_enter(void);
US_HIDDEN void heap_maps_leave(int e);
US_HIDDEN void heap_lock(void);
US_HIDDEN void heap_unlock(void);

/* Under the lock. The stack of the caller, NULL if there is no room; what was mapped from a stack, or is not mapped any more; what was lost. */
US_HIDDEN struct heap_stack *heap_here(void) __attribute__((noinline));
US_HIDDEN void heap_count(struct heap_stack *s, uint64_t objects, uint64_t bytes);
US_HIDDEN void heap_discount(struct heap_stack *s, uint64_t objects, uint64_t bytes, int brief);
US_HIDDEN void heap_lost(void);

/* What the thread mapped last has its mark; the next one is for what it has just mapped. */
US_HIDDEN uint64_t heap_mark(void);
US_HIDDEN uint64_t heap_next_mark(void);

/* Begins to record; 0 for an error. Finds the functions. */
US_HIDDEN int heap_maps_open(void);
US_HIDDEN void heap_maps_find(void *(*find)(const char *));

/* ---- Probes (heap_probe.c) ---- */

/* How many listen to a probe. */
extern US_HIDDEN volatile uint16_t alloc_semaphore, free_semaphore;

/* An allocation of n bytes at p, which stands for weight bytes, and its end. */
US_HIDDEN void heap_probe_alloc(uint64_t p, uint64_t n, uint64_t weight) US_COLD;
US_HIDDEN void heap_probe_free(uint64_t p) US_COLD;

/* ---- The files (heap_file.c). Under the tables' lock. ---- */

struct heap_files {
	struct heap_chunk *chunk;
	uint64_t size; /* of it */
	uint32_t number;
	int32_t pid;
	uint64_t part;
	struct heap_process *process;
	uint64_t announced[8192 / 64 + 1]; /* modules, by index */
	char dir[HEAP_PATH];
};

extern US_HIDDEN struct heap_chunk *heap_chunks[HEAP_CHUNKS]; /* by their numbers */

/* The record at a place. */
US_INLINE void *heap_at(heap_ref r)
{
	return (char *)heap_chunks[r >> HEAP_REF_BITS] + (uint64_t)(r & ((1u << HEAP_REF_BITS) - 1)) * 8;
}

/* Opens the first chunk in a directory; 0 for an error. */
US_HIDDEN int heap_open(struct heap_files *f, const char *dir, uint64_t period);

/* Room for a record, which is to be filled before heap_wrote is called; NULL for none. */
US_HIDDEN void *heap_room(struct heap_files *f, uint32_t type, uint64_t size);
US_HIDDEN void heap_wrote(struct heap_files *f);

/* The place of what heap_room gave last. */
US_HIDDEN heap_ref heap_place(const struct heap_files *f, const void *record);

/* In a child that goes on to record what its parent began: what it writes is its own memory, and no file. */
US_HIDDEN void heap_left(struct heap_files *f);

/* The word of a frame with a return address; writes its module before. *m is the module of the frame before, and becomes this frame's. */
US_HIDDEN uint64_t heap_frame(struct heap_files *f, uint64_t pc, struct us_loaded **m);

/* System calls, which change errno. */
US_HIDDEN void *heap_map(uint64_t size);
US_HIDDEN uint64_t heap_clock(void);

#endif /* UNSPOOL_HEAP_H */
