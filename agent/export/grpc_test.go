package export

import (
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// details returns the header of a google.rpc.Status with these details.
func details(t *testing.T, list ...*anypb.Any) string {
	t.Helper()
	status := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 8)
	for _, d := range list {
		b, err := proto.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		status = protowire.AppendBytes(protowire.AppendTag(status, 3, protowire.BytesType), b)
	}
	return base64.RawStdEncoding.EncodeToString(status)
}

// retryInfo is a google.rpc.RetryInfo; without a delay where that is nil.
func retryInfo(t *testing.T, delay *durationpb.Duration) *anypb.Any {
	t.Helper()
	var info []byte
	if delay != nil {
		b, err := proto.Marshal(delay)
		if err != nil {
			t.Fatal(err)
		}
		info = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), b)
	}
	return &anypb.Any{TypeUrl: "type.googleapis.com/google.rpc.RetryInfo", Value: info}
}

// TestRetryInfo: a server that has too much to do is asked again if it says so, at the time that it names. Without that, RESOURCE_EXHAUSTED is for good.
func TestRetryInfo(t *testing.T) {
	other := &anypb.Any{TypeUrl: "type.googleapis.com/google.rpc.DebugInfo", Value: []byte("\x12\x01x")}
	for _, c := range []struct {
		name, code, details string
		after               time.Duration // less than 0: it is refused
	}{
		{"full", "8", "", -1},
		{"full, with other details", "8", details(t, other), -1},
		{"full for 7.5 s", "8", details(t, other, retryInfo(t, durationpb.New(7500*time.Millisecond))), 7500 * time.Millisecond},
		{"full for 7.5 s, padded", "8", details(t, retryInfo(t, durationpb.New(7500*time.Millisecond))) + "==", 7500 * time.Millisecond},
		{"full, for how long is not said", "8", details(t, retryInfo(t, nil)), 0},
		{"away for a second", "14", details(t, retryInfo(t, durationpb.New(time.Second))), time.Second},
		{"away", "14", "", 0},
		{"away for a year", "14", details(t, retryInfo(t, durationpb.New(365*24*time.Hour))), maxAfter},
		{"away until the past", "14", details(t, retryInfo(t, durationpb.New(-time.Second))), 0},
		{"nonsense", "8", "\x00", -1},
		{"damaged", "8", base64.StdEncoding.EncodeToString([]byte("\x1a\xff\xff")), -1},
		{"a wrong request", "3", details(t, retryInfo(t, durationpb.New(time.Second))), -1},
	} {
		h := http.Header{}
		h.Set("Grpc-Status", c.code)
		h.Set("Grpc-Message", "too%20much")
		h.Set("Grpc-Status-Details-Bin", c.details)
		for where, a := range map[string]*Answer{"trailer": {Trailer: h}, "header": {Header: h}} {
			_, err := grpcAnswer(a, nil)
			var later *Later
			switch errors.As(err, &later); {
			case err == nil || !strings.Contains(err.Error(), "too much"):
				t.Errorf("%s: %s: %v", c.name, where, err)
			case (later != nil) != (c.after >= 0) || later != nil && later.After != c.after:
				t.Errorf("%s: %s: %v, %+v, want %v", c.name, where, err, later, c.after)
			}
		}
	}
}

// TestCallBrokenOff: without the status, which is behind the body, nobody knows whether the server has taken a call: it is made again, some times only.
func TestCallBrokenOff(t *testing.T) {
	for _, status := range []string{"", "0", "3"} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if status != "" {
				w.Header().Set("Grpc-Status", status)
			}
			w.Write([]byte{0})
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}))
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Start()
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewClient(u, true, Options{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Call(t.Context(), "a/B", nil)
		s.Close()
		var refused *Refused
		var later *Later
		if (err == nil) != (status == "0") || errors.As(err, &refused) != (status == "3") || errors.As(err, &later) != (status == "") || later != nil && later.Times != maxFaults {
			t.Errorf("status %q: %#v", status, err)
		}
	}
}

// FuzzRetryAfter: no details make a time that is too long.
func FuzzRetryAfter(f *testing.F) {
	f.Add([]byte("\x1a\x04\x0a\x02ab"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if after, _ := retryAfter(base64.StdEncoding.EncodeToString(b)); after < 0 || after > maxAfter {
			t.Errorf("retryAfter(%x) = %v, want 0 to %v", b, after, maxAfter)
		}
	})
}
