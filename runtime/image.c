/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.c: what libunwind-ptrace and libunwind-coredump take from libunwind-x86_64 beside its interface: mapping the
 * file that an address of a process is in, and describing its .eh_frame_hdr as dwarf_search_unwind_table wants it. Not
 * for signal handlers.
 */
#define _GNU_SOURCE
#include "space.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A mapped file, which its user unmaps. */
struct image {
	uint8_t *bytes;
	size_t size;
};

/* What its users keep about the module at hand. */
struct elf_dyn_info {
	struct image image;
	unw_dyn_info_t cache, debug; /* of .eh_frame_hdr and of .debug_frame; format -1 for none */
};

/* The mapping of process pid that contains ip, of a file, out of /proc/PID/maps. */
static int find_mapping(int pid, uint64_t ip, unsigned long *lo, unsigned long *off, char *path, size_t size)
{
	char line[4096 + 128], name[64];
	int found = 0;
	FILE *f;

	snprintf(name, sizeof name, "/proc/%d/maps", pid);
	f = fopen(name, "re");
	if (!f)
		return 0;
	while (!found && fgets(line, sizeof line, f)) {
		unsigned long start, end, offset;
		int at = 0;

		if (sscanf(line, "%lx-%lx %*4s %lx %*s %*s %n", &start, &end, &offset, &at) != 3 || ip < start || ip >= end)
			continue;
		line[strcspn(line, "\n")] = 0;
		if (at == 0 || line[at] != '/')
			break;
		found = snprintf(path, size, "/proc/%d/root%s", pid, line + at) < (int)size;
		*lo = start;
		*off = offset;
	}
	fclose(f);
	return found;
}

US_API int U(get_elf_image)(struct image *to, int pid, unw_word_t ip, unsigned long *segbase, unsigned long *mapoff, char *path,
				  size_t size)
{
	char own[4096];
	struct stat st;
	void *p;
	int fd;

	if (!path) {
		path = own;
		size = sizeof own;
	}
	if (!find_mapping(pid, ip, segbase, mapoff, path, size))
		return -1;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(Elf64_Ehdr)) {
		close(fd);
		return -1;
	}
	p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return -1;
	*to = (struct image){p, (size_t)st.st_size};
	return 0;
}

/*
 * How far segment p lies from its link-time address, if file offset mapoff is mapped at segbase: by the rule of
 * libunwind-ptrace. Returns 0 if p is not what is mapped there.
 */
static int place(const Elf64_Phdr *p, uint64_t segbase, uint64_t mapoff, uint64_t page, uint64_t *bias)
{
	if (mapoff < (p->p_offset & -page) || mapoff >= p->p_offset + p->p_filesz)
		return 0;
	*bias = segbase - (p->p_vaddr - p->p_offset + mapoff);
	return 1;
}

/*
 * Describes the .eh_frame_hdr of the image, of which the part from file offset mapoff on is mapped at segbase. Returns 1,
 * 0 without one, or an error.
 *
 * libunwind-coredump says 0 for mapoff, whatever is mapped at segbase, which is where the mapping starts that has ip:
 * right only if the code is in the file's first segment. Where that cannot be, an executable segment that starts there
 * and has ip is taken, but not in strict mode. Pages are taken to have this system's size.
 */
US_API int U(dwarf_find_unwind_table)(struct elf_dyn_info *edi, unw_addr_space_t as, char *path, unw_word_t segbase,
					    unw_word_t mapoff, unw_word_t ip)
{
	const struct image *x = &edi->image;
	uint64_t page = getauxval(AT_PAGESZ), lo = UINT64_MAX, hi = 0, bias = 0, by_code = 0, hdr = 0, at = 0, room = 0, b;
	struct us_window w;
	struct us_frames f;
	Elf64_Ehdr e;
	Elf64_Phdr p;
	int placed = 0, has_ip = 0, coded = 0;

	(void)path;
	if (!x->bytes || x->size < sizeof e)
		return -UNW_ENOINFO;
	memcpy(&e, x->bytes, sizeof e);
	if (memcmp(e.e_ident, ELFMAG "\2\1", 6) || e.e_machine != MACHINE_ELF || e.e_phentsize != sizeof p || e.e_phoff > x->size ||
	    (uint64_t)e.e_phnum * sizeof p > x->size - e.e_phoff)
		return -UNW_ENOINFO;
	for (unsigned i = 0; i < e.e_phnum; i++) {
		memcpy(&p, x->bytes + e.e_phoff + i * sizeof p, sizeof p);
		if (p.p_type == PT_LOAD) {
			if (p.p_vaddr < lo)
				lo = p.p_vaddr;
			if (p.p_vaddr + p.p_memsz > hi)
				hi = p.p_vaddr + p.p_memsz;
			/* Of several segments in a page, the one that has ip. */
			if (place(&p, segbase, mapoff, page, &b) && !has_ip) {
				has_ip = p.p_flags & PF_X && ip - b - p.p_vaddr < p.p_memsz;
				if (!placed || has_ip)
					bias = b;
				placed = 1;
			}
			b = segbase - (p.p_vaddr & -page);
			if (p.p_flags & PF_X && ip - b - p.p_vaddr < p.p_memsz && !coded) {
				by_code = b;
				coded = 1;
			}
		} else if (p.p_type == PT_GNU_EH_FRAME && p.p_offset < x->size) {
			hdr = p.p_vaddr;
			at = p.p_offset;
			room = x->size - p.p_offset;
		}
	}
	if (!as->strict && !has_ip && coded && mapoff == 0) {
		bias = by_code;
		placed = 1;
	}
	if (!placed)
		return -UNW_ENOINFO;
	memset(&edi->cache, 0, sizeof edi->cache);
	edi->cache.format = -1;
	if (!hdr)
		return 0;
	w = (struct us_window){x->bytes + at, hdr, hdr + room, NULL, NULL};
	if (us_frames_open(&f, &w, hdr) != US_FOUND || f.n == 0)
		return 0;
	edi->cache.start_ip = lo + bias;
	edi->cache.end_ip = hi + bias;
	edi->cache.format = UNW_INFO_FORMAT_REMOTE_TABLE;
	edi->cache.u.rti.segbase = hdr + bias;
	edi->cache.u.rti.table_data = f.table + bias;
	edi->cache.u.rti.table_len = f.n * 8 / sizeof(unw_word_t);
	return ip >= edi->cache.start_ip && ip < edi->cache.end_ip;
}

US_API void U(get_exe_image_path)(char *path)
{
	strcpy(path, "/proc/self/exe");
}
