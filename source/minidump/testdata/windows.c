// Crashes below a callback of the C library, while another thread waits. A handler writes the minidump to the path that is the first argument. Standard
// output has return addresses, innermost first: lines "crashed", as each function has its own, "waiting", and "captured", as the system walks.
#include <windows.h>
#include <dbghelp.h>
#include <stdio.h>
#include <stdlib.h>

static char *path;
static int full; // all memory, where there is a second argument
static HANDLE ready, never;

#define RETURNS(who) printf(who " %p\n", __builtin_return_address(0))

static LONG CALLBACK handle(EXCEPTION_POINTERS *p)
{
	MINIDUMP_EXCEPTION_INFORMATION e = {GetCurrentThreadId(), p, FALSE};
	HANDLE f = CreateFileA(path, GENERIC_WRITE, 0, 0, CREATE_ALWAYS, FILE_ATTRIBUTE_NORMAL, 0);
	BOOL ok = MiniDumpWriteDump(GetCurrentProcess(), GetCurrentProcessId(), f, full ? MiniDumpWithFullMemory : MiniDumpNormal, &e, 0, 0);
	CloseHandle(f);
	printf("threads %lu\nwritten %d\n", GetCurrentThreadId(), ok);
	fflush(stdout);
	TerminateProcess(GetCurrentProcess(), 0);
	return EXCEPTION_CONTINUE_SEARCH;
}

static __attribute__((noinline)) int leaf(volatile int *p)
{
	void *pcs[64];
	int n = CaptureStackBackTrace(0, 64, pcs, 0);
	for (int i = 1; i < n && pcs[i]; i++)
		printf("captured %p\n", pcs[i]);
	RETURNS("crashed");
	*p = n;
	return n + 1;
}

static __attribute__((noinline)) int middle(int n)
{
	volatile char room[3000];
	room[n] = 1;
	RETURNS("crashed");
	return leaf((int *)0) + room[n];
}

static int compare(const void *a, const void *b)
{
	RETURNS("crashed");
	return middle(*(const int *)a) - middle(*(const int *)b);
}

static __attribute__((noinline)) int wait_here(void)
{
	RETURNS("waiting");
	fflush(stdout);
	SetEvent(ready);
	return WaitForSingleObject(never, INFINITE) + 1;
}

static DWORD WINAPI waiter(void *arg)
{
	int n = wait_here();
	RETURNS("waiting");
	return n + 1;
}

int main(int argc, char **argv)
{
	int a[3] = {3, 2, 1};
	path = argv[1];
	full = argc > 2;
	ready = CreateEventA(0, 0, 0, 0), never = CreateEventA(0, 0, 0, 0);
	AddVectoredExceptionHandler(1, handle);
	CreateThread(0, 0, waiter, 0, 0, 0);
	WaitForSingleObject(ready, INFINITE);
	Sleep(200); // until the other thread waits
	RETURNS("main");
	qsort(a, 3, sizeof *a, compare);
	return 0;
}
