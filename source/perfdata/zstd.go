package perfdata

import (
	"errors"
	"io"
	"iter"

	"github.com/klauspost/compress/zstd"
)

// A decompressor is the zstd stream that perf record -z cuts into PERF_RECORD_COMPRESSED records. perf flushes the
// stream at the end of each, without ending it, so all records up to there can and must be had before the next one
// is read: a FINISHED_ROUND between them counts for them. The decoder runs as a coroutine that yields when it has
// output, and when it needs input.
type decompressor struct {
	in   []byte // not decoded yet; a part of buf
	buf  []byte
	out  []byte // decoded, until the coroutine goes on
	err  error
	next func() (struct{}, bool)
	stop func()
}

// maxWindow is what zstd's highest level, which perf allows, uses.
const maxWindow = 1 << 27

func newDecompressor() *decompressor {
	d := &decompressor{}
	d.next, d.stop = iter.Pull(func(yield func(struct{}) bool) {
		c := &coroutine{d, yield}
		z, err := zstd.NewReader(c, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err == nil {
			_, err = z.WriteTo(c)
			z.Close()
		}
		if err == nil {
			err = errors.New("the stream ends early")
		}
		d.err = err
	})
	return d
}

type coroutine struct {
	*decompressor
	yield func(struct{}) bool
}

func (c *coroutine) Read(p []byte) (int, error) {
	for len(c.in) == 0 {
		if !c.yield(struct{}{}) {
			return 0, io.ErrUnexpectedEOF
		}
	}
	n := copy(p, c.in)
	c.in = c.in[n:]
	return n, nil
}

func (c *coroutine) Write(p []byte) (int, error) {
	c.out = p
	ok := c.yield(struct{}{})
	c.out = nil
	if !ok {
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

// add gives the stream another piece, which is copied: what has been read is reused, and the coroutine is not
// guarded against that. All that is decoded must have been taken.
func (d *decompressor) add(b []byte) {
	d.buf = append(append(d.buf[:0], d.in...), b...)
	d.in = d.buf
}

// more returns the next decoded bytes, valid until the next call; none where the input has been used up.
func (d *decompressor) more() ([]byte, error) {
	if _, ok := d.next(); !ok {
		return nil, d.err
	}
	return d.out, nil
}
