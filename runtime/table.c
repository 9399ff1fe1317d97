/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c: compact tables out of the store, where package store puts them: the table (docs/TABLE.md), then the file's
 * name, the name's size, and a magic number. A file is named after the module's build ID and a hash of its unwind
 * information, and a link to it after the module's file; it is never changed, only replaced, so a mapping of it stays what
 * was checked. Behind the user's own directory are those of all users, which only root can change.
 */
#define _GNU_SOURCE
#include "core.h"
#include "unspool_table.h"
#include "packed.h"
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(UNSPOOL_ADDRESS == ((uint64_t)1 << US_SIGNED_BITS) - 1, "a signed return address keeps as many bits");

struct us_table {
	struct unspool_table t;
	struct us_wides wides;
};

/* ---- The checksum: CRC-32C ---- */

static uint32_t crc_table(uint32_t crc, const uint8_t *b, size_t n)
{
	static const uint32_t nibble[16] = {
		0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
		0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
	};

	for (size_t i = 0; i < n; i++) {
		crc ^= b[i];
		crc = crc >> 4 ^ nibble[crc & 15];
		crc = crc >> 4 ^ nibble[crc & 15];
	}
	return crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t crc_sse(uint32_t crc, const uint8_t *b, size_t n)
{
	uint64_t c = crc, w;

	for (; n >= 8; b += 8, n -= 8) {
		memcpy(&w, b, 8);
		c = __builtin_ia32_crc32di(c, w);
	}
	for (; n > 0; b++, n--)
		c = __builtin_ia32_crc32qi((uint32_t)c, *b);
	return (uint32_t)c;
}

static uint32_t crc(uint32_t c, const uint8_t *b, size_t n)
{
	return __builtin_cpu_supports("sse4.2") ? crc_sse(c, b, n) : crc_table(c, b, n);
}
#else
#define crc crc_table
#endif

/* ---- A table in memory ---- */

const struct us_table *us_table_open(const uint8_t *bytes, size_t size)
{
	struct us_table *t;
	struct unspool_table x;
	uint32_t sum;

	if (unspool_table_open(&x, bytes, size) != 0 || x.machine != MACHINE_ELF || x.rule_size != MACHINE(TABLE_RULE) || x.n_run != MACHINE(N_RUN) ||
	    x.n_saves != sizeof us_save_slot || x.save_scale != 8 || x.size < UNSPOOL_HEADER_SIZE + sizeof us_save_slot ||
	    memcmp(bytes + UNSPOOL_HEADER_SIZE, us_save_slot, sizeof us_save_slot))
		return NULL;
	sum = crc(~0u, bytes, UNSPOOL_OFF_HDR_CHECKSUM);
	sum = ~crc(sum, bytes + UNSPOOL_OFF_HDR_CHECKSUM + 4, x.size - UNSPOOL_OFF_HDR_CHECKSUM - 4);
	if (sum != unspool_table_u32(&x, UNSPOOL_OFF_HDR_CHECKSUM))
		return NULL;
	t = us_alloc(sizeof *t);
	if (!t)
		return NULL;
	t->t = x;
	if (x.wides <= x.size && x.exprs <= x.size) {
		t->wides.wides = bytes + x.wides;
		t->wides.wide_size = unspool_table_u32(&x, UNSPOOL_OFF_HDR_WIDE_SIZE);
		t->wides.exprs = bytes + x.exprs;
		t->wides.expr_size = unspool_table_u32(&x, UNSPOOL_OFF_HDR_EXPR_SIZE);
		if (t->wides.wide_size > x.size - x.wides || t->wides.expr_size > x.size - x.exprs)
			return NULL;
	}
	return t;
}

int us_table_rule(const struct us_table *t, uint64_t pc, struct us_rule *r)
{
	uint32_t id = unspool_table_find(&t->t, pc);
	uint64_t at = unspool_table_rule_at(&t->t, id);

	uint64_t words[MACHINE(TABLE_RULE) / 8];

	if (id == 0 || at == 0 || at > t->t.size || t->t.size - at < sizeof words)
		return US_NOT_FOUND;
	memcpy(words, t->t.bytes + at, sizeof words);
#if MACHINE(N_RUN)
	uint64_t unpacked[sizeof *r / 8];

	rule_unpack(words, unpacked);
	memcpy(r, unpacked, sizeof *r);
#else
	memcpy(r, words, sizeof *r);
#endif
	r->flags &= (uint16_t)~US_NATIVE;
	if (r->kind == US_KIND_WIDE)
		r->wide = &t->wides;
	else
		r->mask &= (us_saves)((1ull << MACHINE(N_SAVES)) - 1);
	return US_FOUND;
}

/* ---- The store ---- */

enum { TRAILER = 8 };

/* The user's own directory, opened; -1 if there is none that can be trusted. */
static int open_own(void)
{
	const char *dir = getenv("UNSPOOL_CACHE"), *base;
	char path[4096];
	struct stat st;
	int fd, n = 0;

	if (!dir || !*dir) {
		base = getenv("XDG_CACHE_HOME");
		if (base && *base)
			n = snprintf(path, sizeof path, "%s/unspool", base);
		else if ((base = getenv("HOME")) != NULL)
			n = snprintf(path, sizeof path, "%s/.cache/unspool", base);
		if (n <= 0 || n >= (int)sizeof path)
			return -1;
		dir = path;
	}
	fd = open(dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (fstat(fd, &st) != 0 || st.st_uid != geteuid() || st.st_mode & 022) {
		close(fd);
		return -1;
	}
	return fd;
}

/*
 * Whether only root can change an open directory: root owns it and all above it, and nobody else may write to it. Others may write to a directory
 * above it only where they cannot put another in its place. openShared in package store says the same.
 */
static int roots(int fd)
{
	struct stat st, up;
	int at = fd, next, ok;

	if (fstat(fd, &st) != 0)
		return 0;
	for (;;) {
		ok = st.st_uid == 0 && (!(st.st_mode & 022) || (at != fd && st.st_mode & S_ISVTX));
		next = ok ? openat(at, "..", O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
		if (at != fd)
			close(at);
		if (next < 0)
			return 0;
		at = next;
		ok = fstat(at, &up) == 0;
		if (!ok || (up.st_dev == st.st_dev && up.st_ino == st.st_ino)) { /* or it is / */
			close(at);
			return ok;
		}
		st = up;
	}
}

/* One directory of the store: an open descriptor, and who must own its files. */
struct shelf {
	int fd;
	uid_t owner;
};

enum { SHELVES = 8 }; /* at most, of which one is the user's own */

/* Opens the directories where files of the store are looked for, in their order. Returns how many can be trusted. */
static int open_shelves(struct shelf to[SHELVES])
{
	const char *list = secure_getenv(US_STORE_VAR);
	char path[4096];
	int n = 0, fd = open_own();

	if (fd >= 0)
		to[n++] = (struct shelf){fd, geteuid()};
	if (!list)
		list = US_STORE_DIRS;
	while (*list && n < SHELVES) {
		size_t len = strcspn(list, ":");

		if (*list == '/' && len < sizeof path) {
			memcpy(path, list, len);
			path[len] = 0;
			fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
			if (fd >= 0 && roots(fd))
				to[n++] = (struct shelf){fd, 0};
			else if (fd >= 0)
				close(fd);
		}
		list += len + (list[len] == ':');
	}
	return n;
}

/* Maps a table's file and checks all of it. */
static const void *load(int fd, const struct stat *st, const char *name)
{
	const struct us_table *t = NULL;
	struct unspool_table x;
	uint8_t *b;
	uint64_t end, n = strlen(name);

	if (st->st_size < TRAILER || st->st_size > UINT32_MAX)
		return NULL;
	b = mmap(NULL, (size_t)st->st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
	if (b == MAP_FAILED)
		return NULL;
	end = (uint64_t)st->st_size - TRAILER;
	x.bytes = b;
	x.size = (uint32_t)st->st_size;
	if (n <= end && unspool_table_u32(&x, end) == n && unspool_table_u32(&x, end + 4) == US_STORE_MAGIC && !memcmp(b + end - n, name, n))
		t = us_table_open(b, end - n);
	if (!t)
		munmap(b, (size_t)st->st_size);
	return t;
}

/* Where a link leads, if it is the name of a file of a module with this build ID. */
static int linked(int dir, const char *link, const uint8_t *id, size_t n, const char *ends, char name[256])
{
	size_t at = 0;
	ssize_t len = readlinkat(dir, link, name, 255);

	name[len > 0 ? len : 0] = 0;
	for (char hex[3]; at < 2 * n && (snprintf(hex, sizeof hex, "%02x", id[at / 2]), !memcmp(name + at, hex, 2)); at += 2)
		;
	return at == 2 * n && name[at] == '-' && !strchr(name, '/') && strlen(name) > strlen(ends) && !strcmp(name + strlen(name) - strlen(ends), ends);
}

const void *us_stored(const uint8_t *id, size_t n, const struct stat *of, const char *ending,
	const void *(*open)(int fd, const struct stat *st, const char *name))
{
	const void *found = NULL;
	char link[240], name[256], ends[64];
	struct shelf in[SHELVES];
	struct stat st;
	int shelves, fd, saved = errno;

	if (n == 0 || n > 64)
		return NULL;
	shelves = open_shelves(in);
	snprintf(ends, sizeof ends, ".%s", ending);
	snprintf(link, sizeof link, "at-%llx-%llx-%llx-%llx-%lx-%llx-%lx%s", (unsigned long long)of->st_dev, (unsigned long long)of->st_ino,
		 (unsigned long long)of->st_size, (unsigned long long)of->st_mtim.tv_sec, (long)of->st_mtim.tv_nsec,
		 (unsigned long long)of->st_ctim.tv_sec, (long)of->st_ctim.tv_nsec, ends);
	/* A link says which file is meant. The file may be in another directory: a user's link leads to a table of all users. */
	for (int k = 0; k < shelves && !found; k++) {
		if (!linked(in[k].fd, link, id, n, ends, name))
			continue;
		for (int i = 0; i < shelves && !found; i++) {
			fd = openat(in[i].fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
			if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == in[i].owner && !(in[i].owner == 0 && st.st_mode & 022))
				found = open(fd, &st, name);
			if (fd >= 0)
				close(fd);
		}
	}
	while (shelves > 0)
		close(in[--shelves].fd);
	errno = saved;
	return found;
}

const struct us_table *us_table_stored(const uint8_t *id, size_t n, const struct stat *st)
{
	char ending[16];

	snprintf(ending, sizeof ending, "%d", UNSPOOL_TABLE_VERSION);
	return us_stored(id, n, st, ending, load);
}
