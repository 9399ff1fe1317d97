/* SPDX-License-Identifier: Apache-2.0 */
/*
 * eh_elf_file.h: one eh_elf file, checked and loaded, and what its code takes and returns: docs/EH_ELF.md. It needs no map of a
 * process: whoever knows the module of an address calls the file's functions. eh_elf.h includes it, and walks.
 *
 * C11 or C++17, gcc or clang, Linux on x86-64 or AArch64. All functions are inline; there is nothing to link. Include this file or eh_elf.h
 * first, or define _GNU_SOURCE.
 */
#ifndef UNSPOOL_EH_ELF_FILE_H
#define UNSPOOL_EH_ELF_FILE_H

#if !(defined __x86_64__ || defined __aarch64__ && defined __AARCH64EL__) || !defined __LP64__ || !defined __linux__
#error "eh_elf files hold machine code for Linux on x86-64 or AArch64"
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#ifdef __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#ifndef __USE_GNU
#error "define _GNU_SOURCE before the first #include, or include eh_elf.h first"
#endif

#ifdef __cplusplus
#define EH_ELF_ASSERT static_assert
extern "C" {
#else
#define EH_ELF_ASSERT _Static_assert
#endif

/* ---- Memory and outcomes ---- */

/*
 * A frame's registers, each with its location. Slot i is lost if known lacks bit i; else at address val[i] if in_mem has
 * the bit; else in the snapshot's register val[i] if in_reg has it; else it is val[i]. x86-64: slots 0 to 15 are the registers
 * by their DWARF numbers (rax rdx rcx rbx rsi rdi rbp rsp r8..r15), 16 is the return address. AArch64: slots 0 to 30 are x0 to x30,
 * 31 is sp, 35 to 42 are the low halves of v8 to v15. What lies in slots that are not known, and above, does not matter and need not be
 * set.
 */
#if !defined UNSPOOL_STATE_DEFINED && !(defined UNSPOOL_TABLE_H && defined UNSPOOL_LOAD)
struct unspool_state {
	uint64_t pc;  /* of this frame: after a step, the return address */
	uint64_t cfa; /* of the frame that was stepped out of */
	uint64_t known, in_mem, in_reg;
	uint64_t val[64];
	uint64_t snap[64]; /* the snapshot's registers; a step does not change them */
	uint64_t fault;    /* the address that could not be read */
};
#endif

#ifndef UNSPOOL_STATE_DEFINED
#define UNSPOOL_STATE_DEFINED

/* Memory for files of the kind callback. Nonzero: *value is what was read. */
struct unspool_reader {
	int (*read8)(void *ctx, uint64_t addr, uint64_t *value);
	void *ctx;
#ifdef __aarch64__
	uint64_t addresses; /* the bits of a signed return address that are its address; 0: the low 48 */
#endif
};

struct unspool_word {
	uint64_t addr, value;
	uint64_t ok; /* zero: it is known that it cannot be read */
};

/* Memory for files of the kind slice: a copy of some, and single words outside of it. */
struct unspool_slice {
	uint64_t lo, size; /* the addresses that are in bytes: lo to lo+size */
	const unsigned char *bytes;
	const struct unspool_word *words; /* in any order */
	uint64_t n_words;
	uint64_t more; /* nonzero: a word that is in neither ends the step with EH_ELF_MISSING; zero: it is unreadable */
#ifdef __aarch64__
	uint64_t addresses; /* as a reader's */
#endif
};
#endif

enum { /* slots with a part of their own */
#ifdef __x86_64__
	EH_ELF_FP = 6,
	EH_ELF_SP = 7,
	EH_ELF_RA = 16,
	EH_ELF_NUM_SLOTS = 17,
	EH_ELF_MACHINE = EM_X86_64,
#else
	EH_ELF_FP = 29,
	EH_ELF_RA = 30, /* the link register */
	EH_ELF_SP = 31,
	EH_ELF_NUM_SLOTS = 43,
	EH_ELF_MACHINE = EM_AARCH64,
#endif
};

EH_ELF_ASSERT(offsetof(struct unspool_state, pc) == 0, "unspool_state");
EH_ELF_ASSERT(offsetof(struct unspool_state, cfa) == 8, "unspool_state");
EH_ELF_ASSERT(offsetof(struct unspool_state, known) == 16, "unspool_state");
EH_ELF_ASSERT(offsetof(struct unspool_state, in_mem) == 24, "unspool_state");
EH_ELF_ASSERT(offsetof(struct unspool_state, in_reg) == 32, "unspool_state");
EH_ELF_ASSERT(offsetof(struct unspool_state, val) == 40, "unspool_state");
EH_ELF_ASSERT(offsetof(struct unspool_state, snap) == 552, "unspool_state");
EH_ELF_ASSERT(offsetof(struct unspool_state, fault) == 1064, "unspool_state");
EH_ELF_ASSERT(sizeof(struct unspool_state) == 1072, "unspool_state");
EH_ELF_ASSERT(offsetof(struct unspool_reader, ctx) == 8, "unspool_reader");
EH_ELF_ASSERT(offsetof(struct unspool_word, ok) == 16 && sizeof(struct unspool_word) == 24, "unspool_word");
EH_ELF_ASSERT(offsetof(struct unspool_slice, bytes) == 16, "unspool_slice");
EH_ELF_ASSERT(offsetof(struct unspool_slice, words) == 24, "unspool_slice");
EH_ELF_ASSERT(offsetof(struct unspool_slice, n_words) == 32, "unspool_slice");
EH_ELF_ASSERT(offsetof(struct unspool_slice, more) == 40, "unspool_slice");
#ifdef __aarch64__
EH_ELF_ASSERT(offsetof(struct unspool_reader, addresses) == 16 && offsetof(struct unspool_slice, addresses) == 48, "addresses");
#endif

/* How a file's code reads memory. */
enum eh_elf_deref {
	EH_ELF_SELF = 0,     /* plain loads in this process; the mem argument is ignored. For stacks that are trusted */
	EH_ELF_CALLBACK = 1, /* mem is a struct unspool_reader */
	EH_ELF_SLICE = 2,    /* mem is a struct unspool_slice */
};

/*
 * What a step comes to, and why a walk ended. The first seven come from the emitted code, which leaves the state as it was
 * but for fault unless it returns EH_ELF_OK; the others from eh_elf_next, and then the state has moved on.
 */
enum eh_elf_outcome {
	EH_ELF_OK = 0,
	EH_ELF_OUTERMOST = 1,     /* whole: there is no caller */
	EH_ELF_NO_INFO = 2,       /* no information at the pc, or no file for its module */
	EH_ELF_LOST_REGISTER = 3, /* the CFA or the return address needs a register that is lost */
	EH_ELF_UNREADABLE = 4,    /* or memory that cannot be read: fault */
	EH_ELF_BAD_EXPR = 5,      /* or an expression that is ill-formed or does not end */
	EH_ELF_MISSING = 6,       /* slice, more is set: fault is in neither part. Add it to the words and go on */
	EH_ELF_BAD_CFA = 7,       /* the CFA does not move up: the stack is damaged */
	EH_ELF_BAD_RETURN = 8,    /* the return address is in no module: the stack is damaged, or the code was made at run time */
	EH_ELF_DEPTH_LIMIT = 9,
};

#define EH_ELF_SIGNAL 0x100 /* set in what apply and step return when they left a signal frame: the pc is exact */

typedef uint32_t eh_elf_find_fn(uint64_t pc);                                           /* 0: no information */
typedef int eh_elf_apply_fn(struct unspool_state *s, const void *mem, uint32_t rule);   /* outcome | EH_ELF_SIGNAL */
typedef int eh_elf_step_fn(struct unspool_state *s, const void *mem, uint64_t pc);      /* find, and apply */

/* ---- A file ---- */

enum { EH_ELF_VERSION = 1, EH_ELF_MAX_ID = 128 };

enum eh_elf_layout { EH_ELF_PAGE = 0, EH_ELF_TREE = 1, EH_ELF_INLINE = 2 };

/* The note with the owner "unspool" and the type 1. Offsets are those in the file. */
struct eh_elf_info {
	uint16_t version;
	uint8_t layout, deref;
	uint32_t machine;           /* e_machine of the module */
	uint32_t size;              /* of the file, in bytes */
	uint32_t checksum;          /* CRC-32C of all bytes, these four being zero */
	uint32_t find, apply, step; /* entry points; 0: there is none */
	uint32_t rules, n_rules;    /* u32 each: where the rule's code is; bit 31: a signal frame's */
	uint32_t text_lo, text_hi;
	uint32_t zero;
	uint64_t lo, hi; /* link-time addresses that are covered */
};

EH_ELF_ASSERT(offsetof(struct eh_elf_info, checksum) == 12, "eh_elf_info");
EH_ELF_ASSERT(offsetof(struct eh_elf_info, find) == 16, "eh_elf_info");
EH_ELF_ASSERT(offsetof(struct eh_elf_info, rules) == 28, "eh_elf_info");
EH_ELF_ASSERT(offsetof(struct eh_elf_info, lo) == 48 && sizeof(struct eh_elf_info) == 64, "eh_elf_info");

/* A loaded file. Addresses given to find and step are link-time addresses of its module. Pure code: any thread may call it. */
struct eh_elf {
	const unsigned char *base; /* the file, readable and executable; NULL: none */
	eh_elf_find_fn *find;      /* NULL in the layout inline, as is apply */
	eh_elf_apply_fn *apply;
	eh_elf_step_fn *step;
	struct eh_elf_info info;
	char id[EH_ELF_MAX_ID + 1]; /* the module's build ID, in hex */
};

/* Why a file was refused. */
enum eh_elf_error {
	EH_ELF_E_SYSTEM = -1,    /* a system call: errno says why */
	EH_ELF_E_FILE = -2,      /* not a regular file, or of absurd size */
	EH_ELF_E_OWNER = -3,     /* others than the user and root could have written it */
	EH_ELF_E_FORMAT = -4,    /* not an eh_elf file */
	EH_ELF_E_VERSION = -5,   /* of another version */
	EH_ELF_E_SIZE = -6,      /* truncated, or something was appended */
	EH_ELF_E_CHECKSUM = -7,  /* damaged */
	EH_ELF_E_MALFORMED = -8, /* a part lies outside of the file */
	EH_ELF_E_ID = -9,        /* made for another module, or not a name that a file can have */
	EH_ELF_E_DEREF = -10,    /* made for another kind of memory */
	EH_ELF_E_FULL = -11,     /* more modules than there is room for */
	EH_ELF_E_OVERLAP = -12,  /* a module lies where another is */
	EH_ELF_E_NO_ID = -13,    /* the module has no build ID */
};

static inline const char *eh_elf_strerror(int e)
{
	switch (e) {
	case 0: return "no error";
	case EH_ELF_E_SYSTEM: return "a system call did not succeed: see errno";
	case EH_ELF_E_FILE: return "not a regular file of a size that can be";
	case EH_ELF_E_OWNER: return "others than you and root can write this code: chown it, or chmod go-w";
	case EH_ELF_E_FORMAT: return "not an eh_elf file";
	case EH_ELF_E_VERSION: return "an eh_elf file of another version";
	case EH_ELF_E_SIZE: return "the size is not what the file says";
	case EH_ELF_E_CHECKSUM: return "the checksum is wrong: the file is damaged";
	case EH_ELF_E_MALFORMED: return "a part lies outside of the file";
	case EH_ELF_E_ID: return "made for another module";
	case EH_ELF_E_DEREF: return "made for another kind of memory";
	case EH_ELF_E_FULL: return "more modules than there is room for";
	case EH_ELF_E_OVERLAP: return "a module lies where another is";
	case EH_ELF_E_NO_ID: return "the module has no build ID";
	}
	return e > 0 ? "no error" : "unknown error";
}

/* CRC-32C (Castagnoli) of n bytes, behind those of which crc is. Eight at a time where the processor can. */
static inline uint32_t eh_elf_crc32c(uint32_t crc, const unsigned char *p, size_t n)
{
	uint32_t table[16], i, k;
#ifdef __x86_64__
	uint32_t eax = 1, ebx, ecx = 0, edx;
	uint64_t c = ~crc, word;

	__asm__("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
	if (ecx >> 20 & 1) { /* SSE 4.2 */
		for (; n >= 8; n -= 8, p += 8) {
			memcpy(&word, p, 8);
			__asm__("crc32q %1, %0" : "+r"(c) : "rm"(word));
		}
		for (; n > 0; n--, p++)
			__asm__("crc32b %1, %0" : "+r"(c) : "rm"(*p));
		return ~(uint32_t)c;
	}
#else
	if (getauxval(AT_HWCAP) & HWCAP_CRC32) {
		uint64_t word;

		crc = ~crc;
		for (; n >= 8; n -= 8, p += 8) {
			memcpy(&word, p, 8);
			__asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %1" : "+r"(crc) : "r"(word));
		}
		for (; n > 0; n--, p++)
			__asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)*p));
		return ~crc;
	}
#endif
	for (i = 0; i < 16; i++) {
		table[i] = i;
		for (k = 0; k < 4; k++)
			table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0x82f63b78u : 0);
	}
	crc = ~crc;
	for (; n > 0; n--, p++) {
		crc = crc >> 4 ^ table[(crc ^ *p) & 15];
		crc = crc >> 4 ^ table[(crc ^ *p >> 4) & 15];
	}
	return ~crc;
}

static inline uint32_t eh_elf_u32(const unsigned char *p)
{
	uint32_t v;

	memcpy(&v, p, 4);
	return v;
}

/*
 * Finds a note among those in [at, end) and returns its contents, or NULL. Nothing outside is looked at. at is aligned as the
 * notes are: to 4.
 */
static inline const unsigned char *eh_elf_note(const unsigned char *at, const unsigned char *end, const char *owner,
	uint32_t type, uint32_t *size)
{
	while (end - at >= 12) {
		uint64_t owner_size = eh_elf_u32(at), desc_size = eh_elf_u32(at + 4);
		uint64_t desc = 12 + ((owner_size + 3) & ~(uint64_t)3), left = (uint64_t)(end - at);

		if (desc > left || desc_size > left - desc)
			return NULL;
		if (eh_elf_u32(at + 8) == type && owner_size == strlen(owner) + 1 && memcmp(at + 12, owner, owner_size) == 0) {
			*size = (uint32_t)desc_size;
			return at + desc;
		}
		desc += (desc_size + 3) & ~(uint64_t)3;
		at += desc < left ? desc : left;
	}
	return NULL;
}

/* Fills f from a file that is mapped, after checking every offset that is followed later. */
static inline int eh_elf_check(const unsigned char *b, uint64_t size, struct eh_elf *f)
{
	static const unsigned char zero[4] = {0, 0, 0, 0};
	const unsigned char *notes = NULL, *end = NULL, *info, *id;
	struct eh_elf_info in;
	uint32_t info_size = 0, id_size = 0, crc, i;
	uint64_t at;
	Elf64_Ehdr h;

	if (size < sizeof h)
		return EH_ELF_E_FORMAT;
	memcpy(&h, b, sizeof h);
	if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_ident[EI_DATA] != ELFDATA2LSB)
		return EH_ELF_E_FORMAT;
	for (i = 0; i < h.e_phnum; i++) {
		Elf64_Phdr p;

		at = h.e_phoff + (uint64_t)i * sizeof p;
		if (h.e_phoff > size || at > size || size - at < sizeof p)
			return EH_ELF_E_FORMAT;
		memcpy(&p, b + at, sizeof p);
		if (p.p_type != PT_NOTE)
			continue;
		if (p.p_offset > size || p.p_filesz > size - p.p_offset)
			return EH_ELF_E_FORMAT;
		notes = b + p.p_offset;
		end = notes + p.p_filesz;
	}
	if (notes == NULL)
		return EH_ELF_E_FORMAT;
	info = eh_elf_note(notes, end, "unspool", 1, &info_size);
	id = eh_elf_note(notes, end, "unspool", 2, &id_size);
	if (info == NULL || info_size < 2)
		return EH_ELF_E_FORMAT;
	if ((info[0] | info[1] << 8) != EH_ELF_VERSION)
		return EH_ELF_E_VERSION;
	if (info_size != sizeof in)
		return EH_ELF_E_FORMAT;
	memcpy(&in, info, sizeof in);
	if (in.size != size)
		return EH_ELF_E_SIZE;
	at = (uint64_t)(info - b) + offsetof(struct eh_elf_info, checksum);
	crc = eh_elf_crc32c(0, b, at);
	crc = eh_elf_crc32c(crc, zero, 4);
	if (eh_elf_crc32c(crc, b + at + 4, size - at - 4) != in.checksum)
		return EH_ELF_E_CHECKSUM;

	if (in.machine != EH_ELF_MACHINE || in.layout > EH_ELF_INLINE || in.deref > EH_ELF_SLICE || in.step == 0 ||
	    (in.layout == EH_ELF_INLINE) != (in.find == 0) || (in.find == 0) != (in.apply == 0))
		return EH_ELF_E_MALFORMED;
	if (in.text_lo > in.text_hi || in.text_hi > size || in.rules + 4 * (uint64_t)in.n_rules > size)
		return EH_ELF_E_MALFORMED;
	{
		const uint32_t entries[3] = {in.find, in.apply, in.step};

		for (i = 0; i < 3; i++)
			if (entries[i] != 0 && (entries[i] < in.text_lo || entries[i] >= in.text_hi))
				return EH_ELF_E_MALFORMED;
	}
	for (i = 0; i < in.n_rules; i++) {
		uint32_t rule = eh_elf_u32(b + in.rules + 4 * (uint64_t)i) & 0x7fffffff;

		if (rule < in.text_lo || rule >= in.text_hi)
			return EH_ELF_E_MALFORMED;
	}
	if (id == NULL || id_size > EH_ELF_MAX_ID || memchr(id, 0, id_size) != NULL)
		return EH_ELF_E_MALFORMED;

	memset(f, 0, sizeof *f);
	f->base = b;
	f->info = in;
	memcpy(f->id, id, id_size);
	if (in.find != 0) {
		f->find = (eh_elf_find_fn *)(uintptr_t)(b + in.find);
		f->apply = (eh_elf_apply_fn *)(uintptr_t)(b + in.apply);
	}
	f->step = (eh_elf_step_fn *)(uintptr_t)(b + in.step);
	return 0;
}

/*
 * Loads a file: maps it readable and executable, never writable. A file that is damaged, or that others than the user and
 * root could have written, is refused: its code is going to be run. Returns 0, or an eh_elf_error, and then f holds
 * nothing. A loaded file may be replaced by renaming another over it, but must not be truncated.
 */
static inline int eh_elf_open(const char *path, struct eh_elf *f)
{
	int fd, e, saved;
	struct stat st;
	void *m;

	memset(f, 0, sizeof *f);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return EH_ELF_E_SYSTEM;
	m = MAP_FAILED;
	if (fstat(fd, &st) != 0) {
		e = EH_ELF_E_SYSTEM;
	} else if (!S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(Elf64_Ehdr) || st.st_size > 1 << 30) {
		e = EH_ELF_E_FILE;
	} else if ((st.st_uid != 0 && st.st_uid != geteuid()) || (st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
		e = EH_ELF_E_OWNER;
	} else {
		m = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_POPULATE, fd, 0);
		e = m == MAP_FAILED ? EH_ELF_E_SYSTEM : eh_elf_check((const unsigned char *)m, (uint64_t)st.st_size, f);
	}
	saved = errno;
	if (e != 0 && m != MAP_FAILED)
		munmap(m, (size_t)st.st_size);
	close(fd);
	errno = saved;
	return e;
}

/* Unloads a file, which nobody may be using. */
static inline void eh_elf_close(struct eh_elf *f)
{
	if (f->base != NULL)
		munmap((void *)(uintptr_t)f->base, f->info.size);
	memset(f, 0, sizeof *f);
}

/* Loads DIR/ID.eh_elf.so, which must be made for that module. An ID has no characters but 0-9, a-z and '-'. */
static inline int eh_elf_open_id(const char *dir, const char *id, struct eh_elf *f)
{
	char path[PATH_MAX];
	size_t n = strspn(id, "0123456789abcdefghijklmnopqrstuvwxyz-");
	int e;

	memset(f, 0, sizeof *f);
	if (n == 0 || n > EH_ELF_MAX_ID || id[n] != 0)
		return EH_ELF_E_ID;
	e = snprintf(path, sizeof path, "%s/%s.eh_elf.so", dir, id);
	if (e < 0 || (size_t)e >= sizeof path) {
		errno = ENAMETOOLONG;
		return EH_ELF_E_SYSTEM;
	}
	e = eh_elf_open(path, f);
	if (e == 0 && strcmp(f->id, id) != 0) {
		eh_elf_close(f);
		e = EH_ELF_E_ID;
	}
	return e;
}

#ifdef __cplusplus
}
#endif
#endif /* UNSPOOL_EH_ELF_FILE_H */
