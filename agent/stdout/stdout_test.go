package stdout

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

type namer struct{}

func (namer) User(*unwind.Module, []uint64, []profile.Name) {}
func (namer) Kernel([]uint64, []profile.Name)               {}

// TestText: each profile is a paragraph that says when, of what, and its stacks; labels cannot break the line or reach a terminal.
func TestText(t *testing.T) {
	info := profile.Info{Events: []profile.Event{profile.NewEvent("cpu-clock")}, Host: "node-7"}
	b := profile.NewBuilder()
	for range 3 {
		b.Add(&profile.Sample{PID: 7, TID: 7, Comm: "spinner", Period: 1e7, HasUser: true, User: []unwind.Frame{{PC: 0x1234, Exact: true}}, Stop: unwind.Outermost})
	}
	p := b.Profile(namer{}, info)
	p.Start, p.Duration = time.Date(2026, 5, 21, 12, 30, 1, 0, time.UTC), 10*time.Second
	batch, err := export.NewBatch(p, []export.Label{{Name: "team", Value: "a\x1b[31m\nb"}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, format := range []string{"", "top"} {
		w, err := New(&out, format)
		if err != nil {
			t.Fatal(err)
		}
		q, err := w.Encode(batch)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := w.Send(context.Background(), q); err != nil || r.Bytes != len(q.Body) {
			t.Errorf("%d of %d bytes, %v", r.Bytes, len(q.Body), err)
		}
	}
	const head = "# 2026-05-21T12:30:01Z 10s {node=\"node-7\",service_name=\"spinner\",team=\"a\\x1b[31m\\nb\"}\n"
	paragraphs := strings.SplitAfter(out.String(), "\n"+head)
	if len(paragraphs) != 2 || !strings.HasPrefix(paragraphs[0], head+"spinner;") {
		t.Fatalf("%q", out.String())
	}
	if _, err := New(&out, "pprof"); err == nil || !strings.Contains(err.Error(), `top, tree, callers, callees or folded, not "pprof"`) {
		t.Errorf("New(pprof): %v", err)
	}
}

// TestFitted: a profile that waits takes as much memory as it is long, also where all but the last byte fill a buffer, which then grows to twice the size.
func TestFitted(t *testing.T) {
	w, err := New(io.Discard, "")
	if err != nil {
		t.Fatal(err)
	}
	const page = 8 << 10 // buffers of Go are multiples of it
	for pad := 0; ; {
		p := &profile.Profile{Info: profile.Info{Events: []profile.Event{profile.NewEvent("cpu-clock")}}}
		p.Stacks = []profile.Stack{{Comm: strings.Repeat("x", 40*page+pad), PID: 1, Count: 1, Period: 1}}
		p.Totals.Samples, p.Totals.Period = 1, 1
		b, err := export.NewBatch(p, []export.Label{{Name: export.ServiceName, Value: "s"}}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		q, err := w.Encode(b)
		if err != nil {
			t.Fatal(err)
		}
		n := len(q.Body)
		if n < 40*page || cap(q.Body) > n+n/8 {
			t.Errorf("%d bytes in a buffer of %d", n, cap(q.Body))
		}
		if pad > 0 {
			break
		}
		pad = page - (n-1)%page
	}
}
