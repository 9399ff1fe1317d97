// Package source turns perf_event records into samples with walked stacks. A RecordStream (a perf.data file, a live ring buffer) gives raw
// records, and a Decoder reads them. Run puts records in time order, keeps the World of processes and their address spaces up to date, and
// walks the stacks of samples on all processors. It hands the samples to one consumer, in time order again.
//
// Records are those of perf_event_open(2) and include/uapi/linux/perf_event.h, little-endian (Decoder.Swap). Nothing here reads a file or a process: modules
// come from the caller.
package source
