package ebpf

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A ring is the consumer's side of a BPF ring buffer (kernel/bpf/ringbuf.c): a page with the consumer's position, one with the producer's, and
// the data, which follow twice, so that no record wraps. Positions only grow. The data are mapped a window at a time: mapped pages count as
// this process's memory, and the whole buffer would count twice.
type ring struct {
	fd         int
	size       uint64 // of the data: a power of two
	cons, prod []byte // the pages
	window     []byte
	at         uint64 // of the window in the data
}

// ringWindow is how much is mapped at once. To map so much takes 256 pages' entries, some 20 µs.
const ringWindow = 1 << 20

// Of the header of a record: the data's length with two flags, and four bytes of the kernel's own.
const (
	ringHeader  = 8
	ringBusy    = 1 << 31 // the program writes it still
	ringDiscard = 1 << 30
)

// openRing opens the ring buffer of a descriptor, with so many bytes of data. The descriptor stays the caller's.
func openRing(fd int, size uint64) (*ring, error) {
	r := &ring{fd: fd, size: size}
	page := os.Getpagesize()
	var err error
	if r.cons, err = unix.Mmap(r.fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		r.prod, err = unix.Mmap(r.fd, int64(page), page, unix.PROT_READ, unix.MAP_SHARED)
	}
	if err != nil {
		r.close()
		return nil, fmt.Errorf("ring buffer: %w", os.NewSyscallError("mmap", err))
	}
	return r, nil
}

func (r *ring) close() (err error) {
	for _, b := range []*[]byte{&r.cons, &r.prod, &r.window} {
		if *b != nil {
			err = errors.Join(err, unix.Munmap(*b))
			*b = nil
		}
	}
	return err
}

// read calls f with each record that was there when it was called. b is valid until f returns. It ends at a record that is still being written.
func (r *ring) read(f func(b []byte)) error {
	cons, prod := (*uint64)(unsafe.Pointer(&r.cons[0])), (*uint64)(unsafe.Pointer(&r.prod[0]))
	at, end := atomic.LoadUint64(cons), atomic.LoadUint64(prod)
	for end-at >= ringHeader {
		b, err := r.data(at, ringHeader)
		if err != nil {
			return err
		}
		n := uint64(atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[0])))) // behind it comes what was written before
		if n&ringBusy != 0 {
			return nil
		}
		discard := n&ringDiscard != 0
		n &^= ringDiscard
		next := at + ringHeader + (n+7)&^7
		if next-at > end-at {
			return fmt.Errorf("ring buffer: a record of %d bytes, with %d to come", n, end-at)
		}
		if !discard {
			if b, err = r.data(at+ringHeader, n); err != nil {
				return err
			}
			f(b)
		}
		at = next
		atomic.StoreUint64(cons, at)
	}
	return nil
}

// data returns n bytes at a position: n is at most the data's size.
func (r *ring) data(pos, n uint64) ([]byte, error) {
	off := pos & (r.size - 1)
	if off < r.at || off+n > r.at+uint64(len(r.window)) {
		if r.window != nil {
			if err := unix.Munmap(r.window); err != nil {
				return nil, os.NewSyscallError("munmap", err)
			}
			r.window = nil
		}
		page := uint64(os.Getpagesize())
		lo := off &^ (page - 1)
		hi := min((max(lo+ringWindow, off+n)+page-1)&^(page-1), 2*r.size)
		w, err := unix.Mmap(r.fd, int64(2*page+lo), int(hi-lo), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return nil, os.NewSyscallError("mmap", err)
		}
		r.window, r.at = w, lo
	}
	return r.window[off-r.at : off-r.at+n], nil
}
