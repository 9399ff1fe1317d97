// Package otlp sends profiles by the OpenTelemetry protocol, signal profiles, package v1development (OTLP 1.11): over HTTP with binary
// protobuf, or as a unary call of gRPC.
//
// The messages are few and only written, so the package writes them itself; its tests read them with the protocol's own Go code. The answers
// are read as far as they matter: what was refused, and why.
package otlp

import (
	stdbytes "bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/klauspost/compress/gzip"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/wire"
)

const (
	httpPath = "v1development/profiles"
	grpcPath = "opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
)

// An Exporter sends to one server.
type Exporter struct {
	client *export.Client
	grpc   bool
}

// New returns an exporter to the server at base: http or https, or for gRPC grpc or, with TLS, grpcs.
func New(base *url.URL, o export.Options) (*Exporter, error) {
	at, grpc := base, base.Scheme == "grpc" || base.Scheme == "grpcs"
	if grpc {
		at = export.GRPC(base)
	}
	if grpc && strings.Trim(base.Path, "/") != "" {
		return nil, fmt.Errorf("%q: gRPC has no paths: give %s://HOST:PORT", base.Redacted(), base.Scheme)
	}
	c, err := export.NewClient(at, grpc, o)
	if err != nil {
		return nil, err
	}
	return &Exporter{c, grpc}, nil
}

// Encode returns a batch as an ExportProfilesServiceRequest, compressed.
func (e *Exporter) Encode(b *export.Batch) (*export.Request, error) {
	var z stdbytes.Buffer
	w, err := gzip.NewWriterLevel(&z, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(request(b)); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return &export.Request{Body: export.Fitted(z.Bytes())}, nil
}

// Send sends a request.
func (e *Exporter) Send(ctx context.Context, q *export.Request) (export.Receipt, error) {
	send := e.overHTTP
	if e.grpc {
		send = e.overGRPC
	}
	answer, err := send(ctx, q.Body)
	if err != nil {
		return export.Receipt{}, err
	}
	r := export.Receipt{Bytes: len(q.Body)}
	rejected, words, err := partial(answer)
	switch {
	case err != nil:
		r.Note = err.Error()
	case rejected > 0:
		return export.Receipt{}, &export.Refused{Status: fmt.Sprintf("%d of the batch's profiles", rejected), Words: words}
	default:
		r.Note = words
	}
	return r, nil
}

func (e *Exporter) overHTTP(ctx context.Context, body []byte) ([]byte, error) {
	a, err := e.client.Post(ctx, httpPath, http.Header{"Content-Type": {"application/x-protobuf"}, "Content-Encoding": {"gzip"}}, body)
	if a == nil {
		return nil, err
	}
	if strings.HasPrefix(a.Header.Get("Content-Type"), "application/x-protobuf") && a.Status >= 300 {
		a.Body = []byte(statusMessage(a.Body))
	}
	return a.Body, a.Err()
}

func (e *Exporter) overGRPC(ctx context.Context, body []byte) ([]byte, error) {
	return e.client.CallCompressed(ctx, grpcPath, body)
}

// partial reads an ExportProfilesServiceResponse: how many profiles the server has not taken, and what it says.
func partial(b []byte) (rejected uint64, words string, err error) {
	for f, err := range wire.Fields(b) {
		if err != nil {
			return rejected, words, fmt.Errorf("the answer is no message of protocol buffers: %w", err)
		}
		if f.Number != 1 {
			continue
		}
		for f := range wire.Fields(f.Bytes) {
			switch {
			case f.Number == 1 && f.Kind == protowire.VarintType:
				rejected = f.Value
			case f.Number == 2:
				words = export.Words(string(f.Bytes))
			}
		}
	}
	return rejected, words, nil
}

// statusMessage returns the message of a google.rpc.Status.
func statusMessage(b []byte) (s string) {
	for f := range wire.Fields(b) {
		if f.Number == 2 {
			s = string(f.Bytes)
		}
	}
	return s
}
