// heap_cxx.cc: C++'s operators, and C's functions, in threads.
#include <stdio.h>
#include <stdlib.h>
#include <new>
#include <string>
#include <thread>
#include <vector>
static void *volatile sink;
struct alignas(256) wide { char c[512]; };
__attribute__((noipa)) static void some() {
	for (int i = 0; i < 1000; i++) { sink = new char[i + 1]; sink = malloc(i); int *p = new int; sink = p; delete p; sink = new wide; delete new (std::nothrow) std::string(100, 'x'); }
	delete[] new wide[3]; free(realloc(malloc(10), 20000)); free(calloc(7, 9)); free(aligned_alloc(64, 640));
	operator delete(operator new(33), (size_t)33);
}
int main() { std::thread a(some), b(some); a.join(); b.join(); some(); puts("done"); }
