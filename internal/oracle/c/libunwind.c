/* libunwind.c - walks snapshots through libunwind's remote interface. gcc libunwind.c snap.c -lunwind-x86_64
 *
 *	libunwind [none|global] [cache=N] [nosigmask]
 *
 * global caching is what stock perf asks for. cache=N sets the size of the cache, and nosigmask makes the
 * four system calls of each step free: together the fastest that the library can be made without
 * changing it. */
#define _GNU_SOURCE
#include "snap.h"

#include <libunwind-x86_64.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool nosigmask;
static unw_caching_policy_t policy = UNW_CACHE_GLOBAL;
static size_t cache_size;

/* Stands in for the C library's. */
int sigprocmask(int how, const sigset_t *set, sigset_t *old)
{
	if (nosigmask)
		return 0;
	return (int)syscall(SYS_rt_sigprocmask, how, set, old, 8);
}

/* Exported, though in no header. */
extern int UNW_OBJ(dwarf_search_unwind_table)(unw_addr_space_t, unw_word_t, unw_dyn_info_t *, unw_proc_info_t *, int,
                                              void *);

static int find_proc_info(unw_addr_space_t as, unw_word_t ip, unw_proc_info_t *pi, int need, void *arg)
{
	const struct sample *x = arg;
	const struct mapping *m = snap_find(x->space, ip);
	if (!m || m->module == NO_MODULE)
		return -UNW_ENOINFO;
	const struct module *mod = &x->space->mod[m->module];
	if (!mod->file->hdr_table)
		return -UNW_ENOINFO;
	unw_dyn_info_t di = {
		.start_ip = m->lo,
		.end_ip = m->hi,
		.format = UNW_INFO_FORMAT_REMOTE_TABLE,
		.u.rti = {
			.segbase = mod->file->hdr + mod->bias,
			.table_data = mod->file->hdr_table + mod->bias,
			.table_len = mod->file->hdr_len,
		},
	};
	return UNW_OBJ(dwarf_search_unwind_table)(as, ip, &di, pi, need, arg);
}

static void put_unwind_info(unw_addr_space_t as, unw_proc_info_t *pi, void *arg)
{
	(void)as, (void)pi, (void)arg;
}

static int dyn_info_list(unw_addr_space_t as, unw_word_t *a, void *arg)
{
	(void)as, (void)a, (void)arg;
	return -UNW_ENOINFO;
}

static int access_mem(unw_addr_space_t as, unw_word_t a, unw_word_t *val, int write, void *arg)
{
	(void)as;
	uint64_t v;
	if (write || !snap_read(arg, a, &v))
		return -UNW_EINVAL;
	*val = v;
	return 0;
}

static int access_reg(unw_addr_space_t as, unw_regnum_t r, unw_word_t *val, int write, void *arg)
{
	(void)as;
	const struct sample *x = arg;
	if (write || r < 0 || r >= NREGS)
		return -UNW_EBADREG;
	*val = x->regs[r];
	return 0;
}

static int access_fpreg(unw_addr_space_t as, unw_regnum_t r, unw_fpreg_t *val, int write, void *arg)
{
	(void)as, (void)r, (void)val, (void)write, (void)arg;
	return -UNW_EINVAL;
}

static int resume(unw_addr_space_t as, unw_cursor_t *c, void *arg)
{
	(void)as, (void)c, (void)arg;
	return -UNW_EINVAL;
}

static int proc_name(unw_addr_space_t as, unw_word_t a, char *buf, size_t n, unw_word_t *off, void *arg)
{
	(void)as, (void)a, (void)buf, (void)n, (void)off, (void)arg;
	return -UNW_EINVAL;
}

static unw_accessors_t accessors = {
	.find_proc_info = find_proc_info,
	.put_unwind_info = put_unwind_info,
	.get_dyn_info_list_addr = dyn_info_list,
	.access_mem = access_mem,
	.access_reg = access_reg,
	.access_fpreg = access_fpreg,
	.resume = resume,
	.get_proc_name = proc_name,
};

static bool open_space(struct space *s)
{
	unw_addr_space_t as = unw_create_addr_space(&accessors, 0);
	if (!as)
		return false;
	if (cache_size) {
		/* 1.6.2 forgets the first size given to a cache that was never used. */
		unw_set_cache_size(as, cache_size, 0);
		unw_set_cache_size(as, cache_size, 0);
	}
	unw_set_caching_policy(as, policy);
	s->peer = as;
	return true;
}

static void close_space(struct space *s)
{
	unw_destroy_addr_space(s->peer);
}

static const char *reason(int err)
{
	static const char *const names[] = {"", "unspecified", "no memory", "bad register", "read-only register", "stop",
	                                    "invalid ip", "bad frame", "invalid", "bad version", "no info"};
	return -err >= 0 && (size_t)-err < sizeof names / sizeof *names ? names[-err] : "?";
}

static void walk(const struct sample *x, struct chain *c)
{
	unw_cursor_t cur;
	int r = unw_init_remote(&cur, x->space->peer, (void *)(uintptr_t)x);
	c->pc[0] = x->regs[REG_IP];
	c->exact[0] = 1;
	c->n = 1;
	while (r >= 0 && (r = unw_step(&cur)) > 0) {
		unw_word_t ip;
		if ((r = unw_get_reg(&cur, UNW_REG_IP, &ip)) < 0)
			break;
		if (ip == 0)
			break;
		if (c->n == MAX_DEPTH) {
			c->stop = "depth limit";
			return;
		}
		c->pc[c->n] = ip;
		c->exact[c->n++] = unw_is_signal_frame(&cur) > 0;
	}
	c->stop = reason(r < 0 ? r : 0);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "none"))
			policy = UNW_CACHE_NONE;
		else if (!strcmp(argv[i], "global"))
			policy = UNW_CACHE_GLOBAL;
		else if (!strncmp(argv[i], "cache=", 6))
			cache_size = strtoul(argv[i] + 6, NULL, 10);
		else if (!strcmp(argv[i], "nosigmask"))
			nosigmask = true;
		else
			snap_die("usage: libunwind [none|global] [cache=N] [nosigmask]");
	}
	static const struct peer p = {512, open_space, NULL, close_space, walk};
	return snap_serve(&p);
}
