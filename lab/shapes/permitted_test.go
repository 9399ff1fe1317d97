package shapes

// An exception permits walks that are not whole, or not right, for a reason that is known.
type exception struct {
	shapes, builds, sources string // regular expressions of names
	stop                    string // why the walk ends, too
	chain                   string // as the lines of shapes; TRUTH is the shape's chain without START or THREAD
	why                     string
}

// seldom are exceptions that a full run need not meet: a few instructions, or the first milliseconds, in which a sample may fall, and
// what only machines have.
var seldom = []exception{
	{"goroutine|goclock", ".*", "perf|ptrace|ebpf", "truncated|bad-memory", "vdso? LIB+ (s_spin|s_clock|vdso)?|s_spin", "a copy holds one stack: of the handler that preempts goroutines, wherever they are"},
	{"goroutine|goclock", "arm64-go.*", ".*", "bad-cfa|bad-return", "vdso (s_mid|LIB)", "the kernel restores registers one by one: a sample in between has the handler's pc and the goroutine's sp"},
	{"goroutine|goclock", "arm64-go.*", ".*", "no-info", "vdso", "the same: the pc is behind the system call of __kernel_rt_sigreturn, and there are no rules"},
	{"goroutine|goclock|gocgo", ".*", ".*", "bad-return", "LIB", "Go's own table is wrong where its handlers return (docs/FINDINGS.md)"},
	{"reload", ".*", ".*", "no-info", "LIB", "crtbegin.o's functions, which run when a library comes and goes, have no information"},
	{"deeper", ".*", "ebpf", "truncated", "s_spin (s_odd s_even)* s_odd?", "until tables have come to the kernel, events copy 32 KiB"},
	{"loaded", ".*", "ebpf", "truncated", "s_spin plt? s_work (s_load s_down*)?", "the same"},
	{"goroutine|goclock", "arm64-go.*", ".*", "bad-cfa|bad-return", "LIB{1,2}", "gogo calls without a frame, and asyncPreempt returns by another register (docs/FINDINGS.md)"},
	{"short", ".*", "perf|ebpf", "truncated|bad-memory", "s_parent", "the first call behind fork writes to the stack: while the kernel copies the page, nothing is mapped there (ptep_clear_flush in do_wp_page)"},
	{"altstack", "arm64.*", "perf|ebpf", "truncated", "s_handler SIGRETURN s_loop main", "a copy holds the handler's stack; s_loop has no frame, x30 leads to main"},
	{"reload", "arm64.*", ".*", "bad-return|bad-memory", "LIB+ s_load (s_load|main)?", "glibc's rules for _dl_runtime_resolve have a CFA 16 bytes too low (docs/FINDINGS.md)"},
}

// permitted are all others. In a full run, one that matches nothing fails.
var permitted = []exception{
	{".*", "musl.*", ".*", "no-info", "TRUTH LIB", "musl has no unwind information and no frame pointers: nothing leads out of what calls main"},
	{".*", "musl.*", ".*", "no-info", "vdso? LIB{1,2}", "the same in a function of musl's own, but for one call on top of the stack"},
	{"initarray", "musl.*", ".*", "no-info", "s_spin s_before LIB", "the same in what calls constructors"},
	{"split", ".*", "perf|ptrace|ebpf", "truncated", "s_spin (s_down LIB?){1,19}", "a copy holds one piece of the stack; the kernel's events make some until tables have come, ptrace reads two pieces"},
	{"ownstack", ".*", "perf|ptrace|ebpf", "truncated|bad-memory", "s_spin s_high s_switch", "the same: of three stacks"},
	{"init", ".*", ".*", "no-info", "_init", "where other code in .init has moved the stack pointer, no rule says so"},
	{"longjmp|blocked|vfork", "musl-gcc-O0", ".*", "no-info", "LIB{1,2} main LIB", "musl has no frames: behind its system call, the frame pointer is that of the function which called musl, and it is left out"},
	{"longjmp", "tcc", ".*", "no-info", "LIB s_try", "glibc's rule leads to who called setjmp before it has taken the frame pointer (docs/FINDINGS.md)"},
	{"goclock", ".*", "perf|ptrace|ebpf", "truncated|bad-memory", "vdso* LIB", "a copy holds the thread's stack, not the goroutine's"},
	{"gocgo", ".*", ".*", "outermost", "s_cspin LIB{2}", "Go goes on to the thread's stack for C, and its rules do not say from where"},
	{"rust", "rustc-stripped", ".*", "no-info", "LIB* s_spin s_mid (LIB+ main)?", "with panic=abort, rustc writes no rules for some functions, or for none"},
	{"reload", ".*", "ptrace", "bad-return|bad-memory|no-info|truncated", "(s_leaf|s_work|LIB|_init|plt){1,3}", "ptrace does not tell when mappings change: they are read when their size changes, and once a second"},
	{"short", ".*", ".*", "no-info|bad-memory|truncated", "jit|LIB", "in execve and fork, the stack is not there any more, or not yet"},
	{"vfork", ".*", "live", "bad-cfa|no-info", "LIB s_fork", "who waits for vfork cannot be stopped: rbp, which the caller is found by, is not in /proc/PID/syscall"},
	{"throw", ".*", ".*", "bad-return|bad-memory|outermost", "LIB+ (s_throw|s_middle|s_catch)* (main START)?", "libgcc, while it takes the registers of the landing pad's frame: rules still name those before (docs/FINDINGS.md)"},
	{"deeper", ".*", "perf|ptrace", "truncated", "s_spin (s_odd s_even)* s_odd?", "1,000 frames are more than the 32 KiB of a copy"},
	{"loaded", ".*", "perf|ptrace", "truncated", "s_spin plt? s_work (s_load s_down*)?", "the same of 900"},
	{"qsort", "musl.*", ".*", "no-info", "s_spin s_compare LIB", "the same in what calls back"},
	{"altstack", ".*", "perf|ebpf", "truncated", "s_handler SIGRETURN s_loop", "a copy holds the handler's stack, not the one that was interrupted"},
}
