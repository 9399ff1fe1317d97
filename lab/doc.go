// Package lab measures this project against its peers, on the same data in the same run: stacks against perf, elfutils and libunwind, speed and
// size against whichever tool does the same. Its tests print tables, and write docs/results/README.md with -update.
//
// record.sh makes the recordings. UNSPOOL_RECORDINGS names a directory of them; without it, the tests make small ones.
package lab
