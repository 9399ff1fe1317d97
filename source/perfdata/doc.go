// Package perfdata reads and writes perf.data, the file of perf record. File is a source.RecordStream over the records of a perf.data file;
// Writer writes walked stacks as one. The format is that of tools/perf/Documentation/perf.data-file-format.txt. Files of big-endian
// machines are turned into those of little-endian ones when they are read.
//
// A File is a file, or a stream from perf record -o -, plain or compressed with zstd. Records that perf adds to the kernel's are used here
// (events, names, build IDs) or skipped.
//
// A Writer's samples hold plain callchains. The address of a caller's frame is the return address minus one, inside the calling instruction:
// stock perf shows walked stacks so, and looks up symbols and lines of a callchain's addresses unchanged. (It shows 127 frames at most unless
// told otherwise: --max-stack.) The file names its recorder "unspool 1" to say so. Each sample says, behind its other raw data, how its frames
// were found. File undoes both; perf skips what it does not know.
package perfdata
