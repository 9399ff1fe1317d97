/*
 * Stacks that are hard at one place, walked by the drop-in from inside. Prints a line for each: what is wrong, or nothing.
 */
#define _GNU_SOURCE
#define UNW_LOCAL_ONLY
#include <libunwind.h>

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define OWN __attribute__((noinline))

static int bad;

static void check(const char *what, const char *want, const char *got)
{
	if (strncmp(want, got, strlen(want)) != 0) {
		printf("%s: %s, not %s\n", what, got, want);
		bad = 1;
	}
}

/* The names of the frames of a context. */
static void names(unw_context_t *uc, int flag, char *to, size_t size)
{
	unw_cursor_t c;
	unw_word_t off;
	char name[64];
	int n = 0;

	*to = 0;
	unw_init_local2(&c, uc, flag);
	do {
		if (unw_get_proc_name(&c, name, sizeof name, &off) != 0)
			strcpy(name, "?");
		strncat(to, name, size - strlen(to) - 1);
		strncat(to, " ", size - strlen(to) - 1);
	} while (unw_step(&c) > 0 && ++n < 300);
	snprintf(name, sizeof name, "%d", n);
	if (n >= 300)
		strncat(to, name, size - strlen(to) - 1);
}

static char *low;

void on_stack(void *top, void (*f)(void));
__asm__(".text\n.globl on_stack\n.type on_stack,@function\non_stack:\n.cfi_startproc\n"
	"push %rbp\n.cfi_def_cfa_offset 16\n.cfi_offset %rbp,-16\nmov %rsp,%rbp\n.cfi_def_cfa_register %rbp\n"
	"mov %rdi,%rsp\ncall *%rsi\nleave\n.cfi_def_cfa %rsp,8\nret\n.cfi_endproc\n.size on_stack,.-on_stack\n");

OWN void inner(void)
{
	unw_context_t uc;
	void *pcs[64];
	char got[4096];
	int n;

	unw_getcontext(&uc);
	names(&uc, 0, got, sizeof got);
	check("stacks below", "inner on_stack middle on_stack main ", got);
	n = unw_backtrace(pcs, 64);
	snprintf(got, sizeof got, "%d", n >= 5 && n < 12);
	check("backtrace", "1", got);
}

OWN void middle(void)
{
	on_stack(low + 3 * 65536, inner);
	__asm__ volatile("");
}

/* A frame pointer that leads to a frame that leads to itself. */
OWN void circle(void)
{
	uint64_t *f = (uint64_t *)(low + 1024);
	unw_context_t uc;
	char got[16384];

	unw_getcontext(&uc);
	for (int i = 0; i < 3; i++) { /* in on_stack, behind its call */
		f[4 * i] = (uint64_t)(f + 4 * ((i + 1) % 3));
		f[4 * i + 1] = (uint64_t)on_stack + 9;
	}
	uc.uc_mcontext.gregs[REG_RIP] = (greg_t)((uint64_t)on_stack + 9);
	uc.uc_mcontext.gregs[REG_RBP] = (greg_t)f;
	uc.uc_mcontext.gregs[REG_RSP] = (greg_t)(low + 512);
	names(&uc, UNW_INIT_SIGNAL_FRAME, got, sizeof got);
	snprintf(got, sizeof got, "%d", strlen(got) < 9 * 64);
	check("a circle", "1", got);
}

/* In clone, behind its system call. */
OWN void cloning(void)
{
	const uint8_t *clone = dlsym(RTLD_DEFAULT, "clone");
	unw_context_t uc;
	uint64_t stack[8] = {(uint64_t)__builtin_return_address(0)};
	char got[4096];

	for (int i = 0; clone && i < 200; i++) {
		if (memcmp(clone + i, "\x0f\x05\x48\x85\xc0", 5) != 0)
			continue;
		unw_getcontext(&uc);
		uc.uc_mcontext.gregs[REG_RIP] = (greg_t)(clone + i + 2);
		uc.uc_mcontext.gregs[REG_RSP] = (greg_t)stack;
		uc.uc_mcontext.gregs[REG_RAX] = 1234;
		names(&uc, UNW_INIT_SIGNAL_FRAME, got, sizeof got);
		check("clone", "main ", strchr(got, ' ') ? strchr(got, ' ') + 1 : got);
		uc.uc_mcontext.gregs[REG_RAX] = 0;
		names(&uc, UNW_INIT_SIGNAL_FRAME, got, sizeof got);
		check("a new thread", "", strchr(got, ' ') ? strchr(got, ' ') + 1 : "?");
		if (strchr(got, ' ') && strchr(got, ' ')[1])
			check("a new thread", "one frame", got);
		return;
	}
	check("clone", "a system call", "none");
}

/* A function without call frame information that keeps a frame pointer: at its edges that is its caller's. */
void bare(void);
__asm__(".text\n.globl bare\n.type bare,@function\nbare:\npush %rbp\nmov %rsp,%rbp\nleave\nret\n.size bare,.-bare\n");

/* A function without either: only the word at the stack pointer says who has called it. */
void leaf(void);
__asm__(".text\n.globl leaf\n.type leaf,@function\nleaf:\n1: inc %eax\ninc %eax\njmp 1b\n.size leaf,.-leaf\n");

OWN uint64_t here(void)
{
	return (uint64_t)__builtin_return_address(0);
}

OWN void leaves(void)
{
	uint64_t stack[8] = {here(), 0, 0, (uint64_t)__builtin_return_address(0)};
	unw_context_t uc;
	char got[4096];

	unw_getcontext(&uc);
	uc.uc_mcontext.gregs[REG_RIP] = (greg_t)((uint64_t)leaf + 2);
	uc.uc_mcontext.gregs[REG_RSP] = (greg_t)stack;
	uc.uc_mcontext.gregs[REG_RBP] = (greg_t)(stack + 2);
	names(&uc, UNW_INIT_SIGNAL_FRAME, got, sizeof got);
	check("a leaf", "leaf leaves ", got);
	stack[0] = 0;
	names(&uc, UNW_INIT_SIGNAL_FRAME, got, sizeof got);
	check("a leaf with a frame", "leaf main ", got);
}

OWN void edges(void)
{
	struct {
		uint64_t rip, rsp;
	} at[] = {{0, 1}, {1, 0}, {4, 0}, {5, 1}};
	uint64_t stack[8] = {0, (uint64_t)__builtin_return_address(0)};
	unw_context_t uc;
	char got[4096];

	for (unsigned i = 0; i < sizeof at / sizeof at[0]; i++) {
		unw_getcontext(&uc);
		stack[0] = (uint64_t)__builtin_frame_address(0);
		uc.uc_mcontext.gregs[REG_RIP] = (greg_t)((uint64_t)bare + at[i].rip);
		uc.uc_mcontext.gregs[REG_RSP] = (greg_t)(stack + at[i].rsp);
		uc.uc_mcontext.gregs[REG_RBP] = (greg_t)(at[i].rip == 4 ? (uint64_t)stack : (uint64_t)(stack + 4));
		stack[4] = stack[5] = (uint64_t)on_stack + 9; /* where its caller's frame pointer would lead */
		names(&uc, UNW_INIT_SIGNAL_FRAME, got, sizeof got);
		check("an edge", "bare main ", got);
	}
}

static ucontext_t back, there;

OWN void coroutine(void)
{
	unw_context_t uc;
	unw_cursor_t c;
	void *pcs[64];
	char got[64];
	int n = 0, r, all;

	unw_getcontext(&uc);
	unw_init_local(&c, &uc);
	while ((r = unw_step(&c)) > 0)
		n++;
	all = unw_backtrace(pcs, 64);
	snprintf(got, sizeof got, "%d %d %d", n, r, all);
	check("makecontext: steps, the last one's result, frames", "1 0 2", got);
}

int main(void)
{
	low = mmap(NULL, 4 * 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	on_stack(low + 65536, middle);
	circle();
	cloning();
	edges();
	leaves();
	__asm__ volatile("");
	getcontext(&there);
	there.uc_stack.ss_sp = low;
	there.uc_stack.ss_size = 65536;
	there.uc_link = &back;
	makecontext(&there, coroutine, 0);
	swapcontext(&back, &there);
	return bad;
}
