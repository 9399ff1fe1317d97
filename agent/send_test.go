package agent

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/profile"
)

// A taker is an engine that takes what it is sent, unless err says why not.
type taker struct {
	query, note string
	err         error
}

func (k taker) Encode(b *export.Batch) (*export.Request, error) {
	return &export.Request{Body: []byte(b.Selector()), Query: k.query}, nil
}

func (k taker) Send(_ context.Context, r *export.Request) (export.Receipt, error) {
	return export.Receipt{Bytes: len(r.Body), Note: k.note}, k.err
}

// TestSend: each target is tried once, and each has its line.
func TestSend(t *testing.T) {
	p := &profile.Profile{}
	p.Totals.Samples = 3
	var said []string
	say := func(line string) { said = append(said, line) }
	targets := []*Target{
		{Exporter: taker{query: "{a}"}, Kind: "parca", URL: "http://p"}, {Exporter: taker{err: errors.New("away")}, Kind: "otlp", URL: "http://o"}, {Exporter: taker{note: "slow down"}, Kind: "pyroscope", URL: "http://y"},
	}
	labels := []export.Label{{Name: "node", Value: "n"}}
	failed, err := send(t.Context(), targets, p, labels, say)
	want := []string{
		"parca=http://p: sent 3 samples, 33 B; look there for {a}", "otlp=http://o: away", "pyroscope=http://y: sent 3 samples, 33 B", "pyroscope=http://y: the server says: slow down",
	}
	if !slices.Equal(failed, []int{1}) || err != nil || !slices.Equal(said, want) {
		t.Errorf("%v, %v\n got %q\nwant %q", failed, err, said, want)
	}
	if _, err := send(t.Context(), targets, p, append(labels, labels...), say); err == nil || len(said) != len(want) {
		t.Errorf("labels that are given twice: %v, %q", err, said)
	}
}
