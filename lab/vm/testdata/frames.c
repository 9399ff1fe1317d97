// Counts its frames by libunwind, and says where that library comes from.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int unw_backtrace(void **, int);

__attribute__((noinline)) int inner(int n) {
  void *pcs[64];
  Dl_info info;
  int m = n > 0 ? inner(n - 1) : unw_backtrace(pcs, 64);
  if (n == 0 && dladdr((void *)unw_backtrace, &info))
    printf("%s\n", info.dli_fname);
  __asm__ volatile("" : "+r"(m)); // no tail call
  return m;
}

int main(void) {
  printf("%d frames\n", inner(9));
  return 0;
}
