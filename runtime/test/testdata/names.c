/*
 * Prints the names that libunwind has for functions of this program, of libraries, and of a shared object that is loaded:
 *
 *	names PLUGIN
 *	names -vdso
 *
 * The second compares the names in the vDSO with the symbols that it has; 0 is returned if they are the same.
 */
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include <libunwind.h>
#include <dlfcn.h>
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#define NOINLINE __attribute__((noinline))

NOINLINE static int hidden_function(int n)
{
	__asm__ volatile("nop; nop; nop");
	return n + 1;
}

NOINLINE int global_function(int n)
{
	__asm__ volatile("nop; nop; nop");
	return n + 2;
}

__attribute__((weak)) int weak_function(int n)
{
	__asm__ volatile("nop; nop; nop");
	return n + 3;
}

static int name_at(uint64_t pc, int exact, char *name, size_t size, unw_word_t *off)
{
	unw_context_t uc;
	unw_cursor_t c;

	unw_getcontext(&uc);
	uc.uc_mcontext.gregs[16] = (long long)pc;
	unw_init_local2(&c, &uc, exact ? UNW_INIT_SIGNAL_FRAME : 0);
	return unw_get_proc_name(&c, name, size, off);
}

static void print(const char *what, uint64_t pc)
{
	for (unsigned i = 0; i < 4; i++) {
		unw_word_t off = 0;
		char name[64] = "";
		int r = name_at(pc + i / 2, i & 1, name, i < 2 ? 64 : 6, &off);

		/* Of a return address whose function's name is cut off, Debian's library says one less. */
		printf("%s+%u %s: %d %s+%lu\n", what, i / 2, i & 1 ? "exact" : "return", r,
		       r == 0 || r == -UNW_ENOMEM ? name : "", r ? 0 : (unsigned long)off);
	}
}

static int vdso(void)
{
	uint64_t base = getauxval(AT_SYSINFO_EHDR), bias = base, n = 0, strings = 0, symbols = 0;
	Elf64_Ehdr *e = (void *)base;
	Elf64_Phdr *p = (void *)(base + e->e_phoff);
	Elf64_Shdr *s = (void *)(base + e->e_shoff);
	int same = 0;

	for (unsigned i = 0; i < e->e_phnum; i++)
		if (p[i].p_type == PT_LOAD && p[i].p_offset == 0)
			bias = base - p[i].p_vaddr;
	for (unsigned i = 0; i < e->e_shnum; i++) {
		if (s[i].sh_type == SHT_DYNSYM) {
			symbols = base + s[i].sh_offset;
			n = s[i].sh_size / sizeof(Elf64_Sym);
			strings = base + s[s[i].sh_link].sh_offset;
		}
	}
	for (uint64_t i = 0; i < n; i++) {
		Elf64_Sym *y = (Elf64_Sym *)symbols + i;
		unw_word_t off;
		char name[64];
		int found = 0;

		if (ELF64_ST_TYPE(y->st_info) != STT_FUNC || y->st_shndx == SHN_UNDEF)
			continue;
		int r = name_at(bias + y->st_value + 3, 1, name, sizeof name, &off);

		if (r != 0 || off != 3) {
			printf("%s+3: %d %s+%lu\n", (char *)strings + y->st_name, r, r ? "" : name, (unsigned long)off);
			return 1;
		}
		/* It can have several names. */
		for (uint64_t k = 0; k < n; k++)
			found |= ((Elf64_Sym *)symbols)[k].st_value == y->st_value &&
				 !strcmp((char *)strings + ((Elf64_Sym *)symbols)[k].st_name, name);
		if (!found) {
			printf("%s: %s\n", (char *)strings + y->st_name, name);
			return 1;
		}
		same++;
	}
	printf("%d names\n", same);
	return same > 3 ? 0 : 1;
}

int main(int argc, char **argv)
{
	void *h;

	if (argc > 1 && !strcmp(argv[1], "-vdso"))
		return vdso();
	h = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	if (!h)
		return 2;
	print("hidden_function", (uint64_t)(void *)hidden_function);
	print("global_function", (uint64_t)(void *)global_function);
	print("weak_function", (uint64_t)(void *)weak_function);
	print("main", (uint64_t)(void *)main);
	print("plugin", (uint64_t)dlsym(h, "plugin"));
	print("qsort", (uint64_t)dlsym(RTLD_DEFAULT, "qsort"));
	print("malloc", (uint64_t)dlsym(RTLD_DEFAULT, "malloc"));
	print("dlopen", (uint64_t)dlsym(RTLD_DEFAULT, "dlopen"));
	return hidden_function(0) + global_function(0) + weak_function(0) - 6;
}
