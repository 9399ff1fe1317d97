// Package perfevent records live. It opens events with perf_event_open(2) for a command, processes, threads or all processors, and is a
// source.RecordStream of the kernel's records. So stacks are walked while the recording runs, and no copy of a stack reaches the disk.
//
// Each processor has one ring buffer. The buffer belongs to a dummy event on this process that is never enabled, so it lives as long as the
// recording, whatever becomes of the targets. All other events of the processor write to the same buffer. One goroutine empties the buffers in
// rounds into its own memory, up to a bound, even if the consumer falls behind. Beyond the bound, the kernel drops records and counts them.
//
// Records of time 0 describe the processes and mappings from before the recording. They are made from /proc after the events are enabled; the
// kernel reports later changes again. Samples from before the last process was read are left out: a library may have come or gone between. Of a wait
// that ends later, the part from before is. A command that only ends the recording starts after that.
//
// A command is sampled by events of the processors, if its recorder may open them, as root may. With a Program, processes and their children
// are sampled the same way. The tree of processes, from FORK and EXIT records, leaves out the samples of others. So the shortest process gets
// its share of the samples. A process recorded this way also has an event that counts nothing and reports the process's end. Without a
// Program, processes have events of their own: otherwise the stacks of all other processes would be copied, too, as long as the recording
// lasts.
//
// Uprobes are recorded by events of the processors, too: with events of single processes, the kernel loses the breakpoints of a process that
// starts others.
//
// Where events are those of the processors, processors that come online later are recorded, too. Elsewhere they are only counted: Stats.Unplugged.
//
// Elsewhere, and for events that are counted rather than sampled, a thread opens disabled events on itself and starts the command. The command
// inherits the events, and execve enables them (PERF_EVENT attr.inherit and attr.enable_on_exec). So no tracer or helper program runs before the
// command, and the first record is that of its execve.
//
// When a record finds no room in a buffer, the kernel counts the loss in the next record that does. Losses after the last record are in the
// events' own counts (PERF_FORMAT_LOST, Linux 6.0).
//
// The package is for Linux, on x86-64 and AArch64.
package perfevent
