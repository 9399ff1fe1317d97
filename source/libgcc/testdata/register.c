// register HOW N: calls N functions that it has made in its memory, without frame pointers, and has registered with libgcc. HOW is the way: frame, info
// or table; single registers FDEs whose CIE lies before. With busy, a thread registers other code all the time. The program prints the return
// addresses that libgcc finds on its stack, and "ready", and waits.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unwind.h>

void __register_frame(void *);
void __deregister_frame(void *);
void __register_frame_info(const void *, void *);
void __register_frame_info_table(void *, void *);

enum { CODE = 64, EH = 256 }; // bytes of a function, and of its unwind information

static _Unwind_Reason_Code print(struct _Unwind_Context *c, void *arg)
{
	(void)arg;
	printf("%lx\n", (unsigned long)_Unwind_GetIP(c));
	return _URC_NO_REASON;
}

__attribute__((noinline)) static void report(void)
{
	_Unwind_Backtrace(print, 0);
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}

// make writes function i and its unwind information.
static unsigned char *make(unsigned char *all, int n, int i)
{
	unsigned char frame = 0x18 + 16 * (i % 4);
	unsigned char code[] = {
		0x48, 0x83, 0xec, frame, // sub $frame,%rsp
		0x48, 0x8b, 0x07,        // mov (%rdi),%rax
		0x48, 0x83, 0xc7, 8,     // add $8,%rdi
		0xff, 0xd0,              // call *%rax
		0x48, 0x83, 0xc4, frame, // add $frame,%rsp
		0xc3,                    // ret
	};
	unsigned char eh[] = {
		20, 0, 0, 0, 0, 0, 0, 0, // a CIE
		1, 'z', 'R', 0, 1, 0x78, 16, 1, 0x1b,
		0x0c, 7, 8, // def_cfa rsp, 8
		0x90, 1,    // offset rip, 1
		0, 0,
		20, 0, 0, 0, 28, 0, 0, 0, // its FDE
		0, 0, 0, 0, sizeof code, 0, 0, 0, 0,
		0x44, 0x0e, frame + 8, // advance_loc 4, def_cfa_offset
		0x4d, 0x0e, 8,         // advance_loc 13, def_cfa_offset
		0,
		0, 0, 0, 0, // the end
	};
	unsigned char *to = all + n * CODE + i * EH;
	int off = (int)(all + i * CODE - (to + 32));

	memcpy(eh + 32, &off, 4);
	memcpy(all + i * CODE, code, sizeof code);
	memcpy(to, eh, sizeof eh);
	return to;
}

static void *churn(void *arg)
{
	enum { N = 200 };
	unsigned char *eh[N];
	unsigned char *all = mmap(0, N * (CODE + EH), PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)arg;
	for (int i = 0; i < N; i++)
		eh[i] = make(all, N, i);
	for (;;) {
		for (int i = 0; i < N; i++)
			__register_frame(eh[i]);
		for (int i = 0; i < N; i++)
			__deregister_frame(eh[i]);
		usleep(1000);
	}
	return 0;
}

int main(int argc, char **argv)
{
	const char *how = argv[1];
	int n = argc > 2 ? atoi(argv[2]) : 1;
	unsigned char *all = mmap(0, n * (CODE + EH), PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void **array = calloc(n + 1, sizeof *array), **calls = calloc(n, sizeof *calls);
	pthread_t thread;

	alarm(600); // if nobody ends it
	for (int i = 0; i < n; i++) {
		unsigned char *eh = make(all, n, i);

		array[i] = eh;
		calls[i] = i + 1 < n ? (void *)(all + (i + 1) * CODE) : (void *)report;
		if (!strcmp(how, "frame") || !strcmp(how, "busy"))
			__register_frame(eh);
		if (!strcmp(how, "single"))
			__register_frame(eh + 24);
		if (!strcmp(how, "info"))
			__register_frame_info(eh, calloc(1, 64));
	}
	if (!strcmp(how, "table"))
		__register_frame_info_table(array, calloc(1, 64));
	if (!strcmp(how, "busy"))
		pthread_create(&thread, 0, churn, 0);
	((void (*)(void **))all)(calls);
	return 0;
}
