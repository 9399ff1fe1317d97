// Package source turns perf_event records into samples with walked stacks. A RecordStream (a perf.data file, a
// live ring buffer) gives raw records; a Decoder reads them; Run puts them in time order, keeps the World of
// processes and their address spaces up to date, walks the stacks of samples on all processors and hands them to
// one consumer, in time order again.
//
// Records are those of perf_event_open(2) and include/uapi/linux/perf_event.h, little-endian. Nothing here reads
// a file or a process: modules come from the caller.
package source
