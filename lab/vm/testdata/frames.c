// Counts its frames by libunwind, or by LLVM's libunwind, and says where that library comes from.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#ifdef LLVM
int unw_getcontext(void *), unw_init_local(void *, void *), unw_step(void *);
static void *const walker = (void *)unw_step;

static int count(void) {
  unsigned long context[256], cursor[256]; // each is smaller
  int n = 1;
  unw_getcontext(context);
  unw_init_local(cursor, context);
  while (n < 64 && unw_step(cursor) > 0)
    n++;
  return n;
}
#else
int unw_backtrace(void **, int);
static void *const walker = (void *)unw_backtrace;

static int count(void) {
  void *pcs[64];
  return unw_backtrace(pcs, 64);
}
#endif

__attribute__((noinline)) int inner(int n) {
  Dl_info info;
  int m = n > 0 ? inner(n - 1) : count();
  if (n == 0 && dladdr(walker, &info))
    printf("%s\n", info.dli_fname);
  __asm__ volatile("" : "+r"(m)); // no tail call
  return m;
}

int main(void) {
  printf("%d frames\n", inner(9));
  return 0;
}
