// What all shapes share. Functions that begin with s_ are told apart; all of them are in the symbol table under that name.
#include <unistd.h>

#ifdef __clang__
#define FN __attribute__((noinline, used))
#elif defined(__TINYC__)
#define FN
#else
#define FN __attribute__((noinline, noclone, used))
#endif

// KEEP after a call keeps it from being a jump.
#define KEEP __asm__ volatile("" ::: "memory")

// forever is 1, which no compiler knows.
static volatile int forever = 1;

// READY says once that the chain stands. It is a system call without a frame of its own.
#define READY do { static volatile int said; if (!said) { long n = 1; said = 1; \
	__asm__ volatile("syscall" : "+a"(n) : "D"(1), "S"("ready\n"), "d"(6) : "rcx", "r11", "memory"); } } while (0)

// SPIN stays here.
#define SPIN do { READY; while (forever) __asm__ volatile("pause"); } while (0)

// BEGIN ends the program when nobody else does.
#define BEGIN alarm(600)
