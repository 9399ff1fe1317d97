/*
 * Samples its own stacks a hundred times a second of processor time, and prints them at the end as flame graphs take them, outermost first:
 * cc profile.c $(pkg-config --cflags --libs unspool). The handler writes into memory that is there already; names are looked up at the end.
 */
#include <libunspool.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

enum { SAMPLES = 10000, FRAMES = 64 };

static struct sample {
	int n;
	struct unspool_frame f[FRAMES];
} samples[SAMPLES];
static volatile sig_atomic_t taken;

static void on_prof(int sig, siginfo_t *info, void *uc)
{
	int i = __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);

	(void)sig;
	(void)info;
	if (i < SAMPLES)
		samples[i].n = unspool_backtrace_context(uc, 1, samples[i].f, FRAMES, NULL);
}

static void every(int microseconds)
{
	struct itimerval t = {{0, microseconds}, {0, microseconds}};

	setitimer(ITIMER_PROF, &t, NULL);
}

static unsigned fib(unsigned n)
{
	return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

int main(void)
{
	struct sigaction a = {.sa_sigaction = on_prof, .sa_flags = SA_SIGINFO | SA_RESTART};

	sigaction(SIGPROF, &a, NULL);
	every(10000);
	while (taken < 50)
		fib(25);
	every(0);
	for (int i = 0; i < taken && i < SAMPLES; i++) {
		for (int k = samples[i].n - 1; k >= 0; k--) {
			int exact = k == 0 || samples[i].f[k].how == UNSPOOL_SIGNAL; /* others are return addresses */
			char name[128];

			if (unspool_name(samples[i].f[k].pc - !exact, name, sizeof name, NULL) != 0)
				snprintf(name, sizeof name, "%#lx", (unsigned long)samples[i].f[k].pc);
			printf("%s%s", name, k ? ";" : " 1\n");
		}
	}
}
