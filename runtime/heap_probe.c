/* SPDX-License-Identifier: Apache-2.0 */
/*
 * heap_probe.c: OpenTelemetry's probes of memory, for other recorders.
 *
 * otel_memory:alloc(pointer, bytes, the bytes that they stand for) is for each recorded allocation, and otel_memory:free(pointer) for each of these
 * that is freed. A note says where a probe is and where its arguments are (SystemTap's notes, version 3). The kernel counts in the probe's
 * semaphore who listens.
 */
#include "heap.h"

#define PROBE(name, arguments) \
	"1:	nop\n" \
	"	.pushsection .note.stapsdt, \"?\", \"note\"\n" \
	"	.balign 4\n" \
	"	.4byte 3f - 2f, 5f - 4f, 3\n" \
	"2:	.asciz \"stapsdt\"\n" \
	"3:	.balign 4\n" \
	"4:	.8byte 1b, _.stapsdt.base, " #name "_semaphore\n" \
	"	.asciz \"otel_memory\", \"" #name "\", \"" arguments "\"\n" \
	"5:	.balign 4\n" \
	"	.popsection\n"

/* By the address of this section, readers find out whether the file was linked anew since. */
__asm__(".pushsection .stapsdt.base, \"aG\", \"progbits\", .stapsdt.base, comdat\n"
	"	.weak _.stapsdt.base\n"
	"	.hidden _.stapsdt.base\n"
	"_.stapsdt.base:\n"
	"	.space 1\n"
	"	.size _.stapsdt.base, 1\n"
	"	.popsection\n");

volatile uint16_t alloc_semaphore __attribute__((section(".probes"), used));
volatile uint16_t free_semaphore __attribute__((section(".probes"), used));

void heap_probe_alloc(uint64_t p, uint64_t n, uint64_t weight)
{
	__asm__ volatile(PROBE(alloc, "8@%0 8@%1 8@%2") : : "r"(p), "r"(n), "r"(weight) : "memory");
}

void heap_probe_free(uint64_t p)
{
	__asm__ volatile(PROBE(free, "8@%0") : : "r"(p) : "memory");
}
