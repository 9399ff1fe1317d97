// Publishes a process context (OTEP 4719), written after its text: publish MODE FILE [FILE or DIRECTORY]. The files are payloads of at most 64 KiB.
//   memfd   the first; then, for each line of the input, the other
//   anon    the same in private memory, which the kernel may not be able to name
//   churn   the two in turn, as fast as it can, in the same memory
//   file    the first, in a mapping of its file
//   fuse    64 KiB of a file system below the directory that never answers when the file is read
//   stall   the first, in memory that waits for userfaultfd(2), until there is a line
// It writes "ready" when the context is there, and after each line; or what it lacks.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif

enum { room = 64 << 10, page = 4096 };

struct context {
	char signature[8];
	uint32_t version, size;
	_Atomic uint64_t published;
	char *payload;
};
_Static_assert(sizeof(struct context) == 32, "a header has 32 bytes");

static uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
	perror(what);
	printf("no %s\n", what);
	exit(1);
}

static size_t load(const char *path, char *to) {
	int fd = open(path, O_RDONLY);
	ssize_t n = fd < 0 ? -1 : read(fd, to, room);
	if (n < 0)
		die(path);
	close(fd);
	return (size_t)n;
}

static void ready(void) {
	puts("ready");
	fflush(stdout);
}

// serve is a file system with the file "x" (fuse(4), linux/fuse.h). It does not answer who reads the file.
static void serve(int fd) {
	static union {
		struct fuse_in_header head;
		char room[256 << 10];
	} in;
	while (read(fd, &in, sizeof in) > 0) {
		struct {
			struct fuse_out_header head;
			union {
				struct fuse_init_out init;
				struct fuse_entry_out entry;
				struct fuse_attr_out attr;
				struct fuse_open_out open;
			};
		} out = {.head = {.unique = in.head.unique}};
		struct fuse_attr file = {.ino = 2, .size = room, .mode = S_IFREG | 0444, .nlink = 1}, dir = {.ino = 1, .mode = S_IFDIR | 0555, .nlink = 2};
		size_t size = 0;
		switch (in.head.opcode) {
		case FUSE_INIT:
			out.init = (struct fuse_init_out){.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION, .max_write = page};
			size = sizeof out.init;
			break;
		case FUSE_LOOKUP:
			out.entry = (struct fuse_entry_out){.nodeid = 2, .entry_valid = 1000, .attr_valid = 1000, .attr = file};
			size = sizeof out.entry;
			break;
		case FUSE_GETATTR:
			out.attr = (struct fuse_attr_out){.attr_valid = 1000, .attr = in.head.nodeid == 1 ? dir : file};
			size = sizeof out.attr;
			break;
		case FUSE_OPEN:
			size = sizeof out.open;
			break;
		case FUSE_READ:
		case FUSE_FORGET:
		case FUSE_BATCH_FORGET:
		case FUSE_INTERRUPT:
			continue;
		default:
			out.head.error = -38; // ENOSYS
		}
		out.head.len = (uint32_t)(sizeof out.head + size);
		if (write(fd, &out, out.head.len) < 0)
			die("fuse");
	}
	exit(0);
}

// unanswered returns a mapping of a file that nobody can read. The file system ends with this process.
static char *unanswered(const char *dir) {
	char options[128], path[4096];
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
	snprintf(path, sizeof path, "%s/x", dir);
	if (fd < 0 || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("publish", dir, "fuse", 0, options))
		die("fuse");
	pid_t own = getpid();
	switch (fork()) {
	case -1:
		die("fork");
		break;
	case 0:
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() == own)
			serve(fd);
		exit(1);
	}
	close(fd);
	int in = open(path, O_RDONLY);
	char *to = in < 0 ? MAP_FAILED : mmap(NULL, room, PROT_READ, MAP_PRIVATE, in, 0);
	if (to == MAP_FAILED)
		die("fuse");
	return to;
}

int main(int argc, char **argv) {
	char *payloads[2] = {malloc(room), malloc(room)}, *same = malloc(room);
	size_t sizes[2] = {0, 0};
	if (argc < 3 || !payloads[0] || !payloads[1] || !same)
		return 2;
	int fuse = !strcmp(argv[1], "fuse") && argc > 3;
	for (int i = 0; i < 2; i++)
		sizes[i] = load(argv[2 + (argc > 3 && !fuse ? i : 0)], payloads[i]);

	int fd = strcmp(argv[1], "anon") ? memfd_create("OTEL_CTX", MFD_CLOEXEC) : -1;
	if (fd >= 0 && ftruncate(fd, page))
		die("ftruncate");
	struct context *c = mmap(NULL, page, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
	if (c == MAP_FAILED)
		die("mmap");
	if (fd >= 0)
		close(fd);
	madvise(c, page, MADV_DONTFORK);
	c->version = 2;
	c->size = (uint32_t)sizes[0];
	c->payload = payloads[0];
	int uffd = -1;
	if (!strcmp(argv[1], "stall")) {
		uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
		struct uffdio_api api = {.api = UFFD_API};
		char *trap = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct uffdio_register r = {.range = {(uintptr_t)trap, room}, .mode = UFFDIO_REGISTER_MODE_MISSING};
		if (uffd < 0 || trap == MAP_FAILED || ioctl(uffd, UFFDIO_API, &api) || ioctl(uffd, UFFDIO_REGISTER, &r))
			die("userfaultfd");
		c->payload = trap;
	} else if (!strcmp(argv[1], "file")) {
		int in = open(argv[2], O_RDONLY);
		c->payload = mmap(NULL, sizes[0], PROT_READ, MAP_PRIVATE, in, 0);
		if (in < 0 || c->payload == MAP_FAILED)
			die(argv[2]);
	} else if (fuse) {
		c->payload = unanswered(argv[3]);
	} else if (!strcmp(argv[1], "churn")) {
		memcpy(same, payloads[0], sizes[0]);
		c->payload = same;
	}
	atomic_store(&c->published, now());
	atomic_thread_fence(memory_order_seq_cst);
	memcpy(c->signature, "OTEL_CTX", 8);
	if (prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, c, page, "OTEL_CTX") && !strcmp(argv[1], "anon")) {
		puts("no name");
		return 0;
	}
	ready();

	for (int i = 1; !strcmp(argv[1], "churn"); i ^= 1) {
		atomic_store(&c->published, 0);
		memcpy(same, payloads[i], sizes[i]);
		c->size = (uint32_t)sizes[i];
		atomic_store(&c->published, now());
		for (int n = 0; n < 2000; n++)
			atomic_signal_fence(memory_order_seq_cst);
	}
	char line[64];
	for (int i = 1; fgets(line, sizeof line, stdin); i ^= 1) {
		if (uffd >= 0) {
			struct uffdio_zeropage z = {.range = {(uintptr_t)c->payload, room}};
			ioctl(uffd, UFFDIO_ZEROPAGE, &z);
		} else {
			atomic_store(&c->published, 0);
			c->payload = payloads[i];
			c->size = (uint32_t)sizes[i];
			atomic_store(&c->published, now());
		}
		ready();
	}
	pause();
}
