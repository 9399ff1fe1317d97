// Package lab measures this project against its peers, on the same data in the same run: stacks against
// perf, elfutils and libunwind, and the speed and size of everything against whoever does the same. Its
// tests print tables, and write docs/results/README.md with -update.
//
// The recordings that it works on are made by record.sh. UNSPOOL_RECORDINGS names a directory of them;
// without it, the tests make small ones.
package lab
