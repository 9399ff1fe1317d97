/* The reader as an eBPF program sees it: the table in an array map, a byte at a time by a helper. It is compiled only. */
typedef unsigned char uint8_t;
typedef signed char int8_t;
typedef unsigned short uint16_t;
typedef short int16_t;
typedef unsigned int uint32_t;
typedef int int32_t;
typedef unsigned long long uint64_t;
typedef long long int64_t;

#define MAX_SIZE (1u << 20)

struct map_value {
	uint8_t bytes[MAX_SIZE];
};

static long (*probe_read_user)(void *to, uint32_t n, const void *from) = (void *)112;
#define UNSPOOL_LOAD(ctx, addr, to) ((void)(ctx), probe_read_user(to, 8, (const void *)(addr)) == 0)
#define UNSPOOL_TABLE_U8(t, i) ((uint64_t)(i) < (t)->size && (uint64_t)(i) < MAX_SIZE ? (t)->bytes[(i) & (MAX_SIZE - 1)] : 0)
#define UNSPOOL_NO_STDINT
#include "unspool_table.h"

struct context {
	struct unspool_table t;
	struct unspool_state s;
};

int step(struct context *c)
{
	return unspool_table_apply(&c->t, unspool_table_find(&c->t, c->s.pc), &c->s, (void *)0);
}
