// Functions for 32-bit Arm: all kinds of frames that compilers make.
int ext(int);
void use(void *, double);
void many(int, int, int, int, int, int);
int one(int a) { return ext(a) + 1; }
int two(int a, int b, int c, int d) { int x = ext(a), y = ext(b), z = ext(c); many(a, b, c, d, x, y); return x * y + z * d + ext(x) * a; }
int leaf(int a) { return a * 3; }
int tail(int a, int *p) { *p = ext(a); return ext(*p); }
double vectors(double a, double b, double c) { double e = ext(1) * a; return e + b * c * ext(2) * e; }
double both(double a, double b, int c, int d) { double e = ext(c) * a; use(&e, b); return e * ext(d) + c * b; }
int room(int a) { int x[30]; use(x, 1); return ext(x[a]); }
int large(int a) { char x[3000]; use(x, 1); return ext(x[a]); }
int larger(int a) { char x[5000]; use(x, 1); return ext(x[a]); }
int largest(int a) { char x[500000]; use(x, 1); return ext(x[a]); }
void varies(int n) { use(__builtin_alloca(n), 1.5); use(0, ext(n)); }
int variadic(int n, ...) { __builtin_va_list l; __builtin_va_start(l, n); int r = ext(__builtin_va_arg(l, int)) + n; __builtin_va_end(l); return r; }
int ways(int a, int *p) { if (a > 3) { int x = ext(a); return ext(x + *p); } *p = ext(a + 1) + ext(a + 2); if (*p > 9) return leaf(a); return ext(*p * a); }
int loop(int n) { int r = 0; for (int i = 0; i < n; i++) r += ext(i) * ext(r); return r; }
