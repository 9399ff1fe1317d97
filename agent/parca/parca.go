// Package parca sends profiles to Parca: parca.profilestore.v1alpha1.ProfileStoreService.WriteRaw, by its HTTP gateway, as pprof with names.
package parca

import (
	"context"
	"fmt"
	"net/url"

	"github.com/unspool/unspool/agent/export"
)

const path = "api/profiles/writeraw"

// name is the profiles' __name__, the first part of a profile type.
const name = "unspool"

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

// Export sends a batch.
func (e *Exporter) Export(ctx context.Context, b *export.Batch) (export.Receipt, error) {
	raw, err := b.Pprof()
	if err != nil {
		return export.Receipt{}, err
	}
	s := series{labels{b.Named(name)}, []sample{{raw}}}
	n, err := e.client.PostJSON(ctx, path, nil, request{[]series{s}})
	if err != nil {
		return export.Receipt{}, err
	}
	period, unit := b.PeriodType()
	return export.Receipt{Bytes: n, Query: fmt.Sprintf("%s:samples:count:%s:%s:delta%s", name, period, unit, b.Selector())}, nil
}
