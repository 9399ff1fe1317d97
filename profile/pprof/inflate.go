package pprof

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/unspool/unspool/internal/wire"
)

// Bounds of a pprof profile. Those of real programs inflate to 3 to 20 times their size, and take 5 to 20 times that in memory: most where
// short stacks have labels.
const (
	maxSize     = 1 << 28 // bytes after decompression
	freeSize    = 1 << 24 // bytes that may be inflated from anything
	maxInflate  = 100     // bytes for each compressed one, beyond these
	freeParsed  = 1 << 26 // bytes of memory that anything may take
	maxParsed   = 32      // bytes for each inflated one, beyond these
	maxMemory   = 1 << 30 // bytes in all
	maxExpanded = 1 << 26 // frames of all stacks
)

// A counter counts what is read.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// inflate reads a profile, compressed or not. It ends as soon as it is too large.
func inflate(r io.Reader) ([]byte, error) {
	in := &counter{r: r}
	br := bufio.NewReaderSize(in, 1<<16)
	var from io.Reader = br
	compressed := false
	if magic, err := br.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, err
		}
		from, compressed = z, true
	}
	var b []byte
	for {
		if cap(b)-len(b) < 1<<16 {
			b = append(make([]byte, 0, min(2*len(b)+1<<17, maxSize+1<<17)), b...)
		}
		n, err := from.Read(b[len(b):min(cap(b), len(b)+1<<20)])
		b = b[:len(b)+n]
		switch {
		case len(b) > maxSize:
			return nil, fmt.Errorf("more than %d MiB", maxSize>>20)
		case compressed && int64(len(b)) > freeSize+maxInflate*in.n:
			return nil, fmt.Errorf("%d KiB inflate to %d MiB and more: no profile does that", in.n>>10, len(b)>>20)
		case err == io.EOF:
			return b, nil
		case err != nil:
			return nil, fmt.Errorf("after %d bytes: %w", len(b), err)
		}
	}
}

// parsedSize is at least how much memory the messages of a profile take when they are parsed (profile.proto; the types of
// github.com/google/pprof/profile).
func parsedSize(b []byte) (size int64, err error) {
	for f, err := range wire.Fields(b) {
		if err != nil {
			return 0, err
		}
		data := f.Bytes
		switch f.Number {
		case 2: // sample
			size += 160 + parsedList(data, 1, 16) + parsedList(data, 2, 8) + parsedList(data, 3, 200)
		case 4: // location
			size += 160 + parsedList(data, 4, 80)
		case 1, 3, 5, 11, 6: // sample types, mappings, functions, periods, strings
			size += 128 + int64(len(data))
		case 13: // comments
			size += 32 * int64(len(data)+1)
		default:
			size += 32
		}
	}
	return size, nil
}

// parsedList is how much the elements of a repeated field take, packed or not.
func parsedList(b []byte, of protowire.Number, each int64) (size int64) {
	for f, err := range wire.Fields(b) {
		if err != nil {
			return size // the parser will say so
		}
		if f.Number == of {
			size += each
			if each < 64 { // numbers; each byte may be one
				size += each * int64(len(f.Bytes))
			}
		}
	}
	return size
}
