/* dwfl.c - walks snapshots with elfutils' libdwfl. gcc dwfl.c snap.c -ldw -lelf */
#define _GNU_SOURCE
#include "snap.h"

#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static const struct sample *now; /* the sample being walked */
static Elf *self;                /* an ELF file of the machine, for dwfl_attach_state */

/* No file but those that the stream names: separate debugging information could only add to what the
 * other walkers see. */
static int no_debuginfo(Dwfl_Module *mod, void **user, const char *name, Dwarf_Addr base, const char *file,
                        const char *link, GElf_Word crc, char **found)
{
	(void)mod, (void)user, (void)name, (void)base, (void)file, (void)link, (void)crc, (void)found;
	return -1;
}

static const Dwfl_Callbacks callbacks = {
	.find_elf = dwfl_build_id_find_elf,
	.find_debuginfo = no_debuginfo,
};

static pid_t next_thread(Dwfl *d, void *arg, void **thread)
{
	(void)d;
	if (*thread)
		return 0;
	*thread = arg;
	return 1;
}

static bool get_thread(Dwfl *d, pid_t tid, void *arg, void **thread)
{
	(void)d, (void)tid;
	*thread = arg;
	return true;
}

static bool memory_read(Dwfl *d, Dwarf_Addr a, Dwarf_Word *val, void *arg)
{
	(void)d, (void)arg;
	uint64_t v;
	if (!snap_read(now, a, &v))
		return false;
	*val = v;
	return true;
}

static bool initial(Dwfl_Thread *t, void *arg)
{
	(void)arg;
	return dwfl_thread_state_registers(t, 0, NREGS, (const Dwarf_Word *)now->regs);
}

static const Dwfl_Thread_Callbacks threads = {
	.next_thread = next_thread,
	.get_thread = get_thread,
	.memory_read = memory_read,
	.set_initial_registers = initial,
};

static bool update(struct space *s)
{
	Dwfl *d = s->peer;
	dwfl_report_begin_add(d);
	for (unsigned i = 0; i < s->nmod; i++) {
		struct module *m = &s->mod[i];
		if (!m->told)
			dwfl_report_elf(d, m->file->path, m->file->path, -1, m->bias, true);
		m->told = true;
	}
	return dwfl_report_end(d, NULL, NULL) == 0;
}

static bool open_space(struct space *s)
{
	Dwfl *d = dwfl_begin(&callbacks);
	if (!d)
		return false;
	s->peer = d;
	if (update(s) && dwfl_attach_state(d, self, 1, &threads, s))
		return true;
	dwfl_end(d);
	s->peer = NULL;
	return false;
}

static void close_space(struct space *s)
{
	dwfl_end(s->peer);
}

static int frame(Dwfl_Frame *f, void *arg)
{
	struct chain *c = arg;
	Dwarf_Addr pc;
	bool exact;
	if (!dwfl_frame_pc(f, &pc, &exact))
		return DWARF_CB_ABORT;
	if (c->n == MAX_DEPTH) {
		c->stop = "depth limit";
		return DWARF_CB_ABORT;
	}
	c->pc[c->n] = pc;
	c->exact[c->n++] = exact;
	return DWARF_CB_OK;
}

static void walk(const struct sample *x, struct chain *c)
{
	now = x;
	if (dwfl_getthread_frames(x->space->peer, 1, frame, c) < 0 && !*c->stop)
		c->stop = dwfl_errmsg(-1);
	if (!c->stop)
		c->stop = "";
	if (c->n == 0) {
		c->pc[0] = x->regs[REG_IP];
		c->exact[0] = 1;
		c->n = 1;
	}
}

int main(void)
{
	elf_version(EV_CURRENT);
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	self = elf_begin(fd, ELF_C_READ_MMAP, NULL);
	if (!self)
		snap_die("reading the driver itself");
	static const struct peer p = {256, open_space, update, close_space, walk};
	return snap_serve(&p);
}
