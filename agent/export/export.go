// Package export is what all exporters share: the batch that is sent, the answers of engines, and an HTTP client that trusts no server.
//
// An Exporter encodes a batch for one engine, and sends what it has encoded. It keeps nothing, and tries once. The error of Send is a *Refused or
// a *Later, or says why nothing could be sent at all. Answers of servers are hostile: how much of them is read is bounded, and their words are printable.
package export

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
)

// An Exporter sends batches to an engine. It is safe for concurrent use.
type Exporter interface {
	Encode(b *Batch) (*Request, error)
	Send(ctx context.Context, r *Request) (Receipt, error)
}

// A Request is a batch as an engine takes it.
type Request struct {
	Body  []byte // see Fitted
	Query string // what finds the profile in the engine; may be empty
}

// Fitted returns b, or a copy where the buffer of b is larger by more than an eighth: a request's body may wait for long, and counts by its length.
func Fitted(b []byte) []byte {
	if cap(b) > len(b)+len(b)/8 {
		return bytes.Clone(b)
	}
	return b
}

// A Label says where a profile comes from.
type Label struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// A Batch is a profile with its labels. Its Start and Duration are the time range; see NewBatch.
type Batch struct {
	Profile *profile.Profile
	Labels  []Label // sorted by name, no two with the same; service_name is among them

	Addresses bool // the engine names code itself: see Unnamed
}

// ServiceName is the label that engines sort profiles by.
const ServiceName = "service_name"

// A Receipt says what an engine has accepted.
type Receipt struct {
	Bytes int    // of the request's body
	Note  string // a warning of the server's, printable; may be empty
}

// Refused is the error of a batch that the engine will not take, however often it is sent.
type Refused struct {
	Status string // "400 Bad Request"
	Words  string // the server's, printable and bounded; may be empty
}

func (r *Refused) Error() string { return joined("refused: "+r.Status, r.Words) }

// Later is the error of a batch that may be sent again.
type Later struct {
	After time.Duration // what the server asks to wait; 0: it does not say
	Times int           // it may be sent at most so often with such an answer; 0: there is no bound
	Err   error
}

func (l *Later) Error() string {
	if l.After > 0 {
		return fmt.Sprintf("%v (try again after %v)", l.Err, l.After)
	}
	return fmt.Sprintf("%v (try again)", l.Err)
}

func (l *Later) Unwrap() error { return l.Err }

func joined(what, words string) string {
	if words == "" {
		return what
	}
	return what + ": " + words
}

// labelName is what Prometheus takes as a name.
var labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// IsLabel says whether a label may have that name: see ParseLabel.
func IsLabel(name string) bool { return labelName.MatchString(name) && !strings.HasPrefix(name, "__") }

// ParseLabel reads "name=value". Names are those of Prometheus; names that begin with "__" are the engines'.
func ParseLabel(s string) (Label, error) {
	name, value, ok := strings.Cut(s, "=")
	switch {
	case !ok:
		return Label{}, fmt.Errorf("a label is name=value, not %q", s)
	case !IsLabel(name):
		return Label{}, fmt.Errorf("a label's name has letters, digits and _, and does not begin with a digit or __: %q", name)
	case value == "" || strings.ToValidUTF8(value, "") != value:
		return Label{}, fmt.Errorf("the label %s needs a value in UTF-8", name)
	}
	return Label{name, value}, nil
}

// ParseLabels reads labels as ParseLabel does. No two may have the same name.
func ParseLabels(texts []string) (labels []Label, err error) {
	for _, text := range texts {
		l, err := ParseLabel(text)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(labels, func(o Label) bool { return o.Name == l.Name }) {
			return nil, fmt.Errorf("%s is given twice", l.Name)
		}
		labels = append(labels, l)
	}
	return labels, nil
}

// NewBatch returns a batch of p. The labels may lack service_name: it is then the command that has more than half of the samples, else "unspool".
// They get the label node, the recording's host, unless they have it. A recording that does not say when it was made ends now. The command line
// is left out, because it may hold secrets. p is not changed.
func NewBatch(p *profile.Profile, labels []Label, now time.Time) (*Batch, error) {
	q := *p
	q.Command = ""
	q.Duration = max(q.Duration, 1) // Parca takes a profile without one for a state, not for a difference
	if q.Start.IsZero() {
		q.Start = now.Add(-q.Duration)
	}
	b := &Batch{Profile: &q, Labels: slices.Clone(labels)}
	b.supply(ServiceName, service(p))
	b.supply("node", strings.ToValidUTF8(p.Host, "\ufffd"))
	slices.SortFunc(b.Labels, func(a, b Label) int { return cmp.Compare(a.Name, b.Name) })
	for i := range b.Labels[1:] {
		if b.Labels[i].Name == b.Labels[i+1].Name {
			return nil, fmt.Errorf("the label %s is given twice", b.Labels[i].Name)
		}
	}
	return b, nil
}

func (b *Batch) supply(name, value string) {
	if value != "" && !slices.ContainsFunc(b.Labels, func(l Label) bool { return l.Name == name }) {
		b.Labels = append(b.Labels, Label{name, value})
	}
}

// service names what most of the profile is about.
func service(p *profile.Profile) string {
	comms := map[string]uint64{}
	for i := range p.Stacks {
		comms[p.Stacks[i].Comm] += p.Stacks[i].Count
	}
	for comm, n := range comms {
		if comm != "" && n > p.Totals.Samples/2 {
			return strings.ToValidUTF8(comm, "\ufffd")
		}
	}
	return "unspool"
}

// Label returns the value of a label; empty if there is none.
func (b *Batch) Label(name string) string {
	for _, l := range b.Labels {
		if l.Name == name {
			return l.Value
		}
	}
	return ""
}

// Pprof returns the profile in pprof's format, compressed, with the time range.
func (b *Batch) Pprof() ([]byte, error) {
	var raw bytes.Buffer
	err := pprof.WriteUnnamed(&raw, b.Profile, b.Unnamed)
	return raw.Bytes(), err
}

// Unnamed says whether the functions, lines and inlined calls of a module are left out, because the engine names its code.
func (b *Batch) Unnamed(m *profile.Module) bool { return b.Addresses && HasDebugFile(m) }

// HasDebugFile says whether others can name the code of a module: it is a file's, which its build ID tells from all others.
func HasDebugFile(m *profile.Module) bool {
	return !m.Kernel && m.BuildID != "" && strings.HasPrefix(m.Path, "/") && !strings.HasPrefix(m.Path, "//")
}

// Named returns the labels with the profile's name, as Prometheus has it, in front.
func (b *Batch) Named(name string) []Label {
	return append([]Label{{"__name__", name}}, b.Labels...)
}

// Type returns the sample type and unit of the profile's first event, as Pprof writes them.
func (b *Batch) Type() (name, unit string) {
	if len(b.Profile.Events) == 0 {
		return "samples", "count"
	}
	e := b.Profile.Events[0]
	if e.Unit == "nanoseconds" && e.Name != profile.OffCPU {
		return "cpu", e.Unit
	}
	return e.Base(), e.Unit
}

// PeriodType returns the type and unit of the profile's period, as Pprof writes them; empty where it has none.
func (b *Batch) PeriodType() (name, unit string) {
	if p := b.Profile; len(p.Events) == 1 && p.Totals.Samples > 0 && !p.Waits() {
		return b.Type()
	}
	return "", ""
}

// Selector returns the labels as queries have them: {name="value",…}.
func (b *Batch) Selector() string {
	var s []string
	for _, l := range b.Labels {
		s = append(s, fmt.Sprintf("%s=%q", l.Name, l.Value))
	}
	return "{" + strings.Join(s, ",") + "}"
}
