// Package unspool compiles unwind tables and walks stacks with them. It holds no code: the packages below do, and cmd/unspool is the program
// made of them. ARCHITECTURE.md says what each package takes, gives and promises.
//
// Three ways in, each with an example below:
//
//   - The stacks of a core file or of a process: [github.com/unspool/unspool/source/corefile] or [github.com/unspool/unspool/source/live] opens it,
//     [github.com/unspool/unspool/stacks] walks and names its threads, [github.com/unspool/unspool/report] writes them.
//   - A recording, such as perf.data: [github.com/unspool/unspool/source/perfdata] reads it, [github.com/unspool/unspool/record] walks its samples
//     and adds them up to a [github.com/unspool/unspool/profile], report writes that.
//   - Unwind information itself: [github.com/unspool/unspool/module] opens a binary, [github.com/unspool/unspool/format] reads what it says of
//     unwinding, [github.com/unspool/unspool/store] compiles that to a table and proves both equal,
//     [github.com/unspool/unspool/rows] says what a table's rules mean.
//
// The first two share a [github.com/unspool/unspool/modules.Set], which finds the files of processes and keeps their tables, and a
// [github.com/unspool/unspool/names.Namer], which finds names. Libraries print nothing: they return notes and counts.
package unspool
