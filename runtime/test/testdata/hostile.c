/*
 * Walks in a process whose module is damaged: its ELF header, notes, .eh_frame_hdr and .eh_frame have random bytes.
 *
 *	hostile FILE ROUNDS
 */
#define _GNU_SOURCE
#include "abi.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unw_addr_space_t _Ux86_64_create_addr_space(unw_accessors_t *, int);
void _Ux86_64_destroy_addr_space(unw_addr_space_t);
int _Ux86_64_set_caching_policy(unw_addr_space_t, int);
int _Ux86_64_init_remote(unw_cursor_t *, unw_addr_space_t, void *);
int _Ux86_64_step(unw_cursor_t *);
int _Ux86_64_get_reg(unw_cursor_t *, int, unw_word_t *);
int _Ux86_64_get_proc_info(unw_cursor_t *, unw_proc_info_t *);
int _Ux86_64_dwarf_search_unwind_table(unw_addr_space_t, unw_word_t, unw_dyn_info_t *, unw_proc_info_t *, int, void *);

static uint8_t *image;
static uint64_t size, base = 0x7f1230000000, hdr, hdr_size, code_lo, code_hi, regs[17], stack[512];
static const uint64_t stack_lo = 0x7ffd00000000;

static int find(unw_addr_space_t as, unw_word_t ip, unw_proc_info_t *pi, int need, void *arg)
{
	unw_dyn_info_t di = {.start_ip = base + code_lo, .end_ip = base + code_hi, .format = UNW_INFO_FORMAT_REMOTE_TABLE};
	uint32_t n;

	if (ip < di.start_ip || ip >= di.end_ip)
		return -UNW_ENOINFO;
	memcpy(&n, image + hdr + 8, 4);
	di.u.rti.segbase = base + hdr;
	di.u.rti.table_data = base + hdr + 12;
	di.u.rti.table_len = n;
	return _Ux86_64_dwarf_search_unwind_table(as, ip, &di, pi, need, arg);
}

static int mem(unw_addr_space_t as, unw_word_t a, unw_word_t *v, int write, void *arg)
{
	(void)as;
	(void)arg;
	if (!write && a - base < size && size - (a - base) >= 8)
		memcpy(v, image + (a - base), 8);
	else if (!write && a - stack_lo < sizeof stack && sizeof stack - (a - stack_lo) >= 8)
		memcpy(v, (uint8_t *)stack + (a - stack_lo), 8);
	else
		return -UNW_EINVAL;
	return 0;
}

static int reg(unw_addr_space_t as, unw_regnum_t n, unw_word_t *v, int write, void *arg)
{
	(void)as;
	(void)arg;
	if (write || n < 0 || n > 16)
		return -UNW_EBADREG;
	*v = regs[n];
	return 0;
}

static int none(unw_addr_space_t as, unw_word_t *v, void *arg)
{
	(void)as;
	(void)v;
	(void)arg;
	return -UNW_ENOINFO;
}

static unw_accessors_t acc = {.find_proc_info = find, .get_dyn_info_list_addr = none, .access_mem = mem, .access_reg = reg};

static uint64_t some(void)
{
	uint64_t r = ((uint64_t)random() << 31) ^ (uint64_t)random();

	if (r % 4 == 0)
		return stack_lo + (r >> 8) % sizeof stack;
	if (r % 64 == 1)
		return r << 9;
	return base + code_lo + (r >> 8) % (code_hi - code_lo);
}

int main(int argc, char **argv)
{
	FILE *f = fopen(argc > 2 ? argv[1] : "/proc/self/exe", "rb");
	long rounds = argc > 2 ? atol(argv[2]) : 100, frames = 0;
	static uint8_t bytes[1 << 24];
	size_t n = f ? fread(bytes, 1, sizeof bytes, f) : 0;
	Elf64_Ehdr *e = (Elf64_Ehdr *)bytes;
	Elf64_Phdr *p = (Elf64_Phdr *)(bytes + e->e_phoff);
	uint8_t *sound;

	if (n < sizeof *e)
		return 2;
	for (int i = 0; i < e->e_phnum; i++)
		if (p[i].p_type == PT_LOAD && p[i].p_vaddr + p[i].p_memsz > size)
			size = p[i].p_vaddr + p[i].p_memsz;
	sound = calloc(1, size);
	image = malloc(size);
	for (int i = 0; i < e->e_phnum; i++) {
		if (p[i].p_type == PT_LOAD) {
			memcpy(sound + p[i].p_vaddr, bytes + p[i].p_offset, p[i].p_filesz);
			if (p[i].p_flags & PF_X) {
				code_lo = p[i].p_vaddr;
				code_hi = p[i].p_vaddr + p[i].p_memsz;
			}
		} else if (p[i].p_type == PT_GNU_EH_FRAME) {
			hdr = p[i].p_vaddr;
			hdr_size = p[i].p_memsz;
		}
	}
	for (long k = 0; k < rounds; k++) {
		unw_addr_space_t as = _Ux86_64_create_addr_space(&acc, 0);

		_Ux86_64_set_caching_policy(as, k % 3);
		memcpy(image, sound, size);
		for (int i = (int)(random() % 60); i > 0; i--) {
			uint64_t at = random() % 2 ? (uint64_t)random() % 0x400 : hdr + (uint64_t)random() % (6 * hdr_size);

			if (at < size)
				image[at] = (uint8_t)random();
		}
		for (int w = 0; w < 20; w++) {
			unw_proc_info_t pi;
			unw_cursor_t c;
			unw_word_t ip;

			for (int i = 0; i < 512; i++)
				stack[i] = some();
			for (int i = 0; i < 17; i++)
				regs[i] = some();
			regs[7] = stack_lo;
			_Ux86_64_init_remote(&c, as, NULL);
			for (int i = 0; i < 100; i++) {
				frames++;
				_Ux86_64_get_proc_info(&c, &pi);
				if (_Ux86_64_step(&c) <= 0)
					break;
				_Ux86_64_get_reg(&c, UNW_X86_64_RIP, &ip);
			}
		}
		_Ux86_64_destroy_addr_space(as);
		base += 0x1000;
	}
	free(sound);
	free(image);
	fclose(f);
	printf("%ld frames\n", frames);
	return 0;
}
