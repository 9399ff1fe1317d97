package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"
)

// PutSigned sends a body to a URL that the server names, such as one of a bucket, without the client's headers. The server may not lead this machine
// to where others cannot reach: the URL is https, unless the server's own is http, and its host has no address of this machine or link, unless the
// server's own has. Redirects are not followed.
func (c *Client) PutSigned(ctx context.Context, to string, body io.Reader, size int64) error {
	u, err := url.Parse(to)
	if err != nil || u.Scheme != "https" && (u.Scheme != "http" || c.base.Scheme != "http") || u.Host == "" || u.User != nil {
		return &Refused{Status: "the server names a URL to which nothing is sent: " + unsigned(to)}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, to, body)
	if err != nil {
		return &Refused{Status: "the server names a URL that cannot be read"}
	}
	req.ContentLength = size
	dialer := net.Dialer{Timeout: 10 * time.Second}
	if !isLocal(c.base.Hostname()) {
		dialer.Control = func(_, address string, _ syscall.RawConn) error {
			if at, err := netip.ParseAddrPort(address); err != nil || !isFar(at.Addr()) {
				return fmt.Errorf("%s: %w", address, errLocal)
			}
			return nil
		}
	}
	t := &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: maxAnswer, DisableKeepAlives: true}
	own := Client{http: http.Client{Transport: t, CheckRedirect: c.http.CheckRedirect}}
	a, err := own.do(req)
	if a == nil {
		return &Later{Err: unquoted(err)}
	}
	a.hide(u)
	return a.Err()
}

// leastSecret is how long a value in a URL's query is that nobody else is to read.
const leastSecret = 8

// hide leaves out what a server says if it repeats a value of a URL's query, as pages of errors do: it is for messages.
func (a *Answer) hide(u *url.URL) {
	said := strings.ToLower(string(a.Body) + "\n" + a.message() + "\n" + a.Header.Get("Location"))
	for _, values := range u.Query() {
		for _, v := range values {
			for _, is := range []string{v, url.QueryEscape(v), url.PathEscape(v)} {
				if is = strings.ToLower(is); len(v) < leastSecret || !strings.Contains(said, is) {
					continue
				}
				a.Body = nil
				a.Header.Del("Location")
				return
			}
		}
	}
}

// unquoted returns an error up to what it quotes of an answer that is not HTTP: that may be the request.
func unquoted(err error) error {
	if later := (*Later)(nil); errors.As(err, &later) {
		err = later.Err
	}
	text, _, _ := strings.Cut(err.Error(), `"`)
	return errors.New(strings.TrimRight(text, ": "))
}

// unsigned returns a URL of a server's for messages: without what gives a right to whoever reads it, such as a signature in the query.
func unsigned(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return "a URL that cannot be read"
	}
	return Words((&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String())
}

var errLocal = errors.New("an address of this machine or link")

func isLocal(host string) bool {
	at, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && (at.Unmap().IsLoopback() || isOwn(at))
}

// clouds are where machines of clouds ask for their own secrets, besides 169.254.169.254: Alibaba's, Amazon's and Google's.
var clouds = []netip.Addr{netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254")}

// isFar says whether an address is neither this machine's nor of its link.
func isFar(at netip.Addr) bool {
	at = at.Unmap().WithZone("")
	return at.IsGlobalUnicast() && !slices.Contains(clouds, at) && !isOwn(at)
}

// isOwn says whether an interface of this machine has an address.
func isOwn(at netip.Addr) bool {
	own, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(own, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		if !ok {
			return false
		}
		ip, valid := netip.AddrFromSlice(n.IP)
		return valid && ip.Unmap() == at.Unmap()
	})
}
