/* heap_plug.c: a library that is loaded and unloaded. */
#include <stdlib.h>

void *plug(size_t n);
void *plug(size_t n)
{
	return malloc(n + 1);
}
