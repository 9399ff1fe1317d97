/* What the generated code shares with its users, spelled a second time: the test is that the two agree. */
#include <stdint.h>

struct unspool_state {
	uint64_t pc, cfa, known, in_mem, in_reg, val[64], snap[64], fault;
};

struct unspool_reader {
	int (*read8)(void *ctx, uint64_t addr, uint64_t *value);
	void *ctx;
};

struct unspool_word {
	uint64_t addr, value, ok;
};

struct unspool_slice {
	uint64_t lo, size;
	const unsigned char *bytes;
	const struct unspool_word *words;
	uint64_t n_words, more;
};

uint32_t gen_find(uint64_t pc);
int gen_apply(struct unspool_state *s, const void *mem, uint32_t rule);
int gen_step(struct unspool_state *s, const void *mem, uint64_t pc);
