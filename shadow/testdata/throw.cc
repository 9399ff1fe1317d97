// Exceptions, thrown through frames that have destructors to call.
#include <stdexcept>
#include <string>
#include <cstdio>
struct D { ~D() { puts("d"); } };
__attribute__((noinline)) int f(int n) { D d; if (n == 0) throw std::runtime_error("x"); return f(n - 1) + 1; }
int main() { int c = 0; for (int i = 0; i < 5; i++) try { f(i); } catch (std::exception &e) { c++; } printf("%d\n", c); }
