// Package parca sends profiles to Parca: parca.profilestore.v1alpha1.ProfileStoreService.WriteRaw, by its HTTP gateway, as pprof. Where Parca is to
// name code itself, the package sends files with debug information: parca.debuginfo.v1alpha1.DebuginfoService, by gRPC.
package parca

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/unspool/unspool/agent/export"
)

const path = "api/profiles/writeraw"

// name is the profiles' __name__, the first part of a profile type.
const name = "unspool"

// An Exporter sends to one server.
type Exporter struct {
	client  *export.Client
	symbols *export.Client // by gRPC; nil: no files are sent
}

// New returns an exporter to the server at base.
func New(base *url.URL, o export.Options) (*Exporter, error) {
	c, err := export.NewClient(base, false, o)
	if err != nil {
		return nil, err
	}
	e := &Exporter{client: c}
	if o.Names == export.Uploaded {
		e.symbols, err = export.NewClient(export.GRPC(base), true, o)
	}
	return e, err
}

// The request, as protobuf's JSON has it.
type (
	request struct {
		Series []series `json:"series"`
	}
	series struct {
		Labels  labels   `json:"labels"`
		Samples []sample `json:"samples"`
	}
	labels struct {
		Labels []export.Label `json:"labels"`
	}
	sample struct {
		RawProfile []byte `json:"rawProfile"` // base64 in JSON
	}
)

// Encode returns a batch as WriteRaw takes it.
func (e *Exporter) Encode(b *export.Batch) (*export.Request, error) {
	raw, err := b.Pprof()
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(request{[]series{{labels{b.Named(name)}, []sample{{raw}}}}})
	if err != nil {
		return nil, err
	}
	period, unit := b.PeriodType()
	return &export.Request{Body: body, Query: fmt.Sprintf("%s:samples:count:%s:%s:delta%s", name, period, unit, b.Selector())}, nil
}

// Send sends a request.
func (e *Exporter) Send(ctx context.Context, r *export.Request) (export.Receipt, error) {
	return e.client.SendJSON(ctx, path, nil, r)
}
