// Package otlp sends profiles by the OpenTelemetry protocol, signal profiles, package v1development (OTLP 1.11): over HTTP with binary
// protobuf, or as a unary call of gRPC.
//
// The messages are few and only written, so the package writes them itself; its tests read them with the protocol's own Go code. The answers
// are read as far as they matter: what was refused, and why.
package otlp

import (
	stdbytes "bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/unspool/unspool/agent/export"
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
	at := *base
	grpc := true
	switch base.Scheme {
	case "grpc":
		at.Scheme = "http"
	case "grpcs":
		at.Scheme = "https"
	default:
		grpc = false
	}
	if grpc && strings.Trim(base.Path, "/") != "" {
		return nil, fmt.Errorf("%q: gRPC has no paths: give %s://HOST:PORT", base.Redacted(), base.Scheme)
	}
	c, err := export.NewClient(&at, grpc, o)
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
	return &export.Request{Body: z.Bytes()}, nil
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
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(a.Header.Get("Content-Type"), "application/x-protobuf") && a.Status >= 300 {
		a.Body = []byte(statusMessage(a.Body))
	}
	return a.Body, a.Err()
}

// overGRPC makes a unary call (PROTOCOL-HTTP2 of gRPC): a message of a byte that says it is compressed, its length, and itself.
func (e *Exporter) overGRPC(ctx context.Context, body []byte) ([]byte, error) {
	framed := binary.BigEndian.AppendUint32([]byte{1}, uint32(len(body)))
	a, err := e.client.Post(ctx, grpcPath, http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "Grpc-Encoding": {"gzip"}}, append(framed, body...))
	if err != nil {
		return nil, err
	}
	status, says := a.Trailer.Get("Grpc-Status"), a.Trailer.Get("Grpc-Message")
	if status == "" { // without a message, trailers are headers
		status, says = a.Header.Get("Grpc-Status"), a.Header.Get("Grpc-Message")
	}
	if status == "" {
		if err := a.Err(); err != nil {
			return nil, err
		}
		return nil, &export.Refused{Status: "the server does not speak gRPC"}
	}
	code, err := strconv.ParseUint(status, 10, 8)
	if err != nil {
		return nil, &export.Refused{Status: "gRPC status " + export.Words(strconv.Quote(status))}
	}
	if code != 0 {
		if plain, err := url.PathUnescape(says); err == nil {
			says = plain
		}
		return nil, grpcError(code, export.Words(says))
	}
	if len(a.Body) < 5 || a.Body[0] != 0 || uint64(binary.BigEndian.Uint32(a.Body[1:])) != uint64(len(a.Body)-5) {
		return nil, nil // accepted; what else it says cannot be read
	}
	return a.Body[5:], nil
}

// grpcError is a status that is not OK. The protocol says which may be tried again (OTLP, "Failures").
func grpcError(code uint64, words string) error {
	what := fmt.Sprintf("gRPC status %d", code)
	switch code {
	case 1, 4, 10, 11, 14, 15: // CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS
		if words != "" {
			what += ": " + words
		}
		return &export.Later{Err: errors.New(what)}
	}
	return &export.Refused{Status: what, Words: words}
}

// partial reads an ExportProfilesServiceResponse: how many profiles the server has not taken, and what it says.
func partial(b []byte) (rejected uint64, words string, err error) {
	err = fields(b, func(field, _ uint64, sub []byte) {
		if field != 1 {
			return
		}
		fields(sub, func(field, v uint64, b []byte) {
			switch {
			case field == 1 && b == nil:
				rejected = v
			case field == 2:
				words = export.Words(string(b))
			}
		})
	})
	return rejected, words, err
}

// statusMessage returns the message of a google.rpc.Status.
func statusMessage(b []byte) (s string) {
	fields(b, func(field, _ uint64, b []byte) {
		if field == 2 {
			s = string(b)
		}
	})
	return s
}
