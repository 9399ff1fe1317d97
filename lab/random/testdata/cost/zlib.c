// Compresses and expands a text of a megabyte, so many times.
#include <stdlib.h>
#include <string.h>
#include "zlib.h"

enum { size = 1 << 20 };
static unsigned char text[size], packed[size + size / 8 + 64], again[size];

int main(int argc, char **argv) {
	unsigned x = 1;
	for (int i = 0; i < size; i++) {
		x = x * 1664525 + 1013904223;
		text[i] = i > 5000 && (x >> 28) > 3 ? text[i - 37 - (x >> 20) % 64] : 'a' + (x >> 24) % 26;
	}
	for (int n = atoi(argv[1]); n > 0; n--) {
		uLongf m = sizeof packed, k = size;
		if (compress2(packed, &m, text, size, 6) != Z_OK || uncompress(again, &k, packed, m) != Z_OK || k != size || memcmp(text, again, size)) return 1;
	}
	return 0;
}
