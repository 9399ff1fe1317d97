package export

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/printable"
)

const (
	patience  = 30 * time.Second // for one request and its answer
	idle      = 3 * time.Minute  // for a connection: longer than intervals of a minute, which else had a new one each
	maxAnswer = 64 << 10         // bytes read of an answer's body
	maxWords  = 300              // characters shown of what a server says
	maxAfter  = time.Hour        // a server may ask to wait for
	maxFaults = 5                // times that a request is sent to a server that says of itself that it has a fault, or whose answers break off
	maxRoots  = 4 << 20          // bytes of a file of certificates
)

// Options say how servers are reached.
type Options struct {
	CA           string        // a file of certificates in PEM to trust in place of the system's; empty: the system's
	TokenFile    string        // a file with a token for the Authorization header; empty: none
	PasswordFile string        // a file with USER:PASSWORD for the Authorization header (RFC 7617); empty: none
	Headers      []Header      // of each request, beside its own
	Timeout      time.Duration // for a request and its answer; 0: 30 s
	Names        Names
}

// A Client posts to one server. It follows no redirects, so no token goes to another host.
type Client struct {
	base     *url.URL
	http     http.Client
	http2    bool
	patience time.Duration
	failed   atomic.Bool // the last request had no answer

	plain   http.Header // of each request
	mu      sync.Mutex
	secrets []*secret
	read    time.Time // when the secrets were
}

// An Answer is a server's, read up to a bound.
type Answer struct {
	Status  int
	Header  http.Header
	Trailer http.Header
	Body    []byte // at most 64 KiB
	Cut     bool   // there was more, or it broke off
}

// NewClient returns a client for the server at base, http or https. http2 says that the server speaks HTTP/2 also without TLS.
func NewClient(base *url.URL, http2 bool, o Options) (*Client, error) {
	switch {
	case base.Opaque != "":
		return nil, fmt.Errorf("%q without // is no http or https URL", base.Scheme+":") // what follows may be a password
	case base.Scheme != "http" && base.Scheme != "https":
		return nil, fmt.Errorf("%q is no http or https URL", base.Redacted())
	case base.Host == "" || base.Hostname() == "":
		return nil, fmt.Errorf("%q names no host", base.Redacted())
	case base.User != nil:
		return nil, fmt.Errorf("%q: a password in a URL is seen by others; URL?password-file=FILE takes USER:PASSWORD from a file", base.Redacted())
	case base.RawQuery != "" || base.Fragment != "":
		return nil, fmt.Errorf("%q: the URL of a server has no query and no fragment", base.Redacted())
	}
	version, _, _ := strings.Cut(cli.Version(), " ")
	c := &Client{base: base, http2: http2, plain: http.Header{"User-Agent": {"unspool/" + version}}}
	t := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    10 * time.Second,
		MaxResponseHeaderBytes: maxAnswer,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        idle,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetHTTP2(true)
	if http2 {
		t.Protocols.SetUnencryptedHTTP2(true)
	} else {
		t.Protocols.SetHTTP1(true)
	}
	if o.CA != "" {
		pem, err := readSmall(o.CA, maxRoots)
		if err != nil {
			return nil, err
		}
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate in PEM", o.CA)
		}
	}
	if err := c.credentials(o); err != nil {
		return nil, err
	}
	c.http = http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if c.patience = o.Timeout; c.patience == 0 {
		c.patience = patience
	}
	return c, nil
}

// readSmall reads a file of at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return b, err
}

// URL returns the server's.
func (c *Client) URL() string { return c.base.String() }

// Post sends body to a path below the server's URL, and returns the answer, whatever its status, unless a secret that the server does not take has been
// renewed. An error is a *Later. Where an answer of success breaks off, there are both: the server has taken the body, and who needs to know what else it
// says may ask again, some times only.
func (c *Client) Post(ctx context.Context, path string, header http.Header, body []byte) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	return c.PostLong(ctx, path, header, bytes.NewReader(body), int64(len(body)))
}

// PostLong is Post for a body of size bytes, or of an unknown size (-1), that may take as long as ctx lets it.
func (c *Client) PostLong(ctx context.Context, path string, header http.Header, body io.Reader, size int64) (*Answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base.JoinPath(path).String(), body)
	if err != nil {
		return nil, err
	}
	req.ContentLength = size
	for k, v := range header {
		req.Header[k] = v
	}
	c.authorize(req.Header)
	a, err := c.do(req)
	if a != nil && a.unauthorized() && c.renewed(req.Header) {
		return nil, &Later{Times: 2, Err: errors.New("the server does not take a secret that has been renewed meanwhile")}
	}
	return a, err
}

// do sends a request, and reads as much of the answer as is looked at. See Post.
func (c *Client) do(req *http.Request) (*Answer, error) {
	if c.failed.Swap(false) {
		c.http.CloseIdleConnections() // one of HTTP/2 whose other end has gone without a word is idle now, and this request would wait for it, too
	}
	resp, err := c.http.Do(req)
	if err != nil {
		c.failed.Store(true)
		return nil, &Later{Err: spoken(err)}
	}
	defer resp.Body.Close()
	a := &Answer{Status: resp.StatusCode, Header: resp.Header}
	a.Body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	a.Cut = err != nil || len(a.Body) > maxAnswer
	a.Body = a.Body[:min(len(a.Body), maxAnswer)]
	a.Trailer = resp.Trailer
	if err != nil && a.Status >= 200 && a.Status < 300 {
		return a, &Later{Times: maxFaults, Err: fmt.Errorf("the answer broke off: %w", spoken(err))}
	}
	return a, nil
}

// SendJSON posts a request in JSON. The error is a *Refused or a *Later. Engines that take JSON answer 500 both where a part of them is away and where the
// request makes them fail, so it may be sent again some times only.
func (c *Client) SendJSON(ctx context.Context, path string, header http.Header, r *Request) (Receipt, error) {
	h := http.Header{"Content-Type": {"application/json"}}
	maps.Copy(h, header)
	a, err := c.Post(ctx, path, h, r.Body)
	if a != nil { // its status has decided, even if the body broke off
		err = a.Err()
	}
	var refused *Refused
	if errors.As(err, &refused) && a.Status == http.StatusInternalServerError {
		err = &Later{After: a.after(time.Now()), Times: maxFaults, Err: errors.New(joined(refused.Status, refused.Words))}
	}
	if err != nil {
		return Receipt{}, err
	}
	return Receipt{Bytes: len(r.Body)}, nil
}

// spoken is a printable error: a server may have put its words into it.
func spoken(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer in time")
	}
	var u *url.Error
	if errors.As(err, &u) {
		if u.Timeout() {
			return errors.New("no answer in time")
		}
		err = u.Err
	}
	return errors.New(Words(err.Error()))
}

// Err returns nil if the server has accepted, else a *Refused or a *Later with what it says.
func (a *Answer) Err() error {
	if a.Status >= 200 && a.Status < 300 {
		return nil
	}
	status := strings.TrimSpace(fmt.Sprint(a.Status, " ", http.StatusText(a.Status)))
	words := a.words()
	switch a.Status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return &Later{After: a.after(time.Now()), Err: errors.New(joined(status, words))}
	}
	if to := a.Header.Get("Location"); a.Status >= 300 && a.Status < 400 && to != "" {
		words = "the server redirects to " + unsigned(to) + "; redirects are not followed"
	}
	return &Refused{Status: status, Words: words}
}

// words are the beginning of what the body says.
func (a *Answer) words() string { return Words(a.message()) }

// message is what the body says: the message of an object in JSON, or a text as it is.
func (a *Answer) message() string {
	var m struct{ Message, Error string }
	if json.Unmarshal(a.Body, &m) == nil && m.Message+m.Error != "" {
		return cmp.Or(m.Message, m.Error)
	}
	if strings.HasPrefix(a.Header.Get("Content-Type"), "text/html") {
		return ""
	}
	return string(a.Body)
}

// after reads the header Retry-After: seconds, or a date (RFC 9110, section 10.2.3).
func (a *Answer) after(now time.Time) time.Duration {
	s := a.Header.Get("Retry-After")
	var d time.Duration
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		d = time.Duration(n) * time.Second
	} else if at, err := http.ParseTime(s); err == nil {
		d = at.Sub(now)
	}
	return min(max(d, 0), maxAfter)
}

// Words returns the beginning of what a server says, printable and on one line.
func Words(s string) string {
	if len(s) > 8*maxWords {
		s = s[:8*maxWords]
	}
	return printable.Clip(strings.Join(strings.Fields(printable.String(s)), " "), maxWords)
}
