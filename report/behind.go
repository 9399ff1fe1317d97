package report

import "io"

// behindSize is how many bytes are written at once. Two such buffers fit the second-level cache.
const behindSize = 1 << 18

// A behind writes what is appended to buf, while more is made: the kernel's copy of a long text takes as long as making it.
type behind struct {
	buf  []byte
	w    io.Writer
	full chan []byte
	free chan []byte // the other buffer
	done chan error
}

func newBehind(w io.Writer) *behind {
	return &behind{w: w, buf: make([]byte, 0, behindSize+behindSize/4)}
}

// flush has buf written, and makes it empty.
func (b *behind) flush() {
	if b.full == nil {
		b.full, b.free, b.done = make(chan []byte), make(chan []byte, 2), make(chan error, 1)
		b.free <- make([]byte, 0, cap(b.buf))
		go b.run()
	}
	b.full <- b.buf
	b.buf = (<-b.free)[:0]
}

// run writes full buffers, up to the first error.
func (b *behind) run() {
	var err error
	for buf := range b.full {
		if err == nil {
			_, err = b.w.Write(buf)
		}
		b.free <- buf
	}
	b.done <- err
}

// close writes the rest, and returns the first error.
func (b *behind) close() error {
	if b.full == nil {
		_, err := b.w.Write(b.buf)
		return err
	}
	b.full <- b.buf
	close(b.full)
	return <-b.done
}
