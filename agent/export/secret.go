package export

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	freshSecret = time.Minute
	maxSecret   = 64 << 10 // bytes of a file with one
)

// A Header is a field of each request to a server, such as the tenant's name. Its value is a text, or what a file holds.
type Header struct {
	Name, Value string
	File        string // empty: Value holds
}

// own are fields that the client writes itself.
var own = []string{"Accept-Encoding", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Host", "Te", "Transfer-Encoding", "User-Agent"}

// ParseHeader reads NAME:VALUE, or NAME:@FILE for a value that nobody else may see.
func ParseHeader(s string) (h Header, err error) {
	name, value, ok := strings.Cut(s, ":")
	h.Name, h.Value = http.CanonicalHeaderKey(name), strings.TrimSpace(value)
	file, isFile := strings.CutPrefix(h.Value, "@")
	switch {
	case !ok || h.Value == "" || isFile && file == "":
		return h, errors.New("a header is NAME:VALUE, or NAME:@FILE")
	case !isName(name):
		return h, fmt.Errorf("%q cannot be a header's name", name)
	case slices.Contains(own, h.Name) || strings.HasPrefix(h.Name, "Grpc-"):
		return h, fmt.Errorf("the client itself sets the header %s", h.Name)
	case isFile:
		h.Value, h.File = "", file
	case isSecret(h.Name):
		return h, fmt.Errorf("the value of %s is seen by others here: give %s:@FILE", h.Name, h.Name)
	case !isLine(h.Value):
		return h, fmt.Errorf("the value of %s is no line of printable ASCII", h.Name)
	}
	return h, nil
}

// isName says whether a header can have this name: RFC 9110, section 5.6.2.
func isName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

func isLine(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// isSecret says whether the value of a header with this name gives access to something. Honeycomb's key is its team's; a DSN has a token in it.
func isSecret(name string) bool {
	name = strings.ToLower(name)
	return name == "x-honeycomb-team" || slices.ContainsFunc([]string{"auth", "cookie", "credential", "dsn", "jwt", "key", "pass", "secret", "session", "signature", "token"}, func(s string) bool {
		return strings.Contains(name, s)
	})
}

// A secret is a header's value that a file holds. Secrets are read again each minute, and when a server does not take them, because they are renewed.
type secret struct {
	header, file string
	value        func(text string) (string, error) // of the file's text
	now          string
}

func token(text string) (string, error) {
	if strings.Contains(text, " ") {
		return "", errors.New("holds no token: a token is one word of printable ASCII")
	}
	return "Bearer " + text, nil
}

func password(text string) (string, error) {
	if user, _, ok := strings.Cut(text, ":"); !ok || user == "" {
		return "", errors.New("holds no USER:PASSWORD")
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)), nil
}

func text(s string) (string, error) { return s, nil }

// credentials reads the secrets that options name, and keeps the headers.
func (c *Client) credentials(o Options) error {
	if o.TokenFile != "" && o.PasswordFile != "" {
		return errors.New("a server takes a token or a password: name one of their files")
	}
	given := map[string]bool{"Authorization": o.TokenFile != "" || o.PasswordFile != ""}
	for _, h := range o.Headers {
		if given[h.Name] {
			return fmt.Errorf("the header %s has two values", h.Name)
		}
		given[h.Name] = true
	}
	if o.TokenFile != "" {
		c.secrets = append(c.secrets, &secret{header: "Authorization", file: o.TokenFile, value: token})
	}
	if o.PasswordFile != "" {
		c.secrets = append(c.secrets, &secret{header: "Authorization", file: o.PasswordFile, value: password})
	}
	for _, h := range o.Headers {
		if h.File != "" {
			c.secrets = append(c.secrets, &secret{header: h.Name, file: h.File, value: text})
		} else {
			c.plain[h.Name] = []string{h.Value}
		}
	}
	for _, s := range c.secrets {
		if host := c.base.Hostname(); c.base.Scheme == "http" && host != "localhost" && !net.ParseIP(host).IsLoopback() {
			return fmt.Errorf("what %s holds is not sent over http to %s, where others can read it: use https", s.file, c.base.Host)
		}
		if err := s.read(); err != nil {
			return err
		}
	}
	c.read = time.Now()
	return nil
}

// read reads the file.
func (s *secret) read() error {
	b, err := readSmall(s.file, maxSecret)
	if err != nil {
		return err
	}
	b = bytes.TrimSpace(b)
	if !isLine(string(b)) {
		return fmt.Errorf("%s holds no line of printable ASCII", s.file)
	}
	value, err := s.value(string(b))
	if err != nil {
		return fmt.Errorf("%s %w", s.file, err)
	}
	s.now = value
	return nil
}

// authorize adds to a request what all requests have. A secret that cannot be read again stays what it was.
func (c *Client) authorize(h http.Header) {
	maps.Copy(h, c.plain)
	c.mu.Lock()
	defer c.mu.Unlock()
	again := time.Since(c.read) >= freshSecret
	if again {
		c.read = time.Now()
	}
	for _, s := range c.secrets {
		if again {
			s.read()
		}
		h.Set(s.header, s.now)
	}
}

// renewed reads the secrets again, and says whether one is not what a request had.
func (c *Client) renewed(sent http.Header) (is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.secrets {
		s.read()
		is = is || sent.Get(s.header) != s.now
	}
	return is
}

// unauthorized says whether the server does not take a request's secrets: by HTTP's status, or by gRPC's (UNAUTHENTICATED, PERMISSION_DENIED).
func (a *Answer) unauthorized() bool {
	code := cmp.Or(a.Trailer.Get("Grpc-Status"), a.Header.Get("Grpc-Status"))
	return a.Status == http.StatusUnauthorized || a.Status == http.StatusForbidden || code == "16" || code == "7"
}
