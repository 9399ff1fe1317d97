// Package pyroscope sends profiles to Grafana Pyroscope: push.v1.PusherService.Push by the Connect protocol with JSON, as pprof. Where
// Pyroscope is to name code itself, the package sends files with debug information: debuginfo.v1alpha1.DebuginfoService.
package pyroscope

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/unspool/unspool/agent/export"
)

const path = "push.v1.PusherService/Push"

// An Exporter sends to one server.
type Exporter struct{ client *export.Client }

// New returns an exporter to the server at base.
func New(base *url.URL, o export.Options) (*Exporter, error) {
	c, err := export.NewClient(base, false, o)
	if err != nil {
		return nil, err
	}
	return &Exporter{c}, nil
}

// The request, as protobuf's JSON has it.
type (
	request struct {
		Series []series `json:"series"`
	}
	series struct {
		Labels  []export.Label `json:"labels"`
		Samples []sample       `json:"samples"`
	}
	sample struct {
		RawProfile []byte `json:"rawProfile"` // base64 in JSON
	}
)

// Encode returns a batch as Push takes it. Its profiles are of the type process_cpu if they count time on a CPU, as Pyroscope's own are.
func (e *Exporter) Encode(b *export.Batch) (*export.Request, error) {
	raw, err := b.Pprof()
	if err != nil {
		return nil, err
	}
	event, unit := b.Type()
	name := "unspool"
	if event == "cpu" {
		name = "process_cpu"
	}
	body, err := json.Marshal(request{[]series{{b.Named(name), []sample{{raw}}}}})
	if err != nil {
		return nil, err
	}
	period, per := b.PeriodType()
	return &export.Request{Body: body, Query: fmt.Sprintf("%s:%s:%s:%s:%s%s", name, event, unit, period, per, b.Selector())}, nil
}

// Send sends a request.
func (e *Exporter) Send(ctx context.Context, r *export.Request) (export.Receipt, error) {
	return e.client.SendJSON(ctx, path, http.Header{"Connect-Protocol-Version": {"1"}}, r)
}
