/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abi.h: the layouts and numbers of libunwind's interface, as programs that were compiled against it expect them. For x86-64, a test
 * compares them with Debian's headers.
 */
#ifndef UNSPOOL_ABI_H
#define UNSPOOL_ABI_H

#include <stddef.h>
#include <stdint.h>

/* Error codes; functions return them negated. */
enum {
	UNW_ESUCCESS = 0,
	UNW_EUNSPEC = 1,
	UNW_ENOMEM = 2,
	UNW_EBADREG = 3,
	UNW_EREADONLYREG = 4,
	UNW_ESTOPUNWIND = 5,
	UNW_EINVALIDIP = 6,
	UNW_EBADFRAME = 7,
	UNW_EINVAL = 8,
	UNW_EBADVERSION = 9,
	UNW_ENOINFO = 10,
};

enum { UNW_CACHE_NONE = 0, UNW_CACHE_GLOBAL = 1, UNW_CACHE_PER_THREAD = 2 };

enum { UNW_SLT_NONE = 0, UNW_SLT_MEMORY = 1, UNW_SLT_REG = 2 };

/* Formats of unw_dyn_info_t and unw_proc_info_t. */
enum {
	UNW_INFO_FORMAT_DYNAMIC = 0,
	UNW_INFO_FORMAT_TABLE = 1,
	UNW_INFO_FORMAT_REMOTE_TABLE = 2,
	UNW_INFO_FORMAT_ARM_EXIDX = 3,
	UNW_INFO_FORMAT_IP_OFFSET = 4,
};

/*
 * Registers have DWARF's numbers. Names of functions have the machine's: U(step) walks any process, UL(step) the own one.
 * On AArch64, programs that were compiled with libunwind 1.6 ask for x30 where they mean the program counter (UNW_REG_IP).
 */
#if defined(__x86_64__)
enum { UNW_X86_64_RIP = 16, UNW_X86_64_CFA = 17, UNW_NUM_REGS = 17, UNW_NUM_EH_REGS = 2, US_CURSOR_WORDS = 127 };
enum { UNW_PC = UNW_X86_64_RIP, UNW_CFA = UNW_X86_64_CFA, UNW_IP = UNW_X86_64_RIP };
#define U(name) _Ux86_64_##name
#define UL(name) _ULx86_64_##name
#elif defined(__aarch64__)
enum { UNW_AARCH64_X30 = 30, UNW_AARCH64_CFA = 31, UNW_AARCH64_PC = 32, UNW_NUM_REGS = 33, UNW_NUM_EH_REGS = 4, US_CURSOR_WORDS = 250 };
enum { UNW_PC = UNW_AARCH64_PC, UNW_CFA = UNW_AARCH64_CFA, UNW_IP = UNW_AARCH64_X30 };
#define U(name) _Uaarch64_##name
#define UL(name) _ULaarch64_##name
#endif

typedef uint64_t unw_word_t;
typedef int unw_regnum_t;
typedef long double unw_fpreg_t;
typedef struct unw_addr_space *unw_addr_space_t;

typedef struct {
	unw_word_t opaque[US_CURSOR_WORDS];
} unw_cursor_t;

typedef struct {
	unw_word_t start_ip, end_ip, lsda, handler, gp, flags;
	int format, unwind_info_size;
	void *unwind_info;
	char extra;
} unw_proc_info_t;

typedef struct {
	int type;
	union {
		unw_word_t addr;
		unw_regnum_t regnum;
	} u;
	char extra;
} unw_save_loc_t;

typedef struct unw_dyn_info {
	struct unw_dyn_info *next, *prev;
	unw_word_t start_ip, end_ip, gp;
	int32_t format, pad;
	unw_word_t load_offset;
	union {
		struct {
			unw_word_t name_ptr, segbase, table_len, table_data;
		} rti;
		struct {
			unw_word_t name_ptr, handler;
			uint32_t flags;
			int32_t pad0;
			void *regions;
		} pi;
	} u;
} unw_dyn_info_t;

/* What programs pass; later versions of libunwind have more behind it, which is not looked at. */
typedef struct {
	int (*find_proc_info)(unw_addr_space_t, unw_word_t, unw_proc_info_t *, int, void *);
	void (*put_unwind_info)(unw_addr_space_t, unw_proc_info_t *, void *);
	int (*get_dyn_info_list_addr)(unw_addr_space_t, unw_word_t *, void *);
	int (*access_mem)(unw_addr_space_t, unw_word_t, unw_word_t *, int, void *);
	int (*access_reg)(unw_addr_space_t, unw_regnum_t, unw_word_t *, int, void *);
	int (*access_fpreg)(unw_addr_space_t, unw_regnum_t, unw_fpreg_t *, int, void *);
	int (*resume)(unw_addr_space_t, unw_cursor_t *, void *);
	int (*get_proc_name)(unw_addr_space_t, unw_word_t, char *, size_t, unw_word_t *, void *);
} unw_accessors_t;

_Static_assert(sizeof(unw_proc_info_t) == 72, "libunwind's");
_Static_assert(sizeof(unw_save_loc_t) == 24, "libunwind's");
_Static_assert(sizeof(unw_dyn_info_t) == 88, "libunwind's");
_Static_assert(sizeof(unw_accessors_t) == 64, "libunwind's");
_Static_assert(sizeof(unw_fpreg_t) == 16, "libunwind's");

#define US_API __attribute__((visibility("default")))

#endif /* UNSPOOL_ABI_H */
