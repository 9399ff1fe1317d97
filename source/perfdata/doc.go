// Package perfdata reads and writes perf.data, the file of perf record: File is a source.RecordStream over the
// records of one, Writer makes one of walked stacks. The format is that of tools/perf/Documentation/
// perf.data-file-format.txt, little-endian.
//
// A File is a file, or a stream as perf record -o - makes it, plain or compressed with zstd. Records that
// recorders add to those of the kernel are used here (events, names, build IDs) or skipped.
//
// A Writer's samples hold plain callchains. The address of a caller's frame is the return address minus one, which
// lies in the calling instruction: stock perf shows walked stacks so, and looks up symbols and lines of the
// addresses of a callchain as they are. (It shows 127 frames at most unless told otherwise: --max-stack.) The version
// that such a file gives for its recorder, "unspool 1", says that it has been written so, and each sample says behind
// its other raw data how its frames were found; File undoes both. perf skips what it does not know.
package perfdata
