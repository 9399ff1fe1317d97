/*
 * The drop-in for any process, for AArch64, on a process that is made up: it has a library mapped as systems with pages of 4, 16 and 64 KiB map
 * it. Arguments: the library, the link-time address of an instruction behind which its function has no frame, and the size of a page. Says what
 * is wrong.
 */
#include "space.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BIAS 0xffff80000000ull  /* of the library */
#define STALE 0xfffe80000000ull /* of another mapping of its file, which a caller takes for it */

static uint8_t file[1 << 20];
static size_t size;
static Elf64_Phdr ph[32];
static unsigned n;
static uint64_t regs[US_SLOTS], map_lo, map_hi, hdr, page;
static int wrong;

#define IS(what, got, want) \
	do { \
		unsigned long long g = (got), w = (want); \
		if (g != w) { \
			printf("%s: %#llx, not %#llx\n", what, g, w); \
			wrong = 1; \
		} \
	} while (0)

struct elf_dyn_info { /* image.c's */
	uint8_t *bytes;
	size_t size;
	unw_dyn_info_t cache, debug;
};

unw_addr_space_t U(create_addr_space)(unw_accessors_t *, int);
int U(init_remote)(unw_cursor_t *, unw_addr_space_t, void *);
int U(step)(unw_cursor_t *);
int U(get_reg)(unw_cursor_t *, int, unw_word_t *);
int U(dwarf_search_unwind_table)(unw_addr_space_t, unw_word_t, unw_dyn_info_t *, unw_proc_info_t *, int, void *);
int U(dwarf_find_unwind_table)(struct elf_dyn_info *, unw_addr_space_t, char *, unw_word_t, unw_word_t, unw_word_t);

/* In the place of libc's: what the drop-in takes for the size of this system's pages. */
unsigned long getauxval(unsigned long type)
{
	return type == AT_PAGESZ ? page : 0;
}

static int find_proc_info(unw_addr_space_t as, unw_word_t ip, unw_proc_info_t *pi, int need, void *arg)
{
	unw_dyn_info_t di = {.start_ip = map_lo, .end_ip = map_hi, .format = UNW_INFO_FORMAT_REMOTE_TABLE};

	if (ip - map_lo >= map_hi - map_lo)
		return -UNW_ENOINFO;
	di.u.rti.segbase = hdr + STALE;
	return U(dwarf_search_unwind_table)(as, ip, &di, pi, need, arg);
}

static int no_list(unw_addr_space_t as, unw_word_t *to, void *arg)
{
	(void)as, (void)to, (void)arg;
	return -UNW_ENOINFO;
}

static int access_mem(unw_addr_space_t as, unw_word_t addr, unw_word_t *v, int write, void *arg)
{
	uint64_t at = addr - (addr >= BIAS ? BIAS : STALE);

	(void)as, (void)arg, (void)write;
	for (unsigned i = 0; i < n; i++)
		if (ph[i].p_type == PT_LOAD && at - ph[i].p_vaddr + 8 <= ph[i].p_filesz) {
			memcpy(v, file + ph[i].p_offset + (at - ph[i].p_vaddr), 8);
			return 0;
		}
	return -UNW_EINVAL;
}

static int access_reg(unw_addr_space_t as, unw_regnum_t i, unw_word_t *v, int write, void *arg)
{
	(void)as, (void)arg, (void)write;
	if (i < 0 || i >= US_SLOTS)
		return -UNW_EBADREG;
	*v = regs[i];
	return 0;
}

int main(int argc, char **argv)
{
	unw_accessors_t acc = {.find_proc_info = find_proc_info, .get_dyn_info_list_addr = no_list, .access_mem = access_mem, .access_reg = access_reg};
	uint64_t at = argc == 4 ? strtoull(argv[2], NULL, 16) : 0;
	FILE *f = argc == 4 ? fopen(argv[1], "r") : NULL;
	Elf64_Phdr *text = NULL;
	unw_word_t pc = 0;
	unw_cursor_t c;
	Elf64_Ehdr e;

	if (!f || (size = fread(file, 1, sizeof file, f)) < sizeof e)
		return 2;
	memcpy(&e, file, sizeof e);
	n = e.e_phnum;
	memcpy(ph, file + e.e_phoff, n * sizeof ph[0]);
	for (unsigned i = 0; i < n; i++) {
		if (ph[i].p_type == PT_GNU_EH_FRAME)
			hdr = ph[i].p_vaddr;
		if (ph[i].p_type == PT_LOAD && ph[i].p_flags & PF_X)
			text = &ph[i];
	}
	if (!text || text->p_offset % 65536 == 0)
		return 3;
	page = strtoull(argv[3], NULL, 10);
	map_lo = (text->p_vaddr + BIAS) & -page; /* as binfmt_elf and the dynamic linker do */
	map_hi = (text->p_vaddr + text->p_filesz + BIAS + page - 1) & -page;
	for (unsigned core = 0; core < 2; core++) {
		unw_addr_space_t as = U(create_addr_space)(&acc, 0);
		struct elf_dyn_info edi = {.bytes = file, .size = size};

		printf("pages of %llu, %s: ", (unsigned long long)page, core ? "libunwind-coredump" : "libunwind-ptrace");
		IS("find_unwind_table", U(dwarf_find_unwind_table)(&edi, as, argv[1], map_lo, core ? 0 : text->p_offset & -page, at + BIAS), 1);
		IS(".eh_frame_hdr", edi.cache.u.rti.segbase, hdr + BIAS);
		regs[US_PC] = at + BIAS;
		regs[US_SP] = 0xfffff0000000;
		regs[30] = at + BIAS + 4;
		IS("init", U(init_remote)(&c, as, NULL), 0);
		IS("step", U(step)(&c), 1);
		U(get_reg)(&c, UNW_PC, &pc);
		IS("pc", pc, at + BIAS + 4);
		printf("\n");
	}
	return wrong;
}
