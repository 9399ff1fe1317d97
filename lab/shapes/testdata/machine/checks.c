// What machines run to be recorded: checks MODE [SECONDS].
#define _GNU_SOURCE
#include "../shape.h"
#include <dirent.h>
#include <errno.h>
#include <linux/capability.h>
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>

// WORK takes a fraction of a second of an emulated processor.
enum { WORK = 4000 };

// Seconds of processor time, and no less than WORK: where the host has no time for the machine, its second is few instructions and few samples.
FN void s_burn(int seconds)
{
	for (long work = 0; clock() < seconds * CLOCKS_PER_SEC || work < WORK; work++)
		for (volatile int i = 0; i < 20000; i++)
			;
	KEEP;
}

FN void s_again(void)
{
	execl("/proc/self/exe", "again", "burn", (char *)0);
	KEEP;
}

FN void s_spin(void) { SPIN; }

FN void s_wait(void)
{
	struct timespec t = {0, 100000000};

	nanosleep(&t, 0);
	KEEP;
}

enum { MAX = 32768 };
static double ran[MAX]; // by process: seconds at the beginning

// Waits for so many seconds, and until all other children of the first process, but this one's parent, have had enough of the processor to be
// sampled: where the host runs QEMU seldom, that takes the scheduler much longer.
FN int s_until(int seconds)
{
	const double enough = 0.2, most = 80;

	for (double waited = 0; waited < most; waited += 0.1) {
		struct dirent *e;
		int lacking = 0;
		DIR *d = opendir("/proc");

		if (!d)
			return 1;
		while ((e = readdir(d))) {
			char path[300], text[400], *end;
			int pid = atoi(e->d_name), parent = 0;
			FILE *f;
			clockid_t id;
			struct timespec t;

			snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
			if (pid <= 0 || pid == getppid() || !(f = fopen(path, "r")))
				continue;
			if (fgets(text, sizeof text, f) && (end = strrchr(text, ')')))
				sscanf(end + 1, " %*c %d", &parent);
			fclose(f);
			if (parent != 1 || clock_getcpuclockid(pid, &id) != 0 || clock_gettime(id, &t) != 0)
				continue;
			if (pid >= MAX || t.tv_sec + t.tv_nsec * 1e-9 - (waited == 0 ? 0 : ran[pid]) < enough)
				lacking++;
			if (waited == 0 && pid < MAX)
				ran[pid] = t.tv_sec + t.tv_nsec * 1e-9;
		}
		closedir(d);
		if (waited >= seconds && !lacking)
			return 0;
		s_wait();
	}
	return 0;
}

// Takes a hardware breakpoint of each processor, for an address that is not executed, and keeps it.
FN int s_watch(void)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_BREAKPOINT, .size = sizeof attr, .bp_type = HW_BREAKPOINT_X, .bp_addr = (unsigned long)ran, .bp_len = sizeof(long),
	};

	for (int cpu = 0; cpu < sysconf(_SC_NPROCESSORS_ONLN); cpu++)
		if (syscall(SYS_perf_event_open, &attr, -1, cpu, -1, 0) < 0) {
			perror("perf_event_open");
			return 1;
		}
	puts("watches");
	fflush(stdout);
	for (;;)
		pause();
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

FN void s_take(int fd)
{
	char c;

	for (int i = 0; i < 5; i++)
		if (read(fd, &c, 1) != 1)
			_exit(1);
	KEEP;
}

FN void s_put(int fd)
{
	for (int i = 0; i < 5; i++) {
		s_wait();
		if (write(fd, "x", 1) != 1)
			_exit(1);
	}
	KEEP;
}

// A process waits for what another one writes.
FN int s_pair(void)
{
	int fd[2], status = 1;

	if (pipe(fd) != 0)
		return 1;
	if (fork() == 0) {
		s_take(fd[0]);
		_exit(0);
	}
	s_put(fd[1]);
	wait(&status);
	return status;
}

FN void s_set(const char *path, const char *value)
{
	FILE *f = fopen(path, "w");

	if (!f || fputs(value, f) < 0 || fclose(f) != 0) {
		perror(path);
		exit(1);
	}
}

// Takes the second processor away, or gives it back.
FN void s_switch(const char *online) { s_set("/sys/devices/system/cpu/cpu1/online", online); KEEP; }

// Burns on the second processor.
FN void s_second(int seconds)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(1, &set);
	if (sched_setaffinity(0, sizeof set, &set) != 0) {
		perror("sched_setaffinity");
		exit(1);
	}
	s_burn(seconds);
	CPU_SET(0, &set);
	sched_setaffinity(0, sizeof set, &set);
	KEEP;
}

FN void s_plugged(void) { s_second(4); KEEP; }
FN void s_replugged(void) { s_second(8); KEEP; } // of processor time since the beginning

// The clock is set to so many seconds after 2030-01-01 12:00 UTC.
FN void s_clock(long seconds)
{
	struct timespec t = {1893499200 + seconds, 0};

	if (clock_settime(CLOCK_REALTIME, &t) != 0) {
		perror("clock_settime");
		exit(1);
	}
	KEEP;
}

FN void s_early(void) { s_burn(6); KEEP; } // of processor time since the beginning, each
FN void s_ahead(void) { s_burn(12); KEEP; }
FN void s_late(void) { s_burn(18); KEEP; }

// Seconds for which the machine has been suspended so far.
FN double s_asleep(void)
{
	struct timespec all, awake;

	clock_gettime(CLOCK_MONOTONIC, &awake);
	clock_gettime(CLOCK_BOOTTIME, &all);
	return all.tv_sec - awake.tv_sec + (all.tv_nsec - awake.tv_nsec) / 1e9;
}

// Suspends the machine until its clock wakes it. KIND is what /sys/power/state takes.
FN void s_suspend(const char *kind)
{
	double was = s_asleep();

	s_set("/sys/class/rtc/rtc0/wakealarm", "+8");
	s_set("/sys/power/state", kind);
	printf("asleep %.1f\n", s_asleep() - was);
	KEEP;
}

FN void s_fault(void) { INVALID; KEEP; }
FN void s_crash(void) { s_fault(); KEEP; }

// How many BPF programs are loaded, and files pinned. It waits for the kernel to free them, or, with some, for the first to come: so many seconds at
// most.
FN int s_programs(int some, int seconds)
{
	int programs = 0, pinned = 0;

	for (int tries = 0; tries < seconds * 10; tries++) {
		struct { unsigned start, next, flags, more; } attr = {0, 0, 0, 0};
		struct statfs fs;
		DIR *d = opendir("/sys/fs/bpf");

		if (!d || statfs("/sys/fs/bpf", &fs) != 0 || fs.f_type != 0xcafe4a11 /* BPF_FS_MAGIC */) {
			fprintf(stderr, "no BPF file system\n");
			return 1;
		}
		programs = pinned = 0;
		while (syscall(SYS_bpf, 11 /* BPF_PROG_GET_NEXT_ID */, &attr, sizeof attr) == 0) {
			programs++;
			attr.start = attr.next;
		}
		if (errno != ENOENT) { // the end
			perror("bpf");
			return 1;
		}
		for (struct dirent *e; (e = readdir(d)); )
			pinned += e->d_name[0] != '.';
		closedir(d);
		if ((programs + pinned != 0) == some)
			break;
		s_wait();
	}
	printf("%d programs, %d pinned\n", programs, pinned);
	return 0;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	BEGIN;
	if (strcmp(mode, "burn") == 0)
		s_burn(argc > 2 ? atoi(argv[2]) : 1);
	else if (strcmp(mode, "exec") == 0)
		s_again();
	else if (strcmp(mode, "spin") == 0)
		s_spin();
	else if (strcmp(mode, "until") == 0)
		return s_until(argc > 2 ? atoi(argv[2]) : 1);
	else if (strcmp(mode, "waits") == 0) {
		double began = now();

		for (int i = 0; i < 5; i++)
			s_wait();
		printf("%.0f\n", now() - began); // nanoseconds
	} else if (strcmp(mode, "pair") == 0)
		return s_pair();
	else if (strcmp(mode, "watch") == 0)
		return s_watch();
	else if (strcmp(mode, "crash") == 0)
		s_crash();
	else if (strcmp(mode, "paranoid") == 0 && argc > 2)
		s_set("/proc/sys/kernel/perf_event_paranoid", argv[2]);
	else if (strcmp(mode, "unplug") == 0)
		s_switch("0");
	else if (strcmp(mode, "replug") == 0) {
		s_switch("1");
		s_plugged();
		s_switch("0");
		s_switch("1");
		s_replugged();
	} else if (strcmp(mode, "noon") == 0)
		s_clock(0);
	else if (strcmp(mode, "clock") == 0) {
		s_early();
		s_clock(5400);
		s_ahead();
		s_clock(1800);
		s_late();
	} else if (strcmp(mode, "suspend") == 0 && argc > 2) {
		s_early();
		s_suspend(argv[2]);
		s_late();
	} else if (strcmp(mode, "run") == 0 && argc > 2) { // says so, and becomes another program
		if (write(1, "run\n", 4) != 4)
			return 1;
		execv(argv[2], argv + 2);
		return 1;
	} else if (strcmp(mode, "five") == 0 && argc > 2) { // becomes another program, with the capabilities that doctor --agent lists
		static const int five[] = {CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_SYSLOG};
		struct rlimit all = {RLIM_INFINITY, RLIM_INFINITY}; // LimitMEMLOCK of the agent's unit

		if (setrlimit(RLIMIT_MEMLOCK, &all) != 0)
			return 1;
		for (int c = 0; prctl(PR_CAPBSET_READ, c) >= 0; c++) {
			int keep = 0;

			for (unsigned i = 0; i < sizeof five / sizeof *five; i++)
				keep |= c == five[i];
			if (!keep && prctl(PR_CAPBSET_DROP, c) != 0)
				return 1;
		}
		execv(argv[2], argv + 2);
		return 1;
	} else if (strcmp(mode, "programs") == 0)
		return argc > 2 ? s_programs(1, 20) : s_programs(0, 5);
	KEEP;
	return 0;
}
