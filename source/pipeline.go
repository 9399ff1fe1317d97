package source

import (
	"context"
	"sync/atomic"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/unwind"
)

// A RecordStream gives the records of a recording in the order in which they were written.
type RecordStream interface {
	// Decoder knows the events of the stream. More may be added to it while the stream is read.
	Decoder() *Decoder

	// Next returns the next record, header included, as the kernel wrote it; io.EOF after the last. Besides
	// the kernel's types it may return RecordFinishedRound; other types from RecordUser up are counted and
	// skipped. Buf is the memory the record lies in; nil says that it stays valid as long as the stream.
	// An error that is not io.EOF ends the stream: Run delivers what came before, and returns it.
	Next() (raw []byte, buf *Buffer, err error)
}

// A Buffer is memory for records, counted by who still needs it.
type Buffer struct {
	Bytes []byte

	refs atomic.Int32
	free func(*Buffer)
}

// NewBuffer returns a Buffer of n bytes, held once, by the caller. free, if not nil, is called from any goroutine
// when nobody needs the memory any more, and may put the Buffer up for reuse: Hold it again before its next use.
func NewBuffer(n int, free func(*Buffer)) *Buffer {
	b := &Buffer{Bytes: make([]byte, n), free: free}
	b.Hold()
	return b
}

// Hold says that somebody needs b. It is safe for concurrent use.
func (b *Buffer) Hold() {
	if b != nil {
		b.refs.Add(1)
	}
}

// Release says that somebody who held b needs it no more. It is safe for concurrent use.
func (b *Buffer) Release() {
	if b != nil && b.refs.Add(-1) == 0 && b.free != nil {
		b.free(b)
	}
}

// Options say what Run does. The functions are called from one goroutine at a time, in time order.
type Options struct {
	// Mods gives the modules of address spaces: see NewWorld.
	Mods func(path, buildID string) *unwind.Module

	// Machine is what the recording was made on; nil is AMD64.
	Machine *arch.Machine

	// Sample gets each sample. What it is given is valid until it returns.
	Sample func(*Sample) error

	// Record, if not nil, gets each record of the kernel that is not a sample, in its place among the samples.
	Record func(*Record) error

	// Want, if not nil, says which samples are of interest. The others are counted and neither walked nor
	// delivered.
	Want func(pid, tid int32, comm string, time uint64) bool

	// Depth is the limit of user frames; 0 is unwind.DefaultDepth.
	Depth int

	// Workers is how many goroutines walk; 0 is GOMAXPROCS.
	Workers int

	// Ours says that the stream's callchains were written by this project: see Provenance.
	Ours bool
}

// Stats counts what Run saw.
type Stats struct {
	Records     uint64 // all, samples included
	Samples     uint64 // delivered
	Unwanted    uint64 // samples that Options.Want refused
	Frames      uint64 // user frames delivered
	Lost        uint64 // records that the kernel could not write, as LOST says
	LostSamples uint64 // the same as LOST_SAMPLES says
	Throttled   uint64
	Unknown     uint64 // records of unknown type or event, skipped
	Bad         uint64 // records that could not be decoded, skipped
	BadErr      error  // the first such error
	Disordered  uint64 // records older than what had been delivered: applied late
	NoTime      uint64 // samples without a time: delivered as they came
	Orphans     uint64 // samples of processes whose beginning the recording lacks
	Compat      uint64 // samples of 32-bit code, whose stacks are not walked
	Deferred    uint64 // samples that wait in vain for a deferred callchain
	Stops       [unwind.NumStops]uint64
	First, Last uint64 // least and greatest time of a delivered sample, ns
}

// Run reads in to its end: it puts records in time order, applies them to a World, walks the stacks of samples
// on several processors and delivers everything in time order. It returns the first error of the stream or of the
// functions in o, or ctx's, with the counts so far.
func Run(ctx context.Context, in RecordStream, o Options) (Stats, error) {
	return Stats{}, nil
}
