/* SPDX-License-Identifier: Apache-2.0 */
/* local_mem.c: which memory of the own process can be read, without a signal if it cannot. */
#define _GNU_SOURCE
#include "local.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { PAGE = 4096, PROBE = 64 };

_Thread_local struct us_span us_stack __attribute__((tls_model("initial-exec")));

extern void *__libc_stack_end __attribute__((weak));

/* A system call that leaves errno alone. */
static long call6(long n, long a, long b, long c, long d, long e, long f)
{
#ifdef __x86_64__
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long ret;

	__asm__ volatile("syscall" : "=a"(ret) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return ret;
#else
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#endif
}

static uint64_t thread_pointer(void)
{
	uint64_t at;

#ifdef __x86_64__
	__asm__("mov %%fs:0, %0" : "=r"(at));
#else
	__asm__("mrs %0, tpidr_el0" : "=r"(at));
#endif
	return at;
}

/* Whether a part of this lies on the stack for signal handlers, which can be right below the thread's own, and go away. */
static int on_alternate(uint64_t lo, uint64_t hi)
{
	stack_t s;
	uint64_t at;

	if (call6(SYS_sigaltstack, 0, (long)&s, 0, 0, 0, 0) != 0 || s.ss_flags & SS_DISABLE)
		return 0;
	at = (uint64_t)s.ss_sp;
	return lo < at + s.ss_size && at < hi;
}

/* Whether pages from lo to hi are this thread's stack: they begin where it is now, or above. */
static int own(uint64_t lo, uint64_t hi)
{
	uint64_t here = (uint64_t)__builtin_frame_address(0) & ~(uint64_t)(PAGE - 1);

	return lo >= here && !on_alternate(lo, hi);
}

/* A thread's stack ends at its control block, the first one's where the program's arguments are. Far from both is another stack. */
enum { ENDS = 2, MAX_STACK = 16 << 20 };

static void stack_ends(uint64_t end[ENDS])
{
	end[0] = thread_pointer();
	end[1] = &__libc_stack_end ? (uint64_t)__libc_stack_end : 0;
}

/* Whether eight bytes are on this thread's stack, where the kernel may not be asked. */
static int on_stack(uint64_t addr)
{
	uint64_t end[ENDS];

	stack_ends(end);
	for (unsigned i = 0; i < ENDS; i++)
		if (addr < end[i] && end[i] - addr >= 8 && end[i] - addr <= MAX_STACK && own(addr & ~(uint64_t)(PAGE - 1), end[i]))
			return 1;
	return 0;
}

/*
 * Whether eight bytes, which lie in a page, can be read. rt_sigprocmask reads its set before it finds that there is no such way to
 * change the mask, so its error tells. Hardly any sandbox forbids it, and some kill who calls process_vm_readv: that is tried only
 * where this is forbidden by an error. It takes ten times as long besides.
 */
static int word_there(uint64_t addr)
{
	uint8_t byte;
	struct iovec local = {&byte, 1}, remote = {(void *)addr, 1};
	long r = call6(SYS_rt_sigprocmask, -1, (long)addr, 0, 8, 0, 0);

	if (r == -EINVAL)
		return 1;
	if (r == -EFAULT)
		return 0;
	r = call6(SYS_process_vm_readv, call6(SYS_getpid, 0, 0, 0, 0, 0, 0), (long)&local, 1, (long)&remote, 1, 0);
	return r == 1 || (r != -EFAULT && on_stack(addr));
}

static int words_there(uint64_t addr, size_t n)
{
	for (uint64_t at = addr & ~(uint64_t)7; at < addr + n; at = (at & ~(uint64_t)(PAGE - 1)) + PAGE)
		if (!word_there(at))
			return 0;
	return 1;
}

/* With MTE, an address needs the memory's tag. Without, the processor ignores tags, and the kernel refuses them. */
uint64_t us_readable(uint64_t addr, size_t n)
{
	if (addr + n < addr)
		return 0;
	if (words_there(addr, n))
		return addr;
	return us_untagged(addr) != addr && words_there(us_untagged(addr), n) ? us_untagged(addr) : 0;
}

int us_peek(uint64_t addr, void *to, size_t n)
{
	if (n == 0)
		return 1;
	addr = us_readable(addr, n);
	if (!addr)
		return 0;
	/* Sanitizers would look at what memcpy reads. */
#ifdef __x86_64__
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(addr), "+c"(n) : : "memory");
#else
	for (uint8_t *b = to; n > 0; n--, addr++) {
		uint32_t v;

		__asm__ volatile("ldrb %w0, [%1]" : "=r"(v) : "r"(addr) : "memory");
		*b++ = (uint8_t)v;
	}
#endif
	return 1;
}

int us_may_write(uint64_t addr)
{
	/* Without a set, rt_sigprocmask only writes down what the mask is. */
	long r = call6(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)addr, 8, 0, 0);

	return r == 0 || (r != -EFAULT && on_stack(addr));
}

/* How many pages from page on can be read, of at most n. */
static unsigned pages_there(uint64_t page, unsigned n)
{
	unsigned i;

	for (i = 0; i < n && word_there(page + (uint64_t)i * PAGE); i++)
		;
	return i;
}

int us_span_at(struct us_span *s, uint64_t addr)
{
	uint64_t lo = addr & ~(uint64_t)(PAGE - 1), hi, end[ENDS];
	unsigned n;

	if (!us_is_user(addr) || addr < PAGE)
		return 0;
	if (us_within(&us_stack, addr)) {
		*s = us_stack;
		return 1;
	}
	n = PROBE;
	if (us_stack.hi > us_stack.lo && lo < us_stack.lo && us_stack.lo - lo < (uint64_t)PROBE * PAGE)
		n = (unsigned)((us_stack.lo - lo) / PAGE);
	n = pages_there(lo, n);
	hi = lo + (uint64_t)n * PAGE;
	if (hi < addr + 8)
		return 0;
	stack_ends(end);
	if (us_stack.hi > us_stack.lo && lo < us_stack.lo && hi >= us_stack.lo && own(lo, us_stack.lo)) {
		us_stack.lo = lo;
		*s = us_stack;
		return 1;
	}
	for (unsigned i = 0; i < ENDS; i++) {
		uint64_t e = (end[i] + PAGE - 1) & ~(uint64_t)(PAGE - 1);

		if (us_stack.hi > us_stack.lo || end[i] <= addr || end[i] - addr > MAX_STACK)
			continue;
		while (hi < e && n == PROBE) {
			n = pages_there(hi, PROBE);
			hi += (uint64_t)n * PAGE;
		}
		if (hi >= e && own(lo, e)) {
			/* A handler that runs between these two finds an empty span. */
			us_stack.lo = e;
			__asm__ volatile("" ::: "memory");
			us_stack.hi = e;
			__asm__ volatile("" ::: "memory");
			us_stack.lo = lo;
			*s = us_stack;
			return 1;
		}
	}
	*s = (struct us_span){lo, hi};
	return 1;
}
