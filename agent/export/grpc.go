package export

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/unspool/unspool/internal/wire"
)

// GRPC returns where a server's gRPC is: at grpc://HOST:PORT, at grpcs:// with TLS, and at the same host and port as http:// and https://.
func GRPC(base *url.URL) *url.URL {
	at := *base
	at.Path, at.RawPath = "", ""
	switch base.Scheme {
	case "grpc":
		at.Scheme = "http"
	case "grpcs":
		at.Scheme = "https"
	}
	return &at
}

// Frame puts a message of protocol buffers into one of gRPC: a byte that says whether it is compressed, its length, and itself.
func Frame(message []byte, compressed bool) []byte {
	head := []byte{0}
	if compressed {
		head[0] = 1
	}
	return append(binary.BigEndian.AppendUint32(head, uint32(len(message))), message...)
}

// Call makes a call of gRPC (PROTOCOL-HTTP2) with one message, and returns the message of the answer; nil if it cannot be read. The error is a
// *Refused or a *Later. The client speaks HTTP/2.
func (c *Client) Call(ctx context.Context, method string, message []byte) ([]byte, error) {
	a, err := c.Post(ctx, method, grpcHeader(), Frame(message, false))
	return grpcAnswer(a, err)
}

// CallCompressed is Call with a message that gzip has compressed.
func (c *Client) CallCompressed(ctx context.Context, method string, message []byte) ([]byte, error) {
	h := grpcHeader()
	h.Set("Grpc-Encoding", "gzip")
	a, err := c.Post(ctx, method, h, Frame(message, true))
	return grpcAnswer(a, err)
}

// CallStream is Call with a stream of frames, for as long as ctx lets it.
func (c *Client) CallStream(ctx context.Context, method string, frames io.Reader) ([]byte, error) {
	a, err := c.PostLong(ctx, method, grpcHeader(), frames, -1)
	return grpcAnswer(a, err)
}

func grpcHeader() http.Header {
	return http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}}
}

// grpcAnswer reads the answer to a call. The status is behind the body: where this broke off, there is none.
func grpcAnswer(a *Answer, broken error) ([]byte, error) {
	if a == nil {
		return nil, broken
	}
	from := a.Trailer
	if from.Get("Grpc-Status") == "" { // without a message, trailers are headers
		from = a.Header
	}
	status, says := from.Get("Grpc-Status"), from.Get("Grpc-Message")
	if status == "" {
		if err := cmp.Or(broken, a.Err()); err != nil {
			return nil, err
		}
		return nil, &Refused{Status: "the server does not speak gRPC"}
	}
	code, err := strconv.ParseUint(status, 10, 8)
	if err != nil {
		return nil, &Refused{Status: "gRPC status " + Words(strconv.Quote(status))}
	}
	if code != 0 {
		if plain, err := url.PathUnescape(says); err == nil {
			says = plain
		}
		return nil, grpcError(code, Words(says), from.Get("Grpc-Status-Details-Bin"))
	}
	if len(a.Body) < 5 || a.Body[0] != 0 || uint64(binary.BigEndian.Uint32(a.Body[1:])) != uint64(len(a.Body)-5) {
		return nil, nil // accepted; what else it says cannot be read
	}
	return a.Body[5:], nil
}

// grpcError is a status that is not OK. OTLP says which may be tried again ("Failures", "OTLP/gRPC Throttling"); it holds for other services, too.
func grpcError(code uint64, words, details string) error {
	what := fmt.Sprintf("gRPC status %d", code)
	after, named := retryAfter(details)
	switch code {
	case 8: // RESOURCE_EXHAUSTED
		if !named {
			break
		}
		fallthrough
	case 1, 4, 10, 11, 14, 15: // CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS
		return &Later{After: after, Err: errors.New(joined(what, words))}
	}
	return &Refused{Status: what, Words: words}
}

// retryAfter reads after what time a server lets a call be tried again: a google.rpc.RetryInfo among the details of a google.rpc.Status (status.proto and
// error_details.proto of googleapis), in base64. ok is false where there is none.
func retryAfter(details string) (after time.Duration, ok bool) {
	status, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(details, "="))
	if err != nil {
		return 0, false
	}
	for f := range wire.Fields(status) {
		var kind string
		var info []byte
		if f.Number != 3 {
			continue
		}
		for f := range wire.Fields(f.Bytes) {
			switch f.Number {
			case 1:
				kind = string(f.Bytes)
			case 2:
				info = f.Bytes
			}
		}
		if !strings.HasSuffix(kind, "/google.rpc.RetryInfo") {
			continue
		}
		ok = true
		for delay := range wire.Fields(info) {
			if delay.Number != 1 {
				continue
			}
			for part := range wire.Fields(delay.Bytes) {
				switch most := uint64(maxAfter / time.Second); {
				case part.Number == 1 && int64(part.Value) >= 0:
					after += time.Duration(min(part.Value, most)) * time.Second
				case part.Number == 2 && int64(part.Value) >= 0:
					after += time.Duration(min(part.Value, 1e9))
				}
			}
		}
	}
	return min(after, maxAfter), ok
}
