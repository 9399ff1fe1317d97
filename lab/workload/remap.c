/*
 * remap.c - calls through code that it writes, protects, moves and takes away, and through that of a plug-in (plugin.c) whose
 * pages it replaces by copies: remap WAY MS PLUGIN
 *
 *	written		mmap, write, mprotect; another time, the same addresses have other code
 *	moved		the same, and mremap: the kernel's events do not tell
 *	copied		the plug-in's code becomes anonymous memory at the same addresses, as programs do that use huge pages
 *
 * x86-64.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

typedef void function(void (*f)(double), double ms);

static volatile unsigned long sum;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void spin(double ms)
{
	double until = now() + ms;

	do
		for (int i = 0; i < 10000; i++)
			sum += (unsigned long)i;
	while (now() < until);
}

/* Both have a frame pointer, and the second takes 64 bytes more. */
static const unsigned char small[] = {
	0x55,             /* push %rbp */
	0x48, 0x89, 0xe5, /* mov %rsp,%rbp */
	0xff, 0xd7,       /* call *%rdi */
	0x5d,             /* pop %rbp */
	0xc3,             /* ret */
};
static const unsigned char large[] = {
	0x55,                   /* push %rbp */
	0x48, 0x89, 0xe5,       /* mov %rsp,%rbp */
	0x48, 0x83, 0xec, 0x40, /* sub $64,%rsp */
	0xff, 0xd7,             /* call *%rdi */
	0xc9,                   /* leave */
	0xc3,                   /* ret */
};

enum { PAGE = 4096 };

static void *must(void *p)
{
	if (p == MAP_FAILED || !p) {
		perror("remap");
		exit(1);
	}
	return p;
}

static void written(int turn, int moved)
{
	char *p = must(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), *to;

	memcpy(p, turn & 1 ? small : large, turn & 1 ? sizeof small : sizeof large);
	if (mprotect(p, PAGE, PROT_READ | PROT_EXEC))
		exit(1);
	if (moved) {
		to = must(mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		p = must(mremap(p, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to));
	}
	((function *)p)(spin, 20);
	munmap(p, PAGE);
}

/* Replaces the code of the plug-in by a copy. */
static int copy(struct dl_phdr_info *info, size_t size, void *name)
{
	(void)size;
	if (!strstr(info->dlpi_name, name))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *h = &info->dlpi_phdr[i];
		char *at = (char *)info->dlpi_addr + (h->p_vaddr & -(size_t)PAGE), *to;
		size_t n = (h->p_memsz + (h->p_vaddr & (PAGE - 1)) + PAGE - 1) & -(size_t)PAGE;

		if (h->p_type != PT_LOAD || !(h->p_flags & PF_X))
			continue;
		to = must(mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		memcpy(to, at, n);
		if (mprotect(to, n, PROT_READ | PROT_EXEC))
			exit(1);
		must(mremap(to, n, n, MREMAP_MAYMOVE | MREMAP_FIXED, at));
	}
	return 1;
}

int main(int argc, char **argv)
{
	double until = now() + atof(argv[2]);
	void *so, *f;

	if (argc > 3 && !strcmp(argv[1], "copied")) {
		so = must(dlopen(argv[3], RTLD_NOW));
		f = must(dlsym(so, "work"));
		dl_iterate_phdr(copy, strrchr(argv[3], '/') + 1);
		((void (*)(int, double))f)(10, atof(argv[2]));
		return 0;
	}
	for (int turn = 0; now() < until; turn++)
		written(turn, !strcmp(argv[1], "moved"));
	return 0;
}
