// Package stdout writes profiles as text, for people and pipes: a line with the time and the labels, the profile, and an empty line.
package stdout

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/report"
)

// usual is the format unless another is asked for.
const usual = "folded"

// A Writer writes one profile after the other. It is safe for concurrent use.
type Writer struct {
	format *report.Format

	mu sync.Mutex
	w  io.Writer
}

// New returns a writer of one of report's formats that are text, such as "top"; empty is folded.
func New(w io.Writer, format string) (*Writer, error) {
	formats := report.Formats.Text()
	f := formats.Named(cmp.Or(format, usual))
	if f == nil {
		return nil, fmt.Errorf("want %s, not %q", printable.Either(formats.Names()), printable.String(format))
	}
	return &Writer{format: f, w: w}, nil
}

// Encode returns a batch as it is written.
func (w *Writer) Encode(b *export.Batch) (*export.Request, error) {
	var text bytes.Buffer
	p := b.Profile
	fmt.Fprintf(&text, "# %s %v %s\n", p.Start.UTC().Format(time.RFC3339), p.Duration.Round(time.Millisecond), printable.String(b.Selector()))
	if err := w.format.Whole(&text, p, report.Options{By: p.Weight(), Limit: 20}); err != nil {
		return nil, err
	}
	text.WriteByte('\n')
	return &export.Request{Body: export.Fitted(text.Bytes())}, nil
}

// Send writes a request.
func (w *Writer) Send(_ context.Context, r *export.Request) (export.Receipt, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.w.Write(r.Body)
	return export.Receipt{Bytes: n}, err
}
