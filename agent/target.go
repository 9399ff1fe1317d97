package agent

import (
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/agent/files"
	"github.com/unspool/unspool/agent/otlp"
	"github.com/unspool/unspool/agent/parca"
	"github.com/unspool/unspool/agent/pyroscope"
	"github.com/unspool/unspool/agent/stdout"
	"github.com/unspool/unspool/internal/printable"
)

// A Target is a server of an engine, a directory, or the standard output.
type Target struct {
	export.Exporter
	Kind, URL string
	Names     export.Names
}

// Encode returns a batch as the target takes it, with the names that it is to have.
func (t *Target) Encode(b *export.Batch) (*export.Request, error) {
	if t.Names != export.Here {
		c := *b
		c.Addresses = true
		b = &c
	}
	return t.Exporter.Encode(b)
}

// symbolizer is the engine, if it is sent files with names; else nil.
func (t *Target) symbolizer() export.Symbolizer {
	if t.Names != export.Uploaded {
		return nil
	}
	s, _ := t.Exporter.(export.Symbolizer)
	return s
}

func (t *Target) String() string { return strings.TrimSuffix(t.Kind+"="+t.URL, "=") }

var kinds = map[string]func(*url.URL, export.Options) (export.Exporter, error){
	"files":     func(u *url.URL, _ export.Options) (export.Exporter, error) { return files.New(u) },
	"otlp":      func(u *url.URL, o export.Options) (export.Exporter, error) { return otlp.New(u, o) },
	"parca":     func(u *url.URL, o export.Options) (export.Exporter, error) { return parca.New(u, o) },
	"stdout":    func(u *url.URL, _ export.Options) (export.Exporter, error) { return stdout.New(os.Stdout, u.String()) },
	"pyroscope": func(u *url.URL, o export.Options) (export.Exporter, error) { return pyroscope.New(u, o) },
}

// Kinds are the engines and protocols that there are exporters for, sorted.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// Open returns the target that "KIND=URL" names, or "stdout", which may be "stdout=FORMAT". It does not reach for the server. The query of a server's URL has options that hold for this
// server, in place of those in o: ca=FILE, token-file=FILE, password-file=FILE, header=NAME:VALUE or NAME:@FILE as often as needed, and names=host, none or
// upload: see export.Names.
func Open(s string, o export.Options) (*Target, error) {
	kind, at, ok := strings.Cut(s, "=")
	open := kinds[kind]
	if !ok && kind != "stdout" || open == nil {
		kind, _, _ = strings.Cut(kind, ":") // what follows may show a password
		return nil, fmt.Errorf("a target is KIND=URL, and KIND is %s, not %q", printable.Either(Kinds()), printable.String(kind))
	}
	u, err := url.Parse(at)
	if err != nil {
		return nil, fmt.Errorf("%s: the URL cannot be read; want %s=http://HOST:PORT", kind, kind) // err may show a password
	}
	at = u.String() // with its options: two tenants of a server are two targets
	if kind != "files" && kind != "stdout" {
		if o, err = options(u, o); err != nil {
			return nil, fmt.Errorf("%s: %w", kind, err)
		}
		u.RawQuery, u.ForceQuery = "", false
	}
	e, err := open(u, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	t := &Target{e, kind, at, o.Names}
	if o.Names == export.Uploaded && t.symbolizer() == nil {
		return nil, fmt.Errorf("%s: names=upload is for parca and pyroscope: it has no protocol for files with names", kind)
	}
	return t, nil
}

// options returns o with what the query of a server's URL says.
func options(u *url.URL, o export.Options) (export.Options, error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return o, fmt.Errorf("the options after ? cannot be read")
	}
	o.Headers = slices.Clone(o.Headers)
	if query.Has("token-file") || query.Has("password-file") {
		o.TokenFile, o.PasswordFile = "", "" // those of all servers are not for this one
	}
	for _, key := range slices.Sorted(maps.Keys(query)) {
		values := query[key]
		one := func(to *string) {
			if *to = values[0]; *to == "" || len(values) > 1 {
				err = fmt.Errorf("%s names one file", key)
			}
		}
		switch key {
		case "ca":
			one(&o.CA)
		case "token-file":
			one(&o.TokenFile)
		case "password-file":
			one(&o.PasswordFile)
		case "names":
			if o.Names, err = export.ParseNames(values[0]); err == nil && len(values) > 1 {
				err = fmt.Errorf("names is given twice")
			}
		case "header":
			for _, v := range values {
				h, e := export.ParseHeader(v)
				if e != nil {
					return o, e
				}
				o.Headers = append(o.Headers, h)
			}
		default:
			err = fmt.Errorf("the URL of a server takes ca, token-file, password-file, header and names after ?, not %q", printable.String(key))
		}
		if err != nil {
			return o, err
		}
	}
	return o, nil
}
