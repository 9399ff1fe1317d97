// Deep and changing stacks, in library functions and signal handlers, for some seconds: to be recorded.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static volatile double sink;

__attribute__((noinline)) static int order(const void *a, const void *b) {
  for (int i = 0; i < 20; i++)
    sink += i;
  return *(const int *)a - *(const int *)b;
}

__attribute__((noinline)) static int deep(int n) {
  volatile char room[48];
  int v[60];

  room[0] = (char)n;
  if (n > 0)
    return deep(n - 1) + room[0];
  for (int i = 0; i < 60; i++)
    v[i] = i * 7919 % 61;
  qsort(v, 60, sizeof v[0], order);
  return v[3];
}

static void on_signal(int sig) {
  deep(5 + sig % 2);
}

int main(void) {
  char text[200];

  signal(SIGUSR1, on_signal);
  for (int i = 0; i < 400; i++) {
    deep(i % 40);
    snprintf(text, sizeof text, "%g %d", sink, i);
    if (i % 5 == 0)
      raise(SIGUSR1);
  }
  return 0;
}
