package otlp

import (
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	collector "go.opentelemetry.io/proto/slim/otlp/collector/profiles/v1development"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	otel "go.opentelemetry.io/proto/slim/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// sample is a profile with all there can be: two events, the kernel, inlined calls, no mapping, stacks that are not whole, odd bytes.
func sample() *profile.Profile {
	p := &profile.Profile{
		Info:     profile.Info{Events: []profile.Event{profile.NewEvent("cpu-clock"), {Name: "cycles", Unit: "count"}}, Start: time.Unix(1000, 5), Duration: time.Second, Host: "h"},
		Modules:  []profile.Module{{Path: "/bin/\xffp", BuildID: "ab12"}, {Path: "[kernel]", Kernel: true}, {}},
		Mappings: []profile.Mapping{{Lo: 0x1000, Hi: 0x3000, Off: 0x100, Module: 0}},
		Funcs:    []profile.Func{{Name: "main", Named: true}, {Name: "in()", Linkage: "_Z2inv", Named: true}, {Name: "sys", Module: 1}, {Name: profile.Unknown, Module: 2}},
		Files:    []string{"", "/src/p.c"},
		Locs: []profile.Loc{
			{Addr: 0x1010, Func: 1, File: 1, Line: 7, Column: 3, Inlined: true},
			{Addr: 0x1010, Func: 0, File: 1, Line: 9},
			{Addr: 1<<63 + 5, Func: 2, Module: 1, Mapping: -1, How: profile.HowKernel},
			{Addr: 5, Func: 3, Module: 2, Mapping: -1},
			{Addr: 0x1020, Func: 0},
		},
	}
	p.Stacks = []profile.Stack{
		{Frames: []uint32{2, 0, 1}, Comm: "a\xff", PID: 1, TID: 2, Count: 3, Period: 30},
		{Frames: []uint32{0, 1, 4}, Comm: "a\xff", PID: 1, TID: 2, Event: 1, Count: 1, Period: 1 << 63},
		{Frames: []uint32{3}, Stop: unwind.NoInfo, Count: 1, Period: 10},
		{PID: 4, TID: 4, Stop: unwind.NoUserStack, Count: 2, Period: 0},
	}
	p.Totals.Samples, p.Totals.Period = 7, 41
	return p
}

func batch(t testing.TB, p *profile.Profile) *export.Batch {
	b, err := export.NewBatch(p, []export.Label{{Name: "x", Value: "y"}, {Name: export.ServiceName, Value: "s"}}, time.Unix(2000, 0))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func parse(t testing.TB, b []byte) *collector.ExportProfilesServiceRequest {
	t.Helper()
	var r collector.ExportProfilesServiceRequest
	if err := proto.Unmarshal(b, &r); err != nil {
		t.Errorf("%d bytes are no request: %v", len(b), err) // Fatal is for the test's goroutine, and servers have others
	}
	if len(r.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("fields that the collector does not know: % x", r.ProtoReflect().GetUnknown())
	}
	return &r
}

// conform holds a request to the rules in the comments of profiles.proto.
func conform(r *collector.ExportProfilesServiceRequest) (wrong []string) {
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	d := r.Dictionary
	if d == nil {
		return []string{"no dictionary"}
	}
	if len(d.StringTable) == 0 || d.StringTable[0] != "" {
		bad("string_table[0]")
	}
	zero := func(what string, n int, first func() proto.Message) {
		if n == 0 {
			bad("%s is empty", what)
		} else if m := first(); proto.Size(m) != 0 {
			bad("%s[0] is not the zero value: %v", what, m)
		}
	}
	zero("mapping_table", len(d.MappingTable), func() proto.Message { return d.MappingTable[0] })
	zero("location_table", len(d.LocationTable), func() proto.Message { return d.LocationTable[0] })
	zero("function_table", len(d.FunctionTable), func() proto.Message { return d.FunctionTable[0] })
	zero("attribute_table", len(d.AttributeTable), func() proto.Message { return d.AttributeTable[0] })
	zero("stack_table", len(d.StackTable), func() proto.Message { return d.StackTable[0] })
	if len(d.LinkTable) == 0 || string(d.LinkTable[0].TraceId) != string(make([]byte, 16)) || string(d.LinkTable[0].SpanId) != string(make([]byte, 8)) {
		bad("link_table[0]")
	}
	at := func(what string, i int32, n int) {
		if i < 0 || int(i) >= n {
			bad("%s %d of %d", what, i, n)
		}
	}
	str := func(i int32) { at("string", i, len(d.StringTable)) }
	attributes := func(list []int32) {
		keys := map[int32]bool{}
		for _, i := range list {
			if at("attribute", i, len(d.AttributeTable)); i == 0 || len(wrong) > 0 {
				bad("attribute %d", i)
				return
			}
			if k := d.AttributeTable[i].KeyStrindex; keys[k] {
				bad("the key %q twice", d.StringTable[k])
			} else {
				keys[k] = true
			}
		}
	}
	seen := map[string]bool{}
	for _, s := range d.StringTable {
		if seen[s] {
			bad("the string %q twice", s)
		}
		seen[s] = true
	}
	for _, a := range d.AttributeTable[1:] {
		if str(a.KeyStrindex); a.KeyStrindex == 0 || a.Value == nil {
			bad("attribute %v", a)
		}
	}
	for _, m := range d.MappingTable {
		str(m.FilenameStrindex)
		attributes(m.AttributeIndices)
	}
	for _, f := range d.FunctionTable {
		str(f.NameStrindex)
		str(f.SystemNameStrindex)
		str(f.FilenameStrindex)
	}
	for i, l := range d.LocationTable {
		if at("mapping", l.MappingIndex, len(d.MappingTable)); i > 0 && l.MappingIndex > 0 {
			if m := d.MappingTable[l.MappingIndex]; l.Address < m.MemoryStart || l.Address > m.MemoryLimit {
				bad("address %#x is not in %v", l.Address, m)
			}
		}
		attributes(l.AttributeIndices)
		for _, line := range l.Lines {
			if at("function", line.FunctionIndex, len(d.FunctionTable)); line.FunctionIndex == 0 {
				bad("a line without a function")
			}
		}
	}
	for _, s := range d.StackTable {
		for _, l := range s.LocationIndices {
			if at("location", l, len(d.LocationTable)); l == 0 {
				bad("a stack with location 0")
			}
		}
	}
	for _, rp := range r.ResourceProfiles {
		for _, sp := range rp.ScopeProfiles {
			for _, p := range sp.Profiles {
				if p.SampleType == nil || p.SampleType.TypeStrindex == 0 || p.SampleType.UnitStrindex == 0 {
					bad("sample_type %v", p.SampleType)
				} else {
					str(p.SampleType.TypeStrindex)
					str(p.SampleType.UnitStrindex)
				}
				if p.TimeUnixNano == 0 || p.DurationNano == 0 {
					bad("no time range")
				}
				if (p.OriginalPayloadFormat == "") != (len(p.OriginalPayload) == 0) {
					bad("original_payload")
				}
				for _, s := range p.Samples {
					at("stack", s.StackIndex, len(d.StackTable))
					at("link", s.LinkIndex, len(d.LinkTable))
					attributes(s.AttributeIndices)
					if len(s.Values)+len(s.TimestampsUnixNano) == 0 || len(s.Values) > 0 && len(s.TimestampsUnixNano) > 0 && len(s.Values) != len(s.TimestampsUnixNano) {
						bad("%d values, %d timestamps", len(s.Values), len(s.TimestampsUnixNano))
					}
				}
			}
		}
	}
	return wrong
}

func value(v *common.AnyValue) string {
	switch v := v.GetValue().(type) {
	case *common.AnyValue_StringValue:
		return v.StringValue
	case *common.AnyValue_IntValue:
		return fmt.Sprint(v.IntValue)
	}
	return fmt.Sprint(v)
}

// show writes what a request says, a line a sample.
func show(r *collector.ExportProfilesServiceRequest) (out []string) {
	d := r.Dictionary
	attributes := func(list []int32) (s string) {
		for _, i := range list {
			a := d.AttributeTable[i]
			s += " " + d.StringTable[a.KeyStrindex] + "=" + value(a.Value)
		}
		return s
	}
	for _, rp := range r.ResourceProfiles {
		line := "resource"
		for _, a := range rp.Resource.Attributes {
			line += " " + a.Key + "=" + value(a.Value)
		}
		out = append(out, line)
		for _, p := range rp.ScopeProfiles[0].Profiles {
			name := func(v *otel.ValueType) string {
				if v == nil {
					return "-"
				}
				return d.StringTable[v.TypeStrindex] + "/" + d.StringTable[v.UnitStrindex]
			}
			out = append(out, fmt.Sprintf("%s at %d for %d, period %d %s", name(p.SampleType), p.TimeUnixNano, p.DurationNano, p.Period, name(p.PeriodType)))
			for _, s := range p.Samples {
				line := fmt.Sprint(s.Values, attributes(s.AttributeIndices))
				for _, i := range d.StackTable[s.StackIndex].LocationIndices {
					l := d.LocationTable[i]
					m := d.MappingTable[l.MappingIndex]
					line += fmt.Sprintf(" | %#x %s%s%s:", l.Address, d.StringTable[m.FilenameStrindex], attributes(m.AttributeIndices), attributes(l.AttributeIndices))
					for _, n := range l.Lines {
						f := d.FunctionTable[n.FunctionIndex]
						line += fmt.Sprintf(" %s %s %s:%d:%d", d.StringTable[f.NameStrindex], d.StringTable[f.SystemNameStrindex], d.StringTable[f.FilenameStrindex], n.Line, n.Column)
					}
				}
				out = append(out, line)
			}
		}
	}
	return out
}

// TestRequest: the protocol's own Go code reads what was written, it keeps all rules, and it is what the profile says.
func TestRequest(t *testing.T) {
	r := parse(t, request(batch(t, sample())))
	for _, w := range conform(r) {
		t.Errorf("the request breaks a rule of profiles.proto: %s", w)
	}
	var (
		in     = " | 0x1010 /bin/\ufffdp process.executable.build_id.gnu=ab12 profile.frame.type=native unspool.frame.how=" + unwind.How(0).String() + ": in() _Z2inv /src/p.c:7:3 main main /src/p.c:9:0"
		thread = " thread.name=a\ufffd process.pid=1 thread.id=2"
		kernel = " | 0x8000000000000005 [kernel] profile.frame.type=kernel unspool.frame.how=kernel: sys sys :0:0"
		none   = " unspool.stop=no-info | 0x5  profile.frame.type=native unspool.frame.how=" + unwind.How(0).String() + ": [unknown] [unknown] :0:0"
		below  = " | 0x1020 /bin/\ufffdp process.executable.build_id.gnu=ab12 profile.frame.type=native unspool.frame.how=" + unwind.How(0).String() + ": main main :0:0"
	)
	want := []string{
		"resource host.name=h service.name=s x=y",
		"cpu/nanoseconds at 1000000000005 for 1000000000, period 0 -", "[30]" + thread + kernel + in, "[10]" + none,
		"cycles/count at 1000000000005 for 1000000000, period 0 -", "[9223372036854775807]" + thread + in + below,
		"samples/count at 1000000000005 for 1000000000, period 0 -", "[3]" + thread + kernel + in, "[1]" + thread + in + below, "[1]" + none,
		"[2] process.pid=4 thread.id=4 unspool.stop=no-user-stack",
	}
	if diff := cmp.Diff(want, show(r)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	p := sample()
	p.Events = p.Events[:1]
	if got := show(parse(t, request(batch(t, p)))); got[1] != "cpu/nanoseconds at 1000000000005 for 1000000000, period 5 cpu/nanoseconds" {
		t.Errorf("the request for one event has %q, want the period 5 cpu/nanoseconds", got[1])
	}
	if w := conform(parse(t, request(batch(t, &profile.Profile{})))); w != nil {
		t.Errorf("an empty profile: %q", w)
	}
}

// TestAddresses: code that the engine names is sent as addresses, with the calls inlined there left out.
func TestAddresses(t *testing.T) {
	b := batch(t, sample())
	b.Addresses = true
	r := parse(t, request(b))
	for _, w := range conform(r) {
		t.Errorf("the request with addresses breaks a rule of profiles.proto: %s", w)
	}
	how := " unspool.frame.how=" + unwind.How(0).String() + ":"
	at := func(addr string) string {
		return " | " + addr + " /bin/\ufffdp process.executable.build_id.gnu=ab12 profile.frame.type=native" + how
	}
	want := []string{
		"[3] thread.name=a\ufffd process.pid=1 thread.id=2 | 0x8000000000000005 [kernel] profile.frame.type=kernel unspool.frame.how=kernel: sys sys :0:0" + at("0x1010"),
		"[1] thread.name=a\ufffd process.pid=1 thread.id=2" + at("0x1010") + at("0x1020"),
		"[1] unspool.stop=no-info | 0x5  profile.frame.type=native" + how + " [unknown] [unknown] :0:0",
	}
	all := show(r)
	if diff := cmp.Diff(want, all[len(all)-4:len(all)-1]); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, s := range r.Dictionary.StringTable {
		if s == "main" || s == "_Z2inv" {
			t.Errorf("%s was sent", s)
		}
	}
}

// TestLabels: what the labels of an agent are by OpenTelemetry's conventions.
func TestLabels(t *testing.T) {
	for _, c := range []struct{ labels, want string }{
		{"service_name=s service_namespace=n service_instance_id=i service_version=v deployment_environment_name=e cgroup=/x container_id=7 container=web image=r:5000/shop:1.2@sha256:0 unit=u",
			"container.image.name=r:5000/shop container.image.tags=1.2 container.name=web container.id=7 process.linux.cgroup=/x service.name=s service.namespace=n service.instance.id=i service.version=v deployment.environment.name=e unit=u"},
		{"service_name=s pod_uid=1 pod=p namespace=n container=web image=shop controller=c controller_kind=StatefulSet",
			"container.image.name=shop controller_kind=StatefulSet k8s.container.name=web k8s.namespace.name=n k8s.pod.name=p k8s.pod.uid=1 k8s.statefulset.name=c service.name=s"},
		{"service_name=s namespace=n pod=p controller=c", "controller=c namespace=n pod=p service.name=s"},
		{"service_name=s comm=c executable=/bin/x executable_build_id=ab cmdline=x kernel=6.1", "comm=c kernel=6.1 process.command_line=x process.executable.build_id.gnu=ab process.executable.path=/bin/x service.name=s"},
	} {
		var labels []export.Label
		for _, text := range strings.Fields(c.labels) {
			l, err := export.ParseLabel(text)
			if err != nil {
				t.Fatal(err)
			}
			labels = append(labels, l)
		}
		b, err := export.NewBatch(&profile.Profile{}, labels, time.Unix(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, kv := range parse(t, request(b)).ResourceProfiles[0].Resource.Attributes {
			value := kv.Value.GetStringValue()
			for _, e := range kv.Value.GetArrayValue().GetValues() {
				value += e.GetStringValue()
			}
			got = append(got, kv.Key+"="+value)
		}
		want := strings.Fields(c.want)
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", c.labels, diff)
		}
	}
}

// TestConform: the rules find what is wrong.
func TestConform(t *testing.T) {
	for name, spoil := range map[string]func(*collector.ExportProfilesServiceRequest){
		"first string":   func(r *collector.ExportProfilesServiceRequest) { r.Dictionary.StringTable[0] = "x" },
		"first location": func(r *collector.ExportProfilesServiceRequest) { r.Dictionary.LocationTable[0].Address = 1 },
		"string twice": func(r *collector.ExportProfilesServiceRequest) {
			r.Dictionary.StringTable[2] = r.Dictionary.StringTable[1]
		},
		"a link":  func(r *collector.ExportProfilesServiceRequest) { r.Dictionary.LinkTable[0].SpanId = nil },
		"a stack": func(r *collector.ExportProfilesServiceRequest) { r.Dictionary.StackTable[1].LocationIndices[0] = 99 },
		"attribute twice": func(r *collector.ExportProfilesServiceRequest) {
			s := r.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].Samples[0]
			s.AttributeIndices = append(s.AttributeIndices, s.AttributeIndices[0])
		},
		"timestamps": func(r *collector.ExportProfilesServiceRequest) {
			r.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].Samples[0].TimestampsUnixNano = []uint64{1, 2}
		},
	} {
		r := parse(t, request(batch(t, sample())))
		if spoil(r); len(conform(r)) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
}

// serve returns an exporter to a server that answers so.
func serve(t *testing.T, scheme string, answer http.HandlerFunc) *Exporter {
	t.Helper()
	s := httptest.NewUnstartedServer(answer)
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	u, err := url.Parse(strings.Replace(s.URL, "http", scheme, 1))
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(u, export.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func marshal(t *testing.T, m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestAnswers: partial success, errors and nonsense, over HTTP and gRPC.
func TestAnswers(t *testing.T) {
	warn := marshal(t, &collector.ExportProfilesServiceResponse{PartialSuccess: &collector.ExportProfilesPartialSuccess{ErrorMessage: "old\x1b version"}})
	some := marshal(t, &collector.ExportProfilesServiceResponse{PartialSuccess: &collector.ExportProfilesPartialSuccess{RejectedProfiles: 2, ErrorMessage: "no room"}})
	var bad message
	bad.uint(1, 3)
	bad.string(2, "bad dictionary")
	framed := func(b []byte) string {
		return string(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...))
	}
	for _, c := range []struct {
		name, scheme  string
		status        int
		kind, body    string
		code, message string // of gRPC
		want          string // the error, or the note
		later, fails  bool
	}{
		{"accepted", "http", 200, "application/x-protobuf", "", "", "", "", false, false},
		{"a warning", "http", 200, "application/x-protobuf", string(warn), "", "", "old  version", false, false},
		{"rejected", "http", 200, "application/x-protobuf", string(some), "", "", "refused: 2 of the batch's profiles: no room", false, true},
		{"nonsense", "http", 200, "application/x-protobuf", "\x0a\xff", "", "", "the answer is no message of protocol buffers: at byte 0: unexpected EOF", false, false},
		{"broken off", "http", 200, "application/x-protobuf", "", "", "", "", false, false},
		{"broken off", "http", 400, "application/x-protobuf", string(bad), "", "", "refused: 400 Bad Request: bad dictionary", false, true},
		{"status", "http", 400, "application/x-protobuf", string(bad), "", "", "refused: 400 Bad Request: bad dictionary", false, true},
		{"unavailable", "http", 503, "", "", "", "", "503 Service Unavailable (try again)", true, true},
		{"accepted", "grpc", 200, "application/grpc", framed(nil), "0", "", "", false, false},
		{"a warning", "grpc", 200, "application/grpc", framed(warn), "0", "", "old  version", false, false},
		{"rejected", "grpc", 200, "application/grpc", framed(some), "0", "", "refused: 2 of the batch's profiles: no room", false, true},
		{"refused", "grpc", 200, "application/grpc", "", "3", "bad%20%1b dictionary", "refused: gRPC status 3: bad dictionary", false, true},
		{"unavailable", "grpc", 200, "application/grpc", "", "14", "", "gRPC status 14 (try again)", true, true},
		{"no status", "grpc", 200, "", "hello", "", "", "refused: the server does not speak gRPC", false, true},
		{"not found", "grpc", 404, "", "hello", "", "", "refused: 404 Not Found: hello", false, true},
		{"odd status", "grpc", 200, "", "", "-1", "", `refused: gRPC status "-1"`, false, true},
		{"a wrong length", "grpc", 200, "", "\x00\xff\xff\xff\xffx", "0", "", "", false, false},
	} {
		t.Run(c.scheme+" "+c.name, func(t *testing.T) {
			e := serve(t, c.scheme, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				path := "/v1development/profiles"
				if c.scheme == "grpc" {
					path = "/" + grpcPath
					if len(body) < 5 || body[0] != 1 || int(binary.BigEndian.Uint32(body[1:])) != len(body)-5 || r.ProtoMajor != 2 {
						t.Errorf("%s: %d bytes", r.Proto, len(body))
						return
					}
					body = body[5:]
				}
				if z, err := gzip.NewReader(strings.NewReader(string(body))); err != nil || r.URL.Path != path {
					t.Errorf("%s: %v", r.URL, err)
				} else {
					body, _ = io.ReadAll(z)
					if wrong := conform(parse(t, body)); len(wrong) > 0 {
						t.Errorf("a request of %d bytes breaks rules of profiles.proto: %q", len(body), wrong)
					}
				}
				if c.kind != "" {
					w.Header().Set("Content-Type", c.kind)
				}
				if c.code != "" {
					w.Header().Set(http.TrailerPrefix+"Grpc-Status", c.code)
					w.Header().Set(http.TrailerPrefix+"Grpc-Message", c.message)
				}
				if c.name == "broken off" {
					w.Header().Set("Content-Length", "1000")
				}
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			})
			q, err := e.Encode(batch(t, sample()))
			if err != nil {
				t.Fatal(err)
			}
			r, err := e.Send(context.Background(), q)
			if c.fails != (err != nil) {
				t.Fatalf("%v", err)
			}
			var later *export.Later
			if got := r.Note; err != nil && strings.Join(strings.Fields(err.Error()), " ") != c.want || errors.As(err, &later) != c.later ||
				err == nil && strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(c.want), " ") {
				t.Errorf("%q, %v, want %q", got, err, c.want)
			}
		})
	}
}

// FuzzAnswer: no answer is more than a short text.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte("\x0a\x04\x08\x01\x12\x00"))
	f.Add([]byte("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, words, _ := partial(b)
		if len(words) > 3000 {
			t.Errorf("partial(%x) = %d bytes of words, want 3000 at most", b, len(words))
		}
		var r collector.ExportProfilesServiceResponse
		if proto.Unmarshal(b, &r) == nil && slices.Equal(marshal2(&r), b) && n != uint64(r.GetPartialSuccess().GetRejectedProfiles()) {
			t.Errorf("%d, the judge has %v", n, &r)
		}
		statusMessage(b)
	})
}

func marshal2(m proto.Message) []byte {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	return b
}

// TestFitted: a profile that waits takes as much memory as it is long.
func TestFitted(t *testing.T) {
	for size := 100_000; size < 600_000; size += 100_000 {
		value := make([]byte, size)
		rand.Read(value)
		b, err := export.NewBatch(&profile.Profile{}, []export.Label{{Name: "x", Value: hex.EncodeToString(value)}}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		q, err := new(Exporter).Encode(b)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(q.Body); n < size || cap(q.Body) > n+n/8 {
			t.Errorf("%d bytes in a buffer of %d", n, cap(q.Body))
		}
	}
}
