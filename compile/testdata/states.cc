// C++ exceptions of Windows: objects within and around try blocks, handlers of types and of all, try blocks in each other and in handlers.
extern "C" int ext(int);
struct S { S(); ~S(); int x; };
struct T { T(int); int y; };

int nothing(int a) { return ext(a) + 1; }
int cleanup(int a) { S s; return ext(a); }
int catches(int a) {
  S s;
  try { S t; ext(a); } catch (int i) { return ext(i); } catch (const T &p) { return ext(p.y); } catch (...) { ext(1); }
  return ext(s.x);
}
int nested(int a) {
  try {
    S s;
    try { S t, u; ext(a); } catch (char *p) { ext(*p); }
    try { ext(a + 1); } catch (S &x) { S v; ext(x.x); try { ext(2); } catch (long l) { ext(3); } }
    ext(4);
  } catch (short i) { ext(i); }
  return ext(5);
}
int inner(int a) { try { throw T(a); } catch (T t) { return t.y; } }
int last(int a) noexcept { S s; return ext(a); }
