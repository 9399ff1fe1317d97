// Package unspool compiles unwind tables and walks stacks with them. It has no code itself: the packages below do, and cmd/unspool is the
// program made of them. ARCHITECTURE.md lists each package's input, output and guarantee.
//
// Three ways in, each with an example below:
//
//   - The stacks of a core file or of a process: [github.com/unspool/unspool/source/corefile] or [github.com/unspool/unspool/source/live] opens it,
//     [github.com/unspool/unspool/stacks] walks and names its threads, [github.com/unspool/unspool/report] writes them.
//   - A recording, such as perf.data: [github.com/unspool/unspool/source/perfdata] reads it, [github.com/unspool/unspool/record] walks its samples
//     and adds them up to a [github.com/unspool/unspool/profile], report writes the profile.
//   - Unwind information itself: [github.com/unspool/unspool/module] opens a binary, [github.com/unspool/unspool/format] reads its unwind
//     information, [github.com/unspool/unspool/store] compiles it to a table and proves both equal, [github.com/unspool/unspool/rows] defines
//     the meaning of a table's rules.
//
// Frames and addresses are those of [github.com/unspool/unspool/unwind] and [github.com/unspool/unspool/arch]. The first two share a
// [github.com/unspool/unspool/modules.Set], which finds the files of processes and keeps their tables, and a [github.com/unspool/unspool/names.Namer],
// which finds names. Libraries print nothing: they return notes and counts.
//
// # What is stable
//
// The packages named here are the library, as far as testdata/api.txt lists their exported names. Before version 1, a change may take a listed
// name away: its commit says what takes the name's place. From version 1 on, that takes a new major version. A name that is not listed yet may
// change at any time. So may all other packages: they are the program's own, also where their types are seen in the library, such as
// source.Process. The text that [github.com/unspool/unspool/report] writes for people may change, too.
package unspool
