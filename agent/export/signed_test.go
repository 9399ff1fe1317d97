package export

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// TestPutSigned: a server leads no file to where the agent alone can reach, and no header goes with it.
func TestPutSigned(t *testing.T) {
	var got *http.Request
	var body string
	bucket := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if got, body = r, string(b); r.URL.Path == "/full" {
			http.Error(w, "full", http.StatusInsufficientStorage)
		}
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "/taken", http.StatusTemporaryRedirect)
		}
	}))
	defer bucket.Close()
	for _, c := range []struct{ server, to, want string }{
		{"http://127.0.0.1:1", bucket.URL + "/taken?signature=x", ""},
		{"http://127.0.0.1:1", bucket.URL + "/full", "refused: 507 Insufficient Storage: full"},
		{"http://127.0.0.1:1", bucket.URL + "/away", "redirects are not followed"},
		{"http://127.0.0.1:1", "ftp://127.0.0.1/x", "nothing is sent"},
		{"http://127.0.0.1:1", "http://u:p@127.0.0.1/x", "nothing is sent"},
		{"http://127.0.0.1:1", "/etc/passwd", "nothing is sent"},
		{"https://127.0.0.1:1", bucket.URL + "/taken", "nothing is sent"},
		{"http://parca.example:1", bucket.URL + "/taken", "an address of this machine or link"},
		{"http://parca.example:1", strings.Replace(bucket.URL, "127.0.0.1", "localhost", 1), "an address of this machine or link"},
		{"http://parca.example:1", "http://169.254.169.254/latest", "an address of this machine or link"},
		{"http://parca.example:1", "http://[::ffff:127.0.0.1]:1/", "an address of this machine or link"},
	} {
		got = nil
		err := client(t, c.server, Options{Headers: []Header{{Name: "X-Scope-Orgid", Value: "me"}}}).PutSigned(t.Context(), c.to, strings.NewReader("file"), 4)
		if c.want == "" {
			if err != nil || got == nil || got.Method != http.MethodPut || got.Header.Get("X-Scope-Orgid") != "" || got.URL.RawQuery != "signature=x" || body != "file" {
				t.Errorf("%s: %v, %+v, %q", c.to, err, got, body)
			}
			continue
		}
		var refused *Refused
		var later *Later
		if err == nil || !strings.Contains(err.Error(), c.want) || !errors.As(err, &refused) && !errors.As(err, &later) {
			t.Errorf("%s, of %s: %v, want %s", c.to, c.server, err, c.want)
		}
		if strings.Contains(c.want, "address") && got != nil {
			t.Errorf("%s was reached", c.to)
		}
	}
}

// TestSignedSecrets: what signs a URL, or stands in a redirect, gives a right to who reads a log. Messages have the URL without it.
func TestSignedSecrets(t *testing.T) {
	c := client(t, "https://parca.example", Options{})
	for _, to := range []string{"http://bucket.example/file?X-Amz-Signature=sesame", "https://user:sesame@bucket.example/file", "s3://bucket/file#sesame"} {
		err := c.PutSigned(t.Context(), to, strings.NewReader("x"), 1)
		if err == nil || strings.Contains(err.Error(), "sesame") || !strings.Contains(err.Error(), "bucket") {
			t.Errorf("%s: %v", to, err)
		}
	}
	a := Answer{Status: http.StatusTemporaryRedirect, Header: http.Header{"Location": {"https://bucket.eu.example/file?X-Amz-Signature=sesame"}}}
	if err := a.Err(); strings.Contains(err.Error(), "sesame") || !strings.Contains(err.Error(), "https://bucket.eu.example/file") {
		t.Errorf("Err of a redirect = %v, want its address without the signature", err)
	}
	a.Header.Set("Location", "https://%zz?X-Amz-Signature=sesame")
	if err := a.Err(); strings.Contains(err.Error(), "sesame") {
		t.Errorf("Err of a redirect to no address = %v, want no signature", err)
	}
}

// TestSignedEcho: pages of errors repeat what was asked for. Messages have no signature of these either, as it is or encoded.
func TestSignedEcho(t *testing.T) {
	status := http.StatusForbidden
	bucket := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch q := r.URL.Query(); r.URL.Path {
		case "/raw":
			http.Error(w, "no "+r.RequestURI, status)
		case "/plain":
			http.Error(w, "no "+strings.ToLower(q.Get("sig")), status)
		case "/json":
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"message": "no %s"}`, q.Get("sig"))
		case "/escaped":
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"error": "no %s"}`, strings.NewReplacer("/", `\/`, " ", `\u0020`).Replace(q.Get("sig")))
		case "/old":
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				fmt.Fprintf(conn, "%s %s\r\n\r\n", r.Method, r.RequestURI)
				conn.Close()
			}
		case "/cut":
			http.Error(w, strings.Repeat("x", 290)+q.Get("sig"), status)
		case "/moved":
			w.Header().Set("Location", "https://other.example/"+url.PathEscape(q.Get("sig")))
			w.WriteHeader(http.StatusMovedPermanently)
		default:
			http.Error(w, "no more", status)
		}
	}))
	defer bucket.Close()
	for _, status = range []int{http.StatusForbidden, http.StatusBadGateway} {
		for _, path := range []string{"/raw", "/plain", "/json", "/escaped", "/old", "/cut", "/moved", "/other"} {
			err := client(t, "http://127.0.0.1:1", Options{}).PutSigned(t.Context(), bucket.URL+path+"?v=no&sig=sesame%2Fopen+sesame", strings.NewReader("file"), 4)
			if err == nil || strings.Contains(err.Error(), "sesam") || path == "/other" && !strings.Contains(err.Error(), "no more") || path == "/old" && !strings.Contains(err.Error(), "malformed HTTP") {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
}

// TestSignedOwn: an address of this machine's is refused also where others have a way to it: a firewall may keep them from the port. So is EC2's own service.
func TestSignedOwn(t *testing.T) {
	reached := false
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	bucket := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	bucket.Listener.Close()
	bucket.Listener = l
	bucket.Start()
	defer bucket.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	hosts := []string{"fd00:ec2::254"}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			hosts = append(hosts, n.IP.String())
		}
	}
	for _, host := range hosts {
		err := client(t, "http://parca.example:1", Options{}).PutSigned(t.Context(), "http://"+net.JoinHostPort(host, port)+"/x", strings.NewReader("file"), 4)
		if err == nil || !strings.Contains(err.Error(), "an address of this machine or link") || reached {
			t.Errorf("%s: %v, reached: %v", host, err, reached)
		}
	}
}
