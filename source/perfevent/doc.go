// Package perfevent records live: it opens events with perf_event_open(2) for a command, processes, threads or all
// processors, and is a source.RecordStream of what the kernel writes, so that stacks are walked while the
// recording runs and no copy of a stack reaches the disk.
//
// There is one ring buffer for each processor. It belongs to a dummy event on this process, which is never
// enabled, so rings live as long as the recording whatever becomes of its targets; all other events of the
// processor write to it. One goroutine empties the rings in rounds into memory of its own, whether or not the
// consumer keeps up, up to a bound; beyond that the kernel drops records and counts them.
//
// What was there before the recording is told by records of time 0, made from /proc after the events have been
// enabled: what changes meanwhile is told once more by the kernel.
//
// A command, and with a Program also processes with what they start, are sampled by events of the processors where their recorder may open
// them, as root may: samples of others are left out, by the tree of processes that FORK and EXIT records tell of. So the shortest process is
// sampled as often as its share of the time says. A process that is recorded so has an event that counts nothing, for its end. Without a
// Program, processes have events of their own: the stacks of all others would be copied, too, as long as the recording lasts.
//
// Uprobes are recorded in the same way: the kernel loses the breakpoints of processes that have events of their own and start others.
//
// Elsewhere, and for events that are counted rather than sampled, a command is started by a thread that has the events itself, disabled, to be inherited by its children and to be
// enabled by execve (PERF_EVENT attr.inherit and attr.enable_on_exec): so the command runs without a tracer or a
// helper program before it, and the first record is that of its execve.
//
// The kernel says what found no room in a ring with the next record that does. What was lost after the last record, the events' own counts say
// (PERF_FORMAT_LOST, Linux 6.0).
//
// The package is for Linux, on x86-64 and AArch64.
package perfevent
