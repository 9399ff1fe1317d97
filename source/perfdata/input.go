package perfdata

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/source"
)

// An input is bytes to be cut into records: what has been read of a file or a stream.
type input struct {
	b     []byte           // not used up yet
	order binary.ByteOrder // of records
	off   int64            // of b[0]
	buf   *source.Buffer   // that b lies in; nil before the first read
	r     io.Reader        // gives more; nil where there is no more
	pool  *pool

	file *os.File // is mapped instead; nil: r is read
	at   int64    // where off 0 is in file
	end  int64    // off of its end
}

// bufferSize is how much of a stream is read at once. A record has less than 64 KiB.
const bufferSize = 1 << 20

// windowSize is how much of a file is mapped at once. Each end of a window interrupts the processors that this process runs on.
const windowSize = 8 << 20

// need makes b at least n ≤ 64 Ki bytes long. It returns io.EOF if there is no byte left, and io.ErrUnexpectedEOF
// if there are fewer than n.
func (in *input) need(n int) error {
	for len(in.b) < n {
		if in.file != nil && in.off+int64(len(in.b)) < in.end {
			if err := in.window(); err != nil {
				return err
			}
			continue
		}
		if in.r == nil {
			if len(in.b) == 0 {
				return io.EOF
			}
			return io.ErrUnexpectedEOF
		}
		if err := in.fill(); err != nil {
			if errors.Is(err, io.EOF) {
				in.r = nil
				continue
			}
			return err
		}
	}
	return nil
}

// window maps the file from b on: more of it than there was. Where it cannot be mapped, it is read. Pages come with the faults of readers, of which
// each maps those around it, too; MAP_POPULATE would look at each page once more. The kernel is asked to read the next window meanwhile.
func (in *input) window() error {
	lo := (in.at + in.off) &^ int64(os.Getpagesize()-1)
	hi := min(lo+windowSize, in.at+in.end)
	m, err := unix.Mmap(int(in.file.Fd()), lo, int(hi-lo), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		at := in.off + int64(len(in.b))
		in.r, in.file = io.NewSectionReader(in.file, in.at+at, in.end-at), nil
		return in.fill()
	}
	if next := min(hi+windowSize, in.at+in.end); next > hi { // if its last page is in memory, so are the others
		var b [1]byte
		if n, _ := unix.Preadv2(int(in.file.Fd()), [][]byte{b[:]}, next-1, unix.RWF_NOWAIT); n != 1 {
			_ = unix.Fadvise(int(in.file.Fd()), hi, next-hi, unix.FADV_WILLNEED)
		}
	}
	old := in.buf
	in.buf = source.NewBuffer(0, func(b *source.Buffer) { unix.Munmap(b.Bytes) })
	in.buf.Bytes, in.b = m, m[in.at+in.off-lo:]
	old.Release()
	return nil
}

// fill reads more behind b.
func (in *input) fill() error {
	n, err := in.r.Read(in.room(1 << 16))
	in.b = in.b[: len(in.b)+n : cap(in.b)]
	if n > 0 {
		return nil
	}
	return err
}

// room returns at least n bytes of memory behind b, n ≤ 256 Ki. What is there of b moves to another buffer if need
// be.
func (in *input) room(n int) []byte {
	if in.buf == nil || cap(in.b)-len(in.b) < n {
		old := in.buf
		in.buf = in.pool.get()
		k := copy(in.buf.Bytes, in.b)
		in.b = in.buf.Bytes[:k]
		old.Release()
	}
	return in.b[len(in.b):cap(in.b)]
}

// append adds b at the end.
func (in *input) append(b []byte) {
	for len(b) > 0 {
		n := copy(in.room(min(len(b), 1<<18)), b)
		in.b = in.b[: len(in.b)+n : cap(in.b)]
		b = b[n:]
	}
}

// take returns the first n bytes of b, which must be there, and drops them. They stay valid as long as buf is
// held.
func (in *input) take(n int) []byte {
	out := in.b[:n:n]
	in.b = in.b[n:]
	in.off += int64(n)
	return out
}

func (in *input) close() {
	in.buf.Release()
	in.buf, in.b, in.r, in.file = nil, nil, nil, nil
}

// A pool keeps Buffers for their next use.
type pool struct{ free chan *source.Buffer }

func newPool() *pool { return &pool{make(chan *source.Buffer, 32)} }

func (p *pool) get() *source.Buffer {
	select {
	case b := <-p.free:
		b.Hold()
		return b
	default:
		return source.NewBuffer(bufferSize, p.put)
	}
}

func (p *pool) put(b *source.Buffer) {
	select {
	case p.free <- b:
	default:
	}
}
