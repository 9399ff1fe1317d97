package daemon

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// serving runs the HTTP server of a daemon, and returns its address.
func serving(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stop := answer(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }))
	t.Cleanup(func() { stop() })
	return l.Addr().String()
}

// asked connects from an address of this machine, sends text, and returns the connection.
func asked(t *testing.T, from, to, text string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	io.WriteString(c, text) // the other end may have closed it
	return c
}

// answered returns the status of the answer on a connection; "" if it was closed.
func answered(c net.Conn) string {
	c.SetReadDeadline(time.Now().Add(time.Minute))
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return ""
	}
	return r.Status
}

const (
	begun = "GET /readyz HTTP/1.1\r\nHost: a\r\n" // a header without an end
	whole = begun + "\r\n"
)

// TestManyClients: clients that send no whole request hold some connections, and no others than these; one address holds half. Whoever comes when all are
// held is closed at once, and finds room when one is closed.
func TestManyClients(t *testing.T) {
	to := serving(t)
	var held []net.Conn
	for i, from := range []string{"127.0.0.2", "127.0.0.3"} {
		if got := answered(asked(t, "127.0.0.4", to, whole)); got != "200 OK" { // HTTP's keep-alive: this one holds a connection, too
			t.Errorf("beside %d addresses that hold all they can: %q", i, got)
		}
		for range maxOfOne - i*2 {
			held = append(held, asked(t, from, to, begun))
		}
		if got := answered(asked(t, from, to, whole)); got != "" {
			t.Errorf("%s has too many connections, and one more is answered: %q", from, got)
		}
	}
	if got := answered(asked(t, "127.0.0.5", to, whole)); got != "" {
		t.Errorf("all connections are held, and one more is answered: %q", got)
	}
	held[0].Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // until the server has seen it
		if got := answered(asked(t, "127.0.0.5", to, whole)); got == "200 OK" {
			break
		} else if got != "" || time.Now().After(end) {
			t.Fatalf("there is room, and the answer is %q", got)
		}
	}
}

// TestLongHeader: a client cannot make the server keep a long header.
func TestLongHeader(t *testing.T) {
	to := serving(t)
	for size, want := range map[int]string{4 << 10: "200 OK", 16 << 10: "431 Request Header Fields Too Large"} {
		if got := answered(asked(t, "127.0.0.1", to, begun+fmt.Sprintf("X: %s\r\n\r\n", strings.Repeat("x", size)))); got != want {
			t.Errorf("%d bytes: %q, want %q", size, got, want)
		}
	}
}

// TestNetworkOf: addresses that one host may choose count together.
func TestNetworkOf(t *testing.T) {
	for from, want := range map[string]string{
		"192.0.2.7:80": "192.0.2.7/32", "[::ffff:192.0.2.7]:80": "192.0.2.7/32",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::/64", "[2001:db8:1:2::1]:81": "2001:db8:1:2::/64", "[2001:db8:1:3::1]:80": "2001:db8:1:3::/64", "[fe80::1%eth0]:80": "fe80::/64",
	} {
		addr, err := net.ResolveTCPAddr("tcp", from)
		if err != nil {
			t.Fatal(err)
		}
		if got := networkOf(addr); got != want {
			t.Errorf("%s: %s, want %s", from, got, want)
		}
	}
}
