/* Answers for each eight bytes of its input whether they end with a call, as edge.h has it. */
#include "edge.h"

#include <stdio.h>

int main(void)
{
	uint64_t code;

	while (fread(&code, sizeof code, 1, stdin) == 1)
		putchar(unspool_after_call(code) ? '1' : '0');
	(void)unspool_edge;
	return 0;
}
