/* snap.h - what the drivers over other people's unwinders share: the stream of snapshots they read
 * from standard input, the address spaces it defines, and the answers they write.
 *
 * Everything is little-endian and a multiple of 8 bytes. A record is
 *
 *	u32 kind, u32 id, u64 size of what follows
 *
 *	SPACE   adds mappings to space id, which begins empty: u64 count, then for each
 *	        u64 lo, hi, offset, length of path; path, padded with zeros
 *	SAMPLE  of space id: u64 regs[17] by DWARF number, u64 stack base, u64 stack size; stack bytes, padded
 *	WALK    answer each sample since the last answer, in order:
 *	        u32 frames, u32 length of the reason for stopping; u64 pc[frames]; u8 exact[frames], padded;
 *	        the reason, padded
 *	TIME    walk the samples since the last answer id times over:
 *	        u64 frames of the last pass; u64 ns[id], walking alone
 *	FRESH   the same, but each eight samples' stacks are read, untimed, before they are walked: as they
 *	        are where a profiler has just read them
 *
 * Mappings are executable ones. Two mappings of one space never overlap. */
#ifndef SNAP_H
#define SNAP_H

#include <elf.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SNAP_SPACE = 1, SNAP_SAMPLE, SNAP_WALK, SNAP_TIME, SNAP_FRESH };
enum { NREGS = 17, REG_SP = 7, REG_IP = 16, MAX_DEPTH = 4096 };

/* A file is mapped once for all spaces. image is null if it is no x86-64 ELF file. */
struct file {
	char *path;
	const uint8_t *image;
	size_t size;
	const Elf64_Phdr *ph;
	unsigned nph;
	bool exec;        /* ET_EXEC */
	uint64_t hdr;     /* link-time address of .eh_frame_hdr; 0 if there is none */
	uint32_t hdr_len; /* entries in its table, if it has one of two 32-bit offsets from hdr */
	uint64_t hdr_table;
};

/* A module is a file at a bias; [lo, hi) spans its segments. */
struct module {
	uint64_t lo, hi, bias;
	struct file *file;
	bool told; /* for the peer: already reported */
};

struct mapping {
	uint64_t lo, hi;
	unsigned module; /* index, or NO_MODULE */
};
enum { NO_MODULE = ~0u };

struct space {
	uint32_t id;
	struct mapping *map; /* sorted */
	unsigned nmap;
	struct module *mod; /* in the order of their reporting */
	unsigned nmod;
	bool changed; /* since the peer last looked */
	void *peer;   /* what the driver keeps; null when closed */
	uint64_t used;
};

struct sample {
	struct space *space;
	const uint64_t *regs;
	uint64_t lo, size; /* the captured stack */
	const uint8_t *stack;
};

struct chain {
	unsigned n;
	const char *stop;
	uint64_t pc[MAX_DEPTH];
	uint8_t exact[MAX_DEPTH]; /* pc is not a return address */
};

/* A peer walks samples. open may be called again after close; both may be null. */
struct peer {
	unsigned max_open; /* spaces kept open; the least recently used is closed first */
	bool (*open)(struct space *);
	bool (*update)(struct space *); /* mappings were added since */
	void (*close)(struct space *);
	void (*walk)(const struct sample *, struct chain *);
};

/* Serves standard input until it ends. The result is main's. */
int snap_serve(const struct peer *);

/* Finds the mapping at an address. */
const struct mapping *snap_find(const struct space *, uint64_t addr);

/* Reads 8 bytes of the captured stack, else of the read-only segments of the modules. */
bool snap_read(const struct sample *, uint64_t addr, uint64_t *val);

uint64_t snap_now(void); /* ns */
_Noreturn void snap_die(const char *what);

#endif
