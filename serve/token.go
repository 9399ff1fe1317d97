package serve

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"strings"
)

// URL is where a browser on this machine finds the page of a server that listens at addr.
func URL(addr net.Addr, token string) string {
	host := addr.String()
	if at, ok := addr.(*net.TCPAddr); ok && at.IP.IsUnspecified() {
		host = fmt.Sprint("localhost:", at.Port) // for all addresses, of which this is the one that is known
	}
	return "http://" + host + "/?token=" + token
}

// NewToken returns a token that cannot be guessed: 128 bits or more.
func NewToken() string { return rand.Text() }

// unknown is what somebody without the token reads.
const unknown = "this page needs the token in the address that unspool printed: open that address, all of it"

// allowed says whether a request comes from somebody who was told the token: by the address that has it, which leaves it in a cookie, or by
// that cookie. pprof's pages run in an origin of their own, where a browser sends no cookie: their addresses have a key, which opens
// nothing else.
func allowed(w http.ResponseWriter, r *http.Request, token string) bool {
	if token == "" {
		return true
	}
	name := cookieName(r)
	if r.URL.Path == "/" && same(r.URL.Query().Get("token"), token) {
		http.SetCookie(w, &http.Cookie{Name: name, Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
		return true
	}
	if rest, ok := strings.CutPrefix(r.URL.Path, pprofPath); ok {
		if key, _, more := strings.Cut(rest, "/"); more && same(key, pprofKey(token)) {
			return true
		}
	}
	for _, c := range r.CookiesNamed(name) {
		if same(c.Value, token) {
			return true
		}
	}
	return false
}

// cookieName has the port: a browser sends cookies to all ports of a host.
func cookieName(r *http.Request) string {
	_, port, _ := net.SplitHostPort(r.Host)
	return "unspool-" + port
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// pprofKey is the key in the addresses of pprof's pages; "" if none is needed.
func pprofKey(token string) string {
	if token == "" {
		return ""
	}
	h := hmac.New(sha256.New, []byte(token))
	h.Write([]byte("pprof"))
	return hex.EncodeToString(h.Sum(nil)[:16])
}
