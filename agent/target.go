package agent

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/agent/files"
	"github.com/unspool/unspool/agent/otlp"
	"github.com/unspool/unspool/agent/parca"
	"github.com/unspool/unspool/agent/pyroscope"
	"github.com/unspool/unspool/internal/printable"
)

// A Target is a server of an engine.
type Target struct {
	export.Exporter
	Kind, URL string
}

func (t *Target) String() string { return t.Kind + "=" + t.URL }

var kinds = map[string]func(*url.URL, export.Options) (export.Exporter, error){
	"files":     func(u *url.URL, _ export.Options) (export.Exporter, error) { return files.New(u) },
	"otlp":      func(u *url.URL, o export.Options) (export.Exporter, error) { return otlp.New(u, o) },
	"parca":     func(u *url.URL, o export.Options) (export.Exporter, error) { return parca.New(u, o) },
	"pyroscope": func(u *url.URL, o export.Options) (export.Exporter, error) { return pyroscope.New(u, o) },
}

// Kinds are the engines and protocols that there are exporters for, sorted.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// Open returns the target that "KIND=URL" names. It does not reach for the server.
func Open(s string, o export.Options) (*Target, error) {
	kind, at, ok := strings.Cut(s, "=")
	open := kinds[kind]
	if !ok || open == nil {
		return nil, fmt.Errorf("a target is KIND=URL, and KIND is %s: %q is none", printable.Either(Kinds()), printable.String(s))
	}
	u, err := url.Parse(at)
	if err != nil {
		return nil, fmt.Errorf("%s: the URL cannot be read", kind) // err may show a password
	}
	e, err := open(u, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return &Target{e, kind, u.String()}, nil
}
