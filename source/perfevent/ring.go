package perfevent

import (
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

// drain copies the records that are in the ring when it is called to what space returns for each, which must be
// of the size asked for, and gives their room back to the kernel as it goes. After an error the ring is empty.
func (r *ring) drain(space func(size int) []byte) (n uint64, err error) {
	head, tail := atomic.LoadUint64(r.head), *r.tail
	mask := uint64(len(r.data) - 1)
	if head-tail > uint64(len(r.data)) {
		atomic.StoreUint64(r.tail, head)
		return 0, fmt.Errorf("ring buffer: %w: %d bytes in %d", source.ErrMalformed, head-tail, len(r.data))
	}
	for tail != head {
		at := tail & mask
		var size uint64
		if head-tail >= recordHeader {
			size = uint64(binary.LittleEndian.Uint16(r.data[at+6:]))
		}
		if size < recordHeader || size%8 != 0 || size > head-tail {
			atomic.StoreUint64(r.tail, head)
			return n, fmt.Errorf("ring buffer: %w: a record of %d bytes, with %d to come", source.ErrMalformed, size, head-tail)
		}
		to := space(int(size))
		copy(to[copy(to, r.data[at:]):], r.data)
		tail += size
		n += size
		atomic.StoreUint64(r.tail, tail)
	}
	return n, nil
}
