/*
 * Answers for each eight bytes of its input whether they end with a call, as edge.h has it; for AArch64, whether the first four lead on to a
 * return behind them.
 */
#include "edge.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
	uint64_t code;

	while (fread(&code, sizeof code, 1, stdin) == 1) {
#if MACHINE_ELF == 183
		struct unspool_edge e = {.n = 8};
		uint32_t ret = 0xd65f03c0;

		memcpy(e.code, &code, 4);
		memcpy(e.code + 4, &ret, 4);
		putchar(unspool_edge(&e) ? '1' : '0');
#else
		putchar(unspool_after_call(code) ? '1' : '0');
		(void)unspool_edge;
#endif
	}
	return 0;
}
