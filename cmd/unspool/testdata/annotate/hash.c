#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline unsigned mix(unsigned h, unsigned c)
{
	h ^= c;
	return h * 16777619u;
}

__attribute__((noinline)) unsigned hash(const char *s, size_t n)
{
	unsigned h = 2166136261u;
	for (size_t i = 0; i < n; i++)
		h = mix(h, s[i]);
	return h;
}

int main(int argc, char **argv)
{
	char text[4096];
	unsigned sum = 0;
	int turns = argc > 1 ? atoi(argv[1]) : 1;
	memset(text, 'x', sizeof text);
	for (int i = 0; i < turns; i++)
		sum += hash(text, sizeof text);
	printf("%u\n", sum);
	return 0;
}
