package export

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Names say who gives the code of a target's profiles its names.
type Names uint8

// These are the values of names= in a target's URL.
const (
	Here     Names = iota // "host": this program
	Nobody                // "none": the profiles have addresses and build IDs
	Uploaded              // "upload": the engine, from files that it is sent
)

// ParseNames reads the value of names=.
func ParseNames(s string) (Names, error) {
	for n, name := range []string{"host", "none", "upload"} {
		if s == name {
			return Names(n), nil
		}
	}
	return 0, fmt.Errorf("names is host, none or upload, not %q", s)
}

// StaleUpload is when Parca and Pyroscope give up waiting for an upload that another client has begun.
const StaleUpload = 20 * time.Minute

// A Symbolizer is an engine that names code by files that it is sent.
type Symbolizer interface {
	// Wants asks whether the engine lacks the file with names of this build ID. again is when it may be asked next, if it gives reason; else 0.
	Wants(ctx context.Context, f *DebugFile) (wants bool, again time.Duration, err error)

	// Upload sends the file. The errors are those of Exporter.Send.
	Upload(ctx context.Context, f *DebugFile) error
}

// A DebugFile is a file with the names of a program's or library's code.
type DebugFile struct {
	BuildID string // in hex
	Name    string // of the program's or library's file, without its directory
	Size    int64
	Text    bool // it has the code, too

	io.ReaderAt
	Rate int // bytes a second that are sent at most; 0: no bound
}

// Body returns the file's bytes, to be sent no faster than Rate. What a file that has become shorter lacks is an error.
func (f *DebugFile) Body(ctx context.Context) io.Reader {
	return &body{ctx: ctx, f: f, from: io.NewSectionReader(f, 0, f.Size), left: f.Size, began: time.Now()}
}

type body struct {
	ctx   context.Context
	f     *DebugFile
	from  io.Reader
	left  int64
	began time.Time
}

func (b *body) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	if b.f.Rate > 0 {
		p = p[:min(len(p), max(b.f.Rate/16, 1))]
		due := b.began.Add(time.Duration(float64(b.f.Size-b.left) / float64(b.f.Rate) * float64(time.Second)))
		if wait := time.Until(due); wait > 0 {
			select {
			case <-time.After(wait):
			case <-b.ctx.Done():
			}
		}
	}
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := b.from.Read(p)
	b.left -= int64(n)
	if err == io.EOF && b.left > 0 {
		err = fmt.Errorf("the file has become shorter: %w", io.ErrUnexpectedEOF)
	}
	return n, err
}
