package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode"
)

func client(t testing.TB, server string, o Options) *Client {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewClient(u, false, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestSendJSON: the fault of an engine may go away, or be the request's. So it may be sent again, a few times.
func TestSendJSON(t *testing.T) {
	for status, want := range map[int]Later{500: {Times: maxFaults, After: 3 * time.Second}, 501: {Times: -1}, 503: {After: 3 * time.Second}, 400: {Times: -1}} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "3")
			http.Error(w, `{"message":"no ingester"}`, status)
		}))
		_, err := client(t, s.URL, Options{}).SendJSON(context.Background(), "a", nil, &Request{})
		s.Close()
		var later *Later
		if errors.As(err, &later) != (want.Times >= 0) || later != nil && (later.Times != want.Times || later.After != want.After) || !strings.Contains(err.Error(), http.StatusText(status)+": no ingester") {
			t.Errorf("%d: %v, want %+v", status, err, want)
		}
	}
}

// TestBrokenOff: an engine has taken or refused what it answers, also where the body of its answer breaks off, or never ends: nothing is sent again.
func TestBrokenOff(t *testing.T) {
	breaks := map[string]func(w http.ResponseWriter, r *http.Request){
		"shorter": func(http.ResponseWriter, *http.Request) {},
		"reset":   func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"endless": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	}
	for how, then := range breaks {
		for _, status := range []int{200, 400, 503} {
			t.Run(fmt.Sprint(how, " ", status), func(t *testing.T) {
				t.Parallel()
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					w.Header().Set("Content-Length", "10")
					w.WriteHeader(status)
					io.WriteString(w, "{}")
					w.(http.Flusher).Flush()
					then(w, r)
				}))
				defer s.Close()
				patience := 30 * time.Second
				if how == "endless" {
					patience = time.Second
				}
				check := func(what string, err error) {
					var refused *Refused
					var later *Later
					if (err == nil) != (status == 200) || errors.As(err, &refused) != (status == 400) || errors.As(err, &later) != (status == 503) {
						t.Errorf("%s: %v", what, err)
					}
				}
				c := client(t, s.URL, Options{Timeout: patience})
				receipt, err := c.SendJSON(t.Context(), "a", nil, &Request{Body: []byte("{}")})
				check("profile", err)
				if status == 200 && receipt.Bytes != 2 {
					t.Errorf("%+v", receipt)
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				check("file", c.PutSigned(ctx, s.URL, strings.NewReader("{}"), 2))
			})
		}
	}
}

// TestAnswers: what each answer means for the batch, however hostile it is.
func TestAnswers(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("a redirect was followed, with %q", r.Header.Get("Authorization"))
	}))
	defer other.Close()
	for name, c := range map[string]struct {
		answer func(w http.ResponseWriter)
		want   string // the error; empty: accepted
		later  bool
		after  time.Duration
	}{
		"accepted":    {func(w http.ResponseWriter) { io.WriteString(w, "{}") }, "", false, 0},
		"message":     {func(w http.ResponseWriter) { http.Error(w, `{"code":3,"message":"no such thing"}`, 400) }, "refused: 400 Bad Request: no such thing", false, 0},
		"text":        {func(w http.ResponseWriter) { http.Error(w, "a\x1b[31mb\r\nc", http.StatusUnprocessableEntity) }, "refused: 422 Unprocessable Entity: a [31mb c", false, 0},
		"limit":       {func(w http.ResponseWriter) { w.Header().Set("Retry-After", "7"); w.WriteHeader(429) }, "429 Too Many Requests (try again after 7s)", true, 7 * time.Second},
		"a long wait": {func(w http.ResponseWriter) { w.Header().Set("Retry-After", "4000000000"); w.WriteHeader(503) }, "503 Service Unavailable (try again after 1h0m0s)", true, time.Hour},
		"a bad wait":  {func(w http.ResponseWriter) { w.Header().Set("Retry-After", "-1"); w.WriteHeader(503) }, "503 Service Unavailable (try again)", true, 0},
		"an old date": {func(w http.ResponseWriter) {
			w.Header().Set("Retry-After", "Mon, 02 Jan 2006 15:04:05 GMT")
			w.WriteHeader(503)
		}, "503 Service Unavailable (try again)", true, 0},
		"redirect":   {func(w http.ResponseWriter) { w.Header().Set("Location", other.URL); w.WriteHeader(307) }, "refused: 307 Temporary Redirect: the server redirects to " + other.URL + "; redirects are not followed", false, 0},
		"odd status": {func(w http.ResponseWriter) { w.WriteHeader(799) }, "refused: 799", false, 0},
		"page": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(404)
			io.WriteString(w, "<html>")
		}, "refused: 404 Not Found", false, 0},
		"broken JSON": {func(w http.ResponseWriter) { http.Error(w, `{"message":`, 400) }, `refused: 400 Bad Request: {"message":`, false, 0},
		"cut off":     {func(w http.ResponseWriter) { w.Header().Set("Content-Length", "100"); io.WriteString(w, "x") }, "the answer broke off: unexpected EOF (try again)", true, 0},
		"words cut off": {func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(400)
			io.WriteString(w, "no such")
		}, "refused: 400 Bad Request: no such", false, 0},
		"huge headers": {func(w http.ResponseWriter) { w.Header().Set("X", strings.Repeat("x", 1<<20)) }, "*", true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "Bearer secret" || !strings.HasPrefix(r.UserAgent(), "unspool/") || r.URL.Path != "/base/a/b" {
					t.Errorf("%s, %v", r.URL, r.Header)
				}
				c.answer(w)
			}))
			defer s.Close()
			a, err := client(t, s.URL+"/base/", Options{TokenFile: token}).Post(context.Background(), "a/b", nil, nil)
			if err == nil {
				err = a.Err()
			}
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || err.Error() != c.want && c.want != "*" {
				t.Fatalf("%v, want %s", err, c.want)
			}
			var later *Later
			if errors.As(err, &later) != c.later || c.later && later.After != c.after || name == "cut off" && (later.Times != maxFaults || string(a.Body) != "x" || !a.Cut) {
				t.Errorf("%#v, %+v", err, a)
			}
		})
	}
}

// TestEndless: an answer without an end is read up to a bound; a slow one ends with the time limit.
func TestEndless(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			for r.Context().Err() == nil {
				io.WriteString(w, "x")
				w.(http.Flusher).Flush()
				time.Sleep(10 * time.Millisecond)
			}
		}
		w.WriteHeader(400)
		for {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	}))
	defer s.Close()
	a, err := client(t, s.URL, Options{}).Post(context.Background(), "", nil, nil)
	if err != nil || len(a.Body) != maxAnswer || !a.Cut {
		t.Fatalf("%v, %d bytes", err, len(a.Body))
	}
	start := time.Now()
	a, err = client(t, s.URL, Options{Timeout: time.Second}).Post(context.Background(), "slow", nil, nil)
	var later *Later
	if !errors.As(err, &later) || later.Times != maxFaults || a == nil || a.Status != 200 || !a.Cut || time.Since(start) > 5*time.Second {
		t.Errorf("%+v, %v after %v", a, err, time.Since(start))
	}
}

// A mute listener has connections that say and hear nothing more once they are muted, as those of a machine that has gone.
type muteListener struct {
	net.Listener
	muted atomic.Int32 // so many connections, of those that were there first
	n     atomic.Int32
}

type muteConn struct {
	net.Conn
	l *muteListener
	n int32
}

func (l *muteListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &muteConn{c, l, l.n.Add(1)}, err
}

func (c *muteConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || c.n > c.l.muted.Load() {
			return n, err
		}
	}
}

// TestDeadConnection: a request that nobody answers is the last of its connection, also of HTTP/2, where others would wait for the same one.
func TestDeadConnection(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	l := &muteListener{Listener: s.Listener}
	s.Listener = l
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(true)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, http2 := range []bool{false, true} {
		c, err := NewClient(u, http2, Options{Timeout: 300 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		post := func() error { _, err := c.Post(t.Context(), "", nil, nil); return err }
		if err := post(); err != nil {
			t.Fatal(err)
		}
		l.muted.Store(l.n.Load())
		var later *Later
		if err := post(); !errors.As(err, &later) {
			t.Errorf("HTTP/2 %v: %v from a connection that is dead", http2, err)
		}
		time.Sleep(200 * time.Millisecond) // agents wait longer before they try again
		if err := post(); err != nil {
			t.Errorf("HTTP/2 %v: %v, want a new connection", http2, err)
		}
	}
}

// TestTLS: a server that the system does not know is trusted by its certificate only.
func TestTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ErrorLog = nil
	defer s.Close()
	if _, err := client(t, s.URL, Options{}).Post(context.Background(), "", nil, nil); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown server: %v", err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pemOf(s.Certificate().Raw), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := client(t, s.URL, Options{CA: ca}).Post(context.Background(), "", nil, nil); err != nil {
		t.Error(err)
	}
}

// TestNewClient: what is refused before anything is sent.
func TestNewClient(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	token := file("token", "x")
	for _, c := range []struct {
		url  string
		o    Options
		want string
	}{
		{"ftp://a", Options{}, "no http or https URL"},
		{"http:///x", Options{}, "names no host"},
		{"http://:80", Options{}, "names no host"},
		{"https://me:word@a", Options{}, "password-file=FILE"},
		{"http://a?x=1", Options{}, "no query"},
		{"http://example.org", Options{TokenFile: token}, "use https"},
		{"http://10.0.0.1", Options{TokenFile: token}, "use https"},
		{"https://a", Options{TokenFile: file("two", "a b")}, "holds no token"},
		{"https://a", Options{TokenFile: file("empty", "\n")}, "holds no line"},
		{"https://a", Options{TokenFile: "/dev/zero"}, "is larger than"},
		{"http://a", Options{PasswordFile: file("word", "me:word")}, "use https"},
		{"http://a", Options{Headers: []Header{{Name: "X-Key", File: token}}}, "use https"},
		{"https://a", Options{PasswordFile: token}, "holds no USER:PASSWORD"},
		{"https://a", Options{PasswordFile: file("nobody", ":word")}, "holds no USER:PASSWORD"},
		{"https://a", Options{PasswordFile: file("lines", "me:a\nb: c")}, "holds no line"},
		{"https://a", Options{TokenFile: token, PasswordFile: token}, "one of their files"},
		{"https://a", Options{TokenFile: token, Headers: []Header{{Name: "Authorization", File: token}}}, "Authorization has two values"},
		{"https://a", Options{Headers: []Header{{Name: "X", Value: "1"}, {Name: "X", Value: "2"}}}, "X has two values"},
		{"https://a", Options{CA: token}, "has no certificate"},
		{"https://a", Options{CA: "/none"}, "no such file"},
	} {
		u, err := url.Parse(c.url)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewClient(u, false, c.o); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "word@") {
			t.Errorf("%s: %v, want %s", c.url, err, c.want)
		}
	}
	for _, ok := range []string{"http://localhost:80", "http://127.0.0.1", "http://[::1]:1/x", "https://a"} {
		client(t, ok, Options{TokenFile: token})
	}
}

// FuzzAnswer: whatever a server answers, an error is short and printable, and a wait bounded.
func FuzzAnswer(f *testing.F) {
	f.Add(400, "7", "text/html", []byte(`{"message":"x"}`))
	f.Add(429, "Mon, 02 Jan 2106 15:04:05 GMT", "", []byte("\x1b]0;x\a\u202e"))
	f.Fuzz(func(t *testing.T, status int, after, kind string, body []byte) {
		a := &Answer{Status: status, Header: http.Header{"Retry-After": {after}, "Content-Type": {kind}, "Location": {after}}, Body: body}
		err := a.Err()
		if err == nil {
			return
		}
		if s := err.Error(); len(s) > 8*maxWords+200 || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q", s)
		}
		var later *Later
		if errors.As(err, &later) && (later.After < 0 || later.After > maxAfter) {
			t.Errorf("after %v", later.After)
		}
	})
}

// TestHeaders: what is sent of passwords and headers, and which headers are refused.
func TestHeaders(t *testing.T) {
	var got http.Header
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header }))
	defer s.Close()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("me:wo rd:x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var o Options
	for _, text := range []string{"x-scope-orgid: team a", "X-Api-Key:@" + file} {
		h, err := ParseHeader(text)
		if err != nil {
			t.Fatal(err)
		}
		o.Headers = append(o.Headers, h)
	}
	o.PasswordFile = file
	if _, err := client(t, s.URL, o).Post(context.Background(), "", http.Header{"Content-Type": {"a/b"}}, nil); err != nil {
		t.Fatal(err)
	}
	r := http.Request{Header: got}
	if user, word, ok := r.BasicAuth(); !ok || user != "me" || word != "wo rd:x" {
		t.Errorf("user %q, password %q", user, word)
	}
	for name, want := range map[string]string{"X-Scope-Orgid": "team a", "X-Api-Key": "me:wo rd:x", "Content-Type": "a/b"} {
		if got.Get(name) != want {
			t.Errorf("%s: %q, want %q", name, got.Get(name), want)
		}
	}
	for text, want := range map[string]string{
		"": "NAME:VALUE", "a": "NAME:VALUE", "a:": "NAME:VALUE", "a:@": "NAME:VALUE", ":a": "header's name", "a b:c": "header's name", "ä:c": "header's name",
		"content-length:1": "client itself", "grpc-timeout:1": "client itself", "Host:a": "client itself",
		"authorization:Bearer x": "Authorization:@FILE", "X-API-Key:x": "seen by others", "X-Auth:x": "seen by others", "X-Honeycomb-Team:x": "seen by others", "uptrace-dsn:https://x@y": "seen by others",
		"x:a\r\nb: c": "no line", "x:ä": "no line",
	} {
		if _, err := ParseHeader(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestTokenRenewed: the file of a token is read again after a minute; one that holds no token then changes nothing.
func TestTokenRenewed(t *testing.T) {
	var got string
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("Authorization") }))
	defer s.Close()
	token := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	c := client(t, s.URL, Options{TokenFile: token})
	post := func(want string) {
		t.Helper()
		if _, err := c.Post(context.Background(), "", nil, nil); err != nil || got != "Bearer "+want {
			t.Errorf("sent %q, %v; want the token %s", got, err, want)
		}
	}
	write("second")
	post("first")
	c.read = c.read.Add(-freshSecret)
	post("second")
	write("no token")
	c.read = c.read.Add(-freshSecret)
	post("second")
}

// TestTokenExpired: a server that refuses a token which its file does not hold any more is sent the profile again, with the new one. A token that is still
// there is refused for good.
func TestTokenExpired(t *testing.T) {
	valid := "second"
	for how, refuse := range map[string]func(w http.ResponseWriter){
		"401":    func(w http.ResponseWriter) { w.WriteHeader(401) },
		"403":    func(w http.ResponseWriter) { w.WriteHeader(403) },
		"header": func(w http.ResponseWriter) { w.Header().Set("Grpc-Status", "16") },
		"trailer": func(w http.ResponseWriter) {
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "7")
			io.WriteString(w, "x")
		},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer "+valid {
				refuse(w)
			}
		}))
		token := filepath.Join(t.TempDir(), "token")
		write := func(text string) {
			if err := os.WriteFile(token, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("first")
		c := client(t, s.URL, Options{TokenFile: token})
		send := func() (*Later, *Answer, error) {
			a, err := c.Post(t.Context(), "", nil, nil)
			var later *Later
			errors.As(err, &later)
			return later, a, err
		}
		if _, a, err := send(); err != nil || !a.unauthorized() {
			t.Errorf("%s: the file has the token still: %+v, %v", how, a, err)
		}
		write("second")
		if later, _, err := send(); later == nil || later.Times != 2 {
			t.Errorf("%s: the file has another token: %v", how, err)
		}
		if _, a, err := send(); err != nil || a.unauthorized() {
			t.Errorf("%s: with the new token: %+v, %v", how, a, err)
		}
		s.Close()
	}
}
