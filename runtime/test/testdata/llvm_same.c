/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llvm_same.c LLVM OURS: on the same stacks, LLVM's libunwind and ours say the same of each frame: what a step comes to, all registers, whether a
 * signal interrupted it, its procedure and its name. Prints how many frames were compared and how many differ.
 * With a third argument, DEPTH: nanoseconds a frame of a step and a program counter, in turns; theirs and ours.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libunwind.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#ifdef __x86_64__
#define PC(context) (context)->uc_mcontext.gregs[REG_RIP]
#define UNDEFINED "ud2"
enum { PC_NUMBER = 16, FP_NUMBER = UNW_X86_64_RBP, AFTER_TRAP = 2, DOUBLES = 0 };
static const int numbers[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
#else
#define PC(context) (context)->uc_mcontext.pc
#define UNDEFINED "udf #0"
enum { PC_NUMBER = UNW_AARCH64_PC, FP_NUMBER = UNW_AARCH64_FP, AFTER_TRAP = 4, DOUBLES = 32 };
static const int numbers[] = {
	0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, UNW_AARCH64_RA_SIGN_STATE,
};
#endif

enum { REGISTERS = sizeof numbers / sizeof *numbers, FIRST_DOUBLE = 64, MAX = 400 };

static struct lib {
	int (*getcontext)(unw_context_t *);
	int (*init)(unw_cursor_t *, unw_context_t *);
	int (*step)(unw_cursor_t *);
	int (*get)(unw_cursor_t *, int, uint64_t *);
	int (*set)(unw_cursor_t *, int, uint64_t);
	int (*resume)(unw_cursor_t *);
	int (*info)(unw_cursor_t *, unw_proc_info_t *);
	int (*name)(unw_cursor_t *, char *, size_t, uint64_t *);
	int (*is_signal)(unw_cursor_t *);
	const char *(*regname)(unw_cursor_t *, int);
	int (*is_fp)(unw_cursor_t *, int);
	int (*get_fp)(unw_cursor_t *, int, double *);
	int (*set_fp)(unw_cursor_t *, int, double);
	void (*cache)(void (*)(uint64_t, uint64_t, uint64_t, uint64_t));
	void (*add)(uint64_t);
	void (*remove)(uint64_t);
	void (*add_section)(uint64_t);
	void (*remove_section)(uint64_t);
	void (*enter)(void *);
	void (*leave)(void *);
} libs[2];

static void open_lib(struct lib *l, const char *path)
{
	static const char *const names[] = {
		"unw_getcontext", "unw_init_local", "unw_step", "unw_get_reg", "unw_set_reg", "unw_resume", "unw_get_proc_info", "unw_get_proc_name",
		"unw_is_signal_frame", "unw_regname", "unw_is_fpreg", "unw_get_fpreg", "unw_set_fpreg", "unw_iterate_dwarf_unwind_cache",
		"__unw_add_dynamic_fde", "__unw_remove_dynamic_fde", "__unw_add_dynamic_eh_frame_section", "__unw_remove_dynamic_eh_frame_section",
		"__register_frame", "__deregister_frame",
	};
	void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL), **to = (void **)l;

	_Static_assert(sizeof *l == sizeof names, "one for each");
	if (!h) {
		puts(dlerror());
		exit(1);
	}
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
		if (!(to[i] = dlsym(h, names[i])))
			exit(printf("%s lacks %s\n", path, names[i]));
	if (!dlsym(h, "unw_local_addr_space") || !*(void **)dlsym(h, "unw_local_addr_space"))
		exit(printf("%s lacks unw_local_addr_space\n", path));
}

struct frame {
	int step, info_result, name_result, signal;
	uint64_t reg[REGISTERS], off;
	double d[DOUBLES + 1];
	unw_proc_info_t info;
	char name[64];
};

static struct frame frames[2][MAX];
static volatile long compared, different, deepest, signals, named, with_info;

static int walk(struct lib *l, unw_context_t *uc, struct frame *f)
{
	unw_cursor_t c;
	int n = 0;

	if (l->init(&c, uc) != 0)
		abort();
	for (int step = 1; n < MAX; n++) {
		memset(&f[n], 0, sizeof f[n]);
		f[n].step = step;
		for (int i = 0; i < REGISTERS; i++)
			if (l->get(&c, numbers[i], &f[n].reg[i]) != 0)
				abort();
		for (int i = 0; i < DOUBLES; i++)
			if (l->get_fp(&c, FIRST_DOUBLE + i, &f[n].d[i]) != 0)
				abort();
		f[n].info_result = l->info(&c, &f[n].info);
		f[n].signal = l->is_signal(&c);
		f[n].name_result = l->name(&c, f[n].name, n % 3 == 1 ? 8 : sizeof f[n].name, &f[n].off);
		if (step <= 0)
			return n + 1;
		step = l->step(&c);
	}
	return n;
}

static void differ(int at, const char *what, uint64_t a, uint64_t b)
{
	if (different++ < 30)
		printf("frame %d at %lx of %s: %s is %lx, ours %lx\n", at, frames[0][at].reg[PC_NUMBER], frames[0][at].name, what, a, b);
}

static __attribute__((noinline)) void compare(unw_context_t *uc)
{
	int n = walk(&libs[0], uc, frames[0]), m = walk(&libs[1], uc, frames[1]);

	if (n != m)
		differ((n < m ? n : m) - 1, "the number of frames", n, m);
	for (int i = 0; i < n && i < m; i++) {
		struct frame *a = &frames[0][i], *b = &frames[1][i];

		compared++;
		if (a->step != b->step)
			differ(i, "the step", a->step, b->step);
		for (int k = 0; k < REGISTERS; k++)
			if (a->reg[k] != b->reg[k])
				differ(i, libs[0].regname(NULL, numbers[k]), a->reg[k], b->reg[k]);
		for (int k = 0; k < DOUBLES; k++)
			if (memcmp(&a->d[k], &b->d[k], sizeof a->d[k])) {
				uint64_t x[2];

				memcpy(x, &a->d[k], 8);
				memcpy(x + 1, &b->d[k], 8);
				differ(i, libs[0].regname(NULL, FIRST_DOUBLE + k), x[0], x[1]);
			}
		if (a->signal != b->signal)
			differ(i, "is_signal_frame", a->signal, b->signal);
		if (a->info_result != b->info_result)
			differ(i, "proc_info's result", a->info_result, b->info_result);
		else if (a->info_result == 0)
			for (unsigned k = 0; k < sizeof a->info / 8; k++)
				if (((uint64_t *)&a->info)[k] != ((uint64_t *)&b->info)[k])
					differ(i, (const char *[]){"start_ip", "end_ip", "lsda", "handler", "gp", "flags", "format", "unwind_info", "extra"}[k],
						((uint64_t *)&a->info)[k], ((uint64_t *)&b->info)[k]);
		/* Ours knows the names of functions that are not exported, too. */
		if (a->name_result == 0 || a->name_result == UNW_ENOMEM) {
			if (a->name_result != b->name_result)
				differ(i, "the name's result", a->name_result, b->name_result);
			else if (a->off != b->off)
				differ(i, "the name's offset", a->off, b->off);
			else if (strcmp(a->name, b->name))
				printf("%s is %s\n", a->name, b->name);
			else
				named++;
		}
		signals += a->signal;
		with_info += a->info_result == 0;
	}
	deepest = n > deepest ? n : deepest;
}

/* ---- Stacks ---- */

/* Volatile, as what a signal handler sees of a program. */
static volatile uint64_t seed = 88172645463325252u;

static uint64_t next(void)
{
	uint64_t x = seed;

	x ^= x << 13;
	x ^= x >> 7;
	return seed = x ^ x << 17;
}

static __attribute__((noinline)) void here(void)
{
	unw_context_t uc;

	libs[compared & 1].getcontext(&uc);
	compare(&uc);
}

static volatile uint64_t sink;
__attribute__((noinline)) uint64_t down(int depth, uint64_t a, uint64_t b, uint64_t c);

__attribute__((noinline)) uint64_t few(int depth, uint64_t a)
{
	uint64_t r = down(depth - 1, a, a + 1, a + 2);

	sink += r;
	return r + a;
}

__attribute__((noinline)) uint64_t many(int depth, uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t d = a * 3 + sink, e = b * 5 + sink, f = c * 7 + sink, r = down(depth - 1, d, e, f);

	return r + a + b + c + d + e + f;
}

__attribute__((noinline)) uint64_t array(int depth, uint64_t n)
{
	volatile char buf[n % 3000 + 1]; /* needs a frame pointer */

	buf[n % 7 % sizeof buf] = 1;
	return down(depth - 1, n, n, n) + (uint64_t)buf[0];
}

__attribute__((noinline)) uint64_t aligned(int depth, uint64_t n)
{
	volatile uint64_t v[8] __attribute__((aligned(64))) = {n};
	uint64_t r = down(depth - 1, v[0], n, n);

	return r + v[1];
}

static volatile int depth_of_sort;

static int order(const void *a, const void *b)
{
	if (depth_of_sort > 0) {
		int d = depth_of_sort;

		depth_of_sort = 0;
		sink += down(d, *(const int *)a, 2, 3);
	}
	return *(const int *)a - *(const int *)b;
}

static volatile int depth_of_signal;

static void on_signal(int sig)
{
	int d = depth_of_signal;

	(void)sig;
	depth_of_signal = 0;
	if (d > 0)
		sink += down(d, 1, 2, 3);
	else
		here();
}

static void on_trap(int sig, siginfo_t *si, void *uc)
{
	ucontext_t *u = uc;

	(void)si;
	on_signal(sig);
	PC(u) += AFTER_TRAP;
}

__attribute__((noinline)) void leaf(int trap)
{
	if (trap)
		__asm__ volatile(UNDEFINED);
}

__attribute__((noinline)) uint64_t down(int depth, uint64_t a, uint64_t b, uint64_t c)
{
	if (depth <= 0) {
		here();
		return a + b + c;
	}
	switch (next() % 9) {
	case 0:
	case 1:
		return few(depth, a + b) + c;
	case 2:
	case 3:
		return many(depth, a, b, c) + 1;
	case 4:
		return array(depth, a) + b;
	case 5:
		return aligned(depth, c) + b;
	case 6: {
		int v[5] = {4, 1, 5, 2, 3};

		depth_of_sort = depth - 1;
		qsort(v, 5, sizeof *v, order);
		return v[0] + a;
	}
	case 7:
		depth_of_signal = depth - 1;
		raise(SIGUSR1);
		return a + 1;
	default:
		depth_of_signal = depth - 1;
		leaf(1);
		return b + 2;
	}
}

/* A call that leaves arguments on the stack: f(depth) is called with two words above. */
void with_arguments(void (*f)(void));
/* Rules of other shapes: by expressions, and with registers in registers. */
void odd(void (*f)(void));
#ifdef __x86_64__
__asm__(".text\n.globl with_arguments\n.type with_arguments, @function\nwith_arguments:\n.cfi_startproc\n\tpush %rbx\n\t.cfi_adjust_cfa_offset 8\n"
	"\t.cfi_rel_offset %rbx, 0\n\tsub $32, %rsp\n\t.cfi_adjust_cfa_offset 32\n\t.cfi_escape 0x2e, 0x20\n\tmov %rdi, %rax\n\tcall *%rax\n"
	"\tadd $32, %rsp\n\t.cfi_adjust_cfa_offset -32\n\t.cfi_escape 0x2e, 0\n\tpop %rbx\n\t.cfi_adjust_cfa_offset -8\n\tret\n.cfi_endproc\n"
	".size with_arguments, . - with_arguments\n"
	".globl odd\n.type odd, @function\nodd:\n.cfi_startproc\n\tpush %rbp\n\t.cfi_adjust_cfa_offset 8\n\tmov %rsp, %rbp\n"
	"\t.cfi_escape 0x0f, 2, 0x76, 0x10\n\t.cfi_escape 0x10, 6, 2, 0x76, 0\n\tmov %rbx, -8(%rsp)\n\tsub $32, %rsp\n"
	"\t.cfi_escape 0x10, 3, 2, 0x76, 0x78\n\t.cfi_escape 0x16, 12, 3, 0x76, 0, 0x06\n\tmov $77, %ebx\n\tcall *%rdi\n"
	"\tmov -8(%rbp), %rbx\n\tmov %rbp, %rsp\n\tpop %rbp\n\tret\n.cfi_endproc\n.size odd, . - odd\n");
#else
__asm__(".text\n.globl with_arguments\n.type with_arguments, %function\nwith_arguments:\n.cfi_startproc\n\tstp x29, x30, [sp, #-16]!\n"
	"\t.cfi_adjust_cfa_offset 16\n\t.cfi_rel_offset x29, 0\n\t.cfi_rel_offset x30, 8\n\tsub sp, sp, #32\n\t.cfi_adjust_cfa_offset 32\n"
	"\t.cfi_escape 0x2e, 0x20\n\tblr x0\n\tadd sp, sp, #32\n\t.cfi_adjust_cfa_offset -32\n\t.cfi_escape 0x2e, 0\n\tldp x29, x30, [sp], #16\n"
	"\t.cfi_adjust_cfa_offset -16\n\t.cfi_restore x29\n\t.cfi_restore x30\n\tret\n.cfi_endproc\n.size with_arguments, . - with_arguments\n"
	".globl odd\n.type odd, %function\nodd:\n.cfi_startproc\n\tstp x29, x30, [sp, #-48]!\n\tmov x29, sp\n\t.cfi_escape 0x0f, 2, 0x8d, 48\n"
	"\t.cfi_escape 0x10, 29, 2, 0x8d, 0\n\t.cfi_escape 0x10, 30, 2, 0x8d, 8\n\tstr x19, [x29, #16]\n\tstr d8, [x29, #24]\n"
	"\t.cfi_escape 0x10, 19, 2, 0x8d, 16\n\t.cfi_escape 0x10, 72, 2, 0x8d, 24\n\t.cfi_escape 0x16, 20, 3, 0x8d, 0, 0x06\n\tmov x19, #77\n"
	"\tfmov d8, x19\n\tblr x0\n\tldr x19, [x29, #16]\n\tldr d8, [x29, #24]\n\tldp x29, x30, [sp], #48\n\tret\n.cfi_endproc\n.size odd, . - odd\n");
#endif

static __attribute__((noinline)) void sets(void)
{
	unw_context_t uc;
	unw_cursor_t c[2];
	uint64_t a, b;

	libs[0].getcontext(&uc);
	for (int i = 0; i < 2; i++) {
		libs[i].init(&c[i], &uc);
		libs[i].step(&c[i]); /* at with_arguments */
		for (int r = 0; r < REGISTERS; r++)
			if (numbers[r] != PC_NUMBER && libs[i].set(&c[i], numbers[r], 1000 + r) != 0)
				different++;
		for (int r = 0; r < DOUBLES; r++)
			if (libs[i].set_fp(&c[i], FIRST_DOUBLE + r, 0.5 * r) != 0)
				different++;
		libs[i].set(&c[i], UNW_REG_SP, 4096);
		libs[i].set(&c[i], UNW_REG_IP, (uint64_t)leaf + 1);
	}
	for (int r = -4; r < 120; r++) {
		a = b = 0;
		double d[2] = {0, 0};
		int is_double = libs[0].is_fp(&c[0], r);

		/* LLVM's ends the program where a general register is asked for by the number of a floating-point one. */
		if (is_double ? libs[1].get(&c[1], r, &b) != UNW_EBADREG : libs[0].get(&c[0], r, &a) != libs[1].get(&c[1], r, &b) || a != b)
			differ(r, "a register that was set", a, b);
		if (strcmp(libs[0].regname(&c[0], r), libs[1].regname(&c[1], r)))
			differ(0, "a register's name", r, r);
		if (is_double != libs[1].is_fp(&c[1], r) || libs[0].get_fp(&c[0], r, &d[0]) != libs[1].get_fp(&c[1], r, &d[1]) || d[0] != d[1] ||
		    libs[0].set_fp(&c[0], r, 1) != libs[1].set_fp(&c[1], r, 1))
			differ(0, "a floating-point register", r, r);
		if (r > 16 && !is_double && libs[0].set(&c[0], r, 1) != libs[1].set(&c[1], r, 1))
			differ(0, "what setting a register comes to", r, r);
	}
	compared++;
}

/* A stack that is not there: ours says so; LLVM's crashes. */
static __attribute__((noinline)) void bad_stacks(void)
{
	unw_context_t uc;
	unw_cursor_t c;

	for (int i = 0; i < 3; i++) {
		int step;

		libs[1].getcontext(&uc);
		libs[1].init(&c, &uc);
		libs[1].set(&c, UNW_REG_SP, (uint64_t[]){0, 4096, UINT64_MAX - 3}[i]);
		libs[1].set(&c, FP_NUMBER, (uint64_t[]){0, 4096, UINT64_MAX - 3}[i]);
		step = libs[1].step(&c);
		if (step != UNW_EBADFRAME)
			differ(0, "a step from a bad stack", UNW_EBADFRAME, step);
	}
}

/* ---- Going on ---- */

/* Goes on in the frame that has at on its stack. */
static __attribute__((noinline)) void leave(struct lib *l, uint64_t at)
{
	unw_cursor_t c, above;
	unw_context_t uc;
	uint64_t sp;

	l->getcontext(&uc);
	l->init(&above, &uc);
	do {
		c = above;
		if (l->step(&above) <= 0)
			abort();
		l->get(&above, UNW_REG_SP, &sp);
	} while (sp <= at);
	l->resume(&c);
}

static volatile double weight = 0.25;

static __attribute__((noinline)) uint64_t leave_deep(struct lib *l, int depth, uint64_t at, uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t d = a ^ sink, e = b ^ sink, f = c ^ sink;
	double x = weight * depth, y = weight + depth;

	if (depth == 0) {
		leave(l, at);
		return d;
	}
	d += leave_deep(l, depth - 1, at, d, e, f) + a + b + c + e + f;
	return d + (uint64_t)(x * y);
}

static __attribute__((noinline)) uint64_t stay(struct lib *l)
{
	uint64_t v[5], mark = 1;
	double x, y;

	for (unsigned i = 0; i < 5; i++)
		v[i] = next() + sink;
	x = weight * (double)(v[0] >> 40);
	y = weight * (double)(v[1] >> 40);
	leave_deep(l, 4, (uint64_t)&mark, v[0], v[1], v[2]);
	return (uint64_t)(x * y) ^ v[0] ^ v[1] << 1 ^ v[2] << 2 ^ v[3] << 3 ^ v[4] << 4;
}

static void resumes(void)
{
	for (int n = 0; n < 100; n++) {
		uint64_t was = seed, a = stay(&libs[0]), b;

		seed = was;
		b = stay(&libs[1]);
		if (a != b)
			differ(0, "a sum after resume", a, b);
		compared++;
	}
}

/* ---- Registered code ---- */

static long in_cache[2];
static int which;

static void count(uint64_t lo, uint64_t hi, uint64_t fde, uint64_t object)
{
	in_cache[which] += (long)(lo + hi - fde + (object != 0));
}

static void caches(const char *what)
{
	in_cache[0] = in_cache[1] = 0;
	for (which = 0; which < 2; which++)
		libs[which].cache(count);
	if (in_cache[0] != in_cache[1])
		differ(0, what, in_cache[0], in_cache[1]);
}

static void registered(void)
{
#ifdef __x86_64__
	/* push %rbx; sub $16, %rsp; call *%rdi; add $16, %rsp; pop %rbx; ret */
	static const uint8_t code[] = {0x53, 0x48, 0x83, 0xec, 0x10, 0xff, 0xd7, 0x48, 0x83, 0xc4, 0x10, 0x5b, 0xc3};
	static const uint8_t cie[] = {20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1, 0, 0};
	static const uint8_t fde[] = {28, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 13, 0, 0, 0, 0, 0x41, 0x0e, 16, 0x83, 2, 0x44, 0x0e, 32, 0x46, 0x0e, 16, 0x41, 0x0e, 8, 0};
#else
	/* stp x29, x30, [sp, #-32]!; str x19, [sp, #16]; blr x0; ldr x19, [sp, #16]; ldp x29, x30, [sp], #32; ret */
	static const uint32_t code[] = {0xa9be7bfd, 0xf9000bf3, 0xd63f0000, 0xf9400bf3, 0xa8c27bfd, 0xd65f03c0};
	static const uint8_t cie[] = {20, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'R', 0, 4, 0x78, 30, 1, 0x1b, 0x0c, 31, 0, 0, 0, 0, 0};
	static const uint8_t fde[] = {
		32, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 24, 0, 0, 0, 0, 0x41, 0x0e, 32, 0x9d, 4, 0x9e, 3, 0x41, 0x93, 2, 0x42, 0xd3, 0x41, 0x0e, 0, 0xdd, 0xde, 0, 0,
	};
#endif
	uint8_t *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	long before;

	memcpy(p, code, sizeof code);
	memcpy(p + 4096, cie, sizeof cie);
	memcpy(p + 4096 + sizeof cie, fde, sizeof fde);
	int32_t off = -(4096 + (int)sizeof cie + 8);
	memcpy(p + 4096 + sizeof cie + 8, &off, 4);
	__builtin___clear_cache((char *)p, (char *)p + sizeof code);
	for (int way = 0; way < 4; way++) {
		((void (*)(void (*)(void)))p)(here);
		before = with_info;
		for (int i = 0; i < 2; i++) {
			if (way == 0)
				libs[i].add((uint64_t)p + 4096 + sizeof cie);
			else if (way == 1)
				libs[i].add_section((uint64_t)p + 4096);
			else if (way == 2)
				libs[i].enter(p + 4096 + sizeof cie);
		}
		((void (*)(void (*)(void)))p)(here);
		caches("what is registered");
		if (way < 3 && with_info < before + 4)
			differ(0, "walks through registered code", way, with_info - before);
		for (int i = 0; i < 2; i++) {
			if (way == 0)
				libs[i].remove((uint64_t)p + 4096 + sizeof cie);
			else if (way == 1)
				libs[i].remove_section((uint64_t)p + 4096);
			else if (way == 2)
				libs[i].leave(p + 4096 + sizeof cie);
		}
		caches("what is not registered");
	}
	munmap(p, 8192);
}

static void *thread(void *arg)
{
	for (int i = 0; i < 30; i++)
		sink += down(1 + i % 20, i, i, i);
	return arg;
}

/* ---- Figures ---- */

static double best(struct lib *l, unw_context_t *uc, int rounds)
{
	double least = 1e18;

	for (int r = 0; r < rounds; r++) {
		struct timespec a, b;
		unw_cursor_t c;
		uint64_t pc;
		long n = 0;
		double ns;

		clock_gettime(CLOCK_MONOTONIC, &a);
		for (int i = 0; i < 20; i++) {
			l->init(&c, uc);
			while (l->step(&c) > 0) {
				l->get(&c, UNW_REG_IP, &pc);
				sink += pc;
				n++;
			}
		}
		clock_gettime(CLOCK_MONOTONIC, &b);
		ns = ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / n;
		least = ns < least ? ns : least;
	}
	return least;
}

static __attribute__((noinline)) uint64_t bench(int depth, uint64_t a)
{
	uint64_t b = a * 3 + sink, c = a * 5 + sink;

	if (depth == 0) {
		unw_context_t uc;

		libs[0].getcontext(&uc);
		double theirs = best(&libs[0], &uc, 9), ours = best(&libs[1], &uc, 9);
		printf("%.1f %.1f\n", theirs, ours);
		return c;
	}
	return bench(depth - 1, b + c) + a + b + c;
}

int main(int argc, char **argv)
{
	struct sigaction trap = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_NODEFER};
	struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_NODEFER};
	pthread_t t;

	if (argc < 3)
		return 2;
	open_lib(&libs[0], argv[1]);
	open_lib(&libs[1], argv[2]);
	if (argc > 3) {
		bench(atoi(argv[3]), 1);
		return 0;
	}
	sigaction(SIGUSR1, &sa, NULL);
	sigaction(SIGILL, &trap, NULL);
	for (int i = 0; i < 300; i++)
		sink += down(1 + (int)(next() % 40), 1, 2, 3);
	with_arguments(here);
	with_arguments(sets);
	odd(here);
	pthread_create(&t, NULL, thread, NULL);
	pthread_join(t, NULL);
	bad_stacks();
	resumes();
	registered();
	printf("compared %s deepest %s signals %s named %s different %ld\n", compared > 3000 ? "many" : "few", deepest > 60 ? "deep" : "shallow",
		signals > 300 ? "many" : "few", named > 2000 ? "many" : "few", different);
	if (argc == 3)
		fprintf(stderr, "%ld frames, deepest %ld, %ld after signals, %ld named, %ld with information\n", compared, deepest, signals, named, with_info);
	return 0;
}
