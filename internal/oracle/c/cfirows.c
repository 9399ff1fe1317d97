/* cfirows.c - the time that libdw takes to evaluate every row of an ELF file's .eh_frame.
 *
 *	cfirows FILE...	prints: rows, ns, file
 *
 * libdw evaluates a row for an address (dwarf_cfi_addrframe); the next row begins where that one ends.
 * The functions are found through the search table of .eh_frame_hdr (LSB Core 5.0, section 10.6.2); a
 * file without one is reported with 0 rows. gcc cfirows.c -ldw -lelf */
#define _GNU_SOURCE
#include <elfutils/libdw.h>
#include <fcntl.h>
#include <gelf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* starts returns the first address of each function, in order. */
static Dwarf_Addr *starts(Elf *elf, size_t *n)
{
	size_t nph;
	*n = 0;
	if (elf_getphdrnum(elf, &nph))
		return NULL;
	for (size_t i = 0; i < nph; i++) {
		GElf_Phdr ph;
		if (!gelf_getphdr(elf, (int)i, &ph) || ph.p_type != PT_GNU_EH_FRAME)
			continue;
		Elf_Data *d = elf_getdata_rawchunk(elf, (int64_t)ph.p_offset, ph.p_filesz, ELF_T_BYTE);
		const uint8_t *h = d ? d->d_buf : NULL;
		uint32_t count;
		if (!h || d->d_size < 12 || h[0] != 1 || (h[1] & 0x0f) != 0x0b || h[2] != 0x03 || h[3] != 0x3b)
			return NULL;
		memcpy(&count, h + 8, 4);
		if (count > (d->d_size - 12) / 8)
			return NULL;
		Dwarf_Addr *out = malloc((count + 1) * sizeof *out);
		for (uint32_t k = 0; out && k < count; k++) {
			int32_t off;
			memcpy(&off, h + 12 + 8 * k, 4);
			out[k] = ph.p_vaddr + (uint64_t)(int64_t)off;
		}
		*n = out ? count : 0;
		return out;
	}
	return NULL;
}

static void measure(const char *path)
{
	uint64_t rows = 0, t = 0;
	size_t n = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	Elf *elf = fd >= 0 ? elf_begin(fd, ELF_C_READ_MMAP, NULL) : NULL;
	if (elf) {
		t = now();
		Dwarf_CFI *cfi = dwarf_getcfi_elf(elf);
		Dwarf_Addr *start = cfi ? starts(elf, &n) : NULL;
		for (size_t i = 0; i < n; i++) {
			Dwarf_Addr a = start[i], next = i + 1 < n ? start[i + 1] : UINT64_MAX;
			while (a < next) {
				Dwarf_Frame *f;
				Dwarf_Addr lo, hi;
				bool signal;
				if (dwarf_cfi_addrframe(cfi, a, &f))
					break;
				int bad = dwarf_frame_info(f, &lo, &hi, &signal) < 0 || hi <= a;
				free(f);
				if (bad)
					break;
				rows++;
				a = hi;
			}
		}
		free(start);
		t = now() - t;
		if (cfi)
			dwarf_cfi_end(cfi);
		elf_end(elf);
	}
	if (fd >= 0)
		close(fd);
	printf("%llu %llu %s\n", (unsigned long long)rows, (unsigned long long)t, path);
}

int main(int argc, char **argv)
{
	elf_version(EV_CURRENT);
	for (int i = 1; i < argc; i++)
		measure(argv[i]);
	return 0;
}
