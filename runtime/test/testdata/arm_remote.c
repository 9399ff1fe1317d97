/*
 * The drop-in for any process, for AArch64, on a process that is made up: its addresses are where the kernel puts programs and stacks, beyond
 * those of qemu-user. CODE is where its program is. Says what is wrong.
 */
#include "space.h"

#include <stdio.h>
#include <string.h>

#define STACK 0xfffff0000000ull
#define SIGNATURE (CODE >> 48 ? 5ull << 52 : 0x55ull << 48)
#define TAG (0x5aull << 56)
enum { WORDS = 64 };

static uint64_t stack[WORDS], regs[US_SLOTS];
static int wrong;

#define IS(what, got, want) \
	do { \
		unsigned long long g = (got), w = (want); \
		if (g != w) { \
			printf("%s: %#llx, not %#llx\n", what, g, w); \
			wrong = 1; \
		} \
	} while (0)

static int find_proc_info(unw_addr_space_t as, unw_word_t ip, unw_proc_info_t *pi, int need, void *arg)
{
	(void)as, (void)ip, (void)pi, (void)need, (void)arg;
	return -UNW_ENOINFO;
}

static int no_list(unw_addr_space_t as, unw_word_t *to, void *arg)
{
	(void)as, (void)to, (void)arg;
	return -UNW_ENOINFO;
}

/* The stack; and code, which is of no meaning. */
static int access_mem(unw_addr_space_t as, unw_word_t addr, unw_word_t *v, int write, void *arg)
{
	(void)as, (void)arg;
	if (addr - CODE < 1 << 16 && !write) {
		*v = 0;
		return 0;
	}
	if (addr - STACK > sizeof stack - 8)
		return -UNW_EINVAL;
	if (write)
		memcpy((char *)stack + (addr - STACK), v, 8);
	else
		memcpy(v, (char *)stack + (addr - STACK), 8);
	return 0;
}

static int access_reg(unw_addr_space_t as, unw_regnum_t n, unw_word_t *v, int write, void *arg)
{
	(void)as, (void)arg;
	if (n < 0 || n >= US_SLOTS)
		return -UNW_EBADREG;
	if (write)
		regs[n] = *v;
	else
		*v = regs[n];
	return 0;
}

unw_addr_space_t U(create_addr_space)(unw_accessors_t *, int);
int U(init_remote)(unw_cursor_t *, unw_addr_space_t, void *);
int U(step)(unw_cursor_t *);
int U(get_reg)(unw_cursor_t *, int, unw_word_t *);
int U(set_reg)(unw_cursor_t *, int, unw_word_t);
int U(get_save_loc)(unw_cursor_t *, int, unw_save_loc_t *);
int U(resume)(unw_cursor_t *);
int U(apply_reg_state)(unw_cursor_t *, void *);

static int resume(unw_addr_space_t as, unw_cursor_t *c, void *arg)
{
	(void)as, (void)c, (void)arg;
	return 0;
}

static unw_word_t get(unw_cursor_t *c, int n)
{
	unw_word_t v = 0;

	IS("get_reg", U(get_reg)(c, n, &v), 0);
	return v;
}

int main(void)
{
	unw_accessors_t acc = {.find_proc_info = find_proc_info, .get_dyn_info_list_addr = no_list, .access_mem = access_mem, .access_reg = access_reg, .resume = resume};
	struct us_rule leaf = {.kind = US_KIND_REG, .reg = US_SP, .off = 0};
	/* x29 and x30 at the frame pointer, x30 signed */
	struct us_rule framed = {.kind = US_KIND_REG, .reg = US_FP, .off = 16, .flags = US_SIGNED};
	unw_save_loc_t loc;
	unw_addr_space_t as = U(create_addr_space)(&acc, 0);
	unw_cursor_t c;

	for (unsigned i = 0; i < MACHINE(N_SAVES); i++) {
		if (us_save_slot[i] != US_FP && us_save_slot[i] != US_RA)
			continue;
		framed.mask |= 1u << i;
		framed.saves[i] = us_save_slot[i] == US_FP ? -2 : -1;
	}
	/* Two frame records, of functions without unwind information. */
	stack[4] = STACK + 8 * 8;
	stack[5] = CODE + 0x100;
	stack[9] = CODE + 0x200;
	regs[US_PC] = CODE + 0x40;
	regs[US_SP] = STACK;
	regs[US_FP] = STACK + 4 * 8;
	IS("init", U(init_remote)(&c, as, NULL), 0);
	IS("first step", U(step)(&c), 1);
	IS("pc", get(&c, UNW_PC), CODE + 0x100);
	IS("sp", get(&c, US_SP), STACK + 6 * 8);
	IS("second step", U(step)(&c), 1);
	IS("pc", get(&c, UNW_PC), CODE + 0x200);

	/* Number 30 stands for the program counter; x0 to x3 are what a handler gets. The frame's x30 is lost, so the process keeps its own. */
	regs[30] = 0x30;
	regs[3] = 0x33;
	IS("set_reg", U(set_reg)(&c, UNW_IP, CODE + 0x300), 0);
	IS("set_reg x3", U(set_reg)(&c, 3, 3), 0);
	IS("pc", get(&c, UNW_PC), CODE + 0x300);
	IS("the return address", stack[9], CODE + 0x300);
	IS("resume", U(resume)(&c), 0);
	IS("pc", regs[US_PC], CODE + 0x300);
	IS("sp", regs[US_SP], STACK + 10 * 8);
	IS("x30", regs[30], 0x30);
	IS("x3", regs[3], 3);

	/* A function that has saved nothing: its return address is in x30, not where its program counter is. */
	regs[30] = CODE + 0x400;
	IS("init", U(init_remote)(&c, as, NULL), 0);
	IS("leaf", U(apply_reg_state)(&c, &leaf), 1);
	IS("pc", get(&c, UNW_PC), CODE + 0x400);
	IS("get_save_loc", U(get_save_loc)(&c, UNW_PC, &loc), 0);
	IS("where the program counter is", (unsigned)loc.type, UNW_SLT_NONE);

	/* A signature is in the bits that an address does not have: here those above 52, or above 48. */
	stack[5] = (CODE + 0x100) | SIGNATURE;
	stack[9] = (CODE + 0x500) | SIGNATURE;
	regs[US_PC] = CODE + 0x40;
	regs[US_SP] = STACK;
	regs[US_FP] = STACK + 4 * 8;
	IS("init", U(init_remote)(&c, as, NULL), 0);
	IS("to a signed address", U(step)(&c), 1);
	IS("pc", get(&c, UNW_PC), CODE + 0x100);
	IS("by a rule", U(apply_reg_state)(&c, &framed), 1);
	IS("pc", get(&c, UNW_PC), CODE + 0x500);

	/* Memory is read, and written, by an address whose high byte has a tag. */
	regs[US_FP] |= TAG;
	IS("init", U(init_remote)(&c, as, NULL), 0);
	IS("from a frame with a tag", U(apply_reg_state)(&c, &framed), 1);
	IS("pc", get(&c, UNW_PC), CODE + 0x100);
	IS("fp", get(&c, US_FP), STACK + 8 * 8);
	IS("set_reg fp", U(set_reg)(&c, US_FP, 1), 0);
	IS("the frame pointer", stack[4], 1);
	return wrong;
}
