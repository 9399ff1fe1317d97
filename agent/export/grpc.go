package export

import (
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

	"google.golang.org/protobuf/encoding/protowire"
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

// grpcAnswer reads the answer to a call.
func grpcAnswer(a *Answer, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	from := a.Trailer
	if from.Get("Grpc-Status") == "" { // without a message, trailers are headers
		from = a.Header
	}
	status, says := from.Get("Grpc-Status"), from.Get("Grpc-Message")
	if status == "" {
		if err := a.Err(); err != nil {
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
	fields(status, func(n protowire.Number, _ uint64, detail []byte) {
		var kind string
		var info []byte
		if n != 3 {
			return
		}
		fields(detail, func(n protowire.Number, _ uint64, b []byte) {
			switch n {
			case 1:
				kind = string(b)
			case 2:
				info = b
			}
		})
		if !strings.HasSuffix(kind, "/google.rpc.RetryInfo") {
			return
		}
		ok = true
		fields(info, func(n protowire.Number, _ uint64, delay []byte) {
			fields(delay, func(part protowire.Number, v uint64, _ []byte) {
				switch most := uint64(maxAfter / time.Second); {
				case n == 1 && part == 1 && int64(v) >= 0:
					after += time.Duration(min(v, most)) * time.Second
				case n == 1 && part == 2 && int64(v) >= 0:
					after += time.Duration(min(v, 1e9))
				}
			})
		})
	})
	return min(after, maxAfter), ok
}

// fields calls f with each field of a message, up to what is damaged: a number, or the bytes of a string or a message.
func fields(message []byte, f func(n protowire.Number, v uint64, b []byte)) {
	for len(message) > 0 {
		n, kind, head := protowire.ConsumeTag(message)
		if head < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(n, kind, message[head:])
		if size < 0 {
			return
		}
		switch value := message[head : head+size]; kind {
		case protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			f(n, v, nil)
		case protowire.BytesType:
			b, _ := protowire.ConsumeBytes(value)
			f(n, 0, b)
		}
		message = message[head+size:]
	}
}
