package export

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"slices"
	"testing"
	"time"

	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/profile"
)

func pemOf(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestParseLabel(t *testing.T) {
	for s, want := range map[string]Label{
		"a=b": {"a", "b"}, "a_1=b=c": {"a_1", "b=c"}, "a": {}, "=b": {}, "a=": {}, "1a=b": {}, "__name__=b": {}, "a.b=c": {}, "a=\xff": {},
	} {
		if l, err := ParseLabel(s); l != want || (err == nil) != (want != Label{}) {
			t.Errorf("%q: %v, %v", s, l, err)
		}
	}
}

func TestParseLabels(t *testing.T) {
	if got, err := ParseLabels([]string{"a=b", "b=b"}); !slices.Equal(got, []Label{{"a", "b"}, {"b", "b"}}) || err != nil {
		t.Errorf("ParseLabels(a=b, b=b) = %v, %v, want both labels", got, err)
	}
	for _, texts := range [][]string{{"a=b", "a=c"}, {"a=b", "c"}} {
		if got, err := ParseLabels(texts); got != nil || err == nil {
			t.Errorf("%q: %v, %v", texts, got, err)
		}
	}
}

// TestNewBatch: what a recording does not say is supplied, and its command line is left out.
func TestNewBatch(t *testing.T) {
	now := time.Unix(1000, 0)
	p := &profile.Profile{Info: profile.Info{Command: "secret", Host: "h"}}
	p.Stacks = []profile.Stack{{Comm: "a", Count: 2}, {Comm: "b", Count: 1}}
	p.Totals.Samples = 3
	b, err := NewBatch(p, []Label{{"z", `"`}, {"m", "v"}}, now)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := b.Selector(), `{m="v",node="h",service_name="a",z="\""}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for name, want := range map[string][2]string{"cpu-clock:u": {"cpu", "cpu"}, "cycles:u": {"cycles", "cycles"}, profile.OffCPU: {"off-cpu", ""}} {
		b.Profile.Events = []profile.Event{profile.NewEvent(name)}
		raw, err := b.Pprof()
		if err != nil {
			t.Fatal(err)
		}
		q, err := proto.ParseData(raw)
		if err != nil {
			t.Fatal(err)
		}
		event, unit := b.Type()
		period, per := b.PeriodType()
		if q.PeriodType == nil {
			q.PeriodType = &proto.ValueType{}
		}
		if event != want[0] || period != want[1] || *q.SampleType[1] != (proto.ValueType{Type: event, Unit: unit}) || *q.PeriodType != (proto.ValueType{Type: period, Unit: per}) {
			t.Errorf("%s: %s %s, period %s %s; pprof has %v, %v", name, event, unit, period, per, q.SampleType[1], q.PeriodType)
		}
	}
	raw, err := b.Pprof()
	if err != nil {
		t.Fatal(err)
	}
	q, err := proto.ParseData(raw)
	if err != nil || q.TimeNanos == 0 || q.DurationNanos == 0 || bytes.Contains([]byte(fmt.Sprint(q.Comments)), []byte("secret")) {
		t.Errorf("%v, %v", q, err)
	}
	if p.Command != "secret" || !p.Start.IsZero() {
		t.Errorf("NewBatch changed the profile: command %q, start %v; want \"secret\" and no start", p.Command, p.Start)
	}
	p.Stacks[0].Count, p.Totals.Samples = 1, 2
	if b, _ := NewBatch(p, nil, now); b.Label(ServiceName) != "unspool" {
		t.Errorf("NewBatch without labels has %v, want %s=unspool", b.Labels, ServiceName)
	}
	if b, err := NewBatch(p, []Label{{"a", "1"}, {"a", "2"}}, now); err == nil {
		t.Errorf("NewBatch accepts label a twice, with values 1 and 2: labels %v; want an error", b.Labels)
	}
}
