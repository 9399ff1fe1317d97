/* loader FILE: maps an image of Windows for x86-64, and stops. Whoever traces it runs its functions, on a stack of their own. It prints the
   addresses of the image, of the return address that ends a call, of the stack and of memory for arguments. Imported functions return 0; those
   that never return, by their names, stop. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern const char returns[], stops[];
__asm__(".globl returns, stops\nreturns: xorl %eax,%eax\nret\nstops: int3\n");

static uint32_t u32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static uint16_t u16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static uint64_t u64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }

static int ends(const char *name) {
	static const char *const words[] = {"abort", "xit", "hrow", "erminate", "Raise", "raise", "atal", "nwind", "longjmp", "assert", "watson", "purecall"};
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (strstr(name, words[i]))
			return 1;
	return 0;
}

static void *memory(size_t size, int prot) {
	void *p = mmap(NULL, size, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		exit(2);
	return p;
}

int main(int argc, char **argv) {
	struct stat st;
	int fd = argc > 1 ? open(argv[1], O_RDONLY) : -1;
	if (fd < 0 || fstat(fd, &st))
		return 2;
	prctl(PR_SET_PDEATHSIG, 9);
	const uint8_t *file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (file == MAP_FAILED)
		return 2;
	const uint8_t *h = file + u32(file + 60) + 4, *opt = h + 20, *sec = opt + u16(h + 16);
	size_t size = (u32(opt + 56) + 4095) & ~(size_t)4095;
	uint64_t wanted = u64(opt + 24);
	uint8_t *base = mmap((void *)wanted, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (base == MAP_FAILED)
		base = memory(size, PROT_READ | PROT_WRITE);
	memcpy(base, file, u32(opt + 60));
	int n = u16(h + 2);
	for (int i = 0; i < n; i++) {
		const uint8_t *s = sec + 40 * i;
		size_t raw = u32(s + 16), virt = u32(s + 8);
		memcpy(base + u32(s + 12), file + u32(s + 20), virt && virt < raw ? virt : raw);
	}
	const uint8_t *dirs = opt + 112;
	uint64_t delta = (uint64_t)base - wanted;
	uint8_t *rel = base + u32(dirs + 40), *end = rel + u32(dirs + 44);
	while (delta && rel < end) { /* base relocations */
		uint8_t *page = base + u32(rel);
		uint32_t block = u32(rel + 4);
		for (uint8_t *p = rel + 8; p < rel + block; p += 2)
			if (u16(p) >> 12 == 10) {
				uint64_t v = u64(page + (u16(p) & 4095)) + delta;
				memcpy(page + (u16(p) & 4095), &v, 8);
			}
		rel += block ? block : 8;
	}
	if (u32(dirs + 8))
		for (uint8_t *d = base + u32(dirs + 8); u32(d + 12); d += 20) { /* imports */
			uint8_t *name = base + (u32(d) ? u32(d) : u32(d + 16)), *slot = base + u32(d + 16);
			for (; u64(name); name += 8, slot += 8) {
				int never = !(u64(name) >> 63) && ends((char *)base + u32(name) + 2);
				uint64_t v = (uint64_t)(never ? stops : returns);
				memcpy(slot, &v, 8);
			}
		}
	/* The thread's environment block, at gs: stack, itself, process, variables of the thread. */
	enum { STACK = 1 << 21, SCRATCH = 1 << 20 };
	uint8_t *stack = memory(STACK, PROT_READ | PROT_WRITE), *scratch = memory(SCRATCH, PROT_READ | PROT_WRITE);
	uint64_t *teb = memory(1 << 16, PROT_READ | PROT_WRITE), *tls = memory(1 << 16, PROT_READ | PROT_WRITE);
	for (int i = 0; i < 512; i++)
		tls[i] = (uint64_t)(tls + 1024);
	teb[1] = (uint64_t)(stack + STACK);
	teb[2] = (uint64_t)stack;
	teb[6] = (uint64_t)teb;
	teb[11] = (uint64_t)tls;
	teb[12] = (uint64_t)scratch;
	for (int i = 0; i < n; i++) {
		const uint8_t *s = sec + 40 * i;
		uint32_t flags = u32(s + 36);
		size_t virt = u32(s + 8) ? u32(s + 8) : u32(s + 16);
		if (flags & 0x20000000 && !(flags & 0x80000000))
			mprotect(base + u32(s + 12), (virt + 4095) & ~(size_t)4095, PROT_READ | PROT_EXEC);
	}
	syscall(SYS_arch_prctl, 0x1001, teb); /* ARCH_SET_GS */
	printf("%lx %lx %lx %lx %lx %lx\n", (unsigned long)base, (unsigned long)stops, (unsigned long)stack, (unsigned long)(stack + STACK), (unsigned long)scratch,
	       (unsigned long)(scratch + SCRATCH));
	fflush(stdout);
	__asm__ volatile("int3");
	return 0;
}
