/* Says of files, each given with its build ID in hex, whether the store has a table that is found for it: "found" or "none". */
#define _GNU_SOURCE
#include "core.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int main(int argc, char **argv)
{
	for (int i = 1; i + 1 < argc; i += 2) {
		uint8_t id[64];
		size_t n = strlen(argv[i]) / 2;
		struct stat st;

		if (n > sizeof id || stat(argv[i + 1], &st) != 0)
			return 1;
		for (size_t k = 0; k < n; k++)
			if (sscanf(argv[i] + 2 * k, "%2hhx", &id[k]) != 1)
				return 1;
		puts(us_table_stored(id, n, &st) ? "found" : "none");
	}
	return 0;
}
