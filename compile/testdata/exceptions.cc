// Exceptions that run through clean-ups, handlers of types, handlers of all and specifications. With -DRUN it runs, and prints what the unwinder
// does: "pad CALL PAD" where an exception goes on, "caught TYPE" in the handler.
struct X { X(); ~X(); int a; };
struct Y : X {};
void may(int);
void caught(const char *);

int one(int n) {
  X x;
  try { may(n); } catch (int i) { caught("_ZTIi"); return i; } catch (Y &) { caught("_ZTI1Y"); may(0); return 7; } catch (...) { caught("..."); may(0); throw; }
  return x.a;
}
int two(int n) {
  try {
    X x;
    try { may(n); } catch (long) { caught("_ZTIl"); return 1; }
    may(n + 1);
  } catch (X *) { caught("_ZTIP1X"); return 2; }
  return 0;
}
int three(int n) noexcept { may(n); X x; may(n); return x.a; }
template <class T> T four(T t) {
  X a;
  try { may(t); } catch (T *) { caught(sizeof(T) == 4 ? "_ZTIPi" : "_ZTIPl"); return t + 1; }
  return t + a.a;
}
template int four(int);
template long four(long);
#if __cplusplus < 201703L
int five(int n) throw(int, X) { X x; may(n); return 1; }
int six(int n) throw() { may(n); return 2; }
#endif

#ifdef RUN
#include <dlfcn.h>
#include <stdio.h>
#include <unwind.h>
extern "C" char __executable_start;
static unsigned long at(unsigned long p) { return p - (unsigned long)&__executable_start; }
extern "C" void _Unwind_SetIP(struct _Unwind_Context *c, _Unwind_Ptr pad) {
  printf("pad %lx %lx\n", at(_Unwind_GetIP(c)), at(pad));
  ((void (*)(struct _Unwind_Context *, _Unwind_Ptr))dlsym(RTLD_NEXT, "_Unwind_SetIP"))(c, pad);
}
X::X() : a(1) {}
X::~X() {}
void caught(const char *t) { printf("caught %s\n", t); }
static int i; static long l;
void may(int n) {
  switch (n) {
  case 1: throw 1;
  case 2: throw Y();
  case 3: throw 1.0;
  case 4: throw 1L;
  case 5: throw (X *)0;
  case 6: throw &i;
  case 7: throw &l;
  }
}
template <class F> void run(F f) { try { f(); } catch (...) { caught("..."); } }
int main() {
  for (int n = 0; n < 8; n++) {
    run([=] { one(n); });
    run([=] { two(n); });
    run([=] { four(n); });
    run([=] { four((long)n); });
  }
  run([] { five(1); });
}
#endif
