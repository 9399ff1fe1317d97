#define _GNU_SOURCE
// What the tests record. work MODE SECONDS, of processor time in each thread where it burns.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double seconds;
static volatile unsigned long sink;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double used(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

__attribute__((noinline)) void burn(double s) {
    double end = used() + s;
    while (used() < end)
        for (int i = 0; i < 20000; i++)
            sink += i;
}

__attribute__((noinline)) void deep(int n, double s) {
    volatile char pad[64];
    pad[0] = n;
    if (n == 0)
        burn(s);
    else
        deep(n - 1, s);
    sink += pad[0];
}

static void *thread(void *arg) {
    burn(seconds);
    return arg;
}

static void *parent(void *arg) {
    pthread_t t[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&t[i], NULL, thread, NULL);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    return arg;
}

// breed makes short threads from many threads at once.
static void *short_thread(void *arg) {
    burn(0.002);
    return arg;
}
static void *breed(void *arg) {
    double end = now() + seconds;
    while (now() < end) {
        pthread_t t;
        if (pthread_create(&t, NULL, short_thread, NULL) == 0)
            pthread_join(t, NULL);
    }
    return arg;
}

// maps keeps half of the files 0, 1, … of a directory mapped, maps and unmaps the others, and starts processes and threads that do
// and that execute a program, until stdin ends.
static void *map_file(const char *dir, int i) {
    char name[4096];
    snprintf(name, sizeof name, "%s/%d", dir, i);
    int fd = open(name, O_RDONLY);
    if (fd < 0)
        return NULL;
    void *p = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}

static void maps(const char *dir, int n) {
    for (int i = 0; i < n / 2; i++)
        map_file(dir, i);
    puts("ready");
    fflush(stdout);
    struct pollfd in = {.fd = 0, .events = POLLIN};
    for (int i = 0; poll(&in, 1, i % 16 == 0) == 0; i++) {
        void *p = map_file(dir, n / 2 + i % (n - n / 2));
        if (i % 64 == 0) {
            pthread_t t;
            if (pthread_create(&t, NULL, short_thread, NULL) == 0)
                pthread_join(t, NULL);
            if (fork() == 0) {
                for (int k = 0; k < 8; k++)
                    map_file(dir, n / 2 + (i + k) % (n - n / 2));
                if (i % 128 == 0)
                    execl("/proc/self/exe", "again", "exit", NULL);
                _exit(0);
            }
            while (waitpid(-1, NULL, WNOHANG) > 0)
                ;
        }
        if (p)
            munmap(p, 4096);
    }
}

// flood fills the ring of the processor that it stays on with records of mappings, when it is told to. Then it changes what it is: it unmaps
// file 0, maps n more, starts a child with another name that maps one more, and both go on until stdin ends. Before all that, it may start
// another child.
static void flood(const char *dir, int n, int earlier) {
    void *gone = map_file(dir, 0);
    if (earlier) {
        char was[16];
        prctl(PR_GET_NAME, was);
        prctl(PR_SET_NAME, "earlier");
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;) {
                burn(0.001);
                usleep(9000);
            }
        }
        prctl(PR_SET_NAME, was);
    }
    puts("ready");
    fflush(stdout);
    char c;
    if (read(0, &c, 1) != 1)
        return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    for (int i = 0; i < 20000; i++) {
        void *p = map_file(dir, 1);
        if (p)
            munmap(p, 4096);
    }
    munmap(gone, 4096);
    for (int i = 0; i < 16; i++) // records of names are shorter, and a few of this length still find room
        prctl(PR_SET_NAME, "drowned");
    prctl(PR_SET_NAME, "flooded");
    for (int i = 2; i < 2 + n; i++)
        map_file(dir, i);
    int child = fork();
    if (child == 0) {
        prctl(PR_SET_NAME, "unheard");
        map_file(dir, 2 + n);
        printf("%d\n", getpid());
        fflush(stdout);
    }
    struct pollfd in = {.fd = 0, .events = POLLIN};
    while (poll(&in, 1, 0) == 0)
        burn(0.01);
    if (child > 0)
        waitpid(child, NULL, 0);
}

// move has the kernel move a page of code to another address, of which it writes no record, and computes there.
__attribute__((section(".moved"), aligned(4096), noinline)) void spin(volatile unsigned long *n, unsigned long k) {
    while (k-- > 0)
        ++*n;
}
__attribute__((section(".moved"), aligned(4096), used)) static void behind(void) {}

static void move(void) {
    void *to = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void (*at)(volatile unsigned long *, unsigned long) = mremap((void *)spin, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, to);
    double end = used() + seconds;
    while (used() < end)
        at(&sink, 10000000);
    _exit(0);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "spin";
    seconds = argc > 2 ? atof(argv[2]) : 0.5;
    if (!strcmp(mode, "wait")) { // until stdin ends, then a thread that has threads
        char c;
        puts("ready");
        fflush(stdout);
        while (read(0, &c, 1) > 0)
            ;
        mode = "threads";
    }
    if (!strcmp(mode, "threads")) {
        pthread_t t;
        pthread_create(&t, NULL, parent, NULL);
        burn(seconds);
        pthread_join(t, NULL);
    } else if (!strcmp(mode, "breed")) {
        pthread_t t[8];
        puts("ready");
        fflush(stdout);
        for (int i = 0; i < 8; i++)
            pthread_create(&t[i], NULL, breed, NULL);
        for (int i = 0; i < 8; i++)
            pthread_join(t[i], NULL);
    } else if (!strcmp(mode, "fork")) {
        for (int i = 0; i < 3; i++)
            if (fork() == 0) {
                if (i == 2)
                    execl("/proc/self/exe", "again", "spin", argv[2], NULL);
                burn(seconds);
                _exit(0);
            }
        while (wait(NULL) > 0)
            ;
    } else if (!strcmp(mode, "faults")) {
        double end = used() + seconds;
        while (used() < end) {
            char *p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            for (int i = 0; i < 1 << 20; i += 4096)
                p[i] = 1;
            munmap(p, 1 << 20);
        }
    } else if (!strcmp(mode, "maps")) { // DIRECTORY, how many files
        if (argc > 3)
            maps(argv[2], atoi(argv[3]));
    } else if (!strcmp(mode, "flood")) { // DIRECTORY, how many files
        if (argc > 3)
            flood(argv[2], atoi(argv[3]), argc > 4);
    } else if (!strcmp(mode, "move")) {
        move();
    } else if (!strcmp(mode, "count")) { // so many page faults and system calls
        long n = argc > 2 ? atol(argv[2]) : 0;
        char *p = mmap(NULL, n * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        madvise(p, n * 4096, MADV_NOHUGEPAGE);
        for (long i = 0; p != MAP_FAILED && i < n; i++) {
            p[i * 4096] = 1;
            syscall(SYS_getppid);
        }
    } else if (!strcmp(mode, "deep")) {
        deep(2000, seconds);
    } else if (!strcmp(mode, "exit")) {
        return 7;
    } else {
        burn(seconds);
    }
    return 0;
}
