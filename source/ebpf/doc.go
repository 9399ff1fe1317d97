// Package ebpf walks stacks in the kernel. When an event happens, a tracepoint or a probe is passed, or a thread blocks, a BPF program walks
// the current task's user stack by compact tables. No stack is copied, and stacks can be 1,024 frames deep. Package perfevent opens the events
// and reads the processes' mappings. A Program here receives these, keeps the kernel's tables and address spaces up to date, and makes records
// of samples.
//
// The programs are c/unspool.bpf.c and c/wait.h. Tests also compile c/walk.h, the walk itself, for user space, and compare it with rows.Step
// and unwind.Walker. The programs for each machine, unspool_*.bpf.o, are committed: building this package needs no C compiler.
//
// A table goes to the kernel unchanged, in an array of its own length. Each value of the array is 1 KiB of the table and the first 8 bytes of
// the next. An address space is a list of executable mappings, cut where something else than rules ends or continues a stack. It never
// changes: another space with another number replaces it. So an answer for an address of a space stays right, and each processor keeps it. A
// frame that comes again needs no search.
//
// Spaces and tables arrive some milliseconds after a process maps a file. When one is missing, the event writes registers and a copy of the
// stack instead. User space walks the copy when everything is known: Stats.Copied counts these. With Options.NoCopies, such a stack is cut off instead. So a process is profiled from its first
// sample. The same happens after a table was evicted from the kernel for lack of memory.
//
// The tables of a command's program, its interpreter and its libraries are loaded into the kernel before the command starts (ahead.go). A
// recording of processes that run begins when their tables are there: Begin's channel says so.
//
// Processes and users that map more than bounds.go permits have their stacks copied instead. Others lose nothing, except that all copies get
// shorter while many wait; these are counted.
//
// Each stack is written once. Its ID is a hash of its content under a secret seed; after that, a sample is 56 bytes with the ID. Every loss is
// counted, except events that interrupt another BPF program, which the kernel drops.
//
// A BPF program at the end of the kernel function that writes mapping records notes when a process last got executable mappings. User space
// notes the time up to which it has applied such records. Between the two, the process's stacks are copied: so no stack is walked by the rules
// of code that was mapped there before. Data of a walk is deleted only after all walks that could have begun with it have ended.
//
// A thread is blocked when it leaves the processor in any state but runnable, as sched:sched_switch has it. A thread preempted on its way to
// sleep is runnable: if it is woken before it runs again, there was no wait. At the start, when all processes are known, an iterator over all
// tasks copies the stacks of blocked threads without touching the threads. Such waits, waits that began while processes were read, and waits longer
// than the recording, are marked in their records (source.MiscCutBegin, MiscCutEnd).
//
// To show who ends waits, a program at sched:sched_waking walks the waker's stack. The thread's next switch writes this stack before the wait,
// with the same time and processor. Kernel functions in the stack show whether an interrupt wakes: an interrupt has no thread, and shows nothing
// of the code it interrupts. Where the waker is not known, the record of the wait says so (source.MiscNoWaker).
//
// For heap profiles of processes that run (heap.go, c/heap.h), probes at the functions of their allocators count down bytes to the next sample,
// walk its stack, and remember its address until it is freed. Both come as samples whose stack has come before.
//
// The kernel reports no munmap: until something new is mapped there, an unmapped address still looks mapped. As no code runs there, only a
// corrupted stack can tell.
//
// Maps are as large as the machine's processors and memory need (sizes.go). If the kernel's verifier refuses a program, Load returns a
// VerifierError, and writes the verifier's log to the file that UNSPOOL_VERIFIER_LOG names.
//
// It needs x86-64 or AArch64, Linux 5.10 or later, CAP_BPF and CAP_PERFMON. Before Linux 6.1, the kernel fills maps at the start, so they are
// smaller, and only 8,192 processes are known. Before 5.18, threads that were blocked when the recording began are not found. Before 5.12,
// two threads that map code at once may hide the later change from the program until user space has read it.
package ebpf

//go:generate c/build.sh
