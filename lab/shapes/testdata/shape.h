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

// READY says once that the chain stands. It is a system call without a frame of its own. PAUSE is of a loop, and two instructions are faults:
// INVALID is SIGILL, BREAK is SIGTRAP.
#ifdef __aarch64__
#define SAY do { register long n __asm__("x8") = 64, a __asm__("x0") = 1, c __asm__("x2") = 6; register const char *b __asm__("x1") = "ready\n"; \
	__asm__ volatile("svc 0" : "+r"(a) : "r"(n), "r"(b), "r"(c) : "memory"); } while (0)
#define PAUSE __asm__ volatile("yield")
#define INVALID __asm__ volatile(".inst 0")
#define BREAK __asm__ volatile("brk 0")
#else
#define SAY do { long n = 1; __asm__ volatile("syscall" : "+a"(n) : "D"(1), "S"("ready\n"), "d"(6) : "rcx", "r11", "memory"); } while (0)
#define PAUSE __asm__ volatile("pause")
#define INVALID __asm__ volatile("ud2")
#define BREAK __asm__ volatile("int3")
#endif
#define READY do { static volatile int said; if (!said) { said = 1; SAY; } } while (0)

// SPIN stays here.
#define SPIN do { READY; while (forever) PAUSE; } while (0)

// BEGIN ends the program when nobody else does.
#define BEGIN alarm(600)
