// chain: (LIB|plt)* s_throw? s_middle{0,3} s_catch main START
// not: musl (there is no C++ library for it)
// not: tcc
// not: gcc-O2-debugframe (it is without exceptions)
// Exceptions, thrown through functions with destructors and caught, all the time.
#include "shape.h"
#include <stdexcept>

struct guard {
	int *n;
	~guard() { ++*n; }
};

extern "C" {
FN void s_throw(int n)
{
	if (n > 0)
		throw std::runtime_error("thrown");
	KEEP;
}

FN int s_middle(int n, int *count)
{
	guard g{count};

	if (n > 1)
		return s_middle(n - 1, count) + 1;
	s_throw(n);
	KEEP;
	return *count;
}

FN void s_catch(void)
{
	int count = 0;

	READY;
	while (forever) {
		try {
			s_middle(3, &count);
		} catch (const std::exception &e) {
			count += e.what()[0];
		}
		KEEP;
	}
}
}

int main(void)
{
	BEGIN;
	s_catch();
	KEEP;
	return 0;
}
