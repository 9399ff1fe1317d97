// Package ebpf walks stacks in the kernel: a BPF program walks the user stack of the task at hand by compact tables when an event
// happens, a tracepoint or a probe is passed or a thread blocks. No stack is copied, and none is too deep below 1,024 frames. Package
// perfevent opens the events and reads what processes map; a Program here is given to it, keeps the kernel's tables and address
// spaces up to date with that, and makes records of samples.
//
// The programs are c/unspool.bpf.c and c/wait.h; c/walk.h, the walk itself, is also compiled for user space by the tests,
// which hold it against rows.Step and unwind.Walker. unspool.bpf.o is committed: who builds this package needs no compiler for
// it.
//
// A table goes to the kernel as it is, in an array of its own length whose values are 1 KiB of it and the first 8 bytes of
// the next. An address space is its executable mappings, cut where something else than rules ends or continues a stack; it
// never changes, but is replaced by another with another number. So what was found for an address of a space stays right, and
// each processor keeps it: a frame that comes again needs no search.
//
// Spaces and tables come some milliseconds after a process has mapped a file. A walk that wants for one has its event write the
// registers and a copy of the stack, as it would without the program, and the stack is walked in user space, where everything
// is known in the end: Stats.Copied counts these. So a process is profiled from its first sample. The same happens where a table
// was taken out of the kernel for want of memory.
//
// The tables of a command's program, its interpreter and its libraries are brought into the kernel before it starts (ahead.go).
//
// Processes and users that map more than bounds.go permits are not walked in the kernel, but copied; others lose nothing.
//
// Stacks are written once, with an ID that is a hash of their content under a secret seed; after that, a sample is 56 bytes with
// the ID. Nothing is lost without being counted, but for events that interrupt another BPF program, which the kernel drops.
//
// A program at the end of the function that writes records of mappings notes when a process last got executable ones, and user space
// notes until when it has applied such records. Between the two, the process's stacks are copied: no stack is walked by the rules of
// code that was mapped there before. What a walk reads is taken away only when all that could have begun with it have ended.
//
// A thread is blocked when it leaves the processor in any state but that of a runnable one, as sched:sched_switch has it. One that is
// preempted on its way to sleep is runnable: if what it was to wait for comes before it goes on, there was no wait. When the
// processes are known that there were, an iterator over all tasks copies the stacks of those that are blocked; they are not touched. Such
// waits, and those that last longer than the recording, are marked in their records (source.MiscCutBegin, MiscCutEnd).
//
// Where it is asked who ends waits, a program at sched:sched_waking walks the stack of whoever wakes a thread, and the thread's next switch
// writes it before the wait, with the same time and processor. Whether an interrupt wakes is seen by the kernel's functions in that stack: it
// has no thread, and nothing of what it interrupted. Where who wakes is not known, the record of the wait says so (source.MiscNoWaker).
//
// The kernel reports no munmap: where nothing new is mapped, an address looks mapped for longer than it was. As no code runs
// there, only a corrupted stack can tell.
//
// x86-64, Linux 6.1 and later, with CAP_BPF and CAP_PERFMON.
package ebpf

//go:generate c/build.sh
