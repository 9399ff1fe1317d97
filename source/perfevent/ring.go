package perfevent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/source"
)

// A ring is the consumer's side of a ring buffer that the kernel writes (struct perf_event_mmap_page and the data
// pages behind it). Positions only grow; the data wraps around at a power of two. Records are multiples of 8
// bytes, so that a header never wraps.
type ring struct {
	fd         int
	mem        []byte  // the mapping; nil in tests
	head, tail *uint64 // written by the kernel, by us
	data       []byte
	shortened  uint64       // copies of stacks that drain's most has cut
	trailer    uint64       // what KSYMBOL records end with, in bytes; 0: there are none
	early      *atomic.Bool // while true, samples are left out; nil: never
}

// Where struct perf_event_mmap_page has its fields.
const (
	pageDataHead = 1024
	pageDataTail = 1032
)

const recordHeader = 8

// newRing maps the ring buffer of fd, with size bytes of data, a power of two of pages.
func newRing(fd, size int) (*ring, error) {
	page := unix.Getpagesize()
	mem, err := unix.Mmap(fd, 0, page+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &ring{
		fd: fd, mem: mem, data: mem[page:],
		head: (*uint64)(unsafe.Pointer(&mem[pageDataHead])), tail: (*uint64)(unsafe.Pointer(&mem[pageDataTail])),
	}, nil
}

// close unmaps the ring and closes its event.
func (r *ring) close() error {
	err := unix.Munmap(r.mem)
	return errors.Join(err, unix.Close(r.fd))
}

// word returns the 8 bytes at a position that is a multiple of 8.
func (r *ring) word(at uint64) uint64 {
	return binary.LittleEndian.Uint64(r.data[at&uint64(len(r.data)-1):])
}

// copyTo copies what starts at a position.
func (r *ring) copyTo(to []byte, at uint64) {
	copy(to[copy(to, r.data[at&uint64(len(r.data)-1):]):], r.data)
}

// drain copies the records that are in the ring when it is called to what space returns for each, which must be
// of the size asked for, and gives their room back to the kernel as it goes. After an error the ring is empty.
//
// stack is how much of the stack samples hold, as their last field. The kernel writes it in full even if the stack
// ends earlier: that part is left out, up to a word that shows that the stack has ended. So is what is beyond most bytes of it, what KSYMBOL
// records have too much, and samples that come too early.
func (r *ring) drain(stack, most uint32, space func(size int) []byte) (n uint64, err error) {
	head, tail := atomic.LoadUint64(r.head), *r.tail
	if head-tail > uint64(len(r.data)) {
		atomic.StoreUint64(r.tail, head)
		return 0, fmt.Errorf("ring buffer: %w: %d bytes in %d", source.ErrMalformed, head-tail, len(r.data))
	}
	early := r.early != nil && r.early.Load() // after the head: what is in front of it is older than that moment
	for tail != head {
		var typ, size uint64
		if head-tail >= recordHeader {
			h := r.word(tail)
			typ, size = h&(1<<32-1), h>>48
		}
		if size < recordHeader || size%8 != 0 || size > head-tail {
			atomic.StoreUint64(r.tail, head)
			return n, fmt.Errorf("ring buffer: %w: a record of %d bytes, with %d to come", source.ErrMalformed, size, head-tail)
		}
		if early && typ == source.RecordSample {
			// Nobody takes records yet: copies of stacks would fill the backlog, and then the rings.
		} else if short := r.symbolEnd(typ, tail, size); short < size {
			to := space(int(short))
			r.copyTo(to, tail)
			binary.LittleEndian.PutUint16(to[6:], uint16(short))
		} else if keep := r.stackEnd(typ, tail, size, uint64(stack), uint64(most)); keep < uint64(stack) {
			if r.word(tail+size-8) > keep {
				r.shortened++
			}
			short := size - uint64(stack) + keep
			to := space(int(short))
			r.copyTo(to[:short-8], tail)
			binary.LittleEndian.PutUint16(to[6:], uint16(short))
			binary.LittleEndian.PutUint64(to[short-16-keep:], keep)
			binary.LittleEndian.PutUint64(to[short-8:], min(r.word(tail+size-8), keep))
		} else {
			r.copyTo(space(int(size)), tail)
		}
		tail += size
		n += size
		atomic.StoreUint64(r.tail, tail)
	}
	return n, nil
}

// stackEnd returns how much of a record's copy of the stack to keep, at most most bytes: stack, if it is no sample with such a copy.
// The copy lies between its size and how much of it is good.
func (r *ring) stackEnd(typ, at, size, stack, most uint64) uint64 {
	if typ != source.RecordSample || stack == 0 || size < recordHeader+16+stack || r.word(at+size-16-stack) != stack {
		return stack
	}
	return min(stack, most, r.word(at+size-8)&^7+16)
}

// symbolEnd returns the size of a record without what the kernel leaves behind a KSYMBOL record: see source.Decoder. A program's symbol with
// another one's bytes in the place of its time would put the order of all records wrong.
func (r *ring) symbolEnd(typ, at, size uint64) uint64 {
	if typ != source.RecordKsymbol || r.trailer == 0 {
		return size
	}
	const name = recordHeader + 16
	for end := uint64(name); end+8+r.trailer < size; end += 8 {
		var w [8]byte
		r.copyTo(w[:], at+end)
		if bytes.IndexByte(w[:], 0) >= 0 {
			return end + 8 + r.trailer
		}
	}
	return size
}
