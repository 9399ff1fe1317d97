package source

import (
	"bytes"
	"encoding/binary"
)

// A Waker describes the thread that ended a wait, from one of our samples with MiscWaker, besides the stack: in its PERF_SAMPLE_RAW field.
// The sample has the time and the processor of the wait's, which follows, and a period of 0.
type Waker struct {
	Comm  string
	Flags uint32
}

// Flags of a Waker.
const (
	WakerInterrupt = 1 << iota // it was an interrupt, and the stack is that
	WakerUnsure                // whether it was one in that process is not known
)

const wakerSize = 20

// Append appends w as it is in a record.
func (w *Waker) Append(b []byte) []byte {
	var comm [16]byte
	copy(comm[:15], w.Comm)
	return binary.LittleEndian.AppendUint32(append(b, comm[:]...), w.Flags)
}

// ParseWaker reads a Waker that Append wrote.
func ParseWaker(raw []byte) (w Waker, ok bool) {
	if len(raw) < wakerSize {
		return w, false
	}
	comm, _, _ := bytes.Cut(raw[:16], []byte{0})
	return Waker{string(comm), binary.LittleEndian.Uint32(raw[16:])}, true
}
