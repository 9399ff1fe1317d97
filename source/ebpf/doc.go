// Package ebpf walks stacks in the kernel: a BPF program, attached to perf events, walks the user stack of the task at hand by
// compact tables when the event happens. No stack is copied, and none is too deep below 1,024 frames. Package perfevent opens the
// events and reads what processes map; a Program here is given to it, keeps the kernel's tables and address spaces up to date with
// that, and makes records of samples.
//
// The program is c/unspool.bpf.c; c/walk.h and c/wide.h, the walk itself, are also compiled for user space by the tests,
// which hold it against rows.Step and unwind.Walker. unspool.bpf.o is committed: who builds this package needs no compiler for
// it.
//
// A table goes to the kernel as it is, in an array of its own length whose values are 4 KiB of it and the first 8 bytes of
// the next. An address space is its executable mappings, cut where something else than rules ends or continues a stack.
// Both come a moment after a process has mapped a file, some milliseconds. Samples in between have fewer frames,
// or, where a program has just replaced another at the same addresses, frames of that; Stats.Unknown counts those that
// begin in code that is new.
//
// x86-64, Linux 6.1 and later, with CAP_BPF and CAP_PERFMON.
package ebpf

//go:generate c/build.sh
